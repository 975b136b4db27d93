//! Models of a thread that stops for ever in the middle of a takeover (H4): everybody else goes on, with the
//! same key and with others, and every bound holds.
#![cfg(tollgate_loom)]

use Act::{Abandon, Refund, Take, TakeMany, Wait};
use loom_tests::{Act, Cast, Scene, caught, law};
use std::time::Duration;
use tollgate::WhenFull;
use tollgate::model::Fault;
use tollgate::model::TakeoverStep::{Claim, Count, Seal, Withdraw};

const MINUTES_10: Duration = Duration::from_secs(600);
const MINUTES_40: Duration = Duration::from_secs(2_400);
const MINUTES_50: Duration = Duration::from_secs(3_000);

/// One bucket with two entries, key 0's past and key 2's not. Somebody begins to take the slot for key 1.
const CLAIMED: Scene = Scene {
    name: "stopped after the claim",
    policy: "1/h burst 1",
    burst: 1,
    when_full: WhenFull::Deny,
    cast: Cast::OneBucket([0, 0, 1, 1, 0]),
    before: &[Take(0), Wait(MINUTES_50), Take(2), Wait(MINUTES_10), Abandon(1, Claim)],
    threads: &[&[Take(1)], &[Take(0)]],
    preemptions_max: [3, 1],
};
const SEALED: Scene = Scene {
    name: "stopped after the seal",
    before: &[Take(0), Wait(MINUTES_50), Take(2), Wait(MINUTES_10), Abandon(1, Seal)],
    ..CLAIMED
};
/// The same while the others are at it.
const CLAIMING: Scene = Scene {
    name: "stops after the claim",
    before: &[Take(0), Wait(MINUTES_50), Take(2), Wait(MINUTES_10)],
    threads: &[&[Abandon(1, Claim), Take(3)], &[Take(1)]],
    ..CLAIMED
};
const SEALING: Scene =
    Scene { name: "stops after the seal", threads: &[&[Abandon(1, Seal), Take(3)], &[Take(1)]], ..CLAIMING };

fn somebody_gets_the_slot(scene: Scene) {
    scene.play(|after| {
        let admitted: u64 = after.admitted.iter().sum();
        law(admitted == 1, || format!("{:?} admitted, with a slot for one", after.admitted));
        for key in [0, 1, 3] {
            let (admitted, left) = (after.admitted[key], after.left[key]);
            law(admitted + left == 1, || format!("key {key} was admitted {admitted}, has {left} left of 1"));
        }
    });
}

#[test]
fn others_go_on_beside_a_stalled_claim() {
    for scene in [CLAIMED, SEALED, CLAIMING, SEALING] {
        somebody_gets_the_slot(scene);
        caught(Fault::LoadThenStore, || somebody_gets_the_slot(scene));
    }
}

/// A thread stops after it has counted a key that is then never claimed for: whoever asks looks further for nothing,
/// and the bounds hold on both lines.
#[test]
fn a_count_that_stays_leads_nobody_astray() {
    let scene = Scene {
        name: "stopped after the count",
        cast: Cast::TwoBuckets([(true, 0), (true, 0), (true, 1), (false, 0), (false, 1)]),
        before: &[
            Take(3),
            Wait(MINUTES_10),
            Take(1),
            Wait(MINUTES_40),
            Take(2),
            Wait(MINUTES_10),
            Abandon(0, Count),
        ],
        threads: &[&[Take(0), Take(4)], &[Wait(MINUTES_10), Take(0)]],
        ..CLAIMED
    };
    let model = || {
        scene.play(|after| {
            let admitted = [after.admitted[0], after.admitted[4]];
            law(admitted == [1, 1], || format!("{admitted:?} admitted of 1 each"));
            after.one_entry_a_debtor(1);
        });
    };
    model();
    caught(Fault::NoTwinSearch, model);
    caught(Fault::LoadThenStore, model);
}

/// Only others come, never the stalled claim's own key: they take the slot away from it.
#[test]
fn a_stalled_claim_is_taken_away() {
    let scene = Scene { name: "stalled claim, other keys", threads: &[&[Take(3)], &[Take(0)]], ..CLAIMED };
    somebody_gets_the_slot(scene);
    caught(Fault::WaitsForClaimer, || somebody_gets_the_slot(scene));
    caught(Fault::LoadThenStore, || somebody_gets_the_slot(scene));
}

/// The claim that nobody will commit is on a slot that was nobody's: there was no one to seal out.
#[test]
fn a_stalled_claim_of_an_empty_slot_is_adopted_or_taken_away() {
    let scene =
        Scene { name: "stalled claim of an empty slot", before: &[Take(2), Abandon(1, Claim)], ..CLAIMED };
    let of_others = Scene { name: "the same, other keys", threads: &[&[Take(3)], &[Take(0)]], ..scene };
    for scene in [scene, of_others] {
        somebody_gets_the_slot(scene);
        caught(Fault::LoadThenStore, || somebody_gets_the_slot(scene));
    }
    caught(Fault::WaitsForClaimer, || somebody_gets_the_slot(of_others));
}

/// Key 0 was asked for twice, admitted both times, and one of them was refunded.
fn both_admitted_and_one_refunded(scene: Scene) {
    scene.play(|after| {
        law(after.admitted[0] == 2, || format!("{} admitted of 2", after.admitted[0]));
        law(after.left[0] == 1, || format!("{} left after 2 of 2 and 1 refunded", after.left[0]));
        after.gets_what_is_left(0);
    });
}

/// Key 0's past entry is sealed and its name left there. It comes again, to another slot perhaps: it is found
/// there, and a refund reaches it.
#[test]
fn a_name_left_behind_leads_nobody_astray() {
    let scene = Scene {
        name: "name left on a sealed slot",
        policy: "1/h burst 2",
        burst: 2,
        before: &[Take(0), Wait(MINUTES_50), Take(2), Wait(MINUTES_10), Abandon(1, Seal)],
        threads: &[&[Take(0)], &[Take(0), Refund(0)]],
        ..CLAIMED
    };
    both_admitted_and_one_refunded(scene);
    caught(Fault::LoadThenStore, || both_admitted_and_one_refunded(scene));
}

/// Key 0 has an entry on the second line. A thread that had not seen it claimed a slot on the first, came upon the entry,
/// gave its claim up and was stopped: the name is on the first line too, for good.
#[test]
fn a_name_left_behind_by_a_twin() {
    let scene = Scene {
        name: "name left by a twin that was withdrawn",
        policy: "1/h burst 3",
        burst: 3,
        cast: Cast::TwoBuckets([(true, 0), (true, 0), (true, 1), (false, 0), (false, 1)]),
        before: &[
            Take(1),
            TakeMany(2, 2),
            Wait(MINUTES_50),
            Take(0),
            Take(4),
            Wait(MINUTES_10),
            Abandon(0, Withdraw),
        ],
        threads: &[&[Take(0)], &[Take(0), Refund(0)]],
        ..CLAIMED
    };
    both_admitted_and_one_refunded(scene);
    caught(Fault::FirstNameOnly, || both_admitted_and_one_refunded(scene));
    caught(Fault::LoadThenStore, || both_admitted_and_one_refunded(scene));
}
