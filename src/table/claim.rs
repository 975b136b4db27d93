//! Taking a key in: finding it a slot, shutting the old owner out, and seeing to it that there is no twin.

use super::slot::WAYS;
use super::word::{Name, State};
use super::{Bucket, Place, SlotRef, Table, WhenFull, Worth};
use crate::charge::NoRoom;
use crate::sync::{Fault, Ordering, SEARCH, in_total_order, is_broken};
use crossbeam_utils::CachePadded;

/// A home bucket takes newcomers until it holds this many; then the emptier of the two does.
const HOME_FIRST: usize = if cfg!(tollgate_loom) { 1 } else { 2 };

/// A bit for each way of a bucket.
const ALL_WAYS: u32 = (1 << WAYS) - 1;

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
            let look = self.look(place, now_ns, worth);
            match if look.named { self.mine(place) } else { None } {
                Some(Mine::Live(slot)) => return Ok(slot),
                Some(Mine::Pending(slot)) => match self.settle(place, slot, worth) {
                    Some(slot) => return self.unless_closed(slot, worth),
                    None => continue,
                },
                None => {}
            }
            let room = match self.spare(place, &look, now_ns, worth) {
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
        let look = self.look(place, now_ns, worth);
        if look.named && self.mine(place).is_some() {
            return None;
        }
        let Spare::None = self.spare(place, &look, now_ns, worth) else { return None };
        let survey = self.survey(place, worth, now_ns);
        match survey.wait_ns() {
            Some(wait_ns) if !survey.moved && survey.pending.is_none() => Some(NoRoom::Deny { wait_ns }),
            _ => None,
        }
    }

    /// Begins a takeover and stops for ever, for those who have to go on regardless (H4).
    #[cfg(any(test, tollgate_loom))]
    pub(crate) fn abandon(&self, place: Place, after: TakeoverStep, worth: &impl Worth) {
        let now_ns = worth.now_ns();
        let room = match self.spare(place, &self.look(place, now_ns, worth), now_ns, worth) {
            Spare::Slot(slot, state) => Some((slot, state)),
            Spare::Moved | Spare::None => self.survey(place, worth, now_ns).pending,
        };
        let Some((slot, seen)) = room else { return };
        match after {
            // There is nothing to seal about a free slot, nor an empty one.
            TakeoverStep::Seal if seen.is_sealed_after(slot.owner()) || slot.owner().is_nobody() => {}
            TakeoverStep::Seal => drop(slot.seal(seen, worth.now_ns())),
            TakeoverStep::Claim => drop(self.take(slot, seen, place, worth)),
        }
    }

    /// The key's own slot: live if there is one, else pending.
    pub(super) fn mine(&self, place: Place) -> Option<Mine<'_>> {
        let mut pending = None;
        for slot in self.candidates(place).flat_map(|bucket| (0..WAYS).map(|way| bucket.slot_in_order(way))) {
            if !slot.owner().is(place.name) {
                continue;
            }
            let state = slot.state();
            if state.is_live_under(slot.owner()) {
                return Some(Mine::Live(slot));
            }
            if state.is_sealed_under(slot.owner()) && pending.is_none() {
                pending = Some(Mine::Pending(slot));
            }
        }
        pending
    }

    /// Looks at all slots of a key's two buckets.
    #[inline(always)]
    fn look(&self, place: Place, now_ns: u64, worth: &impl Worth) -> Look {
        let is_fresh = worth.glimpse(now_ns);
        let mut look = Look::default();
        for (choice, bucket) in self.candidates(place).enumerate() {
            // The owners first, without a branch: which slots of a filling table are taken is anybody's guess.
            let mut nobodys = 0;
            for way in (0..WAYS).rev() {
                let owner = bucket.slot_in_order(way).owner();
                look.named |= owner.is(place.name);
                nobodys = nobodys << 1 | u32::from(owner.is_nobody());
            }
            let (mut free, mut worthless) = (nobodys, 0);
            let mut taken = ALL_WAYS & !nobodys;
            while taken != 0 {
                let slot = bucket.slot(taken.trailing_zeros() as usize);
                let (bit, state) = (taken & taken.wrapping_neg(), slot.state());
                if state.is_live_under(slot.owner()) {
                    let is_worthless =
                        is_fresh(slot.owner().cell(), state.payload()) | is_broken(Fault::ForgetsDebt);
                    worthless |= if is_worthless { bit } else { 0 };
                } else if slot.is_free(state) {
                    free |= bit;
                }
                taken ^= bit;
            }
            (look.free[choice], look.worthless[choice]) = (free, worthless);
        }
        look
    }

    /// A slot that nobody would miss: in the home bucket while few live there, else in the emptier of the two; an
    /// empty one rather than a worthless one, whose key may come again.
    #[inline]
    fn spare(&self, place: Place, look: &Look, now_ns: u64, worth: &impl Worth) -> Spare<'_> {
        let Look { free, worthless, .. } = look;
        let used = |choice: usize| WAYS - (free[choice] | worthless[choice]).count_ones() as usize;
        let home_first = used(0) < HOME_FIRST || used(0) <= used(1);
        let [first, second] = if home_first { [0, 1] } else { [1, 0] };
        // Where few live, a key is as well off, and nobody has to go who may come again.
        let few_live = used(second) < HOME_FIRST;
        let choices = [
            (first, free[first]),
            (second, if few_live { free[second] } else { 0 }),
            (first, worthless[first]),
            (second, free[second]),
            (second, worthless[second]),
        ];
        if let Some((choice, ways)) = choices.into_iter().find(|&(_, ways)| ways != 0) {
            let bucket = if choice == 0 { self.home(place) } else { self.partner_of(place) };
            let slot = bucket.slot(next_way(ways, place.name.preferred_way()));
            let state = slot.state();
            // Before a word is called worthless, the time is read again: the first was read before the word,
            // perhaps long before, and its owner may have spent since.
            let later_ns = || if is_broken(Fault::TrustsOldTime) { now_ns } else { worth.now_ns() };
            let is_worthless = || {
                worth.is_fresh(slot.owner().cell(), state.payload(), later_ns())
                    | is_broken(Fault::ForgetsDebt)
            };
            let is_another_keys = state.is_live_under(slot.owner()) && !slot.owner().is(place.name);
            let is_spare = slot.is_free(state) || is_another_keys && is_worthless();
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
        let own_key = worth.key(place.name.tag(), place.name.cell());
        for bucket in self.candidates(place) {
            // From the preferred way on: of several that are missed equally little it is not always the same
            // that has to go.
            for way in (0..WAYS).map(|way| way ^ place.name.preferred_way()) {
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
                        reset_ns => {
                            let is_own = worth.key(owner.name().tag(), owner.cell()) == own_key;
                            survey.see_live(slot, state, reset_ns, is_own);
                        }
                    }
                }
            }
        }
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
        // Where a claim is under way, there will be room in an instant, for this request's next try at the latest.
        let wait_ns = survey.wait_ns().filter(|_| survey.pending.is_none()).unwrap_or(1);
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
            // A key whose own cells fill its buckets is refused: it would be admitted for ever at their expense.
            (WhenFull::Evict, _) if survey.own_wait_ns.is_some() => {
                self.count_denied_for_room(place);
                Err(NoRoom::Deny { wait_ns })
            }
            (WhenFull::Deny, _) => {
                self.count_denied_for_room(place);
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
    if is_broken(Fault::TidiesUnsealed) {
        return pending.vacate_unsealed();
    }
    let Some(sealed) = pending.seal(seen, worth.now_ns()) else { return false };
    let _tidied = pending.claim(Name::NOBODY, sealed);
    true
}

/// Of some ways (there is one at least) the nearest to `start`: itself, then those on its line, then the others.
pub(super) fn next_way(ways: u32, start: usize) -> usize {
    // Swapped until each way is at the place of its distance, which is what the two differ by.
    let mut swapped = ways;
    for (bit, low) in [(1, 0x55), (2, 0x33), (4, 0x0f)] {
        if start & bit != 0 {
            swapped = (swapped & low) << bit | (swapped >> bit) & low;
        }
    }
    swapped.trailing_zeros() as usize ^ start
}

/// A slot that bears the name of the key that is looking.
#[derive(Clone, Copy)]
pub(super) enum Mine<'a> {
    Live(SlotRef<'a>),
    Pending(SlotRef<'a>),
}

/// What a look at a key's two buckets found, a bit a slot: of many moments, and judged by a time that was read before
/// them. So it helps to choose, and decides nothing.
#[derive(Default)]
struct Look {
    /// Whether a slot bears the name.
    named: bool,
    /// Slots that are nobody's, in the one bucket and the other, ...
    free: [u32; 2],
    /// ... and slots of keys that are worth a fresh one.
    worthless: [u32; 2],
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
    /// The live slot of another key that is nearest to fresh, and how near.
    least_live: Option<(SlotRef<'a>, State, u64)>,
    /// How near the key's own nearest is, if other cells of it are among the live ones.
    own_wait_ns: Option<u64>,
}

impl<'a> Survey<'a> {
    fn see_live(&mut self, slot: SlotRef<'a>, state: State, reset_ns: u64, is_own: bool) {
        if is_own {
            // A key that evicted its own cells in turn would never be refused.
            self.own_wait_ns = Some(self.own_wait_ns.map_or(reset_ns, |least_ns| least_ns.min(reset_ns)));
        } else if self.least_live.is_none_or(|(_, _, least_ns)| reset_ns < least_ns) {
            self.least_live = Some((slot, state, reset_ns));
        }
    }

    /// How long until one of the live slots is worth a fresh one: another key's, where there is any. One of the key's
    /// own may be what this very request has charged, and is about to hand back.
    fn wait_ns(&self) -> Option<u64> {
        let others_ns = self.least_live.map(|(_, _, reset_ns)| reset_ns);
        others_ns.filter(|&wait_ns| wait_ns < u64::MAX).or(self.own_wait_ns).or(others_ns)
    }
}
