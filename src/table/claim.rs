//! Taking a key in: finding it a slot, shutting the old owner out, and seeing to it that there is no twin.

use super::slot::WAYS;
use super::word::{Name, State};
use super::{Bucket, Place, SlotRef, Table, WhenFull, Worth};
use crate::charge::NoRoom;
use crate::sync::{Fault, Ordering, SEARCH, in_total_order, is_broken};
use crossbeam_utils::CachePadded;

/// A home bucket takes newcomers until it holds this many; then the emptier of the two does.
const HOME_FIRST: usize = if cfg!(tollgate_loom) { 1 } else { 2 };

impl Table {
    /// The slot of a key that `find` did not find, or found stale: its own if it has one after all, else one
    /// that it may commit to.
    ///
    /// `may_displace` is the request's leave to take away another key's claim: once, so that two keys cannot
    /// displace each other for ever.
    #[cold]
    pub(crate) fn claim(
        &self,
        place: Place,
        mut now_ns: u64,
        worth: &impl Worth,
        may_displace: &mut bool,
    ) -> Result<SlotRef<'_>, NoRoom> {
        loop {
            let census = self.census(place);
            let vacant = match census.mine {
                Some(Mine::Live(slot)) => return Ok(slot),
                Some(Mine::Pending(slot)) => match self.settle(place, slot, worth) {
                    Some(slot) => return self.unless_closed(slot, worth),
                    None => continue,
                },
                None => census.vacancy(place.name),
            };
            let spare = match vacant {
                Some((slot, state)) => Spare::Slot(slot, state),
                None => self.spare(place, now_ns, worth),
            };
            let room = match spare {
                Spare::Slot(slot, state) => Some((slot, state)),
                // By a later time, or what is or is not worth anything by now would be mistaken again.
                Spare::Moved => {
                    now_ns = worth.now_ns();
                    None
                }
                Spare::None => {
                    now_ns = worth.now_ns();
                    self.make_room(place, now_ns, worth, may_displace)?
                }
            };
            let Some((slot, seen)) = room else { continue };
            let Some(claimed) = self.take(slot, seen, place, worth) else { continue };
            if let Some(slot) = self.settle(place, claimed, worth) {
                return self.unless_closed(slot, worth);
            }
        }
    }

    /// A claim that is about to be committed to, in a table that still takes charges.
    ///
    /// Whoever closes the table says so first and then goes through the slots; a claimer claims first and then
    /// asks here. In the one order of it all, either the closer comes upon the claim or the claimer sees that it
    /// is too late.
    fn unless_closed<'a>(&self, claimed: SlotRef<'a>, worth: &impl Worth) -> Result<SlotRef<'a>, NoRoom> {
        // SEARCH: see above.
        if self.closed.load(SEARCH) == 0 || is_broken(Fault::ClosesUnsealed) {
            return Ok(claimed);
        }
        withdraw(claimed, claimed.state(), worth);
        Err(NoRoom::Closed)
    }

    /// Why `claim` would refuse a key just now, without taking it in; for those who only look.
    pub(crate) fn foresees(&self, place: Place, now_ns: u64, worth: &impl Worth) -> Option<NoRoom> {
        if self.is_closed() {
            return Some(NoRoom::Closed);
        }
        if self.when_full != WhenFull::Deny {
            return None;
        }
        let census = self.census(place);
        if census.mine.is_some() || census.vacancy(place.name).is_some() {
            return None;
        }
        let Spare::None = self.spare(place, now_ns, worth) else { return None };
        let survey = self.survey(place, worth, now_ns);
        match survey.least_live {
            Some((_, _, wait_ns)) if !survey.moved && survey.pending.is_none() => {
                Some(NoRoom::Deny { wait_ns })
            }
            _ => None,
        }
    }

    /// Begins a takeover and stops for ever, for those who have to go on regardless (H4).
    #[cfg(any(test, tollgate_loom))]
    pub(crate) fn abandon(&self, place: Place, after: TakeoverStep, worth: &impl Worth) {
        let room = self.census(place).vacancy(place.name).or_else(|| {
            match self.spare(place, worth.now_ns(), worth) {
                Spare::Slot(slot, state) => Some((slot, state)),
                Spare::Moved | Spare::None => self.survey(place, worth, worth.now_ns()).pending,
            }
        });
        let Some((slot, seen)) = room else { return };
        match after {
            // There is nothing to seal about a free slot, nor an empty one.
            TakeoverStep::Seal if seen.is_sealed_after(slot.owner()) || slot.owner().is_nobody() => {}
            TakeoverStep::Seal => drop(slot.seal(seen, worth.now_ns())),
            TakeoverStep::Claim => drop(self.take(slot, seen, place, worth)),
        }
    }

    /// Looks at the owners alone: for the key's own slot, and for a home bucket that is nearly empty.
    pub(super) fn census(&self, place: Place) -> Census<'_> {
        let mut census = Census::default();
        for (choice, bucket) in self.candidates(place).enumerate() {
            // Counted in bits: which slots of a filling table are taken is anybody's guess, for a branch too.
            let (mut vacant, mut named) = (0u32, 0u32);
            for way in 0..WAYS {
                let owner = bucket.slot_in_order(way).owner();
                vacant |= u32::from(owner.is_nobody()) << way;
                named |= u32::from(owner.is(place.name)) << way;
            }
            if choice == 0 {
                census.vacant_at_home = Some((bucket, vacant));
            }
            while named != 0 {
                let slot = bucket.slot_in_order(named.trailing_zeros() as usize);
                named &= named - 1;
                let (owner, state) = (slot.owner(), slot.state());
                if !owner.is(place.name) {
                    continue;
                }
                if state.is_live_under(owner) {
                    census.mine = Some(Mine::Live(slot));
                    return census;
                }
                if state.is_sealed_under(owner) && census.mine.is_none() {
                    census.mine = Some(Mine::Pending(slot));
                }
            }
        }
        census
    }

    /// Looks at the states too, for a slot that nobody would miss: in the home bucket while few live there, else
    /// in the emptier of the two; an empty one rather than a worthless one, whose key may come again.
    fn spare(&self, place: Place, now_ns: u64, worth: &impl Worth) -> Spare<'_> {
        let is_worthless = |slot: SlotRef<'_>, state: State, now_ns| {
            worth.is_fresh(slot.owner().cell(), state.payload(), now_ns) | is_broken(Fault::ForgetsDebt)
        };
        // In bits, as in a census. A slot that changes between the readings counts as one thing or the other;
        // what it really is, is asked again below.
        let (mut free, mut worthless) = ([0u32; 2], [0u32; 2]);
        for (choice, bucket) in self.candidates(place).enumerate() {
            for way in 0..WAYS {
                let slot = bucket.slot(way);
                let state = slot.state();
                free[choice] |= u32::from(slot.is_free(state)) << way;
                worthless[choice] |=
                    u32::from(state.is_live_under(slot.owner()) & is_worthless(slot, state, now_ns)) << way;
            }
        }
        let used = |choice: usize| WAYS - (free[choice] | worthless[choice]).count_ones() as usize;
        let home_first = used(0) < HOME_FIRST || used(0) <= used(1);
        for choice in if home_first { [0, 1] } else { [1, 0] } {
            let Some(bucket) = self.candidates(place).nth(choice) else { continue };
            let ways = if free[choice] != 0 { free[choice] } else { worthless[choice] };
            if ways == 0 {
                continue;
            }
            let slot = bucket.slot(next_way(ways, place.name.preferred_way()));
            let state = slot.state();
            // Before a word is called worthless, the time is read again: the first was read before the word,
            // perhaps long before, and its owner may have spent since.
            let later_ns = || if is_broken(Fault::TrustsOldTime) { now_ns } else { worth.now_ns() };
            let is_another_keys = state.is_live_under(slot.owner()) && !slot.owner().is(place.name);
            let is_spare = slot.is_free(state) || is_another_keys && is_worthless(slot, state, later_ns());
            return match slot.is_still_owned() {
                true if is_spare => Spare::Slot(slot, state),
                _ => Spare::Moved,
            };
        }
        Spare::None
    }

    /// Looks at a key's two buckets when there is nothing to spare, for what would be missed least.
    fn survey(&self, place: Place, worth: &impl Worth, now_ns: u64) -> Survey<'_> {
        let mut survey = Survey::default();
        for bucket in self.candidates(place) {
            // From the preferred way on: of several that are missed equally little it is not always the same
            // that has to go.
            for way in (0..WAYS).map(|way| (way + place.name.preferred_way()) % WAYS) {
                let slot = bucket.slot(way);
                let (owner, state) = (slot.owner(), slot.state());
                let (live, pending) = (state.is_live_under(owner), state.is_sealed_under(owner));
                if !slot.is_still_owned() || slot.is_free(state) || owner.is(place.name) && (live || pending)
                {
                    // Somebody made room meanwhile, or brought in the key itself; or it was read at two moments.
                    survey.moved = true;
                } else if pending {
                    survey.pending = Some((slot, state));
                } else {
                    match worth.reset_ns(owner.cell(), state.payload(), now_ns) {
                        0 => survey.moved = true,
                        reset_ns => survey.see_live(slot, state, reset_ns, place.name),
                    }
                }
            }
        }
        survey.least_live = survey.least_live.or(survey.own_live);
        survey
    }

    /// Decides what becomes of a claim: no other slot may be the key's too (H2).
    ///
    /// All claims and all searches are in one order, and a thread's search comes after its claim (or after the
    /// claim that it saw and goes on with). So of two threads that claim the same name at least one sees the
    /// other's claim; a committed one wins over a pending one, and the lower of two pending ones over the
    /// higher. `None`: look again from the start.
    fn settle<'a>(&'a self, place: Place, mine: SlotRef<'a>, worth: &impl Worth) -> Option<SlotRef<'a>> {
        if is_broken(Fault::NoTwinSearch) {
            return Some(mine.committing());
        }
        if !is_broken(Fault::NoFence) {
            in_total_order();
        }
        let mut after_mine = false;
        // In the order of the table, which is the same for all, whichever bucket is their home.
        let mut numbers = [place.home, self.partner(place.name, place.home)];
        numbers.sort_unstable();
        let count = if numbers[0] == numbers[1] { 1 } else { 2 };
        let buckets = || numbers[..count].iter().map(|&number| &self.buckets[number]);
        // Nearly always there is no other, and it takes one look at each owner to see that.
        let bears_name = |bucket: &Bucket, way| bucket.slot_in_order(way).owner().is(place.name);
        let named = |bucket: &CachePadded<Bucket>| {
            (0..WAYS).map(|way| u32::from(bears_name(bucket, way))).sum::<u32>()
        };
        if buckets().map(named).sum::<u32>() <= 1 {
            return Some(mine.committing());
        }
        for bucket in buckets() {
            for way in 0..WAYS {
                let other = bucket.slot_in_order(way);
                if other.is_same_place(mine) {
                    after_mine = true;
                    continue;
                }
                if !other.owner().is(place.name) {
                    continue;
                }
                let state = other.state();
                let (live, pending) =
                    (state.is_live_under(other.owner()), state.is_sealed_under(other.owner()));
                if live || (pending && !after_mine) {
                    withdraw(mine, mine.state(), worth);
                    return None;
                }
                // If it is live by now, nothing of ours may stay behind beside it. If it was withdrawn, it must
                // stay: two that withdrew for each other would do so again.
                if pending && !withdraw(other, state, worth) && other.state().is_live_under(other.owner()) {
                    withdraw(mine, mine.state(), worth);
                    return None;
                }
            }
        }
        Some(mine.committing())
    }

    /// Finds room for a key whose buckets are full of others: a claim that somebody has not committed to, or
    /// else as the user chose. `None`: look again from the start.
    fn make_room(
        &self,
        place: Place,
        now_ns: u64,
        worth: &impl Worth,
        may_displace: &mut bool,
    ) -> Result<Option<(SlotRef<'_>, State)>, NoRoom> {
        // Nobody is to be forgotten, nor let pass, for a request that will be refused.
        if self.is_closed() {
            return Err(NoRoom::Closed);
        }
        let survey = self.survey(place, worth, now_ns);
        if survey.moved {
            return Ok(None);
        }
        if let Some(pending) = survey.pending.filter(|_| *may_displace && !is_broken(Fault::WaitsForClaimer))
        {
            *may_displace = false;
            return Ok(Some(pending));
        }
        worth.note_full(now_ns, self.when_full);
        let counters = self.counters(place);
        // Should every candidate be a claim under way, there will be room in an instant.
        let wait_ns = survey.least_live.map_or(1, |(_, _, reset_ns)| reset_ns);
        match (self.when_full, survey.least_live) {
            // What never comes back by itself is not forgotten for a newcomer: list entries, work under way.
            (WhenFull::Evict, Some((slot, state, reset_ns))) if reset_ns < u64::MAX => {
                let spent = worth.spent(slot.owner().cell(), state.payload(), now_ns);
                Ok(slot.seal(state, now_ns).map(|sealed| {
                    // Relaxed: counters are read for their values alone.
                    counters.evicted.fetch_add(1, Ordering::Relaxed);
                    counters.forgiven_cost.fetch_add(spent, Ordering::Relaxed);
                    (slot, sealed)
                }))
            }
            (WhenFull::Deny, _) => {
                // Relaxed: as above.
                counters.denied_for_room.fetch_add(1, Ordering::Relaxed);
                Err(NoRoom::Deny { wait_ns })
            }
            // Nothing to evict: every candidate is a claim under way, of as many keys at this instant, or stays.
            (WhenFull::Allow | WhenFull::Evict, _) => {
                // Relaxed: as above.
                counters.allowed_for_room.fetch_add(1, Ordering::Relaxed);
                Err(NoRoom::Allow)
            }
        }
    }

    /// Seals a slot, unless there is nobody to shut out, and claims it. `None` if somebody else was quicker.
    fn take<'a>(
        &self,
        slot: SlotRef<'a>,
        seen: State,
        place: Place,
        worth: &impl Worth,
    ) -> Option<SlotRef<'a>> {
        let sealed = match seen {
            sealed if sealed.is_sealed_after(slot.owner()) => sealed,
            empty if slot.owner().is_nobody() && empty.is_sealed_under(slot.owner()) => {
                return slot.move_in(place.name);
            }
            // The broken variant goes by what it saw, and loses what the old owner has spent since.
            _ if is_broken(Fault::NoSeal) => {
                let claimed = slot.claim(place.name, State::sealing(slot.owner(), worth.now_ns()))?;
                let _lost = slot.seal(slot.state(), worth.now_ns());
                return Some(claimed);
            }
            seen if seen.is_live_under(slot.owner()) || seen.is_sealed_under(slot.owner()) => {
                let seen_now = if is_broken(Fault::SealsUnseen) { slot.state() } else { seen };
                let sealed = slot.seal(seen_now, worth.now_ns())?;
                if seen.is_live_under(slot.owner()) {
                    // Relaxed: counters are read for their values alone.
                    self.counters(place).expired.fetch_add(1, Ordering::Relaxed);
                }
                sealed
            }
            // Read at two moments: the state is a later owner's, who would lose what it has spent.
            _ => return None,
        };
        slot.claim(place.name, sealed)
    }
}

/// Where a thread can be stopped in a takeover: the step after which it does nothing more.
#[cfg(any(test, tollgate_loom))]
#[allow(unreachable_pub, reason = "models name it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeoverStep {
    /// The old owner is shut out, and nobody has come.
    Seal,
    /// The new owner has claimed the slot, and not committed to it.
    Claim,
}

/// Ends a pending claim, and takes its name off the slot so that nobody is led there. False if the claim
/// had come to another end already.
pub(super) fn withdraw(pending: SlotRef<'_>, seen: State, worth: &impl Worth) -> bool {
    if !seen.is_sealed_under(pending.owner()) {
        return false;
    }
    let Some(sealed) = pending.seal(seen, worth.now_ns()) else { return false };
    let _tidied = pending.claim(Name::NOBODY, sealed);
    true
}

/// The first of some ways (there is one at least) from `start` on, round the bucket.
pub(super) fn next_way(ways: u32, start: usize) -> usize {
    let after = ways >> start << start;
    (if after == 0 { ways } else { after }).trailing_zeros() as usize
}

/// A slot that bears the name of the key that is looking.
#[derive(Clone, Copy)]
pub(super) enum Mine<'a> {
    Live(SlotRef<'a>),
    Pending(SlotRef<'a>),
}

/// What a look at the owners in a key's two buckets found.
#[derive(Default)]
pub(super) struct Census<'a> {
    pub(super) mine: Option<Mine<'a>>,
    /// Which slots of the home bucket nobody has.
    vacant_at_home: Option<(&'a Bucket, u32)>,
}

impl<'a> Census<'a> {
    /// A vacant slot in the home bucket, if hardly anybody lives there.
    fn vacancy(&self, name: Name) -> Option<(SlotRef<'a>, State)> {
        let (bucket, ways) = self.vacant_at_home?;
        if ways.count_ones() as usize <= WAYS - HOME_FIRST {
            return None;
        }
        // Read again with its state, and it may be somebody's by now.
        let slot = bucket.slot(next_way(ways, name.preferred_way()));
        let state = slot.state();
        (slot.owner().is_nobody() && state.is_sealed_under(slot.owner())).then_some((slot, state))
    }
}

/// What a search for a slot that nobody would miss came to.
enum Spare<'a> {
    Slot(SlotRef<'a>, State),
    /// There was one, and somebody has changed it meanwhile.
    Moved,
    None,
}

/// What a look at two buckets that are full found.
#[derive(Default)]
struct Survey<'a> {
    /// They are not full any more, or the key itself was brought in: nothing to decide upon.
    moved: bool,
    /// A claim that is not committed: somebody is slow, or was stopped for ever.
    pending: Option<(SlotRef<'a>, State)>,
    /// The live slot of another key that is nearest to fresh, and how near; one of the key's own cells where
    /// there is no other.
    least_live: Option<(SlotRef<'a>, State, u64)>,
    own_live: Option<(SlotRef<'a>, State, u64)>,
}

impl<'a> Survey<'a> {
    fn see_live(&mut self, slot: SlotRef<'a>, state: State, reset_ns: u64, name: Name) {
        // A key that evicted its own cells in turn would never be refused.
        let own = slot.owner().name().tag() == name.tag();
        let least = if own { &mut self.own_live } else { &mut self.least_live };
        if least.is_none_or(|(_, _, least_ns)| reset_ns < least_ns) {
            *least = Some((slot, state, reset_ns));
        }
    }
}
