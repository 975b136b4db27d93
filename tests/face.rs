//! The public face: what its types can be used for, what they say of themselves, and what users get wrong first.

#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::error::Error as _;
use std::fmt::Debug;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;
use tollgate::{
    Algorithm, Cause, Clock, Decision, Denied, Error, Gate, KeyHandle, Lease, Limiter, LimiterBuilder,
    ManualHand, Outcome, Penalties, Permit, Policy, Reservation, Rule, Stats, Tier, Wait, WhenFull,
};

const HOUR: Duration = Duration::from_secs(3_600);
const SECOND_NS: u64 = 1_000_000_000;

#[test]
fn everything_that_is_shared_can_be() {
    fn shared<T: Send + Sync + Debug>() {}
    fn sent<T: Send + Debug>() {}
    fn survives_a_panic<T: UnwindSafe + RefUnwindSafe>() {}
    fn plain<T: Copy + Send + Sync + Debug + 'static>() {}
    fn compared<T: Clone + Eq + std::hash::Hash + Debug>() {}
    fn is_error<T: std::error::Error + Clone + Send + Sync + 'static>() {}

    shared::<Limiter>();
    shared::<Gate>();
    shared::<Clock>();
    shared::<ManualHand>();
    shared::<Tier<'_>>();
    shared::<Permit<'_>>();
    shared::<Reservation<'_>>();
    shared::<LimiterBuilder>();
    shared::<Penalties>();
    shared::<Stats>();
    // Both keep something between calls, and are for one thread at a time.
    fn copied<T: Clone>() {}
    copied::<KeyHandle<'_>>();
    copied::<ManualHand>();
    sent::<KeyHandle<'_>>();
    sent::<Lease<'_>>();
    survives_a_panic::<Limiter>();
    survives_a_panic::<Gate>();
    plain::<Decision>();
    plain::<Denied>();
    plain::<Wait>();
    compared::<Rule>();
    compared::<Policy>();
    compared::<Algorithm>();
    compared::<Outcome>();
    compared::<Cause>();
    compared::<WhenFull>();
    compared::<Error>();
    compared::<Penalties>();
    compared::<Wait>();
    is_error::<Error>();
    is_error::<Denied>();
}

/// What a server keeps in its state, or hands to a task.
#[test]
fn what_features_add_can_be_shared() {
    fn shared<T: Send + Sync + Debug + 'static>() {}
    shared::<tollgate::TopKeys>();
    shared::<tollgate::Offender>();
    #[cfg(any(feature = "metrics", feature = "prometheus"))]
    shared::<tollgate::export::Exporter>();
    #[cfg(feature = "rules")]
    shared::<tollgate::rules::RuleSet>();
    #[cfg(feature = "redis")]
    {
        shared::<tollgate::redis::RedisLimiter>();
        shared::<tollgate::redis::RedisLimiterBuilder>();
        shared::<tollgate::redis::RedisError>();
    }
    #[cfg(feature = "tower")]
    {
        shared::<tollgate::tower::RateLimitLayer>();
        shared::<tollgate::tower::RateLimit<(), tollgate::tower::NoBody>>();
        shared::<tollgate::tower::RulesHandle>();
        shared::<tollgate::tower::ClientIp>();
        shared::<tollgate::tower::Meter>();
    }
}

#[cfg(feature = "tokio")]
#[test]
fn a_wait_can_be_spawned() {
    fn sent<T: Send + Debug>() {}
    sent::<tollgate::Acquire<'_>>();
}

#[test]
fn a_limiter_is_made_of_whatever_says_a_policy() {
    let (rule, policy) = (Rule::per_second(10), Policy::from(Rule::per_second(10)));
    let text = String::from("10/s");
    let (array, list) = ([rule.clone()], vec![rule.clone()]);
    let made = [
        Limiter::new("10/s"),
        Limiter::new(&text),
        Limiter::new(text.clone()),
        Limiter::new(&rule),
        Limiter::new(&policy),
        Limiter::new(list.clone()),
        Limiter::new(array.clone()),
        Limiter::new(&array),
        Limiter::new(&array[..]),
        Limiter::new(&list),
        Limiter::new(std::iter::once(rule.clone()).collect::<Policy>()),
        LimiterBuilder::default().policy(&rule).build(),
        Limiter::new(rule),
    ];
    for limiter in made {
        assert_eq!(*limiter.unwrap().policy(), policy);
    }
}

/// No rule at all is no limit, and has to be said otherwise.
#[test]
fn a_policy_of_no_rules_is_refused() {
    let empty = Policy::from_iter([]);
    let says = "a policy has at least one rule";
    assert_eq!(empty.validate().unwrap_err().to_string(), says);
    assert_eq!(Gate::new(&empty).unwrap_err().to_string(), says);
    assert_eq!(Limiter::new(vec![]).unwrap_err().to_string(), says);
    assert_eq!(Limiter::new::<[Rule; 0]>([]).unwrap_err().to_string(), says);
    let limiter = Limiter::new("1/s").unwrap();
    assert_eq!(limiter.set_policy(&empty).unwrap_err().to_string(), says);
    let mut policy = empty;
    policy.extend([Rule::per_second(2), Rule::per_hour(5)]);
    assert_eq!(policy, "2/s; 5/h".parse().unwrap());
}

/// What is built in code and accepted is the same when it is written down and read again.
#[test]
fn a_rule_written_down_is_the_same_rule() {
    let counts = select(vec![1, 2, 100, 1_024, 1_000_000, u64::MAX]);
    let periods = select(vec![0, 1, 999, 1_000, 1_500_000, SECOND_NS, 90 * SECOND_NS, 86_400 * SECOND_NS]);
    let algorithms = select(vec![
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::InFlight,
    ]);
    let names = select(vec![None, Some("api"), Some("burst"), Some("5/s")]);
    let bursts = select(vec![None, Some(1), Some(100)]);
    let mut runner =
        TestRunner::new_with_rng(Config::with_cases(4_000), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let accepted = std::cell::Cell::new(0);
    let drawn = (counts, periods, algorithms, names, bursts, any::<bool>());
    runner
        .run(&drawn, |(count, period_ns, algorithm, name, burst, is_shadow)| {
            let mut rule = Rule::new(count, Duration::from_nanos(period_ns)).by(algorithm);
            rule = burst.into_iter().fold(rule, Rule::burst);
            rule = name.into_iter().fold(rule, Rule::named);
            if is_shadow {
                rule = rule.shadow();
            }
            let policy = Policy::from(&rule).and(Rule::per_hour(7));
            if policy.validate().is_ok() {
                prop_assert_eq!(&rule.to_string().parse::<Rule>().unwrap(), &rule);
                prop_assert_eq!(&policy.to_string().parse::<Policy>().unwrap(), &policy);
                accepted.set(accepted.get() + 1);
            }
            Ok(())
        })
        .unwrap();
    assert!(accepted.get() > 500, "{} rules were accepted", accepted.get());
}

#[test]
fn what_a_key_is() {
    let limiter = Limiter::new("1/h").unwrap();
    assert!(limiter.try_acquire("alice").is_allowed());
    assert!(limiter.try_acquire(&String::from("alice")).is_denied());
    assert!(limiter.try_acquire(&"alice").is_denied());
    assert!(limiter.try_acquire(&("alice", 1)).is_allowed());
}

/// What one would type before having read anything.
#[test]
fn mistakes_are_answered_with_what_to_do() {
    let cases: &[(&str, &[&str])] = &[
        ("", &["column 1"]),
        ("100", &["column 4", "/"]),
        ("100/", &["column 5", "unit"]),
        ("/min", &["column 1", "100/min"]),
        ("100/mins/ip", &["column 9"]),
        ("100rps", &["column 4"]),
        ("1.5/s", &["column 2"]),
        ("-5/s", &["column 1"]),
        ("0/s", &["0"]),
        ("10/0s", &["0"]),
        ("10/s burst 0", &["burst"]),
        ("fixed 10/s burst 5", &["burst", "fixed window"]),
        ("leaky 10/s", &["column 1", "leaky"]),
        ("10/s,20/min", &["column 5"]),
        ("10/s;", &["column"]),
        ("10/s burst", &["column 11"]),
        ("99999999999999999999/s", &["column 1"]),
    ];
    for (text, says) in cases {
        let message = text.parse::<Policy>().unwrap_err().to_string();
        for part in *says {
            assert!(message.contains(part), "{text:?}: {message:?} does not say {part:?}");
        }
    }
    let says = |result: Result<Limiter, Error>| result.unwrap_err().to_string();
    assert_eq!(says(Limiter::builder().build()), "a limiter needs a policy, such as `.policy(\"100/min\")`");
    assert!(says(Limiter::builder().policy("1/s").max_keys(0).build()).contains("max_keys"));
    assert!(says(Limiter::builder().policy("1/s").max_keys(usize::MAX).build()).contains("max_keys"));
    let tier = Limiter::builder().policy("1/s").tier("gold", "1/fortnight").build();
    assert!(says(tier).starts_with("tier `gold`: column 3"));
}

#[test]
fn a_refusal_says_who_when_and_what_left() {
    let (clock, _hand) = Clock::manual();
    let gate = Gate::with_clock("1/s named api", clock).unwrap();
    assert!(gate.try_acquire().is_allowed());
    let denied = gate.try_acquire().into_result().unwrap_err();
    assert_eq!(denied.to_string(), "rate limit reached by rule `api`: retry after 1s");
    assert!(denied.source().is_none());
    assert_eq!(denied.retry_after(), denied.decision().retry_after());
}

/// Two buckets of eight, full of keys that owe for an hour or less.
fn full() -> (Limiter, ManualHand) {
    let (clock, hand) = Clock::manual();
    let builder = Limiter::builder().policy("1/h").max_keys(1).when_full(WhenFull::Deny);
    let limiter = builder.clock(clock).seeds([1, 2, 3, 4]).build().unwrap();
    let passed = (0..1_000).filter(|key| limiter.try_acquire(key).is_allowed()).count();
    assert_eq!(passed, limiter.stats().slots);
    (limiter, hand)
}

#[test]
fn a_look_knows_when_there_is_no_room() {
    let (limiter, hand) = full();
    let counted = limiter.stats().denied_for_room;
    let look = limiter.peek("newcomer");
    assert_eq!((look.outcome(), look.cause()), (Outcome::Denied, Cause::NoRoom));
    assert_eq!(limiter.stats().denied_for_room, counted, "a look is not counted");
    assert_eq!(limiter.key("newcomer").peek().cause(), Cause::NoRoom);
    let refused = limiter.try_acquire("newcomer");
    assert_eq!(refused.cause(), Cause::NoRoom);
    assert_eq!((look.retry_after(), look.remaining()), (refused.retry_after(), refused.remaining()));
    // Nothing is not refused, and keys that are there are asked what they have.
    assert!(limiter.peek_n("newcomer", 0).is_allowed());
    assert_eq!(limiter.peek(&0).cause(), Cause::Rule);
    hand.advance(HOUR - Duration::from_nanos(1));
    assert!(limiter.peek("newcomer").is_denied());
    hand.advance(Duration::from_nanos(1));
    assert!(limiter.peek("newcomer").is_allowed());
    assert!(limiter.try_acquire("newcomer").is_allowed());
}

#[test]
fn a_look_knows_when_the_limiter_is_closed() {
    let limiter = Limiter::new("1/h").unwrap();
    assert!(limiter.peek("key").is_allowed());
    let _bytes = limiter.close();
    let look = limiter.peek("key");
    assert_eq!((look.outcome(), look.cause(), look.retry_after()), (Outcome::Denied, Cause::Closed, None));
    assert_eq!(look.cause(), limiter.try_acquire("key").cause());
}

#[test]
fn a_look_where_room_is_made_or_not_needed() {
    for when_full in [WhenFull::Evict, WhenFull::Allow] {
        let limiter = Limiter::builder().policy("1/h").max_keys(1).when_full(when_full).build().unwrap();
        for key in 0..1_000 {
            assert!(limiter.peek(&key).is_allowed(), "{when_full:?}");
            assert!(limiter.try_acquire(&key).is_allowed(), "{when_full:?}");
        }
    }
}

#[test]
fn a_handle_looks_at_costs_too() {
    let limiter = Limiter::new("3/h").unwrap();
    let key = limiter.key("key");
    assert!(key.peek_n(3).is_allowed());
    assert!(key.try_acquire().is_allowed());
    assert!(key.peek_n(3).is_denied());
    assert_eq!(key.peek_n(4).outcome(), Outcome::NeverFits);
}
