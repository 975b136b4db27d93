//! Taking a key in: finding it a slot, shutting the old owner out, and seeing to it that there is no twin.

use super::slot::{LINE_WAYS, Line};
use super::word::{Name, State};
use super::{Place, SlotRef, Table, WhenFull, Worth};
use crate::charge::NoRoom;
use crate::sync::{Fault, Ordering, SEARCH, in_total_order, is_broken};

/// A bit for each way of a line.
const ALL_WAYS: u32 = (1 << LINE_WAYS) - 1;

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
            let room = match self.spare(place, look, now_ns, worth) {
                Spare::Room(room) => Some(room),
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
            let Some(room) = room else { continue };
            let Some(claimed) = self.take(room, place, worth) else { continue };
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
        self.withdraw(claimed, claimed.state(), worth);
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
        let Spare::None = self.spare(place, look, now_ns, worth) else { return None };
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
        let room = match self.spare(place, self.look(place, now_ns, worth), now_ns, worth) {
            Spare::Room(room) => Some(room),
            Spare::Moved | Spare::None => self.survey(place, worth, now_ns).pending,
        };
        let Some(room) = room else { return };
        let Room { slot, seen, name } = room;
        match after {
            TakeoverStep::Count => self.count_in(place, name),
            // There is nothing to seal about a free slot, nor an empty one.
            TakeoverStep::Seal if seen.is_sealed_after(slot.owner()) || slot.owner().is_nobody() => {}
            TakeoverStep::Seal => drop(slot.seal(seen, worth.now_ns())),
            TakeoverStep::Claim | TakeoverStep::Withdraw => {
                if !is_broken(Fault::CountsLate) {
                    self.count_in(place, name);
                }
                let claimed = self.seal_and_claim(room, place, worth);
                if let (Some(claimed), TakeoverStep::Withdraw) = (claimed, after) {
                    let _withdrawn = claimed.seal(claimed.state(), worth.now_ns());
                }
            }
        }
    }

    /// The key's own slot: live if there is one, else pending.
    #[inline(never)]
    fn mine(&self, place: Place) -> Option<Mine<'_>> {
        let mut pending = None;
        for slot in self.named_in_order(place) {
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

    /// All slots that bear the key's name, in the order in which the first of several claims wins; read in the one
    /// order of claims and searches.
    ///
    /// Beyond the first line only where something is counted: whoever claims a slot there has counted it before, and
    /// the count stays until the name is gone. So who sees no count, after a claim of its own, comes before any claim
    /// there, and is seen by whoever makes it.
    fn named_in_order(&self, place: Place) -> impl Iterator<Item = SlotRef<'_>> {
        let counted = std::iter::once_with(move || self.first_choice(place).owner());
        let further = counted.flat_map(move |counted| self.counted_lines(place, counted));
        let named_further = further.flat_map(|(line, name)| line.named_in_order(name));
        self.first_line(place).named_in_order(place.name).chain(named_further)
    }

    /// Looks at a key's first line.
    #[inline(always)]
    fn look(&self, place: Place, now_ns: u64, worth: &impl Worth) -> Look {
        let look = look_at(self.first_line(place), place.name, &worth.glimpse(now_ns));
        Look { named: look.named | self.first_choice(place).owner().has_beyond(), ..look }
    }

    /// A slot that nobody would miss: one that is nobody's on the key's first line, which was looked at, or near it;
    /// else one of a key that is worth a fresh one, and may come again. Far away only if there is neither.
    #[inline]
    fn spare(&self, place: Place, look: Look, now_ns: u64, worth: &impl Worth) -> Spare<'_> {
        match look.free {
            0 => self.spare_further(place, look, now_ns, worth),
            free => spare_of(self.first_line(place), free, place.name, now_ns, worth),
        }
    }

    #[inline(never)]
    fn spare_further(&self, place: Place, first: Look, now_ns: u64, worth: &impl Worth) -> Spare<'_> {
        self.prefetch_near(place);
        let is_fresh = worth.glimpse(now_ns);
        let looked_at = |(line, name)| (line, name, look_at(line, name, &is_fresh));
        let near = || self.near_lines(place).map(looked_at);
        // Where there is most room, so that keys do not crowd together.
        let emptiest = near().min_by_key(|(_, _, look)| look.free.count_zeros());
        let free = emptiest.into_iter().map(|(line, name, look)| (line, name, look.free));
        let on_first = (self.first_line(place), place.name, first.worthless);
        let worthless = near().map(|(line, name, look)| (line, name, look.worthless));
        let far = self
            .far_lines(place)
            .map(looked_at)
            .map(|(line, name, look)| (line, name, if look.free == 0 { look.worthless } else { look.free }));
        let mut all = free.chain([on_first]).chain(worthless).chain(far);
        match all.find(|&(_, _, ways)| ways != 0) {
            Some((line, name, ways)) => spare_of(line, ways, name, now_ns, worth),
            None => Spare::None,
        }
    }

    /// Looks at all that a key could have when there is nothing to spare, for what would be missed least.
    #[inline(never)]
    fn survey(&self, place: Place, worth: &impl Worth, now_ns: u64) -> Survey<'_> {
        let mut survey = Survey::default();
        for (line, name) in self.lines(place) {
            // From the preferred way on: of several that are missed equally little it is not always the same
            // that has to go.
            for way in (0..LINE_WAYS).map(|way| way ^ name.way()) {
                let slot = line.slot(way);
                let (owner, state) = (slot.owner(), slot.state());
                let (live, pending) = (state.is_live_under(owner), state.is_sealed_under(owner));
                let room = Room { slot, seen: state, name };
                if !slot.is_still_owned() || slot.is_free(state) || owner.is(name) && (live || pending) {
                    // Somebody made room meanwhile, or brought in the key itself; or it was read at two moments.
                    survey.moved = true;
                } else if slot.is_amiss(state) {
                    let _anybodys = slot.seal(state, now_ns);
                    survey.moved = true;
                } else if pending {
                    survey.pending = Some(room);
                } else {
                    match worth.reset_ns(owner.cell(), state.payload(), now_ns) {
                        0 => survey.moved = true,
                        reset_ns => {
                            // All cells of a key have its tag.
                            let is_own = owner.name().tag() == place.name.tag();
                            survey.see_live(room, reset_ns, is_own);
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
    /// other's claim; a committed one wins over a pending one, and the earlier of two pending ones over the
    /// later, in the order of the key's lines. `None`: look again from the start.
    fn settle<'a>(&'a self, place: Place, mine: SlotRef<'a>, worth: &impl Worth) -> Option<SlotRef<'a>> {
        if is_broken(Fault::NoTwinSearch) {
            return Some(mine.committing());
        }
        if !is_broken(Fault::NoFence) {
            in_total_order();
        }
        // Nearly always there is no other, and it takes one look at a line to see that.
        let named = self.first_line(place).count_in_order(place.name);
        let may_be_beyond =
            self.first_choice(place).owner().has_beyond() && !is_broken(Fault::SearchesOneLine);
        if named <= 1 && mine.owner().is(place.name) && !may_be_beyond {
            return Some(mine.committing());
        }
        self.settle_among(place, mine, worth)
    }

    #[inline(never)]
    fn settle_among<'a>(
        &'a self,
        place: Place,
        mine: SlotRef<'a>,
        worth: &impl Worth,
    ) -> Option<SlotRef<'a>> {
        let mut after_mine = false;
        for other in self.named_in_order(place) {
            if other.is_same_place(mine) {
                after_mine = true;
                continue;
            }
            let state = other.state();
            let (live, pending) = (state.is_live_under(other.owner()), state.is_sealed_under(other.owner()));
            if live || (pending && !after_mine) {
                self.withdraw(mine, mine.state(), worth);
                return None;
            }
            // If it is live by now, nothing of ours may stay behind beside it. If it was withdrawn, it must
            // stay: two that withdrew for each other would do so again.
            if pending && !self.withdraw(other, state, worth) && other.state().is_live_under(other.owner()) {
                self.withdraw(mine, mine.state(), worth);
                return None;
            }
        }
        Some(mine.committing())
    }

    /// Finds room for a key whose buckets are full of others: a claim that somebody has not committed to, or
    /// else as the user chose. `None`: look again from the start.
    #[inline(never)]
    fn make_room(
        &self,
        place: Place,
        now_ns: u64,
        worth: &impl Worth,
        may_displace: &mut bool,
    ) -> Result<Option<Room<'_>>, NoRoom> {
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
            (WhenFull::Evict, Some((room, reset_ns))) if reset_ns < u64::MAX => {
                let Room { slot, seen, .. } = room;
                let spent = worth.spent(slot.owner().cell(), seen.payload(), now_ns);
                Ok(slot.seal(seen, now_ns).map(|sealed| {
                    // Relaxed: counters are read for their values alone.
                    counters.evicted.fetch_add(1, Ordering::Relaxed);
                    counters.forgiven_cost.fetch_add(spent, Ordering::Relaxed);
                    Room { seen: sealed, ..room }
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

    /// Claims a slot for a key, counted beforehand if it is not on the key's first line. `None` if somebody else was
    /// quicker.
    fn take<'a>(&'a self, room: Room<'a>, place: Place, worth: &impl Worth) -> Option<SlotRef<'a>> {
        if !is_broken(Fault::CountsLate) {
            self.count_in(place, room.name);
        }
        let taken = self.seal_and_claim(room, place, worth);
        if is_broken(Fault::CountsLate) {
            self.count_in(place, room.name);
        }
        match taken {
            Some(_) => self.count_out(room.slot, room.slot.owner().name()),
            None => self.count_out(room.slot, room.name),
        }
        taken
    }

    /// Seals a slot, unless there is nobody to shut out, and claims it.
    fn seal_and_claim<'a>(&self, room: Room<'a>, place: Place, worth: &impl Worth) -> Option<SlotRef<'a>> {
        let Room { slot, seen, name } = room;
        let sealed = match seen {
            sealed if sealed.is_sealed_after(slot.owner()) => sealed,
            empty if slot.owner().is_nobody() && empty.is_sealed_under(slot.owner()) => {
                return slot.move_in(name);
            }
            // The broken variant goes by what it saw, and loses what the old owner has spent since.
            _ if is_broken(Fault::NoSeal) => {
                let claimed = slot.claim(name, State::sealing(slot.owner(), worth.now_ns()))?;
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
        slot.claim(name, sealed)
    }

    /// Ends a pending claim, and takes its name off the slot so that nobody is led there. False if the claim
    /// had come to another end already.
    pub(super) fn withdraw(&self, pending: SlotRef<'_>, seen: State, worth: &impl Worth) -> bool {
        if !seen.is_sealed_under(pending.owner()) {
            return false;
        }
        if is_broken(Fault::TidiesUnsealed) {
            return pending.vacate_unsealed();
        }
        let Some(sealed) = pending.seal(seen, worth.now_ns()) else { return false };
        if pending.claim(Name::NOBODY, sealed).is_some() {
            self.count_out(pending, pending.owner().name());
        }
        true
    }

    /// Says, before a key claims a slot under this name, that it may be there, if that is not where it is looked for
    /// first.
    pub(super) fn count_in(&self, place: Place, name: Name) {
        if let Some(beyond) = name.beyond() {
            self.first_choice(place).recount(|owner| owner.with_one_more(beyond));
        }
    }

    /// Takes that back, once the name is gone from the slot or could not be put there.
    fn count_out(&self, slot: SlotRef<'_>, name: Name) {
        if let Some(beyond) = name.beyond() {
            self.first_choice(self.place_in(slot, name)).recount(|owner| owner.with_one_less(beyond));
        }
    }
}

/// Looks at the slots of a line on behalf of a key.
#[inline(always)]
fn look_at(line: &Line, name: Name, is_fresh: &impl Fn(usize, u64) -> bool) -> Look {
    // The owners first, without a branch: which slots of a filling table are taken is anybody's guess.
    let (mut named, mut free) = (false, 0);
    for way in (0..LINE_WAYS).rev() {
        let owner = line.slot_in_order(way).owner();
        named |= owner.is(name);
        free = free << 1 | u32::from(owner.is_nobody());
    }
    let mut worthless = 0;
    let mut taken = ALL_WAYS & !free;
    while taken != 0 {
        let slot = line.slot(taken.trailing_zeros() as usize);
        let (bit, state) = (taken & taken.wrapping_neg(), slot.state());
        if state.is_live_under(slot.owner()) {
            let is_worthless = is_fresh(slot.owner().cell(), state.payload()) | is_broken(Fault::ForgetsDebt);
            worthless |= if is_worthless { bit } else { 0 };
        } else if slot.is_free(state) {
            free |= bit;
        }
        taken ^= bit;
    }
    Look { named, free, worthless }
}

/// Of some slots of a line (there is one at least) the one that the name would rather have, if nobody would miss it.
#[inline(always)]
fn spare_of<'a>(line: &'a Line, ways: u32, name: Name, now_ns: u64, worth: &impl Worth) -> Spare<'a> {
    let slot = line.slot(next_way(ways, name.way()));
    let seen = slot.state();
    // Before a word is called worthless, the time is read again: the first was read before the word,
    // perhaps long before, and its owner may have spent since.
    let later_ns = || if is_broken(Fault::TrustsOldTime) { now_ns } else { worth.now_ns() };
    let is_worthless =
        || worth.is_fresh(slot.owner().cell(), seen.payload(), later_ns()) | is_broken(Fault::ForgetsDebt);
    let is_another_keys = seen.is_live_under(slot.owner()) && !slot.owner().is(name);
    let is_spare = slot.is_free(seen) || is_another_keys && is_worthless();
    match slot.is_still_owned() {
        true if is_spare => Spare::Room(Room { slot, seen, name }),
        still_owned => {
            if still_owned && slot.is_amiss(seen) {
                let _anybodys = slot.seal(seen, now_ns);
            }
            Spare::Moved
        }
    }
}

/// Where a thread can be stopped in a takeover: the step after which it does nothing more.
#[cfg(any(test, tollgate_loom))]
#[allow(unreachable_pub, reason = "models name it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeoverStep {
    /// The key is counted as one that may be on another line, if it is going there.
    Count,
    /// The old owner is shut out, and nobody has come.
    Seal,
    /// The new owner has claimed the slot, and not committed to it.
    Claim,
    /// The claim was given up, as for a twin, and the name not yet taken off the slot.
    Withdraw,
}

/// Of some ways of a line (there is one at least) the nearest to `start`: itself, then its neighbour, then the others.
pub(super) fn next_way(ways: u32, start: usize) -> usize {
    // Swapped until each way is at the place of its distance, which is what the two differ by.
    let mut swapped = ways;
    for (bit, low) in [(1, 0b0101), (2, 0b0011)] {
        if start & bit != 0 {
            swapped = (swapped & low) << bit | (swapped >> bit) & low;
        }
    }
    swapped.trailing_zeros() as usize ^ start
}

/// A slot that bears the name of the key that is looking.
#[derive(Clone, Copy)]
enum Mine<'a> {
    Live(SlotRef<'a>),
    Pending(SlotRef<'a>),
}

/// What a look at a line found, a bit a slot: of many moments, and judged by a time that was read before them. So it
/// helps to choose, and decides nothing.
#[derive(Clone, Copy)]
struct Look {
    /// Whether a slot bears the name; of a key's first line, or may on a further one.
    named: bool,
    /// Slots that are nobody's, ...
    free: u32,
    /// ... and slots of keys that are worth a fresh one.
    worthless: u32,
}

/// A slot that a key may have, as it was seen, and the name that the key bears there.
#[derive(Clone, Copy)]
struct Room<'a> {
    slot: SlotRef<'a>,
    seen: State,
    name: Name,
}

/// What a search for a slot that nobody would miss came to.
enum Spare<'a> {
    Room(Room<'a>),
    /// There was one, and somebody has changed it meanwhile.
    Moved,
    None,
}

/// What a look at lines that are full found.
#[derive(Default)]
struct Survey<'a> {
    /// They are not full any more, or the key itself was brought in: nothing to decide upon.
    moved: bool,
    /// A claim that is not committed: somebody is slow, or was stopped for ever.
    pending: Option<Room<'a>>,
    /// The live slot of another key that is nearest to fresh, and how near.
    least_live: Option<(Room<'a>, u64)>,
    /// How near the key's own nearest is, if other cells of it are among the live ones.
    own_wait_ns: Option<u64>,
}

impl<'a> Survey<'a> {
    fn see_live(&mut self, room: Room<'a>, reset_ns: u64, is_own: bool) {
        if is_own {
            // A key that evicted its own cells in turn would never be refused.
            self.own_wait_ns = Some(self.own_wait_ns.map_or(reset_ns, |least_ns| least_ns.min(reset_ns)));
        } else if self.least_live.is_none_or(|(_, least_ns)| reset_ns < least_ns) {
            self.least_live = Some((room, reset_ns));
        }
    }

    /// How long until one of the live slots is worth a fresh one: another key's, where there is any. One of the key's
    /// own may be what this very request has charged, and is about to hand back.
    fn wait_ns(&self) -> Option<u64> {
        let others_ns = self.least_live.map(|(_, reset_ns)| reset_ns);
        others_ns.filter(|&wait_ns| wait_ns < u64::MAX).or(self.own_wait_ns).or(others_ns)
    }
}
