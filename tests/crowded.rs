//! A key that has as many entries as there is room for: it is refused, and never admitted at its own expense.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::LazyLock;
use std::time::{Duration, Instant};
use tollgate::{Cause, Clock, Limiter, ManualHand, Penalties, WhenFull};

const POLICIES: [WhenFull; 2] = [WhenFull::Evict, WhenFull::Deny];

/// The smallest table there is: one bucket of eight.
fn smallest(policy: &str, when_full: WhenFull, penalties: Option<Penalties>) -> (Limiter, ManualHand) {
    let (clock, hand) = Clock::manual();
    hand.set(Duration::from_secs(1_790_000_000));
    let mut builder = Limiter::builder().policy(policy).max_keys(1).when_full(when_full).clock(clock);
    if let Some(penalties) = penalties {
        builder = builder.penalties(penalties);
    }
    (builder.build().unwrap(), hand)
}

fn admitted(limiter: &Limiter, asked: usize) -> usize {
    (0..asked).filter(|_| limiter.try_acquire("key").is_allowed()).count()
}

#[test]
fn a_lockout_does_not_cost_the_log_its_tokens() {
    for when_full in POLICIES {
        let penalties = Penalties::new([Duration::from_secs(60)]).after(5);
        let (limiter, hand) = smallest("log 8/min", when_full, Some(penalties));
        assert_eq!(admitted(&limiter, 1_000), 8, "{when_full:?}");
        hand.advance(Duration::from_secs(30));
        assert_eq!(admitted(&limiter, 1_000), 0, "{when_full:?}");
        assert_eq!(limiter.stats().evicted, 0, "{when_full:?}");
    }
}

#[test]
fn nor_does_a_mark_or_a_list_entry() {
    for when_full in POLICIES {
        let (limiter, _hand) = smallest("log 8/min", when_full, None);
        assert_eq!(admitted(&limiter, 6), 6);
        let _mark = limiter.once("key", Duration::from_secs(3_600));
        let _listed = limiter.deny("mallory");
        // Two of the eight may have no room by now; none has come free.
        assert!(admitted(&limiter, 1_000) <= 2, "{when_full:?}");
        assert_eq!(admitted(&limiter, 1_000), 0, "{when_full:?}");
        assert!(limiter.try_acquire("key").retry_after() > Some(Duration::ZERO), "{when_full:?}");
    }
}

#[test]
fn a_log_in_several_groups_of_entries_is_one_keys() {
    // Nine tokens in room for eight: the last one is refused for room.
    for when_full in POLICIES {
        let (limiter, _hand) = smallest("log 8/min; 1/h burst 100", when_full, None);
        assert!(admitted(&limiter, 1_000) <= 8, "{when_full:?}");
        assert_eq!(limiter.stats().evicted, 0, "{when_full:?}");
    }
}

#[test]
fn a_policy_without_room_for_a_single_key_is_refused() {
    let (limiter, _hand) = smallest("1/s", WhenFull::Evict, None);
    let room = limiter.stats().slots;
    let error = limiter.set_policy(format!("log {}/min", room + 1).as_str()).unwrap_err();
    assert!(error.to_string().contains(&format!("needs {} entries", room + 1)), "{error}");
    assert_eq!(limiter.policy().to_string(), "1/s");
    limiter.set_policy(format!("log {room}/min").as_str()).unwrap();
    assert_eq!(admitted(&limiter, 1_000), room);
    assert_ne!(limiter.try_acquire("key").cause(), Cause::List);
}

/// One rule is in debt, and there is no room for the other's entry. What is refused for that, however often, leaves the
/// debt as it is: by a clock that runs, because handing a charge back loses the time since.
#[test]
fn a_refusal_for_room_leaves_a_debt_as_it_is() {
    let builder = Limiter::builder().policy("5/h; 1000/s").max_keys(1).when_full(WhenFull::Deny);
    let limiter = builder.build().unwrap();
    assert!(limiter.try_acquire("key").is_allowed());
    // The second rule's entry is worth a fresh one after a millisecond, and makes room for one of a list.
    let mut listed = 0;
    while listed < 7 {
        listed += usize::from(limiter.deny(&listed).is_ok());
    }
    // The least of many: between two readings of the time, anything may come.
    let owes_until =
        || (0..100).map(|_| limiter.peek_n("key", 0).reset_after() + SINCE.elapsed()).min().unwrap();
    let before = owes_until();
    for _ in 0..10_000 {
        assert_eq!(limiter.try_acquire("key").cause(), Cause::NoRoom);
    }
    let after = owes_until();
    assert!(after < before + Duration::from_micros(500), "what was owed until {before:?} is until {after:?}");
}

static SINCE: LazyLock<Instant> = LazyLock::new(Instant::now);
