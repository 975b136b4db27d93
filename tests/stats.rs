//! What a limiter says of itself: every decision counted once, for the rule and the outcome that it had.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "tests may stop"
)]

use std::time::Duration;
use tollgate::{
    Cause, Clock, DecisionStats, Limiter, LimiterBuilder, Penalties, Probes, Stats, Wait, WhenFull,
};

fn counting(policy: &str) -> LimiterBuilder {
    Limiter::builder().policy(policy).count_decisions(true).seeds([1, 2, 3, 4])
}

/// Allowed, near the limit, denied, never fits.
fn row(stats: &DecisionStats) -> [u64; 4] {
    [stats.allowed, stats.near_limit, stats.denied, stats.never_fits]
}

fn rule(stats: &Stats, tier: Option<&str>, rule: &str) -> [u64; 4] {
    let is_it =
        |one: &&DecisionStats| one.cause == Cause::Rule && one.tier.as_deref() == tier && one.rule == rule;
    let found: Vec<_> = stats.decisions.iter().filter(is_it).collect();
    assert_eq!(found.len(), 1, "{tier:?} {rule}: {stats:?}");
    row(found[0])
}

fn cause(stats: &Stats, cause: Cause) -> [u64; 4] {
    row(stats.decisions.iter().find(|one| one.cause == cause).expect("every cause is listed"))
}

#[test]
fn nothing_is_counted_unless_asked_for() {
    let limiter = Limiter::new("1/h").unwrap();
    let _ = limiter.try_acquire("key");
    assert_eq!(limiter.stats().decisions, []);
    assert_eq!(limiter.stats().probes, Probes::default());
}

#[test]
fn each_outcome_is_counted_for_the_rule_that_binds() {
    let (clock, hand) = Clock::manual();
    let limiter = counting("5/s named fast; 8/h named slow").clock(clock).build().unwrap();
    for _ in 0..6 {
        let _ = limiter.try_acquire("key");
    }
    let _ = limiter.try_acquire_n("key", 9);
    let _not_counted = limiter.peek("key");
    let stats = limiter.stats();
    // Four and five of five are near the limit; the sixth is refused; nine are more than either admits.
    assert_eq!(rule(&stats, None, "fast"), [5, 2, 1, 1]);
    assert_eq!(rule(&stats, None, "slow"), [0, 0, 0, 0]);
    hand.advance(Duration::from_secs(1));
    for _ in 0..4 {
        let _ = limiter.try_acquire("key");
    }
    let stats = limiter.stats();
    assert_eq!(rule(&stats, None, "slow"), [3, 2, 1, 0]);
    assert_eq!(rule(&stats, None, "fast"), [5, 2, 1, 1]);
}

#[test]
fn near_is_four_fifths_whatever_the_algorithm() {
    for text in ["10/h", "fixed 10/h", "sliding 10/h", "log 10/h", "10/h; 1000/h"] {
        let (clock, _hand) = Clock::manual();
        let limiter = counting(text).clock(clock).build().unwrap();
        let near: Vec<bool> = (0..10).map(|_| limiter.try_acquire("key").is_near_limit()).collect();
        assert_eq!(near.iter().position(|&near| near), Some(7), "`{text}`: {near:?}");
        assert_eq!(rule(&limiter.stats(), None, "0"), [10, 3, 0, 0], "`{text}`");
    }
}

#[test]
fn what_stands_above_the_rules_is_counted_apart() {
    let (clock, _hand) = Clock::manual();
    let penalties = Penalties::new([Duration::from_secs(60)]);
    let limiter = counting("1/h").penalties(penalties).clock(clock).build().unwrap();
    for _ in 0..5 {
        let _ = limiter.try_acquire("struck");
    }
    limiter.allow("friend").unwrap();
    limiter.deny("foe").unwrap();
    for _ in 0..3 {
        let _ = limiter.try_acquire("friend");
        let _ = limiter.try_acquire("foe");
    }
    let stats = limiter.stats();
    assert_eq!(rule(&stats, None, "0"), [1, 1, 1, 0]);
    assert_eq!(cause(&stats, Cause::Penalty), [0, 0, 3, 0]);
    assert_eq!(cause(&stats, Cause::List), [3, 0, 3, 0]);
    let _snapshot = limiter.close();
    let _ = limiter.try_acquire("stranger");
    assert_eq!(cause(&limiter.stats(), Cause::Closed), [0, 0, 1, 0]);
}

#[test]
fn room_and_evictions_are_told_apart() {
    let (clock, hand) = Clock::manual();
    let fill = |limiter: &Limiter, from: u64| {
        for key in from..from + 20 {
            let _ = limiter.try_acquire(&key);
        }
    };
    let build =
        |when_full| counting("1/h").max_keys(8).when_full(when_full).clock(clock.clone()).build().unwrap();
    let strict = build(WhenFull::Deny);
    fill(&strict, 0);
    let stats = strict.stats();
    assert_eq!(cause(&stats, Cause::NoRoom), [0, 0, 12, 0]);
    assert_eq!((stats.denied_for_room, stats.evicted, stats.expired), (12, 0, 0));

    let kind = build(WhenFull::Evict);
    fill(&kind, 0);
    assert_eq!((kind.stats().evicted, kind.stats().expired), (12, 0));
    hand.advance(Duration::from_secs(7200));
    fill(&kind, 100);
    let stats = kind.stats();
    assert_eq!((stats.evicted, stats.expired, stats.lost_in_restore), (24, 8, 0));
}

fn sampled(stats: &Stats) -> u64 {
    let Probes { at_once, in_home, in_partner, .. } = stats.probes;
    at_once + in_home + in_partner
}

#[test]
fn one_key_in_sixteen_is_looked_for_whatever_the_clock_does() {
    let keys: u64 = 20_000;
    // A clock that stands still, and clocks that go by in steps.
    for step_ns in [0, 1, 16, 100, 1_000_000] {
        let (clock, hand) = Clock::manual();
        let limiter = counting("1/h").max_keys(keys as usize).clock(clock).build().unwrap();
        for key in (0..2 * keys).map(|call| call % keys) {
            assert_eq!(limiter.try_acquire(&key).limit(), 1);
            hand.advance(Duration::from_nanos(step_ns));
        }
        let stats = limiter.stats();
        assert_eq!(sampled(&stats), 2 * keys / 16, "in steps of {step_ns} ns");
        let Probes { at_once, in_home, in_partner, .. } = stats.probes;
        assert!(at_once > in_home.max(in_partner) && in_home.min(in_partner) > 0, "{stats:?}");
    }
}

#[test]
fn keys_are_looked_for_on_every_way_to_a_decision() {
    let (clock, _hand) = Clock::manual();
    let limiter = counting("1000000/h").tier("premium", "fixed 1000000/h").clock(clock).build().unwrap();
    let mut before = 0;
    let mut expect = |what: &str, ask: &dyn Fn(&u64)| {
        (0..1600u64).for_each(|call| ask(&(call % 64)));
        let now = sampled(&limiter.stats());
        assert!((90..=110).contains(&(now - before)), "{what}: {before}, then {now}");
        before = now;
    };
    let ask = |key: &u64| assert!(limiter.try_acquire(key).is_allowed());
    expect("as it was built", &ask);
    expect("a tier", &|key| assert!(limiter.tier("premium").unwrap().try_acquire(key).is_allowed()));
    expect("work", &|key| assert!(limiter.try_start(key).is_ok()));
    expect("a reservation", &|key| limiter.reserve(key, 1, Duration::ZERO).unwrap().commit(1));
    limiter.allow("somebody").unwrap();
    expect("with a list", &ask);
    limiter.set_policy("2000000/h").unwrap();
    expect("under another rate", &ask);
    limiter.set_policy("sliding 1000000/h").unwrap();
    expect("under another algorithm, which has other cells", &ask);
}

#[test]
fn what_shadow_rules_would_refuse_is_counted_by_rule() {
    let (clock, _hand) = Clock::manual();
    let text = "5/h named api; shadow 3/h named strict; shadow 1/h named stricter";
    let limiter =
        counting(text).tier("premium", "9/h; shadow 2/h named strict").clock(clock).build().unwrap();
    let shadows = |limiter: &Limiter| -> Vec<(Option<String>, String, u64)> {
        let stats = limiter.stats();
        let all: u64 = stats.decisions.iter().map(|one| one.shadow_denied).sum();
        assert_eq!(all, stats.shadow_denied);
        let shadows = stats.decisions.into_iter().filter(|one| one.is_shadow);
        shadows.map(|one| (one.tier.map(String::from), one.rule, one.shadow_denied)).collect()
    };
    for _ in 0..7 {
        let _ = limiter.try_acquire("key");
        let _ = limiter.tier("premium").unwrap().try_acquire("other");
    }
    let row = |tier: Option<&str>, rule: &str, count| (tier.map(str::to_owned), rule.to_owned(), count);
    assert_eq!(
        shadows(&limiter),
        [row(None, "strict", 2), row(None, "stricter", 4), row(Some("premium"), "strict", 5)]
    );
    assert_eq!(rule(&limiter.stats(), None, "strict"), [0; 4], "it decides nothing");
    assert_eq!(rule(&limiter.stats(), None, "api")[..3], [5, 2, 2]);

    // A shadow that comes into force keeps its count, and a former one is still listed.
    limiter.set_policy("3/h named strict").unwrap();
    assert!(limiter.try_acquire("new").is_allowed());
    assert_eq!(shadows_of(&limiter, "strict"), (false, 2));
    assert_eq!(shadows_of(&limiter, "stricter"), (true, 4));
}

fn shadows_of(limiter: &Limiter, rule: &str) -> (bool, u64) {
    let stats = limiter.stats();
    let one = stats.decisions.iter().find(|one| one.tier.is_none() && one.rule == rule).unwrap();
    (one.is_shadow, one.shadow_denied)
}

#[test]
fn every_way_of_asking_is_counted_once() {
    let (clock, _hand) = Clock::manual();
    let limiter = counting("100/h").tier("premium", "3/h").clock(clock).build().unwrap();
    let expect =
        |allowed: u64, what: &str| assert_eq!(rule(&limiter.stats(), None, "0")[0], allowed, "{what}");
    let _ = limiter.key("a").try_acquire();
    expect(1, "a handle");
    let keys = ["b", "c", "d"];
    let mut decisions = keys.map(|key| limiter.peek(key));
    let _ = limiter.try_acquire_many(&keys, &mut decisions);
    expect(4, "a batch");
    drop(limiter.try_start("e").unwrap());
    expect(5, "work");
    limiter.reserve("f", 7, Duration::ZERO).unwrap().commit(3);
    expect(6, "a reservation");
    let wait = Wait::new().max_wait(Duration::ZERO);
    let _ = limiter.acquire_blocking_with("g", wait);
    expect(7, "somebody who might have waited");
    let mut lease = limiter.lease("h", 10);
    assert_eq!((0..25).filter(|_| lease.try_acquire().is_allowed()).count(), 25);
    drop(lease);
    expect(32, "a lease");
    assert!(limiter.reserve("f", 100, Duration::ZERO).is_err());
    let _ = limiter.acquire_blocking_with("h", wait.cost(80));
    assert_eq!(rule(&limiter.stats(), None, "0")[2], 2, "who was refused at the end");

    let premium = limiter.tier("premium").unwrap();
    for _ in 0..5 {
        let _ = premium.try_acquire("i");
    }
    assert_eq!(rule(&limiter.stats(), Some("premium"), "0"), [3, 1, 2, 0]);
    expect(32, "another tier");
}

#[test]
fn counts_stay_with_their_names_when_the_policy_changes() {
    let (clock, _hand) = Clock::manual();
    let limiter = counting("100/h named api; 1000/h").clock(clock).build().unwrap();
    let ask = |key: &str, times: u64| {
        (0..times).for_each(|_| assert!(limiter.try_acquire(key).is_allowed()));
    };
    ask("a", 3);
    limiter.set_policy("50/min named login; 100/h named api").unwrap();
    ask("b", 5);
    let stats = limiter.stats();
    assert_eq!(rule(&stats, None, "login")[0] + rule(&stats, None, "api")[0], 8);
    assert!(rule(&stats, None, "api")[0] >= 3, "{stats:?}");
    assert_eq!(rule(&stats, None, "1"), [0; 4], "gone, and still listed");
    limiter.set_policy("100/h named api; 1000/h").unwrap();
    ask("c", 2);
    let stats = limiter.stats();
    let total: u64 = ["api", "login", "1"].iter().map(|name| rule(&stats, None, name)[0]).sum();
    assert_eq!(total, 10);
    assert_eq!(rule(&stats, None, "api")[0], 10 - rule(&stats, None, "login")[0]);
}

#[test]
fn no_count_is_lost_between_threads_that_come_and_go() {
    let limiter = counting("1000000/h").max_keys(64).build().unwrap();
    let (rounds, threads, calls) = (20, 24, 500);
    for _ in 0..rounds {
        // More at a time than have a stripe of their own on a small machine, and new ones each round.
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let limiter = &limiter;
                scope.spawn(move || {
                    for _ in 0..calls {
                        let _ = limiter.try_acquire(&thread);
                    }
                });
            }
        });
    }
    let [allowed, _, denied, _] = rule(&limiter.stats(), None, "0");
    assert_eq!((allowed, denied), (rounds * threads * calls, 0));
}
