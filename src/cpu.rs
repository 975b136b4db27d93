//! What the language has no safe name for: two instructions of the processor, and a word to the system.

use std::ptr::NonNull;

/// Whether [`ticks`] counts anything.
pub(crate) const HAS_TICKS: bool = cfg!(all(target_arch = "x86_64", not(tollgate_loom)));

/// The processor's counter, which quanta reads too where it can be relied upon; 0 where there is none.
///
/// Read here because quanta's own reading may end in a call to the system, and a function that may make a
/// call in its middle has to save what it holds: a tenth of all instructions of a decision, and more.
#[inline(always)]
#[cfg_attr(
    all(target_arch = "x86_64", not(tollgate_loom)),
    allow(unsafe_code, reason = "the counter cannot be read otherwise")
)]
pub(crate) fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(tollgate_loom)))]
    // SAFETY: every x86-64 processor has the instruction, and it touches nothing. (A program may have asked its
    // system to be stopped at it; then it is.)
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(all(target_arch = "x86_64", not(tollgate_loom))))]
    0
}

/// Has the processor fetch what is at `place`, and does not wait for it.
///
/// A load would do the same, but for a clock that is read next: some processors read their counter only once
/// every earlier load is done. Over tables beyond the cache this halves the time of a call.
#[inline(always)]
#[cfg_attr(
    all(target_arch = "x86_64", not(tollgate_loom)),
    allow(unsafe_code, reason = "a prefetch cannot be had otherwise")
)]
pub(crate) fn prefetch<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(tollgate_loom)))]
    // SAFETY: every x86-64 processor has the instruction; it is a hint that reads nothing and cannot
    // fault, wherever `place` is.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(tollgate_loom))))]
    let _ = place;
}

/// Which pages a stretch of memory is to be on.
#[cfg_attr(tollgate_loom, allow(dead_code, reason = "a model's memory is not on pages"))]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pages {
    /// Large ones, of which a processor remembers as many as of small ones: far fewer ways to memory begin with a search
    /// for the page.
    Large,
    /// Small ones alone: the system zeroes a page when it is first touched, and a large one takes it long.
    Small,
}

/// Tells the system which pages this memory had better be on. Takes effect for what is not yet touched.
#[cfg_attr(
    all(target_os = "linux", not(any(tollgate_loom, miri))),
    allow(unsafe_code, reason = "the system's call has no other name")
)]
#[cfg_attr(tollgate_loom, allow(dead_code, reason = "a model's memory is not on pages"))]
pub(crate) fn prefer_pages(pages: Pages, start: NonNull<u8>, bytes: usize) {
    #[cfg(all(target_os = "linux", not(any(tollgate_loom, miri))))]
    if bytes > 0 {
        use std::ffi::{c_int, c_void};
        // As the kernel numbers them: MADV_HUGEPAGE and MADV_NOHUGEPAGE.
        let advice: c_int = match pages {
            Pages::Large => 14,
            Pages::Small => 15,
        };
        // SAFETY: the declaration is that of the C library, which the standard library is linked with.
        unsafe extern "C" {
            fn madvise(start: *mut c_void, bytes: usize, advice: c_int) -> c_int;
        }
        // SAFETY: this advice changes nothing that the memory holds, whoever it belongs to. Where it is not taken, all
        // is as before.
        let _taken = unsafe { madvise(start.as_ptr().cast(), bytes, advice) };
    }
    #[cfg(not(all(target_os = "linux", not(any(tollgate_loom, miri)))))]
    let _ = (pages, start, bytes);
}
