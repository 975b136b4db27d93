//! The limiters of tollgate that benchmarks ask: rules that never or always refuse, and tables that know their keys.

use std::hash::Hash;
use std::time::Duration;
use tollgate::{Clock, Limiter, Policy, Rule};

/// So fast that no call is refused.
pub fn generous() -> Rule {
    Rule::per_second(1_000_000_000).burst(1_000_000_000)
}

/// So slow that every call of a key but the first is refused.
pub fn strict() -> Rule {
    Rule::per_hour(1)
}

/// The clock that one thread reads for all.
pub fn coarse() -> Clock {
    Clock::coarse(Duration::from_micros(500))
}

/// A limiter with room for so many keys.
pub fn empty(policy: impl Into<Policy>, keys: u64, clock: Clock) -> Limiter {
    let builder = Limiter::builder().policy(policy.into()).max_keys(keys.max(1024) as usize);
    builder.clock(clock).build().expect("a limiter")
}

/// A limiter that has been asked once for each of its keys.
pub fn filled<K: Hash>(
    policy: impl Into<Policy>,
    keys: u64,
    clock: Clock,
    of_rank: impl Fn(u64) -> K,
) -> Limiter {
    let limiter = empty(policy, keys, clock);
    for rank in 0..keys {
        let _first = limiter.try_acquire(&of_rank(rank));
    }
    limiter
}
