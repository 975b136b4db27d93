//! Law 7: after build, no call allocates, whatever it finds.
//!
//! The allocator counts what the present thread asks of it; other threads, the test harness among them, do not
//! disturb the count.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]
#![allow(unsafe_code, reason = "an allocator cannot be written without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use tollgate::{Clock, Gate, Limiter, Penalties, WhenFull};

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // A thread that is ending has no counter any more, and runs no test.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: everything is handed on to the system's allocator as it came; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, handed on.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise, handed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often `work` allocates, frees or resizes.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = CALLS.get();
    work();
    CALLS.get() - before
}

const POLICIES: [&str; 10] = [
    "3/s",
    "1000003/s burst 5 named quick",
    "fixed 3/s",
    "sliding 3/s",
    "log 3/s",
    "log 9/s",
    "2/s named a; 5/min named b",
    "fixed 2/s; log 3/min",
    "sliding 3/s; 4/min burst 2; fixed 9/h",
    "log 100/s; log 300/min; 2/s",
];

fn build(text: &str, max_keys: usize, when_full: WhenFull) -> (Limiter, tollgate::ManualHand) {
    let (clock, hand) = Clock::manual();
    hand.set(Duration::from_millis(1_790_000_000_250));
    let builder = Limiter::builder().policy(text).max_keys(max_keys).when_full(when_full);
    (builder.clock(clock).seeds([1, 2, 3, 4]).build().unwrap(), hand)
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(black_box(Box::new(1u64)))), 2);
    assert_eq!(allocations(|| drop(black_box(vec![0u8; 100]))), 2);
    assert!(allocations(|| drop(black_box(Limiter::new("1/s").unwrap()))) > 2);
    assert_eq!(allocations(|| assert_eq!(black_box(7), 7)), 0);
}

#[test]
fn no_call_of_a_limiter_allocates() {
    for text in POLICIES {
        for when_full in [WhenFull::Evict, WhenFull::Deny, WhenFull::Allow] {
            for max_keys in [1, 8] {
                let (limiter, hand) = build(text, max_keys, when_full);
                let what = format!("`{text}`, {when_full:?}, {max_keys} keys");
                let (mut allowed, mut denied) = (0, 0);
                // Claims of empty slots, then of slots that expired, then what happens when there are none.
                let spent = allocations(|| {
                    for key in 0..4_000u64 {
                        let decision = limiter.try_acquire(&key);
                        if decision.is_allowed() {
                            allowed += 1;
                        } else {
                            denied += 1;
                        }
                        if key % 100 == 0 && key < 2_000 {
                            hand.advance(Duration::from_secs(90_000));
                        }
                    }
                });
                assert_eq!(spent, 0, "{what}: claims");
                let stats = limiter.stats();
                let exceptions = stats.evicted + stats.denied_for_room + stats.allowed_for_room;
                assert!(exceptions > 0 || max_keys > 1, "{what}: there was always room");
                assert_eq!(denied, stats.denied_for_room, "{what}: {stats:?}");
                assert!(allowed > 0, "{what}");

                hand.advance(Duration::from_secs(90_000));
                let spent = allocations(|| {
                    for cost in [0, 1, 1, 2, 1, 1, 3, 1, 1, 5, 9, 400, u64::MAX] {
                        // Hits, refusals for the rule, costs that never fit.
                        let decision = limiter.try_acquire_n("one key", cost);
                        let _ =
                            black_box((decision.remaining(), decision.retry_after(), decision.reset_after()));
                        let _ = black_box((decision.rule_name(), decision.into_result()));
                        let _ = black_box(limiter.peek("one key"));
                        let _ = black_box(limiter.peek_n("another", cost));
                    }
                    limiter.refund("one key", 1);
                    limiter.refund("one key", u64::MAX);
                    limiter.refund("never seen", 1);
                    limiter.reset("one key");
                    limiter.reset("never seen");
                    let _ = black_box(limiter.try_acquire(&("tenant", 7)));
                    let _ = black_box(limiter.try_acquire(&IpAddr::from(Ipv4Addr::LOCALHOST)));
                    let _ = black_box(limiter.stats());
                });
                assert_eq!(spent, 0, "{what}: calls for one key");
            }
        }
    }
}

#[test]
fn no_batch_allocates() {
    for text in POLICIES {
        for when_full in [WhenFull::Evict, WhenFull::Deny, WhenFull::Allow] {
            let (limiter, hand) = build(text, 8, when_full);
            let keys: Vec<u64> = (0..200).map(|number| number * 7 % 90).collect();
            let mut decisions = vec![limiter.peek_n(&0, 0); keys.len()];
            let spent = allocations(|| {
                for _ in 0..20 {
                    assert_eq!(limiter.try_acquire_many(&keys, &mut decisions), keys.len());
                    hand.advance(Duration::from_secs(1));
                }
            });
            assert_eq!(spent, 0, "`{text}`, {when_full:?}");
        }
    }
}

#[test]
fn no_call_of_a_gate_allocates() {
    for text in POLICIES {
        let (clock, hand) = Clock::manual();
        let gate = Gate::with_clock(text, clock).unwrap();
        let spent = allocations(|| {
            for turn in 0..500u64 {
                let decision = gate.try_acquire_n(turn % 5);
                let _ = black_box((decision.remaining(), decision.retry_after(), decision.reset_after()));
                let _ = black_box((gate.try_acquire(), gate.peek(), gate.peek_n(turn)));
                if turn % 7 == 0 {
                    gate.refund(turn % 4);
                }
                if turn % 50 == 0 {
                    gate.reset();
                }
                hand.advance(Duration::from_millis(turn));
            }
            let _ = black_box(gate.try_acquire_n(u64::MAX));
        });
        assert_eq!(spent, 0, "`{text}`");
    }
}

/// The clocks that limiters use by themselves: whatever they need, they take before the first request.
#[test]
fn real_clocks_do_not_allocate_either() {
    for clock in [Clock::precise(), Clock::coarse(Duration::from_millis(1))] {
        let gate = Gate::with_clock("1000/s", clock.clone()).unwrap();
        let limiter =
            Limiter::builder().policy("1000/s; log 5/s").max_keys(8).clock(clock.clone()).build().unwrap();
        let spent = allocations(|| {
            for key in 0..2_000u64 {
                let _ = black_box((gate.try_acquire(), limiter.try_acquire(&key), limiter.peek(&key)));
                limiter.refund(&key, 1);
            }
        });
        assert_eq!(spent, 0, "{clock:?}");
    }
}

/// Counted or not: the common case, for which there is a way of its own, and a thread's first decision of all.
#[test]
fn no_counted_decision_allocates() {
    for clock in [Clock::precise(), Clock::manual().0] {
        let limiter = Limiter::builder().policy("3/s").max_keys(8).clock(clock).count_decisions(true);
        let limiter = limiter.build().unwrap();
        let ask = || {
            allocations(|| {
                for key in 0..2_000u64 {
                    let _ = black_box((limiter.try_acquire(&(key % 20)), limiter.try_acquire_n(&7, 9)));
                }
            })
        };
        assert_eq!(ask(), 0);
        assert_eq!(
            std::thread::scope(|scope| scope.spawn(ask).join().unwrap()),
            0,
            "in a thread that is new"
        );
        let all: u64 =
            limiter.stats().decisions.iter().map(|one| one.allowed + one.denied + one.never_fits).sum();
        assert_eq!(all, 8_000);
    }
}

/// What stands around a decision takes no memory either, after a change of policy as before: all but waiting,
/// snapshots and the change itself.
#[test]
fn no_call_around_a_decision_allocates() {
    let minute = Duration::from_secs(60);
    let (clock, hand) = Clock::manual();
    hand.set(minute);
    for counted in [false, true] {
        let limiter = Limiter::builder()
            .policy("5/s; fixed 50/min; 3 at once; shadow 2/s; log 9/min")
            .tier("premium", "50/s; 30 at once")
            .penalties(Penalties::new([minute, 5 * minute]).after(3))
            .max_keys(64)
            .count_decisions(counted)
            .clock(clock.clone())
            .build()
            .unwrap();
        around_decisions(&limiter, &hand);
        assert_eq!(limiter.stats().decisions.iter().any(|one| one.allowed > 0), counted);
    }
}

fn around_decisions(limiter: &Limiter, hand: &tollgate::ManualHand) {
    let minute = Duration::from_secs(60);
    for policy in [None, Some("7/s; 90/min; 4 at once"), Some("1000/s burst 100")] {
        if let Some(policy) = policy {
            limiter.set_policy(policy).unwrap();
        }
        let spent = allocations(|| {
            let premium = limiter.tier("premium").unwrap();
            for turn in 0..200u64 {
                let key = turn % 9;
                let permit = limiter.try_start(&key);
                let _ = black_box((limiter.try_acquire(&key), limiter.peek(&key), premium.try_acquire(&key)));
                let _ = black_box((limiter.once(&turn, minute), limiter.once(&turn, minute)));
                let handle = limiter.key(&key);
                let _ = black_box((handle.try_acquire(), handle.peek()));
                let mut lease = limiter.lease(&key, 4);
                let _ = black_box((lease.try_acquire(), lease.try_acquire()));
                let _ = black_box((limiter.deny_for(&(turn % 3), minute), limiter.allow(&"friend")));
                limiter.unlist(&(turn % 3));
                limiter.reset(&key);
                drop(permit);
                hand.advance(Duration::from_secs(turn));
            }
        });
        assert_eq!(spent, 0, "under {policy:?}");
    }
}
