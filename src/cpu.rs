//! Two instructions of the processor that the language has no safe name for.

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
