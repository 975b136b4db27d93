//! What others do beside a booking: other keys, other tiers, another policy, a reset, shadow rules.

use super::{HOUR, MS, NS, SECOND, manual};
use std::time::Duration;
use tollgate::{Clock, Limiter, Reservation};

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn what_one_key_has_booked_holds_up_no_other() {
    let (limiter, _hand) = manual("1000/h");
    assert!(limiter.try_acquire_n("a", 1_000).is_allowed());
    let booked = [(); 2].map(|()| limiter.reserve("b", 1_000, 2 * HOUR).unwrap());
    drop(booked);
    limiter.set_policy("10/s").unwrap();
    assert_eq!(limiter.peek("a").retry_after(), Some(100 * MS));
}

#[test]
fn a_change_leaves_those_who_have_booked_their_moments() {
    let (limiter, hand) = manual("10/h");
    let booked = [(); 3].map(|()| limiter.reserve("key", 10, 3 * HOUR).unwrap());
    limiter.set_policy("10/min").unwrap();
    assert_eq!(booked.each_ref().map(Reservation::wait), [Duration::ZERO, HOUR, 2 * HOUR]);
    // What is booked is still spent: who comes now comes after it, at the new rate.
    assert_eq!(limiter.peek_n("key", 10).retry_after(), Some(2 * HOUR + MINUTE));
    booked.into_iter().for_each(|one| one.commit(10));
    hand.advance(2 * HOUR + MINUTE - NS);
    assert!(limiter.try_acquire_n("key", 10).is_denied());
    hand.advance(NS);
    assert!(limiter.try_acquire_n("key", 10).is_allowed());
}

/// A moment so long ago that it seems to lie ahead again, up to a whole word's range.
#[test]
fn a_debt_is_believed_for_as_long_as_it_lasts() {
    let range = Duration::from_nanos(1 << (56 - 12));
    let (limiter, hand) = manual("1000000000/s burst 1000000");
    assert!(limiter.try_acquire_n("idle", 1_000_000).is_allowed());
    limiter.reserve("debtor", 1, Duration::ZERO).unwrap().commit(1_000_000_000_000);
    hand.advance(999 * SECOND);
    assert!(limiter.try_acquire("debtor").is_denied());
    hand.advance(2 * SECOND);
    assert!(limiter.try_acquire("debtor").is_allowed());
    hand.set(range - 500 * SECOND);
    let wait = limiter.peek("idle").retry_after().unwrap_or_default();
    assert!(wait <= 2 * MS, "a burst at most: {wait:?}");
}

#[test]
fn a_change_of_another_tier_changes_nothing_here() {
    let (clock, hand) = Clock::manual();
    let builder = Limiter::builder().policy("10/h").tier("gold", "100/s").clock(clock);
    let limiter = builder.build().unwrap();
    let booked = limiter.reserve("key", 10, Duration::ZERO).unwrap();
    let behind = limiter.reserve("key", 5, HOUR).unwrap();
    let mut lease = limiter.lease("other", 5);
    assert!(lease.try_acquire().is_allowed());
    limiter.tier("gold").unwrap().set_policy("200/s").unwrap();
    drop(lease);
    hand.advance(MS);
    assert_eq!(limiter.peek("other").remaining(), 9);
    booked.cancel();
    assert!(behind.is_due(), "moved up");
    behind.cancel();
    assert_eq!(limiter.peek("key").remaining(), 10);
}

#[test]
fn what_a_change_has_left_is_given_back() {
    let (limiter, hand) = manual("10/h");
    let booked = limiter.reserve("key", 10, Duration::ZERO).unwrap();
    let behind = limiter.reserve("key", 5, HOUR).unwrap();
    let mut lease = limiter.lease("other", 5);
    assert!(lease.try_acquire().is_allowed());
    limiter.set_policy("10/h burst 20").unwrap();
    drop(lease);
    hand.advance(MS);
    assert_eq!(limiter.peek("other").remaining(), 19);
    booked.cancel();
    assert!(behind.is_due(), "moved up");
    behind.cancel();
    assert_eq!(limiter.peek("key").remaining(), 20);
}

#[test]
fn what_a_change_has_cut_down_is_not_given_back() {
    let (limiter, _hand) = manual("10/h");
    let booked = limiter.reserve("key", 10, Duration::ZERO).unwrap();
    limiter.set_policy("10/min").unwrap();
    limiter.set_policy("10/h").unwrap();
    assert_eq!(limiter.peek("key").reset_after(), MINUTE);
    // Somebody else has it by now.
    assert!(limiter.try_acquire_n("key", 9).is_allowed());
    booked.cancel();
    assert_eq!(limiter.peek("key").remaining(), 0);
}

#[test]
fn a_reservation_under_several_rules_gives_back_what_still_counts() {
    for policy in ["10/s; 1000/h", "10/s; fixed 1000/h", "10/s; log 20/h", "log 10/s; 1000/h"] {
        let (limiter, hand) = manual(policy);
        let booked = limiter.reserve("key", 10, Duration::ZERO).unwrap();
        hand.advance(SECOND);
        assert!(limiter.try_acquire_n("key", 10).is_allowed(), "{policy}");
        // What it had of the first rule has come back by itself, to whoever came.
        booked.cancel();
        assert_eq!(limiter.peek("key").remaining(), 0, "{policy}");
    }
    for policy in ["fixed 10/s", "sliding 10/s", "log 10/s"] {
        let (limiter, hand) = manual(policy);
        let booked = limiter.reserve("key", 10, Duration::ZERO).unwrap();
        hand.advance(2 * SECOND);
        assert!(limiter.try_acquire_n("key", 10).is_allowed(), "{policy}");
        booked.commit(3);
        assert_eq!(limiter.peek("key").remaining(), 0, "{policy}");
    }
}

#[test]
fn a_shadow_rule_changes_nothing_for_those_who_book() {
    let (limiter, hand) = manual("shadow 2/h; 1/s burst 1; shadow 100/h");
    let waits = [(); 4].map(|()| limiter.reserve("key", 1, HOUR).unwrap());
    assert_eq!(waits.each_ref().map(|one| one.wait().as_secs()), [0, 1, 2, 3]);
    let said = waits.each_ref().map(|one| (one.decision().rule(), one.decision().would_deny()));
    assert_eq!(said, [(1, None), (1, None), (1, Some(0)), (1, Some(0))]);
    assert_eq!(limiter.stats().shadow_denied, 2);
    drop(waits);
    assert_eq!(limiter.peek("key").remaining(), 1);
    // The shadows have theirs back too.
    hand.advance(SECOND);
    assert_eq!(limiter.reserve("key", 1, HOUR).unwrap().decision().would_deny(), None);
    let refused = limiter.reserve("other", 2, HOUR).unwrap_err().decision();
    assert_eq!((refused.rule(), refused.limit()), (1, 1));
}

#[test]
fn what_was_booked_before_a_reset_is_not_given_back_after() {
    let (limiter, _hand) = manual("10/h");
    let booked = limiter.reserve("key", 10, Duration::ZERO).unwrap();
    let behind = limiter.reserve("key", 5, HOUR).unwrap();
    limiter.reset("other");
    limiter.reset("key");
    assert!(limiter.try_acquire_n("key", 7).is_allowed());
    let after = limiter.reserve("key", 3, Duration::ZERO).unwrap();
    behind.cancel();
    booked.cancel();
    assert!(limiter.try_acquire("key").is_denied());
    after.cancel();
    assert_eq!(limiter.peek("key").remaining(), 3);

    let mut lease = limiter.lease("other", 5);
    assert!(lease.try_acquire().is_allowed());
    limiter.reset("other");
    assert!(limiter.try_acquire_n("other", 3).is_allowed());
    drop(lease);
    assert_eq!(limiter.peek("other").remaining(), 7);
}
