//! The keyed table: a fixed number of slots, found by hash, taken over in place once they are worth nothing.
//!
//! The table stores words under names and knows nothing of algorithms but one thing, which its user tells
//! it ([`Worth`]): how long until a word is worth a fresh one. Hazards H1 to H6 and the protocol that
//! answers them are told in `docs/architecture.md`; the states of a slot stand on [`Bucket`](slot::Bucket).

mod claim;
mod memory;
mod slot;
#[cfg(test)]
mod tests;
mod walk;
mod word;

#[cfg(any(test, tollgate_loom))]
#[allow(unreachable_pub, reason = "models name it")]
pub use claim::TakeoverStep;
pub(crate) use slot::{Bucket, SlotRef};
pub(crate) use walk::Entry;
pub(crate) use word::TAG_MASK;

use crate::charge::{Cell, Reach};
use crate::compile::CELLS_MAX;
use crate::error::Error;
use crate::sync::unmodelled::AtomicU64 as PlainU64;
use crate::sync::{AtomicU64, Fault, Ordering, is_broken};
use claim::Mine;
use crossbeam_utils::CachePadded;
use memory::Buckets;
use slot::{LINE_WAYS, WAYS, find_on};
use word::{Name, State};

/// How full a table is when it holds all that it was made for, in percent, for keys of one cell, two, three and
/// more. Simulated with buckets of eight and the emptier of two taken first, every key of one cell found room
/// up to 67 (see `benches/results/layouts.md`); several cells of a key want room in the same two buckets.
const LOAD_PERCENT: [usize; 4] = [67, 45, 27, 16];
/// The same for small tables, in which luck weighs more.
const LOAD_PERCENT_SMALL: [usize; 4] = [30, 22, 15, 10];
const SMALL_ENTRIES: usize = 16_384;
/// The most buckets: positions are 32 bits of hash.
const BUCKETS_MAX: usize = 1 << 31;
/// As much of a table as is soon found in some cache or other: 2 MiB.
const CACHED_BUCKETS: usize = 1 << 14;
/// Tables up to this size are brought into memory at build unless told otherwise: 256 MiB.
const PREFAULT_BYTES: usize = 256 << 20;
/// Into how many shards a table is cut, at most.
const SHARDS_MAX: usize = 64;

const _: () = assert!(CELLS_MAX <= 1 << word::CELL_BITS);

/// What the table's user knows of a word that the table does not.
pub(crate) trait Worth {
    /// The time.
    fn now_ns(&self) -> u64;
    /// Whether a word of this cell is worth a fresh one.
    fn is_fresh(&self, cell: usize, payload: u64, now_ns: u64) -> bool;
    /// The same for many words that are looked at in passing, by what was known before they were read.
    fn glimpse(&self, now_ns: u64) -> impl Fn(usize, u64) -> bool {
        move |cell, payload| self.is_fresh(cell, payload, now_ns)
    }
    /// How long until it is; 0 if it is now.
    fn reset_ns(&self, cell: usize, payload: u64, now_ns: u64) -> u64;
    /// What the tags of one key's cells have in common.
    fn key(&self, tag: u64, _cell: usize) -> u64 {
        tag
    }
    /// What is forgotten with a word, in cost.
    fn spent(&self, cell: usize, payload: u64, now_ns: u64) -> u64;
    /// Notes that a key finds no room, and what is done about it.
    fn note_full(&self, _now_ns: u64, _action: WhenFull) {}
}

/// What to do for a key when both its buckets are full of live ones.
///
/// The default keeps serving everybody and forgets the entry that matters least; [`Deny`](Self::Deny) keeps
/// every bound without condition. Each case is counted in [`Stats`](crate::Stats).
///
/// ```
/// use tollgate::{Limiter, WhenFull};
///
/// let spray = |when_full| {
///     let limiter = Limiter::builder().policy("1/h").max_keys(1).when_full(when_full).build()?;
///     (0..1_000).for_each(|key| drop(limiter.try_acquire(&key).into_result()));
///     Ok::<_, tollgate::Error>(limiter.stats())
/// };
/// assert!(spray(WhenFull::Evict)?.evicted > 0);
/// assert!(spray(WhenFull::Deny)?.denied_for_room > 0);
/// assert!(spray(WhenFull::Allow)?.allowed_for_room > 0);
/// # Ok::<(), tollgate::Error>(())
/// ```
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

impl Place {
    #[inline(always)]
    pub(crate) fn name(self) -> Name {
        self.name
    }
}

/// Counted a shard, so that threads which work on different keys do not meet.
#[derive(Debug)]
struct Counters {
    evicted: AtomicU64,
    forgiven_cost: AtomicU64,
    denied_for_room: AtomicU64,
    allowed_for_room: AtomicU64,
    shadow_denied: AtomicU64,
    // For people alone: no model has to go into these.
    lost_in_restore: PlainU64,
    lost_strikes: PlainU64,
    expired: PlainU64,
}

/// The counters of all shards, added up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) evicted: u64,
    pub(crate) lost_in_restore: u64,
    pub(crate) lost_strikes: u64,
    pub(crate) expired: u64,
    pub(crate) forgiven_cost: u64,
    pub(crate) denied_for_room: u64,
    pub(crate) allowed_for_room: u64,
    pub(crate) shadow_denied: u64,
}

#[derive(Debug)]
pub(crate) struct Table {
    buckets: Buckets,
    shards: Box<[CachePadded<Counters>]>,
    when_full: WhenFull,
    /// 1 once nobody may charge any more.
    closed: AtomicU64,
}

/// Which slot of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotNumber(usize);

impl Table {
    /// A table with room for `keys` live keys of so many cells each.
    pub(crate) fn new(
        keys: usize,
        cells: usize,
        when_full: WhenFull,
        prefault: Option<bool>,
    ) -> Result<Self, Error> {
        Self::buckets_for(keys, cells)
            .and_then(|count| Self::of_buckets(count, when_full, prefault))
            .ok_or_else(|| {
                Error::new(format!(
                    "there is no memory for a table of {keys} keys: ask for a smaller max_keys"
                ))
            })
    }

    /// How many buckets such a table has; `None` if that is more than there are numbers.
    pub(crate) fn buckets_for(keys: usize, cells: usize) -> Option<usize> {
        let entries = keys.checked_mul(cells)?;
        let load_percent = if entries < SMALL_ENTRIES { LOAD_PERCENT_SMALL } else { LOAD_PERCENT };
        let load_percent = load_percent[cells.clamp(1, load_percent.len()) - 1];
        let slots = entries.checked_mul(100)?.div_ceil(load_percent);
        Some(match entries {
            // Everything has room in one bucket.
            0..=WAYS => 1,
            // Even, so that no key has the same bucket twice.
            _ => slots.div_ceil(WAYS).next_multiple_of(2),
        })
    }

    /// A table of so many buckets: 1, or an even number. `None` if there is no memory for it.
    pub(crate) fn of_buckets(count: usize, when_full: WhenFull, prefault: Option<bool>) -> Option<Self> {
        if count > BUCKETS_MAX {
            return None;
        }
        let buckets = Buckets::new(count)?;
        if prefault.unwrap_or(size_of_val(&*buckets) <= PREFAULT_BYTES) {
            buckets.bring_in();
        } else {
            buckets.leave_out();
        }
        let zero = || AtomicU64::new(0);
        let shards = (0..count.next_power_of_two().min(SHARDS_MAX))
            .map(|_| {
                CachePadded::new(Counters {
                    evicted: zero(),
                    forgiven_cost: zero(),
                    denied_for_room: zero(),
                    allowed_for_room: zero(),
                    shadow_denied: zero(),
                    lost_in_restore: PlainU64::new(0),
                    lost_strikes: PlainU64::new(0),
                    expired: PlainU64::new(0),
                })
            })
            .collect();
        Some(Self { buckets, shards, when_full, closed: zero() })
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

    /// The first of a key's two buckets.
    #[inline(always)]
    pub(crate) fn home(&self, place: Place) -> &Bucket {
        &self.buckets[place.home]
    }

    /// The other one; the same where there is only one.
    fn partner_of(&self, place: Place) -> &Bucket {
        &self.buckets[self.partner(place.name, place.home)]
    }

    /// Brings both of a key's buckets towards the core, in a table that no cache holds. In a smaller one they are
    /// near enough; and a line that other cores write would only be taken from them twice.
    ///
    /// Both lines of each, though a key is nearly always on one of two: with those alone, admitting over a million keys
    /// took a tenth longer.
    #[inline(always)]
    pub(crate) fn prefetch(&self, place: Place) {
        if self.buckets.len() > CACHED_BUCKETS {
            for number in [place.home, self.partner(place.name, place.home)] {
                Bucket::prefetch(self.buckets.as_ptr().wrapping_add(number));
            }
        }
    }

    /// The slot of the name's choice, if it bears the name.
    #[inline(always)]
    pub(crate) fn glance(&self, place: Place) -> Option<SlotRef<'_>> {
        self.buckets[place.home].glance(place.name)
    }

    /// The slot of the name's choice.
    pub(crate) fn preferred(&self, place: Place) -> SlotNumber {
        SlotNumber(place.home * WAYS + place.name.preferred_way())
    }

    /// The number of a slot that the place's name was found in.
    pub(crate) fn number_of(&self, place: Place, slot: SlotRef<'_>) -> SlotNumber {
        let buckets = [place.home, self.partner(place.name, place.home)];
        let mut numbers = buckets.into_iter().flat_map(|bucket| (0..WAYS).map(move |way| (bucket, way)));
        numbers
            .find(|&(bucket, way)| self.buckets[bucket].slot(way).is_same_place(slot))
            .map_or_else(|| self.preferred(place), |(bucket, way)| SlotNumber(bucket * WAYS + way))
    }

    /// How far one has to look for a place's name, if it is there.
    pub(crate) fn reach(&self, place: Place) -> Option<Reach> {
        if self.glance(place).is_some() {
            return Some(Reach::AtOnce);
        }
        let number = self.number_of(place, self.find(place)?);
        Some(if number.0 / WAYS == place.home { Reach::InHome } else { Reach::InPartner })
    }

    /// The slot of this number, if it bears the place's name.
    #[inline(always)]
    pub(crate) fn glance_at(&self, number: SlotNumber, place: Place) -> Option<SlotRef<'_>> {
        let slot = self.buckets.get(number.0 / WAYS)?.slot(number.0 % WAYS);
        slot.owner().is(place.name).then_some(slot)
    }

    /// The slot that bears the name and is live. It may turn out stale all the same.
    pub(crate) fn find(&self, place: Place) -> Option<SlotRef<'_>> {
        let home = &self.buckets[place.home];
        let partner = self.partner_of(place);
        let line = place.name.preferred_way() / LINE_WAYS;
        // Nearly always on the line of the preferred way, in the one bucket or the other.
        let found =
            (0..WAYS / LINE_WAYS).find_map(|other| find_on(line ^ other, home, partner, place.name))?;
        match found.state().is_live_under(found.owner()) {
            true => Some(found),
            false if is_broken(Fault::FirstNameOnly) => None,
            false => self.find_behind(place),
        }
    }

    /// The live slot of a key that has left its name on another one too: a claim given up halfway, or an
    /// entry that was sealed and that nobody has claimed since.
    #[cold]
    fn find_behind(&self, place: Place) -> Option<SlotRef<'_>> {
        match self.mine(place) {
            Some(Mine::Live(slot)) => Some(slot),
            _ => None,
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

    fn counters(&self, place: Place) -> &Counters {
        &self.shards[place.home / self.buckets.len().div_ceil(self.shards.len())]
    }

    /// Counts a newcomer who was refused because it would have found no room.
    pub(crate) fn count_denied_for_room(&self, place: Place) {
        // Relaxed: counters are read for their values alone.
        self.counters(place).denied_for_room.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a shadow rule's refusal.
    pub(crate) fn count_shadow(&self, place: Place) {
        // Relaxed: counters are read for their values alone.
        self.counters(place).shadow_denied.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a refusal that could not be counted against its key.
    pub(crate) fn count_lost_strike(&self, place: Place) {
        // Relaxed: counters are read for their values alone.
        self.counters(place).lost_strikes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn slots(&self) -> usize {
        self.buckets.len() * WAYS
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets) + size_of_val(&*self.shards)
    }

    /// How many keys have at least one live entry. Walks the whole table.
    pub(crate) fn live_keys(&self, worth: &impl Worth) -> usize {
        let now_ns = worth.now_ns();
        let is_live = |slot: SlotRef<'_>, state: State| {
            state.is_live_under(slot.owner())
                && worth.reset_ns(slot.owner().cell(), state.payload(), now_ns) > 0
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

    /// Changes the word of every live entry for which `change` has another.
    pub(crate) fn amend(&self, change: impl Fn(usize, u64) -> Option<u64>) {
        for bucket in self.buckets.iter() {
            for slot in (0..WAYS).map(|way| bucket.slot(way)) {
                while let Ok((stored, word)) = slot.load(|| 0) {
                    match change(slot.owner().cell(), word) {
                        Some(next) if !slot.replace(stored, next) => {}
                        _ => break,
                    }
                }
            }
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        // Relaxed: counters are read for their values alone.
        let total = |counter: fn(&Counters) -> &AtomicU64| {
            self.shards.iter().map(|shard| counter(shard).load(Ordering::Relaxed)).sum()
        };
        // Relaxed: as above.
        let plain = |counter: fn(&Counters) -> &PlainU64| {
            self.shards.iter().map(|shard| counter(shard).load(Ordering::Relaxed)).sum()
        };
        Totals {
            evicted: total(|counters| &counters.evicted),
            lost_in_restore: plain(|counters| &counters.lost_in_restore),
            lost_strikes: plain(|counters| &counters.lost_strikes),
            expired: plain(|counters| &counters.expired),
            forgiven_cost: total(|counters| &counters.forgiven_cost),
            denied_for_room: total(|counters| &counters.denied_for_room),
            allowed_for_room: total(|counters| &counters.allowed_for_room),
            shadow_denied: total(|counters| &counters.shadow_denied),
        }
    }
}
