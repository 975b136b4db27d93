//! What the targets share: inputs that decode to a policy and a trace, run beside the oracle of the tests.

#[path = "../../tests/oracle/mod.rs"]
mod oracle;

use arbitrary::Arbitrary;
use oracle::harness::{Checked, Op};
use std::time::Duration;
use tollgate::{Algorithm, Policy, Rule};

/// A longer trace finds nothing more, and the oracle's time grows with its square.
const OPS_MAX: usize = 64;
/// Rules of nanoseconds beside rules of hours would see more windows than a word numbers.
const PERIOD_SEVERAL_NS_MAX: u64 = 1 << 31;

/// A rule of any algorithm, small enough for its edges to be met.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct RuleInput {
    count: u16,
    /// The period is this shifted by that: short ones and odd ones, up to some hours.
    period: u16,
    period_shift: u8,
    burst: Option<u8>,
}

impl RuleInput {
    fn rule(self, algorithm: Algorithm) -> Rule {
        let count = u64::from(self.count);
        let period_ns = (u64::from(self.period) + 1) << (self.period_shift % 28);
        let rule = |count| Rule::new(count, Duration::from_nanos(period_ns)).by(algorithm);
        match (algorithm, self.burst) {
            (Algorithm::TokenBucket, Some(burst)) => rule(1 + count).burst(u64::from(burst) + 1),
            (Algorithm::SlidingLog, _) => rule(1 + count % 64),
            // Small limits only: a large one leaves the window's number few bits.
            (Algorithm::FixedWindow | Algorithm::SlidingWindow, _) => rule(1 + count % 4_096),
            _ => rule(1 + count),
        }
    }
}

/// A trace for one rule.
#[derive(Arbitrary, Debug)]
pub struct TraceInput {
    rule: RuleInput,
    start_ns: u64,
    ops: Vec<u32>,
}

/// A trace for up to four rules.
#[derive(Arbitrary, Debug)]
pub struct SeveralInput {
    rules: [RuleInput; 4],
    algorithms: [u8; 4],
    rule_count: u8,
    start_ns: u64,
    ops: Vec<u32>,
}

/// Runs a trace under one rule of `algorithm`.
pub fn run_one(algorithm: Algorithm, input: &TraceInput) {
    run(&input.rule.rule(algorithm).into(), input.start_ns, &input.ops);
}

/// Runs a trace under several rules.
pub fn run_several(input: &SeveralInput) {
    let mut rules = input.rules.iter().zip(input.algorithms).map(|(rule, algorithm)| {
        let algorithm = match algorithm % 4 {
            0 => Algorithm::TokenBucket,
            1 => Algorithm::FixedWindow,
            2 => Algorithm::SlidingWindow,
            _ => Algorithm::SlidingLog,
        };
        rule.rule(algorithm)
    });
    let Some(first) = rules.next() else { return };
    let policy = rules.take(usize::from(input.rule_count % 4)).fold(Policy::from(first), Policy::and);
    if policy.rules().iter().all(|rule| rule.period() <= Duration::from_nanos(PERIOD_SEVERAL_NS_MAX)) {
        run(&policy, input.start_ns, &input.ops);
    }
}

fn run(policy: &Policy, start_ns: u64, ops: &[u32]) {
    if policy.validate().is_err() {
        return;
    }
    // Room for the trace before the end of time, where clocks stop and waits cannot end.
    let start_ns = start_ns.min(u64::MAX - (1 << 58));
    let ops: Vec<Op> = ops.iter().take(OPS_MAX).copied().map(Op::decode).collect();
    if let Err(why) = Checked::with_history(policy, start_ns, &ops) {
        panic!("{why}");
    }
}
