//! Ways to find a key's slot among the owner words of a bucket.

use std::sync::atomic::Ordering;

use crate::hash;
use crate::layouts::Slots;

pub trait Matcher {
    const NAME: &'static str;

    /// The slot whose owner has the tag of `want`.
    fn find<S: Slots>(slots: &S, hash: u64, want: u64) -> Option<usize>;

    /// The slot a new key tries as its `nth`, modulo the number of ways.
    fn nth_choice(_hash: u64, nth: usize) -> usize {
        nth
    }
}

#[inline(always)]
fn matches<S: Slots>(slots: &S, slot: usize, want: u64) -> bool {
    // Acquire: the state is read after its owner.
    hash::same_tag(slots.owner(slot).load(Ordering::Acquire), want)
}

/// One bit for each matching slot in `from..to`, without a branch.
#[inline(always)]
pub fn hits<S: Slots>(slots: &S, from: usize, to: usize, want: u64) -> u32 {
    let mut hits = 0;
    for slot in from..to {
        hits |= u32::from(matches(slots, slot, want)) << slot;
    }
    hits
}

#[inline(always)]
fn first(hits: u32) -> Option<usize> {
    (hits != 0).then(|| hits.trailing_zeros() as usize)
}

/// Slot by slot, stopping at the match.
pub struct Scan;

impl Matcher for Scan {
    const NAME: &'static str = "early exit";
    #[inline(always)]
    fn find<S: Slots>(slots: &S, _hash: u64, want: u64) -> Option<usize> {
        (0..S::WAYS).find(|&slot| matches(slots, slot, want))
    }
}

/// All slots always, the index by arithmetic.
pub struct BranchFree;

impl Matcher for BranchFree {
    const NAME: &'static str = "branch-free";
    #[inline(always)]
    fn find<S: Slots>(slots: &S, _hash: u64, want: u64) -> Option<usize> {
        first(hits(slots, 0, S::WAYS, want))
    }
}

/// The slot named by three hash bits first, then all slots without a branch.
pub struct Preferred;

impl Matcher for Preferred {
    const NAME: &'static str = "preferred slot first";
    #[inline(always)]
    fn find<S: Slots>(slots: &S, hash: u64, want: u64) -> Option<usize> {
        let slot = hash::preferred(hash);
        if matches(slots, slot, want) {
            return Some(slot);
        }
        first(hits(slots, 0, S::WAYS, want))
    }
    fn nth_choice(hash: u64, nth: usize) -> usize {
        hash::preferred(hash) + nth
    }
}

/// The four slots named by one hash bit first (with side-by-side pairs: one line), then the other four.
pub struct HalfFirst;

impl Matcher for HalfFirst {
    const NAME: &'static str = "preferred half first";
    #[inline(always)]
    fn find<S: Slots>(slots: &S, hash: u64, want: u64) -> Option<usize> {
        let near = hash::preferred(hash) & 4;
        for half in [near, near ^ 4] {
            let mut hits = 0;
            for i in 0..4 {
                hits |= u32::from(matches(slots, half + i, want)) << i;
            }
            if let Some(i) = first(hits) {
                return Some(half + i);
            }
        }
        None
    }
    fn nth_choice(hash: u64, nth: usize) -> usize {
        (hash::preferred(hash) & 4) + nth
    }
}
