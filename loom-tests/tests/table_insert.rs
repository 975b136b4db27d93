//! Models of keys that come into the table: one entry a key, whoever brings it in (H2), and across the wrap
//! of the generations (H6).
#![cfg(tollgate_loom)]

use Act::{Abandon, Take, TakeMany, Wait};
use loom_tests::{Act, Cast, Scene, caught, law};
use std::time::Duration;
use tollgate::WhenFull;
use tollgate::model::TakeoverStep::Claim;
use tollgate::model::{Fault, with_generations};

const MINUTES_10: Duration = Duration::from_secs(600);
const MINUTES_40: Duration = Duration::from_secs(2_400);
const MINUTES_50: Duration = Duration::from_secs(3_000);
const HOUR: Duration = Duration::from_secs(3_600);

const ONE_BUCKET: Cast = Cast::OneBucket([0, 0, 1, 1, 0]);

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

/// Two lines, full but for entries that are past: key 3's on the second by the first thread's clock, and key 1's on
/// the first, where key 0 is looked for, by the second's.
const DIFFERENT_LINES: Scene = Scene {
    name: "insert, same key, room on either line",
    cast: Cast::TwoBuckets([(true, 0), (true, 0), (true, 1), (false, 0), (false, 1)]),
    // Key 3 at 0, key 1 at 10 minutes, keys 2 and 4 at 50.
    before: &[Take(3), Wait(MINUTES_10), Take(1), Wait(MINUTES_40), Take(2), Take(4), Wait(MINUTES_10)],
    threads: &[&[Take(0)], &[Wait(MINUTES_10), Take(0)]],
    preemptions_max: [3, 1],
    ..TWO_THREADS
};
/// The same, begun by the thread that comes at the earlier time: loom begins with the last one.
const EARLIER_FIRST: Scene = Scene {
    name: "insert, same key, room on either line, the earlier first",
    threads: &[&[Wait(MINUTES_10), Take(0)], &[Take(0)]],
    preemptions_max: [2, 0],
    ..DIFFERENT_LINES
};

/// One bucket of two entries that are both past. The first thread's clock shows only the upper one so, the
/// second's both: it takes the lower one.
const DIFFERENT_TIMES: Scene = Scene {
    name: "insert, same key, over entries past at different times",
    cast: Cast::OneBucket([0, 0, 1, 1, 0]),
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
fn twins_on_different_lines() {
    one_of_twins(DIFFERENT_LINES);
    caught(Fault::NoTwinSearch, || one_of_twins(DIFFERENT_LINES));
    one_of_twins(EARLIER_FIRST);
    caught(Fault::SearchesOneLine, || one_of_twins(EARLIER_FIRST));
    caught(Fault::NoFence, || one_of_twins(EARLIER_FIRST));
    // Whoever is withdrawn is about to charge: a preemption more.
    let withdrawn = Scene { preemptions_max: [3, 0], ..EARLIER_FIRST };
    caught(Fault::TidiesUnsealed, || one_of_twins(withdrawn));
    caught(Fault::LoadThenStore, || one_of_twins(DIFFERENT_LINES));
}

/// Key 0 was claimed for on the second line by a thread that stopped, and key 3 is there too, counted on the same slot.
/// One thread goes on with the claim; the other takes key 3's slot, which is then not counted any more, and looks for
/// key 0 when there is room on the first line as well.
#[test]
fn a_claim_is_counted_before_it_is_made() {
    let scene = Scene {
        name: "claim beside one that is counted no more",
        // Enough for one who comes with a time from before that hour, too.
        policy: "1/h burst 3",
        burst: 3,
        cast: Cast::TwoBuckets([(true, 0), (true, 0), (true, 1), (true, 0), (true, 1)]),
        before: &[TakeMany(1, 2), TakeMany(2, 2), Take(3), Wait(HOUR), Abandon(0, Claim)],
        threads: &[&[Take(0)], &[Take(4), Wait(HOUR), Take(0)]],
        preemptions_max: [3, 1],
        ..TWO_THREADS
    };
    let model = || {
        scene.play(|after| {
            law(after.admitted[0] == 2, || format!("{} admitted of 2", after.admitted[0]));
            after.one_entry_a_debtor(3);
        });
    };
    model();
    caught(Fault::CountsLate, model);
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

/// The generation before both wraps, of the owner's 11 bits and of the state's 7; and that of the latter only.
const LAST_GENERATIONS: [u64; 2] = [0x7ff, 0x7f];

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
