//! The bucket layouts. Each one is a cache line or two of plain atomics.
//!
//! `Line4`, `Side8` and `Split8` have one owner word and one state word a slot and work with every
//! [`Matcher`]; `Directory7`, `Dense5` and `Packed8` bring their own way of finding a slot.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::hash;
use crate::matching::Matcher;
use crate::step::{Packed, Spot, Whole};

/// A bucket of `WAYS` slots.
pub trait Bucket: Default {
    const WAYS: usize;
    const NAME: &'static str;
    const MATCHING: &'static str;
    type Spot<'a>: Spot
    where
        Self: 'a;

    /// Looks the key up, reads its state, and checks the owner again after that.
    fn find(&self, hash: u64) -> Option<Self::Spot<'_>>;

    /// Loads from every line that `find` is likely to need, and mixes the results so that they stay alive.
    fn touch(&self, hash: u64) -> u64;

    /// The slots in use. Only for filling.
    fn used(&self) -> usize;

    /// Puts the key into a free slot and returns its index. Only for filling, by one thread.
    fn insert(&self, hash: u64) -> usize;
}

/// One owner word and one state word a slot.
pub trait Slots: Default {
    const WAYS: usize;
    const NAME: &'static str;
    fn owner(&self, slot: usize) -> &AtomicU64;
    fn state(&self, slot: usize) -> &AtomicU64;
    /// One load from each line.
    fn touch(&self) -> u64;
}

#[derive(Default)]
#[repr(C)]
struct Pair {
    owner: AtomicU64,
    state: AtomicU64,
}

/// L1: four pairs in one line.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Line4([Pair; 4]);

impl Slots for Line4 {
    const WAYS: usize = 4;
    const NAME: &'static str = "L1 64 B, 4 pairs";
    #[inline(always)]
    fn owner(&self, slot: usize) -> &AtomicU64 {
        &self.0[slot & 3].owner
    }
    #[inline(always)]
    fn state(&self, slot: usize) -> &AtomicU64 {
        &self.0[slot & 3].state
    }
    #[inline(always)]
    fn touch(&self) -> u64 {
        self.0[0].owner.load(Ordering::Relaxed)
    }
}

/// L2: eight pairs in two lines.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Side8([Pair; 8]);

impl Slots for Side8 {
    const WAYS: usize = 8;
    const NAME: &'static str = "L2 128 B, 8 pairs";
    #[inline(always)]
    fn owner(&self, slot: usize) -> &AtomicU64 {
        &self.0[slot & 7].owner
    }
    #[inline(always)]
    fn state(&self, slot: usize) -> &AtomicU64 {
        &self.0[slot & 7].state
    }
    #[inline(always)]
    fn touch(&self) -> u64 {
        self.0[0].owner.load(Ordering::Relaxed) ^ self.0[4].owner.load(Ordering::Relaxed)
    }
}

/// L3: eight owners in one line, their states in the next.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Split8 {
    owners: [AtomicU64; 8],
    states: [AtomicU64; 8],
}

impl Slots for Split8 {
    const WAYS: usize = 8;
    const NAME: &'static str = "L3 128 B, 8 owners + 8 states";
    #[inline(always)]
    fn owner(&self, slot: usize) -> &AtomicU64 {
        &self.owners[slot & 7]
    }
    #[inline(always)]
    fn state(&self, slot: usize) -> &AtomicU64 {
        &self.states[slot & 7]
    }
    #[inline(always)]
    fn touch(&self) -> u64 {
        self.owners[0].load(Ordering::Relaxed) ^ self.states[0].load(Ordering::Relaxed)
    }
}

/// Slots searched by the matcher `M`.
pub struct Matched<S, M> {
    slots: S,
    matcher: PhantomData<M>,
}

impl<S: Slots, M> Default for Matched<S, M> {
    fn default() -> Self {
        Matched { slots: S::default(), matcher: PhantomData }
    }
}

impl<S: Slots, M> Matched<S, M> {
    #[inline(always)]
    pub fn slots(&self) -> &S {
        &self.slots
    }

    /// Reads the state of a slot that was seen to have this owner, and checks the owner again.
    #[inline(always)]
    pub fn open(&self, slot: usize, want: u64) -> Option<Whole<'_>> {
        let state = self.slots.state(slot);
        // Acquire: the owner is read again after the state.
        let seen = state.load(Ordering::Acquire);
        let owner = self.slots.owner(slot).load(Ordering::Relaxed);
        hash::same_tag(owner, want).then_some(Whole { state, seen })
    }
}

impl<S: Slots, M: Matcher> Bucket for Matched<S, M> {
    const WAYS: usize = S::WAYS;
    const NAME: &'static str = S::NAME;
    const MATCHING: &'static str = M::NAME;
    type Spot<'a>
        = Whole<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn find(&self, hash: u64) -> Option<Whole<'_>> {
        let want = hash::owner(hash);
        let slot = M::find(&self.slots, hash, want)?;
        self.open(slot, want)
    }

    #[inline(always)]
    fn touch(&self, _hash: u64) -> u64 {
        self.slots.touch()
    }

    fn used(&self) -> usize {
        (0..S::WAYS).filter(|&i| self.slots.owner(i).load(Ordering::Relaxed) != 0).count()
    }

    fn insert(&self, hash: u64) -> usize {
        let mut order = (0..S::WAYS).map(|nth| M::nth_choice(hash, nth) % S::WAYS);
        let slot = order.find(|&i| self.slots.owner(i).load(Ordering::Relaxed) == 0);
        let slot = slot.expect("the caller saw a free slot");
        self.slots.owner(slot).store(hash::owner(hash), Ordering::Relaxed);
        slot
    }
}

/// L4: a directory word of seven fingerprints and a version byte, seven owners, seven states.
#[derive(Default)]
#[repr(C, align(128))]
pub struct Directory7 {
    directory: AtomicU64,
    owners: [AtomicU64; 7],
    states: [AtomicU64; 7],
}

impl Directory7 {
    /// The high bit of every byte that holds a fingerprint.
    const HIGH: u64 = 0x0080_8080_8080_8080;
    const LOW: u64 = 0x0101_0101_0101_0101;
}

impl Bucket for Directory7 {
    const WAYS: usize = 7;
    const NAME: &'static str = "L4 128 B, directory + 7 + 7";
    const MATCHING: &'static str = "fingerprints";
    type Spot<'a> = Whole<'a>;

    #[inline(always)]
    fn find(&self, hash: u64) -> Option<Whole<'_>> {
        let want = hash::owner(hash);
        let differing = self.directory.load(Ordering::Acquire) ^ (hash::fingerprint(hash) * Self::LOW);
        // Marks every zero byte (and perhaps a byte of 1 above one: the owner decides).
        let mut hits = differing.wrapping_sub(Self::LOW) & !differing & Self::HIGH;
        while hits != 0 {
            let slot = (hits.trailing_zeros() / 8) as usize;
            let owner = self.owners.get(slot)?;
            if hash::same_tag(owner.load(Ordering::Acquire), want) {
                let state = &self.states[slot];
                let seen = state.load(Ordering::Acquire);
                return hash::same_tag(owner.load(Ordering::Relaxed), want).then_some(Whole { state, seen });
            }
            hits &= hits - 1;
        }
        None
    }

    #[inline(always)]
    fn touch(&self, _hash: u64) -> u64 {
        self.directory.load(Ordering::Relaxed) ^ self.states[0].load(Ordering::Relaxed)
    }

    fn used(&self) -> usize {
        self.owners.iter().filter(|owner| owner.load(Ordering::Relaxed) != 0).count()
    }

    fn insert(&self, hash: u64) -> usize {
        let slot = self.used();
        self.owners[slot].store(hash::owner(hash), Ordering::Relaxed);
        let directory = self.directory.load(Ordering::Relaxed);
        self.directory.store(directory | hash::fingerprint(hash) << (8 * slot), Ordering::Relaxed);
        slot
    }
}

/// L5, reference: five slots of a 32-bit tag and a 64-bit state in one line.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Dense5 {
    states: [AtomicU64; 5],
    tags: [AtomicU32; 5],
}

impl Dense5 {
    #[inline(always)]
    fn tag(hash: u64) -> u32 {
        hash as u32 | 1 << 31
    }
}

impl Bucket for Dense5 {
    const WAYS: usize = 5;
    const NAME: &'static str = "L5 64 B, 5 of 12 B";
    const MATCHING: &'static str = "branch-free";
    type Spot<'a> = Whole<'a>;

    #[inline(always)]
    fn find(&self, hash: u64) -> Option<Whole<'_>> {
        let want = Self::tag(hash);
        let mut hits = 0_u32;
        for (i, tag) in self.tags.iter().enumerate() {
            hits |= u32::from(tag.load(Ordering::Acquire) == want) << i;
        }
        let slot = hits.trailing_zeros() as usize;
        let state = self.states.get(slot)?;
        let seen = state.load(Ordering::Acquire);
        (self.tags[slot].load(Ordering::Relaxed) == want).then_some(Whole { state, seen })
    }

    #[inline(always)]
    fn touch(&self, _hash: u64) -> u64 {
        self.states[0].load(Ordering::Relaxed)
    }

    fn used(&self) -> usize {
        self.tags.iter().filter(|tag| tag.load(Ordering::Relaxed) != 0).count()
    }

    fn insert(&self, hash: u64) -> usize {
        let slot = self.used();
        self.tags[slot].store(Self::tag(hash), Ordering::Relaxed);
        slot
    }
}

/// L6, reference: eight words in one line, each a 24-bit tag and a 40-bit time.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Packed8([AtomicU64; 8]);

impl Packed8 {
    #[inline(always)]
    fn tag(hash: u64) -> u64 {
        hash << Packed::TIME_BITS | 1 << 63
    }
}

impl Bucket for Packed8 {
    const WAYS: usize = 8;
    const NAME: &'static str = "L6 64 B, 8 of 8 B";
    const MATCHING: &'static str = "branch-free";
    type Spot<'a> = Packed<'a>;

    #[inline(always)]
    fn find(&self, hash: u64) -> Option<Packed<'_>> {
        let want = Self::tag(hash);
        let mut hits = 0_u32;
        for (i, word) in self.0.iter().enumerate() {
            hits |= u32::from(word.load(Ordering::Acquire) ^ want < 1 << Packed::TIME_BITS) << i;
        }
        let word = self.0.get(hits.trailing_zeros() as usize)?;
        let seen = word.load(Ordering::Acquire);
        (seen ^ want < 1 << Packed::TIME_BITS).then_some(Packed { word, seen })
    }

    #[inline(always)]
    fn touch(&self, _hash: u64) -> u64 {
        self.0[0].load(Ordering::Relaxed)
    }

    fn used(&self) -> usize {
        self.0.iter().filter(|word| word.load(Ordering::Relaxed) != 0).count()
    }

    fn insert(&self, hash: u64) -> usize {
        let slot = self.used();
        self.0[slot].store(Self::tag(hash), Ordering::Relaxed);
        slot
    }
}

const _: () = {
    assert!(size_of::<Line4>() == 64 && size_of::<Dense5>() == 64 && size_of::<Packed8>() == 64);
    assert!(size_of::<Side8>() == 128 && size_of::<Split8>() == 128 && size_of::<Directory7>() == 128);
};
