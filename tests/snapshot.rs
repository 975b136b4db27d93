//! Snapshots: what is restored goes on as if nothing had happened, damage is noticed, and nobody who was
//! admitted is forgotten by closing, with threads and with processes that are killed.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use common::expect;
use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::sample::select;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};
use tollgate::{Cause, Clock, Decision, Limiter, LimiterBuilder, ManualHand, Penalties, WhenFull};

const CASES: u32 = if cfg!(debug_assertions) { 60 } else { 400 };
const SEED: u64 = 0x736e_6170;
const SEEDS: [u64; 4] = [5, 6, 7, 8];
const SECOND: Duration = Duration::from_secs(1);
/// Not a multiple of any window.
const NOON: Duration = Duration::new(1_790_000_123, 456_789_012);

/// Every algorithm, and several together: in one group of cells, and in more.
const POLICIES: [&str; 14] = [
    "3/s",
    "1/s burst 4",
    "7/us burst 3",
    "1000003/s burst 5",
    "fixed 3/s",
    "sliding 4/s",
    "log 1/s",
    "log 6/s",
    "2/s; 5/min",
    "fixed 2/s; log 3/min",
    "sliding 3/s; 4/min burst 2; fixed 9/h",
    "log 2/s; log 3/10s",
    "5/s burst 2; 7/s burst 3; fixed 4/s; sliding 6/s; fixed 9/min",
    "3/s; shadow 2/s",
];

fn check<S: Strategy>(cases: u32, strategy: S, law: impl Fn(S::Value) -> Result<(), String>) {
    common::check_with(SEED, cases, strategy, law);
}

fn clock_at(time: Duration) -> (Clock, ManualHand) {
    let (clock, hand) = Clock::manual();
    hand.set(time);
    (clock, hand)
}

fn builder(policy: &str, clock: Clock) -> LimiterBuilder {
    Limiter::builder().policy(policy).max_keys(100).clock(clock)
}

fn limiter_at(policy: &str, time: Duration) -> (Limiter, ManualHand) {
    let (clock, hand) = clock_at(time);
    (builder(policy, clock).seeds(SEEDS).build().unwrap(), hand)
}

fn refusal(builder: LimiterBuilder) -> String {
    builder.build().unwrap_err().to_string()
}

/// What a decision says.
fn said(decision: Decision) -> (bool, Cause, u64, Option<Duration>, Duration) {
    (
        decision.is_allowed(),
        decision.cause(),
        decision.remaining(),
        decision.retry_after(),
        decision.reset_after(),
    )
}

/// A step of a history: time passes, and one of a few keys asks for so much.
type Step = (Duration, u64, u64);

fn history() -> impl Strategy<Value = Vec<Step>> {
    let times = select(vec![0, 0, 1, 999, 1_000_000, 250_000_000, 999_999_999, 1_000_000_000, 7_300_000_000])
        .prop_map(Duration::from_nanos);
    vec((times, 0..12u64, 1..4u64), 1..60)
}

fn live(limiter: &Limiter, hand: &ManualHand, history: &[Step]) {
    for &(time, key, cost) in history {
        hand.advance(time);
        let _any = limiter.try_acquire_n(&key, cost);
    }
}

#[test]
fn what_is_restored_goes_on_as_if_nothing_had_happened() {
    for policy in POLICIES {
        check(CASES, (history(), history(), any::<bool>()), |(before, after, closing)| {
            let (clock, hand) = clock_at(NOON);
            let (twin, twin_hand) = limiter_at(policy, NOON);
            let limiter = builder(policy, clock.clone()).seeds(SEEDS).build().unwrap();
            live(&limiter, &hand, &before);
            live(&twin, &twin_hand, &before);
            let bytes = if closing { limiter.close() } else { limiter.snapshot() };
            // Time passes while nothing runs.
            let (pause, ..) = after[0];
            hand.advance(pause);
            twin_hand.advance(pause);
            let restored = builder(policy, clock.clone()).restore(&bytes).build().unwrap();
            for &(time, key, cost) in &after {
                for key in 0..12u64 {
                    let (ours, theirs) = (said(restored.peek(&key)), said(twin.peek(&key)));
                    expect(ours == theirs, || format!("{policy}, key {key}: {ours:?}, not {theirs:?}"))?;
                }
                hand.advance(time);
                twin_hand.advance(time);
                let ours = said(restored.try_acquire_n(&key, cost));
                let theirs = said(twin.try_acquire_n(&key, cost));
                expect(ours == theirs, || format!("{policy}, key {key}: {ours:?}, not {theirs:?}"))?;
            }
            Ok(())
        });
    }
}

#[test]
fn a_clock_that_went_back_grants_nothing() {
    // By a little, within a window, by many of them, and to the beginning of time.
    let steps =
        [1, 1_000, 400_000_000, 1_500_000_000, 3_700_000_000_000, 1_000_000_000_000_000_000, u64::MAX];
    for policy in POLICIES {
        check(CASES, (history(), history(), select(steps.to_vec())), |(before, after, step)| {
            let (limiter, hand) = limiter_at(policy, NOON);
            live(&limiter, &hand, &before);
            let bytes = limiter.snapshot();
            let (clock, earlier) = clock_at(hand.now().saturating_sub(Duration::from_nanos(step)));
            let restored = builder(policy, clock).restore(&bytes).build().unwrap();
            for &(time, ..) in &after {
                for key in 0..12u64 {
                    let (ours, theirs) = (restored.peek(&key), limiter.peek(&key));
                    let what = || format!("{policy}, key {key}, back {step}: {ours:?}, not {theirs:?}");
                    expect(ours.remaining() <= theirs.remaining(), what)?;
                    expect(ours.retry_after() >= theirs.retry_after(), what)?;
                    let windows = policy.contains("fixed") || policy.contains("sliding");
                    expect(windows || said(ours) == said(theirs), what)?;
                }
                hand.advance(time);
                earlier.advance(time);
            }
            // Nor is anything kept for ever: two windows later every key is fresh.
            earlier.advance(Duration::from_secs(2 * 3_600));
            for key in 0..12u64 {
                let left = restored.peek(&key).reset_after();
                expect(left == Duration::ZERO, || format!("{policy}, key {key}: {left:?} left"))?;
            }
            Ok(())
        });
    }
}

#[test]
fn much_later_nothing_is_left() {
    // Beyond the range of a word, where an old moment would lie ahead again.
    for policy in POLICIES {
        let (limiter, hand) = limiter_at(policy, NOON);
        for key in 0..12u64 {
            let _any = limiter.try_acquire(&key);
        }
        let bytes = limiter.snapshot();
        for days in [1, 300, 416, 834, 1_668, 3_650] {
            let (clock, _later) = clock_at(hand.now() + Duration::from_secs(86_400 * days));
            let restored = builder(policy, clock).restore(&bytes).build().unwrap();
            assert_eq!(restored.stats().live_keys, 0, "{policy}, {days} days");
        }
    }
}

#[test]
fn tiers_lists_lockouts_and_marks_are_restored() {
    let (clock, hand) = clock_at(NOON);
    let penalties = || Penalties::new([60 * SECOND, 300 * SECOND]).after(2);
    let build = |clock: &Clock| {
        builder("3/min", clock.clone())
            .tier("window", "fixed 5/min")
            .tier("premium", "10/min burst 4")
            .penalties(penalties())
    };
    let limiter = build(&clock).build().unwrap();
    let window = limiter.tier("window").unwrap();
    assert!(window.try_acquire_n("w", 2).is_allowed());
    assert!(limiter.tier("premium").unwrap().try_acquire_n("p", 3).is_allowed());
    limiter.allow("always").unwrap();
    limiter.deny("never").unwrap();
    limiter.deny_for("later", 90 * SECOND).unwrap();
    limiter.deny_for("soon", SECOND).unwrap();
    limiter.allow("taken off").unwrap();
    limiter.unlist("taken off");
    assert!(limiter.once("order", 100 * SECOND).is_allowed());
    for _ in 0..5 {
        let _any = limiter.try_acquire("mallory");
    }
    assert_eq!(limiter.peek("mallory").cause(), Cause::Penalty);
    for _ in 0..4 {
        let _any = limiter.try_acquire("one strike");
    }
    let peeked = |limiter: &Limiter| {
        let keys = ["w", "p", "always", "never", "later", "taken off", "mallory", "one strike", "nobody"];
        let tiers = [limiter.tier("window").unwrap(), limiter.tier("premium").unwrap()];
        keys.map(|key| (said(limiter.peek(key)), tiers.map(|tier| said(tier.peek(key)))))
    };
    let before = peeked(&limiter);
    let bytes = limiter.snapshot();

    let restored = build(&clock).restore(&bytes).build().unwrap();
    assert_eq!(peeked(&restored), before);
    // The same again, by a clock that begins at zero. A window and a lockout may last a little longer.
    let (zero, zero_hand) = Clock::manual();
    let zeroed = build(&zero).restore(&bytes).build().unwrap();
    for (ours, theirs) in peeked(&zeroed).iter().zip(&before) {
        assert_eq!((ours.0.0, ours.0.1, ours.0.2), (theirs.0.0, theirs.0.1, theirs.0.2));
        let longer = ours.0.3.unwrap_or_default().checked_sub(theirs.0.3.unwrap_or_default());
        assert!(longer.unwrap() < Duration::from_millis(3), "{ours:?}, {theirs:?}");
    }
    for (restored, hand) in [(&restored, &hand), (&zeroed, &zero_hand)] {
        let gone = |seconds: u64| hand.advance(Duration::from_secs(seconds));
        assert!(restored.try_acquire("one strike").is_denied());
        assert_eq!(restored.try_acquire("one strike").cause(), Cause::Penalty, "the second strike");
        assert!(restored.once("order", 100 * SECOND).is_denied());
        assert_eq!(restored.peek("soon").cause(), Cause::List);
        gone(2);
        assert_eq!(restored.peek("soon").cause(), Cause::Rule);
        gone(59);
        assert_eq!(restored.try_acquire("mallory").cause(), Cause::Rule, "once is over");
        for _ in 0..4 {
            let _any = restored.try_acquire("mallory");
        }
        let locked = restored.peek("mallory");
        assert!(locked.retry_after() > Some(299 * SECOND), "the second lockout of the schedule: {locked:?}");
        gone(30);
        assert_eq!(restored.peek("later").cause(), Cause::Rule);
        gone(9);
        assert!(restored.once("order", SECOND).is_allowed(), "after its 100 seconds");
        assert_eq!(restored.peek("never").cause(), Cause::List);
        assert!(restored.try_acquire_n("always", 1_000).is_allowed());
    }
    // Without lockouts there is nobody locked out.
    let restored = builder("3/min", clock)
        .tier("window", "fixed 5/min")
        .tier("premium", "10/min burst 4")
        .restore(&bytes)
        .build()
        .unwrap();
    assert_eq!(restored.peek("mallory").cause(), Cause::Rule);
}

#[test]
fn work_in_flight_ends_with_the_process() {
    let (limiter, _hand) = limiter_at("5/min; 1 at once", NOON);
    let permit = limiter.try_start("report").unwrap();
    assert!(limiter.try_start("report").is_err());
    let (clock, _hand) = clock_at(NOON);
    let restored = builder("5/min; 1 at once", clock).restore(&limiter.close()).build().unwrap();
    drop(permit);
    assert!(restored.try_start("report").is_ok());
    assert_eq!(restored.peek("report").remaining(), 1, "one place");
    for _ in 0..3 {
        assert!(restored.try_acquire("report").is_allowed());
    }
    assert!(restored.try_acquire("report").is_denied(), "two were spent before");
}

/// Policies that followed each other over one table: cells that are not where a new limiter has them.
#[test]
fn a_snapshot_does_not_depend_on_policies_before() {
    let histories: [&[&str]; 7] = [
        &["fixed 9/min", "3/s"],
        &["3/s", "5/h"],
        &["5/h", "3/s"],
        &["3/s", "fixed 5/s; 4/min", "sliding 4/s; 7/min; fixed 6/s"],
        &["fixed 1/s; fixed 2/min; fixed 3/h; sliding 4/s; sliding 5/min", "3/min"],
        &["log 5/min", "log 6/min"],
        &["fixed 1/s", "log 6/min; 7/min", "sliding 4/s; log 7/min", "5/h; log 7/min"],
    ];
    for policies in histories {
        for closing in [false, true] {
            for max_keys in [2, 100, 3_000] {
                let what = format!("{policies:?}, {max_keys}");
                let (clock, hand) = clock_at(NOON);
                let builder = || Limiter::builder().max_keys(max_keys).clock(clock.clone());
                let (first, last) = (policies[0], policies[policies.len() - 1]);
                let build = || builder().policy(first).seeds(SEEDS).build().unwrap();
                let (limiter, twin) = (build(), build());
                // Few enough that words which may be in one of several places find room in all of them.
                let keys = 0..(max_keys as u64 / 20).clamp(1, 150);
                for limiter in [&limiter, &twin] {
                    for policy in policies {
                        limiter.set_policy(*policy).unwrap();
                        for key in keys.clone() {
                            let _any = limiter.try_acquire_n(&key, 1 + key % 3);
                        }
                    }
                }
                // By then rules that are not in force have come to nothing.
                hand.advance(3_600 * SECOND);
                for limiter in [&limiter, &twin] {
                    for key in keys.clone() {
                        let _any = limiter.try_acquire_n(&key, 1 + key % 3);
                    }
                }
                let bytes = if closing { limiter.close() } else { limiter.snapshot() };
                let restored = builder().policy(last).restore(&bytes).build().unwrap();
                assert_eq!(restored.stats().evicted, 0, "{what}");
                for _ in 0..4 {
                    for key in keys.clone() {
                        let (ours, theirs) = (said(restored.peek(&key)), said(twin.peek(&key)));
                        assert_eq!(ours, theirs, "{what}, key {key}");
                        let (ours, theirs) = (said(restored.try_acquire(&key)), said(twin.try_acquire(&key)));
                        assert_eq!(ours, theirs, "{what}, key {key}");
                    }
                    hand.advance(20 * SECOND);
                }
                // Once more, of a limiter that was itself restored, into a table of its size.
                let again = builder().policy(last).restore(&restored.snapshot()).build().unwrap();
                assert_eq!(again.stats().slots, limiter.stats().slots, "{what}");
                for key in keys.clone() {
                    assert_eq!(said(again.peek(&key)), said(restored.peek(&key)), "{what}, key {key}");
                }
            }
        }
    }
}

fn a_snapshot() -> Vec<u8> {
    let (limiter, _hand) = limiter_at("2/min; fixed 5/h", NOON);
    for key in 0..5u64 {
        assert!(limiter.try_acquire(&key).is_allowed());
    }
    limiter.deny("key").unwrap();
    limiter.snapshot()
}

fn restoring(bytes: &[u8]) -> LimiterBuilder {
    builder("2/min; fixed 5/h", clock_at(NOON).0).restore(bytes)
}

#[test]
fn every_cut_and_every_flipped_bit_is_noticed() {
    let bytes = a_snapshot();
    assert!(restoring(&bytes).build().is_ok());
    for length in 0..bytes.len() {
        assert!(restoring(&bytes[..length]).build().is_err(), "cut to {length}");
    }
    for bit in 0..8 * bytes.len() {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(restoring(&damaged).build().is_err(), "bit {bit}");
    }
    for more in [&[0][..], &[0; 17], &bytes] {
        assert!(refusal(restoring(&[&bytes[..], more].concat())).contains("bytes and should have"));
    }
    let mut damaged = bytes.clone();
    damaged[100] ^= 4;
    assert!(refusal(restoring(&damaged)).contains("damaged"));
}

#[test]
fn foreign_files_are_refused_by_name() {
    let bytes = a_snapshot();
    let png = *b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89";
    assert!(refusal(restoring(&png)).contains("not a snapshot"));
    assert!(refusal(restoring(b"toll")).contains("not a snapshot"));
    assert!(refusal(restoring(&[])).contains("empty"));
    let mut later = bytes;
    later[8] = 3;
    assert!(refusal(restoring(&later)).contains("of version 3"));
    check(2_000, vec(any::<u8>(), 0..300), |bytes| {
        expect(restoring(&bytes).build().is_err(), || "noise was accepted".to_owned())?;
        let named = [b"tollgate\x02\0\0\0", &bytes[..]].concat();
        expect(restoring(&named).build().is_err(), || "noise was accepted".to_owned())
    });
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// With length and checksum put right: nothing else may be believed without a look.
fn forged(mut bytes: Vec<u8>) -> Vec<u8> {
    let content = bytes.len() - 8;
    bytes[12..20].copy_from_slice(&((content + 8) as u64).to_le_bytes());
    let sum = fnv(&bytes[..content]);
    bytes[content..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn a_forged_snapshot_does_no_harm() {
    let bytes = a_snapshot();
    assert!(restoring(&forged(bytes.clone())).build().is_ok());
    let edits = vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6);
    check(20 * CASES, (edits, any::<bool>()), |(edits, cut)| {
        let mut bytes = bytes.clone();
        for (place, byte) in edits {
            // The number of keys is the builder's: memory for as many as that is not a forger's to take.
            let place = 20 + place.index(bytes.len() - 28);
            bytes[place] = byte;
            if cut {
                bytes.truncate(place + 8);
                if bytes.len() < 40 {
                    break;
                }
            }
        }
        let Ok(limiter) = restoring(&forged(bytes)).prefault(false).build() else { return Ok(()) };
        for key in 0..8u64 {
            let _any = said(limiter.peek(&key));
            let _any = said(limiter.try_acquire(&key));
            limiter.refund(&key, 1);
        }
        let _any = limiter.stats();
        expect(!limiter.close().is_empty(), || "nothing to close".to_owned())
    });
    // Numbers of everything that there can be no memory for.
    let counts = [[0xff; 8], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0x80]];
    for count in counts {
        for place in (20..bytes.len() - 16).step_by(1) {
            let mut bytes = bytes.clone();
            bytes[place..place + 8].copy_from_slice(&count);
            let _any = restoring(&forged(bytes)).prefault(false).build();
        }
    }
}

#[test]
fn a_number_in_a_file_makes_no_larger_table() {
    let bytes = a_snapshot();
    // What no policy of 100 keys needs, and more than any does.
    for lines in [100 * 2_048_u64, 100 * 1_700, 4] {
        let mut bytes = bytes.clone();
        bytes[52..60].copy_from_slice(&lines.to_le_bytes());
        let message = refusal(restoring(&forged(bytes)));
        assert!(message.contains(&format!("no table has {lines} lines")), "{message}");
    }
}

#[test]
fn entries_of_no_line_or_no_rule_are_refused() {
    let bytes = a_snapshot();
    let first = bytes.len() - 8 - 11 * 17;
    for (place, value) in [(first + 3, 0x7f), (first + 4, 0x37), (first + 9, 0xff)] {
        let mut bytes = bytes.clone();
        bytes[place] = value;
        assert!(refusal(restoring(&forged(bytes))).contains("damaged"), "{place}");
    }
    // An entry that is there twice counts once, as the one that owes more.
    let mut twice = bytes.clone();
    twice.splice(bytes.len() - 8..bytes.len() - 8, bytes[first..bytes.len() - 8].to_vec());
    let count = first - 8;
    twice[count..count + 8].copy_from_slice(&22u64.to_le_bytes());
    let (ours, theirs) = (restoring(&forged(twice)).build().unwrap(), restoring(&bytes).build().unwrap());
    assert_eq!(ours.stats(), theirs.stats());
    for key in 0..8u64 {
        assert_eq!(said(ours.peek(&key)), said(theirs.peek(&key)));
    }
}

#[test]
fn another_limiters_snapshot_is_refused_with_the_difference() {
    let (limiter, _hand) = limiter_at("2/min; fixed 5/h", NOON);
    let bytes = limiter.snapshot();
    let build = |policy: &str| Limiter::builder().policy(policy).max_keys(100).restore(&bytes);
    let message = refusal(build("3/min; fixed 5/h"));
    assert!(message.contains("`2/min; fixed 5/h`") && message.contains("`3/min; fixed 5/h`"), "{message}");
    let message = refusal(build("2/min; fixed 5/h").max_keys(101));
    assert!(message.contains("max_keys(100)") && message.contains("max_keys(101)"), "{message}");
    assert!(refusal(build("2/min; fixed 5/h").seeds([1, 2, 3, 4])).contains("seeds"));
    assert!(build("2/min; fixed 5/h").seeds(SEEDS).build().is_ok());
    assert!(build("2 per minute; fixed 5/hour").build().is_ok(), "the same, in other words");
    let message = refusal(build("2/min; fixed 5/h").tier("gold", "5/s"));
    assert!(message.contains("`gold`"), "{message}");

    let tiered = |policy: &str| Limiter::builder().policy("1/s").tier("gold", policy);
    let bytes = tiered("5/s").build().unwrap().snapshot();
    let message = refusal(tiered("6/s").restore(&bytes));
    assert!(
        message.contains("`gold`") && message.contains("`5/s`") && message.contains("`6/s`"),
        "{message}"
    );
}

#[test]
fn a_closed_limiter_refuses_and_has_nothing_more_to_say() {
    for policy in POLICIES {
        let (limiter, _hand) = limiter_at(policy, NOON);
        let handle = limiter.key("handle");
        assert!(limiter.try_acquire("known").is_allowed() && handle.try_acquire().is_allowed());
        assert!(!limiter.close().is_empty());
        for decision in [limiter.try_acquire("known"), limiter.try_acquire("new"), handle.try_acquire()] {
            assert_eq!((decision.is_denied(), decision.cause()), (true, Cause::Closed), "{policy}");
        }
        limiter.refund("known", 1);
        limiter.reset("known");
        assert!(limiter.allow("known").is_err());
        assert!(limiter.try_acquire("known").is_denied());
        assert!(limiter.close().is_empty() && limiter.snapshot().is_empty());
        assert_eq!(limiter.stats().live_keys, 0);
    }
}

const THREADS: usize = 4;
const KEYS: u64 = 40;

/// What threads were admitted, a key, until `enough`.
fn hammer(limiter: &Limiter, enough: &AtomicBool, salt: u64) -> Vec<u64> {
    hammer_and_tell(limiter, enough, salt, &|_, _| {})
}

/// The same, telling of each key that was admitted, and how often it was.
fn hammer_and_tell(limiter: &Limiter, enough: &AtomicBool, salt: u64, tell: &dyn Fn(u64, u64)) -> Vec<u64> {
    let mut admitted = vec![0; KEYS as usize];
    let mut turn = salt;
    while !enough.load(Ordering::Relaxed) {
        turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = (turn >> 33) % KEYS;
        if limiter.try_acquire(&key).is_allowed() {
            admitted[key as usize] += 1;
            tell(key, admitted[key as usize]);
        }
    }
    admitted
}

fn drained(limiter: &Limiter, key: u64) -> u64 {
    let mut admitted = 0;
    while limiter.try_acquire(&key).is_allowed() {
        admitted += 1;
    }
    admitted
}

/// The clock stands still: whoever was told that it may pass is in the snapshot of `close`, to the last one.
#[test]
fn closing_forgets_nobody() {
    let rounds = if cfg!(debug_assertions) { 30 } else { 300 };
    let mut in_time = 0;
    // The last one a key may be found halfway through.
    for (policy, burst, exact) in [
        ("500/h", 500, true),
        ("fixed 500/h", 500, true),
        ("sliding 500/h", 500, true),
        ("log 20/h", 20, true),
        ("500/h; fixed 400/h", 400, false),
    ] {
        for round in 0..rounds {
            let (limiter, _hand) = limiter_at(policy, Duration::from_secs(3_600 * 500_000));
            let (enough, ready) = (AtomicBool::new(false), Barrier::new(THREADS + 1));
            let begun = AtomicBool::new(false);
            let (counts, bytes) = thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS as u64)
                    .map(|salt| {
                        scope.spawn({
                            let (limiter, enough, ready, begun) = (&limiter, &enough, &ready, &begun);
                            move || {
                                ready.wait();
                                let tell = |_, _| begun.store(true, Ordering::Relaxed);
                                hammer_and_tell(limiter, enough, salt, &tell)
                            }
                        })
                    })
                    .collect();
                ready.wait();
                // From the first requests, which bring the keys in, to late.
                while !begun.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                for _ in 0..round * 40 {
                    std::hint::spin_loop();
                }
                let bytes = limiter.close();
                // A little on: they must be refused.
                for _ in 0..2_000 {
                    std::hint::spin_loop();
                }
                enough.store(true, Ordering::Relaxed);
                let counts: Vec<Vec<u64>> =
                    threads.into_iter().map(|thread| thread.join().unwrap()).collect();
                (counts, bytes)
            });
            let total: u64 = counts.iter().flatten().sum();
            in_time += u32::from(total > 0 && total < burst * KEYS);
            let (clock, _hand) = clock_at(Duration::from_secs(3_600 * 500_000));
            let restored = builder(policy, clock).restore(&bytes).build().unwrap();
            for key in 0..KEYS {
                let before: u64 = counts.iter().map(|counts| counts[key as usize]).sum();
                let after = drained(&restored, key);
                assert!(before + after <= burst, "{policy}, round {round}: {before} and {after} of {burst}");
                let halfway = if exact { 0 } else { THREADS as u64 };
                assert!(before + after + halfway >= burst, "{policy}, round {round}: {before} and {after}");
            }
        }
    }
    assert!(in_time > 0, "closed too early or too late, every time");
    println!("{in_time} rounds were closed halfway");
}

#[test]
fn a_snapshot_is_taken_while_threads_go_on() {
    let (limiter, _hand) = limiter_at("5000/h", NOON);
    let enough = AtomicBool::new(false);
    let snapshots = thread::scope(|scope| {
        let threads = [1, 2, 3].map(|salt| {
            let (limiter, enough) = (&limiter, &enough);
            scope.spawn(move || hammer(limiter, enough, salt))
        });
        let snapshots: Vec<_> = (0..100).map(|_| limiter.snapshot()).collect();
        enough.store(true, Ordering::Relaxed);
        let counts = threads.map(|thread| thread.join().unwrap());
        let total: u64 = counts.iter().flatten().sum();
        assert_eq!(total, (0..KEYS).map(|key| 5_000 - limiter.peek_n(&key, 0).remaining()).sum::<u64>());
        snapshots
    });
    // Nobody is richer than in the snapshot before, nor poorer than at the end.
    let mut last = vec![5_000; KEYS as usize];
    for bytes in snapshots {
        let restored = builder("5000/h", clock_at(NOON).0).restore(&bytes).build().unwrap();
        for key in 0..KEYS {
            let left = restored.peek_n(&key, 0).remaining();
            assert!(left <= last[key as usize] && left >= limiter.peek_n(&key, 0).remaining());
            last[key as usize] = left;
        }
    }
}

#[test]
fn a_full_table_is_restored_whole() {
    let (limiter, _hand) = limiter_at("3/h", NOON);
    let fill = |limiter: &Limiter| (0..5_000u64).filter(|key| limiter.try_acquire(key).is_allowed()).count();
    assert_eq!(fill(&limiter), 5_000);
    let stats = limiter.stats();
    assert_eq!((stats.live_keys, stats.evicted > 0), (stats.slots, true));
    for when_full in [WhenFull::Deny, WhenFull::Evict] {
        let restored = builder("3/h", clock_at(NOON).0).when_full(when_full).restore(&limiter.snapshot());
        let restored = restored.build().unwrap();
        assert_eq!((restored.stats().live_keys, restored.stats().evicted), (stats.slots, 0));
    }
}

const BURST: u64 = 200;
const RATE: u64 = 10;
const CHILD: &str = "TOLLGATE_SNAPSHOT_CHILD";

fn served(path: &Path) -> Limiter {
    let builder = Limiter::builder().policy("10/s burst 200").max_keys(100);
    match fs::read(path) {
        Ok(bytes) => builder.restore(&bytes).build().unwrap(),
        Err(_) => builder.build().unwrap(),
    }
}

/// The process that is killed: run by the test below, and nothing by itself.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn child() {
    let Some(path) = env::var_os(CHILD).map(PathBuf::from) else { return };
    let limiter = served(&path);
    let enough = AtomicBool::new(false);
    let counts = thread::scope(|scope| {
        let threads = [1, 2, 3].map(|salt| {
            let (limiter, enough) = (&limiter, &enough);
            scope.spawn(move || hammer(limiter, enough, salt))
        });
        // Under load, and not before every thread has had a turn.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(100) {
            thread::yield_now();
        }
        let bytes = limiter.close();
        let beside = path.with_extension("new");
        fs::write(&beside, bytes).unwrap();
        fs::rename(&beside, &path).unwrap();
        enough.store(true, Ordering::Relaxed);
        threads.map(|thread| thread.join().unwrap())
    });
    let admitted = (0..KEYS as usize).map(|key| counts.iter().map(|counts| counts[key]).sum::<u64>());
    let admitted: Vec<_> = admitted.map(|count| count.to_string()).collect();
    println!("\nadmitted {}", admitted.join(" "));
    // Until it is killed.
    loop {
        thread::park();
    }
}

#[test]
fn a_process_that_is_killed_and_restarted_keeps_the_bounds() {
    let path = env::temp_dir().join(format!("tollgate-snapshot-{}", std::process::id()));
    let start = Instant::now();
    let mut admitted = vec![0; KEYS as usize];
    let restarts = 5;
    for _ in 0..restarts {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let counts = lines.map_while(Result::ok).find_map(|line| {
            Some(line.strip_prefix("admitted ")?.split(' ').map(|count| count.parse().unwrap()).collect())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let counts: Vec<u64> = counts.expect("what the child was admitted");
        for (sum, count) in admitted.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    let elapsed = start.elapsed();
    fs::remove_file(&path).unwrap();
    let bound = BURST + (elapsed.as_millis() as u64 * RATE).div_ceil(1_000);
    for count in admitted {
        assert!((BURST..=bound).contains(&count), "{count} admitted, at most {bound} in {elapsed:?}");
    }
    assert!(bound < BURST * restarts, "too slow to tell anything: {elapsed:?}");
}

/// After a crash nobody knows who has come since: every key, known or not, begins with nothing left.
#[test]
fn after_a_crash_every_key_begins_with_nothing_left() {
    for policy in POLICIES {
        let (limiter, hand) = limiter_at(policy, NOON);
        for key in 0..6u64 {
            let _any = limiter.try_acquire(&key);
        }
        limiter.deny("never").unwrap();
        let bytes = limiter.snapshot();
        hand.advance(SECOND / 2);
        let (clock, hand) = clock_at(hand.now());
        let limiter = builder(policy, clock.clone()).restore_after_crash(&bytes).build().unwrap();
        assert_eq!(limiter.peek("never").cause(), Cause::List);
        let handle = limiter.key("another");
        for key in 0..12u64 {
            assert!(limiter.peek(&key).is_denied(), "{policy}, key {key}");
            assert!(limiter.try_acquire(&key).is_denied() && handle.try_acquire().is_denied(), "{policy}");
        }
        // What is written down of it says so too.
        let again = builder(policy, clock).restore(&limiter.close()).build().unwrap();
        for key in 20..24u64 {
            let wait = again.peek(&key).retry_after();
            assert!(wait.is_some() && again.try_acquire(&key).is_denied(), "{policy}, key {key}");
            assert_eq!(again.try_acquire(&key).retry_after(), wait, "{policy}, key {key}");
        }
        let wait = again.peek("new").retry_after().unwrap();
        hand.advance(wait - Duration::from_nanos(1));
        assert!(again.try_acquire("new").is_denied(), "{policy}");
        hand.advance(Duration::from_nanos(1));
        assert!(again.try_acquire("new").is_allowed(), "{policy}");
        hand.advance(Duration::from_secs(2 * 3_600));
        for key in 0..40u64 {
            assert_eq!(again.peek(&key).reset_after(), Duration::ZERO, "{policy}");
        }
    }
}

#[cfg(unix)]
mod crash {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::FileExt;

    const CHILD: &str = "TOLLGATE_CRASH_CHILD";
    const POLICY: &str = "1/s burst 200";
    const COUNTS: usize = 3 * KEYS as usize;

    fn counts_beside(path: &Path) -> PathBuf {
        path.with_extension("counts")
    }

    /// The process that is killed: run by the test below, and nothing by itself. It writes down what it knows now and
    /// then, and what it admits at once.
    #[test]
    #[ignore = "run by another test, as a process of its own"]
    fn child() {
        let Some(path) = env::var_os(CHILD).map(PathBuf::from) else { return };
        let builder = Limiter::builder().policy(POLICY).max_keys(100);
        let limiter = match fs::read(&path) {
            Ok(bytes) => builder.restore_after_crash(&bytes).build().unwrap(),
            Err(_) => builder.build().unwrap(),
        };
        let counts = OpenOptions::new().write(true).open(counts_beside(&path)).unwrap();
        let never = AtomicBool::new(false);
        thread::scope(|scope| {
            let write_down = || {
                let beside = path.with_extension("new");
                fs::write(&beside, limiter.snapshot()).unwrap();
                fs::rename(&beside, &path).unwrap();
            };
            write_down();
            for salt in 0..3 {
                let (limiter, never, counts) = (&limiter, &never, &counts);
                scope.spawn(move || {
                    hammer_and_tell(limiter, never, salt, &|key, count| {
                        counts.write_all_at(&count.to_le_bytes(), (salt * KEYS + key) * 8).unwrap();
                    })
                });
            }
            loop {
                thread::park_timeout(Duration::from_millis(300));
                write_down();
            }
        });
    }

    fn counted(counts: &File) -> Vec<u64> {
        let mut bytes = [0; COUNTS * 8];
        counts.read_exact_at(&mut bytes, 0).unwrap();
        bytes.chunks_exact(8).map(|count| u64::from_le_bytes(count.try_into().unwrap())).collect()
    }

    /// Killed in the middle, with whatever was written down last: no key gets more than its bound over the whole run.
    #[test]
    fn a_process_killed_at_any_time_keeps_the_bounds() {
        let path = env::temp_dir().join(format!("tollgate-crash-{}", std::process::id()));
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true);
        let counts = options.open(counts_beside(&path)).unwrap();
        let start = Instant::now();
        let mut admitted = vec![0; KEYS as usize];
        // The first has whole bursts to give, the others what comes back.
        for enough in [BURST * KEYS * 3 / 4, 10, 10, 10] {
            counts.write_all_at(&[0; COUNTS * 8], 0).unwrap();
            let mut child = Command::new(env::current_exe().unwrap())
                .args(["--exact", "crash::child", "--ignored", "--nocapture"])
                .env(CHILD, &path)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            while counted(&counts).iter().sum::<u64>() < enough {
                assert!(child.try_wait().unwrap().is_none(), "the child has ended by itself");
                thread::yield_now();
            }
            child.kill().unwrap();
            child.wait().unwrap();
            for (index, count) in counted(&counts).into_iter().enumerate() {
                admitted[index % KEYS as usize] += count;
            }
        }
        let elapsed = start.elapsed();
        for leftover in [path.clone(), counts_beside(&path)] {
            fs::remove_file(leftover).unwrap();
        }
        let bound = BURST + elapsed.as_secs() + 1;
        for count in admitted {
            assert!(count <= bound, "{count} admitted, at most {bound} in {elapsed:?}");
        }
        assert!(bound < 2 * BURST, "too slow to tell anything: {elapsed:?}");
    }
}
