//! A thread that is stopped for ever in the middle of a takeover: the others go on, on that key too (H4).

use super::word::{Name, State};
use super::{TakeoverStep, WhenFull};
use crate::{Clock, Limiter, ManualHand};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const STEPS: [TakeoverStep; 4] =
    [TakeoverStep::Count, TakeoverStep::Seal, TakeoverStep::Claim, TakeoverStep::Withdraw];
const BURST: u64 = 3;
/// All slots of the smallest table, which are in one bucket.
const SLOTS: u64 = 8;
const HOUR: Duration = Duration::from_secs(3_600);
/// The key that the stopped thread was making room for.
const STOPPED: &str = "stopped";

/// What the stopped thread had before it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Slot {
    Empty,
    /// Another key's, and worth nothing.
    Expired,
    /// Its own, and worth nothing.
    Own,
    /// Claimed by another key whose thread was stopped too; all others are live.
    Foreign,
}

const SLOTS_FOUND: [Slot; 4] = [Slot::Empty, Slot::Expired, Slot::Own, Slot::Foreign];

fn limiter(when_full: WhenFull, seed: u64) -> (Limiter, ManualHand) {
    let (clock, hand) = Clock::manual();
    hand.set(Duration::from_secs(1_790_000_000));
    let builder = Limiter::builder().policy("3/h").max_keys(8).when_full(when_full).clock(clock);
    let limiter = builder.seeds([seed, 2, 3, 4]).build().expect("a small limiter");
    assert_eq!(limiter.stats().slots as u64, SLOTS);
    (limiter, hand)
}

/// A limiter in which a thread was stopped. Returns how many keys are live.
fn stopped(found: Slot, step: TakeoverStep, when_full: WhenFull, seed: u64) -> (Limiter, ManualHand, u64) {
    let (limiter, hand) = limiter(when_full, seed);
    let live = match found {
        Slot::Empty => 0,
        Slot::Expired | Slot::Own => {
            for key in 1_000..1_000 + SLOTS {
                let key =
                    if found == Slot::Own && key == 1_003 { STOPPED.to_owned() } else { key.to_string() };
                assert_eq!(drain(&limiter, &key), BURST);
            }
            hand.advance(HOUR);
            0
        }
        Slot::Foreign => {
            for key in 1_000..1_000 + SLOTS - 1 {
                assert_eq!(drain(&limiter, &key), BURST);
            }
            on_a_thread_of_its_own(|| limiter.abandon("foreign", TakeoverStep::Claim));
            SLOTS - 1
        }
    };
    on_a_thread_of_its_own(|| limiter.abandon(STOPPED, step));
    assert_eq!(limiter.stats().live_keys as u64, live, "{found:?}, {step:?}: nothing was charged");
    (limiter, hand, live)
}

fn on_a_thread_of_its_own(work: impl FnOnce() + Send) {
    thread::scope(|scope| drop(scope.spawn(work)));
}

fn drain(limiter: &Limiter, key: &(impl std::hash::Hash + ?Sized)) -> u64 {
    let mut admitted = 0;
    while limiter.try_acquire(key).is_allowed() {
        admitted += 1;
        assert!(admitted <= 1_000, "{limiter:?} does not limit");
    }
    admitted
}

fn each(check: impl Fn(Slot, TakeoverStep, u64)) {
    for found in SLOTS_FOUND {
        for step in STEPS {
            for seed in 0..10 {
                check(found, step, seed);
            }
        }
    }
}

#[test]
fn the_same_key_goes_on_after_a_stopped_takeover() {
    each(|found, step, seed| {
        for when_full in [WhenFull::Deny, WhenFull::Evict, WhenFull::Allow] {
            let what = format!("{found:?}, {step:?}, {when_full:?}, seed {seed}");
            let (limiter, hand, live) = stopped(found, step, when_full, seed);
            assert_eq!(limiter.peek_n(STOPPED, 0).remaining(), BURST, "{what}: a claim is no charge");
            limiter.refund(STOPPED, 1);
            limiter.reset(STOPPED);
            assert_eq!(drain(&limiter, STOPPED), BURST, "{what}");
            let stats = limiter.stats();
            assert_eq!(stats.live_keys as u64, live + 1, "{what}: {stats:?}");
            assert_eq!((stats.evicted, stats.denied_for_room, stats.allowed_for_room), (0, 0, 0), "{what}");
            hand.advance(HOUR / 3);
            assert_eq!(drain(&limiter, STOPPED), 1, "{what}: one has come back");
        }
    });
}

#[test]
fn other_keys_fill_the_table_after_a_stopped_takeover() {
    each(|found, step, seed| {
        let what = format!("{found:?}, {step:?}, seed {seed}");
        let (limiter, hand, live) = stopped(found, step, WhenFull::Deny, seed);
        // A claim that nobody commits keeps no room from anybody.
        let others = || 0..SLOTS - live;
        for key in others() {
            assert_eq!(drain(&limiter, &key), BURST, "{what}, key {key}");
        }
        assert_eq!(limiter.stats().denied_for_room, 0, "{what}");
        assert_eq!(limiter.stats().live_keys as u64, SLOTS, "{what}");
        // Full, for the stopped thread's key as for any other; and everybody keeps to its bound.
        let refused = limiter.try_acquire(STOPPED);
        assert_eq!(refused.retry_after(), Some(HOUR), "{what}");
        assert!(limiter.try_acquire("newcomer").is_denied(), "{what}");
        assert_eq!(limiter.stats().denied_for_room, 2, "{what}");
        assert!(others().all(|key| limiter.try_acquire(&key).is_denied()), "{what}");
        hand.advance(HOUR);
        assert_eq!(drain(&limiter, STOPPED), BURST, "{what}");
    });
}

#[test]
fn a_table_of_stopped_takeovers_has_all_its_room() {
    for step in STEPS {
        for expired in [false, true] {
            let (limiter, hand) = limiter(WhenFull::Deny, 1);
            if expired {
                assert!((1_000..1_000 + SLOTS).all(|key| drain(&limiter, &key) == BURST));
                hand.advance(HOUR);
            }
            for stopped in 0..3 * SLOTS {
                on_a_thread_of_its_own(|| limiter.abandon(&(STOPPED, stopped), step));
            }
            let what = format!("{step:?}, expired {expired}");
            for key in 0..SLOTS {
                // Half of them are keys whose threads were stopped.
                let admitted =
                    if key % 2 == 0 { drain(&limiter, &key) } else { drain(&limiter, &(STOPPED, key)) };
                assert_eq!(admitted, BURST, "{what}, key {key}");
            }
            let stats = limiter.stats();
            assert_eq!((stats.live_keys as u64, stats.denied_for_room), (SLOTS, 0), "{what}");
        }
    }
}

/// Threads that are stopped again and again beside threads that go on, on the same keys: exact bounds.
#[test]
fn bounds_are_exact_while_threads_are_stopped() {
    for step in STEPS {
        for round in 0..60 {
            let (limiter, hand) = limiter(WhenFull::Deny, round);
            let keys = 0..SLOTS / 2;
            for generation in 0..6 {
                let over = AtomicBool::new(false);
                let spend = |key| (0..9).filter(|_| limiter.try_acquire(&key).is_allowed()).count() as u64;
                let spend_all = || keys.clone().map(spend).collect::<Vec<_>>();
                let admitted: Vec<Vec<u64>> = thread::scope(|scope| {
                    let stopping = scope.spawn(|| {
                        let mut key = 0;
                        // Relaxed: a flag of its own, and the threads are joined before anything is read.
                        while !over.load(Ordering::Relaxed) {
                            key = (key + 1) % (SLOTS / 2);
                            limiter.abandon(&key, step);
                            thread::yield_now();
                        }
                    });
                    let workers = [(); 3].map(|()| scope.spawn(spend_all));
                    let admitted =
                        workers.into_iter().map(|worker| worker.join().expect("no panic")).collect();
                    // Relaxed: as above.
                    over.store(true, Ordering::Relaxed);
                    stopping.join().expect("no panic");
                    admitted
                });
                for key in keys.clone() {
                    let total: u64 =
                        admitted.iter().map(|of_keys| of_keys[usize::try_from(key).expect("small")]).sum();
                    assert_eq!(total, BURST, "{step:?}, round {round}, generation {generation}, key {key}");
                }
                hand.advance(HOUR);
            }
        }
    }
}

/// A claim that was late by a whole round of generations leaves an owner over a state that is not its own (H6). It costs
/// the old owner its charge, and nobody the slot: everybody goes on, in a full table too, and it can be closed.
#[test]
fn a_slot_that_a_late_claim_took_is_anybodys() {
    for when_full in [WhenFull::Deny, WhenFull::Evict] {
        for late_for_nobody in [false, true] {
            let taken = || {
                let (limiter, hand) = limiter(when_full, 1);
                assert!((1_000..1_000 + SLOTS).all(|key| drain(&limiter, &key) == BURST));
                for (number, line) in (0..).zip(limiter.table.lines.iter()) {
                    for way in 0..super::LINE_WAYS {
                        let tag = number * SLOTS + way as u64;
                        let late = if late_for_nobody { Name::NOBODY } else { Name::new(tag, 0) };
                        line.force_owner(way, |owner| late.in_generation_of(State::sealing(owner, 0), owner));
                    }
                }
                (limiter, hand)
            };
            let (limiter, _hand) = taken();
            for key in 0..SLOTS {
                assert_eq!(drain(&limiter, &key), BURST, "{when_full:?}, key {key}");
            }
            assert!((0..SLOTS).all(|key| limiter.try_acquire(&key).is_denied()), "{when_full:?}");
            assert_eq!(limiter.stats().evicted, 0, "{when_full:?}");
            let (limiter, hand) = taken();
            hand.advance(HOUR);
            assert_eq!(drain(&limiter, STOPPED), BURST, "{when_full:?}");
            let (limiter, _hand) = taken();
            assert!(!limiter.close().is_empty(), "{when_full:?}");
            assert!(limiter.try_acquire(STOPPED).is_denied(), "{when_full:?}");
        }
    }
}
