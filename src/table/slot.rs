//! Slots and buckets: two words a slot, eight slots a bucket, and the only places that change them.

use super::word::{Name, Owner, State};
use crate::charge::{Cell, Stale};
use crate::cpu::prefetch;
#[cfg(any(test, tollgate_loom))]
use crate::sync::first_generation;
use crate::sync::{AtomicU64, CLAIM, Fault, Ordering, SEARCH, is_broken};
use crossbeam_utils::CachePadded;

/// Slots in a bucket. Two under the model checker, where a full bucket has to be reachable.
pub(crate) const WAYS: usize = if cfg!(tollgate_loom) { 2 } else { 8 };

/// Slots on a cache line, of which a bucket takes two.
pub(crate) const LINE_WAYS: usize = if WAYS < 4 { WAYS } else { 4 };

/// Eight slots on two cache lines, the two words of a slot side by side, so that a slot found at a glance
/// costs one line.
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
#[derive(Debug)]
pub(crate) struct Bucket {
    slots: [Slot; WAYS],
}

#[derive(Debug)]
struct Slot {
    owner: AtomicU64,
    state: AtomicU64,
}

impl Bucket {
    #[cfg(any(test, tollgate_loom))]
    pub(crate) fn new() -> Self {
        let owner = Owner(first_generation());
        Self {
            slots: std::array::from_fn(|_| Slot {
                owner: AtomicU64::new(owner.0),
                state: AtomicU64::new(State::empty(owner).0),
            }),
        }
    }

    /// The slot of the name's choice, if it bears the name.
    #[inline(always)]
    pub(crate) fn glance(&self, name: Name) -> Option<SlotRef<'_>> {
        let slot = self.slot(name.preferred_way());
        slot.owner.is(name).then_some(slot)
    }

    /// Which slots of a line bear `name`, in bits.
    #[inline]
    fn named_on(&self, line: usize, name: Name) -> u32 {
        let mut named = 0;
        for (way, slot) in self.slots[line * LINE_WAYS..][..LINE_WAYS].iter().enumerate() {
            // Relaxed: a match is read again.
            named |= u32::from(Owner(slot.owner.load(Ordering::Relaxed)).is(name)) << way;
        }
        named
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

    /// Has the system provide the page that the bucket is on, before anybody waits for it; while all is empty and
    /// nobody else is there.
    #[cfg(not(tollgate_loom))]
    pub(crate) fn bring_in(&self) {
        // Relaxed: writes what is there already. (Adding nothing to it would be made a load, and no page comes of that.)
        let _empty = self.slots[0].owner.swap(0, Ordering::Relaxed);
    }

    /// Brings both lines of the bucket towards the core.
    #[inline(always)]
    pub(crate) fn prefetch(bucket: *const CachePadded<Self>) {
        prefetch(bucket);
        prefetch(bucket.wrapping_byte_add(LINE_WAYS * size_of::<Slot>()));
    }
}

/// A slot that bears `name` on this line of one bucket or of another, if one does. Free of branches that depend on
/// where: a scan that stops at the match is mispredicted more often than not.
#[inline]
pub(crate) fn find_on<'a>(
    line: usize,
    one: &'a Bucket,
    other: &'a Bucket,
    name: Name,
) -> Option<SlotRef<'a>> {
    let mut named = one.named_on(line, name) | other.named_on(line, name) << LINE_WAYS;
    // There may be two for an instant, one of which is about to be withdrawn.
    while named != 0 {
        let index = named.trailing_zeros() as usize;
        let bucket = if index < LINE_WAYS { one } else { other };
        let slot = bucket.slot(line * LINE_WAYS + index % LINE_WAYS);
        if slot.owner.is(name) {
            return Some(slot);
        }
        named &= named - 1;
    }
    None
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

    /// Whether the owner is still the one that was seen. Asked after reading the state, it shows that the state
    /// was read under that owner.
    #[inline(always)]
    pub(crate) fn is_still_owned(self) -> bool {
        // Relaxed: the acquiring load of the state keeps this one behind it.
        self.owner_word.load(Ordering::Relaxed) == self.owner.0
    }

    pub(crate) fn is_same_place(self, other: SlotRef<'_>) -> bool {
        std::ptr::eq(self.owner_word, other.owner_word)
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

    fn change_owner(self, owner: Owner) -> Option<Self> {
        // CLAIM: Release, so that a reader of the new owner finds the seal; and one order of all claims and
        // of the searches for twins that follow them (see `Table::settle`).
        self.owner_word
            .compare_exchange(self.owner.0, owner.0, CLAIM, Ordering::Relaxed)
            .ok()
            .map(|_| Self { owner, ..self })
    }
}

impl Cell for SlotRef<'_> {
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
