//! Models of a bucket that is full of live keys: each choice of what to do then keeps its promise, and an entry
//! that is evicted while its owner charges it is charged or forgiven, never both or neither.
#![cfg(tollgate_loom)]

use Act::{Refund, Take};
use loom_tests::{Act, Cast, Scene, caught, law};
use tollgate::WhenFull;
use tollgate::model::{Fault, with_generations};

/// One bucket with keys 0 and 2 in it, both in debt. Key 1 comes while key 0 goes on spending.
const FULL: Scene = Scene {
    name: "full bucket",
    policy: "1/h burst 2",
    burst: 2,
    when_full: WhenFull::Deny,
    cast: Cast::OneBucket([0, 0, 1, 1, 0]),
    before: &[Take(0), Take(2)],
    threads: &[&[Take(0), Take(0)], &[Take(1)]],
    preemptions_max: [3, 2],
};

/// With a word that is the same for every key in the window: nothing but the generation tells two owners apart.
const FULL_WINDOWS: Scene = Scene { policy: "fixed 2/h", ..FULL };

fn denies(scene: Scene) {
    scene.play(move |after| {
        law(after.admitted[..2] == [1, 0], || format!("{:?} admitted, of 1 and 0", after.admitted));
        let stats = &after.stats;
        law((stats.denied_for_room, stats.evicted, stats.allowed_for_room) == (1, 0, 0), || {
            format!("one was denied for room, the table says {stats:?}")
        });
        after.all_is_accounted_for(scene.burst);
        after.each_has_paid_its_own(scene.burst, &[0, 1, 2]);
    });
}

#[test]
fn deny_keeps_every_bound() {
    denies(FULL);
    caught(Fault::ForgetsDebt, || denies(FULL));
}

fn allows(scene: Scene) {
    scene.play(move |after| {
        law(after.admitted[..2] == [1, 1], || format!("{:?} admitted, of 1 each", after.admitted));
        law(after.stats.allowed_for_room == 1 && after.stats.evicted == 0, || format!("{:?}", after.stats));
        after.all_is_accounted_for(scene.burst);
        after.each_has_paid_its_own(scene.burst, &[0, 2]);
    });
}

#[test]
fn allow_keeps_the_bounds_of_known_keys() {
    let scene = Scene { when_full: WhenFull::Allow, ..FULL };
    allows(scene);
    caught(Fault::ForgetsDebt, || allows(scene));
}

/// Whoever is evicted starts afresh, and what that forgives is counted to the last one.
fn evicts(scene: Scene) {
    scene.play(move |after| {
        after.all_is_accounted_for(scene.burst);
        let admitted = after.admitted_in_all();
        let bound = 3 * scene.burst + after.stats.forgiven_cost + after.stats.allowed_for_room;
        law(admitted <= bound, || format!("{admitted} admitted, {bound} with all that was forgiven"));
    });
}

#[test]
fn evict_counts_what_it_forgives() {
    for scene in [FULL, FULL_WINDOWS] {
        let scene = Scene {
            when_full: WhenFull::Evict,
            name: "eviction beside the victim's charges",
            preemptions_max: [2, 1],
            ..scene
        };
        evicts(scene);
        caught(Fault::LoadThenStore, || evicts(scene));
        caught(Fault::ForgetsDebt, || evicts(scene));
    }
}

/// A late charge of an evicted key, or a late refund, finds the same word there in the next generation.
#[test]
fn eviction_is_final_for_late_charges_and_refunds() {
    let charge = Scene {
        when_full: WhenFull::Evict,
        name: "late charge after an eviction",
        threads: &[&[Take(1)], &[Take(0)]],
        ..FULL_WINDOWS
    };
    evicts(charge);
    // Without any generation in the state, the charge goes to the new owner.
    let nobody_pays_for_another = || {
        charge.play(|after| {
            // Key 0 may come back, and evict key 1 in turn.
            law(after.left[1] == 1 || after.stats.evicted > 1, || {
                format!("key 1 was admitted 1 and has {} left of 2", after.left[1])
            });
        });
    };
    nobody_pays_for_another();
    with_generations(0, 0, || caught(Fault::None, nobody_pays_for_another));

    let refund =
        Scene { name: "late refund after an eviction", threads: &[&[Take(1)], &[Refund(0)]], ..charge };
    let nobody_is_refunded_for_another = || {
        refund.play(|after| {
            law(after.left[1] == 1, || format!("key 1 was admitted 1 and has {} left of 2", after.left[1]));
        });
    };
    nobody_is_refunded_for_another();
    with_generations(0, 0, || caught(Fault::None, nobody_is_refunded_for_another));
}

/// Two changes of hands under a late charge: the generations of a state tell them apart even cut down to two
/// bits. With none at all, the charge lands on somebody else (H1, H6).
#[test]
fn two_evictions_under_a_late_charge() {
    let scene = Scene {
        name: "two evictions under a late charge",
        when_full: WhenFull::Evict,
        threads: &[&[Take(1), Take(3)], &[Take(0)]],
        preemptions_max: [3, 1],
        ..FULL_WINDOWS
    };
    let model = || {
        scene.play(|after| {
            law(after.left[3] == 1 || after.stats.evicted > 2, || {
                format!("key 3 was admitted 1 and has {} left of 2", after.left[3])
            });
        });
    };
    with_generations(0, u64::MAX, model);
    with_generations(0, 3, model);
    with_generations(0, 0, || caught(Fault::None, model));
}
