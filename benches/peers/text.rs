//! Limiters that take texts as keys: throttlecrab and trypema.

use super::{Contender, Key, Peer, Setup, Traffic, contender};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use throttlecrab::{PeriodicStore, RateLimiter};
use trypema::local::LocalRateLimiterProvider;
use trypema::{RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

const DAY: Duration = Duration::from_secs(86_400);

/// Of its stores the one that cleans up least often, with room for all keys.
struct Crab {
    limiter: Mutex<RateLimiter<PeriodicStore>>,
    /// Burst, count, seconds.
    quota: (i64, i64, i64),
}

impl Crab {
    fn admits(&self, key: &str, now: SystemTime) -> bool {
        let (burst, count, seconds) = self.quota;
        let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        limiter.rate_limit(key, burst, count, seconds, 1, now).expect("a valid rate").0
    }
}

fn throttlecrab<K: Key>(setup: Setup) -> Box<dyn Contender<K>> {
    let store =
        PeriodicStore::builder().capacity(setup.keys).cleanup_interval(Duration::from_secs(60)).build();
    let quota = match setup.traffic {
        Traffic::Admit => (1_000_000_000, 1_000_000_000, 1),
        // A burst of one is forgotten at once, and never refuses.
        Traffic::Refuse => (2, 1, 3600),
    };
    let limiter = Crab { limiter: Mutex::new(RateLimiter::new(store)), quota };
    // Cleaning is part of a call that comes late enough.
    let clean = |limiter: &Crab| {
        let _late = limiter.admits("late", SystemTime::now() + DAY);
    };
    contender(
        limiter,
        |limiter, key: &K| key.with_text(|key| limiter.admits(key, SystemTime::now())),
        Some(clean),
    )
}

fn trypema<K: Key>(setup: Setup) -> Box<dyn Contender<K>> {
    let (window, limit) = match setup.traffic {
        Traffic::Admit => (WindowSize::seconds_or_panic(1), RateLimit::per_second_or_panic(1e9)),
        Traffic::Refuse => (WindowSize::hours_or_panic(1), RateLimit::per_hour_or_panic(1.0)),
    };
    let limiter =
        LocalRateLimiterProvider::builder().window_size(window).disable_cleanup().build().expect("a limiter");
    let admits = move |limiter: &std::sync::Arc<LocalRateLimiterProvider>, key: &K| {
        key.with_text(|key| matches!(limiter.absolute().inc(key, &limit, 1), RateLimitDecision::Allowed))
    };
    contender(limiter, admits, None)
}

pub(super) fn keyed<K: Key>() -> Vec<Peer<K>> {
    vec![
        Peer::new("throttlecrab", "throttlecrab", throttlecrab).note(
            "takes texts (a number is written out first) and `&mut self` (so a mutex); `PeriodicStore` with room for \
             all keys; admits two before it refuses, for a burst of one it never refuses; reads the system's time",
        ),
        Peer::new("trypema", "trypema", trypema).note(
            "takes texts (a number is written out first); a sliding window in steps, not exact under contention; \
             cleans up in a thread of its own, switched off here",
        ),
    ]
}
