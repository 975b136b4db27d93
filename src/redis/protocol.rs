//! The protocol: keys, the arguments of a rule, and decisions out of replies. Described for others in `docs/redis.md`.
//!
//! The server keeps states and says whether a cost fits. What follows from a state (what remains, when to come back,
//! which rule binds) is computed here by the same code as in-process, so the two cannot differ.

use super::error::RedisError;
use super::scripts::Call;
use crate::algorithm::{Gcra, PAYLOAD_BITS, Plan, STEP_BACK_NS, Seen, Summary, View};
use crate::charge::tighter;
use crate::decision::{Decision, Outcome};
use crate::guard::whole_ns;
use crate::policy::{Algorithm, Policy};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

/// Doubles are exact up to here, and Lua has no other numbers.
const EXACT_MAX: u64 = 1 << 53;
/// Longer subjects are hashed.
const SUBJECT_BYTES_MAX: usize = 128;
/// The numbers of a rule in a reply.
const STATE_NUMBERS: usize = 3;
/// The longest mark: as in-process, 208 days.
const MARK_US_MAX: u64 = (1 << (PAYLOAD_BITS - 2)) / 1_000;

/// A policy as it goes over the wire.
#[derive(Debug)]
pub(super) struct Protocol {
    prefix: String,
    rules: Vec<WireRule>,
}

#[derive(Debug)]
pub(super) struct WireRule {
    pub(super) plan: Plan,
    pub(super) name: Option<&'static str>,
    pub(super) shadow: bool,
    /// The end of its key.
    id: String,
    args: [String; 5],
}

impl WireRule {
    /// The bucket, where the rule is one.
    pub(super) fn bucket(&self) -> Option<Gcra> {
        match self.plan {
            Plan::Gcra(plan) if !self.shadow => Some(plan),
            _ => None,
        }
    }
}

impl Protocol {
    pub(super) fn new(prefix: &str, policy: &Policy) -> Result<Self, RedisError> {
        if prefix.is_empty() || prefix.contains(['{', '}']) {
            return Err(RedisError::Config(format!(
                "a prefix of keys is not empty and has no braces, which `{prefix}` does not keep to"
            )));
        }
        let compiled = policy.compile()?;
        let mut rules: Vec<WireRule> = Vec::with_capacity(compiled.rules.len());
        for (rule, compiled) in policy.rules().iter().zip(&compiled.rules) {
            let refuse = |why: &str| RedisError::Config(format!("rule `{rule}`: {why}"));
            if rule.algorithm() == Algorithm::InFlight {
                return Err(refuse("so many at once is counted in one process only, not on Redis"));
            }
            let period_ns = whole_ns(rule.period());
            let (kind, args) = match compiled.plan {
                Plan::Gcra(plan) => {
                    let full = plan.full_units + (STEP_BACK_NS << plan.unit());
                    if full > EXACT_MAX {
                        return Err(refuse(
                            "a whole burst takes too long to come back for the numbers of a script: at most 104 days \
                             below 7 600 a second, and less at faster rates",
                        ));
                    }
                    let units_in_us = 1_000 << plan.unit();
                    (format!("b.{}", plan.unit()), [plan.interval_units, plan.full_units, units_in_us])
                }
                _ if period_ns % 1_000 != 0 => {
                    return Err(refuse(
                        "the server counts in microseconds, and the period has to be whole ones",
                    ));
                }
                _ if period_ns > EXACT_MAX => {
                    return Err(refuse(
                        "the period is too long for the numbers of a script: at most 104 days",
                    ));
                }
                plan => {
                    let kind = match plan {
                        Plan::FixedWindow(_) => format!("f.{}", period_ns / 1_000),
                        Plan::SlidingWindow(_) => format!("s.{}", period_ns / 1_000),
                        _ => "l".to_owned(),
                    };
                    (kind, [plan.limit(), period_ns / 1_000, 0])
                }
            };
            let start = format!("{kind}.");
            let like =
                rules.iter().filter(|other| other.name.is_none() && other.id.starts_with(&start)).count();
            let id = match compiled.name {
                Some(name) => format!("{start}{name}"),
                None => format!("{start}{like}"),
            };
            if rules.iter().any(|other| other.id == id) {
                return Err(refuse(
                    "another rule of the same kind and name would share its state: rename one",
                ));
            }
            let [a, b, c] = args.map(|number| number.to_string());
            let shadow = if compiled.shadow { "1" } else { "0" };
            rules.push(WireRule {
                plan: compiled.plan,
                name: compiled.name,
                shadow: compiled.shadow,
                id,
                args: [kind[..1].to_owned(), shadow.to_owned(), a, b, c],
            });
        }
        Ok(Self { prefix: prefix.to_owned(), rules })
    }

    pub(super) fn rules(&self) -> &[WireRule] {
        &self.rules
    }

    /// The keys of a subject: one a rule, all in one slot of a cluster.
    pub(super) fn keys(&self, subject: &str) -> Vec<String> {
        self.tagged_keys(&tag(subject))
    }

    fn tagged_keys(&self, tag: &str) -> Vec<String> {
        let start = self.tagged_key(tag, "");
        self.rules.iter().map(|rule| format!("{start}{}", rule.id)).collect()
    }

    /// A key of a subject that is no rule's.
    pub(super) fn key(&self, subject: &str, end: &str) -> String {
        self.tagged_key(&tag(subject), end)
    }

    fn tagged_key(&self, tag: &str, end: &str) -> String {
        format!("{}:{{{tag}}}:{end}", self.prefix)
    }

    /// A call about all rules of a subject, with the arguments of the script itself first.
    pub(super) fn call<const N: usize>(&self, subject: &str, first: [String; N]) -> Call {
        self.tagged_call(&tag(subject), first)
    }

    /// The same for a subject that is known by its [`tag`].
    pub(super) fn tagged_call<const N: usize>(&self, tag: &str, first: [String; N]) -> Call {
        let args = first.into_iter().chain(self.rules.iter().flat_map(|rule| rule.args.iter().cloned()));
        Call { keys: self.tagged_keys(tag), args: args.collect() }
    }

    pub(super) fn once_call(&self, id: &str, window: Duration, time: String, whose: String) -> Call {
        let window_us = whole_ns(window).div_ceil(1_000).min(MARK_US_MAX);
        Call { keys: vec![self.key(id, "once")], args: vec![window_us.to_string(), time, whose] }
    }

    /// The decision of a reply to `acquire`.
    pub(super) fn decision(&self, reply: &[i64], cost: u64, spends: bool) -> Result<Decision, RedisError> {
        let [fits, now_us, states @ ..] = reply else { return Err(odd_reply()) };
        if states.len() != self.rules.len() * STATE_NUMBERS {
            return Err(odd_reply());
        }
        let fits = *fits == 1;
        let now_ns = nanos(*now_us);
        let decisions = self.rules.iter().zip(states.chunks_exact(STATE_NUMBERS)).enumerate().map(
            |(index, (rule, state))| {
                let view = rule.view(state, now_ns);
                let outcome = if cost > rule.plan.limit() {
                    Outcome::NeverFits
                } else if cost == 0 || (fits && spends && !rule.shadow) || view.wait_ns(cost) == 0 {
                    Outcome::Allowed
                } else {
                    Outcome::Denied
                };
                (rule.shadow, Decision::new(outcome, index, rule.name, view, now_ns, cost))
            },
        );
        let mut binding: Option<Decision> = None;
        let mut shadows = Vec::new();
        for (index, (shadow, decision)) in decisions.enumerate() {
            if shadow {
                shadows.push((index, decision));
            } else if decision.outcome() == Outcome::NeverFits {
                return Ok(decision);
            } else {
                binding = Some(tighter(binding, decision));
            }
        }
        // Where all are shadows, the first one says what it would say to a cost of nothing.
        let mut binding = match (binding, shadows.first()) {
            (Some(binding), _) => binding,
            (None, Some((_, first))) => first.as_allowed(),
            (None, None) => return Err(odd_reply()),
        };
        if binding.is_allowed() != fits {
            return Err(odd_reply());
        }
        if fits {
            for (index, _) in shadows.iter().filter(|(_, shadow)| shadow.is_denied()) {
                binding = binding.noting_shadow(*index);
            }
        }
        Ok(binding)
    }

    /// The decision of a reply to `once`.
    pub(super) fn once_decision(reply: &[i64]) -> Result<Decision, RedisError> {
        let &[fits, now_us, until_us] = reply else { return Err(odd_reply()) };
        let left_ns = nanos(until_us).saturating_sub(nanos(now_us));
        let outcome = if fits == 1 { Outcome::Allowed } else { Outcome::Denied };
        let wait_ns = if fits == 1 { 0 } else { left_ns };
        let summary = Summary { limit: 1, remaining: 0, wait_ns, reset_ns: left_ns };
        Ok(Decision::new(outcome, 0, None, View::Summary(summary), nanos(now_us), 1))
    }
}

impl WireRule {
    /// The state that a reply speaks of, as the engine would hold it.
    fn view(&self, state: &[i64], now_ns: u64) -> View {
        let number = |index: usize| state.get(index).map_or(0, |&number| u64::try_from(number).unwrap_or(0));
        let (first, second, third) = (number(0), number(1), number(2));
        // A count from a larger limit of the past may be more than the word has bits for.
        let most = |bits: u32| (1 << bits) - 1;
        match self.plan {
            Plan::Gcra(plan) => View::Bucket(plan.debt(plan.word_at(first, now_ns), now_ns)),
            Plan::FixedWindow(plan) => {
                let word = plan.word(first, second.min(most(plan.count_bits)));
                View::FixedWindow(plan.seen(word, now_ns))
            }
            Plan::SlidingWindow(plan) => {
                let most = most(plan.count_bits);
                let word = plan.word(first, second.min(most), third.min(most));
                View::SlidingWindow(plan.seen(word, now_ns))
            }
            Plan::SlidingLog(_) | Plan::InFlight(_) => {
                let summary = Summary {
                    limit: self.plan.limit(),
                    remaining: first,
                    wait_ns: second.saturating_mul(1_000),
                    reset_ns: third.saturating_mul(1_000),
                };
                View::Summary(summary)
            }
        }
    }
}

/// A subject as it goes over the wire, in 128 bytes at most.
pub(super) fn tag(subject: &str) -> Cow<'_, str> {
    // An empty tag, or one that ends early, would not hold the keys together.
    let plain = !subject.is_empty()
        && subject.len() <= SUBJECT_BYTES_MAX
        && !subject.starts_with('#')
        && !subject.contains(['{', '}']);
    if plain {
        return Cow::Borrowed(subject);
    }
    let mut tag = String::with_capacity(33);
    tag.push('#');
    for byte in Sha256::digest(subject).iter().take(16) {
        // Writing to a string does not fail.
        let _ = write!(tag, "{byte:02x}");
    }
    Cow::Owned(tag)
}

/// A cost as the scripts take it: what is more than they can count never fits either.
pub(super) fn cost_arg(cost: u64) -> String {
    cost.min(EXACT_MAX).to_string()
}

pub(super) fn odd_reply() -> RedisError {
    RedisError::Server("the reply is not what the protocol says".to_owned())
}

fn nanos(us: i64) -> u64 {
    u64::try_from(us).unwrap_or(0).saturating_mul(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocol(policy: &str) -> Result<Protocol, RedisError> {
        Protocol::new("tollgate", &policy.parse().expect("a policy"))
    }

    #[test]
    fn keys_of_a_subject_share_a_tag_and_say_what_they_hold() {
        let protocol =
            protocol("10/s; 100/min named api; 100/h; fixed 5/min; sliding 7/h; log 3/d").expect("accepted");
        assert_eq!(
            protocol.keys("alice"),
            [
                "tollgate:{alice}:b.0.0",
                "tollgate:{alice}:b.0.api",
                "tollgate:{alice}:b.0.1",
                "tollgate:{alice}:f.60000000.0",
                "tollgate:{alice}:s.3600000000.0",
                "tollgate:{alice}:l.0",
            ]
        );
    }

    #[test]
    fn subjects_that_would_break_the_tag_or_are_long_are_hashed() {
        let protocol = protocol("1/s").expect("accepted");
        let long = "x".repeat(SUBJECT_BYTES_MAX + 1);
        let subjects = ["", "}", "a}b", "a{b", "#61", &long];
        let mut keys: Vec<String> = subjects.iter().map(|subject| protocol.key(subject, "")).collect();
        for key in &keys {
            assert!(key.starts_with("tollgate:{#") && key.ends_with("}:") && key.len() == 45, "{key}");
        }
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), subjects.len());
        // The first half of the SHA-256 of nothing.
        assert_eq!(protocol.key("", "once"), "tollgate:{#e3b0c44298fc1c149afbf4c8996fb924}:once");
        assert_eq!(protocol.key(&long[1..], "").len(), SUBJECT_BYTES_MAX + 12);
    }

    #[test]
    fn what_a_script_cannot_count_is_refused_with_the_reason() {
        for (policy, reason) in [
            ("5 at once", "rule `5 at once`: so many at once is counted in one process only"),
            ("1/105d", "104 days"),
            ("fixed 5/1500ns", "microseconds"),
            ("fixed 5/106d", "at most 104 days"),
            ("5/s named a; 6/s named a", "rename one"),
        ] {
            let error = protocol(policy).expect_err(policy).to_string();
            assert!(error.contains(reason), "{policy}: {error}");
        }
        for policy in
            ["1/104d", "3/1500ns", "sliding 1000000/d", "log 1024/d", "1000000000/s", "fixed 1/104d"]
        {
            assert!(protocol(policy).is_ok(), "{policy}");
        }
        assert!(Protocol::new("a{b", &"1/s".parse().expect("a policy")).is_err());
    }
}
