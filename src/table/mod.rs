//! The keyed table: a fixed number of slots, found by hash, taken over in place once they are worth nothing.
//!
//! The table stores words under names and knows nothing of algorithms but one thing, which its user tells
//! it ([`Worth`]): how long until a word is worth a fresh one. Hazards H1 to H6 and the protocol that
//! answers them are told in `docs/architecture.md`; the states of a slot stand on [`Bucket`](slot::Bucket).

mod memory;
mod slot;
#[cfg(test)]
mod tests;
mod word;

pub(crate) use slot::SlotRef;

use crate::charge::NoRoom;
use crate::error::Error;
use crate::policy::CELLS_MAX;
use crate::sync::{AtomicU64, Fault, Ordering, fence, is_broken};
use crossbeam_utils::CachePadded;
use slot::{Bucket, WAYS};
use word::{Name, State};

/// How full a table is when it holds all that it was made for, in percent, for keys of one cell, two, three and
/// more. Simulated with buckets of eight and the emptier of two taken first, every key of one cell found room
/// up to 67 (see `benches/results/layouts.md`); several cells of a key want room in the same two buckets.
const LOAD_PERCENT: [usize; 4] = [67, 45, 27, 16];
/// The same for small tables, in which luck weighs more.
const LOAD_PERCENT_SMALL: [usize; 4] = [30, 22, 15, 10];
const SMALL_ENTRIES: usize = 16_384;
/// A home bucket takes newcomers until it holds this many; then the emptier of the two does.
const HOME_FIRST: usize = if cfg!(tollgate_loom) { 1 } else { 3 };
/// The most buckets: positions are 32 bits of hash.
const BUCKETS_MAX: usize = 1 << 31;
/// Tables up to this size are brought into memory at build unless told otherwise: 256 MiB.
const PREFAULT_BYTES: usize = 256 << 20;
/// The smallest page there is.
const PAGE_BYTES: usize = 4096;
/// Into how many shards a table is cut, at most.
const SHARDS_MAX: usize = 64;

const _: () = assert!(CELLS_MAX <= 1 << word::CELL_BITS);

/// What the table's user knows of a word that the table does not.
pub(crate) trait Worth {
    /// How long until a word of this cell is worth a fresh one; 0 if it is now.
    fn reset_ns(&self, cell: usize, payload: u64) -> u64;
    /// What is forgotten with a word, in cost.
    fn spent(&self, cell: usize, payload: u64) -> u64;
}

/// What to do for a key when both its buckets are full of live ones.
///
/// The default keeps serving everybody and forgets the entry that matters least; [`Deny`](Self::Deny) keeps
/// every bound without condition. Each case is counted in [`Stats`](crate::Stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// Forget the entry nearest to fresh among the candidates. A spray's own keys go first, a key deep in
    /// debt goes last; a forgotten key starts afresh, so its bound may be passed by what was forgiven.
    #[default]
    Evict,
    /// Refuse the newcomer. No bound is ever passed, but a spray of keys can lock newcomers out.
    Deny,
    /// Let the newcomer pass uncounted. Known keys keep their bounds; the newcomer has none meanwhile.
    Allow,
}

/// Where a cell lives: its name, and the first of its two buckets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    name: Name,
    home: usize,
}

/// Counted a shard, so that threads which work on different keys do not meet.
#[derive(Debug)]
struct Counters {
    evicted: AtomicU64,
    forgiven_cost: AtomicU64,
    denied_for_room: AtomicU64,
    allowed_for_room: AtomicU64,
}

/// The counters of all shards, added up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) evicted: u64,
    pub(crate) forgiven_cost: u64,
    pub(crate) denied_for_room: u64,
    pub(crate) allowed_for_room: u64,
}

#[derive(Debug)]
pub(crate) struct Table {
    buckets: Box<[CachePadded<Bucket>]>,
    shards: Box<[CachePadded<Counters>]>,
    when_full: WhenFull,
}

impl Table {
    /// A table with room for `keys` live keys of so many cells each.
    pub(crate) fn new(
        keys: usize,
        cells: usize,
        when_full: WhenFull,
        prefault: Option<bool>,
    ) -> Result<Self, Error> {
        let too_large = || Error::new(format!("there is no memory for a table of {keys} keys"));
        let entries = keys.checked_mul(cells).ok_or_else(too_large)?;
        let load_percent = if entries < SMALL_ENTRIES { LOAD_PERCENT_SMALL } else { LOAD_PERCENT };
        let load_percent = load_percent[cells.clamp(1, load_percent.len()) - 1];
        let slots = entries.checked_mul(100).ok_or_else(too_large)?.div_ceil(load_percent);
        let count = match entries {
            // Everything has room in one bucket.
            0..=WAYS => 1,
            // Even, so that no key has the same bucket twice.
            _ => slots.div_ceil(WAYS).next_multiple_of(2),
        };
        if count > BUCKETS_MAX {
            return Err(too_large());
        }
        let buckets = memory::buckets(count).ok_or_else(too_large)?;
        if prefault.unwrap_or(size_of_val(&*buckets) <= PREFAULT_BYTES) {
            for bucket in buckets.iter().step_by(PAGE_BYTES / size_of::<CachePadded<Bucket>>()) {
                bucket.bring_in();
            }
        }
        let zero = || AtomicU64::new(0);
        let shards = (0..count.next_power_of_two().min(SHARDS_MAX))
            .map(|_| {
                CachePadded::new(Counters {
                    evicted: zero(),
                    forgiven_cost: zero(),
                    denied_for_room: zero(),
                    allowed_for_room: zero(),
                })
            })
            .collect();
        Ok(Self { buckets, shards, when_full })
    }

    /// Where a cell of the key with this hash lives. The high bits choose the bucket and the low bits are
    /// the tag.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "below the number of buckets")]
    pub(crate) fn place(&self, hash: u64, cell: usize) -> Place {
        let home = ((hash >> 32) * self.buckets.len() as u64) >> 32;
        Place { name: Name::new(hash, cell), home: home as usize }
    }

    /// A key's other bucket: the two are each other's, so that either can be found from an entry.
    #[allow(clippy::cast_possible_truncation, reason = "below the number of buckets")]
    fn partner(&self, name: Name, bucket: usize) -> usize {
        let count = self.buckets.len();
        if count == 1 {
            return bucket;
        }
        // The two add up to an odd number, modulo an even count: never the same bucket twice.
        let spread = name.tag().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let sum = ((spread * (count as u64 / 2)) >> 32) as usize * 2 + 1;
        if sum >= bucket { sum - bucket } else { sum + count - bucket }
    }

    /// Brings a key's home bucket towards the core.
    #[inline]
    pub(crate) fn touch(&self, place: Place) -> u64 {
        self.buckets[place.home].touch()
    }

    /// The slot of the name's choice, if it bears the name.
    #[inline(always)]
    pub(crate) fn glance(&self, place: Place) -> Option<SlotRef<'_>> {
        self.buckets[place.home].glance(place.name)
    }

    /// The slot that bears the name and is live. It may turn out stale all the same.
    pub(crate) fn find(&self, place: Place) -> Option<SlotRef<'_>> {
        let in_partner = || self.buckets[self.partner(place.name, place.home)].find(place.name);
        let found = self.buckets[place.home].find(place.name).or_else(in_partner)?;
        if found.state().is_live_under(found.owner()) { Some(found) } else { self.find_behind(place) }
    }

    /// The live slot of a key that has left its name on another one too: a claim given up halfway, or an
    /// entry that was sealed and that nobody has claimed since.
    #[cold]
    fn find_behind(&self, place: Place) -> Option<SlotRef<'_>> {
        match self.census(place).mine {
            Some(Mine::Live(slot)) => Some(slot),
            _ => None,
        }
    }

    /// The slot of a key that `find` did not find, or found stale: its own if it has one after all, else one
    /// that it may commit to.
    #[cold]
    ///
    /// `may_displace` is the request's leave to take away another key's claim: once, so that two keys cannot
    /// displace each other for ever.
    pub(crate) fn claim(
        &self,
        place: Place,
        now_ns: u64,
        worth: &impl Worth,
        may_displace: &mut bool,
    ) -> Result<SlotRef<'_>, NoRoom> {
        loop {
            let census = self.census(place);
            let room = match census.mine {
                Some(Mine::Live(slot)) => return Ok(slot),
                Some(Mine::Pending(slot)) => match self.settle(place, slot, now_ns) {
                    Some(slot) => return Ok(slot),
                    None => continue,
                },
                None => census.vacancy(place.name),
            };
            let (slot, seen) = match room {
                Some(vacant) => vacant,
                None => {
                    let survey = self.survey(place, worth);
                    if survey.moved {
                        continue;
                    }
                    if let Some(spare) = survey.spare() {
                        spare
                    } else if let Some(pending) =
                        survey.pending.filter(|_| *may_displace && !is_broken(Fault::WaitsForClaimer))
                    {
                        *may_displace = false;
                        pending
                    } else {
                        match self.make_room(place, survey.least_live, now_ns, worth)? {
                            Some(evicted) => evicted,
                            None => continue,
                        }
                    }
                }
            };
            let Some(claimed) = take(slot, seen, place.name, now_ns) else { continue };
            if let Some(slot) = self.settle(place, claimed, now_ns) {
                return Ok(slot);
            }
        }
    }

    /// Begins a takeover and stops for ever, for those who have to go on regardless (H4).
    #[cfg(any(test, tollgate_loom))]
    pub(crate) fn abandon(&self, place: Place, after: TakeoverStep, now_ns: u64, worth: &impl Worth) {
        let survey = self.survey(place, worth);
        let room = self.census(place).vacancy(place.name).or(survey.spare()).or(survey.pending);
        let Some((slot, seen)) = room else { return };
        match after {
            TakeoverStep::Seal if seen.is_sealed_after(slot.owner()) => {}
            TakeoverStep::Seal => drop(slot.seal(seen, now_ns)),
            TakeoverStep::Claim => drop(take(slot, seen, place.name, now_ns)),
        }
    }

    /// The numbers of a place's two buckets, and its preferred way, for models that fill them.
    #[cfg(tollgate_loom)]
    pub(crate) fn placement(&self, place: Place) -> (usize, usize, usize) {
        (place.home, self.partner(place.name, place.home), place.name.preferred_way())
    }

    /// Both buckets of a key; the same one twice where there is only one.
    fn candidates(&self, place: Place) -> impl Iterator<Item = &Bucket> {
        let other = self.partner(place.name, place.home);
        let second = (other != place.home).then(|| &*self.buckets[other]);
        std::iter::once(&*self.buckets[place.home]).chain(second)
    }

    /// Looks at the owners alone: for the key's own slot, and for a home bucket that is nearly empty.
    fn census(&self, place: Place) -> Census<'_> {
        let mut census = Census::default();
        for (choice, bucket) in self.candidates(place).enumerate() {
            // Counted in bits: which slots of a filling table are taken is anybody's guess, for a branch too.
            let (mut vacant, mut named) = (0u32, 0u32);
            for way in 0..WAYS {
                let owner = bucket.slot(way).owner();
                vacant |= u32::from(owner.is_nobody()) << way;
                named |= u32::from(owner.is(place.name)) << way;
            }
            if choice == 0 {
                census.vacant_at_home = Some((bucket, vacant));
            }
            for way in (0..WAYS).filter(|way| named >> way & 1 == 1) {
                let slot = bucket.slot(way);
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

    /// Looks at the states too, for a slot whose owner would not miss it, or the one who would miss it least.
    fn survey(&self, place: Place, worth: &impl Worth) -> Survey<'_> {
        let mut survey = Survey::default();
        for (choice, bucket) in self.candidates(place).enumerate() {
            // From the preferred way on: a newcomer is best put there, and of several that are missed equally
            // little it is not always the same that has to go.
            for way in (0..WAYS).map(|way| (way + place.name.preferred_way()) % WAYS) {
                let slot = bucket.slot(way);
                let (owner, state) = (slot.owner(), slot.state());
                if !slot.is_still_owned() {
                    // Read at two moments.
                    survey.moved = true;
                } else if state.is_sealed_after(owner) || (state.is_sealed_under(owner) && owner.is_nobody())
                {
                    survey.empty[choice] = survey.empty[choice].or(Some((slot, state)));
                } else if owner.is(place.name) && (state.is_live_under(owner) || state.is_sealed_under(owner))
                {
                    survey.moved = true;
                } else if state.is_sealed_under(owner) {
                    survey.used[choice] += 1;
                    survey.pending = Some((slot, state));
                } else {
                    match worth.reset_ns(owner.cell(), state.payload()) {
                        0 => survey.worthless[choice] = survey.worthless[choice].or(Some((slot, state))),
                        _ if is_broken(Fault::ForgetsDebt) => survey.worthless[choice] = Some((slot, state)),
                        reset_ns => {
                            survey.used[choice] += 1;
                            survey.see_live(slot, state, reset_ns, place.name);
                        }
                    }
                }
            }
        }
        survey.least_live = survey.least_live.or(survey.own_live);
        survey
    }

    /// Decides what becomes of a claim: no other slot may be the key's too (H2).
    ///
    /// The fence orders this thread's claim before its search, as it does for every other thread that claims
    /// the same name. Of two such threads at least one sees the other's claim; a committed one wins over a
    /// pending one, and the lower of two pending ones over the higher. `None`: look again from the start.
    fn settle<'a>(&'a self, place: Place, mine: SlotRef<'a>, now_ns: u64) -> Option<SlotRef<'a>> {
        if is_broken(Fault::NoTwinSearch) {
            return Some(mine.committing());
        }
        if !is_broken(Fault::NoFence) {
            // SeqCst: two claimers each write an owner and then read the other's. Anything weaker lets both
            // read the past.
            fence(Ordering::SeqCst);
        }
        let mut after_mine = false;
        for bucket in self.candidates(place) {
            for way in 0..WAYS {
                let other = bucket.slot(way);
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
                    withdraw(mine, mine.state(), now_ns);
                    return None;
                }
                if pending && !withdraw(other, state, now_ns) {
                    // It may be live by now. Nothing of ours may stay behind beside it.
                    withdraw(mine, mine.state(), now_ns);
                    return None;
                }
            }
        }
        Some(mine.committing())
    }

    /// Applies the user's choice to a key that finds both buckets full of live entries.
    fn make_room<'a>(
        &self,
        place: Place,
        least_live: Option<(SlotRef<'a>, State, u64)>,
        now_ns: u64,
        worth: &impl Worth,
    ) -> Result<Option<(SlotRef<'a>, State)>, NoRoom> {
        let counters = &self.shards[place.home / self.buckets.len().div_ceil(self.shards.len())];
        // Should every candidate be a claim under way, there will be room in an instant.
        let wait_ns = least_live.map_or(1, |(_, _, reset_ns)| reset_ns);
        match (self.when_full, least_live) {
            (WhenFull::Evict, Some((slot, state, _))) => {
                let spent = worth.spent(slot.owner().cell(), state.payload());
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
            // Nothing to evict: every candidate is a claim under way, of as many keys at this instant.
            (WhenFull::Allow, _) | (WhenFull::Evict, None) => {
                // Relaxed: as above.
                counters.allowed_for_room.fetch_add(1, Ordering::Relaxed);
                Err(NoRoom::Allow)
            }
        }
    }

    pub(crate) fn slots(&self) -> usize {
        self.buckets.len() * WAYS
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets) + size_of_val(&*self.shards)
    }

    /// How many keys have at least one live entry. Walks the whole table.
    pub(crate) fn live_keys(&self, worth: &impl Worth) -> usize {
        let is_live = |slot: SlotRef<'_>, state: State| {
            state.is_live_under(slot.owner()) && worth.reset_ns(slot.owner().cell(), state.payload()) > 0
        };
        let mut keys = 0;
        for (index, bucket) in self.buckets.iter().enumerate() {
            for way in 0..WAYS {
                let slot = bucket.slot(way);
                if !is_live(slot, slot.state()) {
                    continue;
                }
                // A key with several entries counts at the one with the lowest cell.
                let (name, cell) = (slot.owner().name(), slot.owner().cell());
                let counted_elsewhere = cell > 0
                    && self.candidates(Place { name, home: index }).any(|bucket| {
                        (0..WAYS).map(|way| bucket.slot(way)).any(|other| {
                            other.owner().name().tag() == name.tag()
                                && other.owner().cell() < cell
                                && is_live(other, other.state())
                        })
                    });
                keys += usize::from(!counted_elsewhere);
            }
        }
        keys
    }

    pub(crate) fn totals(&self) -> Totals {
        // Relaxed: counters are read for their values alone.
        let total = |counter: fn(&Counters) -> &AtomicU64| {
            self.shards.iter().map(|shard| counter(shard).load(Ordering::Relaxed)).sum()
        };
        Totals {
            evicted: total(|counters| &counters.evicted),
            forgiven_cost: total(|counters| &counters.forgiven_cost),
            denied_for_room: total(|counters| &counters.denied_for_room),
            allowed_for_room: total(|counters| &counters.allowed_for_room),
        }
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

/// Seals a slot, unless it is sealed already, and claims it. `None` if somebody else was quicker.
fn take<'a>(slot: SlotRef<'a>, seen: State, name: Name, now_ns: u64) -> Option<SlotRef<'a>> {
    let sealed = match seen {
        sealed if sealed.is_sealed_after(slot.owner()) => sealed,
        // The broken variant goes by what it saw, and loses what the old owner has spent since.
        _ if is_broken(Fault::NoSeal) => {
            let claimed = slot.claim(name, State::sealing(slot.owner(), now_ns))?;
            let _lost = slot.seal(slot.state(), now_ns);
            return Some(claimed);
        }
        seen if seen.is_live_under(slot.owner()) || seen.is_sealed_under(slot.owner()) => {
            slot.seal(if is_broken(Fault::SealsUnseen) { slot.state() } else { seen }, now_ns)?
        }
        // Read at two moments: the state is a later owner's, who would lose what it has spent.
        _ => return None,
    };
    slot.claim(name, sealed)
}

/// Ends a pending claim, and takes its name off the slot so that nobody is led there. False if the claim
/// had come to another end already.
fn withdraw(pending: SlotRef<'_>, seen: State, now_ns: u64) -> bool {
    if !seen.is_sealed_under(pending.owner()) {
        return false;
    }
    let Some(sealed) = pending.seal(seen, now_ns) else { return false };
    let _tidied = pending.claim(Name::NOBODY, sealed);
    true
}

/// A slot that bears the name of the key that is looking.
#[derive(Clone, Copy)]
enum Mine<'a> {
    Live(SlotRef<'a>),
    Pending(SlotRef<'a>),
}

/// What a look at the owners in a key's two buckets found.
#[derive(Default)]
struct Census<'a> {
    mine: Option<Mine<'a>>,
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
        let preferred = name.preferred_way();
        let way = if ways >> preferred & 1 == 1 { preferred } else { ways.trailing_zeros() as usize };
        // Read again with its state, and it may be somebody's by now.
        let slot = bucket.slot(way);
        let state = slot.state();
        (slot.owner().is_nobody() && state.is_sealed_under(slot.owner())).then_some((slot, state))
    }
}

/// What a look at the states in a key's two buckets found.
#[derive(Default)]
struct Survey<'a> {
    /// Somebody changed a slot meanwhile, or brought in the key itself: nothing to decide upon.
    moved: bool,
    /// A slot of each bucket that nobody has, or that was sealed and not claimed.
    empty: [Option<(SlotRef<'a>, State)>; 2],
    /// A live slot of each bucket that is worth nothing.
    worthless: [Option<(SlotRef<'a>, State)>; 2],
    /// How many slots of each bucket are somebody's who would miss them.
    used: [usize; 2],
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

    /// A slot that nobody would miss, in the home bucket while few live there, else in the emptier of the two:
    /// an empty one rather than a worthless one, whose key may come again.
    fn spare(&self) -> Option<(SlotRef<'a>, State)> {
        let home_first = self.used[0] < HOME_FIRST || self.used[0] <= self.used[1];
        let order = if home_first { [0, 1] } else { [1, 0] };
        order.into_iter().find_map(|choice| self.empty[choice].or(self.worthless[choice]))
    }
}
