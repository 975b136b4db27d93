//! The check: every decision judged again by an independent count.
//!
//! Nothing here comes from the engine. What each rule has admitted is counted in exact integers, as its definition
//! says, and every answer is held against the counts. The counts themselves are held against the bare list of
//! admissions in the tests below.

use crate::contender::Witness;
use crate::input::Touch;
use crate::ledger::ByHash;
use std::collections::VecDeque;
use std::time::Duration;
use tollgate::{Algorithm, Decision, Policy, Rule};

/// What was judged, and what was found wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Findings {
    pub(crate) admissions: u64,
    pub(crate) refusals: u64,
    /// Admissions that pass a rule's bound.
    pub(crate) over_bound: u64,
    /// Refusals by a rule that had room.
    pub(crate) undue: u64,
    /// Refusals whose `retry_after` is too early, or later than it need be by a nanosecond or more.
    pub(crate) not_tight: u64,
}

impl Findings {
    pub(crate) fn all_well(&self) -> bool {
        self.over_bound + self.undue + self.not_tight == 0
    }
}

/// What the engine said to one request under one policy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verdict {
    Admitted,
    Refused { rule: usize, retry_after: Option<Duration> },
}

/// The counts of all keys under all policies, and what they have shown.
#[derive(Debug)]
pub(crate) struct Check {
    policies: Vec<Policy>,
    keys: Vec<ByHash<Vec<Count>>>,
    pub(crate) findings: Findings,
}

impl Check {
    pub(crate) fn new(policies: Vec<Policy>) -> Self {
        let keys = policies.iter().map(|_| ByHash::default()).collect();
        Self { policies, keys, findings: Findings::default() }
    }

    /// Judges one answer. What is admitted is counted only if it was charged too.
    fn judge(&mut self, policy: usize, key: u64, at_ns: u64, verdict: Verdict, is_charged: bool) {
        let rules = self.policies[policy].rules();
        let counts = self.keys[policy]
            .entry(key)
            .or_insert_with(|| rules.iter().map(|rule| Count::new(rule.algorithm())).collect());
        let fits = |at_ns| rules.iter().zip(&*counts).all(|(rule, count)| count.fits(rule, at_ns));
        match verdict {
            Verdict::Admitted => {
                self.findings.admissions += u64::from(is_charged);
                self.findings.over_bound += u64::from(!fits(at_ns));
                if is_charged {
                    rules.iter().zip(counts).for_each(|(rule, count)| count.add(rule, at_ns));
                }
            }
            Verdict::Refused { rule, retry_after } => {
                self.findings.refusals += 1;
                self.findings.undue += u64::from(counts[rule].fits(&rules[rule], at_ns));
                // Waiting exactly so long helps, and a nanosecond less does not.
                let wait_ns = retry_after.and_then(|wait| u64::try_from(wait.as_nanos()).ok()).unwrap_or(0);
                let is_tight = wait_ns > 0 && fits(at_ns + wait_ns) && !fits(at_ns + wait_ns - 1);
                self.findings.not_tight += u64::from(!is_tight);
            }
        }
    }
}

impl Witness for Check {
    fn saw(&mut self, at_ns: u64, touch: &Touch, decision: &Decision, is_charged: bool) {
        let verdict = match decision.is_allowed() {
            true => Verdict::Admitted,
            false => Verdict::Refused { rule: decision.rule(), retry_after: decision.retry_after() },
        };
        self.judge(usize::from(touch.scope), touch.hash, at_ns, verdict, is_charged);
    }
}

/// What one key has been admitted under one rule. Requests cost one each.
#[derive(Debug)]
enum Count {
    /// How much of the bucket is missing, in tokens times the period's nanoseconds, and when that was.
    Bucket { missing: u128, at_ns: u64 },
    /// The number of the window, and what was admitted in it and in the one before.
    Windows { number: u64, before: u64, now: u64 },
    /// When each was admitted that is still in the window.
    Times(VecDeque<u64>),
    /// The library may learn another; a bound that is not written down here is not said to hold.
    Unknown,
}

impl Count {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::TokenBucket => Self::Bucket { missing: 0, at_ns: 0 },
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                Self::Windows { number: 0, before: 0, now: 0 }
            }
            Algorithm::SlidingLog => Self::Times(VecDeque::new()),
            _ => Self::Unknown,
        }
    }

    /// Whether one more at `at_ns` stays within the rule's bound.
    ///
    /// The rate of a token bucket is taken as exact, which the engine's is where a token takes a whole number of
    /// nanoseconds to come back.
    fn fits(&self, rule: &Rule, at_ns: u64) -> bool {
        let period_ns = period_ns(rule);
        match self {
            Self::Bucket { missing, at_ns: since_ns } => {
                let back = u128::from(rule.count()) * u128::from(at_ns - since_ns);
                let missing = missing.saturating_sub(back);
                missing + u128::from(period_ns) <= u128::from(rule.limit()) * u128::from(period_ns)
            }
            Self::Windows { .. } => {
                let (before, now) = self.windows(at_ns / period_ns);
                let left_ns = period_ns - at_ns % period_ns;
                let in_view = match rule.algorithm() {
                    Algorithm::SlidingWindow => u128::from(before) * u128::from(left_ns),
                    _ => 0,
                };
                in_view + u128::from(now + 1) * u128::from(period_ns)
                    <= u128::from(rule.limit()) * u128::from(period_ns)
            }
            // What was admitted exactly a period ago has left the window.
            Self::Times(times) => {
                let in_view = times.iter().rev().take_while(|&&time| time + period_ns > at_ns).count();
                (in_view as u64) < rule.limit()
            }
            Self::Unknown => false,
        }
    }

    fn add(&mut self, rule: &Rule, at_ns: u64) {
        let period_ns = period_ns(rule);
        let windows = self.windows(at_ns / period_ns);
        match self {
            Self::Bucket { missing, at_ns: since_ns } => {
                let back = u128::from(rule.count()) * u128::from(at_ns - *since_ns);
                *missing = missing.saturating_sub(back) + u128::from(period_ns);
                *since_ns = at_ns;
            }
            Self::Windows { number, before, now } => {
                *number = at_ns / period_ns;
                (*before, *now) = (windows.0, windows.1 + 1);
            }
            Self::Times(times) => {
                while times.front().is_some_and(|time| time + period_ns <= at_ns) {
                    times.pop_front();
                }
                times.push_back(at_ns);
            }
            Self::Unknown => {}
        }
    }

    /// What was admitted in the window before the one with this number, and in this one.
    fn windows(&self, at_number: u64) -> (u64, u64) {
        match *self {
            Self::Windows { number, before, now } if number == at_number => (before, now),
            Self::Windows { number, now, .. } if number + 1 == at_number => (now, 0),
            _ => (0, 0),
        }
    }
}

fn period_ns(rule: &Rule) -> u64 {
    u64::try_from(rule.period().as_nanos()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// A rule's bound from the bare list of admissions, as its definition says.
    fn fits_by_brute_force(rule: &Rule, past: &[u64], at_ns: u64) -> bool {
        let (count, period_ns, limit) = (rule.count(), period_ns(rule), rule.limit());
        let within =
            |from_ns: u64| past.iter().filter(|&&time| time >= from_ns && time <= at_ns).count() as u64;
        let window_ns = at_ns - at_ns % period_ns;
        match rule.algorithm() {
            // Every span that ends here: admitted ≤ burst + rate · length.
            Algorithm::TokenBucket => (0..=past.len()).all(|from| {
                let length_ns = past.get(from).map_or(0, |first| at_ns - first);
                let admitted = (past.len() - from + 1) as u64;
                u128::from(admitted) * u128::from(period_ns)
                    <= u128::from(limit) * u128::from(period_ns) + u128::from(count) * u128::from(length_ns)
            }),
            Algorithm::FixedWindow => within(window_ns) < limit,
            Algorithm::SlidingWindow => {
                let before = within(window_ns.saturating_sub(period_ns)) - within(window_ns);
                let left_ns = period_ns - (at_ns - window_ns);
                before * left_ns + (within(window_ns) + 1) * period_ns <= limit * period_ns
            }
            _ => within((at_ns + 1).saturating_sub(period_ns)) < limit,
        }
    }

    #[test]
    fn counts_agree_with_the_list_of_admissions() {
        for text in ["3/s burst 5", "fixed 4/s", "sliding 6/s", "log 3/s", "2/s"] {
            let rule: Rule = text.parse().expect(text);
            let mut count = Count::new(rule.algorithm());
            let (mut past, mut at_ns, mut admitted) = (Vec::new(), 0_u64, 0);
            for step in 0..4_000_u64 {
                // Gaps of all sizes, edges of windows among them.
                at_ns += [0, 1, S / 3, S / 7, S - at_ns % S, 40_000_000, 250_000_000, 5 * S]
                    [(step * step % 61 % 8) as usize];
                let fits = fits_by_brute_force(&rule, &past, at_ns);
                assert_eq!(count.fits(&rule, at_ns), fits, "{text} at {at_ns}");
                if fits {
                    count.add(&rule, at_ns);
                    past.push(at_ns);
                    admitted += 1;
                }
            }
            assert!((100..3_900).contains(&admitted), "{text}: {admitted}");
        }
    }

    fn judged(policy: &str, answers: &[(u64, Verdict)]) -> Findings {
        let mut check = Check::new(vec![policy.parse().expect(policy)]);
        for &(at_ns, verdict) in answers {
            check.judge(0, 7, at_ns, verdict, true);
        }
        check.findings
    }

    fn refused(wait_ns: u64) -> Verdict {
        Verdict::Refused { rule: 0, retry_after: Some(Duration::from_nanos(wait_ns)) }
    }

    #[test]
    fn right_answers_pass() {
        let findings = judged("1/s", &[(0, Verdict::Admitted), (7, refused(S - 7)), (S, Verdict::Admitted)]);
        assert!(findings.all_well(), "{findings:?}");
        assert_eq!((findings.admissions, findings.refusals), (2, 1));
    }

    #[test]
    fn each_kind_of_wrong_answer_is_noticed() {
        let over = judged("1/s", &[(0, Verdict::Admitted), (S - 1, Verdict::Admitted)]);
        assert_eq!((over.over_bound, over.undue, over.not_tight), (1, 0, 0));

        let undue = judged("1/s", &[(0, Verdict::Admitted), (S, refused(1))]);
        assert_eq!((undue.over_bound, undue.undue), (0, 1));

        for wait_ns in [0, S - 8, S - 6] {
            let loose = judged("1/s", &[(0, Verdict::Admitted), (7, refused(wait_ns))]);
            assert_eq!((loose.undue, loose.not_tight), (0, 1), "{wait_ns}");
        }
    }
}
