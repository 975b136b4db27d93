//! Several rules at once, all or nothing, and shadow rules, which only watch.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;
mod oracle;

use common::{HOUR, NS, SECOND, START, Said};
use common::{builder, check, drain, expect, limiter, policy, said, together};
use oracle::Oracle;
use oracle::harness::{Op, nanos};
use oracle::keyed::{CheckedKeys, Crowd, Setting};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::sample::select;
use std::collections::HashMap;
use std::time::Duration;
use tollgate::{Algorithm, Limiter, ManualHand, Outcome, Policy, Rule, Tier};

const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog];

/// A limiter with a tier for each of its rules alone. Such a tier goes by the very words of the whole policy's
/// rule, so that a peek at it shows the state of one rule among several.
struct Watched {
    limiter: Limiter,
    hand: ManualHand,
    rules: usize,
}

impl Watched {
    fn new(policy: &Policy) -> Self {
        let (mut builder, hand) = builder("1/s");
        builder = builder.policy(policy.clone());
        for (index, rule) in policy.rules().iter().enumerate() {
            builder = builder.tier(index.to_string(), rule.clone());
        }
        Self { limiter: builder.build().unwrap(), hand, rules: policy.rules().len() }
    }

    fn rule(&self, index: usize) -> Tier<'_> {
        self.limiter.tier(&index.to_string()).unwrap()
    }

    /// All that can be seen of a key's state.
    fn seen(&self, key: u64) -> Vec<Said> {
        let of_rule = |index| {
            let tier = self.rule(index);
            let limit = tier.policy().rules()[0].limit();
            [0, 1, 2, limit / 2, limit].map(|cost| said(&tier.peek_n(&key, cost)))
        };
        (0..self.rules).flat_map(of_rule).collect()
    }
}

fn rule() -> impl Strategy<Value = Rule> {
    let period_ns = select(vec![1_000u64, 1_000_003, 1_000_000_000, 3_000_000_000, 60_000_000_000]);
    (select(ALGORITHMS.to_vec()), 1..=6u64, period_ns, 0..=8u64).prop_map(
        |(algorithm, count, period_ns, burst)| {
            let rule = Rule::new(count, Duration::from_nanos(period_ns)).by(algorithm);
            if algorithm == Algorithm::TokenBucket && burst > 0 { rule.burst(burst) } else { rule }
        },
    )
}

/// One to four rules, no two of them alike: a tier of one rule alone could not tell which of them it is.
fn rules() -> impl Strategy<Value = Policy> {
    vec(rule(), 1..=4).prop_map(|rules| {
        let mut different: Vec<Rule> = Vec::new();
        for rule in rules {
            if !different.contains(&rule) {
                different.push(rule);
            }
        }
        let first = Policy::from(different.remove(0));
        different.into_iter().fold(first, Policy::and)
    })
}

fn history(ops: usize) -> impl Strategy<Value = Vec<(usize, Op)>> {
    vec((0..64usize, any::<u32>().prop_map(Op::decode)), 0..=ops)
}

/// 10 a minute, 20 in two, and one in five seconds against double submission, asked for every second and beside
/// every edge for ten minutes.
#[test]
fn ten_a_minute_twenty_in_two_and_no_double_in_five_seconds() {
    for algorithm in ["fixed", "sliding", "log"] {
        let text = format!("{algorithm} 10/60s; {algorithm} 20/120s; {algorithm} 1/5s");
        let policy = policy(&text);
        let (limiter, hand) = limiter(&text);
        let mut oracle = Oracle::new(&policy);
        let mut bound = [0u32; 3];
        for second in 0..600 {
            for beside_ns in [0, 1, 499_999_999, 999_999_999] {
                hand.set(START + SECOND * second + NS * beside_ns);
                oracle.set_clock(nanos(hand.now()));
                let decision = limiter.try_acquire("client");
                oracle.check_acquire(&decision, 1).unwrap_or_else(|error| panic!("`{text}`: {error}"));
                if decision.is_denied() {
                    bound[decision.rule()] += 1;
                }
            }
        }
        // The estimate of a sliding window of one lets so few through that the others never bind.
        assert!(bound[2] > 0 && (bound[0] > 0 || algorithm == "sliding"), "`{text}`: {bound:?} refusals");
        let in_all = oracle.spent().len();
        assert!((60..=110).contains(&in_all), "`{text}` admitted {in_all} in ten minutes");
    }
}

/// The same by hand, for the exact log: who binds, and for how long.
#[test]
fn the_longest_wait_names_the_rule_that_binds() {
    let (limiter, hand) = limiter("log 10/60s named minute; log 20/130s named two; log 1/5s named double");
    let at = |second: u64| hand.set(START + SECOND * second as u32);
    let refusal = |second| {
        at(second);
        let decision = limiter.try_acquire("client");
        assert_eq!(decision.outcome(), Outcome::Denied, "at {second} s: {decision:?}");
        (decision.rule(), decision.rule_name().unwrap(), decision.retry_after().unwrap().as_secs())
    };
    for second in (0..50).step_by(5) {
        at(second);
        assert!(limiter.try_acquire("client").is_allowed(), "at {second} s");
        if second < 45 {
            assert_eq!(refusal(second + 1), (2, "double", 4));
        }
    }
    assert_eq!(refusal(46), (0, "minute", 14), "the double is over in 4 s, the minute in 14");
    for second in (60..110).step_by(5) {
        at(second);
        assert!(limiter.try_acquire("client").is_allowed(), "at {second} s");
    }
    assert_eq!(refusal(106), (1, "two", 24), "the minute is over in 14 s");
    at(130);
    assert!(limiter.try_acquire("client").is_allowed());
}

/// Two rules, and the guard against double submission as a mark of its own beside them.
#[test]
fn once_beside_two_rules() {
    for algorithm in ["", "fixed ", "sliding ", "log "] {
        let text = format!("{algorithm}10/60s; {algorithm}20/120s");
        let (limiter, hand) = limiter(&text);
        let mut oracle = Oracle::new(&policy(&text));
        let mut marks = HashMap::new();
        let window = SECOND * 5;
        for second in 0..400u32 {
            let now = START + SECOND * second;
            hand.set(now);
            oracle.set_clock(nanos(now));
            let order = ("client", second / 2 % 5);
            let mark = limiter.once(&order, window);
            let until = marks.get(&order).copied().unwrap_or_default();
            assert_eq!(mark.is_allowed(), now >= until, "`{text}` at {second} s");
            if mark.is_denied() {
                assert_eq!(mark.retry_after(), Some(until - now), "`{text}` at {second} s");
                continue;
            }
            marks.insert(order, now + window);
            oracle.check_acquire(&limiter.try_acquire("client"), 1).unwrap();
        }
    }
}

/// Every decision is the oracle's: where all words are found at a glance, as of two keys in a roomy table, ...
#[test]
fn random_rules_equal_the_oracle_for_known_keys() {
    check(2_000, (rules(), any::<u64>(), history(64)), |(policy, seed, ops)| {
        let setting = Setting { max_keys: 20, keys: 2, crowd: Crowd::Promised, start_ns: nanos(START), seed };
        CheckedKeys::with_history(&policy, setting, &ops)?.check_all()
    });
}

/// ... and where room has to be made for them, of as many keys as operations in a small one.
#[test]
fn random_rules_equal_the_oracle_for_fresh_keys() {
    check(400, (rules(), any::<u64>(), history(64)), |(policy, seed, ops)| {
        let setting = Setting { max_keys: 2, keys: 64, crowd: Crowd::Any, start_ns: nanos(START), seed };
        CheckedKeys::with_history(&policy, setting, &ops)?.check_all()
    });
}

/// A refusal leaves every rule as it was, the wait it names is the shortest, and what it admits is charged to all.
#[test]
fn a_refusal_charges_no_rule_and_names_the_exact_wait() {
    let steps = vec((1..=5u64, 0..=2_500_000_000u64), 1..=24);
    check(4_000, (rules(), steps), |(policy, steps)| {
        let watched = Watched::new(&policy);
        let Watched { limiter, hand, .. } = &watched;
        for (cost, step_ns) in steps {
            let before = watched.seen(7);
            let decision = limiter.try_acquire_n(&7u64, cost);
            let after = watched.seen(7);
            if decision.is_allowed() {
                expect(before != after, || format!("`{policy}`: {decision:?} charged nothing"))?;
                hand.advance(Duration::from_nanos(step_ns));
                continue;
            }
            expect(before == after, || format!("`{policy}`: {decision:?} charged\n{before:?}\n{after:?}"))?;
            let Some(wait) = decision.retry_after() else { continue };
            hand.advance(wait - NS);
            let early = limiter.try_acquire_n(&7u64, cost);
            expect(early.retry_after() == Some(NS), || format!("`{policy}`: {decision:?}, then {early:?}"))?;
            hand.advance(NS);
            let late = limiter.try_acquire_n(&7u64, cost);
            expect(late.is_allowed(), || format!("`{policy}`: {decision:?}, then {late:?}"))?;
        }
        Ok(())
    });
}

/// Threads on one key: exactly the narrowest limit passes, and every rule is charged with that and nothing more.
#[test]
fn threads_share_one_key_and_leak_nothing() {
    for text in [
        "fixed 300/d; 200/d",
        "200/d; fixed 300/d",
        "300/d; 250/d; 220/d; 200/d",
        "sliding 300/d; fixed 250/d; 200/d",
        "fixed 300/d; log 50/d",
        "log 60/d; sliding 300/d; fixed 40/d",
    ] {
        let policy = policy(text);
        let narrowest = policy.rules().iter().map(Rule::limit).min().unwrap();
        for round in 0..40u64 {
            let watched = Watched::new(&policy);
            let limiter = &watched.limiter;
            // In every other round the key is known beforehand.
            let before = if round % 2 == 0 { 0 } else { u64::from(limiter.try_acquire(&1u64).is_allowed()) };
            let mut admitted = before
                + together(4, |index| {
                    let cost = [1, 3, 2, 1][index];
                    let (mut admitted, mut refused) = (0, 0);
                    while refused < 4 {
                        match limiter.try_acquire_n(&1u64, cost).is_allowed() {
                            true => admitted += cost,
                            false => refused += 1,
                        }
                    }
                    admitted
                });
            assert!(admitted <= narrowest, "`{text}`, round {round}: {admitted}");
            // In the instant of a hand-back a request may be refused that would have fitted.
            admitted += drain(|| limiter.try_acquire(&1u64).is_allowed());
            assert_eq!(admitted, narrowest, "`{text}`, round {round}");
            for (index, rule) in policy.rules().iter().enumerate() {
                let left = watched.rule(index).peek_n(&1u64, 0).remaining();
                assert_eq!(left, rule.limit() - narrowest, "`{text}`, round {round}: `{rule}`");
            }
        }
    }
}

// ---------------------------------------------------------------- shadows

#[test]
fn a_shadow_never_refuses_and_goes_on() {
    for kind in ["", "fixed ", "sliding ", "log "] {
        let text = format!("100/s; shadow {kind}3/h named later; shadow {kind}2/h named stricter");
        let (limiter, hand) = limiter(&text);
        for hour in 0..5u32 {
            // A window that slides leaves nothing behind after two of its lengths.
            hand.set(START + HOUR * 2 * hour);
            for (turn, noted) in [None, None, Some(2), Some(1), Some(1)].into_iter().enumerate() {
                let look = limiter.peek("key");
                let decision = limiter.try_acquire("key");
                assert!(decision.is_allowed(), "`{text}`");
                assert_eq!(decision.would_deny(), noted, "`{text}`, hour {hour}, turn {turn}");
                assert_eq!(look.would_deny(), noted, "`{text}`, hour {hour}, turn {turn}: a peek");
                assert_eq!((decision.rule(), decision.limit()), (0, 100), "speaks of the rule in force");
            }
            // Once a rule: the third refused one, the fourth and fifth both.
            assert_eq!(limiter.stats().shadow_denied, u64::from(hour + 1) * 5, "`{text}`");
        }
        assert_eq!(limiter.try_acquire_n("other", 3).would_deny(), Some(2), "a cost that never fits it");
        assert_eq!(limiter.try_acquire_n("other", 0).would_deny(), None);
    }
}

#[test]
fn shadows_alone_let_everything_pass() {
    for kind in ["", "fixed ", "sliding ", "log "] {
        let (limiter, _hand) = limiter(&format!("shadow {kind}2/h"));
        for turn in 0..10 {
            let decision = limiter.try_acquire("key");
            assert!(decision.is_allowed(), "{decision:?}");
            assert_eq!(decision.would_deny(), (turn >= 2).then_some(0));
        }
        assert!(limiter.try_acquire_n("key", u64::MAX).is_allowed());
        assert_eq!(limiter.try_acquire_n("key", 1_000).cost(), 1_000);
        assert_eq!(limiter.stats().shadow_denied, 10);
    }
}

#[test]
fn shadows_are_written_and_read() {
    let text = "10/s burst 20; shadow sliding 1000/h named stricter; shadow log 5/15min";
    let policy = policy(text);
    assert_eq!(policy.to_string(), text);
    let shadows: Vec<bool> = policy.rules().iter().map(Rule::is_shadow).collect();
    assert_eq!(shadows, [false, true, true]);
    assert_eq!(Rule::per_second(3).shadow(), "SHADOW 3 per second".parse().unwrap());
    for bad in ["shadow", "shadow shadow 3/s", "fixed shadow 3/s", "shadow 3 at once"] {
        let refused = bad.parse::<Policy>().and_then(|policy| policy.validate());
        assert!(refused.is_err(), "`{bad}`");
    }
}

/// Shadows change nothing about what passes, and each counts as a limiter of its own would that is asked for
/// whatever passed.
#[test]
fn shadows_are_limiters_of_their_own_beside() {
    let steps = vec((1..=5u64, 0..=2_500_000_000u64), 1..=40);
    check(3_000, (rules(), rule(), rule(), steps), |(real, one, two, steps)| {
        let (shadowed, hand) = {
            let (builder, hand) = builder("1/s");
            let policy = Policy::from(one.clone().shadow());
            let policy = real.rules().iter().cloned().fold(policy, Policy::and).and(two.clone().shadow());
            (builder.policy(policy).build().unwrap(), hand)
        };
        let alone = |policy: Policy| {
            let (builder, hand) = builder("1/s");
            (builder.policy(policy).build().unwrap(), hand)
        };
        let last = real.rules().len() + 1;
        let (plain, plain_hand) = alone(real);
        let (first, first_hand) = alone(one.into());
        let (second, second_hand) = alone(two.into());
        let mut denied = 0;
        for (cost, step_ns) in steps {
            let decision = shadowed.try_acquire_n("key", cost);
            let expected = plain.try_acquire_n("key", cost);
            let same = (decision.outcome(), decision.remaining(), decision.retry_after())
                == (expected.outcome(), expected.remaining(), expected.retry_after());
            expect(same, || format!("{decision:?} beside {expected:?}"))?;
            let mut would_deny = None;
            if expected.is_allowed() {
                for (limiter, index) in [(&first, 0), (&second, last)] {
                    if limiter.try_acquire_n("key", cost).is_denied() {
                        denied += 1;
                        would_deny = would_deny.or(Some(index));
                    }
                }
            }
            expect(decision.would_deny() == would_deny, || format!("{decision:?}: not {would_deny:?}"))?;
            for hand in [&hand, &plain_hand, &first_hand, &second_hand] {
                hand.advance(Duration::from_nanos(step_ns));
            }
        }
        let counted = shadowed.stats().shadow_denied;
        expect(counted == denied, || format!("{counted} counted of {denied}"))
    });
}
