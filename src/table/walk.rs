//! Going through a whole table: to write down what is in it, to close it, and to put back what was written.

use super::claim::next_way;
use super::slot::{LINE_WAYS, LINES, SlotRef};
use super::word::{Name, Owner, State, TAG_BITS};
use super::{Place, Table, Worth};
use crate::charge::Cell;
use crate::sync::{CLAIM, Fault, Ordering, SEARCH, in_total_order, is_broken};

/// A live slot, written down: everything but the generation, which is the slot's own affair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The line where the key is looked for first.
    pub(crate) line: usize,
    /// The bits of the hash that are in the name.
    pub(crate) tag: u64,
    pub(crate) cell: usize,
    /// On which of its lines it stood, in the order in which they are looked at.
    pub(crate) stood: usize,
    pub(crate) payload: u64,
}

impl Entry {
    /// The bits that a tag may have.
    pub(crate) const TAG_MASK: u64 = (1 << TAG_BITS) - 1;

    fn place(self) -> Place {
        Place { name: Name::new(self.tag, self.cell), line: self.line }
    }
}

impl Table {
    /// How many lines a key may be on.
    pub(crate) const LINES_A_KEY: usize = 2 * LINES;

    pub(crate) fn line_count(&self) -> usize {
        self.lines.len()
    }

    /// Whether the table is closed, or about to be.
    pub(crate) fn is_closed(&self) -> bool {
        // SEARCH: one order with the closing itself. Whoever has come upon a slot that was sealed by it sees
        // it.
        self.closed.load(SEARCH) != 0
    }

    /// Every live entry, each as it was at some moment of the walk. Changes nothing.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.walk(|line, way| {
            loop {
                let slot = self.lines[line].slot(way);
                let (owner, state) = (slot.owner(), slot.state());
                if is_broken(Fault::LeavesOut) && slot.state() != state {
                    return None;
                }
                // Owner, state, owner again (H5).
                if slot.is_still_owned() || is_broken(Fault::NoOwnerCheck) {
                    return state.is_live_under(owner).then_some((owner, state));
                }
            }
        })
    }

    /// Shuts out everybody who would charge, and gives what they have charged until then. `None` if somebody
    /// else has closed the table.
    ///
    /// That it is closed is said first. From then on nobody commits to a claim that was made after the slot
    /// was come upon here (see `unless_closed`); so a slot that was sealed, or was nobody's, stays so.
    pub(crate) fn close(&self, worth: &impl Worth) -> Option<Vec<Entry>> {
        // CLAIM: one order with all claims, and with the question whether it is too late for them.
        if self.closed.fetch_or(1, CLAIM) != 0 {
            return None;
        }
        in_total_order();
        Some(self.walk(|line, way| {
            loop {
                let slot = self.lines[line].slot_in_order(way);
                let (owner, state) = (slot.owner(), slot.state());
                let unsealed = is_broken(Fault::ClosesUnsealed);
                if slot.is_free(state) {
                    return None;
                }
                // Each of these fails if somebody was quicker; then what there is now is looked at.
                if state.is_live_under(owner) && slot.is_still_owned() {
                    if unsealed || slot.seal(state, worth.now_ns()).is_some() {
                        return Some((owner, state));
                    }
                } else if state.is_sealed_under(owner) && (unsealed || self.withdraw(slot, state, worth)) {
                    return None;
                } else if slot.is_amiss(state) && slot.is_still_owned() {
                    // A free slot from then on, if that comes about.
                    let _anybodys = slot.seal(state, worth.now_ns());
                }
            }
        }))
    }

    fn walk(&self, visit: impl Fn(usize, usize) -> Option<(Owner, State)>) -> Vec<Entry> {
        let mut entries = Vec::new();
        for line in 0..self.lines.len() {
            entries.extend((0..LINE_WAYS).filter_map(|way| visit(line, way)).map(|(owner, state)| {
                let place = self.place_of(owner.name(), line);
                Entry {
                    line: place.line,
                    tag: owner.name().tag(),
                    cell: owner.cell(),
                    stood: self.lines(place).position(|(_, name)| owner.is(name)).unwrap_or(0),
                    payload: state.payload(),
                }
            }));
        }
        entries
    }

    /// Puts an entry into a table that nobody else has yet: on the line where it stood, so that a full table is full in
    /// the same way, or else as near to its first line as there is room. Where the name is there already, `merge`
    /// makes one of the two payloads. False if there is no room.
    pub(crate) fn put(&self, entry: Entry, merge: impl FnOnce(u64, u64) -> u64) -> bool {
        let place = entry.place();
        if let Some(slot) = self.find(place) {
            return match slot.load(|| 0) {
                Ok((stored, payload)) => slot.replace(stored, merge(payload, entry.payload)),
                Err(_) => false,
            };
        }
        for (line, name) in self.lines(place).nth(entry.stood).into_iter().chain(self.lines(place)) {
            let is_vacant = |&way: &usize| line.slot(way).owner().is_nobody();
            let vacant = (0..LINE_WAYS).filter(is_vacant).fold(0, |ways, way| ways | 1 << way);
            if vacant != 0 {
                let slot = line.slot(next_way(vacant, name.way()));
                self.count_in(place, name);
                // There is nobody to be a twin of.
                let moved_in = slot.move_in(name).map(SlotRef::committing);
                return moved_in.is_some_and(|slot| slot.replace(slot.state().0, entry.payload));
            }
        }
        false
    }

    /// Notes that an entry which was to be put back found no room.
    pub(crate) fn count_forgotten(&self, entry: Entry, spent: u64) {
        let counters = self.counters(entry.place());
        // Relaxed: counters are read for their values alone.
        counters.evicted.fetch_add(1, Ordering::Relaxed);
        counters.lost_in_restore.fetch_add(1, Ordering::Relaxed);
        counters.forgiven_cost.fetch_add(spent, Ordering::Relaxed);
    }

    /// The lines that an entry may have for its first once `offset` is added to the hash it was named by, as the entries
    /// that would be there. An offset is a multiple of 2^32, and leaves the tag as it is.
    ///
    /// An entry knows its first line: so the high half of its hash is known but for its last bits. One of the places is
    /// the right one, and nobody looks into the others.
    pub(crate) fn elsewhere(&self, entry: Entry, cell: usize, offset: u64) -> Vec<Entry> {
        let count = self.lines.len() as u64;
        let low = u64::from(u32::MAX);
        // The first and the last half of a hash that has this line.
        let first = ((entry.line as u64) << 32).div_ceil(count);
        let last = ((entry.line as u64 + 1) << 32).div_ceil(count) - 1;
        let line_of = |half: u64| (((half + (offset >> 32)) & low) * count) >> 32;
        let (mut line, end) = (line_of(first), line_of(last));
        let mut places = Vec::with_capacity(2);
        loop {
            #[allow(clippy::cast_possible_truncation, reason = "below the number of lines")]
            places.push(Entry { line: line as usize, cell, stood: 0, ..entry });
            if line == end {
                return places;
            }
            line = (line + 1) % count;
        }
    }
}
