//! Tokens in hand: spent without asking, and never more of them than the rule lets through.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use common::{DAY, HOUR, NS, SECOND, check, drain, expect, limiter, together};
use proptest::collection::vec;
use proptest::sample::select;
use std::time::{Duration, Instant};
use tollgate::{Lease, Limiter, Policy};

const MS: Duration = Duration::from_millis(1);

/// By hand: of the spends at these times, no two have more between them than the burst and what came back.
fn within_the_bound(policy: &Policy, spends: &[Duration]) -> Result<(), String> {
    let rule = &policy.rules()[0];
    let (count, period_ns) = (u128::from(rule.count()), rule.period().as_nanos());
    for (first, from) in spends.iter().enumerate() {
        for (last, to) in spends.iter().enumerate().skip(first) {
            let spent = (last - first + 1) as u128;
            let over = spent.saturating_sub(u128::from(rule.limit()));
            expect(over * period_ns <= (*to - *from).as_nanos() * count, || {
                format!("`{policy}`: {spent} spent in {:?}, from {from:?} to {to:?}", *to - *from)
            })?;
        }
    }
    Ok(())
}

/// Several leases and plain requests on one key, dropped and begun again: the bound of the rule over any span.
#[test]
fn no_span_sees_more_than_the_rule_allows() {
    let policies = select(vec![
        "1000/s burst 20",
        "1000/s burst 100",
        "300/s burst 7",
        "1000003/s burst 50",
        "1/s burst 30",
    ]);
    let lease = (1..=12u64, select(vec![0u64, 1, 1_000, 500_000, 1_000_000, 5_000_000, 50_000_000]));
    let step = (0..10u8, 0..3usize, 0..=3_000_000u64);
    check(3_000, (policies, vec(lease, 3), vec(step, 1..=120)), |(text, kinds, steps)| {
        let (limiter, hand) = limiter(text);
        let begin = |index: usize| {
            let (batch, hold_ns) = kinds[index];
            limiter.lease("key", batch).hold(Duration::from_nanos(hold_ns))
        };
        let mut leases: Vec<Lease<'_>> = (0..3).map(begin).collect();
        let mut spends = Vec::new();
        for (what, index, step_ns) in steps {
            match what {
                0..6 if leases[index].try_acquire().is_allowed() => spends.push(hand.now()),
                6 if limiter.try_acquire("key").is_allowed() => spends.push(hand.now()),
                7 => leases[index] = begin(index),
                8 => hand.advance(Duration::from_nanos(step_ns)),
                9 => hand.advance(Duration::from_nanos(step_ns / 1_000)),
                _ => {}
            }
        }
        within_the_bound(&limiter.policy().clone(), &spends)
    });
}

/// What is in hand when the lease is dropped goes back: once the hold is over, the key owes what was spent at the
/// latest moment it could have been, and no more.
#[test]
fn the_unspent_go_back_exactly() {
    for (spent, batch) in [(1, 10), (4, 10), (10, 10), (11, 10), (25, 10), (1, 1), (3, 90)] {
        for hold in [Duration::ZERO, NS, MS, MS * 7] {
            let (limiter, hand) = limiter("1000/s burst 100");
            let mut lease = limiter.lease("key", batch).hold(hold);
            for _ in 0..spent {
                assert!(lease.try_acquire().is_allowed());
            }
            let what = format!("{spent} of {batch} held for {hold:?}");
            if !hold.is_zero() {
                assert_eq!(lease.in_hand(), (batch - spent % batch) % batch, "{what}");
            }
            drop(lease);
            hand.advance(hold);
            let left = limiter.peek_n("key", 0);
            assert_eq!(left.remaining(), 100 - spent, "{what}: {left:?}");
            assert_eq!(left.reset_after(), MS * spent as u32, "{what}");
        }
    }
}

/// The same when the hold is over and the lease is asked again. What was in hand is not good any more.
#[test]
fn tokens_past_their_hold_go_back() {
    let (limiter, hand) = limiter("1/h burst 10");
    let mut lease = limiter.lease("key", 4).hold(MS);
    assert!(lease.try_acquire().is_allowed());
    assert_eq!(lease.in_hand(), 3);
    hand.advance(MS - NS);
    assert!(lease.try_acquire().is_allowed());
    assert_eq!(lease.in_hand(), 2);
    hand.advance(NS);
    assert!(lease.try_acquire().is_allowed(), "of a new batch");
    assert_eq!(lease.in_hand(), 3);
    assert_eq!(limiter.peek("key").remaining(), 10 - 2 - 4, "two spent and four taken");
    let rest = drain(|| limiter.try_acquire("key").is_allowed());
    drop(lease);
    hand.advance(MS);
    assert_eq!(rest + drain(|| limiter.try_acquire("key").is_allowed()), 10 - 3);
}

/// A batch that the rule gives back sooner than it may be held: once it is over nothing is left to return, whether the
/// key owes more or not. Never more goes back than the batch still holds up.
#[test]
fn a_short_batch_comes_back_by_itself() {
    for debt in [0, 50] {
        let (limiter, hand) = limiter("1000000/s burst 10000");
        assert!(debt == 0 || limiter.try_acquire_n("key", debt * 100).is_allowed());
        let mut lease = limiter.lease("key", 10);
        assert!(lease.try_acquire().is_allowed());
        let owed = limiter.peek("key").reset_after();
        hand.advance(MS);
        drop(lease);
        assert_eq!(limiter.peek("key").reset_after(), owed - MS, "{debt} hundred owed before");
    }
    // One that takes longer: all but what has come back meanwhile.
    let (limiter, hand) = limiter("1000/s burst 100");
    assert!(limiter.try_acquire_n("key", 50).is_allowed());
    let mut lease = limiter.lease("key", 10);
    assert!(lease.try_acquire().is_allowed());
    hand.advance(MS);
    drop(lease);
    assert_eq!(limiter.peek("key").reset_after(), MS * (50 + 10 - 1 - 9));
}

/// With the clock standing still, one lease or four, on as many threads: the burst and no more.
#[test]
fn threads_with_leases_share_the_burst() {
    for round in 0..30 {
        let (limiter, hand) = limiter("1/h burst 1000");
        let admitted = together(4, |index| {
            let mut lease = limiter.lease("key", [7, 50, 1, 300][index]);
            let (mut admitted, mut refused) = (0, 0);
            while refused < 3 {
                match lease.try_acquire().is_allowed() {
                    true => admitted += 1,
                    false => refused += 1,
                }
            }
            admitted
        });
        assert!(admitted <= 1_000, "round {round}: {admitted}");
        hand.advance(SECOND);
        let rest = drain(|| limiter.try_acquire("key").is_allowed());
        assert_eq!(admitted + rest, 1_000, "round {round}: lost or found some");
    }
}

/// Where no batch fits, or the policy is another, a lease is a plain request.
#[test]
fn a_lease_that_cannot_be_had_asks_one_by_one() {
    for text in
        ["5/h", "fixed 5/h", "sliding 5/h", "log 5/h", "5/h; 7/d", "5/h; shadow 1/h", "5/h; 9 at once"]
    {
        let (limiter, _hand) = limiter(text);
        let mut lease = limiter.lease("key", 6);
        let mut admitted = 0;
        while lease.try_acquire().is_allowed() {
            assert_eq!(lease.in_hand(), 0, "`{text}`");
            admitted += 1;
        }
        assert_eq!(admitted, 5, "`{text}`");
        drop(lease);
        assert_eq!(limiter.peek("key").remaining(), 0, "`{text}`: nothing came back");
    }
    // A hold longer than the whole burst takes to come back leaves nothing to hold.
    let (limiter, _hand) = limiter("5/h");
    let mut lease = limiter.lease("key", 2).hold(DAY);
    assert!(lease.try_acquire().is_allowed());
    assert_eq!((lease.in_hand(), limiter.peek("key").remaining()), (0, 4));
    let mut nothing = limiter.lease("other", 0);
    assert!(nothing.try_acquire().is_allowed() && nothing.in_hand() == 0, "a batch of none is one of one");
}

/// Lists are asked when a batch is taken.
#[test]
fn lists_are_asked_for_every_batch() {
    let (limiter, _hand) = limiter("1/h burst 100");
    let mut lease = limiter.lease("key", 10);
    assert!(lease.try_acquire().is_allowed());
    limiter.deny("key").unwrap();
    assert_eq!(
        (0..20).filter(|_| lease.try_acquire().is_allowed()).count(),
        9,
        "what was in hand, and then no more"
    );
    limiter.allow("key").unwrap();
    assert!((0..1_000).all(|_| lease.try_acquire().is_allowed()));
}

/// A key that is forgotten while a lease is held begins afresh, and nothing goes back to it.
#[test]
fn a_lease_of_a_forgotten_key_gives_nothing_back() {
    let (limiter, hand) = limiter("10/h burst 10");
    let mut lease = limiter.lease("key", 5);
    assert!(lease.try_acquire().is_allowed());
    hand.advance(HOUR * 2);
    assert!(limiter.try_acquire_n("key", 10).is_allowed());
    drop(lease);
    assert!(limiter.try_acquire("key").is_denied());
}

/// However much others have spent since: what was taken before a reset is not on the word. Of the resets of other keys
/// few count as the key's own.
#[test]
fn what_was_taken_before_a_reset_does_not_go_back() {
    let (limiter, hand) = limiter("10/h burst 10");
    let mut lease = limiter.lease("key", 5);
    assert!(lease.try_acquire().is_allowed());
    limiter.reset("key");
    assert!(limiter.try_acquire_n("key", 10).is_allowed());
    drop(lease);
    assert!(limiter.try_acquire("key").is_denied());

    hand.advance(DAY);
    let gone_back = (0..100_u32).filter(|other| {
        limiter.reset("key");
        let mut lease = limiter.lease("key", 5);
        assert!(lease.try_acquire().is_allowed());
        limiter.reset(other);
        drop(lease);
        hand.advance(MS);
        limiter.peek("key").remaining() == 9
    });
    assert!(gone_back.count() > 80);
}

/// Not a law: what two threads on one hot key do a second, with and without.
#[test]
fn throughput_of_a_hot_key() {
    const REQUESTS: u64 = if cfg!(debug_assertions) { 100_000 } else { 3_000_000 };
    let per_second = |work: &(dyn Fn(&Limiter) -> u64 + Sync)| {
        let limiter = Limiter::new("100000000/s burst 10000000").unwrap();
        let start = Instant::now();
        let admitted = together(2, |_| work(&limiter));
        (admitted, (2 * REQUESTS) as f64 / start.elapsed().as_secs_f64() / 1e6)
    };
    let (plain, without) = per_second(&|limiter| {
        (0..REQUESTS).filter(|_| limiter.try_acquire("hot").is_allowed()).count() as u64
    });
    let (leased, with) = per_second(&|limiter| {
        let mut lease = limiter.lease("hot", 1_000);
        (0..REQUESTS).filter(|_| lease.try_acquire().is_allowed()).count() as u64
    });
    println!("two threads, one key: {without:.1} million a second without a lease, {with:.1} with");
    assert!(plain > 0 && leased > 0);
}
