//! The keyed table: a fixed number of slots, found by hash, taken over in place once they are worth nothing.
//!
//! The table stores words under names and knows nothing of algorithms but one thing, which its user tells
//! it ([`Worth`]): how long until a word is worth a fresh one. Hazards H1 to H6 and the protocol that
//! answers them are told in `docs/architecture.md`; the states of a slot stand on [`Line`](slot::Line).

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
pub(crate) use slot::{Line, SlotRef};
pub(crate) use walk::Entry;

use crate::charge::{Cell, Reach};
use crate::compile::CELLS_MAX;
use crate::error::Error;
use crate::sync::unmodelled::AtomicU64 as PlainU64;
use crate::sync::{AtomicU64, Fault, Ordering, is_broken};
use crossbeam_utils::CachePadded;
use memory::Lines;
use slot::{LINE_BYTES, LINE_WAYS, LINES};
use word::{Beyond, Name, Owner, State};

/// How full a table is when it holds all that it was made for, in percent, for keys of one cell, two, three and
/// more. At 67, no key of 30 million that filled tables of a million each was without room (`tests/room.rs` counts).
/// Several cells of a key want room on the same lines.
const LOAD_PERCENT: [usize; 4] = [67, 45, 27, 16];
/// The same for small tables, in which luck weighs more, and of which the memory does not.
const LOAD_PERCENT_SMALL: [usize; 4] = [20, 18, 14, 10];
/// Up to where a table is a small one: 1 MiB. Models have no time for empty lines.
const SMALL_LINES: usize = if cfg!(tollgate_loom) { 0 } else { (1 << 20) / LINE_BYTES };
/// The smallest table is less than a bucket.
const SMALLEST_LINES: usize = if LINES < 2 { LINES } else { 2 };
/// The most lines: positions are 32 bits of hash.
const LINES_MAX: u64 = 1 << 32;
/// As much of a table as is soon found in some cache or other: 2 MiB.
const CACHED_LINES: usize = (2 << 20) / LINE_BYTES;
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

/// Where a cell lives: its name, and the line where it is looked for first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    name: Name,
    line: usize,
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
    lines: Lines,
    shards: Box<[CachePadded<Counters>]>,
    when_full: WhenFull,
    /// 1 once nobody may charge any more.
    closed: AtomicU64,
}

/// Which slot of a table, and the name that a key bears there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    slot: usize,
    name: Name,
}

/// The first of some slots that is live.
fn live<'a>(mut slots: impl Iterator<Item = SlotRef<'a>>) -> Option<SlotRef<'a>> {
    slots.find(|slot| slot.state().is_live_under(slot.owner()))
}

impl Table {
    /// A table with room for `keys` live keys of so many cells each.
    pub(crate) fn new(
        keys: usize,
        cells: usize,
        when_full: WhenFull,
        prefault: Option<bool>,
    ) -> Result<Self, Error> {
        Self::lines_for(keys, cells).and_then(|count| Self::of_lines(count, when_full, prefault)).ok_or_else(
            || {
                Error::new(format!(
                    "there is no memory for a table of {keys} keys: ask for a smaller max_keys"
                ))
            },
        )
    }

    /// How many lines such a table has; `None` if that is more than there are numbers.
    pub(crate) fn lines_for(keys: usize, cells: usize) -> Option<usize> {
        let entries = keys.checked_mul(cells)?;
        if entries <= SMALLEST_LINES * LINE_WAYS {
            return Some(SMALLEST_LINES);
        }
        let lines_at = |load_percent: [usize; 4]| {
            let load_percent = load_percent[cells.clamp(1, load_percent.len()) - 1];
            Some(entries.checked_mul(100)?.div_ceil(load_percent * LINE_WAYS))
        };
        let lines = lines_at(LOAD_PERCENT)?.max(lines_at(LOAD_PERCENT_SMALL)?.min(SMALL_LINES));
        // An even number of buckets, so that no key has the same one twice.
        Some(lines.next_multiple_of(2 * LINES))
    }

    /// A table of so many lines: as many as the smallest has, or an even number of buckets. `None` if there is no
    /// memory for it.
    pub(crate) fn of_lines(count: usize, when_full: WhenFull, prefault: Option<bool>) -> Option<Self> {
        if count as u64 > LINES_MAX {
            return None;
        }
        let lines = Lines::new(count)?;
        if prefault.unwrap_or(size_of_val(&*lines) <= PREFAULT_BYTES) {
            lines.bring_in();
        } else {
            lines.leave_out();
        }
        let zero = || AtomicU64::new(0);
        let shards = (0..count.div_ceil(LINES).next_power_of_two().min(SHARDS_MAX))
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
        Some(Self { lines, shards, when_full, closed: zero() })
    }

    /// Where a cell of the key with this hash lives. The high bits choose the line and the low bits are the tag.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "below the number of lines")]
    pub(crate) fn place(&self, hash: u64, cell: usize) -> Place {
        let line = ((hash >> 32) * self.lines.len() as u64) >> 32;
        Place { name: Name::new(hash, cell), line: line as usize }
    }

    /// The line where a key is looked for first, and nearly always found.
    #[inline(always)]
    pub(crate) fn first_line(&self, place: Place) -> &Line {
        &self.lines[place.line]
    }

    /// The lines where a key is that found no room on its first: the one beside it, and the same two of its second
    /// bucket. Each with the name that the key bears there.
    fn near_lines(&self, place: Place) -> impl Iterator<Item = (&Line, Name)> {
        self.lines_at(place, [(false, 1), (true, 0), (true, 1)])
    }

    /// All other lines of its two buckets, where hardly anybody ever is.
    fn far_lines(&self, place: Place) -> impl Iterator<Item = (&Line, Name)> {
        (2..LINES).flat_map(move |step| self.lines_at(place, [(false, step), (true, step)]))
    }

    /// The lines beyond a key's first where anybody is, who is counted on the slot of its choice.
    fn counted_lines(&self, place: Place, counted: Owner) -> impl Iterator<Item = (&Line, Name)> {
        let near = counted.has(Beyond::Near).then(|| self.near_lines(place));
        let far = counted.has(Beyond::Far).then(|| self.far_lines(place));
        near.into_iter().flatten().chain(far.into_iter().flatten())
    }

    /// Of the lines that are so many steps away from where either bucket is looked at first, those that there are.
    fn lines_at<const N: usize>(
        &self,
        place: Place,
        steps: [(bool, usize); N],
    ) -> impl Iterator<Item = (&Line, Name)> {
        let away = self.partner(place.name, place.line);
        let is_there = |&(is_away, step): &(bool, usize)| {
            if self.is_smallest() { !is_away && step < self.lines.len() } else { step < LINES }
        };
        steps.into_iter().filter(is_there).map(move |(is_away, step)| {
            let first = if is_away { away } else { place.line };
            (&self.lines[first ^ step], place.name.elsewhere(is_away, step))
        })
    }

    /// Whether there is less than a bucket.
    fn is_smallest(&self) -> bool {
        self.lines.len() < 2 * LINES
    }

    /// All lines where a key may be, in the order in which it is looked for.
    fn lines(&self, place: Place) -> impl Iterator<Item = (&Line, Name)> {
        let first = (self.first_line(place), place.name);
        std::iter::once(first).chain(self.near_lines(place)).chain(self.far_lines(place))
    }

    /// Where a key's other bucket is looked at first: at the same line of it. The two are each other's, so that either
    /// can be found from an entry.
    #[allow(clippy::cast_possible_truncation, reason = "below the number of buckets")]
    fn partner(&self, name: Name, line: usize) -> usize {
        if self.is_smallest() {
            return line;
        }
        let (bucket, count) = (line / LINES, self.lines.len() / LINES);
        // The two add up to an odd number, modulo an even count: never the same bucket twice.
        let spread = name.tag().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let sum = ((spread * (count as u64 / 2)) >> 32) as usize * 2 + 1;
        let partner = if sum >= bucket { sum - bucket } else { sum + count - bucket };
        partner * LINES + line % LINES
    }

    /// The place of the key whose name stands on this line.
    fn place_of(&self, name: Name, line: usize) -> Place {
        let first = line ^ name.step();
        let first = if name.is_away() { self.partner(name, first) } else { first };
        Place { name: name.at_first(), line: first }
    }

    /// The same by the slot that it stands in.
    fn place_in(&self, slot: SlotRef<'_>, name: Name) -> Place {
        self.place_of(name, slot.number_in(&self.lines) / LINE_WAYS)
    }

    /// Brings the line where a key is looked for first towards the core, in a table that no cache holds. In a smaller
    /// one it is near enough; and a line that other cores write would only be taken from them twice.
    #[inline(always)]
    pub(crate) fn prefetch(&self, line: &Line) {
        if self.is_large() {
            line.prefetch();
        }
    }

    /// The same for the lines where it is looked for next: all at once, so that one does not wait for the other.
    fn prefetch_near(&self, place: Place) {
        if self.is_large() {
            self.near_lines(place).for_each(|(line, _)| line.prefetch());
        }
    }

    /// Whether it is more than a cache is sure to hold.
    #[inline(always)]
    pub(crate) fn is_large(&self) -> bool {
        self.lines.len() > CACHED_LINES
    }

    /// Where a key would rather be than anywhere else.
    pub(crate) fn preferred(&self, place: Place) -> Spot {
        Spot { slot: place.line * LINE_WAYS + place.name.way(), name: place.name }
    }

    /// Where a key was found.
    pub(crate) fn spot(&self, found: SlotRef<'_>) -> Spot {
        Spot { slot: found.number_in(&self.lines), name: found.owner().name() }
    }

    /// How far one has to look for a place's name, if it is there.
    pub(crate) fn reach(&self, place: Place) -> Option<Reach> {
        let found = self.find(place)?.owner().name();
        Some(match (found.beyond(), found.is_away()) {
            (None, _) => Reach::AtOnce,
            (Some(_), false) => Reach::InHome,
            (Some(_), true) => Reach::InPartner,
        })
    }

    /// The slot in a spot, if it bears the name that it did.
    #[inline(always)]
    pub(crate) fn glance_at(&self, spot: Spot) -> Option<SlotRef<'_>> {
        let slot = self.lines.get(spot.slot / LINE_WAYS)?.slot(spot.slot % LINE_WAYS);
        (slot.owner().is(spot.name) || is_broken(Fault::TrustsSpot)).then_some(slot)
    }

    /// The slot that bears the name and is live. It may turn out stale all the same.
    pub(crate) fn find(&self, place: Place) -> Option<SlotRef<'_>> {
        let line = self.first_line(place);
        if let Some(found) = line.find(place.name) {
            if found.state().is_live_under(found.owner()) {
                return Some(found);
            }
            if is_broken(Fault::FirstNameOnly) {
                return None;
            }
        }
        // A key may have left its name on another slot too: a claim given up halfway, or an entry that was sealed and
        // that nobody has claimed since.
        if let Some(found) = live(line.named(place.name)) {
            return Some(found);
        }
        // A key that is on another line has been counted before, as far as anybody knows who knows that it is there.
        let counted = self.first_choice(place).owner();
        if counted.has_beyond() { self.find_beyond(place, counted) } else { None }
    }

    /// The same on the lines where it is counted.
    #[inline(never)]
    fn find_beyond(&self, place: Place, counted: Owner) -> Option<SlotRef<'_>> {
        self.prefetch_near(place);
        self.counted_lines(place, counted).find_map(|(line, name)| live(line.named(name)))
    }

    /// The numbers of a place's first line, the one where its other bucket is looked at first, and its preferred way,
    /// for models that fill them.
    #[cfg(tollgate_loom)]
    pub(crate) fn placement(&self, place: Place) -> (usize, usize, usize) {
        (place.line, self.partner(place.name, place.line), place.name.way())
    }

    /// The slot that a key would rather have than any other, where it is counted while it has none on that line.
    fn first_choice(&self, place: Place) -> SlotRef<'_> {
        self.first_line(place).slot_in_order(place.name.way())
    }

    fn counters(&self, place: Place) -> &Counters {
        &self.shards[place.line / self.lines.len().div_ceil(self.shards.len())]
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
        self.lines.len() * LINE_WAYS
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.lines) + size_of_val(&*self.shards)
    }

    /// How many keys have at least one live entry. Walks the whole table.
    pub(crate) fn live_keys(&self, worth: &impl Worth) -> usize {
        let now_ns = worth.now_ns();
        let is_live = |slot: SlotRef<'_>, state: State| {
            state.is_live_under(slot.owner())
                && worth.reset_ns(slot.owner().cell(), state.payload(), now_ns) > 0
        };
        let mut keys = 0;
        for (number, line) in self.lines.iter().enumerate() {
            for slot in line.slots().filter(|&slot| is_live(slot, slot.state())) {
                // A key with several entries counts at the one with the lowest cell.
                let (name, cell) = (slot.owner().name(), slot.owner().cell());
                let counted_elsewhere = cell > 0
                    && self.lines(self.place_of(name, number)).any(|(line, there)| {
                        line.slots().any(|other| {
                            other.owner().name().is_of_key_of(there)
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
        for line in self.lines.iter() {
            for slot in line.slots() {
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
