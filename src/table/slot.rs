//! Slots and lines: two words a slot, four slots a cache line, and the only places that change them.

use super::word::{Name, Owner, State};
use crate::algorithm::STORER_BITS;
use crate::charge::{Cell, Stale};
use crate::cpu::prefetch;
#[cfg(any(test, tollgate_loom))]
use crate::sync::first_generation;
use crate::sync::{AtomicU64, CLAIM, Fault, Ordering, SEARCH, is_broken};

/// Slots on a cache line. Two under the model checker, where a full one has to be reachable.
pub(crate) const LINE_WAYS: usize = if cfg!(tollgate_loom) { 2 } else { 4 };
/// Lines in a bucket: a run of lines where a key may be, of which it is nearly always on the first.
pub(crate) const LINES: usize = if cfg!(tollgate_loom) { 1 } else { 8 };

/// What a line takes in memory, where it is not a model's.
pub(crate) const LINE_BYTES: usize = 64;

/// Four slots on a cache line, the two words of a slot side by side.
///
/// With `g` the owner's generation, these are all the combinations there are, and every change between them
/// is one compare-exchange:
///
/// | owner | state | meaning | next |
/// |---|---|---|---|
/// | nobody, g | sealed, g | empty; all zero at first | K *moves in* |
/// | K, g | live, g | K's, and charged | K *charges*; *seal*, once fresh (or to evict) |
/// | K, g | sealed, g + 1 | free: K is gone, nobody has come | *claim* |
/// | K, g | sealed, g | claimed by K, not yet charged (pending) | K *commits*; *seal*, to give up or take away |
///
/// *seal*: state to (sealed, g + 1). *claim*: owner to (L, g + 1), L being a key or, to tidy up, nobody.
/// *move in*: owner to (K, g). *commit*, *charge*: state to (live, g).
///
/// So a key loses a slot only after the state has left its generation, and a compare-exchange that finds
/// the state in generation `g` proves that the owner was still `(K, g)` at that instant: a late one fails.
///
/// The bits *beyond* of an owner word are beside all that: they say how many claims for keys whose first choice is
/// this slot stand on other lines. They are counted up before such a claim and down once its name is gone, and
/// every other change leaves them as they are.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Line {
    slots: [Slot; LINE_WAYS],
}

#[derive(Debug)]
struct Slot {
    owner: AtomicU64,
    state: AtomicU64,
}

const _: () = assert!(cfg!(tollgate_loom) || size_of::<Line>() == LINE_BYTES);

impl Line {
    #[cfg(any(test, tollgate_loom))]
    pub(crate) fn new() -> Self {
        let owner = Owner(first_generation() << 1);
        let slot = |_| Slot { owner: AtomicU64::new(owner.0), state: AtomicU64::new(State::empty(owner).0) };
        Self { slots: std::array::from_fn(slot) }
    }

    /// Has the system provide the page that the line is on, before anybody waits for it; while all is empty and
    /// nobody else is there.
    #[cfg(not(tollgate_loom))]
    pub(crate) fn bring_in(&self) {
        // Relaxed: writes what is there already. (Adding nothing to it would be made a load, and no page comes of that.)
        let _empty = self.slots[0].owner.swap(0, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn slot(&self, way: usize) -> SlotRef<'_> {
        // Acquire: the state is read after the owner, and never one older than that owner's seal.
        let slot = &self.slots[way];
        let owner = Owner(slot.owner.load(Ordering::Acquire));
        SlotRef { owner_word: &slot.owner, state_word: &slot.state, owner, may_commit: false }
    }

    /// The same, read after every claim that this thread has made, and before none that it has seen.
    #[inline(always)]
    pub(crate) fn slot_in_order(&self, way: usize) -> SlotRef<'_> {
        // SEARCH: one order with all claims (see `Table::settle`).
        let slot = &self.slots[way];
        let owner = Owner(slot.owner.load(SEARCH));
        SlotRef { owner_word: &slot.owner, state_word: &slot.state, owner, may_commit: false }
    }

    /// Puts an owner where no claim would.
    #[cfg(test)]
    pub(crate) fn force_owner(&self, way: usize, change: impl Fn(Owner) -> Owner) {
        // Relaxed: nobody else is there.
        let owner = Owner(self.slots[way].owner.load(Ordering::Relaxed));
        self.slots[way].owner.store(change(owner).0, Ordering::Relaxed);
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotRef<'_>> {
        (0..LINE_WAYS).map(|way| self.slot(way))
    }

    /// The slot of the name's choice, if it bears the name.
    #[inline(always)]
    pub(crate) fn glance(&self, name: Name) -> Option<SlotRef<'_>> {
        let slot = self.slot(name.way());
        slot.owner.is(name).then_some(slot)
    }

    /// A slot that bears the name, if one does. Free of branches that depend on which one: a scan that stops at
    /// the match is mispredicted more often than not.
    #[inline(always)]
    pub(crate) fn find(&self, name: Name) -> Option<SlotRef<'_>> {
        let mut way = 0;
        for (other, slot) in self.slots.iter().enumerate().skip(1) {
            // Relaxed: the one that is chosen is read again. (Where two bear the name for an instant, that may be any.)
            way |= usize::from(Owner(slot.owner.load(Ordering::Relaxed)).is(name)) * other;
        }
        let slot = self.slot(way);
        slot.owner.is(name).then_some(slot)
    }

    /// The slots that bear the name, each as it is read: there may be two for an instant, of which one is about to be
    /// withdrawn.
    pub(crate) fn named(&self, name: Name) -> impl Iterator<Item = SlotRef<'_>> {
        self.slots().filter(move |slot| slot.owner.is(name))
    }

    /// The same, read in the one order of claims and searches.
    pub(crate) fn named_in_order(&self, name: Name) -> impl Iterator<Item = SlotRef<'_>> {
        (0..LINE_WAYS).map(|way| self.slot_in_order(way)).filter(move |slot| slot.owner.is(name))
    }

    /// How many slots bear the name, read in that order and without a branch.
    #[inline(always)]
    pub(crate) fn count_in_order(&self, name: Name) -> u32 {
        (0..LINE_WAYS).map(|way| u32::from(self.slot_in_order(way).owner.is(name))).sum()
    }

    /// Brings the line towards the core.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        prefetch(self);
    }
}

/// A slot as it was seen under one owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotRef<'a> {
    owner_word: &'a AtomicU64,
    state_word: &'a AtomicU64,
    owner: Owner,
    /// Whether the holder has looked for twins, and may turn a pending claim into a committed one.
    may_commit: bool,
}

impl<'a> SlotRef<'a> {
    pub(crate) fn owner(self) -> Owner {
        self.owner
    }

    pub(crate) fn state(self) -> State {
        // Acquire: what is read next (an owner once more) is read later.
        State(self.state_word.load(Ordering::Acquire))
    }

    /// Whether the slot is nobody's: empty, or sealed and not claimed since.
    #[inline(always)]
    pub(crate) fn is_free(self, state: State) -> bool {
        state.is_sealed_after(self.owner) | (self.owner.is_nobody() & state.is_sealed_under(self.owner))
    }

    /// Whether owner and state, read under that owner, cannot belong together. Nobody brings that about but a claim that was
    /// late by a whole round of generations (H6); whoever comes upon it ends it by a seal, and the slot is anybody's.
    pub(crate) fn is_amiss(self, state: State) -> bool {
        !(self.is_free(state) || state.is_live_under(self.owner) || state.is_sealed_under(self.owner))
    }

    /// Whether the owner is still the one that was seen. Asked after reading the state, it shows that the state
    /// was read under that owner.
    #[inline(always)]
    pub(crate) fn is_still_owned(self) -> bool {
        // Relaxed: the acquiring load of the state keeps this one behind it.
        Owner(self.owner_word.load(Ordering::Relaxed)).is_still(self.owner)
    }

    pub(crate) fn is_same_place(self, other: SlotRef<'_>) -> bool {
        std::ptr::eq(self.owner_word, other.owner_word)
    }

    /// How many slots it lies behind the first of `lines`.
    pub(crate) fn number_in(self, lines: &[Line]) -> usize {
        let bytes = std::ptr::from_ref(self.owner_word).addr() - lines.as_ptr().addr();
        bytes / size_of::<Line>() * LINE_WAYS + bytes % size_of::<Line>() / size_of::<Slot>()
    }

    /// The same slot, for somebody who has not looked for twins: whoever found it. Said again behind a call that is
    /// not inlined, it spares a charge the question.
    #[inline(always)]
    pub(crate) fn looking(self) -> Self {
        Self { may_commit: false, ..self }
    }

    /// The same slot, for somebody who has looked for twins.
    pub(crate) fn committing(self) -> Self {
        Self { may_commit: true, ..self }
    }

    /// Ends the owner's time here: nobody can charge under it any more. `None` if the state has changed.
    pub(crate) fn seal(self, seen: State, now_ns: u64) -> Option<State> {
        let sealed = State::sealing(self.owner, now_ns);
        // AcqRel: Release, so that whoever sees a later owner also sees the seal before it; Acquire, so that
        // what was written up to the state that it ends is seen. It is not what keeps the owner written next
        // behind the seal: the Release of that exchange does (see `change_owner`).
        self.state_word
            .compare_exchange(seen.0, sealed.0, Ordering::AcqRel, Ordering::Relaxed)
            .ok()
            .map(|_| sealed)
    }

    /// Gives a sealed slot to `name`. `None` if another claim came first.
    pub(crate) fn claim(self, name: Name, sealed: State) -> Option<Self> {
        self.change_owner(name.in_generation_of(sealed, self.owner))
    }

    /// Gives an empty slot to `name`, in the generation it has reached: there is nobody to shut out.
    pub(crate) fn move_in(self, name: Name) -> Option<Self> {
        self.change_owner(self.owner.succeeded_by(name))
    }

    /// Takes the name off a slot in the generation it is in, which only a model asks for: somebody may be about to charge.
    pub(crate) fn vacate_unsealed(self) -> bool {
        self.change_owner(self.owner.succeeded_by_nobody()).is_some()
    }

    /// Counts one more key, or one less, that would rather be here and is elsewhere.
    pub(crate) fn recount(self, recounted: impl Fn(Owner) -> Option<Owner>) {
        let mut owner = self.owner;
        while let Some(next) = recounted(owner) {
            // CLAIM: one order with the claims it is about, and with the searches that ask (see `Table::settle`). SEARCH:
            // so is a count that was found to be full.
            match self.owner_word.compare_exchange(owner.0, next.0, CLAIM, SEARCH) {
                Ok(_) => return,
                Err(seen) => owner = Owner(seen),
            }
        }
    }

    /// Puts another owner, which knows of no count, in the place of the one that was seen. What is counted here is not
    /// the owner's affair: it stays, and may change meanwhile.
    fn change_owner(self, next: Owner) -> Option<Self> {
        let mut seen = self.owner;
        loop {
            let owner = next.with_beyond_of(seen);
            // CLAIM: Release, so that a reader of the new owner finds the seal; and one order of all claims and
            // of the searches for twins that follow them (see `Table::settle`).
            match self.owner_word.compare_exchange(seen.0, owner.0, CLAIM, Ordering::Relaxed) {
                Ok(_) => return Some(Self { owner, ..self }),
                Err(now) if Owner(now).is_still(seen) => seen = Owner(now),
                Err(_) => return None,
            }
        }
    }
}

impl Cell for SlotRef<'_> {
    #[inline(always)]
    fn load_live(&self) -> Option<u64> {
        let state = self.state();
        // The owner was found by its name, so it is somebody. It is looked at once more, as in `load`; that others are
        // counted on it meanwhile is no reason to go on, but seldom enough not to be told apart here.
        // Relaxed: the acquiring load of the state keeps this one behind it.
        let is_live = state.is_live_under_somebody(self.owner)
            && (self.owner_word.load(Ordering::Relaxed) == self.owner.0 || is_broken(Fault::NoOwnerCheck));
        is_live.then_some(state.0)
    }

    #[inline(always)]
    fn replace_live(&self, stored: u64, next: u64) -> bool {
        debug_assert!(stored << (u64::BITS - STORER_BITS) == next << (u64::BITS - STORER_BITS));
        // Release: as in `replace`.
        self.state_word.compare_exchange(stored, next, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    #[inline]
    fn load(&self, fresh: impl FnOnce() -> u64) -> Result<(u64, u64), Stale> {
        let state = self.state();
        let payload = if state.is_live_under(self.owner) {
            state.payload()
        } else if self.may_commit && state.is_sealed_under(self.owner) {
            fresh()
        } else {
            return Err(Stale);
        };
        // The short generation in the state need not be believed over a long pause between the two loads (H5,
        // H6).
        if self.is_still_owned() || is_broken(Fault::NoOwnerCheck) {
            Ok((state.0, payload))
        } else {
            Err(Stale)
        }
    }

    #[inline]
    fn replace(&self, stored: u64, payload: u64) -> bool {
        // A live state stays so; only who may commit can have loaded one that was not.
        debug_assert!(self.may_commit || State(stored).is_live_under(self.owner));
        let live = if self.may_commit { State(stored).committed() } else { State(stored) };
        let next = live.with_payload(payload).0;
        // Release: whoever reads the word finds the policy and the horizon by which it was written. That the slot
        // is still the owner's follows from the order in which all threads see this one word change (H1, H3).
        self.state_word.compare_exchange(stored, next, Ordering::Release, Ordering::Relaxed).is_ok()
    }
}
