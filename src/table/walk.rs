//! Going through a whole table: to write down what is in it, to close it, and to put back what was written.

use super::claim::{next_way, withdraw};
use super::slot::{SlotRef, WAYS};
use super::word::{Name, Owner, State, TAG_BITS};
use super::{Place, Table, Worth};
use crate::charge::Cell;
use crate::sync::{CLAIM, Fault, Ordering, SEARCH, in_total_order, is_broken};

/// A live slot, written down: everything but the generation, which is the slot's own affair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// One of the name's two buckets.
    pub(crate) bucket: usize,
    /// The bits of the hash that are in the name.
    pub(crate) tag: u64,
    pub(crate) cell: usize,
    pub(crate) payload: u64,
}

impl Entry {
    /// The bits that a tag may have.
    pub(crate) const TAG_MASK: u64 = (1 << TAG_BITS) - 1;

    fn place(self) -> Place {
        Place { name: Name::new(self.tag, self.cell), home: self.bucket }
    }
}

impl Table {
    pub(crate) fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    /// Whether the table is closed, or about to be.
    pub(crate) fn is_closed(&self) -> bool {
        // SEARCH: one order with the closing itself. Whoever has come upon a slot that was sealed by it sees
        // it.
        self.closed.load(SEARCH) != 0
    }

    /// Every live entry, each as it was at some moment of the walk. Changes nothing.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.walk(|bucket, way| {
            loop {
                let slot = self.buckets[bucket].slot(way);
                let (owner, state) = (slot.owner(), slot.state());
                // Owner, state, owner again (H5).
                if slot.is_still_owned() {
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
        Some(self.walk(|bucket, way| {
            loop {
                let slot = self.buckets[bucket].slot_in_order(way);
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
                } else if state.is_sealed_under(owner) && (unsealed || withdraw(slot, state, worth)) {
                    return None;
                }
            }
        }))
    }

    fn walk(&self, visit: impl Fn(usize, usize) -> Option<(Owner, State)>) -> Vec<Entry> {
        let mut entries = Vec::new();
        for bucket in 0..self.buckets.len() {
            entries.extend((0..WAYS).filter_map(|way| visit(bucket, way)).map(|(owner, state)| Entry {
                bucket,
                tag: owner.name().tag() & Entry::TAG_MASK,
                cell: owner.cell(),
                payload: state.payload(),
            }));
        }
        entries
    }

    /// Puts an entry into a table that nobody else has yet: into its own bucket, or the other. Where the name
    /// is there already, `merge` makes one of the two payloads. False if there is no room.
    pub(crate) fn put(&self, entry: Entry, merge: impl FnOnce(u64, u64) -> u64) -> bool {
        let place = entry.place();
        if let Some(slot) = self.find(place) {
            return match slot.load(|| 0) {
                Ok((stored, payload)) => slot.replace(stored, merge(payload, entry.payload)),
                Err(_) => false,
            };
        }
        for bucket in self.candidates(place) {
            let is_vacant = |&way: &usize| bucket.slot(way).owner().is_nobody();
            let vacant = (0..WAYS).filter(is_vacant).fold(0, |ways, way| ways | 1 << way);
            if vacant != 0 {
                let slot = bucket.slot(next_way(vacant, place.name.preferred_way()));
                // There is nobody to be a twin of.
                let moved_in = slot.move_in(place.name).map(SlotRef::committing);
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

    /// The places that an entry may have for a home once `offset` is added to the hash it was named by, as
    /// the entries that would be there.
    ///
    /// An entry knows its tag, and one of its two buckets: so its hash is known but for some bits in the
    /// middle, and whether the bucket is the first or the second. One of the places is the right one, and
    /// nobody looks into the others.
    pub(crate) fn elsewhere(&self, entry: Entry, cell: usize, offset: u64) -> Vec<Entry> {
        let count = self.buckets.len() as u64;
        let low = u64::from(u32::MAX);
        // What is added to the high half of the hash.
        let shift = (offset >> 32) + (((entry.tag & low) + (offset & low)) >> 32);
        let tag = entry.tag.wrapping_add(offset) & Entry::TAG_MASK;
        let mut places = Vec::with_capacity(4);
        for home in [entry.bucket, self.partner(entry.place().name, entry.bucket)] {
            // The first and the last half of a hash that has this home.
            let first = ((home as u64) << 32).div_ceil(count);
            let last = ((home as u64 + 1) << 32).div_ceil(count) - 1;
            let bucket_of = |half: u64| ((half & low) * count) >> 32;
            let (mut bucket, end) = (bucket_of(first + shift), bucket_of(last + shift));
            loop {
                #[allow(clippy::cast_possible_truncation, reason = "below the number of buckets")]
                let moved = Entry { bucket: bucket as usize, tag, cell, ..entry };
                let partner = self.partner(moved.place().name, moved.bucket);
                let is_known = |known: &Entry| known.bucket == moved.bucket || known.bucket == partner;
                if !places.iter().any(is_known) {
                    places.push(moved);
                }
                if bucket == end {
                    break;
                }
                bucket = (bucket + 1) % count;
            }
        }
        places
    }
}
