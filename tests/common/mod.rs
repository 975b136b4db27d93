//! What tests share: laws over random cases, threads that start together, limiters with a clock to move by hand.

#![allow(dead_code, clippy::unwrap_used, reason = "tests; each uses its own part")]

use proptest::prelude::Strategy;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use tollgate::{Cause, Clock, Decision, Limiter, LimiterBuilder, ManualHand, Outcome, Policy, WhenFull};

pub(crate) const NS: Duration = Duration::from_nanos(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);
/// The present as real clocks count it, and on no window's edge, where some defects hide.
pub(crate) const START: Duration = Duration::from_millis(1_790_000_000_250);
/// Every run uses the same seed, so a failure comes back; the smallest failing case is printed.
const SEED: u64 = 0x6c61_7465_7221;
/// More than any test here may admit to one key: a limiter without a limit should fail, not hang.
const RUNAWAY: u64 = 200_000;

/// Runs a law over random cases; a quarter as many where the checks of a debug build slow it down.
pub(crate) fn check<S: Strategy>(cases: u32, strategy: S, law: impl Fn(S::Value) -> Result<(), String>) {
    check_with(SEED, if cfg!(debug_assertions) { cases / 4 } else { cases }, strategy, law);
}

/// Runs a law over so many random cases of a seed.
pub(crate) fn check_with<S: Strategy>(
    seed: u64,
    cases: u32,
    strategy: S,
    law: impl Fn(S::Value) -> Result<(), String>,
) {
    let config =
        Config { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&strategy, |case| law(case).map_err(TestCaseError::fail));
    if let Err(failure) = outcome {
        panic!("seed {seed:#x}: {failure}");
    }
}

pub(crate) fn expect(holds: bool, complaint: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(complaint()) }
}

pub(crate) fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

/// A builder whose limiter places every key where it was the last time, and its clock.
pub(crate) fn builder(text: &str) -> (LimiterBuilder, ManualHand) {
    let (clock, hand) = Clock::manual();
    hand.set(START);
    (Limiter::builder().policy(text).max_keys(1_000).clock(clock).seeds([1, 2, 3, 4]), hand)
}

/// A limiter with room for everybody.
pub(crate) fn limiter(text: &str) -> (Limiter, ManualHand) {
    let (builder, hand) = builder(text);
    (builder.build().unwrap(), hand)
}

/// The smallest table there is: eight words.
pub(crate) fn tiny(text: &str, when_full: WhenFull) -> (Limiter, ManualHand) {
    let (builder, hand) = builder(text);
    (builder.max_keys(1).when_full(when_full).build().unwrap(), hand)
}

/// All that a decision says.
pub(crate) type Said = (Outcome, Cause, u64, u64, u64, usize, Option<Duration>, Duration, Option<usize>);

pub(crate) fn said(decision: &Decision) -> Said {
    let d = decision;
    (
        d.outcome(),
        d.cause(),
        d.cost(),
        d.limit(),
        d.remaining(),
        d.rule(),
        d.retry_after(),
        d.reset_after(),
        d.would_deny(),
    )
}

/// Asks again and again, and says how often it was allowed before it was refused.
pub(crate) fn drain(ask: impl Fn() -> bool) -> u64 {
    let mut admitted = 0;
    while ask() {
        admitted += 1;
        assert!(admitted <= RUNAWAY, "no limit");
    }
    admitted
}

/// Runs `work` on so many threads at the same moment, and adds up what each returns.
///
/// They start by spinning on one flag: a barrier would wake them one after the other.
pub(crate) fn together(threads: usize, work: impl Fn(usize) -> u64 + Sync) -> u64 {
    let (ready, go) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let spin_started = |index| {
            let (ready, go, work) = (&ready, &go, &work);
            scope.spawn(move || {
                ready.fetch_add(1, Ordering::SeqCst);
                while !go.load(Ordering::SeqCst) {
                    // More threads than cores must not starve the one that gives the start.
                    thread::yield_now();
                }
                work(index)
            })
        };
        let handles: Vec<_> = (0..threads).map(spin_started).collect();
        while ready.load(Ordering::SeqCst) < threads {
            thread::yield_now();
        }
        go.store(true, Ordering::SeqCst);
        handles.into_iter().map(|handle| handle.join().unwrap()).sum()
    })
}

/// Random numbers for a thread, the same in every run.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: usize) -> Self {
        Self(seed as u64)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
