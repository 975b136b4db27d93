//! Law 4 over simulated time: the long-run rate is never above the configured one, and hardly below.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;
use tollgate::{Clock, Gate, ManualHand, Rule};

const US: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);
/// More than anyone here takes one by one: a gate without a limit should fail, not hang.
const RUNAWAY: u64 = 1_000_000;
const DAY: Duration = Duration::from_secs(86_400);

fn gate(text: &str) -> (Gate, ManualHand, Rule) {
    let (clock, hand) = Clock::manual();
    let rule: Rule = text.parse().unwrap();
    (Gate::with_clock(rule.clone(), clock).unwrap(), hand, rule)
}

/// Takes all there is, then lets a step pass, for a span of time.
fn greedy(text: &str, span: Duration, step: Duration) -> (u64, Rule) {
    let (gate, hand, rule) = gate(text);
    let mut admitted = 0;
    loop {
        let all = gate.peek_n(0).remaining();
        assert!(gate.try_acquire_n(all).is_allowed());
        admitted += all;
        if hand.now() >= span {
            return (admitted, rule);
        }
        hand.advance(step.min(span - hand.now()));
    }
}

/// Takes one at a time, and waits exactly as long as it is told to.
fn patient(text: &str, span: Duration) -> (u64, Rule) {
    let (gate, hand, rule) = gate(text);
    let mut admitted = 0;
    loop {
        let decision = gate.try_acquire();
        let Some(wait) = decision.retry_after() else {
            admitted += 1;
            assert!(admitted <= RUNAWAY, "{gate:?} does not limit");
            continue;
        };
        if hand.now() + wait > span {
            return (admitted, rule);
        }
        hand.advance(wait);
        assert!(gate.try_acquire().is_allowed(), "{text}: {wait:?} was not enough");
        admitted += 1;
    }
}

/// At most `burst + rate·t`; at least that less one part in `one_in` of the rate, and less the token under way.
fn assert_rate((admitted, rule): (u64, Rule), span: Duration, one_in: u128) {
    let (admitted, burst) = (u128::from(admitted), u128::from(rule.limit()));
    let (count, period_ns) = (u128::from(rule.count()), rule.period().as_nanos());
    let due = count * span.as_nanos() / period_ns;
    assert!(admitted <= burst + due, "{rule}: {admitted} is above {burst} + {due}");
    let least = burst + due - due.div_ceil(one_in) - 1;
    assert!(admitted >= least, "{rule}: {admitted} is below {least}");
}

#[test]
fn six_hundred_million_a_second() {
    let (admitted, _) = greedy("600000000/s burst 1000", SECOND, US);
    assert!((599_400_000..=600_001_000).contains(&admitted), "{admitted}");
}

/// Rates whose interval is no whole number of nanoseconds, or hardly longer than one.
#[test]
fn fast_rates_by_the_microsecond() {
    let span = SECOND / 10;
    for text in
        ["1000000000/s burst 2000", "999999999/s burst 2000", "333333333/s burst 1000", "7/10ns burst 900"]
    {
        assert_rate(greedy(text, span, US), span, 1_000);
    }
    for text in ["10000000/s burst 100", "9999991/s burst 100", "7000003/s burst 100", "1000001/s burst 100"]
    {
        assert_rate(greedy(text, span, US), span, 100_000);
    }
}

#[test]
fn ten_million_a_second_for_a_minute() {
    let span = Duration::from_secs(60);
    for text in ["10000000/s", "9999991/s", "3333333/s"] {
        assert_rate(greedy(text, span, Duration::from_millis(1)), span, 100_000);
    }
}

#[test]
fn odd_rates_for_days() {
    for text in ["3/s burst 300", "7/ms burst 1000000", "1000003/d", "11/min burst 100", "86399/d burst 1000"]
    {
        // A burst never fills within a step. No round number of intervals: a fraction dropped at every step would add up.
        assert_rate(greedy(text, 3 * DAY, Duration::from_nanos(59_999_999_993)), 3 * DAY, 100_000);
    }
}

#[test]
fn odd_rates_by_exact_waits() {
    for (text, span) in [
        ("3/s", DAY),
        ("3/s burst 1", DAY),
        ("1000003/d burst 1", DAY / 4),
        ("7/ms", 20 * SECOND),
        ("7/ms burst 1", 20 * SECOND),
        ("10000000/s burst 1", SECOND / 50),
    ] {
        // A wait ends on a whole nanosecond; a burst of one loses what is left of it each time.
        let (count, rule) = patient(text, span);
        let interval_ns = rule.period().as_nanos() / u128::from(rule.count());
        let one_in = if rule.limit() == 1 { interval_ns.min(100_000) } else { 100_000 };
        assert_rate((count, rule), span, one_in);
    }
}
