//! Models of handles, which keep the spot where they found their key, while the slot there changes hands: nobody
//! pays for another key, no charge is lost, and the key is found again wherever it is by then.
#![cfg(tollgate_loom)]

use Act::{Hold, Take, Wait};
use loom_tests::{Act, Cast, Scene, caught, law};
use std::time::Duration;
use tollgate::WhenFull;
use tollgate::model::{Fault, with_generations};

const MINUTES_10: Duration = Duration::from_secs(600);
const MINUTES_50: Duration = Duration::from_secs(3_000);
const HOUR: Duration = Duration::from_secs(3_600);

/// One bucket: key 0 in the lower slot, just worth a fresh one again; key 2 in the upper one, still in debt. Key 0
/// comes again by a handle, whose first guess is right, while key 1 comes for the slot.
const LAST_SLOT: Scene = Scene {
    name: "handle beside a takeover",
    policy: "1/h burst 2",
    burst: 2,
    when_full: WhenFull::Deny,
    cast: Cast::OneBucket([0, 0, 1, 1, 0]),
    before: &[Take(0), Wait(MINUTES_50), Take(2), Wait(MINUTES_10)],
    threads: &[&[Hold(0), Take(0), Take(0)], &[Take(1)]],
    preemptions_max: [2, 1],
};

/// The slot is one key's or the other's, and what that key was admitted is on its account.
fn one_gets_the_slot(scene: Scene) {
    scene.play(|after| {
        let [first, second, ..] = after.admitted;
        law((first == 0) != (second == 0), || {
            format!("{first} and {second} admitted, with a slot for one key")
        });
        for (key, admitted) in [(0, first), (1, second), (2, 1)] {
            law(after.left[key] + admitted == 2, || {
                format!("key {key}: {admitted} of 2, {} left", after.left[key])
            });
            after.is_found_by_a_handle(key);
        }
    });
}

#[test]
fn a_handle_beside_a_takeover() {
    one_gets_the_slot(LAST_SLOT);
    caught(Fault::TrustsSpot, || one_gets_the_slot(LAST_SLOT));
    caught(Fault::SealsUnseen, || one_gets_the_slot(LAST_SLOT));
    caught(Fault::LoadThenStore, || one_gets_the_slot(LAST_SLOT));
}

/// Two lines. On the first of keys 0 to 2, key 0's entry is past and key 2's is not; on the other one key 3's is
/// past and key 4's is not. Key 1 comes for key 0's slot; the handle's key then comes back on the other line, under
/// the name that it bears there.
const ELSEWHERE: Scene = Scene {
    name: "handle's key brought back on its other line",
    policy: "1/h burst 2",
    burst: 2,
    cast: Cast::TwoBuckets([(true, 0), (true, 0), (true, 1), (false, 0), (false, 1)]),
    before: &[Take(0), Take(3), Wait(MINUTES_10), Take(2), Wait(MINUTES_50), Take(4)],
    threads: &[&[Hold(0), Take(0), Take(0), Take(0)], &[Take(1)]],
    preemptions_max: [2, 0],
    ..LAST_SLOT
};

fn each_finds_a_slot(scene: Scene) {
    scene.play(|after| {
        law(after.admitted[0] == 2, || format!("{} admitted of 2", after.admitted[0]));
        for (key, left) in [(0, 0), (1, 1), (2, 1), (3, 2), (4, 1)] {
            law(after.left[key] == left, || format!("key {key} has {} left of {left}", after.left[key]));
            after.is_found_by_a_handle(key);
        }
        after.one_entry_a_debtor(2);
        after.gets_what_is_left(1);
    });
}

#[test]
fn a_handle_finds_its_key_on_another_line() {
    each_finds_a_slot(ELSEWHERE);
    caught(Fault::TrustsSpot, || each_finds_a_slot(ELSEWHERE));
    // The slot is key 1's by then, and somebody else brings the key in by its hash.
    let by_hash = Scene {
        name: "handle's key brought back on its other line beside a request",
        before: &[Take(0), Take(3), Wait(MINUTES_10), Take(2), Wait(MINUTES_50), Take(4), Take(1)],
        threads: &[&[Hold(0), Take(0), Take(0)], &[Take(0)]],
        ..ELSEWHERE
    };
    each_finds_a_slot(by_hash);
    caught(Fault::TrustsSpot, || each_finds_a_slot(by_hash));
}

/// Key 1 has key 0's first slot, and key 0 is on the other line already, where the handle finds it by a search. Hours
/// later key 3, whose first line that is, comes for the slot.
const LEARNT: Scene = Scene {
    name: "handle beside a takeover of a spot it has learnt",
    policy: "1/h burst 1",
    burst: 1,
    before: &[
        Take(0),
        Take(3),
        Wait(MINUTES_10),
        Take(2),
        Wait(MINUTES_50),
        Take(4),
        Take(1),
        Take(0),
        Wait(MINUTES_50),
    ],
    threads: &[&[Hold(0), Take(0), Take(0), Take(0)], &[Wait(HOUR), Take(3)]],
    ..ELSEWHERE
};

#[test]
fn a_handle_beside_a_takeover_of_a_spot_it_has_learnt() {
    let model = || {
        LEARNT.play(|after| {
            let [admitted, .., newcomer, _] = after.admitted;
            law(newcomer == 1, || "key 3 was refused for somebody else's debt".to_owned());
            law(after.left[3] == 0, || format!("key 3 has {} left of nothing", after.left[3]));
            law(admitted <= 1, || format!("{admitted} admitted within an hour, of 1"));
            // The clock moves on before it is charged, if it is.
            law(after.left[0] + admitted == 1, || format!("{admitted} of 1, {} left", after.left[0]));
            after.is_found_by_a_handle(0);
            after.is_found_by_a_handle(3);
            after.gets_what_is_left(0);
        });
    };
    model();
    caught(Fault::TrustsSpot, model);
}

/// The slot goes through another's hands to a third key, in debt, while the handle reads it. The state's generation
/// is cut down to one bit, so that it is the same again by then.
const TORN: Scene = Scene {
    name: "handle that reads torn between owners",
    policy: "1/h burst 1",
    burst: 1,
    when_full: WhenFull::Allow,
    threads: &[&[Take(1), Wait(HOUR), Take(2), Take(3)], &[Hold(0), Take(0)]],
    preemptions_max: [2, 1],
    ..LAST_SLOT
};

#[test]
fn a_handle_is_never_refused_for_another_keys_debt() {
    let model = || {
        with_generations(0, 1, || {
            TORN.play(|after| {
                law(after.admitted[0] == 1, || "refused for somebody else's debt".to_owned());
            });
        });
    };
    model();
    caught(Fault::NoOwnerCheck, model);
    caught(Fault::TrustsSpot, model);
}
