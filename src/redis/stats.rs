//! What the limiter has asked of its server and what became of it, counted as it happens.

use super::breaker::BreakerState;
use crate::counts::Counts;
use crate::decision::Decision;
use crate::error::Error;
use crate::policies::Policies;
use crate::policy::Policy;
use crate::stats::DecisionStats;
use crate::sync::unmodelled::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper ends of the classes of latency; one more class has no end.
const BOUNDS: [Duration; 12] = [
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
];

/// What a [`RedisLimiter`](super::RedisLimiter) has asked of its server since it was built, and what became of it.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use tollgate::redis::{BackendStats, RedisLimiter};
///
/// // Nobody listens there.
/// let limiter = RedisLimiter::builder("redis://127.0.0.1:1/").policy("100/min").build().await?;
/// let BackendStats { calls, failures, state, .. } = limiter.stats();
/// assert_eq!(calls, failures);
/// println!("{state}: {failures} of {calls} calls have failed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackendStats {
    /// Whether the server is asked at the moment.
    pub state: BreakerState,
    /// Calls to the server, failed ones and probes included. A repeat within one call is not counted again.
    pub calls: u64,
    /// Calls that failed, timeouts included.
    pub failures: u64,
    /// Calls that had no answer by their deadline.
    pub timeouts: u64,
    /// Decisions made without the server because it could not be asked.
    pub fallback_decisions: u64,
    /// How often the breaker changed its state: opened, began to probe, closed.
    pub breaker_changes: u64,
    /// How long answered calls took.
    pub latency: LatencyHistogram,
    /// What became of leased tokens.
    pub leases: LeaseStats,
    /// Decisions by what decided and how; empty unless they are
    /// [counted](super::RedisLimiterBuilder::count_decisions).
    pub decisions: Vec<DecisionStats>,
}

/// How long calls took, in classes of fixed bounds.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = tollgate::redis::RedisLimiter::builder("redis://127.0.0.1/").policy("100/min").build().await?;
/// let latency = limiter.stats().latency;
/// for (bound, count) in latency.bounds.iter().zip(&latency.counts) {
///     println!("{count} calls took up to {bound:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatencyHistogram {
    /// The upper end of each class but the last, ascending. A call that took exactly a bound is in its class.
    pub bounds: &'static [Duration],
    /// How many calls fell in each class, not cumulated: one more than there are bounds, the last for all that took
    /// longer.
    pub counts: Vec<u64>,
    /// How long all calls took together.
    pub sum: Duration,
}

/// What became of leased tokens: `taken = spent + returned + expired + in_hand`.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = tollgate::redis::RedisLimiter::builder("redis://127.0.0.1/").policy("100/min").build().await?;
/// let leases = limiter.stats().leases;
/// assert_eq!(leases.taken, leases.spent + leases.returned + leases.expired + leases.in_hand);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseStats {
    /// Taken from the server.
    pub taken: u64,
    /// Spent on requests.
    pub spent: u64,
    /// Given back to the server.
    pub returned: u64,
    /// Neither spent in time nor given back.
    pub expired: u64,
    /// In hand at the moment.
    pub in_hand: u64,
}

/// The counters behind [`BackendStats`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    calls: AtomicU64,
    failures: AtomicU64,
    timeouts: AtomicU64,
    fallback_decisions: AtomicU64,
    breaker_changes: AtomicU64,
    latency_counts: [AtomicU64; BOUNDS.len() + 1],
    latency_sum_ns: AtomicU64,
    lease_taken: AtomicU64,
    lease_returned: AtomicU64,
    lease_expired: AtomicU64,
}

impl Counters {
    pub(super) fn answered(&self, took: Duration) {
        let class = BOUNDS.iter().position(|&bound| took <= bound).unwrap_or(BOUNDS.len());
        add(&self.calls, 1);
        add(&self.latency_counts[class], 1);
        add(&self.latency_sum_ns, crate::guard::whole_ns(took));
    }

    pub(super) fn failed(&self, timed_out: bool) {
        add(&self.calls, 1);
        add(&self.failures, 1);
        add(&self.timeouts, u64::from(timed_out));
    }

    pub(super) fn fell_back(&self) {
        add(&self.fallback_decisions, 1);
    }

    pub(super) fn breaker_changed(&self) {
        add(&self.breaker_changes, 1);
    }

    pub(super) fn lease_taken(&self, tokens: u64) {
        add(&self.lease_taken, tokens);
    }

    pub(super) fn lease_returned(&self, tokens: u64) {
        add(&self.lease_returned, tokens);
    }

    pub(super) fn lease_expired(&self, tokens: u64) {
        add(&self.lease_expired, tokens);
    }

    pub(super) fn read(&self, state: BreakerState, in_hand: u64) -> BackendStats {
        let taken = read(&self.lease_taken);
        let returned = read(&self.lease_returned);
        let expired = read(&self.lease_expired);
        BackendStats {
            state,
            calls: read(&self.calls),
            failures: read(&self.failures),
            timeouts: read(&self.timeouts),
            fallback_decisions: read(&self.fallback_decisions),
            breaker_changes: read(&self.breaker_changes),
            latency: LatencyHistogram {
                bounds: &BOUNDS,
                counts: self.latency_counts.iter().map(read).collect(),
                sum: Duration::from_nanos(read(&self.latency_sum_ns)),
            },
            // Spending is not counted where it happens, which is the hot path: it is what is left over.
            leases: LeaseStats {
                taken,
                spent: taken.saturating_sub(returned.saturating_add(expired).saturating_add(in_hand)),
                returned,
                expired,
                in_hand,
            },
            decisions: Vec::new(),
        }
    }
}

/// Decisions counted by rule and outcome.
#[derive(Debug)]
pub(super) struct Decisions {
    counts: Counts,
    policies: Policies,
}

impl Decisions {
    pub(super) fn of(policy: &Policy) -> Result<Self, Error> {
        let policies = Policies::new(vec![(None, policy.clone())])?;
        Ok(Self { counts: Counts::new(&policies), policies })
    }

    pub(super) fn count(&self, decision: &Decision) {
        self.counts.count(0, decision, || None);
    }

    pub(super) fn read(&self) -> Vec<DecisionStats> {
        self.counts.decisions(&self.policies)
    }
}

fn add(counter: &AtomicU64, by: u64) {
    // Relaxed: numbers for a dashboard, each by itself.
    counter.fetch_add(by, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    // Relaxed: as above.
    counter.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_fall_in_the_class_that_ends_with_them() {
        let counters = Counters::default();
        for took in [BOUNDS[0], BOUNDS[0] + Duration::from_nanos(1), Duration::from_secs(9)] {
            counters.answered(took);
        }
        counters.failed(true);
        let stats = counters.read(BreakerState::Closed, 0);
        assert_eq!((stats.calls, stats.failures, stats.timeouts), (4, 1, 1));
        assert_eq!(stats.latency.counts.len(), stats.latency.bounds.len() + 1);
        assert_eq!(stats.latency.counts[..2], [1, 1]);
        assert_eq!(stats.latency.counts.last(), Some(&1));
        assert_eq!(stats.latency.sum, Duration::from_nanos(9_000_100_001));
    }
}
