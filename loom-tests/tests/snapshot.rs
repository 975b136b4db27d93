//! Models of snapshots that are taken while others go on: each entry is a key's own state at some moment, what was
//! charged before is in it, and one that is taken beside the closing is whole or says that it is not.
#![cfg(tollgate_loom)]

use Act::{Close, Take, TakeMany, Wait, WriteDown};
use loom_tests::{Act, After, Cast, KEYS, Scene, caught, law};
use std::time::Duration;
use tollgate::WhenFull;
use tollgate::model::{Fault, with_generations};

const MINUTES_10: Duration = Duration::from_secs(600);
const MINUTES_50: Duration = Duration::from_secs(3_000);
const HOUR: Duration = Duration::from_secs(3_600);

/// Two keys, of which one is charged meanwhile.
const CHARGED: Scene = Scene {
    name: "snapshot beside charges",
    policy: "1/h burst 4",
    burst: 4,
    when_full: WhenFull::Deny,
    cast: Cast::OneBucket([0, 0, 1, 1, 0]),
    before: &[Take(0), TakeMany(2, 3)],
    threads: &[&[WriteDown], &[Take(0), Take(0)]],
    preemptions_max: [3, 3],
};

/// What each key has left in the snapshot is what it had at some moment: one of these.
fn is_of_some_moment(after: &After, moments: [&[u64]; KEYS]) {
    for written in &after.written {
        let left = after.left_in(written);
        for (key, moments) in moments.into_iter().enumerate() {
            law(moments.contains(&left[key]), || {
                format!("key {key} has {} left in a snapshot, and never had but {moments:?}", left[key])
            });
        }
    }
}

#[test]
fn a_snapshot_beside_charges() {
    CHARGED.play(|after| is_of_some_moment(after, [&[3, 2, 1], &[4], &[1], &[4], &[4]]));
    // Who charges and then writes down finds that; whatever another one does to both keys meanwhile.
    let model = || {
        let threads: &[&[Act]] = &[&[Take(0), WriteDown], &[Take(0), Take(2)]];
        let scene = Scene { name: "charge and then a snapshot", threads, ..CHARGED };
        scene.play(|after| is_of_some_moment(after, [&[2, 1], &[4], &[1, 0], &[4], &[4]]));
    };
    model();
    caught(Fault::LeavesOut, model);
}

/// Key 0's entry is past, and key 1 takes its slot.
const TAKEOVER: Scene = Scene {
    name: "snapshot beside a takeover",
    before: &[Take(0), Wait(MINUTES_50), TakeMany(2, 2), Wait(MINUTES_10)],
    threads: &[&[WriteDown], &[TakeMany(1, 3), Take(1)]],
    preemptions_max: [3, 3],
    ..CHARGED
};

#[test]
fn a_snapshot_beside_a_takeover() {
    TAKEOVER.play(|after| is_of_some_moment(after, [&[4], &[4, 1, 0], &[2], &[4], &[4]]));
    // Key 0 comes back for its slot, or does not get it any more.
    let contended: &[&[Act]] = &[&[WriteDown], &[TakeMany(1, 3)], &[TakeMany(0, 2)]];
    Scene { threads: contended, preemptions_max: [2, 1], ..TAKEOVER }
        .play(|after| is_of_some_moment(after, [&[4, 2], &[4, 1], &[2], &[4], &[4]]));
}

/// The slot goes from key 0 through key 1's hands to key 3. The state's generation is cut down to one bit, so that it is
/// the same again by then.
const TORN: Scene = Scene {
    name: "snapshot torn between owners",
    before: &[Take(0), Wait(MINUTES_50), TakeMany(2, 2), Wait(MINUTES_10)],
    threads: &[&[Take(1), Wait(HOUR), Take(2), TakeMany(3, 3)], &[WriteDown]],
    preemptions_max: [3, 2],
    ..CHARGED
};

#[test]
fn an_entry_is_never_one_keys_with_anothers_state() {
    let model = || {
        with_generations(0, 1, || {
            TORN.play(|after| is_of_some_moment(after, [&[4], &[4], &[3, 2], &[4, 1], &[4]]));
        });
    };
    model();
    caught(Fault::NoOwnerCheck, model);
}

/// A snapshot and the closing, at which the slots are sealed one by one.
#[test]
fn a_snapshot_beside_the_closing_is_whole_or_empty() {
    let model = || {
        let threads: &[&[Act]] = &[&[WriteDown], &[Close]];
        Scene { name: "snapshot beside the closing", threads, ..CHARGED }.play(|after| {
            let [written, closed] = &after.written[..] else { return };
            for bytes in [written, closed] {
                let left = if bytes.is_empty() { [3, 4, 1, 4, 4] } else { after.left_in(bytes) };
                law(left == [3, 4, 1, 4, 4], || format!("{left:?} left in a snapshot of 3 and 1"));
            }
            law(!closed.is_empty(), || "nothing was written down at the closing".to_owned());
        });
    };
    model();
    caught(Fault::AsksTooEarly, model);
}
