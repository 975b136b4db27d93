//! Models of a key with several cells in the table: two rules are all or nothing while their cells come in,
//! and a sliding log is one budget however many of its cells are there.
#![cfg(tollgate_loom)]

use Act::{Take, TakeMany};
use loom_tests::{Act, Cast, Scene, caught, law};
use std::time::Duration;
use tollgate::WhenFull;
use tollgate::model::Fault;

/// One bucket, exactly the two cells of one key. Whoever comes second has charged the wide rule by the time
/// the narrow one refuses.
const TWO_RULES: Scene = Scene {
    name: "two rules",
    policy: "2/d; fixed 1/s",
    burst: 1,
    when_full: WhenFull::Deny,
    cast: Cast::OneBucket([0, 0, 1, 1, 0]),
    before: &[],
    threads: &[&[Take(0)], &[Take(0)]],
    // Whether there is room is asked of every slot before anything is charged: many loads to try in every order.
    preemptions_max: [2, 0],
};

fn hands_back(scene: Scene) {
    scene.play(|after| {
        law(after.admitted[0] == 1, || format!("{} admitted by a rule of 1", after.admitted[0]));
        let mut left = 0;
        for _ in 0..3 {
            after.hand.advance(Duration::from_secs(1));
            left += u64::from(after.limiter.try_acquire(&after.keys[0]).is_allowed());
        }
        law(left == 1, || format!("{left} left of 2 after 1 admitted"));
    });
}

#[test]
fn two_rules_hand_back() {
    let scene = TWO_RULES;
    hands_back(scene);
    caught(Fault::LoadThenStore, || hands_back(scene));
    caught(Fault::NoHandBack, || hands_back(scene));
}

/// A log of two tokens, in two cells.
const LOG: Scene = Scene { name: "sliding log", policy: "log 2/h", burst: 2, ..TWO_RULES };

fn one_budget(scene: Scene) {
    scene.play(|after| {
        let (admitted, left) = (after.admitted[0], after.left[0]);
        law(admitted + left == 2, || format!("{admitted} admitted and {left} left of 2"));
        after.gets_what_is_left(0);
    });
}

#[test]
fn sliding_log_is_one_budget() {
    let twice = Scene { threads: &[&[Take(0), Take(0)], &[Take(0)]], preemptions_max: [2, 0], ..LOG };
    one_budget(twice);
    caught(Fault::LoadThenStore, || one_budget(twice));
    let costs = Scene { threads: &[&[TakeMany(0, 2)], &[TakeMany(0, 2)]], preemptions_max: [2, 0], ..LOG };
    one_budget(costs);
    caught(Fault::NoHandBack, || one_budget(costs));
    caught(Fault::LoadThenStore, || one_budget(costs));
}
