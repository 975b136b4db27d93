//! A table of buckets, filled once; and the two ways to look into a key's two buckets.

use std::marker::PhantomData;

use crate::hash;
use crate::layouts::{Bucket, Matched, Slots};
use crate::matching::{self, BranchFree};
use crate::step::Whole;

/// How home and second bucket are looked into.
pub trait Probe<B: Bucket> {
    const NAME: &'static str;
    fn locate(buckets: &[B], hash: u64) -> Option<B::Spot<'_>>;
}

/// The second bucket only after a miss at home.
pub struct HomeFirst;

impl<B: Bucket> Probe<B> for HomeFirst {
    const NAME: &'static str = "";
    #[inline(always)]
    fn locate(buckets: &[B], hash: u64) -> Option<B::Spot<'_>> {
        let home = buckets[hash::home(hash, buckets.len())].find(hash);
        if home.is_some() {
            return home;
        }
        buckets[hash::second(hash, buckets.len())].find(hash)
    }
}

/// The owners of both buckets at once, without a branch.
pub struct BothAtOnce;

impl<S: Slots> Probe<Matched<S, BranchFree>> for BothAtOnce {
    const NAME: &'static str = ", both buckets";
    #[inline(always)]
    fn locate(buckets: &[Matched<S, BranchFree>], hash: u64) -> Option<Whole<'_>> {
        let want = hash::owner(hash);
        let home = &buckets[hash::home(hash, buckets.len())];
        let second = &buckets[hash::second(hash, buckets.len())];
        let hits = matching::hits(home.slots(), 0, S::WAYS, want)
            | matching::hits(second.slots(), 0, S::WAYS, want) << S::WAYS;
        if hits == 0 {
            return None;
        }
        let index = hits.trailing_zeros() as usize;
        let bucket = if index < S::WAYS { home } else { second };
        bucket.open(index % S::WAYS, want)
    }
}

/// Home while it has more than this many free slots, else the emptier bucket.
pub const HOME_SPARE: usize = 2;

pub struct Table<B, P> {
    buckets: Box<[B]>,
    probe: PhantomData<P>,
    /// What filling it came to.
    pub filled: Filled,
}

#[derive(Default)]
pub struct Filled {
    pub keys: usize,
    pub no_room: usize,
    pub in_second: usize,
    /// Keys in the slot, and in the half of the bucket, that their hash names.
    pub in_preferred: usize,
    pub in_preferred_half: usize,
}

impl<B: Bucket, P: Probe<B>> Table<B, P> {
    /// A table with room for the keys at this load, holding all of them.
    pub fn filled(hashes: impl ExactSizeIterator<Item = u64>, load: f64) -> Self {
        let count = (hashes.len() as f64 / (B::WAYS as f64 * load)).ceil() as usize;
        let buckets: Box<[B]> = (0..count).map(|_| B::default()).collect();
        let mut filled = Filled { keys: hashes.len(), ..Filled::default() };
        for hash in hashes {
            let home = &buckets[hash::home(hash, count)];
            let second = &buckets[hash::second(hash, count)];
            let (at_home, at_second) = (home.used(), second.used());
            let stays = at_home + HOME_SPARE < B::WAYS || at_home <= at_second;
            if at_home.min(at_second) == B::WAYS {
                filled.no_room += 1;
                continue;
            }
            let slot = if stays { home } else { second }.insert(hash);
            filled.in_second += usize::from(!stays);
            filled.in_preferred += usize::from(slot == hash::preferred(hash));
            filled.in_preferred_half += usize::from(slot / 4 == hash::preferred(hash) / 4);
        }
        Table { buckets, probe: PhantomData, filled }
    }

    #[inline(always)]
    pub fn locate(&self, hash: u64) -> Option<B::Spot<'_>> {
        P::locate(&self.buckets, hash)
    }

    /// Loads from the lines of the home bucket.
    #[inline(always)]
    pub fn touch(&self, hash: u64) -> u64 {
        self.buckets[hash::home(hash, self.buckets.len())].touch(hash)
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// Walks the whole table once, so that a timed run starts from the caches' steady state.
    pub fn warm(&self) -> u64 {
        self.buckets.iter().fold(0, |mix, bucket| mix ^ bucket.touch(0))
    }
}
