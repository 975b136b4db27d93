//! Defects that were found in other limiters, each as a test that passes here.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;
use tollgate::{Clock, Gate, ManualHand, Outcome, Policy};

const NS: Duration = Duration::from_nanos(1);
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
/// More than any test here may admit: a gate without a limit should fail, not hang.
const RUNAWAY: u64 = 2_000_000;
const EACH: [&str; 4] = ["10/s", "fixed 10/s", "sliding 10/s", "log 10/s"];

fn gate(policy: &str) -> (Gate, ManualHand) {
    let (clock, hand) = Clock::manual();
    // Not on a window's edge, where some defects hide.
    hand.set(Duration::from_millis(1_790_000_000_250));
    (Gate::with_clock(policy, clock).unwrap(), hand)
}

/// Takes one at a time until refused.
fn drain(gate: &Gate) -> u64 {
    let mut admitted = 0;
    while gate.try_acquire().is_allowed() {
        admitted += 1;
        assert!(admitted <= RUNAWAY, "{gate:?} does not limit");
    }
    admitted
}

/// How many of `polls` pass, one poll each `step`.
fn poll(gate: &Gate, hand: &ManualHand, step: Duration, polls: u32) -> u64 {
    let mut admitted = 0;
    for _ in 0..polls {
        hand.advance(step);
        admitted += u64::from(gate.try_acquire().is_allowed());
    }
    admitted
}

/// governor: the cost times the interval wraps around, and a cost of millions passes a burst of 1000.
#[test]
fn governor_a_large_cost_does_not_wrap_around() {
    let (gate, _hand) = gate("1/h burst 1000");
    for cost in [5_124_097, 5_124_096, 1_001, 1 << 32, 1 << 52, u64::MAX / 3_600, u64::MAX] {
        assert_eq!(gate.try_acquire_n(cost).outcome(), Outcome::NeverFits, "{cost}");
    }
    assert_eq!(drain(&gate), 1_000);
}

/// governor: the remainder after a refusal is the full burst.
#[test]
fn governor_remaining_after_a_refusal_is_what_remains() {
    for text in EACH {
        let (gate, _hand) = gate(text);
        assert!(gate.try_acquire_n(7).is_allowed());
        let refused = gate.try_acquire_n(4);
        assert_eq!((refused.outcome(), refused.remaining()), (Outcome::Denied, 3), "{text}");
        assert_eq!(drain(&gate), 3, "{text}");
        assert_eq!(gate.try_acquire().remaining(), 0, "{text}");
    }
}

/// governor: an interval of 1.67 ns is cut to 1 ns. Here a millisecond of it.
#[test]
fn governor_600_million_a_second_is_not_a_billion() {
    let (gate, hand) = gate("600000000/s burst 1000");
    let mut admitted = 0;
    for _ in 0..1_000 {
        hand.advance(Duration::from_micros(1));
        let all = gate.peek().remaining();
        assert!(gate.try_acquire_n(all).is_allowed());
        admitted += all;
    }
    assert!((599_400..=601_000).contains(&admitted), "{admitted}");
}

/// throttlecrab: a rested bucket is clamped to a tolerance before now, and 17 of a burst of 10 pass at once.
#[test]
fn throttlecrab_a_rested_bucket_admits_its_burst_and_no_more() {
    for idle in [SECOND, 7 * SECOND, HOUR, 24 * HOUR] {
        for spend in 0..=10 {
            let (gate, hand) = gate("10/s");
            assert!(gate.try_acquire_n(spend).is_allowed());
            hand.advance(idle);
            assert_eq!(drain(&gate), 10, "after {spend} and {idle:?}");
        }
    }
}

/// ratelimit: the fraction of a token is dropped at each refill, and 1/h polled every 7 ms admits 5 in 10 h.
#[test]
fn ratelimit_polling_loses_no_fraction() {
    let (gate, hand) = gate("1/h");
    // A poll comes up to 7 ms after its token, so the tenth hour's token is met just after the end.
    assert_eq!(poll(&gate, &hand, 7 * MS, 36_000_000 / 7), 10);
    assert_eq!(poll(&gate, &hand, 7 * MS, 10), 1);
}

/// ratelimit: waiting exactly as long as told can fail.
#[test]
fn ratelimit_waiting_exactly_the_wait_is_enough() {
    for text in ["3/s", "7/ms", "1000003/d", "600000000/s burst 7", "fixed 3/s", "sliding 3/s", "log 3/s"] {
        let (gate, hand) = gate(text);
        drain(&gate);
        for turn in 0..1_000 {
            let wait = gate.try_acquire().retry_after().unwrap();
            hand.advance(wait - NS);
            assert!(gate.try_acquire().is_denied(), "{text}: {wait:?} is too long, turn {turn}");
            hand.advance(NS);
            assert!(gate.try_acquire().is_allowed(), "{text}: {wait:?} is too short, turn {turn}");
            drain(&gate);
        }
    }
}

/// ratelimit: what is available is as of the last refill, not as of now.
#[test]
fn ratelimit_a_look_is_as_of_now() {
    let (gate, hand) = gate("10/s");
    drain(&gate);
    for tenth in 1..=10 {
        hand.advance(100 * MS);
        assert_eq!(gate.peek().remaining(), tenth);
    }
}

/// pingora-limits, upstash, rate-limiter-flexible, and every log that adds before it checks: refused
/// requests count, so a client that retries never recovers.
#[test]
fn pingora_refused_requests_do_not_count() {
    for text in EACH {
        let (gate, hand) = gate(text);
        assert_eq!(drain(&gate), 10, "{text}");
        let reset = gate.peek().reset_after();
        for _ in 0..10_000 {
            assert!(gate.try_acquire().is_denied(), "{text}");
        }
        assert_eq!(gate.peek().reset_after(), reset, "{text}");
        hand.advance(reset);
        assert_eq!(drain(&gate), 10, "{text}");
    }
}

/// pingora-limits: a fixed window lets twice the limit pass around its edge. That is what a fixed window is;
/// the log is for those who cannot have it.
#[test]
fn pingora_a_log_admits_its_limit_around_any_edge() {
    let (clock, hand) = Clock::manual();
    let log = Gate::with_clock("log 10/s", clock.clone()).unwrap();
    let fixed = Gate::with_clock("fixed 10/s", clock).unwrap();
    hand.set(SECOND - NS);
    assert_eq!((drain(&log), drain(&fixed)), (10, 10));
    hand.advance(NS);
    assert_eq!((drain(&log), drain(&fixed)), (0, 10));
    hand.advance(SECOND - 2 * NS);
    assert_eq!(drain(&log), 0);
    hand.advance(NS);
    assert_eq!(drain(&log), 10);
}

/// trypema: any cost passes while the total is below the limit.
#[test]
fn trypema_the_cost_counts_before_it_is_admitted() {
    for text in EACH {
        let (gate, _hand) = gate(text);
        assert!(gate.try_acquire_n(9).is_allowed(), "{text}");
        assert_eq!(gate.try_acquire_n(2).outcome(), Outcome::Denied, "{text}");
        assert_eq!(gate.try_acquire_n(100).outcome(), Outcome::NeverFits, "{text}");
        assert!(gate.try_acquire_n(1).is_allowed(), "{text}");
    }
}

/// throttle-kit: "remaining" is what was used.
#[test]
fn throttle_kit_remaining_is_not_what_was_used() {
    for text in EACH {
        let (gate, _hand) = gate(text);
        assert_eq!(gate.try_acquire_n(2).remaining(), 8, "{text}");
        assert_eq!(gate.try_acquire_n(5).remaining(), 3, "{text}");
    }
}

/// throttle-kit, and Redis scripts in whole seconds: intervals below a millisecond are lost.
#[test]
fn throttle_kit_intervals_below_a_millisecond_count() {
    let (gate, hand) = gate("3000/s burst 1");
    assert!(gate.try_acquire().is_allowed());
    assert_eq!(gate.try_acquire().retry_after(), Some(Duration::from_nanos(333_334)));
    assert_eq!(poll(&gate, &hand, Duration::from_nanos(333_334), 3_000), 3_000);
}

/// `tower_governor`: the time to wait is rounded down, and can be 0.
#[test]
fn tower_governor_a_refusal_never_says_now() {
    for text in
        ["1000000000/s burst 1", "3/ns burst 1", "fixed 1/ns", "sliding 1/ns", "log 1/ns", "1/s", "3/s"]
    {
        let (gate, hand) = gate(text);
        drain(&gate);
        for _ in 0..50 {
            if let Some(wait) = gate.try_acquire().retry_after() {
                assert!(wait >= NS, "{text}");
                hand.advance(wait);
                assert!(gate.try_acquire().is_allowed(), "{text}");
            }
        }
    }
}

/// axum-governor, tower-governor#59: earlier rules stay charged when a later one refuses.
#[test]
fn axum_governor_no_rule_is_charged_when_another_refuses() {
    for second in ["1/h", "fixed 1/h", "sliding 1/h", "log 1/h"] {
        for first in ["1/d burst 10", "fixed 10/1000d", "sliding 10/1000d", "log 10/30d"] {
            let (gate, hand) = gate(&format!("{first}; {second} named last"));
            assert!(gate.try_acquire().is_allowed());
            for _ in 0..100 {
                let refused = gate.try_acquire();
                assert_eq!(refused.rule_name(), Some("last"), "{first}; {second}");
            }
            // Nine are left under the first rule, and the second lets each of them pass in time.
            let mut admitted = 1;
            while let Some(wait) = gate.peek().retry_after() {
                if wait > 3 * HOUR {
                    break;
                }
                hand.advance(wait);
                assert!(gate.try_acquire().is_allowed(), "{first}; {second}");
                admitted += 1;
            }
            assert_eq!(admitted, 10, "{first}; {second}");
        }
    }
}

/// bucket4j, envoy: several limits refuse without saying which.
#[test]
fn bucket4j_a_refusal_names_the_rule_with_the_longest_wait() {
    let policy: Policy = "2/s named fast; 2/min named slow; fixed 2/s named third".parse().unwrap();
    let (gate, _hand) = gate(&policy.to_string());
    assert!(gate.try_acquire_n(2).is_allowed());
    let refused = gate.try_acquire();
    assert_eq!((refused.rule(), refused.rule_name()), (1, Some("slow")));
    assert_eq!(refused.retry_after(), Some(30 * SECOND));
}

/// x/time/rate: an earlier time moves the clock back, and time that has passed once is credited again.
/// Also the wall clock of tutorials: a step back must not lock anyone out for longer than the step.
#[test]
fn time_rate_a_step_back_credits_nothing_twice() {
    for text in EACH {
        let (gate, hand) = gate(text);
        let start = hand.now();
        assert_eq!(drain(&gate), 10, "{text}");
        for back in [NS, MS, SECOND, HOUR, start] {
            let before = gate.peek().retry_after();
            hand.set(start - back);
            assert_eq!(drain(&gate), 0, "{text}: {back:?} back");
            assert_eq!(gate.peek().retry_after(), before, "{text}: {back:?} back");
            hand.set(start);
            assert_eq!(drain(&gate), 0, "{text}: {back:?} back and forth");
        }
        hand.set(start + gate.peek().reset_after());
        assert_eq!(drain(&gate), 10, "{text}");
    }
}

/// gubernator: the fraction is discarded, and 10/s polled every 99 ms gives 5/s.
#[test]
fn gubernator_10_a_second_polled_every_99_ms_is_10_a_second() {
    let (gate, hand) = gate("10/s");
    drain(&gate);
    // 99 s: 990 tokens come back, of which the first poll finds 0.99 of one.
    let admitted = poll(&gate, &hand, 99 * MS, 1_000);
    assert_eq!(admitted, 990);
}

/// x/time/rate, golang/go#56924: cancelling gives back something else than was taken.
#[test]
fn time_rate_a_refund_restores_exactly() {
    for text in EACH {
        let (gate, hand) = gate(text);
        assert!(gate.try_acquire_n(3).is_allowed());
        hand.advance(MS);
        let before = (gate.peek().remaining(), gate.peek().reset_after());
        assert!(gate.try_acquire_n(5).is_allowed());
        gate.refund(5);
        assert_eq!((gate.peek().remaining(), gate.peek().reset_after()), before, "{text}");
        gate.refund(1_000);
        assert_eq!(drain(&gate), 10, "{text}: capped at the limit");
    }
}

/// Tutorials: the `remaining` of a sliding counter ignores that windows rotate, and is 0 for ever after idling.
#[test]
fn tutorials_remaining_recovers_while_idling() {
    for text in EACH {
        let (gate, hand) = gate(text);
        assert_eq!(drain(&gate), 10, "{text}");
        hand.advance(10 * SECOND);
        assert_eq!((gate.peek().remaining(), gate.peek().reset_after()), (10, Duration::ZERO), "{text}");
    }
}

/// Tutorials: the wait of a sliding counter is "to the window's end", which is wrong both ways.
#[test]
fn tutorials_a_sliding_wait_is_not_the_windows_end() {
    let (clock, hand) = Clock::manual();
    let gate = Gate::with_clock("sliding 10/s", clock).unwrap();
    hand.set(500 * MS);
    assert_eq!(drain(&gate), 10);
    // At the window's end all ten still weigh in full: one has faded a tenth of a window later.
    assert_eq!(gate.peek().retry_after(), Some(600 * MS));
    hand.advance(600 * MS);
    assert!(gate.try_acquire().is_allowed());
    // And with nine faded to fit beside one, the next waits a tenth, not to the end.
    assert_eq!(gate.peek().retry_after(), Some(100 * MS));
}

/// Tutorials: a step forward on the wall clock gives a free burst. It gives what the time is worth.
#[test]
fn tutorials_a_step_forward_gives_no_more_than_a_burst() {
    for text in EACH {
        let (gate, hand) = gate(text);
        for _ in 0..20 {
            hand.advance(100 * HOUR);
            assert_eq!(drain(&gate), 10, "{text}");
        }
    }
}
