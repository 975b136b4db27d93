//! Decisions without the server: each rule says what is to become of it then.

use super::error::RedisError;
use crate::algorithm::{Summary, View};
use crate::compile::Compiled;
use crate::decision::{Cause, Decision, Outcome};
use crate::limiter::Limiter;
use crate::policy::{Algorithm, Policy, Rule};
use std::time::Duration;

/// What a rule does while the server cannot be asked.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use tollgate::redis::{OnFailure, RedisLimiter};
///
/// // Nobody listens there.
/// let limiter = |choice| {
///     RedisLimiter::builder("redis://127.0.0.1:1/").policy("1/h").on_failure(choice).build()
/// };
/// let (open, closed) = (limiter(OnFailure::Open).await?, limiter(OnFailure::Closed).await?);
/// assert!(open.try_acquire_n("key", 1_000).await.is_allowed());
/// assert!(closed.try_acquire("key").await.is_denied());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFailure {
    /// Each process enforces its share by itself: the rate and the burst, divided by the number of
    /// [nodes](super::RedisLimiterBuilder::nodes). **That has to be said:** as long as it is not, each process takes
    /// itself for the only one and admits the whole limit. What the server has granted before is
    /// [not known](super#when-the-server-is-away) to the shares.
    #[default]
    LocalShare,
    /// The rule admits everything.
    Open,
    /// The rule refuses everything.
    Closed,
}

#[derive(Debug)]
pub(super) struct Fallback {
    /// The first rule that refuses everything.
    closed: Option<usize>,
    /// The shares of those that have one, and which rules of the policy they are.
    local: Option<(Limiter, Vec<usize>)>,
    /// The limit of each rule, and its name.
    rules: Vec<(u64, Option<&'static str>)>,
    /// Where several rules differ, the strictest holds for what is no rule's.
    once: OnFailure,
}

impl Fallback {
    pub(super) fn new(
        policy: &Policy,
        compiled: &Compiled,
        choices: &[OnFailure],
        nodes: u64,
        max_keys: usize,
    ) -> Result<Self, RedisError> {
        let numbered = || policy.rules().iter().enumerate().zip(choices);
        let closed = numbered()
            .find(|((_, rule), choice)| **choice == OnFailure::Closed && !rule.is_shadow())
            .map(|((index, _), _)| index);
        let mut shares: Option<Policy> = None;
        let mut shared = Vec::new();
        for ((index, rule), _) in numbered().filter(|(_, choice)| **choice == OnFailure::LocalShare) {
            let share = countable_share(rule, nodes);
            shares = Some(match shares {
                Some(shares) => shares.and(share),
                None => share.into(),
            });
            shared.push(index);
        }
        let local = match shares {
            Some(policy) => Some((Limiter::builder().policy(policy).max_keys(max_keys).build()?, shared)),
            None => None,
        };
        let once = match (closed, &local) {
            (Some(_), _) => OnFailure::Closed,
            (None, Some(_)) => OnFailure::LocalShare,
            (None, None) => OnFailure::Open,
        };
        let rules = compiled.rules.iter().map(|rule| (rule.plan.limit(), rule.name)).collect();
        Ok(Self { closed, local, rules, once })
    }

    pub(super) fn acquire(&self, subject: &str, cost: u64) -> Decision {
        self.decide(cost, |limiter| limiter.try_acquire_n(subject, cost))
    }

    pub(super) fn peek(&self, subject: &str, cost: u64) -> Decision {
        self.decide(cost, |limiter| limiter.peek_n(subject, cost))
    }

    pub(super) fn once(&self, id: &str, window: Duration) -> Decision {
        match (self.once, &self.local) {
            (OnFailure::LocalShare, Some((limiter, _))) => limiter.once(id, window),
            (OnFailure::Closed, _) => self.unavailable(Outcome::Denied, self.closed.unwrap_or(0), 1),
            _ => self.unavailable(Outcome::Allowed, 0, 1),
        }
    }

    fn decide(&self, cost: u64, ask: impl FnOnce(&Limiter) -> Decision) -> Decision {
        if let Some(closed) = self.closed {
            // Nothing is nothing, whoever is asked.
            let outcome = if cost == 0 { Outcome::Allowed } else { Outcome::Denied };
            return self.unavailable(outcome, closed, cost);
        }
        match &self.local {
            Some((limiter, indices)) => {
                let decision = ask(limiter).of_rules(indices);
                let rule = decision.rule();
                let fits_the_whole = self.rules.get(rule).is_some_and(|&(limit, _)| cost <= limit);
                if decision.outcome() == Outcome::NeverFits && fits_the_whole {
                    // Too much for a share only: the server may well admit it, once it is back.
                    return self.unavailable(Outcome::Denied, rule, cost);
                }
                decision
            }
            None => self.unavailable(Outcome::Allowed, 0, cost),
        }
    }

    /// What is said for want of anything to go by.
    fn unavailable(&self, outcome: Outcome, rule: usize, cost: u64) -> Decision {
        let (limit, name) = self.rules.get(rule).copied().unwrap_or((0, None));
        let allowed = outcome == Outcome::Allowed;
        let remaining = if allowed { limit } else { 0 };
        let wait_ns = if allowed { 0 } else { u64::MAX };
        let summary = Summary { limit, remaining, wait_ns, reset_ns: 0 };
        Decision::new(outcome, rule, name, View::Summary(summary), 0, cost).because(Cause::Unavailable)
    }
}

/// The share of a rule, or of a share that is too slow for the engine to count, that of fewer nodes.
fn countable_share(rule: &Rule, nodes: u64) -> Rule {
    let mut nodes = nodes;
    loop {
        let share = share(rule, nodes);
        if nodes <= 1 || Policy::from(share.clone()).compile().is_ok() {
            return share;
        }
        nodes /= 2;
    }
}

/// What one of so many nodes may admit of a rule: together never more than its rate or count. A burst of fewer than
/// there are nodes is still one for each.
fn share(rule: &Rule, nodes: u64) -> Rule {
    let times = u32::try_from(nodes).unwrap_or(u32::MAX).max(1);
    let nodes = u64::from(times);
    let mut share = match rule.algorithm() {
        // The rate by its period, which divides without a remainder.
        Algorithm::TokenBucket => {
            Rule::new(rule.count(), rule.period().saturating_mul(times)).burst((rule.limit() / nodes).max(1))
        }
        algorithm if rule.count() >= nodes => Rule::new(rule.count() / nodes, rule.period()).by(algorithm),
        // Fewer than there are nodes: one each, in so many periods.
        algorithm => {
            let periods = u32::try_from(nodes.div_ceil(rule.count().max(1))).unwrap_or(u32::MAX);
            Rule::new(1, rule.period().saturating_mul(periods)).by(algorithm)
        }
    };
    if let Some(name) = rule.name() {
        share = share.named(name);
    }
    if rule.is_shadow() { share.shadow() } else { share }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_rule_add_up_to_no_more() {
        for (rule, nodes, expected) in [
            ("100/s burst 20 named a", 4, "100/4s burst 5 named a"),
            ("3/s", 4, "3/4s burst 1"),
            ("fixed 10/min", 4, "fixed 2/min"),
            ("sliding 2/min", 5, "sliding 1/3min"),
            ("shadow log 5/h", 1, "shadow log 5/h"),
        ] {
            let rule: Rule = rule.parse().expect("a rule");
            assert_eq!(share(&rule, nodes).to_string(), expected, "{rule} of {nodes}");
        }
    }

    #[test]
    fn a_share_that_is_too_slow_to_count_is_that_of_fewer() {
        for (rule, nodes, expected) in [
            ("1/30d", 16, "1/120d burst 1"),
            ("fixed 1/30d", 16, "fixed 1/480d"),
            ("1/30d", 3, "1/90d burst 1"),
        ] {
            let rule: Rule = rule.parse().expect("a rule");
            assert_eq!(countable_share(&rule, nodes).to_string(), expected, "{rule} of {nodes}");
        }
    }

    #[test]
    fn what_is_too_much_for_a_share_only_may_fit_later() {
        let policy: Policy = "10/h named a".parse().expect("a policy");
        let compiled = policy.compile().expect("compiles");
        let shared = Fallback::new(&policy, &compiled, &[OnFailure::LocalShare], 2, 100).expect("accepted");
        for refused in [shared.acquire("key", 6), shared.peek("key", 10)] {
            assert_eq!((refused.outcome(), refused.cause()), (Outcome::Denied, Cause::Unavailable));
            assert_eq!((refused.limit(), refused.rule_name()), (10, Some("a")));
        }
        assert_eq!(shared.acquire("key", 11).outcome(), Outcome::NeverFits);
        assert!(shared.acquire("key", 5).is_allowed());
        let closed = Fallback::new(&policy, &compiled, &[OnFailure::Closed], 2, 100).expect("accepted");
        assert!(closed.acquire("key", 0).is_allowed(), "nothing is nothing");
        assert!(shared.acquire("key", 0).is_allowed());
    }

    #[test]
    fn each_rule_goes_by_its_own_choice() {
        let policy: Policy = "2/h named a; 1/h named b".parse().expect("a policy");
        let compiled = policy.compile().expect("compiles");
        let fallback =
            |choices: [OnFailure; 2]| Fallback::new(&policy, &compiled, &choices, 1, 100).expect("accepted");
        let local = fallback([OnFailure::Open, OnFailure::LocalShare]);
        assert!(local.acquire("key", 1).is_allowed());
        let refused = local.acquire("key", 1);
        assert_eq!((refused.rule(), refused.rule_name(), refused.cause()), (1, Some("b"), Cause::Rule));

        let watched = Policy::from(Rule::per_hour(9)).and(Rule::per_hour(1).shadow());
        let compiled_watched = watched.compile().expect("compiles");
        let choices = [OnFailure::Open, OnFailure::LocalShare];
        let shadow = Fallback::new(&watched, &compiled_watched, &choices, 1, 100).expect("accepted");
        assert_eq!(shadow.acquire("key", 1).would_deny(), None);
        assert_eq!(shadow.acquire("key", 1).would_deny(), Some(1), "by its number among all rules");

        let open = fallback([OnFailure::Open, OnFailure::Open]);
        assert!((0..100).all(|_| open.acquire("key", 1).is_allowed()));
        assert_eq!(open.acquire("key", 1).cause(), Cause::Unavailable);
        assert!(open.once("id", Duration::from_secs(1)).is_allowed());

        let closed = fallback([OnFailure::LocalShare, OnFailure::Closed]);
        let refused = closed.acquire("key", 1);
        assert_eq!((refused.is_denied(), refused.rule(), refused.retry_after()), (true, 1, None));
        assert!(closed.once("id", Duration::from_secs(1)).is_denied());
    }
}
