//! Models of keys that come into the table: one entry a key, whoever brings it in (H2), and across the wrap
//! of the generations (H6).
#![cfg(tollgate_loom)]

use Act::{Take, Wait};
use loom_tests::{Act, Cast, Scene, caught, law};
use std::time::Duration;
use tollgate::WhenFull;
use tollgate::model::{Fault, with_generations};

const MINUTES_10: Duration = Duration::from_secs(600);
const MINUTES_50: Duration = Duration::from_secs(3_000);

const ONE_BUCKET: Cast = Cast::OneBucket([0, 0, 1, 1]);

/// One empty bucket, and the same fresh key from two threads.
const TWO_THREADS: Scene = Scene {
    name: "insert, same key, two threads",
    policy: "1/h burst 1",
    burst: 1,
    when_full: WhenFull::Deny,
    cast: ONE_BUCKET,
    before: &[],
    threads: &[&[Take(0)], &[Take(0)]],
    preemptions_max: [3, 2],
};

/// As much as the burst is admitted, and all of it is on the key's account.
fn exactly_the_burst(scene: Scene) {
    scene.play(move |after| {
        let admitted = after.admitted[0];
        law(admitted == scene.burst, || format!("{admitted} admitted under a burst of {}", scene.burst));
        after.each_has_paid_its_own(scene.burst, &[0]);
        after.gets_what_is_left(0);
    });
}

#[test]
fn same_key_by_two() {
    exactly_the_burst(TWO_THREADS);
    caught(Fault::LoadThenStore, || exactly_the_burst(TWO_THREADS));
    let twice =
        Scene { policy: "1/h burst 2", burst: 2, threads: &[&[Take(0), Take(0)], &[Take(0)]], ..TWO_THREADS };
    exactly_the_burst(twice);
    caught(Fault::LoadThenStore, || exactly_the_burst(twice));
}

#[test]
fn same_key_by_three() {
    // Three threads in the claim at once: a third preemption makes it minutes.
    let scene = Scene {
        name: "insert, same key, three threads",
        threads: &[&[Take(0)], &[Take(0)], &[Take(0)]],
        preemptions_max: [2, 1],
        ..TWO_THREADS
    };
    exactly_the_burst(scene);
    caught(Fault::LoadThenStore, || exactly_the_burst(scene));
}

/// Two keys that want the same slot: each gets its burst, and pays for itself.
fn each_its_own(scene: Scene) {
    scene.play(move |after| {
        law(after.admitted[..2] == [1, 1], || format!("{:?} admitted of 1 each", after.admitted));
        after.each_has_paid_its_own(scene.burst, &[0, 1]);
        after.gets_what_is_left(0);
        after.gets_what_is_left(1);
    });
}

#[test]
fn two_keys_that_want_the_same_slot() {
    let scene = Scene {
        name: "insert, two keys, same slot",
        threads: &[&[Take(0), Take(0)], &[Take(1), Take(1)]],
        ..TWO_THREADS
    };
    each_its_own(scene);
    caught(Fault::LoadThenStore, || each_its_own(scene));
}

/// Two buckets. The first thread sees its key's home half full, of the key it has just brought, and goes to
/// the other; the second one may have seen it empty.
const DIFFERENT_BUCKETS: Scene = Scene {
    name: "insert, same key, home seen empty and half full",
    cast: Cast::TwoBuckets([(true, 0), (true, 1), (false, 0), (false, 1)]),
    threads: &[&[Take(1), Take(0)], &[Take(0)]],
    preemptions_max: [2, 1],
    ..TWO_THREADS
};

/// One bucket of two entries that are both past. The first thread's clock shows only the upper one so, the
/// second's both: it takes the lower one.
const DIFFERENT_TIMES: Scene = Scene {
    name: "insert, same key, over entries past at different times",
    cast: Cast::OneBucket([0, 0, 1, 1]),
    // Key 1 in way 0 at 10 minutes, key 2 in way 1 at 0.
    before: &[Take(2), Wait(MINUTES_10), Take(1), Wait(MINUTES_50)],
    threads: &[&[Wait(MINUTES_10), Take(0)], &[Take(0)]],
    ..TWO_THREADS
};

fn one_of_twins(scene: Scene) {
    scene.play(move |after| {
        law(after.admitted[0] == 1, || format!("{} admitted under a burst of 1", after.admitted[0]));
        after.gets_what_is_left(0);
    });
}

#[test]
fn twins_in_different_buckets() {
    one_of_twins(DIFFERENT_BUCKETS);
    caught(Fault::NoTwinSearch, || one_of_twins(DIFFERENT_BUCKETS));
    caught(Fault::NoFence, || one_of_twins(DIFFERENT_BUCKETS));
    caught(Fault::TidiesUnsealed, || one_of_twins(DIFFERENT_BUCKETS));
    caught(Fault::LoadThenStore, || one_of_twins(DIFFERENT_BUCKETS));
}

/// The same, and another key moves into the slot that one of the twins was withdrawn from, beside whoever was about to
/// commit there.
#[test]
fn a_withdrawn_twins_slot_is_moved_into() {
    let scene = Scene {
        name: "insert, same key, and another where one is withdrawn",
        threads: &[&[Take(1), Take(0)], &[Take(0), Take(3)]],
        preemptions_max: [3, 1],
        ..DIFFERENT_BUCKETS
    };
    let model = || {
        scene.play(move |after| {
            law(after.admitted == [1, 1, 0, 1], || format!("{:?} admitted of 1 each", after.admitted));
            after.each_has_paid_its_own(1, &[0, 1, 3]);
            after.one_entry_a_debtor(1);
        });
    };
    model();
    caught(Fault::TidiesUnsealed, model);
    caught(Fault::NoTwinSearch, model);
}

#[test]
fn twins_in_one_bucket() {
    one_of_twins(DIFFERENT_TIMES);
    caught(Fault::NoTwinSearch, || one_of_twins(DIFFERENT_TIMES));
    caught(Fault::NoFence, || one_of_twins(DIFFERENT_TIMES));
    caught(Fault::LoadThenStore, || one_of_twins(DIFFERENT_TIMES));
}

/// The bucket is full, and one of its entries past: whoever comes second finds the key in its place.
const OVER_A_PAST_ENTRY: Scene = Scene {
    name: "insert, same key, over a past entry",
    policy: "1/h burst 2",
    burst: 2,
    before: &[Take(1), Wait(MINUTES_50), Take(2), Wait(MINUTES_10)],
    ..TWO_THREADS
};

#[test]
fn same_key_in_the_last_slot() {
    for when_full in [WhenFull::Deny, WhenFull::Allow, WhenFull::Evict] {
        let scene = Scene { when_full, ..OVER_A_PAST_ENTRY };
        let model = || {
            scene.play(move |after| {
                law(after.admitted[0] == 2, || format!("{} admitted of 2", after.admitted[0]));
                after.each_has_paid_its_own(2, &[0]);
                let troubles = (after.stats.evicted, after.stats.allowed_for_room);
                law(troubles == (0, 0), || format!("{troubles:?} evicted and let pass with room for all"));
            });
        };
        model();
        caught(Fault::LoadThenStore, model);
    }
}

/// The generation before both wraps, of the owner's 16 bits and of the state's 7; and that of the latter only.
const LAST_GENERATIONS: [u64; 2] = [0xffff, 0x7f];

#[test]
fn generations_wrap() {
    for first in LAST_GENERATIONS {
        let scenes = [TWO_THREADS, DIFFERENT_TIMES];
        for scene in scenes.map(|scene| Scene { preemptions_max: [3, 1], ..scene }) {
            with_generations(first, u64::MAX, || one_of_twins(scene));
        }
        with_generations(first, u64::MAX, || {
            caught(Fault::NoTwinSearch, || one_of_twins(DIFFERENT_TIMES));
        });
    }
}
