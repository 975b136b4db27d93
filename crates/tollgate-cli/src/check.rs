//! The brute-force check: every decision judged again from the bare list of earlier admissions.
//!
//! Nothing here comes from the engine. A rule's bound is written down as its definition says, and
//! recomputed from the whole past at every request.

use std::time::Duration;
use tollgate::{Algorithm, Policy, Rule};

/// What the engine said to one request of one client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) at_ns: u64,
    pub(crate) cost: u64,
    pub(crate) verdict: Verdict,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Verdict {
    Admitted,
    Refused { rule: usize, retry_after: Option<Duration> },
}

/// What was judged, and what was found wrong.
#[derive(Debug, Default)]
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

    /// Judges all answers that one client got, in order of time.
    pub(crate) fn judge(&mut self, policy: &Policy, answers: &[Answer]) {
        let mut past = Vec::new();
        for &Answer { at_ns, cost, verdict } in answers {
            match verdict {
                Verdict::Admitted => {
                    self.admissions += 1;
                    self.over_bound += u64::from(!fits_all(policy, &past, at_ns, cost));
                    past.push(Admission { at_ns, cost });
                }
                Verdict::Refused { rule, retry_after } => {
                    self.refusals += 1;
                    self.undue += u64::from(fits(&policy.rules()[rule], &past, at_ns, cost));
                    self.not_tight += u64::from(!is_tight(policy, &past, at_ns, cost, retry_after));
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Admission {
    at_ns: u64,
    cost: u64,
}

/// Whether waiting exactly `retry_after` helps, and a nanosecond less does not.
fn is_tight(
    policy: &Policy,
    past: &[Admission],
    at_ns: u64,
    cost: u64,
    retry_after: Option<Duration>,
) -> bool {
    let Some(wait) = retry_after else { return false };
    let Ok(wait_ns @ 1..) = u64::try_from(wait.as_nanos()) else { return false };
    fits_all(policy, past, at_ns + wait_ns, cost) && !fits_all(policy, past, at_ns + wait_ns - 1, cost)
}

fn fits_all(policy: &Policy, past: &[Admission], at_ns: u64, cost: u64) -> bool {
    policy.rules().iter().all(|rule| fits(rule, past, at_ns, cost))
}

/// Whether `cost` at `at_ns` stays within the rule's bound, given all that was admitted before.
///
/// The rate of a token bucket is taken as exact, which the engine's is where a token takes a whole number
/// of nanoseconds to come back.
fn fits(rule: &Rule, past: &[Admission], at_ns: u64, cost: u64) -> bool {
    let (count, period_ns) = (u128::from(rule.count()), rule.period().as_nanos());
    let (limit, cost, at_ns) = (u128::from(rule.limit()), u128::from(cost), u128::from(at_ns));
    let spent = |from_ns: u128, to_ns: u128| -> u128 {
        let newest_first = past.iter().rev().map(|a| (u128::from(a.at_ns), u128::from(a.cost)));
        let inside = newest_first.skip_while(|a| a.0 >= to_ns).take_while(|a| a.0 >= from_ns);
        inside.map(|a| a.1).sum()
    };
    let window_start_ns = at_ns - at_ns % period_ns;
    match rule.algorithm() {
        // Every span that ends here: spent ≤ burst + rate · length.
        Algorithm::TokenBucket => {
            let mut sum = cost;
            sum <= limit
                && past.iter().rev().all(|admission| {
                    sum += u128::from(admission.cost);
                    sum * period_ns <= limit * period_ns + count * (at_ns - u128::from(admission.at_ns))
                })
        }
        // The aligned window that we are in.
        Algorithm::FixedWindow => spent(window_start_ns, at_ns + 1) + cost <= limit,
        // The aligned window that we are in, and the share of the previous one that is still in view.
        Algorithm::SlidingWindow => {
            let previous = spent(window_start_ns.saturating_sub(period_ns), window_start_ns);
            let current = spent(window_start_ns, at_ns + 1);
            let left_ns = period_ns - (at_ns - window_start_ns);
            previous * left_ns + (current + cost) * period_ns <= limit * period_ns
        }
        // The trailing window; what was admitted exactly a period ago has left it.
        Algorithm::SlidingLog => spent((at_ns + 1).saturating_sub(period_ns), at_ns + 1) + cost <= limit,
        // The library may learn another; a bound that is not written down here is not said to hold.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn past(times: &[u64]) -> Vec<Admission> {
        times.iter().map(|&at_ns| Admission { at_ns, cost: 1 }).collect()
    }

    fn rule(text: &str) -> Rule {
        text.parse().expect(text)
    }

    #[test]
    fn bounds_are_as_defined() {
        let bucket = rule("2/s burst 3");
        let spent = past(&[0, 0, 0]);
        assert!(!fits(&bucket, &spent, S / 2 - 1, 1) && fits(&bucket, &spent, S / 2, 1));
        assert!(!fits(&bucket, &[], 0, 4) && fits(&bucket, &[], 0, 3));

        let fixed = rule("fixed 2/s");
        let spent = past(&[S - 2, S - 1]);
        assert!(!fits(&fixed, &spent, S - 1, 1) && fits(&fixed, &spent, S, 2));

        let sliding = rule("sliding 4/s");
        let spent = past(&[0, 1, 2, 3]);
        assert!(!fits(&sliding, &spent, S, 1));
        assert!(!fits(&sliding, &spent, S + S / 4 - 1, 1) && fits(&sliding, &spent, S + S / 4, 1));

        let log = rule("log 2/s");
        let spent = past(&[5, 9]);
        assert!(!fits(&log, &spent, S + 4, 1) && fits(&log, &spent, S + 5, 1));
        assert!(!fits(&log, &spent, S + 8, 2) && fits(&log, &spent, S + 9, 2));
    }

    fn judged(policy: &str, answers: &[(u64, Verdict)]) -> Findings {
        let answers: Vec<_> =
            answers.iter().map(|&(at_ns, verdict)| Answer { at_ns, cost: 1, verdict }).collect();
        let mut findings = Findings::default();
        findings.judge(&policy.parse().expect(policy), &answers);
        findings
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
