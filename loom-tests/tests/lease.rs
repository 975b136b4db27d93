//! Models of leases: what is in hand counts as spent, goes back once, and is not good for ever.
#![cfg(tollgate_loom)]

use loom_tests::{Job, caught, explore_within, law, limiter, together};
use std::sync::Arc;
use std::time::Duration;
use tollgate::model::Fault;
use tollgate::{Limiter, WhenFull};

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
