//! What the targets share: inputs that decode to a policy and a trace, run beside the oracle of the tests.

#[path = "../../tests/oracle/mod.rs"]
mod oracle;

use arbitrary::Arbitrary;
use oracle::harness::{Checked, Op};
use oracle::keyed::{CheckedKeys, Crowd, Setting};
use std::time::Duration;
use tollgate::{Algorithm, Policy, Rule};

/// A longer trace finds nothing more, and the oracle's time grows with its square.
const OPS_MAX: usize = 64;
/// Room for the trace before the end of time, where clocks stop and waits cannot end.
const START_NS_MAX: u64 = u64::MAX - (1 << 58);
/// Keys of a trace for a limiter.
const KEYS: usize = 13;
/// A window's number has 32 bits at least, under the counts used here. Half of them may pass before a word that was
/// left alone is taken for one of the future, which is documented and which the oracle does not imitate.
const WINDOWS_MAX: u128 = 1 << 31;

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

/// A trace over a few keys in a tiny table, under up to four rules.
#[derive(Arbitrary, Debug)]
pub struct KeyedInput {
    rules: [RuleInput; 4],
    algorithms: [u8; 4],
    rule_count: u8,
    /// Most tables have one bucket, which the keys overfill.
    max_keys: u8,
    promised: bool,
    seed: u8,
    start_ns: u64,
    ops: Vec<(u8, u32)>,
}

/// Runs a trace under one rule of `algorithm`.
pub fn run_one(algorithm: Algorithm, input: &TraceInput) {
    run(&input.rule.rule(algorithm).into(), input.start_ns, &input.ops);
}

/// Runs a trace under several rules.
pub fn run_several(input: &SeveralInput) {
    if let Some(policy) = several(&input.rules, &input.algorithms, input.rule_count) {
        run(&policy, input.start_ns, &input.ops);
    }
}

/// Runs a trace over several keys, each beside its own oracle.
pub fn run_keyed(input: &KeyedInput) {
    let Some(policy) = several(&input.rules, &input.algorithms, input.rule_count) else { return };
    if policy.validate().is_err() {
        return;
    }
    // The promise is kept for certain only where all keys' entries fit into two buckets.
    let words: u64 = policy.rules().iter().map(|rule| oracle::keyed::cells(rule) as u64).sum();
    let max_keys = 1 + usize::from(input.max_keys % 8);
    let crowd = if input.promised && words * max_keys as u64 <= 16 { Crowd::Promised } else { Crowd::Any };
    let setting = Setting {
        max_keys,
        keys: KEYS,
        crowd,
        start_ns: input.start_ns.min(START_NS_MAX),
        seed: input.seed.into(),
    };
    let ops: Vec<(usize, Op)> =
        input.ops.iter().take(OPS_MAX).map(|&(key, bits)| (key.into(), Op::decode(bits))).collect();
    let checked = CheckedKeys::with_history(&policy, setting, &ops).and_then(|checked| checked.check_all());
    if let Err(why) = checked {
        panic!("{why}");
    }
}

/// One to four rules, unless the shortest window could pass too often, or a bucket's word come round, while the longest
/// rule sets the pace.
fn several(rules: &[RuleInput; 4], algorithms: &[u8; 4], rule_count: u8) -> Option<Policy> {
    let mut rules = rules.iter().zip(algorithms).map(|(rule, algorithm)| {
        let algorithm = match algorithm % 4 {
            0 => Algorithm::TokenBucket,
            1 => Algorithm::FixedWindow,
            2 => Algorithm::SlidingWindow,
            _ => Algorithm::SlidingLog,
        };
        rule.rule(algorithm)
    });
    let policy = Policy::from(rules.next()?);
    let policy = rules.take(usize::from(rule_count % 4)).fold(policy, Policy::and);
    let step_ns = policy.rules().iter().map(longest_step_ns).max()?;
    let numbered =
        |rule: &&Rule| matches!(rule.algorithm(), Algorithm::FixedWindow | Algorithm::SlidingWindow);
    let window_ns = policy.rules().iter().filter(numbered).map(|rule| rule.period().as_nanos()).min();
    let passes_too_often = window_ns.is_some_and(|ns| step_ns * OPS_MAX as u128 > ns * WINDOWS_MAX);
    let comes_round =
        policy.rules().iter().filter_map(range_ns).min().is_some_and(|ns| step_ns * OPS_MAX as u128 > ns);
    (!passes_too_often && !comes_round).then_some(policy)
}

/// How long a token bucket, or a token of a log, may be left alone before its word may take an old moment for one ahead,
/// as is documented: 417 days at slow rates, 2.4 hours from a token in 32 ns on.
fn range_ns(rule: &Rule) -> Option<u128> {
    let interval_ns = match rule.algorithm() {
        Algorithm::TokenBucket => rule.period().as_nanos() / u128::from(rule.count().max(1)),
        Algorithm::SlidingLog => rule.period().as_nanos(),
        _ => return None,
    };
    // The fraction of a nanosecond that time is counted in, and the half of a word's 56 bits.
    let shift = (0..12).find(|shift| interval_ns << shift >= 1 << 17).unwrap_or(12);
    Some(1 << (55 - shift))
}

/// How far one operation may move the clock for this rule's sake: three periods, or until a whole burst is back.
fn longest_step_ns(rule: &Rule) -> u128 {
    let bursts = u128::from(rule.limit() / rule.count().max(1)) + 1;
    rule.period().as_nanos() * bursts.max(3)
}

fn run(policy: &Policy, start_ns: u64, ops: &[u32]) {
    if policy.validate().is_err() {
        return;
    }
    let start_ns = start_ns.min(START_NS_MAX);
    let ops: Vec<Op> = ops.iter().take(OPS_MAX).copied().map(Op::decode).collect();
    if let Err(why) = Checked::with_history(policy, start_ns, &ops) {
        panic!("{why}");
    }
}
