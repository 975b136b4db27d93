//! What one would write oneself: a map from keys to the time when the bucket is full again, and a few lines.

use super::{Contender, Key, Peer, Setup, Traffic, contender};
use dashmap::DashMap;
use moka::sync::Cache;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tollgate::Clock;

/// The same rule for all three, and the same clock.
struct Bucket {
    interval_ns: u64,
    burst_ns: u64,
    clock: Clock,
}

impl Bucket {
    fn new(traffic: Traffic) -> Self {
        let (interval_ns, burst) = match traffic {
            Traffic::Admit => (1, 1_000_000_000),
            Traffic::Refuse => (3_600_000_000_000, 1),
        };
        Self { interval_ns, burst_ns: interval_ns * burst, clock: Clock::precise() }
    }

    /// When the bucket is full again after one more request, unless that has to be refused.
    fn step(&self, full_ns: u64, now_ns: u64) -> Option<u64> {
        let full_ns = full_ns.max(now_ns) + self.interval_ns;
        (full_ns <= now_ns + self.burst_ns).then_some(full_ns)
    }

    fn admits(&self, full_ns: &AtomicU64) -> bool {
        let now_ns = self.clock.now_ns();
        // Relaxed: the word is all there is.
        full_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_ns| self.step(full_ns, now_ns))
            .is_ok()
    }
}

fn dash_map<K: Key>(setup: Setup) -> Box<dyn Contender<K>> {
    type Limiter<K> = (DashMap<K, AtomicU64, ahash::RandomState>, Bucket);
    let limiter: Limiter<K> = (DashMap::default(), Bucket::new(setup.traffic));
    let admits = |(map, bucket): &Limiter<K>, key: &K| match map.get(key) {
        Some(full_ns) => bucket.admits(&full_ns),
        None => bucket.admits(&map.entry(key.clone()).or_default()),
    };
    let clean = |(map, bucket): &Limiter<K>| {
        let now_ns = bucket.clock.now_ns();
        map.retain(|_, full_ns| *full_ns.get_mut() > now_ns);
    };
    contender(limiter, admits, Some(clean))
}

fn mutex<K: Key>(setup: Setup) -> Box<dyn Contender<K>> {
    type Limiter<K> = (Mutex<HashMap<K, u64>>, Bucket);
    let limiter: Limiter<K> = (Mutex::default(), Bucket::new(setup.traffic));
    let admits = |(map, bucket): &Limiter<K>, key: &K| {
        let now_ns = bucket.clock.now_ns();
        let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
        match map.get_mut(key) {
            Some(full_ns) => bucket.step(*full_ns, now_ns).map(|next_ns| *full_ns = next_ns).is_some(),
            None => bucket.step(0, now_ns).map(|next_ns| map.insert(key.clone(), next_ns)).is_some(),
        }
    };
    let clean = |(map, bucket): &Limiter<K>| {
        let now_ns = bucket.clock.now_ns();
        map.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, full_ns| *full_ns > now_ns);
    };
    contender(limiter, admits, Some(clean))
}

fn moka<K: Key>(setup: Setup) -> Box<dyn Contender<K>> {
    type Limiter<K> = (Cache<K, Arc<AtomicU64>, ahash::RandomState>, Bucket);
    let bucket = Bucket::new(setup.traffic);
    let cache = Cache::builder()
        // Near its capacity it would turn newcomers away.
        .max_capacity(setup.keys.max(1024) as u64 * 5 / 4)
        .time_to_idle(setup.idle)
        .build_with_hasher(ahash::RandomState::new());
    let admits = |(cache, bucket): &Limiter<K>, key: &K| match cache.get(key) {
        Some(full_ns) => bucket.admits(&full_ns),
        None => bucket.admits(&cache.get_with(key.clone(), Arc::default)),
    };
    let clean = |(cache, _): &Limiter<K>| loop {
        // It does so much at a time.
        let before = cache.entry_count();
        cache.run_pending_tasks();
        if cache.entry_count() >= before {
            break;
        }
    };
    contender((cache, bucket), admits, Some(clean))
}

pub(super) fn keyed<K: Key>() -> Vec<Peer<K>> {
    vec![
        Peer::new("DashMap by hand", "dashmap", dash_map).note("with ahash and tollgate's precise clock"),
        Peer::new("moka by hand", "moka", moka)
            .note("with ahash and tollgate's precise clock; bounded, and forgets what was idle")
            .by_idle_time(),
        Peer::new("Mutex<HashMap>", "", mutex).note("with tollgate's precise clock"),
    ]
}
