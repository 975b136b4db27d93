//! A handle decides as its limiter does, wherever its key has gone meanwhile.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use common::{HOUR, builder, check, drain, expect, limiter, said, together};
use proptest::collection::vec;
use std::time::Duration;
use tollgate::{Limiter, ManualHand, Policy, WhenFull};

const POLICIES: [&str; 8] = [
    "3/s",
    "1000003/s burst 5",
    "fixed 3/s",
    "sliding 4/s",
    "log 3/s",
    "2/s; 5/min",
    "fixed 2/s; log 3/min; 4/h",
    "5/s; shadow 2/s",
];
const KEYS: usize = 12;

fn pair(text: &str, max_keys: usize, when_full: WhenFull) -> [(Limiter, ManualHand); 2] {
    [(), ()].map(|()| {
        let (builder, hand) = builder(text);
        (builder.max_keys(max_keys).when_full(when_full).build().unwrap(), hand)
    })
}

/// One trace on two limiters alike: on the first through handles that are kept all along, or past them at random;
/// on the second by key alone. Whatever is said and counted is the same.
fn says_the_same(text: &str, max_keys: usize, when_full: WhenFull, keys: usize) {
    let step = (0..8u8, 0..keys, 0..=4u64, 0..=1_500_000_000u64, proptest::bool::ANY);
    check(400, vec(step, 0..=100), |steps| {
        let [(limiter, hand), (plain, plain_hand)] = pair(text, max_keys, when_full);
        let handles: Vec<_> = (0..keys).map(|key| limiter.key(&key)).collect();
        for (turn, (what, key, cost, step_ns, past)) in steps.into_iter().enumerate() {
            let handle = &handles[key];
            let (got, expected) = match what {
                0..4 if past => (limiter.try_acquire_n(&key, cost), plain.try_acquire_n(&key, cost)),
                0..4 => (handle.try_acquire_n(cost), plain.try_acquire_n(&key, cost)),
                4 => {
                    if past {
                        limiter.refund(&key, cost);
                    } else {
                        handle.refund(cost);
                    }
                    plain.refund(&key, cost);
                    (handle.peek(), plain.peek(&key))
                }
                5 if cost == 0 => {
                    if past {
                        limiter.reset(&key);
                    } else {
                        handle.reset();
                    }
                    plain.reset(&key);
                    (handle.peek(), plain.peek(&key))
                }
                _ => {
                    hand.advance(Duration::from_nanos(step_ns));
                    plain_hand.advance(Duration::from_nanos(step_ns));
                    (handle.peek(), plain.peek(&key))
                }
            };
            expect(said(&got) == said(&expected), || {
                format!("`{text}`, turn {turn}, key {key}: {got:?} beside {expected:?}")
            })?;
        }
        let (stats, expected) = (limiter.stats(), plain.stats());
        expect(stats == expected, || format!("`{text}`: {stats:?} beside {expected:?}"))
    });
}

#[test]
fn in_a_roomy_table() {
    for text in POLICIES {
        says_the_same(text, 100, WhenFull::Deny, KEYS);
    }
}

/// Keys expire, are evicted and refused all the time, and come back in other slots.
#[test]
fn while_slots_change_hands() {
    for text in POLICIES {
        for when_full in [WhenFull::Evict, WhenFull::Deny, WhenFull::Allow] {
            says_the_same(text, 1, when_full, KEYS * 2);
        }
    }
}

/// A handle made long before its slot went to others, and the other way round.
#[test]
fn finds_its_key_in_another_slot() {
    let (builder, hand) = builder("2/h");
    let limiter = builder.max_keys(9).build().unwrap();
    let handles: Vec<_> = (0..9u32).map(|key| limiter.key(&key)).collect();
    for round in 0..300u32 {
        // Others first, in an order of its own each round, so that all take each other's slots.
        for stranger in 0..6 {
            let _ = limiter.try_acquire(&(round, stranger));
        }
        hand.advance(HOUR * 2);
        for (key, handle) in (0..9u32).zip(&handles) {
            assert!(handle.try_acquire().is_allowed(), "round {round}, key {key}");
            assert_eq!(limiter.peek(&key).remaining(), 1);
            assert!(limiter.try_acquire(&key).is_allowed());
            assert!(handle.try_acquire().is_denied() && handle.peek().is_denied());
        }
        hand.advance(HOUR * 2);
    }
    assert_eq!(limiter.stats().evicted, 0);
}

/// Handles follow lists and a change of policy as everybody does.
#[test]
fn hears_of_lists_and_policies() {
    let (limiter, _hand) = limiter("fixed 2/h");
    let handle = limiter.key("key");
    assert!(handle.try_acquire().is_allowed());
    limiter.deny("key").unwrap();
    assert!(handle.try_acquire().is_denied());
    limiter.unlist("key");
    limiter.set_policy("fixed 5/h".parse::<Policy>().unwrap()).unwrap();
    assert_eq!(drain(|| handle.try_acquire().is_allowed()), 4);
    assert!(limiter.try_acquire("key").is_denied());
}

#[test]
fn threads_with_handles_of_one_key_share_its_limit() {
    for text in ["1/h burst 300", "fixed 300/h", "300/d; fixed 300/h", "log 60/h"] {
        for round in 0..20u32 {
            let (limiter, _hand) = limiter(text);
            let all = limiter.policy().rules()[0].limit();
            let admitted = together(4, |index| match index % 2 {
                0 => {
                    let handle = limiter.key(&round);
                    drain(|| handle.try_acquire().is_allowed())
                }
                _ => drain(|| limiter.try_acquire(&round).is_allowed()),
            });
            let rest = drain(|| limiter.try_acquire(&round).is_allowed());
            assert_eq!(admitted + rest, all, "`{text}`, round {round}");
        }
    }
}
