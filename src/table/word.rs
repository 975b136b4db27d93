//! The bit layout of the two words of a slot, and nothing else.
//!
//! ```text
//! owner:  | somebody: 1 | tag: 35 | cell: 12 | generation: 16 |
//! state:  | generation: 7 | live: 1 | payload: 56 |
//! ```

use crate::algorithm::{PAYLOAD_BITS, PAYLOAD_MASK};
use crate::sync::generation_kept;

/// Of a key's hash, beside those that choose its buckets.
pub(crate) const TAG_BITS: u32 = 35;
pub(crate) const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
pub(crate) const CELL_BITS: u32 = 12;
const GENERATION_BITS: u32 = 16;
const STAMP_GENERATION_MASK: u64 = 0x7f;

const NAME_SHIFT: u32 = CELL_BITS + GENERATION_BITS;
const SOMEBODY: u64 = 1 << 63;

const _: () = assert!(1 + TAG_BITS + NAME_SHIFT == u64::BITS);
const _: () = assert!(PAYLOAD_BITS + 8 == u64::BITS);

/// Who a slot belongs to: a key's tag, which of the key's cells, and how often the slot has changed hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(pub(crate) u64);

/// The part of an owner word that names a key's cell, with the generation left at zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name(u64);

impl Name {
    pub(crate) const NOBODY: Self = Self(0);

    /// The name of a cell of the key with this hash, of which the low [`TAG_BITS`] count.
    #[inline(always)]
    pub(crate) fn new(hash: u64, cell: usize) -> Self {
        debug_assert!(cell >> CELL_BITS == 0);
        Self(SOMEBODY | hash << NAME_SHIFT | (cell as u64) << GENERATION_BITS)
    }

    /// The tag, for spreading.
    pub(crate) fn tag(self) -> u64 {
        self.0 >> NAME_SHIFT
    }

    pub(crate) fn cell(self) -> usize {
        Owner(self.0).cell()
    }

    /// The way of its bucket that a name is put in if it can be, and looked for first.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "a few bits")]
    pub(crate) fn preferred_way(self) -> usize {
        // Tag and cell both count, so that the cells of one key do not want the same way.
        ((self.0 >> NAME_SHIFT) + (self.0 >> GENERATION_BITS)) as usize % super::slot::WAYS
    }

    /// The owner word of this name in the generation that the slot's state has reached.
    pub(crate) fn in_generation_of(self, state: State, previous: Owner) -> Owner {
        let next = previous.next_generation();
        debug_assert_eq!(stamped(next), state.generation());
        Owner(self.0 | next)
    }
}

impl Owner {
    /// Whether this is `name`, in any generation. Free of branches: the generation is all that may differ.
    #[inline]
    pub(crate) fn is(self, name: Name) -> bool {
        (self.0 ^ name.0) < 1 << GENERATION_BITS
    }

    /// `name` in the generation of this owner, who is nobody.
    pub(crate) fn succeeded_by(self, name: Name) -> Self {
        debug_assert!(self.is_nobody());
        Self(name.0 | self.generation())
    }

    /// Nobody in the generation of this owner, who was not shut out.
    pub(crate) fn succeeded_by_nobody(self) -> Self {
        Self(self.generation())
    }

    pub(crate) fn is_nobody(self) -> bool {
        self.0 & SOMEBODY == 0
    }

    /// The name, without the generation.
    pub(crate) fn name(self) -> Name {
        Name(self.0 >> GENERATION_BITS << GENERATION_BITS)
    }

    #[allow(clippy::cast_possible_truncation, reason = "12 bits")]
    pub(crate) fn cell(self) -> usize {
        (self.0 >> GENERATION_BITS) as usize & ((1 << CELL_BITS) - 1)
    }

    #[inline]
    fn generation(self) -> u64 {
        self.0 & ((1 << GENERATION_BITS) - 1)
    }

    fn next_generation(self) -> u64 {
        (self.generation() + 1) & ((1 << GENERATION_BITS) - 1)
    }

    /// The top byte of a state that this owner has committed to.
    #[inline]
    fn live_stamp(self) -> u64 {
        stamped(self.generation()) << 1 | 1
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
        Self(stamped(owner.generation()) << 1 << PAYLOAD_BITS)
    }

    /// The state that ends `owner`'s time in the slot. Its payload, the moment and the whole generation, makes
    /// the word one of a kind (H6).
    pub(crate) fn sealing(owner: Owner, now_ns: u64) -> Self {
        let next = owner.next_generation();
        let payload = (now_ns << GENERATION_BITS | next) & PAYLOAD_MASK;
        Self(stamped(next) << 1 << PAYLOAD_BITS | payload)
    }

    /// The state in which the owner under whom this one is sealed, or live, has spent something.
    #[inline(always)]
    pub(crate) fn committed(self) -> Self {
        Self(self.0 | 1 << PAYLOAD_BITS)
    }

    /// The same state with another payload.
    #[inline(always)]
    pub(crate) fn with_payload(self, payload: u64) -> Self {
        Self(self.0 ^ ((self.0 ^ payload) & PAYLOAD_MASK))
    }

    #[inline]
    pub(crate) fn payload(self) -> u64 {
        self.0 & PAYLOAD_MASK
    }

    #[inline]
    pub(crate) fn is_live_under(self, owner: Owner) -> bool {
        self.0 >> PAYLOAD_BITS == owner.live_stamp()
    }

    #[inline]
    pub(crate) fn is_sealed_under(self, owner: Owner) -> bool {
        self.0 >> PAYLOAD_BITS == owner.live_stamp() ^ 1
    }

    /// Whether the slot was sealed against `owner` and waits for its next.
    #[inline]
    pub(crate) fn is_sealed_after(self, owner: Owner) -> bool {
        self.0 >> PAYLOAD_BITS == stamped(owner.next_generation()) << 1
    }

    fn generation(self) -> u64 {
        self.0 >> (PAYLOAD_BITS + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
