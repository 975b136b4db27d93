//! The rules as a person would check them by hand: keep every admission in a list, and count.
//!
//! Nothing here is shared with the engine: no words, no intervals, no formula for a wait. A wait, a
//! remainder or a reset that the engine names is checked by asking whether the request fits at that moment
//! and does not a nanosecond (or a unit of cost) beside it. All arithmetic is in `u128`; times and counts
//! of the traces leave room for the products.

#![allow(dead_code, reason = "every test and fuzz target uses its own part")]

pub(crate) mod harness;
pub(crate) mod keyed;

use tollgate::{Algorithm, Decision, Outcome, Policy, Rule};

/// The law lets the rate of a token bucket lie a little below the configured one, never above.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rate {
    /// The configured rate: nothing that this refuses may be admitted.
    Exact,
    /// The slowest lawful rate: everything that this admits must be admitted.
    Slowest,
}

/// A policy, its clock, and all that was spent under it.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    rules: Vec<Rule>,
    /// When and how much, oldest first.
    spent: Vec<(u128, u128)>,
    hand_ns: u128,
    now_ns: u128,
}

impl Oracle {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self { rules: policy.rules().to_vec(), spent: Vec::new(), hand_ns: 0, now_ns: 0 }
    }

    /// The time that counts: the furthest the clock has been.
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.now_ns).unwrap_or(u64::MAX)
    }

    /// Where the clock's hand stands, which a step back puts before [`now_ns`](Self::now_ns).
    pub(crate) fn hand_ns(&self) -> u64 {
        u64::try_from(self.hand_ns).unwrap_or(u64::MAX)
    }

    pub(crate) fn set_clock(&mut self, time_ns: u64) {
        self.hand_ns = u128::from(time_ns);
        self.now_ns = self.now_ns.max(self.hand_ns);
    }

    /// What was admitted and not given back: times and costs, oldest first.
    pub(crate) fn spent(&self) -> &[(u128, u128)] {
        &self.spent
    }

    pub(crate) fn refund(&mut self, cost: u64) {
        let mut left = u128::from(cost);
        while let Some((_, newest)) = self.spent.last_mut() {
            let back = left.min(*newest);
            *newest -= back;
            left -= back;
            if *newest > 0 {
                break;
            }
            self.spent.pop();
        }
    }

    pub(crate) fn reset(&mut self) {
        self.spent.clear();
    }

    /// Whether a lawful limiter may hold the state at a time from now on to be worth a fresh one.
    pub(crate) fn may_be_fresh(&self, at_ns: u64) -> bool {
        self.rules.iter().all(|rule| self.may(rule, at_ns.into(), rule.limit()))
    }

    /// Whether every lawful limiter holds it to be so.
    pub(crate) fn must_be_fresh(&self, at_ns: u64) -> bool {
        self.rules.iter().all(|rule| self.must(rule, at_ns.into(), rule.limit()))
    }

    /// Checks a decision of `try_acquire_n(cost)`, and spends what it admitted.
    pub(crate) fn check_acquire(&mut self, decision: &Decision, cost: u64) -> Result<(), String> {
        self.check_outcome(decision, cost)?;
        if decision.is_allowed() && cost > 0 {
            self.spent.push((self.now_ns, u128::from(cost)));
        }
        self.check_numbers(decision, cost)
    }

    /// Checks a decision of `peek_n(cost)`, which spends nothing.
    pub(crate) fn check_peek(&self, decision: &Decision, cost: u64) -> Result<(), String> {
        self.check_outcome(decision, cost)?;
        self.check_numbers(decision, cost)
    }

    fn check_outcome(&self, decision: &Decision, cost: u64) -> Result<(), String> {
        let never = self.rules.iter().position(|rule| rule.limit() < cost);
        let lawful = match (decision.outcome(), never) {
            (Outcome::NeverFits, Some(index)) => decision.rule() == index,
            (Outcome::Allowed, None) => self.rules.iter().all(|rule| self.may(rule, self.now_ns, cost)),
            (Outcome::Denied, None) => !self.must(self.rule(decision)?, self.now_ns, cost),
            _ => false,
        };
        expect(lawful, || format!("{decision:?} is not the outcome for cost {cost}"))
    }

    fn check_numbers(&self, decision: &Decision, cost: u64) -> Result<(), String> {
        let rule = self.rule(decision)?;
        let limit = rule.limit();
        expect(decision.limit() == limit && decision.cost() == cost, || {
            format!("{decision:?}: limit or cost is not the one asked about")
        })?;
        expect(decision.rule_name() == rule.name(), || format!("{decision:?}: not the name of its rule"))?;

        let remaining = decision.remaining();
        let exact = remaining <= limit
            && self.may(rule, self.now_ns, remaining)
            && (remaining == limit || !self.must(rule, self.now_ns, remaining + 1));
        expect(exact, || format!("{decision:?}: remaining"))?;
        if decision.is_allowed() {
            let least = self.rules.iter().all(|other| self.may(other, self.now_ns, remaining));
            expect(least, || format!("{decision:?}: another rule has less remaining"))?;
        }

        let reset_ns = decision.reset_after().as_nanos();
        let exact = self.may(rule, self.now_ns + reset_ns, limit)
            && (reset_ns == 0 || !self.must(rule, self.now_ns + reset_ns - 1, limit));
        expect(exact, || format!("{decision:?}: reset_after"))?;

        match (decision.outcome(), decision.retry_after()) {
            (Outcome::Denied, Some(wait)) => self.check_wait(decision, wait.as_nanos(), cost),
            (Outcome::Denied, None) | (_, Some(_)) => Err(format!("{decision:?}: retry_after")),
            _ => Ok(()),
        }
    }

    /// The wait is the shortest that suits all rules, and the first rule to need it is the one named.
    fn check_wait(&self, decision: &Decision, wait_ns: u128, cost: u64) -> Result<(), String> {
        let then_ns = self.now_ns + wait_ns;
        let enough = self.rules.iter().all(|rule| self.may(rule, then_ns, cost));
        expect(enough, || format!("{decision:?}: retry_after is too short"))?;
        let tight = wait_ns > 0 && !self.must(self.rule(decision)?, then_ns - 1, cost);
        expect(tight, || format!("{decision:?}: retry_after is too long"))?;
        let first = self.rules[..decision.rule()].iter().all(|rule| self.may(rule, then_ns - 1, cost));
        expect(first, || format!("{decision:?}: an earlier rule needs the wait as well"))
    }

    fn rule(&self, decision: &Decision) -> Result<&Rule, String> {
        self.rules.get(decision.rule()).ok_or_else(|| format!("{decision:?}: no such rule"))
    }

    /// Whether a lawful limiter may admit `cost` at a time from now on.
    fn may(&self, rule: &Rule, at_ns: u128, cost: u64) -> bool {
        self.fits(rule, at_ns, cost, Rate::Exact)
    }

    /// Whether every lawful limiter admits it. The same as [`may`](Self::may) but for token buckets whose
    /// interval is no whole number of nanoseconds.
    fn must(&self, rule: &Rule, at_ns: u128, cost: u64) -> bool {
        self.fits(rule, at_ns, cost, Rate::Slowest)
    }

    fn fits(&self, rule: &Rule, at_ns: u128, cost: u64, rate: Rate) -> bool {
        if cost == 0 {
            return true;
        }
        let (limit, cost, period_ns) = (u128::from(rule.limit()), u128::from(cost), rule.period().as_nanos());
        let spent_when = |counts: &dyn Fn(u128) -> bool| -> u128 {
            self.spent.iter().filter(|(time_ns, _)| counts(*time_ns)).map(|(_, cost)| cost).sum()
        };
        let window = at_ns / period_ns;
        match rule.algorithm() {
            Algorithm::TokenBucket => {
                let (token, per_ns) = token_parts(rule, rate);
                self.debt_parts(at_ns, token, per_ns) + cost * token <= limit * token
            }
            Algorithm::FixedWindow => spent_when(&|time_ns| time_ns / period_ns == window) + cost <= limit,
            Algorithm::SlidingWindow => {
                let present = spent_when(&|time_ns| time_ns / period_ns == window);
                let previous = spent_when(&|time_ns| time_ns / period_ns + 1 == window);
                let in_view_ns = period_ns - at_ns % period_ns;
                previous * in_view_ns + (present + cost) * period_ns <= limit * period_ns
            }
            Algorithm::SlidingLog => spent_when(&|time_ns| time_ns + period_ns > at_ns) + cost <= limit,
            other => panic!("{other:?} has no oracle"),
        }
    }

    /// What is spent of a bucket and has not come back, where a token has `token` parts and `per_ns` of
    /// them come back a nanosecond.
    fn debt_parts(&self, at_ns: u128, token: u128, per_ns: u128) -> u128 {
        let (mut debt, mut last_ns) = (0u128, 0u128);
        for (time_ns, cost) in &self.spent {
            debt = debt.saturating_sub((time_ns - last_ns).saturating_mul(per_ns)) + cost * token;
            last_ns = *time_ns;
        }
        debt.saturating_sub((at_ns - last_ns).saturating_mul(per_ns))
    }
}

/// A token of `count` a `period` as whole parts, and how many parts come back a nanosecond.
fn token_parts(rule: &Rule, rate: Rate) -> (u128, u128) {
    let (period_ns, count) = (rule.period().as_nanos(), u128::from(rule.count()));
    if rate == Rate::Exact || period_ns % count == 0 {
        return (period_ns, count);
    }
    // 10 ppm below up to 10 million a second, 0.1 % above.
    let one_in = if count * 100 <= period_ns { 100_000 } else { 1_000 };
    (period_ns * (one_in + 1), count * one_in)
}

pub(crate) fn expect(holds: bool, complaint: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(complaint()) }
}
