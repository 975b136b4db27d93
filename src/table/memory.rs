//! The one allocation of a table.
//!
//! Zeroed memory from the system costs nothing until it is touched, and safe code can only write its zeroes one by
//! one. Nor is a plain `Box` of lines enough: for anything that has to lie on a cache line, the system's allocator
//! is asked for memory as it comes, and that is then written zero by zero, all of it. So more is asked for than is
//! needed, without conditions, and the lines begin where a cache line does.

pub(super) use kind::Lines;

#[cfg(not(tollgate_loom))]
use super::slot::LINES;
use super::slot::Line;

/// The smallest page there is.
#[cfg(not(tollgate_loom))]
const PAGE_BYTES: usize = 4096;
/// A bucket.
#[cfg(not(tollgate_loom))]
const BUCKET_BYTES: usize = LINES * size_of::<Line>();
/// A page of the larger kind, where there is one.
#[cfg(not(tollgate_loom))]
const HUGE_PAGE_BYTES: usize = 2 << 20;

#[cfg(not(tollgate_loom))]
#[allow(unsafe_code, reason = "zeroed memory cannot be had otherwise without touching it")]
mod kind {
    use super::{BUCKET_BYTES, HUGE_PAGE_BYTES, Line, PAGE_BYTES};
    use crate::cpu::{Pages, prefer_pages};
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::fmt;
    use std::ops::Deref;
    use std::ptr::NonNull;

    /// Lines that were empty when they were made.
    pub(crate) struct Lines {
        first: NonNull<Line>,
        count: usize,
        memory: NonNull<u8>,
        layout: Layout,
    }

    // SAFETY: the memory is this value's alone, and what it holds is a slice of lines, which any thread may have ...
    unsafe impl Send for Lines {}
    // SAFETY: ... and any number of threads may share: they are atomics.
    unsafe impl Sync for Lines {}

    impl Lines {
        /// So many, or `None` if there is no memory for them.
        pub(crate) fn new(count: usize) -> Option<Self> {
            let bytes = Layout::array::<Line>(count).ok()?.size();
            // Buckets begin at a multiple of their size: a processor that fetches lines by two fetches two of the same. Beyond
            // a huge page they begin where one may.
            let align = if bytes < HUGE_PAGE_BYTES { BUCKET_BYTES } else { HUGE_PAGE_BYTES };
            let layout = Layout::from_size_align(bytes.checked_add(align)?, align_of::<u64>()).ok()?;
            if count == 0 {
                return None;
            }
            // SAFETY: the layout is not empty.
            let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
            let offset = memory.align_offset(align);
            assert!(offset < align, "memory that cannot be aligned");
            // SAFETY: the offset is less than what was asked for beyond the bytes of the lines.
            let first = unsafe { memory.add(offset) }.cast();
            Some(Self { first, count, memory, layout })
        }

        /// Leaves it to the system to provide each page when it is first touched: small ones, because somebody waits.
        pub(crate) fn leave_out(&self) {
            self.prefer(Pages::Small);
        }

        fn prefer(&self, pages: Pages) {
            // Whole large ones only: the rest of another would be nobody's.
            let bytes = size_of_val(&**self) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            prefer_pages(pages, self.first.cast(), bytes);
        }

        /// Has the system provide every page now, before anybody waits for one: large ones where it may.
        pub(crate) fn bring_in(&self) {
            self.prefer(Pages::Large);
            for line in self.iter().step_by(PAGE_BYTES / size_of::<Line>()) {
                line.bring_in();
            }
            // Small tables may begin in the middle of a page, and end on one more.
            if let Some(last) = self.last() {
                last.bring_in();
            }
        }
    }

    impl Deref for Lines {
        type Target = [Line];

        #[inline(always)]
        fn deref(&self) -> &Self::Target {
            // SAFETY: so many lines lie there, aligned, within memory that is this value's until it is dropped. A
            // line is an array of 64-bit atomics, for which all bits zero is a valid value, and padding.
            unsafe { NonNull::slice_from_raw_parts(self.first, self.count).as_ref() }
        }
    }

    impl Drop for Lines {
        fn drop(&mut self) {
            // SAFETY: allocated by the same allocator with the same layout, and nobody has a reference any more. Lines
            // have nothing to drop.
            unsafe { dealloc(self.memory.as_ptr(), self.layout) };
        }
    }

    impl fmt::Debug for Lines {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            (**self).fmt(f)
        }
    }
}

/// The model checker's atomics are more than their bits.
#[cfg(tollgate_loom)]
mod kind {
    use super::Line;
    use std::ops::Deref;

    #[derive(Debug)]
    pub(crate) struct Lines(Box<[Line]>);

    impl Lines {
        pub(crate) fn new(count: usize) -> Option<Self> {
            Some(Self((0..count).map(|_| Line::new()).collect()))
        }

        pub(crate) fn bring_in(&self) {}

        pub(crate) fn leave_out(&self) {}
    }

    impl Deref for Lines {
        type Target = [Line];

        fn deref(&self) -> &Self::Target {
            &self.0
        }
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn zeroed_memory_is_empty_lines() {
        let empty = format!("{:?}", Line::new());
        for count in [1, 3, HUGE_PAGE_BYTES / 64 - 1, HUGE_PAGE_BYTES / 64, HUGE_PAGE_BYTES / 32 + 2] {
            let lines = Lines::new(count).expect("memory");
            lines.bring_in();
            assert_eq!(lines.len(), count);
            for line in [&lines[0], &lines[count / 2], &lines[count - 1]] {
                assert!(std::ptr::from_ref(line).is_aligned());
                assert_eq!(format!("{line:?}"), empty);
            }
        }
        assert!(Lines::new(0).is_none() && Lines::new(usize::MAX / 4).is_none());
        assert!(Lines::new(isize::MAX as usize / 64).is_none());
    }
}
