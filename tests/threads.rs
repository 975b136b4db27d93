//! Gates under real threads: whatever the interleaving, no bound is passed and nothing leaks.
//!
//! Threads start by spinning on one flag: a barrier would wake them one after the other, and they would
//! hardly ever meet. This is stress, not proof; the proof is in the models.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tollgate::{Clock, Gate};

const THREADS: usize = 3;
/// More than any test here may admit to one thread: a gate without a limit should fail, not hang.
const RUNAWAY: u64 = 1_000_000;

/// Runs `work` on all threads at the same moment, and adds up what each returns.
fn together(work: impl Fn(usize) -> u64 + Sync) -> u64 {
    common::together(THREADS, work)
}

/// Asks until refused `refusals` times.
fn ask(gate: &Gate, cost: u64, refusals: u32) -> u64 {
    let (mut admitted, mut refused) = (0, 0);
    while refused < refusals {
        if gate.try_acquire_n(cost).is_allowed() {
            admitted += cost;
            assert!(admitted <= RUNAWAY, "{gate:?} does not limit");
        } else {
            refused += 1;
        }
    }
    admitted
}

#[test]
fn exactly_the_limit_while_time_stands_still() {
    for text in ["1/h burst 300", "fixed 300/h", "sliding 300/h", "log 300/h", "600000000/s burst 300"] {
        for round in 0..60 {
            let (clock, hand) = Clock::manual();
            hand.set(Duration::from_secs(1_000_000 + round));
            let gate = Gate::with_clock(text, clock).unwrap();
            assert_eq!(together(|_| ask(&gate, 1, 3)), 300, "`{text}`, round {round}");
            assert_eq!(gate.peek().remaining(), 0, "`{text}`, round {round}");
        }
    }
}

#[test]
fn costs_do_not_leak_while_time_stands_still() {
    for text in ["1/h burst 100", "fixed 100/h", "sliding 100/h", "log 100/h"] {
        for round in 0..80 {
            let (clock, _hand) = Clock::manual();
            let gate = Gate::with_clock(text, clock).unwrap();
            let admitted = together(|index| ask(&gate, [7, 3, 9][index], 3));
            // A log takes its tokens one by one, and may refuse while another request hands some back.
            let rest = gate.peek_n(0).remaining();
            assert_eq!(admitted + rest, 100, "`{text}`, round {round}");
            assert!(gate.try_acquire_n(rest).is_allowed() && gate.try_acquire().is_denied(), "`{text}`");
        }
    }
}

#[test]
fn refunds_give_back_no_more_than_was_taken() {
    for text in ["1/h burst 50", "fixed 50/h", "sliding 50/h", "log 50/h"] {
        for round in 0..40 {
            let (clock, _hand) = Clock::manual();
            let gate = Gate::with_clock(text, clock).unwrap();
            let kept = together(|_| {
                let mut kept = 0;
                for turn in 0..60 {
                    if gate.try_acquire_n(2).is_allowed() {
                        if turn % 3 == 0 { kept += 2 } else { gate.refund(2) }
                    }
                }
                kept
            });
            assert_eq!(gate.peek_n(0).remaining(), 50 - kept, "`{text}`, round {round}");
        }
    }
}

/// One thread moves time while the others spend: the whole span stays within the bound.
#[test]
fn the_bound_holds_while_time_moves() {
    let (step, steps) = (Duration::from_micros(1), 40_000u64);
    // 40 ms in all: what each rule may admit from the first request to the last.
    for (text, bound) in [
        ("100000/s burst 50", 4_000 + 50),
        ("3333333/s burst 50", 133_333 + 50),
        ("fixed 40/ms", 41 * 40),
        ("sliding 40/ms", 41 * 40),
        ("log 40/ms", 41 * 40),
    ] {
        let (clock, hand) = Clock::manual();
        let gate = Gate::with_clock(text, clock).unwrap();
        let over = AtomicBool::new(false);
        let admitted = together(|index| {
            if index == 0 {
                for done in 0..steps {
                    hand.advance(step);
                    if done % 128 == 0 {
                        thread::yield_now();
                    }
                }
                over.store(true, Ordering::Release);
                return 0;
            }
            let mut admitted = 0;
            loop {
                admitted += u64::from(gate.try_acquire().is_allowed());
                if over.load(Ordering::Acquire) {
                    return admitted;
                }
            }
        });
        assert!(admitted <= bound, "`{text}` admitted {admitted} of {bound}");
        assert!(admitted > 0, "`{text}` admitted nothing");
    }
}

#[test]
fn the_bound_holds_on_the_precise_clock() {
    let span = Duration::from_millis(150);
    for (text, burst, per_second) in [("200000/s burst 100", 100, 200_000), ("log 50/10ms", 50, 5_000)] {
        let start = Instant::now();
        let gate = Gate::new(text).unwrap();
        let admitted = together(|_| {
            let mut admitted = 0;
            while start.elapsed() < span {
                admitted += u64::from(gate.try_acquire().is_allowed());
            }
            admitted
        });
        // A percent for two clocks that are not calibrated alike.
        let elapsed_ns = start.elapsed().as_nanos() * 101 / 100;
        let bound = burst + per_second * elapsed_ns / 1_000_000_000;
        assert!(u128::from(admitted) <= bound, "`{text}` admitted {admitted} of {bound} in {elapsed_ns} ns");
        assert!(u128::from(admitted) > burst, "`{text}` admitted {admitted}: nothing came back");
    }
    for text in ["fixed 300/s", "sliding 300/s"] {
        let gate = Gate::new(text).unwrap();
        let start = Instant::now();
        let admitted = together(|_| ask(&gate, 1, 1_000));
        let windows = start.elapsed().as_secs() + 2;
        assert!((300..=300 * windows).contains(&admitted), "`{text}` admitted {admitted}");
    }
}

/// The second rule binds, so whoever loses the race for its last has to hand the first one's back. The
/// first is then left with exactly what was admitted, which shows once the second has forgotten.
#[test]
fn several_rules_hand_back_what_a_late_refusal_took() {
    for (text, first, second) in [
        ("2/d burst 300; fixed 200/s", 300, 200),
        ("fixed 300/d; fixed 200/s", 300, 200),
        ("sliding 300/5000d; log 30/s", 300, 30),
        ("log 60/d; sliding 40/s", 60, 40),
        ("log 60/d; 40/s", 60, 40),
    ] {
        for round in 0..40 {
            let (clock, hand) = Clock::manual();
            hand.set(Duration::from_secs(1_000_000));
            let gate = Gate::with_clock(text, clock).unwrap();
            let mut admitted = together(|index| ask(&gate, [1, 3, 2][index], 4));
            assert!(admitted <= second, "`{text}`, round {round}: {admitted}");
            admitted += ask(&gate, 1, 1);
            assert_eq!(admitted, second, "`{text}`, round {round}: something leaked from the second rule");
            hand.advance(Duration::from_secs(2));
            let left = gate.peek_n(0);
            assert_eq!(left.remaining(), (first - admitted).min(second), "`{text}`, round {round}: {left:?}");
        }
    }
}
