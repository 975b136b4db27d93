//! The bit layout of the two words of a slot, and nothing else.
//!
//! ```text
//! owner:  | tag: 31 | away: 1 | step: 3 | cell: 11 | far: 3 | near: 3 | generation: 11 | somebody: 1 |
//! state:  | payload: 56 | generation: 7 | live: 1 |
//! ```
//!
//! *away* and *step* say where a name stands that is not on its first line. *near* and *far* are not the owner's: they
//! count the claims on slots elsewhere that were made for keys which would rather have this very slot.
//!
//! The low byte of an owner is the low byte of a state that is live under it, so that a glance is two comparisons; and
//! what an algorithm owns of a word is at its top, where arithmetic carries nothing into the rest.

use super::slot::{LINE_WAYS, LINES};
use crate::algorithm::STORER_BITS;
use crate::sync::generation_kept;

/// Of a key's hash, beside those that choose its line.
pub(crate) const TAG_BITS: u32 = 31;
const STEP_BITS: u32 = 3;
pub(crate) const CELL_BITS: u32 = 11;
const FAR_BITS: u32 = 3;
const NEAR_BITS: u32 = 3;
const GENERATION_BITS: u32 = 11;
const STAMP_GENERATION_MASK: u64 = 0x7f;

const SOMEBODY: u64 = 1;
const NEAR_SHIFT: u32 = 1 + GENERATION_BITS;
const FAR_SHIFT: u32 = NEAR_SHIFT + NEAR_BITS;
const CELL_SHIFT: u32 = FAR_SHIFT + FAR_BITS;
const STEP_SHIFT: u32 = CELL_SHIFT + CELL_BITS;
const AWAY_SHIFT: u32 = STEP_SHIFT + STEP_BITS;
const TAG_SHIFT: u32 = AWAY_SHIFT + 1;

const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;
/// What of an owner word is not the owner's.
const BEYOND_MASK: u64 = (1 << CELL_SHIFT) - (1 << NEAR_SHIFT);
/// What of it is the name: all but that and the generation.
const NAME_MASK: u64 = !(GENERATION_MASK << 1 | BEYOND_MASK);
const ELSEWHERE_MASK: u64 = (1 << TAG_SHIFT) - (1 << STEP_SHIFT);
/// The low byte of a word, which says whose it is and in which generation.
const STAMP_MASK: u64 = (1 << STORER_BITS) - 1;

const _: () = assert!(TAG_SHIFT + TAG_BITS == u64::BITS);
const _: () = assert!(STAMP_GENERATION_MASK << 1 | 1 == STAMP_MASK);
const _: () = assert!(LINES <= 1 << STEP_BITS && LINE_WAYS <= 4);

/// How far from its first line a name is that is not on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beyond {
    Near,
    Far,
}

impl Beyond {
    /// One key, and all bits, where an owner word counts those who are so far away.
    #[inline(always)]
    const fn counted(self) -> (u64, u64) {
        let (shift, bits) = match self {
            Self::Near => (NEAR_SHIFT, NEAR_BITS),
            Self::Far => (FAR_SHIFT, FAR_BITS),
        };
        (1 << shift, ((1 << bits) - 1) << shift)
    }
}

/// Who a slot belongs to: a key's tag, which of the key's cells, and how often the slot has changed hands. The counts
/// of those who are elsewhere come along, and mean nothing to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(pub(crate) u64);

/// The part of an owner word that names a key's cell and where it stands, with the rest left at zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name(u64);

impl Name {
    pub(crate) const NOBODY: Self = Self(0);

    /// The name of a cell of the key with this hash, of which the low [`TAG_BITS`] count; on its first line.
    #[inline(always)]
    pub(crate) fn new(hash: u64, cell: usize) -> Self {
        debug_assert!(cell >> CELL_BITS == 0);
        Self(hash << TAG_SHIFT | (cell as u64) << CELL_SHIFT | SOMEBODY)
    }

    /// The bits of the hash that are in the name.
    pub(crate) fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT
    }

    /// The way of a line that a name is put in if it can be.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "a few bits")]
    pub(crate) fn way(self) -> usize {
        // Tag and cell both count, so that the cells of one key do not want the same way. Bits of the tag that stand
        // where they are wanted, once they are bytes.
        ((self.0 >> (TAG_SHIFT + 4)) + (self.0 >> CELL_SHIFT)) as usize % LINE_WAYS
    }

    /// The same name as it stands on another line: so many steps on, in the first bucket or away in the second.
    #[inline]
    pub(crate) fn elsewhere(self, is_away: bool, step: usize) -> Self {
        debug_assert!(self.is_at_first() && step < LINES);
        Self(self.0 | u64::from(is_away) << AWAY_SHIFT | (step as u64) << STEP_SHIFT)
    }

    /// Whether it stands in a key's second bucket.
    pub(crate) fn is_away(self) -> bool {
        self.0 >> AWAY_SHIFT & 1 != 0
    }

    /// How many steps from the line where the bucket is looked at first.
    #[allow(clippy::cast_possible_truncation, reason = "a few bits")]
    pub(crate) fn step(self) -> usize {
        (self.0 >> STEP_SHIFT) as usize % (1 << STEP_BITS)
    }

    fn is_at_first(self) -> bool {
        self.0 & ELSEWHERE_MASK == 0
    }

    /// How far from its first line it stands; `None` if it is there.
    pub(crate) fn beyond(self) -> Option<Beyond> {
        match self.step() {
            _ if self.is_at_first() => None,
            0 | 1 => Some(Beyond::Near),
            _ => Some(Beyond::Far),
        }
    }

    /// The name as it stands on the key's first line.
    pub(crate) fn at_first(self) -> Self {
        Self(self.0 & !ELSEWHERE_MASK)
    }

    /// Whether this is a name of the same key, standing as far from its first line.
    pub(crate) fn is_of_key_of(self, other: Self) -> bool {
        (self.0 ^ other.0) >> STEP_SHIFT == 0
    }

    /// The owner word of this name, without a count, in the generation that the slot's state has reached.
    pub(crate) fn in_generation_of(self, state: State, previous: Owner) -> Owner {
        let next = previous.next_generation();
        debug_assert_eq!(stamped(next), state.generation());
        Owner(self.0 | next << 1)
    }
}

impl Owner {
    /// Whether this is `name`, in any generation. Free of branches: what is not the name is all that may differ.
    #[inline(always)]
    pub(crate) fn is(self, name: Name) -> bool {
        (self.0 ^ name.0) & NAME_MASK == 0
    }

    /// Whether it is the same owner in the same generation.
    #[inline(always)]
    pub(crate) fn is_still(self, seen: Self) -> bool {
        (self.0 ^ seen.0) & !BEYOND_MASK == 0
    }

    /// `name`, without a count, in the generation of this owner, who is nobody.
    pub(crate) fn succeeded_by(self, name: Name) -> Self {
        debug_assert!(self.is_nobody());
        Self(name.0 | self.generation() << 1)
    }

    /// Nobody, without a count, in the generation of this owner, who was not shut out.
    pub(crate) fn succeeded_by_nobody(self) -> Self {
        Self(self.generation() << 1)
    }

    /// The same owner, who knows of no count, with the one that stands in the slot.
    pub(crate) fn with_beyond_of(self, seen: Self) -> Self {
        debug_assert!(!self.has_beyond());
        Self(self.0 | seen.0 & BEYOND_MASK)
    }

    pub(crate) fn is_nobody(self) -> bool {
        self.0 & SOMEBODY == 0
    }

    /// The name, without the rest.
    pub(crate) fn name(self) -> Name {
        Name(self.0 & NAME_MASK)
    }

    #[allow(clippy::cast_possible_truncation, reason = "11 bits")]
    pub(crate) fn cell(self) -> usize {
        (self.0 >> CELL_SHIFT) as usize & ((1 << CELL_BITS) - 1)
    }

    /// Whether any key that would rather have this slot may be elsewhere.
    #[inline(always)]
    pub(crate) fn has_beyond(self) -> bool {
        self.0 & BEYOND_MASK != 0
    }

    /// Whether any may be so far away.
    #[inline]
    pub(crate) fn has(self, beyond: Beyond) -> bool {
        self.0 & beyond.counted().1 != 0
    }

    /// The same word with one more counted; `None` if it counts no further. A count that is full stays so: how many
    /// there are is not known any more.
    pub(crate) fn with_one_more(self, beyond: Beyond) -> Option<Self> {
        let (one, full) = beyond.counted();
        (self.0 & full != full).then(|| Self(self.0 + one))
    }

    /// The same word with one less counted; `None` if the count is full, or there is nobody to be counted.
    pub(crate) fn with_one_less(self, beyond: Beyond) -> Option<Self> {
        let (one, full) = beyond.counted();
        (self.has(beyond) && self.0 & full != full).then(|| Self(self.0 - one))
    }

    #[inline]
    fn generation(self) -> u64 {
        self.0 >> 1 & GENERATION_MASK
    }

    fn next_generation(self) -> u64 {
        (self.generation() + 1) & GENERATION_MASK
    }

    /// The low byte of a state that this owner has committed to.
    #[inline]
    fn live_stamp(self) -> u64 {
        self.0 & (STAMP_MASK & generation_kept() << 1) | 1
    }
}

/// What a state word keeps of a generation.
#[inline(always)]
fn stamped(generation: u64) -> u64 {
    generation & STAMP_GENERATION_MASK & generation_kept()
}

/// A slot's state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(pub(crate) u64);

impl State {
    /// The state of a slot that has been nobody's since `owner`'s generation began.
    #[cfg(any(test, tollgate_loom))]
    pub(crate) fn empty(owner: Owner) -> Self {
        Self(stamped(owner.generation()) << 1)
    }

    /// The state that ends `owner`'s time in the slot. Its payload, the moment and the whole generation, makes
    /// the word one of a kind (H6).
    pub(crate) fn sealing(owner: Owner, now_ns: u64) -> Self {
        let next = owner.next_generation();
        Self((now_ns << GENERATION_BITS | next) << STORER_BITS | stamped(next) << 1)
    }

    /// The state in which the owner under whom this one is sealed, or live, has spent something.
    #[inline(always)]
    pub(crate) fn committed(self) -> Self {
        Self(self.0 | 1)
    }

    /// The same state with another payload.
    #[inline(always)]
    pub(crate) fn with_payload(self, payload: u64) -> Self {
        Self(payload << STORER_BITS | self.0 & STAMP_MASK)
    }

    #[inline]
    pub(crate) fn payload(self) -> u64 {
        self.0 >> STORER_BITS
    }

    #[inline]
    pub(crate) fn is_live_under(self, owner: Owner) -> bool {
        self.0 & STAMP_MASK == owner.live_stamp()
    }

    /// The same where the owner is known to be somebody: one comparison.
    #[inline(always)]
    pub(crate) fn is_live_under_somebody(self, owner: Owner) -> bool {
        debug_assert!(!owner.is_nobody());
        self.0 & STAMP_MASK == owner.0 & (STAMP_MASK & (generation_kept() << 1 | SOMEBODY))
    }

    #[inline]
    pub(crate) fn is_sealed_under(self, owner: Owner) -> bool {
        self.0 & STAMP_MASK == owner.live_stamp() ^ 1
    }

    /// Whether the slot was sealed against `owner` and waits for its next.
    #[inline]
    pub(crate) fn is_sealed_after(self, owner: Owner) -> bool {
        self.0 & STAMP_MASK == stamped(owner.next_generation()) << 1
    }

    fn generation(self) -> u64 {
        (self.0 & STAMP_MASK) >> 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::PAYLOAD_MASK;

    #[test]
    fn words_round_trip_and_generations_wrap() {
        let name = Name::new(u64::MAX, (1 << CELL_BITS) - 1);
        let mut owner = Owner(0);
        assert!(owner.is_nobody() && !owner.is(name));
        for turn in 1..200_000u64 {
            let sealed = State::sealing(owner, turn);
            assert!(sealed.is_sealed_after(owner) && !sealed.is_live_under(owner));
            assert!(!sealed.is_sealed_under(owner));
            owner = name.in_generation_of(sealed, owner);
            assert!(owner.is(name) && !owner.is_nobody());
            assert_eq!((owner.name(), owner.cell()), (name, (1 << CELL_BITS) - 1));
            assert!(sealed.is_sealed_under(owner) && !sealed.is_live_under(owner));
            let live = sealed.committed().with_payload(PAYLOAD_MASK - turn);
            assert!(live.is_live_under_somebody(owner) && !sealed.is_live_under_somebody(owner));
            assert!(
                live.is_live_under(owner) && !live.is_sealed_under(owner) && !live.is_sealed_after(owner)
            );
            assert_eq!(live.payload(), PAYLOAD_MASK - turn);
            assert_eq!(live.with_payload(turn).payload(), turn);
            assert!(live.with_payload(u64::MAX).is_live_under(owner));
            assert_eq!(live.committed(), live);
        }
        assert!(!owner.is(Name::new(1, 0)) && !owner.is(Name::new(u64::MAX, 0)));
        assert_eq!(Name::new(1 << TAG_BITS, 3), Name::new(0, 3));
    }

    #[test]
    fn a_name_elsewhere_is_another_name_in_the_same_way() {
        for hash in (0..1_000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let name = Name::new(hash, 77);
            assert!(name.beyond().is_none() && name.at_first() == name);
            for (is_away, step) in [(false, 1), (false, LINES - 1), (true, 0), (true, 1), (true, LINES - 1)] {
                let there = name.elsewhere(is_away, step);
                assert_eq!((there.is_away(), there.step(), there.at_first()), (is_away, step, name));
                assert_eq!(
                    (there.tag(), Owner(there.0).cell(), there.way()),
                    (hash & ((1 << TAG_BITS) - 1), 77, name.way())
                );
                assert_eq!(there.beyond(), Some(if step < 2 { Beyond::Near } else { Beyond::Far }));
                assert!(!Owner(there.0).is(name) && !Owner(name.0).is(there));
            }
        }
    }

    #[test]
    fn what_is_counted_changes_no_owner_and_stays_full() {
        let name = Name::new(5, 0);
        for (beyond, other, full) in [(Beyond::Near, Beyond::Far, 7), (Beyond::Far, Beyond::Near, 7)] {
            let mut owner = Owner(name.0 | GENERATION_MASK << 1);
            for count in 1..=full {
                let more = owner.with_one_more(beyond).expect("room to count");
                assert!(more.is(name) && more.is_still(owner) && more.has(beyond) && !more.has(other));
                assert_eq!((more.name(), more.live_stamp()), (owner.name(), owner.live_stamp()));
                assert_eq!(more.with_one_less(beyond), (count < full).then_some(owner));
                owner = more;
            }
            assert_eq!(owner.with_one_more(beyond), None);
            assert!(!Owner(owner.0 ^ 2).is_still(owner) && !Owner(owner.0 ^ 1 << AWAY_SHIFT).is_still(owner));
            // It stays with the slot, whoever comes and goes.
            let sealed = State::sealing(owner, 0);
            let next = Name::new(6, 0).in_generation_of(sealed, owner);
            assert!(!next.has_beyond() && next.with_beyond_of(owner).has(beyond));
            assert!(next.with_beyond_of(owner).is_still(next));
        }
    }
}
