//! What is said to whoever listens: events of the `tracing` crate, and nothing at all without that feature.
//!
//! The rest of the crate calls these functions whatever the features are. All events have the target `tollgate`.

#![cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "there is nobody to tell"))]

use crate::decision::Decision;
use crate::policy::Policy;
use crate::sync::unmodelled::{AtomicU64, Ordering};
use crate::table::WhenFull;
use ahash::RandomState;
use std::cell::Cell;
#[cfg(feature = "redis")]
use std::fmt;
use std::sync::OnceLock;

/// The least time between two warnings of the same kind.
const PAUSE_NS: u64 = 10_000_000_000;

/// What an event says of a limiter that was given no name.
const UNNAMED: &str = "unnamed";

macro_rules! event {
    ($level:ident, { $($fields:tt)* }, $message:literal) => {
        #[cfg(feature = "tracing")]
        tracing::event!(target: "tollgate", tracing::Level::$level, $($fields)*, $message);
    };
}

/// Another policy is in force.
pub(crate) fn policy_changed(limiter: Option<&str>, tier: Option<&str>, before: &Policy, after: &Policy) {
    let limiter = limiter.unwrap_or(UNNAMED);
    event!(WARN, { limiter, tier, %before, %after }, "policy changed");
}

/// A key found both its buckets full of live ones. Said once in ten seconds, with how often it was not.
pub(crate) fn table_full(warnings: &Rarely, now_ns: u64, limiter: Option<&str>, action: WhenFull) {
    if !cfg!(feature = "tracing") {
        return;
    }
    let Some(unsaid) = warnings.pass(now_ns) else { return };
    let limiter = limiter.unwrap_or(UNNAMED);
    event!(WARN, { limiter, ?action, unsaid }, "no room for another key");
}

/// The circuit breaker before a backend has opened or closed.
#[cfg(feature = "redis")]
pub(crate) fn breaker_changed(state: &dyn fmt::Display, why: &dyn fmt::Display) {
    event!(WARN, { %state, %why }, "circuit breaker changed");
}

/// A limit over many processes was built in a way that is probably not meant.
#[cfg(feature = "redis")]
pub(crate) fn backend_unsettled(why: &str) {
    event!(WARN, { why }, "shared limit left unsettled");
}

/// Somebody tries whether a backend is back, as is done again and again until it is.
#[cfg(feature = "redis")]
pub(crate) fn backend_probed(state: &dyn fmt::Display, why: &dyn fmt::Display) {
    event!(DEBUG, { %state, %why }, "backend probed");
}

/// One in so many refusals, as asked for at build.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusals {
    one_in: u64,
}

impl Refusals {
    /// Of none where `one_in` is 0.
    #[cfg_attr(not(feature = "tracing"), allow(dead_code, reason = "cannot be asked for"))]
    pub(crate) fn sampled(one_in: u64) -> Self {
        Self { one_in: if cfg!(feature = "tracing") { one_in } else { 0 } }
    }

    pub(crate) fn are_told(self) -> bool {
        self.one_in > 0
    }

    /// Tells of a refusal, if it is its turn.
    #[inline]
    pub(crate) fn tell(self, limiter: Option<&str>, decision: &Decision) {
        if self.one_in > 0 && random() % self.one_in == 0 {
            self.tell_now(limiter, decision);
        }
    }

    #[cold]
    fn tell_now(self, limiter: Option<&str>, decision: &Decision) {
        let limiter = limiter.unwrap_or(UNNAMED);
        let (outcome, cause, rule) = (decision.outcome(), decision.cause(), decision.rule());
        let (rule_name, cost, limit) = (decision.rule_name(), decision.cost(), decision.limit());
        let retry_after = decision.retry_after();
        let one_in = self.one_in;
        event!(
            DEBUG,
            { limiter, %outcome, %cause, rule, rule_name, cost, limit, ?retry_after, one_in },
            "request refused"
        );
    }
}

/// A number for sampling: of a sequence of the thread's own, so that nobody meets, and which has no rhythm that
/// the requests might share. Each thread begins elsewhere, or the first numbers of all threads would be the same: a
/// runtime of short threads would tell of nothing, or of everything.
fn random() -> u64 {
    std::thread_local! {
        static STATE: Cell<u64> = Cell::new(seed());
    }
    // A thread that is ending draws the number that it would have begun with.
    let next = STATE.try_with(Cell::get).unwrap_or(0).wrapping_add(GOLDEN);
    let _ = STATE.try_with(|state| state.set(next));
    mixed(next)
}

/// Where a thread begins: by chance for the process, and apart from all other threads.
fn seed() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    static THREADS: AtomicU64 = AtomicU64::new(0);
    let process = PROCESS.get_or_init(|| RandomState::new().hash_one(0));
    // Relaxed: only to be another number than the other threads'.
    let thread = THREADS.fetch_add(1, Ordering::Relaxed);
    // Mixed: the sequence goes in steps of the same length, and the threads would follow each other in it.
    mixed(process ^ mixed(thread))
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The end of splitmix64.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Lets one warning pass in a while, and counts the others: a storm must not flood the log.
#[derive(Debug, Default)]
pub(crate) struct Rarely {
    /// Before this time, nothing passes.
    next_ns: AtomicU64,
    unsaid: AtomicU64,
}

impl Rarely {
    /// How many were held back since the last one that passed, if this one passes.
    #[cfg_attr(not(any(feature = "tracing", test)), allow(dead_code, reason = "nothing is said"))]
    pub(crate) fn pass(&self, now_ns: u64) -> Option<u64> {
        // Relaxed, all of them: a warning guards nothing, and of two that find the pause over one is first.
        let next_ns = self.next_ns.load(Ordering::Relaxed);
        let later_ns = now_ns.saturating_add(PAUSE_NS);
        let is_over = now_ns >= next_ns || next_ns - now_ns > PAUSE_NS;
        let (set, seen) = (Ordering::Relaxed, Ordering::Relaxed);
        if is_over && self.next_ns.compare_exchange(next_ns, later_ns, set, seen).is_ok() {
            return Some(self.unsaid.swap(0, Ordering::Relaxed));
        }
        self.unsaid.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_passes_in_a_pause_and_says_how_many_did_not() {
        let rarely = Rarely::default();
        assert_eq!(rarely.pass(5), Some(0));
        for ns in 6..1_006 {
            assert_eq!(rarely.pass(ns), None);
        }
        assert_eq!(rarely.pass(5 + PAUSE_NS), Some(1_000));
        assert_eq!(rarely.pass(5 + PAUSE_NS), None);
        // A clock that was set back far is not waited for.
        assert_eq!(rarely.pass(1), Some(1));
    }

    #[test]
    fn the_first_samples_of_short_threads_are_spread_evenly_too() {
        let threads = 3_000;
        let first = || std::thread::spawn(|| random() % 10 == 0).join().ok();
        let taken = (0..threads).filter(|_| first() == Some(true)).count();
        // A tenth, and seven times the standard deviation.
        assert!((185..415).contains(&taken), "{taken} of {threads} threads taken as one in ten");
    }

    #[test]
    fn samples_are_spread_evenly() {
        let taken = (0..100_000).filter(|_| random() % 10 == 0).count();
        assert!((9_700..10_300).contains(&taken), "{taken} of 100 000 taken as one in ten");
    }
}
