//! The one allocation of a table.
//!
//! Zeroed memory from the system costs nothing until it is touched. Safe code can only write its zeroes one by
//! one, which brings in every page of a table that may never be half full.

use super::slot::Bucket;
use crossbeam_utils::CachePadded;

/// So many empty buckets, or `None` if there is no memory for them.
#[cfg(not(tollgate_loom))]
#[allow(unsafe_code, reason = "zeroed memory cannot be had otherwise without touching it")]
pub(super) fn buckets(count: usize) -> Option<Box<[CachePadded<Bucket>]>> {
    use std::alloc::{Layout, alloc_zeroed};

    let layout = Layout::array::<CachePadded<Bucket>>(count).ok()?;
    if layout.size() == 0 {
        return None;
    }
    // SAFETY: the layout is not empty.
    let memory = unsafe { alloc_zeroed(layout) }.cast::<CachePadded<Bucket>>();
    if memory.is_null() {
        return None;
    }
    let buckets = std::ptr::slice_from_raw_parts_mut(memory, count);
    // SAFETY: the memory was just allocated by the global allocator with the layout of this very slice, and
    // nobody else has it. A bucket is an array of 64-bit atomics, for which all bits zero is a valid value,
    // and padding.
    Some(unsafe { Box::from_raw(buckets) })
}

/// The model checker's atomics are more than their bits.
#[cfg(tollgate_loom)]
pub(super) fn buckets(count: usize) -> Option<Box<[CachePadded<Bucket>]>> {
    Some((0..count).map(|_| CachePadded::new(Bucket::new())).collect())
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn zeroed_memory_is_empty_buckets() {
        let buckets = buckets(3).expect("memory");
        for bucket in &buckets {
            assert_eq!(format!("{bucket:?}"), format!("{:?}", CachePadded::new(Bucket::new())));
        }
        assert!(super::buckets(usize::MAX / 4).is_none());
    }
}
