//! The breaker: after a few failures nobody waits for the server any more; a probe in the background finds out when it
//! is back, never a request of a user.

use super::stats::Counters;
use crate::sync::unmodelled::{AtomicU64, Ordering};
use crate::trace;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// What a failure weighs, against a success: a part of the server that is away must not hide behind the rest.
const FAILURE_WEIGHT: u64 = 8;
/// The weight that opens it: three failures in a row, or for a while more than one in nine.
const WEIGHT_MAX: u64 = 3 * FAILURE_WEIGHT;
/// The first pause before a probe, and the longest: a server that is back is found within one and a half of the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(800);

/// Whether the server is asked.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use tollgate::redis::{BreakerState, RedisLimiter};
///
/// // Nobody listens there: requests are decided without a server.
/// let limiter = RedisLimiter::builder("redis://127.0.0.1:1/").policy("5/h").build().await?;
/// assert_ne!(limiter.stats().state, BreakerState::Closed);
/// assert!(limiter.try_acquire("203.0.113.7").await.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// Every request asks it.
    Closed,
    /// No request does: it has failed of late.
    Open,
    /// No request does, but a probe is under way.
    Probing,
}

impl BreakerState {
    fn from_number(number: u64) -> Self {
        match number {
            0 => Self::Closed,
            1 => Self::Open,
            _ => Self::Probing,
        }
    }
}

impl fmt::Display for BreakerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::Probing => "probing",
        })
    }
}

#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// [`BreakerState`] as a number. Closed to open by whoever fails last; from there on only the prober moves it.
    state: AtomicU64,
    /// What failures weigh, less what has succeeded since.
    weight: AtomicU64,
    answers: AtomicU64,
}

impl Breaker {
    pub(super) fn state(&self) -> BreakerState {
        // Relaxed: nothing else is published with it; a late reader asks once more than it had to.
        BreakerState::from_number(self.state.load(Ordering::Relaxed))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state() == BreakerState::Closed
    }

    pub(super) fn succeeded(&self) {
        // Relaxed, here and below: a number of its own. Written only where it changes, as most calls succeed.
        self.answers.fetch_add(1, Ordering::Relaxed);
        let weight = self.weight.load(Ordering::Relaxed);
        if weight != 0 {
            // Whoever is second in a race has counted for nothing, which is on the safe side.
            let (set, seen) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.weight.compare_exchange(weight, weight - 1, set, seen);
        }
    }

    /// How many calls have succeeded, to tell later whether any did meanwhile.
    pub(super) fn answers(&self) -> u64 {
        // Relaxed: as above.
        self.answers.load(Ordering::Relaxed)
    }

    /// Notes a failure; true for the one caller that has to start the probe.
    pub(super) fn failed(&self, counters: &Counters, why: &dyn fmt::Display) -> bool {
        // Relaxed: as above.
        let weight = self.weight.fetch_add(FAILURE_WEIGHT, Ordering::Relaxed) + FAILURE_WEIGHT;
        weight >= WEIGHT_MAX && self.open(counters, why)
    }

    /// Opens it at once; true for the one caller that has to start the probe.
    pub(super) fn open(&self, counters: &Counters, why: &dyn fmt::Display) -> bool {
        // Relaxed: the exchange alone says who was first.
        let first = self
            .state
            .compare_exchange(
                BreakerState::Closed as u64,
                BreakerState::Open as u64,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
            .is_ok();
        if first {
            changed(counters, BreakerState::Open, why);
        }
        first
    }

    /// For the prober alone.
    pub(super) fn set(&self, state: BreakerState, counters: &Counters, why: &dyn fmt::Display) {
        if state == BreakerState::Closed {
            // Relaxed: a failure that is counted beside it is one of three, and loses or gains one turn.
            self.weight.store(0, Ordering::Relaxed);
        }
        // Relaxed: a number of its own; nothing is published by it.
        self.state.store(state as u64, Ordering::Relaxed);
        changed(counters, state, why);
    }
}

fn changed(counters: &Counters, state: BreakerState, why: &dyn fmt::Display) {
    counters.breaker_changed();
    match state {
        BreakerState::Closed | BreakerState::Open => trace::breaker_changed(&state, why),
        BreakerState::Probing => trace::backend_probed(&state, why),
    }
}

/// How long to pause before each probe: doubling, and spread by half either way so that many processes do not come
/// back at once.
#[derive(Debug)]
pub(super) struct Pauses {
    next: Duration,
    random: RandomState,
    drawn: u64,
}

impl Pauses {
    pub(super) fn new() -> Self {
        Self { next: PAUSE_MIN, random: RandomState::new(), drawn: 0 }
    }
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.drawn += 1;
        // From 50 to 150 hundredths.
        let hundredths = 50 + self.random.hash_one(self.drawn) % 101;
        let pause = self.next * u32::try_from(hundredths).unwrap_or(100) / 100;
        self.next = (self.next * 2).min(PAUSE_MAX);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_tells_one_caller() {
        let (breaker, counters) = (Breaker::default(), Counters::default());
        for _ in 0..2 {
            assert!(!breaker.failed(&counters, &"lost"));
        }
        assert!(breaker.is_closed());
        assert!(breaker.failed(&counters, &"lost"));
        assert!(!breaker.failed(&counters, &"lost"));
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker.set(BreakerState::Probing, &counters, &"");
        breaker.set(BreakerState::Closed, &counters, &"");
        assert_eq!(counters.read(breaker.state(), 0).breaker_changes, 3);
        assert!(!breaker.failed(&counters, &"lost"), "it counts anew");
    }

    #[test]
    fn what_fails_often_opens_it_though_the_rest_succeeds_and_what_fails_rarely_does_not() {
        // After how many failures it opens, if so many calls succeed between two.
        let opens_after = |successes: u64| {
            let (breaker, counters) = (Breaker::default(), Counters::default());
            (1..=1_000).find(|_| {
                let opens = breaker.failed(&counters, &"lost");
                (0..successes).for_each(|_| breaker.succeeded());
                opens
            })
        };
        assert_eq!([0, 1, 2, 7].map(opens_after), [Some(3), Some(4), Some(4), Some(17)]);
        assert_eq!([8, 9, 100].map(opens_after), [None; 3]);
    }

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        let pauses: Vec<Duration> = Pauses::new().take(100).collect();
        assert!(pauses[0] <= PAUSE_MIN * 3 / 2);
        assert!(pauses.iter().all(|&pause| pause >= PAUSE_MIN / 2 && pause <= PAUSE_MAX * 3 / 2));
        assert!(pauses[50..].iter().all(|&pause| pause >= PAUSE_MAX / 2));
        assert!(pauses[50..].windows(2).any(|pair| pair[0] != pair[1]));
    }
}
