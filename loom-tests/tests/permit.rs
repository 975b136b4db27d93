//! Models of permits: never more at work than there are places, and a place is left once.
#![cfg(tollgate_loom)]

use loom_tests::{Job, caught, explore, law, limiter, together};
use std::sync::Arc;
use tollgate::model::Fault;
use tollgate::{Limiter, Permit, WhenFull};

fn start(limiter: &Arc<Limiter>) -> Option<Permit<'static>> {
    limiter.try_start_owned("key").ok()
}

/// How many more can begin while nobody ends.
fn places(limiter: &Arc<Limiter>) -> usize {
    std::iter::from_fn(|| start(limiter)).take(9).collect::<Vec<_>>().len()
}

/// Two who begin at once and do not end: the last place is one's, and the key's word is brought in once.
fn one_place_for_two(held: bool) {
    explore(&format!("two begin, one place, one held before: {held}"), move || {
        let (limiter, _hand) = limiter(if held { "2 at once" } else { "1 at once" }, 1, WhenFull::Deny);
        let before = held.then(|| start(&limiter)).flatten();
        let job = |_| {
            let limiter = Arc::clone(&limiter);
            let job: Job<Option<Permit<'static>>> = Box::new(move || start(&limiter));
            job
        };
        let begun: Vec<_> = together((0..2).map(job).collect()).into_iter().flatten().collect();
        law(begun.len() == 1, || format!("{} begun at one place", begun.len()));
        drop((before, begun));
        let left = places(&limiter);
        law(left == 1 + usize::from(held), || format!("{left} places after all have ended"));
    });
}

#[test]
fn the_last_place_is_taken_once() {
    for held in [false, true] {
        one_place_for_two(held);
        caught(Fault::LoadThenStore, || one_place_for_two(held));
    }
}

/// One who stays, and two who begin and end beside: afterwards the one place is still taken.
fn leaves_its_own_place_only() {
    explore("two begin and end beside one who stays", || {
        let (limiter, _hand) = limiter("3 at once", 1, WhenFull::Deny);
        let stays = start(&limiter);
        let job = |_| {
            let limiter = Arc::clone(&limiter);
            let job: Job<()> = Box::new(move || drop(start(&limiter)));
            job
        };
        together((0..2).map(job).collect());
        let left = places(&limiter);
        law(left == 2, || format!("{left} places left of 3 beside one who stays"));
        drop(stays);
    });
}

#[test]
fn a_place_is_left_once() {
    leaves_its_own_place_only();
    caught(Fault::LeavesTwice, leaves_its_own_place_only);
    caught(Fault::LoadThenStore, leaves_its_own_place_only);
}
