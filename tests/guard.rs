//! What stands above the rules: lockouts that grow, lists, and requests that pass once.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use common::{DAY, HOUR, MINUTE, NS, SECOND, START};
use common::{builder, check, expect, limiter, said, tiny, together};
use proptest::collection::vec;
use proptest::prelude::prop_oneof;
use std::time::Duration;
use tollgate::{Cause, Clock, Limiter, ManualHand, Outcome, Penalties, WhenFull};

/// Lockouts and list entries are kept in units of 2^20 ns, about a millisecond, and end at a whole one.
const UNIT: Duration = Duration::from_nanos(1 << 20);

fn punishing(text: &str, penalties: Penalties) -> (Limiter, ManualHand) {
    let (builder, hand) = builder(text);
    (builder.penalties(penalties).build().unwrap(), hand)
}

fn schedule() -> Penalties {
    Penalties::new([MINUTE, MINUTE * 5, HOUR])
}

// ---------------------------------------------------------------- lockouts

/// A minute, five minutes, an hour, and an hour from then on; each ends exactly when it says.
#[test]
fn lockouts_grow_by_the_schedule() {
    for strikes in [1, 3] {
        let (limiter, hand) = punishing("2/d", schedule().after(strikes));
        assert!(limiter.try_acquire_n("key", 2).is_allowed());
        for (level, lockout) in [MINUTE, MINUTE * 5, HOUR, HOUR, HOUR].into_iter().enumerate() {
            for strike in 0..strikes {
                let refused = limiter.try_acquire("key");
                assert_eq!(
                    (refused.outcome(), refused.cause()),
                    (Outcome::Denied, Cause::Rule),
                    "level {level}, strike {strike} of {strikes}"
                );
            }
            let locked = limiter.try_acquire("key");
            assert_eq!((locked.outcome(), locked.cause()), (Outcome::Denied, Cause::Penalty));
            assert_eq!((locked.limit(), locked.remaining()), (0, 0));
            let wait = locked.retry_after().unwrap();
            assert!(wait >= lockout && wait < lockout + UNIT, "level {level}: {wait:?}");
            hand.advance(wait - NS);
            assert_eq!(limiter.try_acquire("key").retry_after(), Some(NS), "level {level}");
            hand.advance(NS);
            assert_eq!(limiter.peek("key").cause(), Cause::Rule, "level {level} is over");
        }
    }
}

/// What is asked for while locked out changes nothing: neither the lockout nor the rule.
#[test]
fn requests_while_locked_out_change_nothing() {
    let (limiter, hand) = punishing("2/min", schedule());
    assert!(limiter.try_acquire_n("key", 2).is_allowed());
    assert!(limiter.try_acquire("key").is_denied());
    let locked = said(&limiter.peek("key"));
    for _ in 0..1_000 {
        let asked = limiter.try_acquire("key");
        assert_eq!(said(&asked), locked);
    }
    assert!(limiter.try_acquire_n("key", u64::MAX).cause() == Cause::Penalty);
    hand.advance(locked.6.unwrap());
    let all = limiter.try_acquire_n("key", 2);
    assert!(all.is_allowed(), "a minute of rest has brought back all of it: {all:?}");
    // And the next lockout is the second, not the third.
    assert!(limiter.try_acquire("key").is_denied());
    let wait = limiter.peek("key").retry_after().unwrap();
    assert!(wait >= MINUTE * 5 && wait < MINUTE * 5 + UNIT, "{wait:?}");
}

#[test]
fn good_behaviour_is_forgiven() {
    let forgiven = HOUR * 2;
    let (limiter, hand) = punishing("1/d", schedule().forgiven_after(forgiven));
    let lock = || {
        assert_eq!(limiter.try_acquire("key").cause(), Cause::Rule);
        let wait = limiter.peek("key").retry_after().unwrap();
        hand.advance(wait);
        wait
    };
    assert!(limiter.try_acquire("key").is_allowed());
    assert!(lock() < MINUTE + UNIT);
    hand.advance(forgiven - NS);
    assert!(lock() >= MINUTE * 5, "a nanosecond too early");
    hand.advance(forgiven);
    assert!(lock() < MINUTE + UNIT, "begins anew");
    // Strikes alone are forgiven too.
    let (limiter, hand) = punishing("1/d", schedule().after(2).forgiven_after(forgiven));
    assert!(limiter.try_acquire("key").is_allowed());
    for _ in 0..5 {
        assert!(limiter.try_acquire("key").is_denied());
        hand.advance(forgiven + UNIT);
    }
    assert_eq!(limiter.peek("key").cause(), Cause::Rule, "one strike at a time locks nobody out");
}

#[test]
fn reset_forgets_lockouts_and_strikes() {
    let (limiter, _hand) = punishing("1/d", schedule());
    for _ in 0..3 {
        assert!(limiter.try_acquire("key").is_allowed());
        assert_eq!(limiter.try_acquire("key").cause(), Cause::Rule);
        let wait = limiter.peek("key").retry_after().unwrap();
        assert!(wait < MINUTE + UNIT, "always the first of the schedule: {wait:?}");
        limiter.reset("key");
    }
}

/// Only a rule's refusal is a strike: not a cost that never fits, not want of room, not a list, not a peek.
#[test]
fn other_refusals_are_no_strikes() {
    let (limiter, _hand) = punishing("2/d", schedule());
    for _ in 0..5 {
        assert_eq!(limiter.try_acquire_n("key", 3).outcome(), Outcome::NeverFits);
        assert!(limiter.try_acquire_n("key", 0).is_allowed());
    }
    assert!(limiter.try_acquire_n("key", 2).is_allowed());
    for _ in 0..5 {
        assert_eq!(limiter.peek("key").cause(), Cause::Rule);
        let _ = limiter.once("key", SECOND);
    }
    limiter.deny("key").unwrap();
    assert_eq!(limiter.try_acquire("key").cause(), Cause::List);
    limiter.unlist("key");
    assert_eq!(limiter.try_acquire("key").cause(), Cause::Rule, "the first strike");
    assert_eq!(limiter.try_acquire("key").cause(), Cause::Penalty);

    let (builder, hand) = builder("1/d");
    let limiter = builder.max_keys(1).when_full(WhenFull::Deny).penalties(schedule()).build().unwrap();
    for key in 0..8 {
        assert!(limiter.try_acquire(&key).is_allowed());
    }
    for _ in 0..5 {
        assert_eq!(limiter.try_acquire("newcomer").cause(), Cause::NoRoom);
    }
    hand.advance(DAY);
    assert!(limiter.try_acquire("newcomer").is_allowed());
}

#[test]
fn bad_schedules_are_errors() {
    let build = |penalties| builder("1/s").0.penalties(penalties).build().map(drop);
    let good = || Penalties::new([SECOND; 15]);
    assert!(build(good()).is_ok() && build(good().after(255)).is_ok());
    let most = Penalties::new([Duration::MAX]).forgiven_after(Duration::MAX);
    assert!(build(most).is_ok() && build(good().forgiven_after(Duration::ZERO)).is_ok());
    for bad in [
        Penalties::new([]),
        Penalties::new([SECOND; 16]),
        Penalties::new([SECOND, Duration::ZERO]),
        good().after(0),
        good().after(256),
    ] {
        assert!(build(bad.clone()).is_err(), "{bad:?}");
    }
}

/// A lockout as one would keep it by hand, in units of 2^20 ns.
#[derive(Clone, Copy, Debug, Default)]
struct Sentence {
    strikes: u64,
    level: usize,
    locked_until: u64,
    since: u64,
}

/// Against a naive model, with all times whole units: strikes, lockouts and forgiveness at random.
#[test]
fn lockouts_equal_a_naive_model() {
    let units = |units: u64| UNIT * u32::try_from(units).unwrap();
    let steps = vec(prop_oneof![4 => 0..=3u64, 2 => 0..=60u64, 1 => 90..=110u64], 1..=80);
    let case = (1..=4u64, vec(1..=40u64, 1..=4), 1..=100u64, steps);
    check(3_000, case, |(strikes, lockouts, forgiven, steps)| {
        let penalties = Penalties::new(lockouts.iter().map(|&lockout| units(lockout)).collect::<Vec<_>>())
            .after(strikes)
            .forgiven_after(units(forgiven));
        let (limiter, hand) = punishing("1/100d", penalties);
        // A whole number of units.
        let start = Duration::from_nanos(1_800_000_000_000 << 20);
        hand.set(start);
        let _ = limiter.try_acquire("key");
        let (mut now, mut model) = (0u64, None::<Sentence>);
        for step in steps {
            now += step;
            hand.set(start + units(now));
            // `since` is the last strike, or the end of the last lockout.
            if model.is_some_and(|sentence| now >= sentence.since + forgiven) {
                model = None;
            }
            let left = model.map_or(0, |sentence| sentence.locked_until.saturating_sub(now));
            let decision = limiter.try_acquire("key");
            if left > 0 {
                let exact = decision.cause() == Cause::Penalty && decision.retry_after() == Some(units(left));
                expect(exact, || format!("at {now}: {decision:?}, locked for {left} units more"))?;
                continue;
            }
            expect(decision.cause() == Cause::Rule, || format!("at {now}: {decision:?}, {model:?}"))?;
            let mut sentence = model.unwrap_or_default();
            sentence.strikes += 1;
            sentence.since = now;
            if sentence.strikes == strikes {
                let lockout = lockouts[sentence.level.min(lockouts.len() - 1)];
                sentence.strikes = 0;
                sentence.level += 1;
                sentence.locked_until = now + lockout;
                sentence.since = now + lockout;
            }
            model = Some(sentence);
        }
        Ok(())
    });
}

/// A lockout takes the room of a rule, and a table is built with room for it.
#[test]
fn a_table_has_room_for_lockouts() {
    let slots = |text: &str, penalties: bool| {
        let (builder, _hand) = builder(text);
        let builder = if penalties { builder.penalties(schedule()) } else { builder };
        builder.build().unwrap().stats().slots
    };
    assert_eq!(slots("1/h", true), slots("1/h; 1/d", false));
    // Every key that is refused is counted against, in a table of as many keys as were asked for.
    let (limiter, _hand) = punishing("1/h", schedule());
    for key in 0..1_000u64 {
        assert!(limiter.try_acquire(&key).is_allowed());
        assert!(limiter.try_acquire(&key).is_denied());
    }
    assert!((0..1_000u64).all(|key| limiter.peek(&key).cause() == Cause::Penalty));
    assert_eq!((limiter.stats().evicted, limiter.stats().lost_strikes), (0, 0));
}

#[test]
fn strikes_that_find_no_room_are_counted() {
    let (builder, _hand) = builder("1/h");
    let limiter = builder.max_keys(1).when_full(WhenFull::Deny).penalties(schedule()).build().unwrap();
    let known: Vec<u64> = (0..100).filter(|key| limiter.try_acquire(key).is_allowed()).collect();
    assert_eq!(known.len(), 8);
    assert_eq!(limiter.stats().lost_strikes, 0, "for want of room is no strike");
    assert!(known.iter().all(|key| limiter.try_acquire(key).cause() == Cause::Rule));
    assert_eq!(limiter.stats().lost_strikes, 8);
}

// ---------------------------------------------------------------- lists

#[test]
fn lists_stand_above_the_rules() {
    let (limiter, _hand) = punishing("1/d", schedule());
    limiter.allow("friend").unwrap();
    limiter.deny("foe").unwrap();
    for _ in 0..50 {
        let friend = limiter.try_acquire_n("friend", u64::MAX);
        assert_eq!((friend.outcome(), friend.cause()), (Outcome::Allowed, Cause::List));
        assert_eq!((friend.limit(), friend.remaining()), (u64::MAX, u64::MAX));
        let foe = limiter.try_acquire("foe");
        assert_eq!((foe.outcome(), foe.cause(), foe.retry_after()), (Outcome::Denied, Cause::List, None));
        assert_eq!(foe.into_result().unwrap_err().to_string(), "on the deny list");
    }
    assert!(limiter.try_start("friend").is_ok() && limiter.try_start("foe").is_err());
    assert!(limiter.key("friend").try_acquire().is_allowed() && limiter.key("foe").peek().is_denied());
    // Nothing was spent meanwhile by either.
    for key in ["friend", "foe"] {
        limiter.unlist(key);
        assert!(limiter.try_acquire(key).is_allowed());
        assert_eq!(limiter.try_acquire(key).cause(), Cause::Rule);
    }
    // A list is above a lockout, and does not end it.
    assert_eq!(limiter.peek("foe").cause(), Cause::Penalty);
    limiter.allow("foe").unwrap();
    assert!(limiter.try_acquire("foe").is_allowed());
    limiter.unlist("foe");
    assert_eq!(limiter.peek("foe").cause(), Cause::Penalty);
    limiter.unlist("never listed");
}

/// The last word counts, whichever list a key was on.
#[test]
fn the_last_list_wins() {
    let (limiter, hand) = limiter("1/d");
    limiter.deny("key").unwrap();
    limiter.allow("key").unwrap();
    assert!(limiter.try_acquire("key").is_allowed());
    limiter.deny_for("key", HOUR).unwrap();
    assert!(limiter.try_acquire("key").is_denied());
    limiter.deny("key").unwrap();
    hand.advance(DAY * 300);
    assert_eq!(limiter.try_acquire("key").cause(), Cause::List);
}

/// At any time, the first and the last moment there are among them.
#[test]
fn a_denial_for_a_time_ends_exactly() {
    let ends = [Duration::ZERO, NS, START, Duration::from_nanos(u64::MAX / 2)];
    let lengths = [NS, UNIT - NS, UNIT, UNIT + NS, SECOND, HOUR, DAY * 365];
    for start in ends {
        for length in lengths {
            let (clock, hand) = Clock::manual();
            hand.set(start);
            let limiter = Limiter::builder().policy("1/d").max_keys(8).clock(clock).build().unwrap();
            limiter.deny_for("key", length).unwrap();
            let refused = limiter.try_acquire("key");
            let wait = refused.retry_after().unwrap();
            assert!(wait >= length && wait < length + UNIT, "{start:?}, {length:?}: {refused:?}");
            assert_eq!((refused.cause(), refused.reset_after()), (Cause::List, wait));
            hand.advance(wait - NS);
            assert_eq!(limiter.try_acquire("key").retry_after(), Some(NS));
            hand.advance(NS);
            assert!(limiter.try_acquire("key").is_allowed(), "{start:?}, {length:?}");
        }
    }
}

/// For ever is for ever, on a clock that has only begun too.
#[test]
fn a_denial_for_ever_does_not_end() {
    for start in [Duration::ZERO, NS, START] {
        for time in [None, Some(Duration::MAX), Some(Duration::from_nanos(u64::MAX) - start)] {
            let (clock, hand) = Clock::manual();
            hand.set(start);
            let limiter = Limiter::builder().policy("1/d").max_keys(8).clock(clock).build().unwrap();
            match time {
                Some(time) => limiter.deny_for("key", time).unwrap(),
                None => limiter.deny("key").unwrap(),
            }
            assert!(limiter.try_acquire("key").is_denied(), "{time:?} from {start:?}");
            hand.advance(DAY * 365 * 200);
            assert!(limiter.try_acquire("key").is_denied(), "{time:?} from {start:?}, later");
        }
    }
}

/// A million strangers do not push anybody off a list, and take no memory.
#[test]
fn lists_survive_a_spray_of_a_million() {
    let (limiter, _hand) = limiter("1/d");
    let bytes = limiter.stats().bytes;
    for number in 0..50u32 {
        limiter.allow(&("friend", number)).unwrap();
        limiter.deny(&("foe", number)).unwrap();
    }
    for stranger in 0..1_000_000u32 {
        let _ = limiter.try_acquire(&stranger);
    }
    let stats = limiter.stats();
    assert!(stats.evicted > 900_000 && stats.bytes == bytes, "{stats:?}");
    for number in 0..50u32 {
        assert_eq!(limiter.try_acquire(&("friend", number)).cause(), Cause::List);
        assert!(limiter.try_acquire(&("friend", number)).is_allowed());
        assert!(limiter.try_acquire(&("foe", number)).is_denied());
    }
}

#[test]
fn a_table_full_of_entries_has_no_room_for_another() {
    for when_full in [WhenFull::Evict, WhenFull::Deny, WhenFull::Allow] {
        let (limiter, _hand) = tiny("1/d", when_full);
        for number in 0..8u32 {
            limiter.allow(&number).unwrap();
        }
        for number in 100..120u32 {
            assert!(limiter.allow(&number).is_err(), "{when_full:?}");
            assert!(
                limiter.deny(&number).is_err() && limiter.deny_for(&number, DAY).is_err(),
                "{when_full:?}"
            );
        }
        assert!((0..8u32).all(|number| limiter.try_acquire(&number).cause() == Cause::List), "{when_full:?}");
        // What was taken off makes room.
        limiter.unlist(&3u32);
        limiter.deny(&100u32).unwrap();
        assert!(limiter.try_acquire(&100u32).is_denied());
        assert_eq!(limiter.stats().evicted, 0, "{when_full:?}");
    }
}

// ---------------------------------------------------------------- once

#[test]
fn the_first_passes_and_repeats_are_refused_until_the_window_is_over() {
    for window in [NS, UNIT, SECOND * 5, DAY, DAY * 208] {
        let (limiter, hand) = limiter("1/d");
        for round in 0..3 {
            let first = limiter.once("order", window);
            assert!(first.is_allowed(), "{window:?}, round {round}");
            assert_eq!(first.reset_after(), window);
            let repeat = limiter.once("order", window);
            assert_eq!((repeat.outcome(), repeat.retry_after()), (Outcome::Denied, Some(window)));
            hand.advance(window - NS);
            assert_eq!(limiter.once("order", window).retry_after(), Some(NS), "{window:?}, round {round}");
            hand.advance(NS);
        }
        // Beside the rules: neither spent nor asked.
        assert!(limiter.try_acquire("order").is_allowed());
        assert!(limiter.try_acquire("order").is_denied());
        assert!(limiter.once("order", window).is_allowed());
    }
}

/// The mark is the first one's: a repeat waits for that, however long it would itself have lasted.
#[test]
fn marks_of_different_lengths_meet() {
    let lengths_ns = vec((0..=20u64, 0..=12u64), 1..=60);
    check(2_000, lengths_ns, |steps| {
        let (limiter, hand) = limiter("1/d");
        let (mut now_ns, mut until_ns) = (0, 0);
        for (window_ns, step_ns) in steps {
            let decision = limiter.once("order", Duration::from_nanos(window_ns));
            let left_ns: u64 = until_ns - now_ns.min(until_ns);
            let wait = (left_ns > 0).then(|| Duration::from_nanos(left_ns));
            expect(decision.retry_after() == wait && decision.is_allowed() == (left_ns == 0), || {
                format!("{decision:?} with {left_ns} ns left")
            })?;
            if left_ns == 0 {
                until_ns = now_ns + window_ns;
            }
            now_ns += step_ns;
            hand.advance(Duration::from_nanos(step_ns));
        }
        Ok(())
    });
}

#[test]
fn windows_of_nothing_and_of_all_time() {
    let (limiter, hand) = limiter("1/d");
    for _ in 0..3 {
        let decision = limiter.once("nothing", Duration::ZERO);
        assert!(decision.is_allowed(), "{decision:?}");
        let _ = (decision.remaining(), decision.reset_after());
    }
    assert!(limiter.once("for ever", Duration::MAX).is_allowed());
    let wait = limiter.once("for ever", Duration::MAX).retry_after().unwrap();
    assert!(wait > DAY * 208 && wait < DAY * 209, "{wait:?}");
    hand.advance(wait - NS);
    assert!(limiter.once("for ever", Duration::ZERO).is_denied());
    hand.advance(NS);
    assert!(limiter.once("for ever", Duration::ZERO).is_allowed());
}

#[test]
fn exactly_one_of_those_who_race_for_an_id() {
    let ids = if cfg!(debug_assertions) { 40_000 } else { 100_000u64 };
    let (builder, _hand) = builder("1/d");
    let limiter = builder.max_keys(200_000).build().unwrap();
    let passed = together(4, |index| {
        // In two orders, so that the threads meet head on as well as side by side.
        (0..ids)
            .map(|id| if index % 2 == 0 { id } else { ids - 1 - id })
            .map(|id| u64::from(limiter.once(&id, DAY).is_allowed()))
            .sum()
    });
    assert_eq!(passed, ids);
    assert_eq!(limiter.stats().evicted, 0);
}

/// A clock at its zero has room for all of time, which is still not for ever.
#[test]
fn denied_at_zero_is_denied_for_ever() {
    let (clock, hand) = Clock::manual();
    let limiter = Limiter::builder().policy("5/s").clock(clock).build().unwrap();
    limiter.deny("key").unwrap();
    hand.advance(Duration::from_secs(1));
    let decision = limiter.try_acquire("key");
    assert_eq!((decision.cause(), decision.retry_after()), (Cause::List, None));
}

/// No rule refuses a request that costs nothing; what stands above the rules does.
#[test]
fn a_cost_of_nothing_passes_the_rules_and_nothing_else() {
    let (clock, hand) = Clock::manual();
    let build = |text: &str| Limiter::builder().policy(text).clock(clock.clone());
    let limiter = build("1/h; 1 at once").penalties(Penalties::new([MINUTE])).max_keys(64).build().unwrap();
    let free = |key: &str| limiter.try_acquire_n(key, 0);
    let _permit = limiter.try_start("spent").unwrap();
    assert!(limiter.try_acquire("other").is_allowed());
    assert!(free("spent").is_allowed() && free("other").is_allowed(), "no rule says anything");

    limiter.deny("foe").unwrap();
    assert_eq!((free("foe").outcome(), free("foe").cause()), (Outcome::Denied, Cause::List));
    assert!(limiter.try_acquire("other").is_denied());
    assert_eq!((free("other").outcome(), free("other").cause()), (Outcome::Denied, Cause::Penalty));
    hand.advance(MINUTE + UNIT);
    assert!(free("other").is_allowed());

    // It takes no room, so it needs none, and a limiter that is closed has nothing to keep from it.
    let full = build("1/h").max_keys(8).when_full(WhenFull::Deny).build().unwrap();
    let refused = (0..100u64).find(|key| full.try_acquire(key).cause() == Cause::NoRoom).unwrap();
    assert!(full.try_acquire_n(&refused, 0).is_allowed());
    let _snapshot = limiter.close();
    assert_eq!(limiter.try_acquire("new").cause(), Cause::Closed);
    assert!(free("new").is_allowed());
}
