//! The one allocation of a table.
//!
//! Zeroed memory from the system costs nothing until it is touched, and safe code can only write its zeroes one by
//! one. Nor is a plain `Box` of buckets enough: for anything that has to lie on a cache line, the system's allocator
//! is asked for memory as it comes, and that is then written zero by zero, all of it. So more is asked for than is
//! needed, without conditions, and the buckets begin where a line does.

pub(super) use kind::Buckets;

/// The smallest page there is.
#[cfg(not(tollgate_loom))]
const PAGE_BYTES: usize = 4096;
/// A page of the larger kind, where there is one.
#[cfg(not(tollgate_loom))]
const HUGE_PAGE_BYTES: usize = 2 << 20;

#[cfg(not(tollgate_loom))]
#[allow(unsafe_code, reason = "zeroed memory cannot be had otherwise without touching it")]
mod kind {
    use super::super::slot::Bucket;
    use super::{HUGE_PAGE_BYTES, PAGE_BYTES};
    use crate::cpu::{Pages, prefer_pages};
    use crossbeam_utils::CachePadded;
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::fmt;
    use std::ops::Deref;
    use std::ptr::NonNull;

    /// Buckets that were empty when they were made.
    pub(crate) struct Buckets {
        first: NonNull<CachePadded<Bucket>>,
        count: usize,
        memory: NonNull<u8>,
        layout: Layout,
    }

    // SAFETY: the memory is this value's alone, and what it holds is a slice of buckets, which any thread may have ...
    unsafe impl Send for Buckets {}
    // SAFETY: ... and any number of threads may share: they are atomics.
    unsafe impl Sync for Buckets {}

    impl Buckets {
        /// So many, or `None` if there is no memory for them.
        pub(crate) fn new(count: usize) -> Option<Self> {
            let bytes = Layout::array::<CachePadded<Bucket>>(count).ok()?.size();
            // Beyond a huge page they begin where one may.
            let align =
                if bytes < HUGE_PAGE_BYTES { align_of::<CachePadded<Bucket>>() } else { HUGE_PAGE_BYTES };
            let layout = Layout::from_size_align(bytes.checked_add(align)?, align_of::<u64>()).ok()?;
            if count == 0 {
                return None;
            }
            // SAFETY: the layout is not empty.
            let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
            let offset = memory.align_offset(align);
            assert!(offset < align, "memory that cannot be aligned");
            // SAFETY: the offset is less than what was asked for beyond the bytes of the buckets.
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
            for bucket in self.iter().step_by(PAGE_BYTES / size_of::<CachePadded<Bucket>>()) {
                bucket.bring_in();
            }
            // Small tables may begin in the middle of a page, and end on one more.
            if let Some(last) = self.last() {
                last.bring_in();
            }
        }
    }

    impl Deref for Buckets {
        type Target = [CachePadded<Bucket>];

        #[inline(always)]
        fn deref(&self) -> &Self::Target {
            // SAFETY: so many buckets lie there, aligned, within memory that is this value's until it is dropped. A
            // bucket is an array of 64-bit atomics, for which all bits zero is a valid value, and padding.
            unsafe { NonNull::slice_from_raw_parts(self.first, self.count).as_ref() }
        }
    }

    impl Drop for Buckets {
        fn drop(&mut self) {
            // SAFETY: allocated by the same allocator with the same layout, and nobody has a reference any more. Buckets
            // have nothing to drop.
            unsafe { dealloc(self.memory.as_ptr(), self.layout) };
        }
    }

    impl fmt::Debug for Buckets {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            (**self).fmt(f)
        }
    }
}

/// The model checker's atomics are more than their bits.
#[cfg(tollgate_loom)]
mod kind {
    use super::super::slot::Bucket;
    use crossbeam_utils::CachePadded;
    use std::ops::Deref;

    #[derive(Debug)]
    pub(crate) struct Buckets(Box<[CachePadded<Bucket>]>);

    impl Buckets {
        pub(crate) fn new(count: usize) -> Option<Self> {
            Some(Self((0..count).map(|_| CachePadded::new(Bucket::new())).collect()))
        }

        pub(crate) fn bring_in(&self) {}

        pub(crate) fn leave_out(&self) {}
    }

    impl Deref for Buckets {
        type Target = [CachePadded<Bucket>];

        fn deref(&self) -> &Self::Target {
            &self.0
        }
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::super::slot::Bucket;
    use super::*;
    use crossbeam_utils::CachePadded;

    #[test]
    fn zeroed_memory_is_empty_buckets() {
        let empty = format!("{:?}", CachePadded::new(Bucket::new()));
        for count in [1, 3, HUGE_PAGE_BYTES / 128 - 1, HUGE_PAGE_BYTES / 128, HUGE_PAGE_BYTES / 64 + 2] {
            let buckets = Buckets::new(count).expect("memory");
            buckets.bring_in();
            assert_eq!(buckets.len(), count);
            for bucket in [&buckets[0], &buckets[count / 2], &buckets[count - 1]] {
                assert!(std::ptr::from_ref(bucket).is_aligned());
                assert_eq!(format!("{bucket:?}"), empty);
            }
        }
        assert!(Buckets::new(0).is_none() && Buckets::new(usize::MAX / 4).is_none());
        assert!(Buckets::new(isize::MAX as usize / 128).is_none());
    }
}
