//! What a backend has to show, in plain numbers.

use crate::stats::DecisionStats;
use std::time::Duration;

/// Whether a backend is asked at the moment.
///
/// ```
/// use tollgate::export::{Backend, BackendState};
/// assert_eq!(Backend::default().state, BackendState::Closed);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BackendState {
    /// It is: its circuit breaker is closed.
    #[default]
    Closed,
    /// It has failed, and is left alone.
    Open,
    /// It has failed, and somebody tries whether it is back.
    Probing,
}

impl BackendState {
    pub(super) const ALL: [Self; 3] = [Self::Closed, Self::Open, Self::Probing];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::Probing => "probing",
        }
    }
}

/// What a backend has been asked and what became of it: all counts since it was built.
///
/// ```
/// use std::time::Duration;
/// use tollgate::export::{Backend, BackendState, Exporter};
///
/// let exporter = Exporter::new();
/// exporter.add_backend("sessions", || {
///     let mut backend = Backend::default();
///     backend.state = BackendState::Closed;
///     backend.answered = 3;
///     backend.latency_bounds = vec![Duration::from_millis(1), Duration::from_millis(10)];
///     backend.latency_counts = vec![2, 1, 0];
///     backend.latency_sum = Duration::from_millis(6);
///     backend
/// });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backend {
    /// Whether it is asked at the moment.
    pub state: BackendState,
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that failed otherwise than by a timeout.
    pub failed: u64,
    /// Calls that had no answer in time.
    pub timed_out: u64,
    /// Decisions that were made without it.
    pub fallback_decisions: u64,
    /// How often its circuit breaker changed.
    pub breaker_changes: u64,
    /// The upper end of each class of latency but the last, ascending.
    pub latency_bounds: Vec<Duration>,
    /// How many answers fell in each class; the last is for all that took longer.
    pub latency_counts: Vec<u64>,
    /// How long all answers took together.
    pub latency_sum: Duration,
    /// Tokens taken from it in advance.
    pub lease_tokens_taken: u64,
    /// Of those, spent on requests.
    pub lease_tokens_spent: u64,
    /// Of those, given back.
    pub lease_tokens_returned: u64,
    /// Of those, neither spent in time nor given back.
    pub lease_tokens_expired: u64,
    /// Of those, still in hand.
    pub lease_tokens_in_hand: u64,
    /// Decisions by what decided and how; empty if nobody counts them.
    pub decisions: Vec<DecisionStats>,
}

impl Backend {
    /// The classes of latency with their upper ends in seconds, the last of which is infinite.
    pub(super) fn latency_classes(&self) -> Vec<(f64, u64)> {
        let bounds = self.latency_bounds.iter().map(Duration::as_secs_f64).chain([f64::INFINITY]);
        let counts = self.latency_counts.iter().copied().chain(std::iter::repeat(0));
        bounds.zip(counts).collect()
    }
}

#[cfg(feature = "redis")]
impl From<crate::redis::BackendStats> for Backend {
    fn from(stats: crate::redis::BackendStats) -> Self {
        use crate::redis::BreakerState;
        let state = match stats.state {
            BreakerState::Closed => BackendState::Closed,
            BreakerState::Open => BackendState::Open,
            BreakerState::Probing => BackendState::Probing,
        };
        Self {
            state,
            answered: stats.calls.saturating_sub(stats.failures),
            failed: stats.failures.saturating_sub(stats.timeouts),
            timed_out: stats.timeouts,
            fallback_decisions: stats.fallback_decisions,
            breaker_changes: stats.breaker_changes,
            latency_bounds: stats.latency.bounds.to_vec(),
            latency_counts: stats.latency.counts,
            latency_sum: stats.latency.sum,
            lease_tokens_taken: stats.leases.taken,
            lease_tokens_spent: stats.leases.spent,
            lease_tokens_returned: stats.leases.returned,
            lease_tokens_expired: stats.leases.expired,
            lease_tokens_in_hand: stats.leases.in_hand,
            decisions: stats.decisions,
        }
    }
}
