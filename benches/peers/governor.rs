//! governor: with its default hasher and clock, and with the hasher that its users are told to try.

use super::{Contender, Key, Peer, Traffic, contender};
use governor::clock::DefaultClock;
use governor::state::keyed::{DashMapStateStore, ShrinkableKeyedStateStore};
use governor::{Quota, RateLimiter};
use std::num::NonZeroU32;

fn quota(traffic: Traffic) -> Quota {
    let most = NonZeroU32::new(1_000_000_000).expect("not zero");
    match traffic {
        Traffic::Admit => Quota::per_second(most).allow_burst(most),
        Traffic::Refuse => Quota::per_hour(NonZeroU32::MIN),
    }
}

fn limiter<K: Key, S>(traffic: Traffic, store: S) -> Box<dyn Contender<K>>
where
    S: ShrinkableKeyedStateStore<K> + Send + Sync + 'static,
{
    let limiter = RateLimiter::new(quota(traffic), store, DefaultClock::default());
    // As documented: forget keys that are as good as new, then give memory back.
    let clean = |limiter: &RateLimiter<K, S, DefaultClock>| {
        limiter.retain_recent();
        limiter.shrink_to_fit();
    };
    contender(limiter, |limiter, key: &K| limiter.check_key(key).is_ok(), Some(clean))
}

pub(super) fn keyed<K: Key>() -> Vec<Peer<K>> {
    vec![
        Peer::new("governor", "governor", |setup| limiter(setup.traffic, DashMapStateStore::<K>::default())),
        Peer::new("governor + ahash", "governor", |setup| {
            let hasher = ahash::RandomState::new();
            limiter(setup.traffic, DashMapStateStore::<K, ahash::RandomState>::with_hasher(hasher))
        }),
    ]
}

pub(super) fn unkeyed() -> Vec<Peer<()>> {
    vec![Peer::new("governor", "governor", |setup| {
        contender(RateLimiter::direct(quota(setup.traffic)), |limiter, ()| limiter.check().is_ok(), None)
    })]
}
