//! Models of leases: what is in hand counts as spent, goes back once, and is not good for ever.
#![cfg(tollgate_loom)]

use loom_tests::{Job, caught, explore_thoroughly, explore_within, law, limiter, together};
use std::sync::Arc;
use std::time::Duration;
use tollgate::model::Fault;
use tollgate::{Limiter, ManualHand, WhenFull};

const SECOND: Duration = Duration::from_secs(1);

fn drain(limiter: &Limiter) -> u64 {
    let mut left = 0;
    while limiter.try_acquire("key").is_allowed() {
        left += 1;
    }
    left
}

/// Two leases of two each on a burst of three: what the one keeps in hand the other cannot have, and what neither
/// has spent is there once the hold is over.
fn two_on_one_word(spends: u64) {
    explore_within(&format!("two leases, {spends} spent by each"), 2, move || {
        let (limiter, hand) = limiter("1/h burst 3", 1, WhenFull::Deny);
        let job = |_| {
            let limiter = Arc::clone(&limiter);
            let job: Job<u64> = Box::new(move || {
                let mut lease = limiter.lease("key", 2).hold(SECOND);
                (0..spends).map(|_| u64::from(lease.try_acquire().is_allowed())).sum()
            });
            job
        };
        let admitted: u64 = together((0..2).map(job).collect()).into_iter().sum();
        law(admitted <= 3, || format!("{admitted} spent of 3"));
        hand.advance(SECOND * 2);
        let left = drain(&limiter);
        law(admitted + left == 3, || format!("{admitted} spent and {left} left of 3"));
    });
}

#[test]
fn two_leases_share_one_burst() {
    for spends in [1, 2] {
        two_on_one_word(spends);
        caught(Fault::LoadThenStore, || two_on_one_word(spends));
    }
}

/// One thread spends from its hand, looks elsewhere, and spends again; the other moves the clock on, far beyond the
/// hold, and takes what it can get. From the move on no more than the burst passes.
fn not_good_for_ever() {
    explore_within("clock moves on beyond a hold", 2, || {
        let (limiter, hand) = limiter("1/h burst 3", 1, WhenFull::Deny);
        let moved = hand.now() + SECOND * 36_000;
        let mover: Job<u64> = {
            let (limiter, hand) = (Arc::clone(&limiter), hand.clone());
            Box::new(move || {
                hand.set(moved);
                drain(&limiter)
            })
        };
        let holder: Job<u64> = {
            let (limiter, hand) = (Arc::clone(&limiter), hand.clone());
            Box::new(move || {
                let mut lease = limiter.lease("key", 2).hold(SECOND);
                let _may_be_early = lease.try_acquire();
                // Somewhere for the clock to move.
                let _elsewhere = limiter.peek("other");
                let late = hand.now() == moved;
                u64::from(lease.try_acquire().is_allowed() && late)
            })
        };
        let mut passed: u64 = together(vec![mover, holder]).into_iter().sum();
        passed += drain(&limiter);
        law(passed <= 3, || format!("{passed} passed at one moment under a burst of 3"));
    });
}

#[test]
fn tokens_in_hand_do_not_outlast_the_hold() {
    not_good_for_ever();
    caught(Fault::LeaseForEver, not_good_for_ever);
}

/// What another thread does beside a lease; it says how many it was admitted once that was done.
type Change = fn(&Limiter, &ManualHand) -> u64;

/// What has passed beside a lease of two that spent one and was dropped, and what is left once all is over.
struct Passed {
    /// By the lease.
    leased: u64,
    /// By the lease, once the clock had been moved.
    leased_late: u64,
    /// By the other thread, after what it did.
    after_change: u64,
    /// By whoever comes then.
    left: u64,
}

fn beside(name: &str, policy: &'static str, change: Change, expected: fn(Passed)) {
    explore_thoroughly(name, [3, 1], move || {
        let (limiter, hand) = limiter(policy, 1, WhenFull::Deny);
        let began = hand.now();
        let changer: Job<u64> = {
            let (limiter, hand) = (Arc::clone(&limiter), hand.clone());
            Box::new(move || change(&limiter, &hand))
        };
        let changer = loom::thread::spawn(changer);
        let mut lease = limiter.lease("key", 2).hold(SECOND);
        let is_late = hand.now() > began;
        let leased = u64::from(lease.try_acquire().is_allowed());
        drop(lease);
        let after_change = changer.join().unwrap_or(0);
        // A fresh key that was leased owes as much as it may be held, until then.
        hand.advance(SECOND);
        expected(Passed {
            leased,
            leased_late: leased * u64::from(is_late),
            after_change,
            left: drain(&limiter),
        });
    });
}

fn set(limiter: &Limiter, policy: &str) {
    law(limiter.set_policy(policy).is_ok(), || format!("`{policy}` was not accepted"));
}

/// A rate that is raised cuts down what was owed; others then spend what has come back under the new rule. What the
/// lease has left is not on the word any more, and goes back to nobody.
fn cut_down_by_a_rate() {
    let change: Change = |limiter, hand| {
        set(limiter, "3/min");
        // One comes back.
        hand.advance(SECOND * 20);
        drain(limiter)
    };
    beside("lease beside a rate that is raised", "1/h burst 3", change, |passed| {
        let Passed { leased_late, after_change, left, .. } = passed;
        let sum = leased_late + after_change + left;
        law(sum <= 3, || format!("{sum} passed at one moment under a burst of 3"));
    });
}

/// A burst that is lowered leaves nothing to those who come once anybody has passed: what the lease gives back was
/// cut off, or covers what is still owed.
fn cut_down_by_a_burst() {
    let change: Change = |limiter, _hand| {
        set(limiter, "1/h burst 1");
        drain(limiter)
    };
    beside("lease beside a burst that is lowered", "1/h burst 3", change, |passed| {
        let Passed { leased, after_change, left, .. } = passed;
        law(after_change <= 1, || format!("{after_change} passed after a burst of 1 was in force"));
        law(leased + after_change <= 3, || format!("{leased} and {after_change} passed under a burst of 3"));
        law(leased + after_change > 0 && left == 0, || {
            format!("{left} left of 1 after {leased} and {after_change} passed")
        });
    });
}

/// A burst that is raised grants what it was raised by, and what the lease has left goes back: nothing is lost.
fn raised() {
    let change: Change = |limiter, _hand| {
        set(limiter, "1/h burst 5");
        u64::from(limiter.try_acquire("key").is_allowed())
    };
    beside("lease beside a burst that is raised", "1/h burst 3", change, |passed| {
        let Passed { leased, after_change, left, .. } = passed;
        let sum = leased + after_change + left;
        law(sum == 5, || format!("{leased} and {after_change} passed, {left} left of 5"));
    });
}

#[test]
fn what_a_change_has_cut_down_does_not_go_back() {
    cut_down_by_a_rate();
    caught(Fault::IgnoresEra, cut_down_by_a_rate);
    caught(Fault::MixesEras, cut_down_by_a_rate);
    caught(Fault::JudgesEarly, cut_down_by_a_rate);
    cut_down_by_a_burst();
    caught(Fault::IgnoresEra, cut_down_by_a_burst);
}

#[test]
fn what_a_raise_leaves_goes_back() {
    raised();
    caught(Fault::LoadThenStore, raised);
}

/// What was taken before a reset is forgotten with the rest: it does not go back to those who have spent since.
fn forgotten() {
    let change: Change = |limiter, _hand| {
        limiter.reset("key");
        drain(limiter)
    };
    beside("lease beside a reset", "1/h burst 3", change, |passed| {
        let Passed { after_change, left, .. } = passed;
        let sum = after_change + left;
        law(sum <= 3, || format!("{after_change} passed after a reset and {left} are left of 3"));
    });
}

#[test]
fn what_was_reset_does_not_go_back() {
    forgotten();
    caught(Fault::IgnoresEra, forgotten);
    caught(Fault::JudgesEarly, forgotten);
}
