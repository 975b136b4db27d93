//! pingora-limits: counters shared by all keys.

use super::{Contender, Key, Peer, Setup, Traffic, contender};
use pingora_limits::rate::Rate;
use std::time::Duration;

fn rate<K: Key>(setup: Setup) -> Box<dyn Contender<K>> {
    let (limit, seconds) = match setup.traffic {
        Traffic::Admit => (1_000_000_000, 1),
        Traffic::Refuse => (1, 3600),
    };
    let limiter = Rate::new(Duration::from_secs(seconds));
    contender(limiter, move |limiter, key: &K| limiter.observe(key, 1) <= limit, None)
}

pub(super) fn keyed<K: Key>() -> Vec<Peer<K>> {
    vec![Peer::new("pingora-limits", "pingora-limits", rate).note(
        "does less: a sketch of 4 × 1 024 counters for all keys, so keys count for each other and nothing grows; \
         a fixed window; refused requests count too",
    )]
}
