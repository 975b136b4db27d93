//! The keyed limiter: every key beside its own oracle, and what the table promises of room.
//!
//! Every run uses the same seeds, so a failure comes back; the smallest failing case is printed.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;
mod oracle;

use oracle::harness::{Op, nanos};
use oracle::keyed::{CheckedKeys, Crowd, Setting};
use oracle::{Oracle, expect};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::sample::select;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use tollgate::{Cause, Clock, Decision, Limiter, ManualHand, Outcome, Policy, Rule, Stats, WhenFull};

/// Cases of a law, for each policy.
const CASES: u32 = if cfg!(debug_assertions) { 40 } else { 200 };
const SEED: u64 = 0x6b65_7965_6421;
const NS: Duration = Duration::from_nanos(1);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
/// More than any test here may admit to one key: a limiter without a limit should fail, not hang.
const RUNAWAY: u64 = 100_000;

/// One rule and several, of one cell, of four, and of more than share a pair of buckets.
const POLICIES: [&str; 14] = [
    "3/s",
    "1/s burst 4",
    "7/us burst 3",
    "1000003/s burst 5",
    "fixed 3/s",
    "sliding 4/s",
    "log 1/s",
    "log 3/s",
    "log 6/s",
    "2/s; 5/min",
    "fixed 2/s; log 3/min",
    "sliding 3/s; 4/min burst 2; fixed 9/h",
    "log 2/s; log 3/10s",
    "5/s burst 2; 7/s burst 3; fixed 4/s; sliding 6/s; fixed 9/min",
];
const EACH: [&str; 4] = ["5/s", "fixed 5/s", "sliding 5/s", "log 5/s"];

fn check<S: Strategy>(cases: u32, strategy: S, law: impl Fn(S::Value) -> Result<(), String>) {
    common::check_with(SEED, cases, strategy, law);
}

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

fn start_ns() -> impl Strategy<Value = u64> {
    select(vec![0, 1, 999_999_999, 1_790_000_000_250_000_000, u64::MAX - (1 << 58)])
}

fn history(ops: usize) -> impl Strategy<Value = Vec<(usize, Op)>> {
    vec((0..64usize, any::<u32>().prop_map(Op::decode)), 0..=ops)
}

fn build(text: &str, max_keys: usize, when_full: WhenFull, seed: u64) -> (Limiter, ManualHand) {
    let (clock, hand) = Clock::manual();
    // Not on a window's edge, where some defects hide.
    hand.set(Duration::from_millis(1_790_000_000_250));
    let limiter = Limiter::builder()
        .policy(text)
        .max_keys(max_keys)
        .when_full(when_full)
        .clock(clock)
        .seeds([seed, 5, 6, 7])
        .build()
        .unwrap();
    (limiter, hand)
}

/// All that a decision says.
fn said(decision: &Decision) -> (Outcome, u64, u64, usize, Option<Duration>, Duration) {
    let d = decision;
    (d.outcome(), d.cost(), d.remaining(), d.rule(), d.retry_after(), d.reset_after())
}

/// What a limiter has had to do for want of room.
fn exceptions(stats: &Stats) -> (u64, u64, u64, u64) {
    (stats.evicted, stats.forgiven_cost, stats.denied_for_room, stats.allowed_for_room)
}

/// Takes one at a time until refused.
fn drain(limiter: &Limiter, key: u64) -> u64 {
    let mut admitted = 0;
    while limiter.try_acquire(&key).is_allowed() {
        admitted += 1;
        assert!(admitted <= RUNAWAY, "{limiter:?} does not limit {key}");
    }
    admitted
}

#[test]
fn each_key_equals_its_own_oracle_in_a_roomy_table() {
    for text in POLICIES {
        let case = (start_ns(), any::<u64>(), history(96));
        check(CASES, case, |(start_ns, seed, ops)| {
            let setting = Setting { max_keys: 1_000, keys: 13, crowd: Crowd::Promised, start_ns, seed };
            CheckedKeys::with_history(&policy(text), setting, &ops)?.check_all()
        });
    }
}

/// As many live keys as promised and no more, among several times as many that come and expire.
#[test]
fn each_key_equals_its_own_oracle_while_keys_expire_all_the_time() {
    for text in POLICIES {
        let case = (1..=9usize, start_ns(), any::<u64>(), history(128));
        check(CASES, case, |(max_keys, start_ns, seed, ops)| {
            let keys = max_keys * 2 + 3;
            let setting = Setting { max_keys, keys, crowd: Crowd::Promised, start_ns, seed };
            CheckedKeys::with_history(&policy(text), setting, &ops)?.check_all()
        });
    }
}

/// `Deny`: whatever the number of keys, every decision but a refusal for room is the oracle's.
#[test]
fn deny_keeps_every_bound_whatever_the_crowd() {
    for text in POLICIES {
        let refusals = std::cell::Cell::new(0);
        let case = (1..=3usize, start_ns(), any::<u64>(), history(128));
        check(CASES, case, |(max_keys, start_ns, seed, ops)| {
            let setting = Setting { max_keys, keys: 29, crowd: Crowd::Any, start_ns, seed };
            let checked = CheckedKeys::with_history(&policy(text), setting, &ops)?;
            refusals.set(refusals.get() + checked.room_refusals);
            checked.check_all()
        });
        // A table of five keys with several cells each is larger than the crowd; most are not.
        assert!(refusals.get() > 0 || text == "1000003/s burst 5", "`{text}` never ran out of room");
    }
}

/// The wait of a refusal for room is the shortest after which there is room: a nanosecond less is not enough.
#[test]
fn deny_says_when_there_will_be_room() {
    for text in ["2/s", "1/s burst 3", "fixed 2/s", "sliding 2/s", "log 1/s"] {
        let case = vec((0..=1_500_000_000u64, 1..=2u64), 8..=8);
        check(CASES, case, |steps| {
            let (limiter, hand) = build(text, 8, WhenFull::Deny, 1);
            let limit = policy(text).rules()[0].limit();
            // Spending ever more, so that none is fresh before the last has come.
            for (key, (step_ns, cost)) in steps.iter().enumerate() {
                let _ = limiter.try_acquire_n(&key, (*cost).min(limit));
                if key < 7 {
                    hand.advance(Duration::from_nanos(step_ns / 16));
                }
            }
            let refused = limiter.try_acquire("newcomer");
            if limiter.stats().denied_for_room == 0 {
                return expect(refused.is_allowed(), || format!("{refused:?}"));
            }
            expect(refused.outcome() == Outcome::Denied, || format!("{refused:?}"))?;
            let wait = refused.retry_after().unwrap();
            hand.advance(wait - NS);
            let early = limiter.try_acquire("newcomer");
            expect(early.retry_after() == Some(NS), || format!("{refused:?}, less 1 ns: {early:?}"))?;
            hand.advance(NS);
            let late = limiter.try_acquire("newcomer");
            expect(late.is_allowed(), || format!("{refused:?}, then {late:?}"))?;
            let stats = limiter.stats();
            expect(stats.denied_for_room == 2 && stats.evicted == 0, || format!("{stats:?}"))
        });
    }
}

/// The same in tables of many buckets and keys of several cells: waiting as told leads in, a cell a wait.
#[test]
fn deny_lets_everybody_in_who_waits_as_told() {
    for (text, cells) in
        [("1/min burst 2", 1), ("2/s; 5/min", 2), ("log 5/s", 5), ("fixed 2/s; log 3/min", 4)]
    {
        for seed in 0..5 {
            let (limiter, hand) = build(text, 30, WhenFull::Deny, seed);
            let mut refused = 0;
            // Far more than there are slots, however roomy the table.
            for key in 0..2_000u64 {
                let mut waits = 0;
                while let Some(wait) = limiter.try_acquire(&key).retry_after() {
                    refused += 1;
                    waits += 1;
                    assert!(
                        waits <= cells * 8,
                        "`{text}`, seed {seed}: key {key} is told to wait again and again"
                    );
                    hand.advance(wait);
                }
            }
            let stats = limiter.stats();
            assert_eq!(exceptions(&stats), (0, 0, refused, 0), "`{text}`, seed {seed}");
            assert!(refused > 0, "`{text}`, seed {seed}: never full");
        }
    }
}

/// Law 5: once a key is worth a fresh one, whatever became of its slot, it shows and does what a fresh one does.
#[test]
fn a_forgotten_key_is_worth_a_fresh_one() {
    for text in POLICIES {
        let case = (1..=4usize, any::<u64>(), history(64));
        check(CASES / 2, case, |(max_keys, seed, ops)| {
            let policy = policy(text);
            let start_ns = 1_790_000_000_250_000_000;
            let setting = Setting { max_keys, keys: 11, crowd: Crowd::Promised, start_ns, seed };
            let checked = CheckedKeys::with_history(&policy, setting, &ops)?;
            let limit = policy.rules().iter().map(Rule::limit).min().unwrap();
            for (key, oracle) in checked.oracles.iter().enumerate() {
                if !oracle.must_be_fresh(oracle.now_ns()) {
                    continue;
                }
                let stranger = ("never seen", key);
                for cost in 0..=limit + 1 {
                    let (known, fresh) =
                        (checked.limiter.peek_n(&key, cost), checked.limiter.peek_n(&stranger, cost));
                    // A known one may have room that a stranger has not.
                    let is_same = said(&known) == said(&fresh) || fresh.cause() == Cause::NoRoom;
                    expect(is_same, || format!("{known:?} beside {fresh:?}"))?;
                }
            }
            // One after the other takes all that a fresh one may, and nothing is lost over it.
            for key in 0..checked.oracles.len() {
                checked.hand.set(Duration::from_nanos(checked.oracles[0].now_ns()));
                checked.hand.advance(DAY * 2 * (1 + key as u32));
                let all = checked.limiter.try_acquire_n(&key, limit);
                expect(all.is_allowed(), || format!("key {key} is not fresh after days: {all:?}"))?;
                let more = checked.limiter.try_acquire_n(&key, limit);
                expect(more.is_denied(), || format!("key {key} took its limit twice: {more:?}"))?;
            }
            expect(exceptions(&checked.limiter.stats()) == (0, 0, 0, 0), || format!("{checked:?}"))
        });
    }
}

/// `Evict`: every entry dropped is counted, with what it had spent, and nothing else is lost.
#[test]
fn evict_counts_what_it_forgets() {
    for (text, limit) in [("5/d burst 5", 5), ("fixed 5/d", 5), ("sliding 5/d", 5), ("log 1/d", 1)] {
        let (limiter, _hand) = build(text, 8, WhenFull::Evict, 3);
        let keys = 500u64;
        for key in 0..keys {
            assert_eq!(drain(&limiter, key), limit, "`{text}`: a newcomer is served whole");
            let stats = limiter.stats();
            let over = (key + 1).saturating_sub(8);
            assert_eq!(exceptions(&stats), (over, over * limit, 0, 0), "`{text}`, key {key}");
            assert_eq!(stats.live_keys as u64, (key + 1).min(8), "`{text}`, key {key}");
        }
        // Eight are known and refused; the others start afresh. Peeks change nothing.
        let known = (0..keys).filter(|key| limiter.peek(key).is_denied()).count();
        assert_eq!(known, 8, "`{text}`");
    }
}

/// `Evict` drops the entry that is nearest to fresh: a key deep in debt outlives a spray.
#[test]
fn evict_forgets_the_entry_nearest_to_fresh() {
    for text in ["10/h", "5/d burst 10", "5/h burst 10; 1000/h"] {
        for seed in 0..20 {
            let (limiter, hand) = build(text, 50, WhenFull::Evict, seed);
            let abusers = 0..5u64;
            for abuser in abusers.clone() {
                assert_eq!(drain(&limiter, abuser), 10, "`{text}`");
            }
            for key in 1_000..20_000u64 {
                hand.advance(Duration::from_micros(1));
                assert!(limiter.try_acquire(&key).is_allowed(), "`{text}`: a newcomer is served");
            }
            for abuser in abusers {
                assert!(
                    limiter.try_acquire(&abuser).is_denied(),
                    "`{text}`, seed {seed}: abuser {abuser} got away"
                );
            }
            let stats = limiter.stats();
            assert!(stats.evicted > 10_000 && stats.forgiven_cost >= stats.evicted, "{stats:?}");
            assert_eq!((stats.denied_for_room, stats.allowed_for_room), (0, 0));
        }
    }
}

/// `Evict`: over any trace, what a key is admitted beyond its bound is covered by what was forgiven.
#[test]
fn evict_admits_no_more_than_the_bounds_and_what_was_forgiven() {
    for text in ["4/d burst 4", "fixed 4/d", "sliding 4/d", "log 4/d", "6/d; fixed 4/d"] {
        let case = (1..=4usize, any::<u64>(), vec((0..40u64, 1..=4u64), 0..300));
        check(CASES, case, |(max_keys, seed, requests)| {
            let (limiter, _hand) = build(text, max_keys, WhenFull::Evict, seed);
            let mut admitted = HashMap::<u64, u64>::new();
            for (key, cost) in requests {
                if limiter.try_acquire_n(&key, cost).is_allowed() {
                    *admitted.entry(key).or_default() += cost;
                }
            }
            let beyond: u64 = admitted.values().map(|spent| spent.saturating_sub(4)).sum();
            let stats = limiter.stats();
            expect(beyond <= stats.forgiven_cost, || format!("{beyond} beyond the bounds, {stats:?}"))?;
            expect(stats.evicted <= stats.forgiven_cost, || format!("worthless entries evicted: {stats:?}"))?;
            expect((stats.denied_for_room, stats.allowed_for_room) == (0, 0), || format!("{stats:?}"))
        });
    }
}

/// `Allow`: newcomers pass uncounted, and those who are known keep their bounds.
#[test]
fn allow_lets_newcomers_pass_and_holds_the_known() {
    for text in ["3/d burst 3", "fixed 3/d", "sliding 3/d", "log 1/d"] {
        let (limiter, hand) = build(text, 8, WhenFull::Allow, 1);
        let limit = policy(text).rules()[0].limit();
        for key in 0..8u64 {
            assert_eq!(drain(&limiter, key), limit, "`{text}`");
        }
        for turn in 0..200u64 {
            let newcomer = 1_000 + turn % 10;
            assert!(limiter.try_acquire(&newcomer).is_allowed(), "`{text}`");
            assert_eq!(exceptions(&limiter.stats()), (0, 0, 0, turn + 1), "`{text}`");
            assert!(limiter.try_acquire(&(turn % 8)).is_denied(), "`{text}`: a known key was forgotten");
            assert_eq!(limiter.stats().live_keys, 8, "`{text}`");
        }
        // A newcomer has no budget, but a cost beyond any is still beyond any.
        assert_eq!(limiter.try_acquire_n(&1_000, limit + 1).outcome(), Outcome::NeverFits, "`{text}`");
        // Once there is room, newcomers are held as everybody is.
        hand.advance(DAY * 3);
        assert_eq!(drain(&limiter, 1_000), limit, "`{text}`");
        assert_eq!(limiter.stats().allowed_for_room, 200, "`{text}`");
    }
}

/// `Allow` over any trace: a key's decisions are its oracle's, but for the ones that were counted as passed.
#[test]
fn allow_counts_whatever_passes_uncounted() {
    for text in ["3/s", "fixed 3/s", "sliding 3/s", "log 1/s"] {
        let case = (any::<u64>(), vec((0..20usize, 1..=3u64, 0..300_000_000u64), 0..150));
        check(CASES, case, |(seed, requests)| {
            let (limiter, hand) = build(text, 5, WhenFull::Allow, seed);
            let mut oracles = vec![Oracle::new(&policy(text)); 20];
            for (key, cost, step_ns) in requests {
                hand.advance(Duration::from_nanos(step_ns / 8));
                oracles[key].set_clock(nanos(hand.now()));
                let before = limiter.stats().allowed_for_room;
                let decision = limiter.try_acquire_n(&key, cost);
                match limiter.stats().allowed_for_room - before {
                    0 => oracles[key].check_acquire(&decision, cost)?,
                    1 => expect(decision.is_allowed(), || format!("{decision:?}"))?,
                    more => return Err(format!("{more} passed in one request")),
                }
            }
            Ok(())
        });
    }
}

/// That many live keys fit: none is refused, forgotten or let off. Nor are those that come after them, once the
/// first are worth nothing and still in their places.
fn all_fit(text: &str, keys: usize, seed: u64) {
    let (limiter, hand) = build(text, keys, WhenFull::Evict, seed);
    let limit = limiter.policy().rules().iter().map(Rule::limit).min().unwrap();
    let cells: usize = limiter.policy().rules().iter().map(oracle::keyed::cells).sum();
    for generation in 0..3 {
        let what = format!("`{text}`, {keys} keys, seed {seed}, generation {generation}");
        let of_generation = || (0..keys).map(|key| key + generation * keys);
        for key in of_generation() {
            assert!(limiter.try_acquire_n(&key, limit).is_allowed(), "{what}: {key}");
        }
        let stats = limiter.stats();
        assert_eq!(exceptions(&stats), (0, 0, 0, 0), "{what}: {stats:?}");
        assert_eq!(stats.max_keys, keys);
        // A long log counts once for every few of its requests that are on a line of their own.
        assert!((keys..=keys * cells.div_ceil(4)).contains(&stats.live_keys), "{what}: {stats:?}");
        for key in of_generation() {
            assert!(limiter.try_acquire(&key).is_denied(), "{what}: {key} forgotten");
        }
        assert_eq!(exceptions(&limiter.stats()), (0, 0, 0, 0), "{what}");
        hand.advance(DAY * 3);
    }
}

#[test]
fn max_keys_is_a_promise() {
    for (keys, seeds) in [(1, 50), (2, 50), (5, 50), (8, 50), (9, 50), (16, 50), (100, 50), (1_000, 20)] {
        for seed in 0..seeds {
            all_fit("1/d", keys, seed);
        }
    }
    // Just below, at and above the size from which tables are filled higher.
    for keys in [4_095, 4_096, 4_097, 10_000] {
        for seed in 0..3 {
            all_fit("1/d", keys, seed);
        }
    }
    all_fit("1/d", 100_000, 1);
}

#[test]
fn max_keys_is_a_promise_for_a_million() {
    all_fit("1/d", 1_000_000, 1);
}

#[test]
fn max_keys_is_a_promise_under_every_algorithm_and_several_rules() {
    for text in ["fixed 1/d", "sliding 1/d", "log 1/d", "1/d; 2/d", "fixed 3/d; 2/d burst 2; log 1/d"] {
        for keys in [1, 2, 4, 5, 8, 9, 16, 100, 1_000] {
            for seed in 0..5 {
                all_fit(text, keys, seed);
            }
        }
        all_fit(text, 10_000, 1);
    }
    all_fit("1/d; 2/d", 100_000, 1);
}

#[test]
fn max_keys_is_a_promise_for_logs() {
    for text in ["log 5/15min", "log 4/15min", "log 20/15min"] {
        for keys in [1, 2, 5, 16, 100, 500, 1_100] {
            for seed in 0..5 {
                all_fit(text, keys, seed);
            }
        }
    }
    all_fit("log 5/15min", 10_000, 1);
}

/// What is live by brute force, over many keys and a moving clock.
#[test]
fn stats_are_exact() {
    for text in ["2/s", "fixed 2/s", "sliding 2/s", "log 2/s", "2/s; 3/min", "fixed 2/s; log 3/10s"] {
        let (limiter, hand) = build(text, 2_000, WhenFull::Evict, 9);
        let policy = policy(text);
        let mut oracles: HashMap<u64, Oracle> = HashMap::new();
        let fresh = limiter.stats();
        assert_eq!((fresh.live_keys, fresh.max_keys), (0, 2_000), "`{text}`");
        assert!(fresh.slots >= 2_000 && fresh.bytes >= fresh.slots * 16, "`{text}`: {fresh:?}");
        let mut random = Random(5);
        for turn in 0..3_000u64 {
            hand.advance(Duration::from_micros(random.below(3_000)));
            let now_ns = nanos(hand.now());
            let key = random.below(700);
            let oracle = oracles.entry(key).or_insert_with(|| Oracle::new(&policy));
            oracle.set_clock(now_ns);
            oracle.check_acquire(&limiter.try_acquire(&key), 1).unwrap();
            if turn % 100 == 99 {
                for oracle in oracles.values_mut() {
                    oracle.set_clock(now_ns);
                }
                let live = oracles.values().filter(|oracle| !oracle.must_be_fresh(now_ns)).count();
                let stats = limiter.stats();
                let cells: usize = policy.rules().iter().map(oracle::keyed::cells).sum();
                assert!(stats.live_keys >= live, "`{text}`: {live} are live, {stats:?}");
                assert!(cells > 4 || stats.live_keys == live, "`{text}`: {live} are live, {stats:?}");
                let mut unchanged = fresh.clone();
                (unchanged.live_keys, unchanged.expired) = (stats.live_keys, stats.expired);
                assert_eq!(stats, unchanged, "`{text}`");
                assert_eq!(stats, limiter.stats(), "`{text}`: looking changed something");
            }
        }
    }
}

/// A refund and a reset make a key worth a fresh one at once, and its room is free at once.
#[test]
fn what_is_given_back_makes_room() {
    for text in ["5/d", "fixed 5/d", "sliding 5/d", "log 5/d", "5/d; fixed 7/d"] {
        let (limiter, _hand) = build(text, 2, WhenFull::Deny, 2);
        for key in 0..300u64 {
            assert!(limiter.try_acquire_n(&key, 5).is_allowed(), "`{text}`, key {key}");
            assert!(limiter.try_acquire(&key).is_denied(), "`{text}`, key {key}");
            if key % 2 == 0 {
                limiter.refund(&key, 5);
            } else {
                limiter.reset(&key);
            }
            assert_eq!(limiter.stats().live_keys, 0, "`{text}`, key {key}");
            assert_eq!(limiter.peek_n(&key, 5).remaining(), 5, "`{text}`, key {key}");
        }
        // Giving back for keys that have nothing is nothing, and takes no room.
        for key in 300..400u64 {
            limiter.refund(&key, u64::MAX);
            limiter.reset(&key);
            assert_eq!(limiter.peek_n(&key, 0).remaining(), 5, "`{text}`, key {key}");
        }
        assert_eq!((limiter.stats().live_keys, exceptions(&limiter.stats())), (0, (0, 0, 0, 0)), "`{text}`");
    }
}

/// Looking, asking for nothing and asking for too much take no room and change nothing.
#[test]
fn what_spends_nothing_takes_no_room() {
    for text in EACH {
        let (limiter, _hand) = build(text, 1, WhenFull::Deny, 4);
        for key in 0..1_000u64 {
            assert!(
                limiter.peek(&key).is_allowed() && limiter.try_acquire_n(&key, 0).is_allowed(),
                "`{text}`"
            );
            assert_eq!(limiter.try_acquire_n(&key, 6).outcome(), Outcome::NeverFits, "`{text}`");
            assert_eq!(limiter.try_acquire_n(&key, u64::MAX).outcome(), Outcome::NeverFits, "`{text}`");
        }
        let stats = limiter.stats();
        assert_eq!((stats.live_keys, exceptions(&stats)), (0, (0, 0, 0, 0)), "`{text}`");
    }
}

#[test]
fn many_at_once_decide_as_one_by_one() {
    for text in POLICIES {
        let case = (any::<u64>(), vec((vec(0..30u64, 0..50), 0..2_000_000_000u64), 0..6));
        for when_full in [WhenFull::Deny, WhenFull::Evict, WhenFull::Allow] {
            check(CASES / 4, case.clone(), |(seed, batches)| {
                let (many, many_hand) = build(text, 4, when_full, seed);
                let (single, single_hand) = build(text, 4, when_full, seed);
                for (keys, step_ns) in batches {
                    // Some room beyond the keys, and in the other turn some keys beyond the room.
                    let room = if step_ns % 2 == 0 { keys.len() + 3 } else { keys.len() / 2 };
                    let blank = many.peek_n("blank", 0);
                    let mut decisions = vec![blank; room];
                    let done = many.try_acquire_many(&keys, &mut decisions);
                    expect(done == keys.len().min(room), || format!("{done} of {} done", keys.len()))?;
                    for (key, decision) in keys.iter().zip(&decisions) {
                        let alone = single.try_acquire(key);
                        expect(said(decision) == said(&alone), || format!("{decision:?}, alone {alone:?}"))?;
                    }
                    expect(decisions[done..].iter().all(|rest| said(rest) == said(&blank)), || {
                        "a decision without a key was written".into()
                    })?;
                    expect(many.stats() == single.stats(), || {
                        format!("{:?}, alone {:?}", many.stats(), single.stats())
                    })?;
                    for hand in [&many_hand, &single_hand] {
                        hand.advance(Duration::from_nanos(step_ns));
                    }
                }
                Ok(())
            });
        }
    }
}

#[test]
fn keys_are_anything_that_hashes() {
    for text in EACH {
        let (limiter, _hand) = build(text, 1_000, WhenFull::Deny, 1);
        let five = |admitted: &dyn Fn() -> bool| (0..9).filter(|_| admitted()).count() == 5;
        assert!(five(&|| limiter.try_acquire("203.0.113.7").is_allowed()), "`{text}`");
        assert!(five(&|| limiter.try_acquire("203.0.113.8").is_allowed()), "`{text}`");
        assert!(five(&|| limiter.try_acquire("").is_allowed()), "`{text}`");
        assert!(five(&|| limiter.try_acquire(&7u64).is_allowed()), "`{text}`");
        assert!(five(&|| limiter.try_acquire(&u64::MAX).is_allowed()), "`{text}`");
        assert!(five(&|| limiter.try_acquire(&("tenant", 7u64, [1u8, 2])).is_allowed()), "`{text}`");
        assert!(five(&|| limiter.try_acquire(&("tenant", 8u64, [1u8, 2])).is_allowed()), "`{text}`");
        assert!(five(&|| limiter.try_acquire(&IpAddr::from(Ipv4Addr::LOCALHOST)).is_allowed()), "`{text}`");
        assert!(five(&|| limiter.try_acquire(&[1u8, 2, 3][..]).is_allowed()), "`{text}`");
        // A text is the same key however it is held.
        assert!(limiter.try_acquire(&String::from("203.0.113.7")).is_denied(), "`{text}`");
        assert!(limiter.try_acquire(&"203.0.113.7").is_denied(), "`{text}`");
        assert_eq!(exceptions(&limiter.stats()), (0, 0, 0, 0), "`{text}`");
    }
}

#[test]
fn what_cannot_be_built_is_an_error() {
    let error = Limiter::builder().build().unwrap_err();
    assert!(error.message().contains("policy"), "{error}");
    let error = Limiter::builder().policy("10/s").max_keys(0).build().unwrap_err();
    assert!(error.message().contains("max_keys"), "{error}");
    for keys in
        [usize::MAX, usize::MAX / 2, usize::MAX / 100, usize::MAX / 128, 1 << 60, 1 << 50, 1 << 45, 1 << 40]
    {
        for text in ["10/s", "10/s; 1000/h", "log 1000/h"] {
            let error = Limiter::builder().policy(text).max_keys(keys).build().unwrap_err();
            assert!(error.message().contains(&keys.to_string()), "`{text}`, {keys} keys: {error}");
        }
    }
    for text in ["", "10", "10/fortnight", "0/s", "10/0s", "log 5000/h", "10/s;", "10/s burst 0", "-1/s"] {
        let error = Limiter::new(text).unwrap_err();
        assert!(!error.message().is_empty(), "`{text}`");
        let again = Limiter::builder().policy(text).max_keys(8).build().unwrap_err();
        assert_eq!(error, again, "`{text}`");
        // The policy given last counts, not the one that failed before.
        let mended = Limiter::builder().policy(text).policy("10/s").max_keys(8).build();
        assert!(mended.is_ok(), "`{text}`");
    }
    assert_eq!(Limiter::new("10/s; 5/fortnight").unwrap_err().column(), Some(9));
    assert!(Limiter::new(Rule::per_second(0)).is_err());
}

/// Which keys an overfull table keeps is how placement shows.
fn kept(limiter: &Limiter) -> BTreeSet<u64> {
    let keys = 0..1_000u64;
    let long = |key| format!("a key that is long enough to need all of the seeds: {key}");
    for key in keys.clone() {
        let _ = limiter.try_acquire(&long(key));
    }
    keys.filter(|key| limiter.peek(&long(*key)).cause() == Cause::Rule).collect()
}

#[test]
fn seeds_decide_the_placement() {
    let of_seed = |seed| kept(&build("1/d", 100, WhenFull::Deny, seed).0);
    assert_eq!(of_seed(1), of_seed(1));
    let placements: BTreeSet<_> = (0..50).map(of_seed).collect();
    assert_eq!(placements.len(), 50, "some seeds place alike");
    // Each of the four counts.
    let with = |seeds| {
        let builder = Limiter::builder().policy("1/d").max_keys(100).when_full(WhenFull::Deny);
        kept(&builder.seeds(seeds).build().unwrap())
    };
    let each: BTreeSet<_> =
        [[1, 2, 3, 4], [9, 2, 3, 4], [1, 9, 3, 4], [1, 2, 9, 4], [1, 2, 3, 9]].map(with).into();
    assert_eq!(each.len(), 5, "a seed does not count");
    // Without any, each limiter has its own.
    let unseeded =
        || Limiter::builder().policy("1/d").max_keys(100).when_full(WhenFull::Deny).build().unwrap();
    let placements: BTreeSet<_> = (0..20).map(|_| kept(&unseeded())).collect();
    assert_eq!(placements.len(), 20, "two limiters have the same seeds");
}

/// limitador: a cache of 10 000 entries resets quotas on eviction, and nobody is told.
#[test]
fn limitador_an_eviction_is_counted() {
    let (limiter, _hand) = build("5/d", 10_000, WhenFull::Evict, 1);
    let keys = 40_000u64;
    for key in 0..keys {
        assert_eq!(drain(&limiter, key), 5);
    }
    let stats = limiter.stats();
    assert!(stats.live_keys >= 10_000 && stats.live_keys <= stats.slots, "{stats:?}");
    assert_eq!(stats.evicted, keys - stats.live_keys as u64, "{stats:?}");
    assert_eq!(stats.forgiven_cost, stats.evicted * 5, "{stats:?}");
    // And who cannot afford it has a choice: here nobody gets a second budget.
    let (limiter, _hand) = build("5/d", 10_000, WhenFull::Deny, 1);
    let first: u64 = (0..keys).map(|key| drain(&limiter, key)).sum();
    let second: u64 = (0..keys).map(|key| drain(&limiter, key)).sum();
    let stats = limiter.stats();
    assert_eq!((first, second), (5 * stats.live_keys as u64, 0), "{stats:?}");
}

/// axum-governor: earlier rules stay charged when a later one refuses.
#[test]
fn axum_governor_a_refusal_charges_no_earlier_rule() {
    for text in ["10/d; 2/s", "fixed 10/5000d; 2/s", "sliding 10/5000d; fixed 2/s", "log 10/d; log 2/s"] {
        let (limiter, hand) = build(text, 100, WhenFull::Deny, 1);
        for key in 0..50u64 {
            let turns = (0..40).filter(|_| limiter.try_acquire(&key).is_allowed()).count();
            assert_eq!(turns, 2, "`{text}`");
            let refused = limiter.try_acquire(&key);
            assert_eq!((refused.rule(), refused.remaining()), (1, 0), "`{text}`");
        }
        hand.advance(SECOND * 2);
        for key in 0..50u64 {
            // Eight are left of the first rule, and of the second its two.
            let mut left = 0;
            while limiter.try_acquire_n(&key, 2).is_allowed() {
                left += 2;
                hand.advance(SECOND);
            }
            assert_eq!(left, 8, "`{text}`");
        }
    }
}

/// The same where the later rule has no room: what the earlier one took is handed back.
#[test]
fn a_refusal_for_room_charges_no_rule() {
    for text in ["fixed 3/5000d; fixed 9/5000d", "3/d; 9/d", "log 3/d", "log 2/d; fixed 5/5000d; 9/d"] {
        let (limiter, _hand) = build(text, 2, WhenFull::Deny, 1);
        let (mut admitted, mut room_refusals) = (HashMap::<u64, u64>::new(), 0);
        let limit = policy(text).rules().iter().map(Rule::limit).min().unwrap();
        let mut random = Random(11);
        for _ in 0..4_000 {
            let (key, cost) = (random.below(60), 1 + random.below(limit));
            let (before, shown) = (limiter.stats(), said(&limiter.peek(&key)));
            let decision = limiter.try_acquire_n(&key, cost);
            if decision.is_allowed() {
                *admitted.entry(key).or_default() += cost;
                continue;
            }
            room_refusals += limiter.stats().denied_for_room - before.denied_for_room;
            assert_eq!(shown, said(&limiter.peek(&key)), "`{text}`: {decision:?} changed something");
            assert_eq!(before.live_keys, limiter.stats().live_keys, "`{text}`: {decision:?} left something");
        }
        for (key, spent) in admitted {
            assert_eq!(limiter.peek_n(&key, 0).remaining(), limit - spent, "`{text}`, key {key}");
        }
        assert!(room_refusals > 100, "`{text}`: {room_refusals}");
    }
}

/// governor and its wrappers: memory grows with every key that was ever seen.
#[test]
fn governor_a_spray_of_keys_takes_no_memory() {
    for when_full in [WhenFull::Evict, WhenFull::Deny, WhenFull::Allow] {
        let (limiter, hand) = build("100/min burst 20", 1_000, when_full, 1);
        let before = limiter.stats();
        for key in 0..200_000u64 {
            // Each is worth a fresh one after 0.6 s: some 600 are live.
            hand.advance(Duration::from_millis(1));
            assert!(limiter.try_acquire(&key).is_allowed());
        }
        let stats = limiter.stats();
        assert_eq!((stats.bytes, stats.slots), (before.bytes, before.slots));
        assert_eq!(
            (stats.live_keys, exceptions(&stats)),
            (600, (0, 0, 0, 0)),
            "nobody had to go for another"
        );
        assert!(stats.bytes < 100_000, "{stats:?}");
    }
}

/// The smallest generator that will do.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Tokens for which room had to be made bear a later time than the request; they go back with it all the same.
#[test]
fn a_log_that_finds_no_room_for_all_keeps_none() {
    let builder = Limiter::builder().policy("log 5/min").max_keys(1).when_full(WhenFull::Deny);
    let limiter = builder.seeds([1, 2, 3, 4]).build().unwrap();
    for key in 0..2_000u64 {
        if limiter.try_acquire_n(&key, 3).is_denied() {
            assert_eq!(limiter.peek_n(&key, 0).remaining(), 5, "key {key} was refused and charged");
        }
    }
    assert!(limiter.stats().denied_for_room > 0);
}
