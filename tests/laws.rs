//! The laws of a gate, over random rules, histories and costs that keep to the edges.
//!
//! Every run uses the same seed, so a failure comes back; the smallest failing case is printed.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;
mod oracle;

use oracle::harness::{Checked, Op, nanos};
use oracle::{Oracle, expect};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::select;
use std::time::Duration;
use tollgate::{Algorithm, Clock, Decision, Gate, Outcome, Policy, Rule};

/// Cases of a law, for each algorithm.
const CASES: u32 = 2_500;
/// Cases of the law that is easiest to get wrong by one.
const CASES_OF_WAITS: u32 = 10_000;
const SEED: u64 = 0x7011_6a7e;
const SECOND_NS: u64 = 1_000_000_000;
const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog];

fn check<S: Strategy>(cases: u32, strategy: S, law: impl Fn(S::Value) -> Result<(), String>) {
    common::check_with(SEED, cases, strategy, law);
}

/// Checks a law for each algorithm: a rule, a start and a history.
fn check_each(law: impl Fn(Algorithm, Checked) -> Result<(), String>) {
    for algorithm in ALGORITHMS {
        check(CASES, (rule(algorithm), start_ns(), history(16)), |(rule, start_ns, ops)| {
            law(algorithm, Checked::with_history(&rule.into(), start_ns, &ops)?)
        });
    }
}

fn period_ns() -> impl Strategy<Value = u64> {
    let step_back_ns = 1 << 30;
    prop_oneof![
        3 => 1..=17u64,
        2 => select(vec![100, 1_000, 1_001, 1_000_003, 999_999_937]),
        1 => select(vec![step_back_ns - 1, step_back_ns, step_back_ns + 1, SECOND_NS, 3_600 * SECOND_NS]),
    ]
}

/// Intervals about the places where the engine changes its unit of time, and periods that do not divide.
fn bucket() -> impl Strategy<Value = Rule> {
    let interval_ns =
        select(vec![1, 2, 3, 31, 32, 33, 99, 100, 101, 131_071, 131_072, 131_073, SECOND_NS, 60 * SECOND_NS]);
    let divides = (interval_ns, 1..=8u64).prop_map(|(interval_ns, count)| (count, interval_ns * count));
    let fast = (1..=1_000u64, 1..=300u64);
    prop_oneof![divides, (1..=13u64, period_ns()), fast]
        .prop_flat_map(|(count, period_ns)| {
            let rule = Rule::new(count, Duration::from_nanos(period_ns));
            prop_oneof![Just(rule.clone()), (1..=12u64).prop_map(move |burst| rule.clone().burst(burst))]
        })
        .prop_filter("too fast for the word", |rule| rule.validate().is_ok())
}

fn rule(algorithm: Algorithm) -> impl Strategy<Value = Rule> {
    let large: u64 = match algorithm {
        Algorithm::TokenBucket => return bucket().boxed(),
        Algorithm::FixedWindow => (1 << 40) - 1,
        Algorithm::SlidingWindow => (1 << 20) - 1,
        _ => 40,
    };
    // Narrow numbers leave few bits for windows that are far apart, so large limits get long windows.
    prop_oneof![4 => (1..=12u64, period_ns()), 1 => (large - 2..=large, SECOND_NS..=SECOND_NS + 3)]
        .prop_map(move |(count, period_ns)| Rule::new(count, Duration::from_nanos(period_ns)).by(algorithm))
        .boxed()
}

fn start_ns() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        1..=40u64,
        // The present, as real clocks count it, and the far end of time with room for a trace.
        1_790_000_000_000_000_000..=1_790_000_000_000_000_040u64,
        u64::MAX - (1 << 58)..=u64::MAX - (1 << 58) + 40,
    ]
}

fn history(ops: usize) -> impl Strategy<Value = Vec<Op>> {
    vec(any::<u32>().prop_map(Op::decode), 0..=ops)
}

/// All that a gate shows of its state.
fn shown(gate: &Gate, costs: &[u64]) -> Vec<(Outcome, u64, usize, Option<Duration>, Duration)> {
    let seen = |d: Decision| (d.outcome(), d.remaining(), d.rule(), d.retry_after(), d.reset_after());
    costs.iter().map(|&cost| seen(gate.peek_n(cost))).collect()
}

fn telling_costs(limit: u64) -> Vec<u64> {
    let low = 0..=limit.min(13);
    low.chain([limit / 2, limit - 1, limit, limit + 1, u64::MAX]).collect()
}

#[test]
fn decisions_equal_the_oracle() {
    for algorithm in ALGORITHMS {
        check(CASES, (rule(algorithm), start_ns(), history(48)), |(rule, start_ns, ops)| {
            Checked::with_history(&rule.into(), start_ns, &ops).map(drop)
        });
    }
}

/// Law 1, by brute force over every span between two admissions.
#[test]
fn no_span_admits_more_than_the_bound() {
    check_each(|algorithm, checked| {
        let rule = &checked.gate.policy().rules()[0];
        let (count, limit) = (u128::from(rule.count()), u128::from(rule.limit()));
        let period_ns = rule.period().as_nanos();
        let spent = checked.oracle.spent();
        for (first, &(from_ns, _)) in spent.iter().enumerate() {
            let mut total = 0;
            for &(to_ns, cost) in &spent[first..] {
                total += cost;
                let within = match algorithm {
                    Algorithm::TokenBucket => {
                        (total.saturating_sub(limit)) * period_ns <= count * (to_ns - from_ns)
                    }
                    Algorithm::SlidingLog => to_ns - from_ns >= period_ns || total <= limit,
                    // The sliding counter as well: what is current alone never passes the limit.
                    _ => to_ns / period_ns != from_ns / period_ns || total <= limit,
                };
                expect(within, || format!("{total} from {from_ns} to {to_ns} ns: {checked:?}"))?;
            }
        }
        Ok(())
    });
}

/// Law 2: waiting exactly so long admits, a nanosecond less does not, whatever the clock's hand did.
#[test]
fn retry_after_is_tight() {
    for algorithm in ALGORITHMS {
        let case = (rule(algorithm), start_ns(), history(12), 1..=13u64, 0..=40u64);
        check(CASES_OF_WAITS, case, |(rule, start_ns, ops, cost, back_ns)| {
            let mut checked = Checked::with_history(&rule.into(), start_ns, &ops)?;
            let cost = cost.min(checked.limit());
            // The same cost until it is refused; a limit far above it is drained first.
            let far = checked.gate.peek_n(0).remaining().saturating_sub(30);
            let _ = checked.acquire(far)?;
            let mut refused = checked.acquire(cost)?;
            while refused.is_allowed() {
                refused = checked.acquire(cost)?;
            }
            let wait = refused.retry_after().unwrap();
            checked.set_clock(checked.oracle.now_ns().saturating_sub(back_ns));
            let still = checked.gate.try_acquire_n(cost);
            expect(still.retry_after() == Some(wait), || format!("{wait:?} set back: {still:?}"))?;

            checked.wait(wait - Duration::from_nanos(1));
            let early = checked.gate.try_acquire_n(cost);
            let one_ns = Some(Duration::from_nanos(1));
            expect(early.retry_after() == one_ns, || format!("{wait:?} less 1 ns: {early:?}"))?;
            checked.wait(Duration::from_nanos(1));
            let late = checked.gate.try_acquire_n(cost);
            expect(late.is_allowed(), || format!("after {wait:?}: {late:?}"))
        });
    }
}

/// Law 3: a gate that refused many times is the twin of one that was never asked.
#[test]
fn a_refusal_costs_nothing() {
    for algorithm in ALGORITHMS {
        check(CASES, (rule(algorithm), start_ns(), history(12)), |(rule, start_ns, ops)| {
            let policy = Policy::from(rule);
            let asked = Checked::with_history(&policy, start_ns, &ops)?;
            let twin = Checked::with_history(&policy, start_ns, &ops)?;
            let costs = telling_costs(asked.limit());
            let before = shown(&asked.gate, &costs);
            let remaining = asked.gate.peek_n(0).remaining();
            for cost in costs.iter().copied().filter(|cost| *cost > remaining) {
                let refused = asked.gate.try_acquire_n(cost);
                expect(refused.is_denied(), || format!("{remaining} remained: {refused:?}"))?;
            }
            expect(shown(&asked.gate, &costs) == before, || format!("{asked:?} after refusals"))?;
            // Later on as well: nothing was booked for the future.
            for gate in [&asked, &twin] {
                gate.hand.advance(gate.gate.policy().rules()[0].period() / 2);
            }
            expect(shown(&asked.gate, &costs) == shown(&twin.gate, &costs), || format!("{asked:?} later"))
        });
    }
}

/// Law 4: a fresh gate admits exactly its limit.
#[test]
fn a_fresh_gate_admits_exactly_its_limit() {
    for algorithm in ALGORITHMS {
        check(CASES, (rule(algorithm), start_ns(), 1..=5u64), |(rule, start_ns, cost)| {
            let mut checked = Checked::new(&rule.into(), start_ns)?;
            let limit = checked.limit();
            let cost = cost.max(limit / 40);
            let mut admitted = 0;
            while checked.acquire(cost)?.is_allowed() {
                admitted += cost;
            }
            expect(admitted == limit / cost * cost, || format!("{admitted} of {limit} by {cost}"))?;
            let _ = checked.acquire(limit % cost)?;
            let full = checked.acquire(1)?;
            expect(full.is_denied() && full.remaining() == 0, || format!("{full:?}"))
        });
    }
}

#[test]
fn remaining_is_exact() {
    check_each(|_, checked| {
        let remaining = checked.gate.peek().remaining();
        let over = checked.gate.try_acquire_n(remaining + 1);
        expect(over.is_denied() && over.remaining() == remaining, || format!("{remaining}: {over:?}"))?;
        let all = checked.gate.try_acquire_n(remaining);
        expect(all.is_allowed() && all.remaining() == 0, || format!("{remaining}: {all:?}"))
    });
}

#[test]
fn reset_after_is_exact() {
    check_each(|_, mut checked| {
        let reset = checked.gate.peek().reset_after();
        if reset > Duration::ZERO {
            checked.wait(reset - Duration::from_nanos(1));
            let early = checked.gate.peek_n(checked.limit());
            expect(early.is_denied(), || format!("{reset:?} less 1 ns: {early:?}"))?;
            expect(early.reset_after() == Duration::from_nanos(1), || format!("{reset:?}: {early:?}"))?;
            checked.wait(Duration::from_nanos(1));
        }
        let full = checked.gate.peek_n(checked.limit());
        expect(full.is_allowed() && full.reset_after().is_zero(), || format!("after {reset:?}: {full:?}"))
    });
}

#[test]
fn what_can_never_fit_says_so() {
    check_each(|_, checked| {
        let costs = telling_costs(checked.limit());
        let before = shown(&checked.gate, &costs);
        for cost in [checked.limit() + 1, checked.limit().saturating_mul(2), u64::MAX] {
            if cost == checked.limit() {
                continue;
            }
            for never in [checked.gate.try_acquire_n(cost), checked.gate.peek_n(cost)] {
                let says_so = never.outcome() == Outcome::NeverFits && never.retry_after().is_none();
                expect(says_so && never.is_denied(), || format!("{never:?}"))?;
            }
        }
        expect(shown(&checked.gate, &costs) == before, || format!("{checked:?}"))
    });
}

#[test]
fn nothing_always_passes_and_costs_nothing() {
    check_each(|_, checked| {
        let before = shown(&checked.gate, &telling_costs(checked.limit()));
        let nothing = checked.gate.try_acquire_n(0);
        expect(nothing.is_allowed() && nothing.retry_after().is_none(), || format!("{nothing:?}"))?;
        expect(shown(&checked.gate, &telling_costs(checked.limit())) == before, || format!("{checked:?}"))
    });
}

#[test]
fn a_refund_undoes_exactly_what_was_spent() {
    check_each(|_, checked| {
        let costs = telling_costs(checked.limit());
        let before = shown(&checked.gate, &costs);
        let remaining = checked.gate.peek().remaining();
        for cost in [1, remaining / 2, remaining] {
            if checked.gate.try_acquire_n(cost).is_allowed() {
                checked.gate.refund(cost);
            }
        }
        expect(shown(&checked.gate, &costs) == before, || format!("{checked:?}"))?;
        // More than was ever spent is as good as a reset, and no better.
        checked.gate.refund(u64::MAX);
        let full = checked.gate.peek();
        expect(full.remaining() == checked.limit() && full.reset_after().is_zero(), || format!("{full:?}"))?;
        let over = checked.gate.try_acquire_n(checked.limit() + 1);
        expect(over.outcome() == Outcome::NeverFits, || format!("{over:?}"))
    });
}

#[test]
fn a_reset_gate_is_a_fresh_one() {
    check_each(|_, mut checked| {
        checked.gate.reset();
        checked.oracle.reset();
        let fresh = Checked::new(checked.gate.policy(), checked.oracle.now_ns())?;
        let costs = telling_costs(checked.limit());
        expect(shown(&checked.gate, &costs) == shown(&fresh.gate, &costs), || format!("{checked:?}"))?;
        let all = checked.acquire(checked.limit())?;
        expect(all.is_allowed(), || format!("{all:?}"))
    });
}

fn policy() -> impl Strategy<Value = Policy> {
    // Short periods: a rule of nanoseconds beside one of hours would see more windows than its word numbers.
    let short = select(ALGORITHMS.to_vec())
        .prop_flat_map(rule)
        .prop_filter("short", |rule| rule.period() <= Duration::from_secs(2) && rule.limit() <= 1_000);
    vec(short, 2..=4).prop_map(|rules| {
        let mut rules = rules.into_iter().enumerate().map(|(n, rule)| rule.named(format!("rule-{n}")));
        let first = Policy::from(rules.next().unwrap());
        rules.fold(first, Policy::and)
    })
}

/// All or nothing, the longest wait, the rule that needs it: all in the oracle's check of a decision.
#[test]
fn several_rules_equal_the_oracle() {
    check(CASES, (policy(), start_ns(), history(40)), |(policy, start_ns, ops)| {
        Checked::with_history(&policy, start_ns, &ops).map(drop)
    });
}

/// The same without the oracle: a gate of several rules against one gate a rule.
#[test]
fn several_rules_are_all_or_nothing() {
    let steps = vec((0..=5u64, prop_oneof![0..=20u64, Just(1_000), Just(SECOND_NS / 3)]), 1..=24);
    check(CASES, (policy(), steps), |(policy, steps)| {
        let (clock, hand) = Clock::manual();
        let gate = Gate::with_clock(policy.clone(), clock.clone()).unwrap();
        let single = |rule: &Rule| Gate::with_clock(rule.clone(), clock.clone()).unwrap();
        let singles: Vec<Gate> = policy.rules().iter().map(single).collect();
        for (cost, step_ns) in steps {
            let looks: Vec<Decision> = singles.iter().map(|single| single.peek_n(cost)).collect();
            let decision = gate.try_acquire_n(cost);
            let context = || format!("`{policy}` at {:?}: {decision:?} of {looks:?}", hand.now());
            if let Some(never) = looks.iter().position(|look| look.outcome() == Outcome::NeverFits) {
                expect(decision.outcome() == Outcome::NeverFits && decision.rule() == never, context)?;
            } else if looks.iter().all(Decision::is_allowed) {
                expect(decision.is_allowed(), context)?;
                let left = singles.iter().map(|single| single.try_acquire_n(cost).remaining()).min();
                expect(Some(decision.remaining()) == left, context)?;
            } else {
                let longest = looks.iter().map(Decision::retry_after).max().flatten();
                expect(decision.retry_after() == longest, context)?;
                let first = looks.iter().position(|look| look.retry_after() == longest);
                expect(Some(decision.rule()) == first, context)?;
            }
            hand.advance(Duration::from_nanos(step_ns));
        }
        Ok(())
    });
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let number = || prop_oneof![1..=20u64, any::<u64>(), select(vec![0, 1_000, 1 << 20, 1 << 40, u64::MAX])];
    let unit_ns =
        select(vec![1, 1_000, 1_000_000, SECOND_NS, 60 * SECOND_NS, 3_600 * SECOND_NS, 86_400 * SECOND_NS]);
    let period_ns = (unit_ns, prop_oneof![1..=99u64, any::<u64>()]);
    let burst = proptest::option::of(number());
    let name = proptest::option::of("[!#-:<-\\[\\]-~]{1,64}");
    (select(ALGORITHMS.to_vec()), number(), period_ns, burst, name).prop_map(
        |(algorithm, count, (unit_ns, units), burst, name)| {
            let rule = Rule::new(count, Duration::from_nanos(unit_ns.saturating_mul(units))).by(algorithm);
            let rule = burst.into_iter().fold(rule, Rule::burst);
            name.into_iter().fold(rule, Rule::named)
        },
    )
}

#[test]
fn text_round_trips() {
    check(4 * CASES, any_rule(), |rule| {
        let text = rule.to_string();
        let read: Result<Rule, _> = text.parse();
        match rule.validate() {
            Ok(()) => expect(read.as_ref() == Ok(&rule), || format!("`{text}` reads as {read:?}")),
            Err(_) => expect(read.is_err(), || format!("`{text}` is not valid but reads as {read:?}")),
        }
    });
    check(CASES, policy(), |policy| {
        let text = policy.to_string();
        let read: Result<Policy, _> = text.parse();
        expect(read.as_ref() == Ok(&policy), || format!("`{text}` reads as {read:?}"))
    });
}

#[cfg(feature = "serde")]
#[test]
fn serde_round_trips() {
    check(CASES, (any_rule(), policy()), |(rule, policy)| {
        let json = serde_json::to_string(&rule).unwrap();
        let read = serde_json::from_str::<Rule>(&json);
        match rule.validate() {
            Ok(()) => expect(read.ok() == Some(rule), || json)?,
            Err(error) => {
                let said = read.err().map(|said| said.to_string()).unwrap_or_default();
                expect(said.contains(error.message()), || format!("{json}: {said}, not {error}"))?;
            }
        }
        let json = serde_json::to_value(&policy).unwrap();
        expect(json.as_str() == Some(&policy.to_string()), || json.to_string())?;
        expect(serde_json::from_value::<Policy>(json).ok() == Some(policy), || "policy".to_owned())
    });
}

/// Law 6 and law 8: whatever `validate` accepts runs at any time and cost without a panic, and no answer
/// contradicts another.
#[test]
fn nothing_panics_at_the_extremes() {
    let extreme = || {
        prop_oneof![
            0..=3u64,
            any::<u64>(),
            (0..=63u32).prop_map(|bit| 1 << bit),
            (0..=63u32).prop_map(|bit| (1 << bit) - 1),
            u64::MAX - 3..=u64::MAX,
        ]
    };
    let op = (0..=5u8, extreme());
    let case = (any_rule(), extreme(), extreme(), vec(op, 1..=12));
    check(4 * CASES, case, |(rule, start_ns, period_ns, ops)| {
        let period = Duration::from_nanos(period_ns);
        let other = Rule::new(rule.count(), period).by(rule.algorithm());
        for rule in [rule, other] {
            let (clock, hand) = Clock::manual();
            hand.set(Duration::from_nanos(start_ns));
            let Ok(gate) = Gate::with_clock(rule.clone(), clock) else {
                expect(rule.validate().is_err(), || format!("{rule}"))?;
                continue;
            };
            let limit = rule.limit();
            let all = gate.try_acquire_n(limit);
            expect(all.is_allowed() && all.remaining() == 0, || format!("fresh: {all:?}"))?;
            gate.refund(limit);
            for (op, number) in &ops {
                match op {
                    0 => hand.advance(Duration::from_nanos(*number)),
                    1 => hand.set(Duration::from_nanos(*number)),
                    2 => gate.refund(*number),
                    _ => {
                        let cost = if *op == 3 { *number } else { *number % (limit.saturating_add(2)) };
                        let look = gate.peek_n(cost);
                        let decision = gate.try_acquire_n(cost);
                        let agree = look.outcome() == decision.outcome()
                            && look.retry_after() == decision.retry_after()
                            && (decision.outcome() == Outcome::NeverFits) == (cost > limit)
                            && decision.is_allowed() == (cost <= look.remaining())
                            && decision.remaining() <= limit
                            && decision.retry_after() != Some(Duration::ZERO);
                        expect(agree, || format!("{look:?}, then {decision:?}"))?;
                    }
                }
                expect(gate.peek_n(0).is_allowed(), || format!("{gate:?}"))?;
            }
            gate.reset();
            let full = gate.peek();
            expect(full.remaining() == limit, || format!("after a reset: {full:?}"))?;
        }
        Ok(())
    });
}

/// A word cannot tell a step back of `back_ns` from idling for its whole range less `back_ns`. That makes
/// both visible here: a gate found in that state is poorer by what it had spent and by the step, has an
/// exact wait, and is never richer.
#[test]
fn a_stored_moment_ahead_makes_poorer_never_richer() {
    let word_ns = 1u64 << 56;
    check(CASES, (1..=8u64, 1..=8u64, 0..=1u64 << 30), |(burst, cost, back_ns)| {
        // Intervals of a second are counted in whole nanoseconds, so the word's range is 2^56 of them.
        let (clock, hand) = Clock::manual();
        let gate = Gate::with_clock(Rule::per_second(1).burst(burst), clock).unwrap();
        let spent = cost.min(burst);
        expect(gate.try_acquire_n(spent).is_allowed(), || "fresh".to_owned())?;
        hand.advance(Duration::from_nanos(word_ns - back_ns));
        let debt = Duration::from_nanos(spent * SECOND_NS + back_ns);
        let found = gate.peek_n(burst);
        expect(found.retry_after() == Some(debt), || format!("{debt:?}: {found:?}"))?;
        expect(found.reset_after() == debt, || format!("{debt:?}: {found:?}"))?;
        hand.advance(debt - Duration::from_nanos(1));
        expect(gate.try_acquire_n(burst).is_denied(), || format!("{gate:?} early"))?;
        hand.advance(Duration::from_nanos(1));
        expect(gate.try_acquire_n(burst).is_allowed(), || format!("{gate:?} late"))
    });
    // A step further back than is believed is long ago.
    let (clock, hand) = Clock::manual();
    let gate = Gate::with_clock("1/s", clock).unwrap();
    assert!(gate.try_acquire().is_allowed());
    hand.advance(Duration::from_nanos(word_ns - (1 << 30) - 1));
    assert!(gate.try_acquire().is_allowed());
}

/// The same for the window algorithms, whose words number windows: large limits leave few bits for that.
#[test]
fn a_stored_window_ahead_makes_poorer_never_richer() {
    for (algorithm, limit, number_bits) in
        [(Algorithm::FixedWindow, (1u64 << 35) - 1, 21), (Algorithm::SlidingWindow, (1 << 18) - 1, 20)]
    {
        let case = (0..=2u64, 0..SECOND_NS, 1..=limit, 1..=limit);
        check(CASES, case, |(back, into_ns, spent, cost)| {
            let (clock, hand) = Clock::manual();
            let gate = Gate::with_clock(Rule::per_second(limit).by(algorithm), clock).unwrap();
            expect(gate.try_acquire_n(spent).is_allowed(), || "fresh".to_owned())?;
            hand.advance(Duration::from_nanos(((1 << number_bits) - back) * SECOND_NS + into_ns));
            let found = gate.peek_n(cost);
            expect(found.remaining() == limit - spent, || format!("{spent} spent: {found:?}"))?;
            expect(found.is_allowed() == (cost <= limit - spent), || format!("{found:?}"))?;
            let Some(wait) = found.retry_after() else { return Ok(()) };
            let most = (back + 2) * SECOND_NS;
            expect(nanos(wait) <= most && nanos(found.reset_after()) <= most, || format!("{found:?}"))?;
            hand.advance(wait - Duration::from_nanos(1));
            let early = gate.try_acquire_n(cost);
            expect(early.retry_after() == Some(Duration::from_nanos(1)), || format!("{wait:?}: {early:?}"))?;
            hand.advance(Duration::from_nanos(1));
            let late = gate.try_acquire_n(cost);
            expect(late.is_allowed(), || format!("{wait:?}: {late:?}"))
        });
    }
}

#[test]
fn years_of_idleness_leave_a_lawful_gate() {
    for algorithm in ALGORITHMS {
        check(CASES, (rule(algorithm), history(8), 1..=200u64), |(rule, ops, years)| {
            let mut checked = Checked::with_history(&rule.into(), 0, &ops)?;
            checked.wait(Duration::from_secs(years * 31_557_600));
            let all = checked.limit();
            let decision = checked.gate.peek_n(all);
            // An old moment may look like the future again; then the wait it costs ends and is exact.
            let Some(wait) = decision.retry_after() else { return Ok(()) };
            checked.wait(wait);
            let decision = checked.gate.try_acquire_n(all);
            expect(decision.is_allowed(), || format!("{wait:?}: {decision:?}"))
        });
    }
}

/// The oracle is only worth something if it can say no.
#[test]
fn the_oracle_refuses_a_wrong_gate() {
    let (clock, _hand) = Clock::manual();
    let gate = Gate::with_clock("fixed 3/s", clock).unwrap();
    let mut oracle = Oracle::new(&"fixed 2/s".parse().unwrap());
    assert!(oracle.check_peek(&gate.peek(), 1).is_err(), "another limit");
    let mut right = Oracle::new(gate.policy());
    assert_eq!(right.check_acquire(&gate.try_acquire(), 1), Ok(()));
    assert!(right.check_peek(&gate.try_acquire(), 1).is_err(), "an admission that it did not see");
    assert!(oracle.check_acquire(&gate.try_acquire_n(3), 3).is_err(), "denied, not impossible");
}
