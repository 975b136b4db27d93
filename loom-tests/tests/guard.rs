//! Models of what stands above the rules: a mark is taken once, and no strike is lost.
#![cfg(tollgate_loom)]

use loom_tests::{Job, caught, explore_within, law, limiter, together};
use std::sync::Arc;
use std::time::Duration;
use tollgate::model::Fault;
use tollgate::{Cause, Clock, Limiter, Penalties, WhenFull};

const HOUR: Duration = Duration::from_secs(3_600);

fn jobs(limiter: &Arc<Limiter>, ask: fn(&Limiter) -> bool) -> u64 {
    let job = |_| {
        let limiter = Arc::clone(limiter);
        let job: Job<u64> = Box::new(move || u64::from(ask(&limiter)));
        job
    };
    together((0..2).map(job).collect()).into_iter().sum()
}

/// Two who race for one id; the mark is new, or an old one that is over.
fn one_of_two(marked_before: bool) {
    explore_within(&format!("once, by two, marked before: {marked_before}"), 3, move || {
        let (limiter, hand) = limiter("1/h", 1, WhenFull::Deny);
        if marked_before {
            let _first = limiter.once("id", HOUR);
            hand.advance(HOUR);
        }
        let passed = jobs(&limiter, |limiter| limiter.once("id", HOUR).is_allowed());
        law(passed == 1, || format!("{passed} passed of two that may only once"));
        law(limiter.once("id", HOUR).is_denied(), || "passed again".to_owned());
    });
}

#[test]
fn one_of_two_passes_once() {
    for marked_before in [false, true] {
        one_of_two(marked_before);
        caught(Fault::LoadThenStore, || one_of_two(marked_before));
    }
}

/// A key that has spent all is refused by two threads at once: two strikes, on top of `before`.
fn two_strikes(before: u64) {
    explore_within(&format!("two refusals after {before}"), 2, move || {
        let (clock, _hand) = Clock::manual();
        let builder = Limiter::builder().policy("1/h").max_keys(1).when_full(WhenFull::Deny).clock(clock);
        let penalties = Penalties::new([HOUR]).after(before + 2);
        let Ok(limiter) = builder.seeds([1, 2, 3, 4]).penalties(penalties).build() else { return };
        let limiter = Arc::new(limiter);
        for _ in 0..=before {
            let _spent_or_struck = limiter.try_acquire("key");
        }
        law(limiter.peek("key").cause() == Cause::Rule, || "locked out too early".to_owned());
        let passed = jobs(&limiter, |limiter| limiter.try_acquire("key").is_allowed());
        law(passed == 0, || format!("{passed} passed after all was spent"));
        let cause = limiter.peek("key").cause();
        law(cause == Cause::Penalty, || format!("a strike was lost: {cause:?}"));
    });
}

#[test]
fn two_refusals_are_two_strikes() {
    for before in [0, 1] {
        two_strikes(before);
        caught(Fault::LoadThenStore, || two_strikes(before));
    }
}
