//! Which entry belongs to a subject, in bounded memory.
//!
//! A subject is known here by 64 bits of its hash, as everywhere in this crate. Lookups take no lock.

use super::entry::Entry;
use crate::sync::unmodelled::{AtomicU64, Ordering};
use ahash::RandomState;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// How long after a search for room the next one is due.
const SEARCH_AGAIN_NS: u64 = 100_000_000;

pub(super) struct Table {
    entries: papaya::HashMap<u64, Arc<Entry>, BuildHasherDefault<AsItIs>>,
    hasher: RandomState,
    max_keys: usize,
    search_from_ns: AtomicU64,
}

/// A hash that is used as it is.
#[derive(Clone, Copy, Default)]
pub(super) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0 << 8 | u64::from(byte);
        }
    }
}

impl Table {
    pub(super) fn new(max_keys: usize) -> Self {
        Self {
            entries: papaya::HashMap::with_hasher(BuildHasherDefault::default()),
            hasher: RandomState::new(),
            max_keys,
            search_from_ns: AtomicU64::new(0),
        }
    }

    /// Does something with the entry of a subject, if there is one.
    #[inline]
    pub(super) fn with<T>(&self, subject: &str, look: impl FnOnce(&Arc<Entry>) -> T) -> Option<T> {
        self.entries.pin().get(&self.hasher.hash_one(subject)).map(look)
    }

    /// The entry of a subject, made if there is room.
    #[cold]
    pub(super) fn insert(&self, subject: &str, now_ns: u64) -> Option<Arc<Entry>> {
        let entries = self.entries.pin();
        if entries.len() >= self.max_keys {
            // Relaxed: at worst two search.
            if now_ns < self.search_from_ns.load(Ordering::Relaxed) {
                return None;
            }
            self.search_from_ns.store(now_ns.saturating_add(SEARCH_AGAIN_NS), Ordering::Relaxed);
            entries.retain(|_, entry| !entry.is_idle(now_ns));
            if entries.len() >= self.max_keys {
                return None;
            }
        }
        let hash = self.hasher.hash_one(subject);
        Some(Arc::clone(entries.get_or_insert_with(hash, || Arc::new(Entry::new(subject)))))
    }

    pub(super) fn entries(&self) -> Vec<Arc<Entry>> {
        self.entries.pin().values().map(Arc::clone).collect()
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("max_keys", &self.max_keys).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded_and_what_is_idle_makes_room() {
        let table = Table::new(2);
        for subject in ["a", "b"] {
            let entry = table.insert(subject, 0).expect("room");
            entry.fill(0, 1, 1 << 30);
        }
        assert!(table.insert("c", 0).is_none());
        assert_eq!(table.with("a", |entry| entry.in_hand()), Some(1));
        assert!(table.insert("c", 1 << 30).is_none(), "both have run out, and are still to be given back");
        assert_eq!(table.with("a", |entry| entry.empty(0)), Some(1));
        assert!(table.insert("c", 1 << 40).is_some());
        assert!(table.with("a", |_| ()).is_none());
        assert_eq!(table.with("b", |entry| entry.in_hand()), Some(1));
    }
}
