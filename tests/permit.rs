//! So many at once: permits that end what has begun, whoever drops them and whenever.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use common::{DAY, Dice, HOUR, builder, drain, limiter, said, tiny, together};
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use tollgate::{Cause, Clock, Gate, Limiter, Outcome, Permit, WhenFull};

/// As many permits as there are to be had.
fn all<'a>(limiter: &'a Limiter, key: &str) -> Vec<Permit<'a>> {
    std::iter::from_fn(|| limiter.try_start(key).ok()).take(1_000).collect()
}

#[test]
fn so_many_at_once_and_a_dropped_one_makes_room() {
    let (limiter, hand) = limiter("3 at once named work");
    let mut held = all(&limiter, "key");
    assert_eq!(held.len(), 3);
    hand.advance(DAY * 1_000);
    let denied = limiter.try_start("key").unwrap_err();
    assert_eq!(denied.retry_after(), None, "nobody can say when");
    let decision = denied.decision();
    assert_eq!((decision.outcome(), decision.cause()), (Outcome::Denied, Cause::Rule));
    assert_eq!((decision.limit(), decision.remaining(), decision.rule_name()), (3, 0, Some("work")));
    assert!(limiter.try_start("other").is_ok(), "each key has its own");
    for left in [2, 1, 0] {
        held.pop();
        let permit = limiter.try_start("key").unwrap();
        assert_eq!(permit.decision().remaining(), 2 - left);
        drop(permit);
        assert_eq!(limiter.peek("key").remaining(), 3 - left);
    }
    assert_eq!(limiter.stats().live_keys, 0, "who has nothing under way takes no room");
}

/// Threads that hold permits for random whiles: never more than the limit at the same time.
#[test]
fn never_more_than_the_limit_under_threads() {
    for (text, most) in [("1 at once", 1), ("3 at once", 3), ("1000000/s burst 100000; 2 at once", 2)] {
        let (limiter, _hand) = limiter(text);
        let gate = Gate::with_clock(text, Clock::manual().0).unwrap();
        for on_gate in [false, true] {
            let (under_way, peak) = (AtomicU64::new(0), AtomicU64::new(0));
            let begun = together(4, |index| {
                let mut dice = Dice::new(index);
                let mut begun = 0;
                for _ in 0..5_000 {
                    let permit = if on_gate { gate.try_start() } else { limiter.try_start("key") };
                    let Ok(_permit) = permit else { continue };
                    begun += 1;
                    peak.fetch_max(under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    for _ in 0..dice.below(50) {
                        spin_loop();
                    }
                    if dice.below(8) == 0 {
                        thread::yield_now();
                    }
                    under_way.fetch_sub(1, Ordering::SeqCst);
                }
                begun
            });
            let peak = peak.into_inner();
            assert!(peak <= most && begun > 0, "`{text}`: {peak} at once, {begun} begun");
        }
        // None was lost either.
        assert_eq!(all(&limiter, "key").len() as u64, most, "`{text}`");
        let held: Vec<_> = std::iter::from_fn(|| gate.try_start().ok()).take(10).collect();
        assert_eq!(held.len() as u64, most, "`{text}`");
    }
}

/// Rates are charged as by a request, and a refusal for either takes nothing of the other.
#[test]
fn rates_are_charged_too_and_a_refusal_takes_nothing() {
    for text in ["fixed 5/d; 2 at once", "2 at once; fixed 5/d", "2 at once; log 5/d", "5/d; 2 at once"] {
        let (limiter, _hand) = limiter(text);
        let held = all(&limiter, "key");
        assert_eq!(held.len(), 2, "`{text}`");
        assert_eq!(drain(|| limiter.try_start("key").is_ok()), 0, "`{text}`");
        drop(held);
        // Three of five are left, one after the other; then the rate refuses, and takes no place.
        assert_eq!(drain(|| limiter.try_start("key").is_ok()), 3, "`{text}`");
        let denied = limiter.try_start("key").unwrap_err();
        assert!(denied.retry_after().is_some(), "`{text}`: {denied}");
        limiter.refund("key", 2);
        assert_eq!(all(&limiter, "key").len(), 2, "`{text}`: no place was lost");
    }
}

/// A late refusal by the one hands back the other, under threads that race for the last of either.
#[test]
fn races_lose_neither_places_nor_rate() {
    for text in
        ["2 at once; fixed 100/d", "fixed 100/d; 2 at once", "3 at once; log 40/d", "log 40/d; 3 at once"]
    {
        let rate = if text.contains("100") { 100 } else { 40 };
        for round in 0..20 {
            let (limiter, hand) = limiter(text);
            let begun = together(4, |index| {
                let mut dice = Dice::new(index + round * 4);
                let mut begun = 0;
                for _ in 0..200 {
                    let permit = limiter.try_start("key");
                    begun += u64::from(permit.is_ok());
                    if dice.below(2) == 0 {
                        thread::yield_now();
                    }
                }
                begun
            });
            let rest = drain(|| limiter.try_start("key").is_ok());
            assert_eq!(begun + rest, rate, "`{text}`, round {round}");
            hand.advance(DAY * 2);
            let places = if text.contains('3') { 3 } else { 2 };
            assert_eq!(all(&limiter, "key").len(), places, "`{text}`, round {round}");
        }
    }
}

#[test]
fn a_request_only_asks_for_a_place() {
    let (limiter, _hand) = limiter("5/d; 1 at once");
    for left in [4, 3, 2] {
        assert!(limiter.try_acquire("key").is_allowed());
        assert_eq!(limiter.peek_n("key", left).outcome(), Outcome::Allowed);
    }
    let permit = limiter.try_start_n("key", 2).unwrap();
    assert_eq!(limiter.try_acquire("key").retry_after(), None);
    assert_eq!(said(&limiter.try_acquire("key")), said(&limiter.peek("key")));
    drop(permit);
    assert!(limiter.try_acquire("key").retry_after().is_some(), "all five are spent");
}

#[test]
fn what_costs_much_takes_one_place() {
    let (limiter, _hand) = limiter("100/d; 2 at once");
    let first = limiter.try_start_n("key", 40).unwrap();
    assert_eq!(first.decision().cost(), 40);
    let second = limiter.try_start_n("key", 40).unwrap();
    assert_eq!(limiter.try_start_n("key", 1).unwrap_err().decision().rule(), 1);
    assert_eq!(limiter.try_start_n("key", 101).unwrap_err().decision().outcome(), Outcome::NeverFits);
    drop((first, second));
    assert_eq!(limiter.try_start_n("key", 40).unwrap_err().decision().rule(), 0);
}

#[test]
fn an_owned_permit_ends_wherever_it_is() {
    let (limiter, _hand) = limiter("2 at once");
    let limiter = Arc::new(limiter);
    let held: Vec<Permit<'static>> = (0..2).map(|_| limiter.try_start_owned("key").unwrap()).collect();
    assert!(limiter.try_start_owned("key").is_err() && limiter.try_start("key").is_err());
    thread::spawn(move || drop(held)).join().unwrap();
    assert_eq!(all(&limiter, "key").len(), 2);
    // It keeps its limiter alive.
    let last = limiter.try_start_owned("key").unwrap();
    let watch = Arc::downgrade(&limiter);
    drop(limiter);
    assert!(watch.upgrade().is_some());
    drop(last);
    assert!(watch.upgrade().is_none());
}

#[test]
fn a_panic_ends_the_work() {
    let gate = Gate::with_clock("1 at once", Clock::manual().0).unwrap();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _permit = gate.try_start().unwrap();
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(ended.is_err() && gate.try_start().is_ok());
}

#[test]
fn neither_reset_nor_refund_ends_what_is_under_way() {
    let (limiter, _hand) = limiter("10/d; 2 at once");
    let held = all(&limiter, "key");
    limiter.refund("key", 10);
    limiter.reset("key");
    assert!(limiter.try_start("key").is_err());
    drop(held);
    assert_eq!(all(&limiter, "key").len(), 2);
}

#[test]
fn the_limit_changes_while_permits_are_held() {
    let (limiter, _hand) = limiter("2 at once");
    let mut held = all(&limiter, "key");
    limiter.set_policy("3 at once").unwrap();
    held.extend(all(&limiter, "key"));
    assert_eq!(held.len(), 3);
    limiter.set_policy("fixed 1000/h; 1 at once").unwrap();
    for _ in 0..3 {
        assert!(limiter.try_start("key").is_err());
        held.pop();
    }
    assert_eq!(all(&limiter, "key").len(), 1);
    // Those that begin and end while there is no limit, or end after one is back, are counted right.
    let before = limiter.try_start("key").unwrap();
    limiter.set_policy("1000/h").unwrap();
    let during = limiter.try_start("key").unwrap();
    limiter.set_policy("2 at once; 1000/h").unwrap();
    assert_eq!(all(&limiter, "key").len(), 1);
    drop(during);
    assert_eq!(all(&limiter, "key").len(), 1);
    drop(before);
    assert_eq!(all(&limiter, "key").len(), 2);
}

/// Tiers with different limits share the count.
#[test]
fn tiers_share_the_count() {
    let (builder, _hand) = builder("1 at once");
    let limiter = builder.tier("premium", "3 at once").build().unwrap();
    let premium = limiter.tier("premium").unwrap();
    let first = limiter.try_start("key").unwrap();
    let (second, third) = (premium.try_start("key").unwrap(), premium.try_start("key").unwrap());
    assert!(premium.try_start("key").is_err());
    drop((first, second));
    assert!(limiter.try_start("key").is_err() && premium.try_start("key").is_ok());
    drop(third);
    assert!(limiter.try_start("key").is_ok());
}

/// A key with work under way is never forgotten, however many others come; and it is once the work is done.
#[test]
fn a_key_with_permits_is_never_evicted() {
    let (limiter, hand) = tiny("1 at once", WhenFull::Evict);
    let held: Vec<_> = (0..7u32).map(|key| limiter.try_start(&key).unwrap()).collect();
    for stranger in 1_000..20_000u32 {
        assert!(limiter.try_start(&stranger).is_ok(), "one slot is left for the others");
    }
    let last = limiter.try_start(&7u32).unwrap();
    hand.advance(HOUR);
    for stranger in 1_000..2_000u32 {
        let passed = limiter.try_start(&stranger).unwrap();
        let again = limiter.try_start(&stranger);
        assert!(again.is_ok(), "no room and nothing to forget: it passes uncounted");
        drop((passed, again));
    }
    for key in 0..8u32 {
        assert!(limiter.try_start(&key).is_err(), "{key} was forgotten");
    }
    let stats = limiter.stats();
    assert_eq!((stats.evicted, stats.live_keys, stats.allowed_for_room), (0, 8, 2_000));
    drop((held, last));
    assert!((0..8u32).all(|key| limiter.try_start(&key).is_ok()));
    assert_eq!(limiter.stats().live_keys, 0);

    let (limiter, _hand) = tiny("1 at once", WhenFull::Deny);
    let held: Vec<_> = (0..8u32).map(|key| limiter.try_start(&key).unwrap()).collect();
    let denied = limiter.try_start("newcomer").unwrap_err();
    assert_eq!((denied.decision().cause(), denied.retry_after()), (Cause::NoRoom, None));
    drop(held);
    assert!(limiter.try_start("newcomer").is_ok());
}

/// Work that costs nothing under the other rules takes its place all the same.
#[test]
fn a_cost_of_nothing_takes_a_place() {
    let (limiter, _hand) = limiter("1/h; 2 at once");
    let held = [(); 2].map(|()| limiter.try_start_n("key", 0).unwrap());
    assert!(limiter.try_start_n("key", 0).is_err());
    assert!(limiter.try_acquire_n("key", 0).is_allowed(), "a cost of nothing that takes no place passes");
    drop(held);
    assert!(limiter.try_start("key").is_ok());
    assert!(limiter.try_start("key").is_err(), "the hourly one is spent");
}
