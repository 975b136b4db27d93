//! Models of slots that change hands once they are worth nothing: a late charge or refund never reaches the
//! next owner (H1), a charge in time is never lost (H3), nobody is refused for somebody else's debt (H5), and
//! a key that was forgotten is not remembered as richer than it was.
#![cfg(tollgate_loom)]

use Act::{Refund, Reset, Take, Wait};
use loom_tests::{Act, After, Cast, Scene, caught, law};
use std::time::Duration;
use tollgate::WhenFull;
use tollgate::model::{Fault, with_generations};

const MINUTES_10: Duration = Duration::from_secs(600);
const MINUTES_50: Duration = Duration::from_secs(3_000);
const HOUR: Duration = Duration::from_secs(3_600);

/// One bucket: key 0 in the lower slot, just worth a fresh one again; key 2 in the upper one, still in debt.
/// Key 0 comes again while key 1 comes for its slot.
const LAST_SLOT: Scene = Scene {
    name: "charge beside a takeover",
    policy: "1/h burst 1",
    burst: 1,
    when_full: WhenFull::Deny,
    cast: Cast::OneBucket([0, 0, 1, 1, 0]),
    before: &[Take(0), Wait(MINUTES_50), Take(2), Wait(MINUTES_10)],
    threads: &[&[Take(0)], &[Take(1)]],
    preemptions_max: [3, 1],
};

/// The slot is one key's or the other's, and what that key was admitted is on its account.
fn one_gets_the_slot(scene: Scene) {
    scene.play(move |after| {
        let [first, second, ..] = after.admitted;
        law(first + second == 1, || format!("{first} and {second} admitted, with a slot for one"));
        for (key, admitted) in [(0, first), (1, second)] {
            law(after.left[key] + admitted == 1, || {
                format!("key {key}: {admitted} of 1, {:?} left", after.left)
            });
        }
        law(after.left[2] == 0, || format!("key 2 has {} left of nothing", after.left[2]));
    });
}

#[test]
fn charge_beside_a_takeover() {
    one_gets_the_slot(LAST_SLOT);
    caught(Fault::SealsUnseen, || one_gets_the_slot(LAST_SLOT));
    caught(Fault::NoSeal, || one_gets_the_slot(LAST_SLOT));
    caught(Fault::LoadThenStore, || one_gets_the_slot(LAST_SLOT));
    caught(Fault::ForgetsDebt, || one_gets_the_slot(LAST_SLOT));
    let twice =
        Scene { threads: &[&[Take(0), Take(1)], &[Take(1), Take(0)]], preemptions_max: [3, 1], ..LAST_SLOT };
    one_gets_the_slot(twice);
    caught(Fault::SealsUnseen, || one_gets_the_slot(twice));
}

#[test]
fn charge_beside_two_takeovers() {
    // Three threads displace each other in turn: with two preemptions it is minutes.
    let scene = Scene {
        name: "charge beside two takeovers",
        threads: &[&[Take(0)], &[Take(1)], &[Take(1)]],
        preemptions_max: [1, 0],
        ..LAST_SLOT
    };
    one_gets_the_slot(scene);
    caught(Fault::SealsUnseen, || one_gets_the_slot(scene));
}

/// Both keys find room, one of them over the other's past entry: each is admitted what it may be.
const ALLOWED: Scene = Scene {
    name: "charges beside a takeover, passing where there is no room",
    policy: "1/h burst 2",
    burst: 2,
    when_full: WhenFull::Allow,
    threads: &[&[Take(0), Take(0)], &[Take(1), Take(1)]],
    preemptions_max: [3, 1],
    ..LAST_SLOT
};

#[test]
fn charges_beside_a_takeover_are_accounted_for() {
    let model = || {
        ALLOWED.play(|after| {
            law(after.admitted[..2] == [2, 2], || format!("{:?} admitted of 2 each", after.admitted));
            let charged: u64 = after.left[..2].iter().map(|left| 2 - left).sum();
            let counted = charged + after.stats.allowed_for_room;
            law(counted == 4, || format!("4 admitted, {counted} accounted for"));
        });
    };
    model();
    caught(Fault::SealsUnseen, model);
    caught(Fault::LoadThenStore, model);
}

/// A request for key 0 reads the clock at its zero and does not find the key. Before it gets any further,
/// another one spends all the key has, an hour passes, and the slot changes hands: the key is forgotten. From
/// zero to the hour two may pass, one at each end.
const HELD_UP: Scene = Scene {
    name: "request held up while its key is forgotten",
    before: &[Take(2)],
    threads: &[&[Take(0), Wait(HOUR), Take(1), Take(0)], &[Take(0)]],
    // Four requests in one thread: with loads in every order, any preemption makes it minutes.
    preemptions_max: [2, 0],
    ..LAST_SLOT
};

fn one_more_within_the_hour(scene: Scene) {
    scene.play(|after| {
        law(after.admitted[0] <= 2, || format!("{} passed within an hour, of 1 and 1", after.admitted[0]));
    });
}

#[test]
fn a_request_held_up_while_its_key_is_forgotten() {
    for policy in ["1/h burst 1", "fixed 1/h", "sliding 1/h"] {
        let scene = Scene { policy, ..HELD_UP };
        one_more_within_the_hour(scene);
    }
    caught(Fault::TrustsOldTime, || one_more_within_the_hour(HELD_UP));
}

/// Key 0 is refunded, or reset, and is then worth nothing; key 1 comes for its slot. Neither touches the other.
const UNDONE: Scene = Scene {
    name: "refund beside a takeover",
    before: &[Take(0), Take(2)],
    threads: &[&[Refund(0), Take(0)], &[Take(1)]],
    ..LAST_SLOT
};

fn undone_for_its_own_key(scene: Scene) {
    scene.play(|after| {
        let [first, second, ..] = after.admitted;
        law(first + second <= 1, || format!("{first} and {second} admitted, with a slot for one"));
        for (key, admitted) in [(0, first), (1, second)] {
            let left = after.left[key];
            law(admitted + left == 1, || {
                format!("key {key} was admitted {admitted} and has {left} left of 1")
            });
        }
        law(after.left[2] == 0, || format!("key 2 has {} left of nothing", after.left[2]));
    });
}

const RESET: Scene =
    Scene { name: "reset beside a takeover", threads: &[&[Reset(0), Take(0)], &[Take(1)]], ..UNDONE };
/// Already past: the takeover need not wait for the refund.
const LATE_REFUND: Scene = Scene {
    name: "late refund beside a takeover",
    // A little more than past, or a refund would have nothing to write.
    before: &[Take(0), Wait(MINUTES_50), Take(2), Wait(MINUTES_10), Wait(MINUTES_10)],
    threads: &[&[Refund(0)], &[Take(1), Take(1)]],
    ..LAST_SLOT
};
const LATE_RESET: Scene = Scene {
    name: "late reset beside a takeover",
    threads: &[&[Reset(0)], &[Take(1), Take(1)]],
    ..LATE_REFUND
};

#[test]
fn refund_or_reset_beside_a_takeover() {
    for scene in [UNDONE, RESET, LATE_REFUND, LATE_RESET] {
        undone_for_its_own_key(scene);
        caught(Fault::LoadThenStore, || undone_for_its_own_key(scene));
    }
}

/// A request of the same key comes while its entry is undone and taken away: it is admitted at most once more.
#[test]
fn refund_beside_a_takeover_and_a_charge() {
    let scene = Scene {
        name: "refund beside a takeover and a charge",
        threads: &[&[Refund(0)], &[Take(1)], &[Take(0)]],
        preemptions_max: [2, 1],
        ..UNDONE
    };
    let model = || {
        scene.play(|after| {
            let [first, second, ..] = after.admitted;
            law(first + second <= 1, || format!("{first} and {second} admitted, with a slot for one"));
            law(first + after.left[0] <= 1, || format!("key 0: {first} and {} left", after.left[0]));
            law(second + after.left[1] == 1, || format!("key 1: {second} and {} left", after.left[1]));
        });
    };
    model();
    caught(Fault::SealsUnseen, model);
    caught(Fault::LoadThenStore, model);
}

/// A slot goes from one key through another's hands to a third, which is in debt. The state's generation is
/// cut down to one bit, so that it is the same again by then. The first key has spent nothing that still
/// counts, and is never refused.
const TORN: Scene = Scene {
    name: "reading torn between owners",
    when_full: WhenFull::Allow,
    preemptions_max: [2, 1],
    threads: &[&[Take(1), Wait(HOUR), Take(2), Take(3)], &[Take(0)]],
    ..LAST_SLOT
};

#[test]
fn a_refusal_is_never_for_another_keys_debt() {
    let model = || {
        with_generations(0, 1, || {
            TORN.play(|after: &After| {
                law(after.admitted[0] == 1, || "refused for somebody else's debt".to_owned());
            });
        });
    };
    model();
    caught(Fault::NoOwnerCheck, model);
}

/// Two lines. On the first of keys 0 to 2, key 0's entry is past and key 2's will be in ten minutes; on the other
/// one key 3's is past. Key 1 comes for key 0's slot, and key 0 comes again by two ways: at the
/// earlier time there is room for it on the other line only, at the later one in key 2's slot. Before
/// key 1 has the slot, key 0 may also revive its entry, or claim the sealed slot back.
const BROUGHT_BACK: Scene = Scene {
    name: "key brought back to both lines, by two threads",
    cast: Cast::TwoBuckets([(true, 0), (true, 0), (true, 1), (false, 0), (false, 1)]),
    before: &[Take(0), Take(3), Wait(MINUTES_10), Take(2), Wait(MINUTES_50), Take(4)],
    threads: &[&[Take(1), Wait(MINUTES_10), Take(0)], &[Take(0)]],
    preemptions_max: [3, 1],
    ..LAST_SLOT
};
/// The same with the takeover beside both.
const BROUGHT_BACK_BY_TWO: Scene = Scene {
    name: "key brought back to both lines, by two of three threads",
    threads: &[&[Take(1)], &[Wait(MINUTES_10), Take(0)], &[Take(0)]],
    preemptions_max: [1, 0],
    ..BROUGHT_BACK
};

fn brought_back_once(scene: Scene) {
    scene.play(move |after| {
        let admitted = after.admitted[0];
        law(admitted == scene.burst, || format!("{admitted} admitted under a burst of {}", scene.burst));
        law(after.left[0] == 0, || format!("key 0 has {} left of nothing", after.left[0]));
        after.one_entry_a_debtor(scene.burst);
        after.gets_what_is_left(0);
    });
}

#[test]
fn a_key_brought_back_to_both_lines() {
    for scene in [BROUGHT_BACK, BROUGHT_BACK_BY_TWO] {
        brought_back_once(scene);
        caught(Fault::NoTwinSearch, || brought_back_once(scene));
        caught(Fault::NoFence, || brought_back_once(scene));
        caught(Fault::LoadThenStore, || brought_back_once(scene));
    }
}
