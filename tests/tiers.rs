//! Policies that change while keys owe, and several policies over the same keys.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use common::{DAY, HOUR, MINUTE, NS, SECOND, START};
use common::{builder, check, drain, expect, policy, said, together};
use proptest::collection::vec;
use proptest::prelude::Strategy;
use proptest::sample::select;
use std::time::Duration;
use tollgate::{Algorithm, Decision, Limiter, ManualHand, Outcome, Policy, Rule};

const KEY: &str = "key";
/// How much further ahead than its rule could put it a moment is still believed: a clock may step back.
const STEP_BACK: Duration = Duration::from_nanos(1 << 30);
/// Token buckets of one kind: all slow enough to count in whole nanoseconds.
const BUCKETS: [&str; 9] = [
    "10/min",
    "1000/min",
    "1000/h",
    "10/s",
    "7/d",
    "7000/s burst 3",
    "100/s burst 250",
    "500/d burst 9",
    "3/7s",
];

/// A limiter with room for the few keys of a test: a change sweeps the whole table.
fn limiter(text: &str) -> (Limiter, ManualHand) {
    let (builder, hand) = builder(text);
    // Logs may be put in force later, over a table that was built for one word a key.
    let max_keys = if text.contains("log") { 30 } else { 200 };
    (builder.max_keys(max_keys).build().unwrap(), hand)
}

/// A token bucket by hand: the debt as a length of time.
struct Debt {
    debt: Duration,
}

/// What a token takes to come back, and the whole burst.
fn interval_and_full(policy: &Policy) -> (Duration, Duration) {
    let rule = &policy.rules()[0];
    let interval_ns = rule.period().as_nanos().div_ceil(u128::from(rule.count())) as u64;
    (Duration::from_nanos(interval_ns), Duration::from_nanos(interval_ns * rule.limit()))
}

impl Debt {
    fn wait_for(&mut self, time: Duration) {
        self.debt = self.debt.saturating_sub(time);
    }

    /// After a change: what nobody could believe under the policies in force is what they could make of it at most.
    fn change<'p>(&mut self, in_force: impl Iterator<Item = &'p Policy>) {
        let full = in_force.map(|policy| interval_and_full(policy).1).max().unwrap();
        if self.debt > full + STEP_BACK {
            self.debt = full;
        }
    }

    /// Says whether it passed.
    fn check(&mut self, policy: &Policy, decision: &Decision, cost: u64) -> Result<bool, String> {
        let (interval, full) = interval_and_full(policy);
        let after = self.debt + interval * cost as u32;
        let fits = after <= full;
        let expected = match (cost <= policy.rules()[0].limit(), fits) {
            (false, _) => (Outcome::NeverFits, None),
            (_, true) => (Outcome::Allowed, None),
            (_, false) => (Outcome::Denied, Some(after.saturating_sub(full))),
        };
        if fits {
            self.debt = after;
        }
        let found = (decision.outcome(), decision.retry_after());
        let complain =
            || format!("{cost} of `{policy}`: {decision:?}, by hand {expected:?}, {:?}", self.debt);
        expect(found == expected && decision.reset_after() == self.debt, complain)?;
        Ok(fits)
    }
}

/// Refused now, until exactly the time that was said.
fn waits_exactly(hand: &ManualHand, ask: impl Fn() -> Decision) {
    let wait = ask().retry_after().unwrap();
    if wait > NS {
        hand.advance(wait - NS);
        let still = ask();
        assert!(still.is_denied() && still.retry_after() == Some(NS), "1 ns too early: {still:?}");
        hand.advance(NS);
    } else {
        hand.advance(wait);
    }
    let decision = ask();
    assert!(decision.is_allowed(), "after the {wait:?} that were said: {decision:?}");
}

/// With the clock still, windows and logs are one count that every policy compares with its own limit.
#[test]
fn a_count_stays_what_it_is_under_every_limit() {
    let step = (1..=60u64, vec(1..=20u64, 0..=6));
    let cases = (select(vec!["fixed", "sliding", "log"]), vec(step, 1..=12), 16..=60u64);
    check(2_000, cases, |(algorithm, steps, first)| {
        let (limiter, _hand) = limiter(&format!("{algorithm} {first}/h"));
        let (mut spent, mut largest) = (0, first);
        for (limit, costs) in steps {
            limiter.set_policy(&*format!("{algorithm} {limit}/h")).unwrap();
            largest = largest.max(limit);
            let left = limiter.peek(KEY).remaining();
            expect(left == limit.saturating_sub(spent), || {
                format!("`{}`: {spent} spent, {left} left", limiter.policy())
            })?;
            for cost in costs {
                let decision = limiter.try_acquire_n(KEY, cost);
                let fits = spent + cost <= limit;
                spent += if fits { cost } else { 0 };
                expect(decision.is_allowed() == fits && spent <= largest, || {
                    format!("`{}`: {spent} spent, {decision:?}", limiter.policy())
                })?;
            }
        }
        Ok(())
    });
}

#[test]
fn raising_grants_the_difference_and_lowering_nothing() {
    for algorithm in ["fixed", "sliding", "log"] {
        let (limiter, _hand) = limiter(&format!("{algorithm} 10/h"));
        let left_under = |limit: u64| {
            limiter.set_policy(&*format!("{algorithm} {limit}/h")).unwrap();
            drain(|| limiter.try_acquire(KEY).is_allowed())
        };
        assert_eq!([10, 25, 5, 25, 26, 1, 30].map(left_under), [10, 15, 0, 0, 1, 0, 4], "{algorithm}");
    }
}

/// Any window sees no more than the largest limit, whatever the limits were meanwhile: a log has so many tokens.
#[test]
fn no_window_sees_more_than_the_largest_log() {
    let step = (0..4u8, 1..=12u64, 0..=40_000u64);
    check(1_200, vec(step, 1..=80), |steps| {
        let (limiter, hand) = limiter("log 5/min");
        let mut largest = 5;
        let mut passed: Vec<Duration> = Vec::new();
        for (what, number, millis) in steps {
            match what {
                0 => {
                    limiter.set_policy(&*format!("log {number}/min")).unwrap();
                    largest = largest.max(number);
                }
                1 => hand.advance(Duration::from_millis(millis)),
                _ if limiter.try_acquire(KEY).is_allowed() => {
                    passed.push(hand.now());
                    let recent = passed.iter().filter(|&&at| at + MINUTE > hand.now()).count();
                    expect(recent as u64 <= largest, || format!("{recent} in a minute of {largest}"))?;
                }
                _ => {}
            }
        }
        Ok(())
    });
}

#[test]
fn a_faster_bucket_grants_nothing_for_the_past() {
    let (limiter, hand) = limiter("10/min");
    assert!(limiter.try_acquire_n(KEY, 10).is_allowed());
    limiter.set_policy("1000/min").unwrap();
    assert_eq!(limiter.try_acquire(KEY).retry_after(), Some(MINUTE / 1_000));
    assert_eq!(limiter.peek(KEY).reset_after(), MINUTE);
    waits_exactly(&hand, || limiter.try_acquire(KEY));
    assert!(limiter.try_acquire(KEY).is_denied());
    assert!(limiter.try_acquire_n("other", 1_000).is_allowed());
}

/// Every decision of a token bucket through any changes, by hand.
#[test]
fn buckets_keep_their_time_through_changes() {
    let step = (0..6u8, select(BUCKETS.to_vec()), 0..=12u64, times());
    check(3_000, (select(BUCKETS.to_vec()), vec(step, 1..=60)), |(first, steps)| {
        let (limiter, hand) = limiter(first);
        let mut by_hand = Debt { debt: Duration::ZERO };
        for (what, text, cost, time) in steps {
            match what {
                0 => {
                    limiter.set_policy(text).unwrap();
                    by_hand.change([limiter.policy()].into_iter());
                }
                1 => {
                    hand.advance(time);
                    by_hand.wait_for(time);
                }
                2 => {
                    // All that is left.
                    let cost = limiter.peek(KEY).remaining().max(1);
                    by_hand.check(limiter.policy(), &limiter.try_acquire_n(KEY, cost), cost)?;
                }
                _ if cost > 0 => {
                    by_hand.check(limiter.policy(), &limiter.try_acquire_n(KEY, cost), cost)?;
                }
                _ => {}
            }
        }
        Ok(())
    });
}

fn times() -> impl Strategy<Value = Duration> {
    let scale = select(vec![NS, Duration::from_millis(1), SECOND, MINUTE, HOUR]);
    (scale, 0..=70u32, 0..=2u32).prop_map(|(scale, times, extra)| scale * times + NS * extra)
}

#[test]
fn a_lowered_bucket_leaves_nobody_stuck() {
    let (limiter, hand) = limiter("1000/h");
    let exhausted = ["a", "b"];
    for key in exhausted {
        assert!(limiter.try_acquire_n(key, 1_000).is_allowed());
    }
    limiter.set_policy("10/s").unwrap();
    // Cut down once: a look does not begin the wait anew.
    assert_eq!(limiter.peek("a").retry_after(), Some(SECOND / 10));
    waits_exactly(&hand, || limiter.try_acquire("a"));
    hand.set(START + SECOND - NS);
    assert!(limiter.peek_n("b", 10).is_denied());
    hand.set(START + SECOND);
    assert_eq!(limiter.peek("b").reset_after(), Duration::ZERO);
    assert!(limiter.try_acquire_n("b", 10).is_allowed());
}

#[test]
fn a_shortened_log_leaves_nobody_stuck() {
    let (limiter, hand) = limiter("log 5/h");
    assert!(limiter.try_acquire_n(KEY, 5).is_allowed());
    hand.advance(SECOND);
    limiter.set_policy("log 5/min").unwrap();
    assert_eq!(limiter.peek(KEY).retry_after(), Some(MINUTE));
    waits_exactly(&hand, || limiter.try_acquire_n(KEY, 5));
    // And back: a token rests for as long as the rule it was taken under says.
    limiter.set_policy("log 5/h").unwrap();
    assert_eq!(limiter.peek(KEY).retry_after(), Some(MINUTE));
    waits_exactly(&hand, || limiter.try_acquire(KEY));
}

/// Several rules at once, each going on with the nearest of its kind, in whichever order they are written.
#[test]
fn several_lowered_rules_leave_nobody_stuck() {
    let cases = [
        ("1000/h; 500/d", "10/s; 20/min", 500, 3),
        ("1000/h; 500/d", "20/min; 10/s", 500, 3),
        ("500/d; 1000/h", "10/s; 20/min", 500, 3),
        ("log 5/h; log 9/d", "log 5/s; log 3/min", 5, 60),
        ("100/h; log 9/d; fixed 50/h", "log 3/min; 10/s; fixed 60/h", 9, 60),
    ];
    for (before, after, cost, seconds) in cases {
        let (limiter, hand) = limiter(before);
        assert!(limiter.try_acquire_n(KEY, cost).is_allowed(), "`{before}`");
        limiter.set_policy(after).unwrap();
        let wait = limiter.try_acquire(KEY).retry_after();
        assert_eq!(wait, Some(SECOND * seconds), "`{before}` to `{after}`");
        waits_exactly(&hand, || limiter.try_acquire(KEY));
        hand.advance(MINUTE);
        let fresh = policy(after).rules().iter().map(Rule::limit).min().unwrap();
        assert_eq!(limiter.peek(KEY).remaining(), fresh, "`{before}` to `{after}`");
    }
}

/// Of several of its kind, a rule goes on with the one of its name, however unlike it is.
#[test]
fn a_name_goes_before_likeness() {
    let (limiter, _hand) = limiter("log 3/h named short; log 7/d named long");
    assert!(limiter.try_acquire_n(KEY, 3).is_allowed());
    limiter.set_policy("log 4/d named short; log 8/h named long").unwrap();
    assert_eq!(limiter.peek(KEY).rule_name(), Some("short"));
    assert_eq!(limiter.peek(KEY).remaining(), 1);
    limiter.set_policy("log 8/h named long").unwrap();
    assert_eq!(limiter.peek(KEY).remaining(), 5);
}

/// Policies of which none goes on with another: each must be as if it had been alone, and asked only while it was in
/// force.
#[test]
fn other_kinds_begin_afresh_and_find_their_own_again() {
    const KINDS: [&str; 8] = [
        "5/h",
        "9000/s burst 5",
        "20000000/s burst 40",
        "fixed 5/h",
        "fixed 5/min",
        "sliding 5/h",
        "sliding 5/min",
        "log 5/h",
    ];
    let step = (0..KINDS.len(), vec((1..=6u64, times()), 0..=5));
    check(1_200, vec(step, 1..=24), |steps| {
        let alone = KINDS.map(limiter);
        let (limiter, hand) = limiter(KINDS[0]);
        for (kind, asks) in steps {
            limiter.set_policy(KINDS[kind]).unwrap();
            for (cost, time) in asks {
                hand.advance(time);
                for (_, hand) in &alone {
                    hand.advance(time);
                }
                let (one, other) = (limiter.try_acquire_n(KEY, cost), alone[kind].0.try_acquire_n(KEY, cost));
                expect(said(&one) == said(&other), || {
                    format!("`{}`: {one:?}, and alone {other:?}", KINDS[kind])
                })?;
            }
            let (one, other) = (limiter.peek(KEY), alone[kind].0.peek(KEY));
            expect(said(&one) == said(&other), || {
                format!("`{}` seen: {one:?}, alone {other:?}", KINDS[kind])
            })?;
        }
        Ok(())
    });
}

/// What a rule can still know of, at most.
fn memory(rule: &Rule) -> Duration {
    match rule.algorithm() {
        Algorithm::TokenBucket => interval_and_full(&Policy::from(rule.clone())).1 + STEP_BACK,
        Algorithm::SlidingLog => rule.period() + STEP_BACK,
        Algorithm::SlidingWindow => rule.period() * 2,
        _ => rule.period(),
    }
}

/// Changes among everything there is: a look says what a request then gets, a wait is exact, and whatever was before,
/// the longest memory of the policy in force is all there is to wait for.
#[test]
fn random_changes_among_all_algorithms() {
    const POLICIES: [&str; 16] = [
        "10/s",
        "1000/h",
        "7/d burst 20",
        "9000/s burst 30",
        "fixed 10/min",
        "fixed 4/min",
        "fixed 9/h",
        "sliding 12/min",
        "sliding 3/min",
        "log 9/min",
        "log 3/h",
        "log 30/10s",
        "10/s; 20/min",
        "fixed 5/min; log 4/10s; 30/h",
        "sliding 6/min; sliding 20/h; 9/s; log 8/d",
        "log 6/s; log 7/min; shadow fixed 1/min",
    ];
    let step = (0..10u8, select(POLICIES.to_vec()), 1..=8u64, times());
    check(1_600, (select(POLICIES.to_vec()), vec(step, 1..=50)), |(first, steps)| {
        let (limiter, hand) = limiter(first);
        for (what, text, cost, time) in steps {
            match what {
                0..2 => limiter.set_policy(text).unwrap(),
                2..4 => hand.advance(time),
                4 => limiter.refund(KEY, cost),
                5 => {
                    let rules = limiter.policy().rules();
                    hand.advance(rules.iter().map(memory).max().unwrap());
                    let limit = rules.iter().filter(|rule| !rule.is_shadow()).map(Rule::limit).min().unwrap();
                    let (one, all) = (limiter.peek(KEY), limiter.peek_n(KEY, limit));
                    expect(
                        all.is_allowed() && one.reset_after().is_zero() && one.remaining() == limit,
                        || format!("`{}`: not fresh: {one:?}, {all:?}", limiter.policy()),
                    )?;
                }
                _ => {
                    let look = limiter.peek_n(KEY, cost);
                    let decision = limiter.try_acquire_n(KEY, cost);
                    let alike = look.outcome() == decision.outcome()
                        && look.would_deny() == decision.would_deny()
                        && (decision.is_allowed() || said(&look) == said(&decision));
                    expect(alike, || format!("`{}`: {look:?}, then {decision:?}", limiter.policy()))?;
                    if let (Outcome::Denied, Some(wait), 9) =
                        (decision.outcome(), decision.retry_after(), what)
                    {
                        hand.advance(wait - NS);
                        let early = limiter.try_acquire_n(KEY, cost);
                        hand.advance(NS);
                        let late = limiter.try_acquire_n(KEY, cost);
                        expect(early.is_denied() && late.is_allowed(), || {
                            format!("`{}`: {decision:?}, {early:?}, {late:?}", limiter.policy())
                        })?;
                    }
                }
            }
        }
        Ok(())
    });
}

/// What has begun goes on through changes, and is counted wherever there is a limit to it.
#[test]
fn work_that_has_begun_is_still_at_work_after_changes() {
    let (limiter, _hand) = limiter("3 at once");
    let permits = [(); 3].map(|()| limiter.try_start(KEY).unwrap());
    limiter.set_policy("2 at once; 100/s").unwrap();
    assert!(limiter.try_start(KEY).is_err());
    limiter.set_policy("fixed 9/h").unwrap();
    let [first, second, _third] = permits;
    drop(first);
    limiter.set_policy("2 at once; 100/s").unwrap();
    assert!(limiter.try_start(KEY).is_err());
    drop(second);
    let _fourth = limiter.try_start(KEY).unwrap();
    assert!(limiter.try_start(KEY).is_err());
}

#[test]
fn tiers_are_found_by_name() {
    let limiter = builder("10/min").0.tier("gold", "20/min").tier("iron", "fixed 1/h").build().unwrap();
    let gold = limiter.tier("gold").unwrap();
    assert_eq!((gold.name(), gold.policy()), ("gold", &policy("20/min")));
    assert_eq!(limiter.tier("iron").unwrap().policy(), &policy("fixed 1/h"));
    for unknown in ["", "Gold", "gold ", "silver"] {
        assert!(limiter.tier(unknown).is_none(), "{unknown:?}");
    }
    assert_eq!(format!("{gold:?}"), r#"Tier { name: "gold", policy: 20/min }"#);

    assert!(builder("1/s").0.tier("a", "2/s").tier("b", "3/s").tier("a", "4/s").build().is_err());
    assert!(builder("1/s").0.tier("a", "2/never").build().is_err());
    assert!(builder("1/s").0.tier("a", "0/s").build().is_err());
}

#[test]
fn a_tier_changes_by_itself() {
    let (builder, _hand) = builder("fixed 10/h");
    let limiter = builder.tier("gold", "fixed 20/h").build().unwrap();
    let gold = limiter.tier("gold").unwrap();
    assert!(gold.try_acquire_n(KEY, 15).is_allowed());
    assert!(limiter.try_acquire(KEY).is_denied());
    gold.set_policy("fixed 16/h").unwrap();
    assert_eq!((gold.policy(), limiter.policy()), (&policy("fixed 16/h"), &policy("fixed 10/h")));
    assert_eq!(gold.peek(KEY).remaining(), 1);
    limiter.set_policy("fixed 30/h").unwrap();
    assert_eq!((gold.policy(), limiter.policy()), (&policy("fixed 16/h"), &policy("fixed 30/h")));
    assert_eq!(limiter.peek(KEY).remaining(), 15);
    assert!(gold.set_policy("fixed 0/h").is_err());
    assert_eq!(gold.policy(), &policy("fixed 16/h"));
    gold.refund(KEY, 5);
    assert_eq!(limiter.peek(KEY).remaining(), 20);
    gold.reset(KEY);
    assert_eq!(limiter.peek(KEY).remaining(), 30);
}

/// A key that goes to and fro between tiers of windows or logs is one count.
#[test]
fn tiers_of_one_kind_share_one_count() {
    let cases =
        (select(vec!["fixed", "sliding", "log"]), vec(1..=50u64, 3), vec((0..3usize, 1..=9u64), 1..=60));
    check(1_600, cases, |(algorithm, limits, asks)| {
        let text = |index: usize| format!("{algorithm} {}/h", limits[index]);
        let (builder, _hand) = builder(&text(0));
        let limiter = builder.tier("1", &*text(1)).tier("2", &*text(2)).build().unwrap();
        let mut spent = 0;
        for (tier, cost) in asks {
            let decision = match tier {
                0 => limiter.try_acquire_n(KEY, cost),
                tier => limiter.tier(&tier.to_string()).unwrap().try_acquire_n(KEY, cost),
            };
            let fits = spent + cost <= limits[tier];
            spent += if fits { cost } else { 0 };
            let complain = || format!("`{}`: {spent} spent, {decision:?}", text(tier));
            expect(decision.is_allowed() == fits, complain)?;
            expect(decision.remaining() == limits[tier].saturating_sub(spent) || !fits, complain)?;
        }
        expect(spent <= limits.iter().copied().max().unwrap(), || format!("{spent} under {limits:?}"))
    });
}

/// Tiers of token buckets share one debt, which is a length of time. It falls as time goes and rises by what each
/// request takes to come back, under whichever tier it passes; asking in vain changes nothing. So over any span, what
/// all that passed takes to come back is at most that span and the longest burst.
#[test]
fn tiers_of_buckets_share_one_debt() {
    let step = (0..3usize, 0..5u8, 1..=12u64, times(), select(BUCKETS.to_vec()));
    let tiers = vec(select(BUCKETS.to_vec()), 3);
    check(2_000, (tiers, 0..2u8, vec(step, 1..=60)), |(texts, changes, steps)| {
        let (builder, hand) = builder(texts[0]);
        let limiter = builder.tier("1", texts[1]).tier("2", texts[2]).build().unwrap();
        let others = ["1", "2"].map(|name| limiter.tier(name).unwrap());
        let mut by_hand = Debt { debt: Duration::ZERO };
        let mut passed: Vec<(Duration, Duration)> = Vec::new();
        for (tier, what, cost, time, text) in steps {
            match what {
                0 => {
                    hand.advance(time);
                    by_hand.wait_for(time);
                }
                1 if changes == 1 => {
                    match tier {
                        0 => limiter.set_policy(text).unwrap(),
                        tier => others[tier - 1].set_policy(text).unwrap(),
                    }
                    by_hand.change([limiter.policy(), others[0].policy(), others[1].policy()].into_iter());
                }
                _ => {
                    let (policy, decision) = match tier {
                        0 => (limiter.policy(), limiter.try_acquire_n(KEY, cost)),
                        tier => (others[tier - 1].policy(), others[tier - 1].try_acquire_n(KEY, cost)),
                    };
                    if by_hand.check(policy, &decision, cost)? {
                        passed.push((hand.now(), interval_and_full(policy).0 * cost as u32));
                    }
                }
            }
        }
        if changes == 1 {
            return Ok(());
        }
        let longest = texts.iter().map(|text| interval_and_full(&policy(text)).1).max().unwrap();
        for (first, (from, _)) in passed.iter().enumerate() {
            let mut sum = Duration::ZERO;
            for (to, back) in &passed[first..] {
                sum += *back;
                expect(sum <= longest + (*to - *from), || {
                    format!("{texts:?}: {sum:?} in {:?}", *to - *from)
                })?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_long_debt_under_one_tier_is_waited_for_under_the_other() {
    let (builder, hand) = builder("10/s");
    let limiter = builder.tier("slow", "100/h").build().unwrap();
    let slow = limiter.tier("slow").unwrap();
    assert!(slow.try_acquire_n(KEY, 100).is_allowed());
    let wait = HOUR - SECOND + SECOND / 10;
    for _ in 0..3 {
        assert_eq!(limiter.try_acquire(KEY).retry_after(), Some(wait));
        assert_eq!(slow.peek(KEY).retry_after(), Some(HOUR / 100));
    }
    waits_exactly(&hand, || limiter.try_acquire(KEY));
    assert_eq!(hand.now(), START + wait);
    assert_eq!(slow.peek(KEY).reset_after(), SECOND);
}

/// What an earlier policy left is cut to what the slowest of the tiers in force could make of it, whichever it is.
#[test]
fn a_lowered_tier_beside_a_quick_one_grants_nothing() {
    for (first, quick_is_first) in [("1000/h", false), ("10/s", true)] {
        let (builder, _hand) = builder(first);
        let other = if quick_is_first { "1000/h" } else { "10/s" };
        let limiter = builder.tier("other", other).build().unwrap();
        let tier = limiter.tier("other").unwrap();
        let ask = || if quick_is_first { tier.try_acquire(KEY) } else { limiter.try_acquire(KEY) };
        assert_eq!(drain(|| ask().is_allowed()), 1_000);
        if quick_is_first {
            tier.set_policy("100/min").unwrap();
        } else {
            limiter.set_policy("100/min").unwrap();
        }
        let decision = ask();
        assert_eq!(
            decision.retry_after(),
            Some(MINUTE / 100),
            "quick one first: {quick_is_first}: {decision:?}"
        );
    }
}

#[test]
fn rules_of_one_tier_alone_count_by_themselves() {
    let (builder, hand) = builder("fixed 5/h; log 3/h");
    let limiter = builder.tier("other", "fixed 5/h; sliding 2/h").build().unwrap();
    let other = limiter.tier("other").unwrap();
    assert_eq!(drain(|| limiter.try_acquire(KEY).is_allowed()), 3);
    assert_eq!(limiter.peek(KEY).rule(), 1);
    assert_eq!(drain(|| other.try_acquire(KEY).is_allowed()), 2);
    assert_eq!(drain(|| limiter.try_acquire(KEY).is_allowed()), 0);
    hand.advance(DAY);
    assert_eq!(drain(|| other.try_acquire(KEY).is_allowed()), 2);
}

#[test]
fn ten_thousand_changes_to_and_fro_take_no_more_memory() {
    let (builder, hand) = builder("10/s");
    let limiter = builder.max_keys(64).tier("gold", "fixed 100/h").build().unwrap();
    let gold = limiter.tier("gold").unwrap();
    let bytes = limiter.stats().bytes;
    let texts = [
        "1000/h",
        "10/s; 20/min",
        "20/min named a; 10/s named b",
        "log 5/min",
        "log 9/h; 3/d",
        "sliding 7/h",
    ];
    for round in 0..10_000usize {
        limiter.set_policy(texts[round % texts.len()]).unwrap();
        if round % 5 == 0 {
            gold.set_policy(["fixed 100/h", "fixed 50/h; 7/s"][round / 5 % 2]).unwrap();
        }
        if round % 100 == 0 {
            hand.advance(DAY * 2);
            assert!(limiter.try_acquire(KEY).is_allowed(), "round {round}: `{}`", limiter.policy());
        }
    }
    assert_eq!(limiter.stats().bytes, bytes);
    limiter.set_policy("fixed 3/d").unwrap();
    assert_eq!(drain(|| limiter.try_acquire("another").is_allowed()), 3);
}

#[test]
fn there_are_at_most_64_kinds() {
    let (limiter, _hand) = limiter("fixed 2/1s");
    assert!(limiter.try_acquire(KEY).is_allowed());
    for seconds in 2..=64 {
        limiter.set_policy(&*format!("fixed 2/{seconds}s")).unwrap();
        assert!(limiter.try_acquire(KEY).is_allowed(), "{seconds}");
    }
    for too_many in ["fixed 2/65s", "10/s", "fixed 2/1s; log 1/s"] {
        assert!(limiter.set_policy(too_many).is_err(), "`{too_many}`");
        assert_eq!(limiter.policy(), &policy("fixed 2/64s"));
    }
    assert_eq!(drain(|| limiter.try_acquire(KEY).is_allowed()), 1);
    // Those there were are still at hand, with what they know.
    limiter.set_policy("fixed 3/1s; fixed 9/64s").unwrap();
    assert_eq!(drain(|| limiter.try_acquire(KEY).is_allowed()), 2);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "each new policy is compared with all before it")]
fn there_are_at_most_16383_policies() {
    let (builder, _hand) = builder("fixed 1/h");
    let limiter = builder.max_keys(1).build().unwrap();
    for limit in 2..=16_384u64 {
        limiter.set_policy(&*format!("fixed {limit}/h")).unwrap();
    }
    assert!(limiter.try_acquire(KEY).is_allowed());
    assert!(limiter.set_policy("fixed 16385/h").is_err());
    assert_eq!(limiter.policy(), &policy("fixed 16384/h"));
    assert_eq!(limiter.peek(KEY).remaining(), 16_383);
    limiter.set_policy("fixed 77/h").unwrap();
    assert_eq!(limiter.peek(KEY).remaining(), 76);
}

/// Requests beside changes: each goes by one policy or the other, so no more pass than the larger one lets, and in
/// the end it lets exactly the rest.
#[test]
fn requests_beside_changes_stay_within_the_larger_limit() {
    for (high, low) in [
        ("fixed 100/h", "fixed 60/h"),
        ("sliding 100/h", "sliding 60/h"),
        ("log 100/h", "log 60/h"),
        ("100/h", "60/h"),
        ("fixed 100/h; sliding 200/h", "sliding 100/h; fixed 60/h"),
    ] {
        for round in 0..20 {
            let (limiter, _hand) = limiter(high);
            let ask = |limiter: &Limiter| u64::from(limiter.try_acquire(KEY).is_allowed());
            let passed = together(4, |thread| {
                if thread == 0 {
                    for change in 0..40 {
                        limiter.set_policy([low, high][change % 2]).unwrap();
                    }
                    return 0;
                }
                (0..200).map(|_| ask(&limiter)).sum()
            });
            assert!((60..=100).contains(&passed), "`{high}` and `{low}`, round {round}: {passed} passed");
            limiter.set_policy(low).unwrap();
            assert_eq!(ask(&limiter), 0, "`{low}` after {passed}");
            // What passed a bucket by the slower rate takes more of the hour that both share.
            if !high.starts_with("100/h") {
                limiter.set_policy(high).unwrap();
                let rest = drain(|| ask(&limiter) == 1);
                assert_eq!(passed + rest, 100, "`{high}` and `{low}`, round {round}");
            }
        }
    }
}
