//! A gate and the oracle side by side, driven by a trace of operations that aims at the edges.

use super::Oracle;
use std::time::Duration;
use tollgate::{Clock, Decision, Gate, ManualHand, Policy};

/// A cost, named by the edge it is near.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amount {
    Exactly(u64),
    /// What remains, and this much more or less.
    Remaining(i8),
    /// The least limit of the policy, and this much more or less.
    Limit(i8),
}

/// A span of time, named by the edge it ends near.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Span {
    Ns(u64),
    /// Eighths of the first rule's period.
    Eighths(u8, i8),
    /// As long as the last refusal said to wait.
    Retry(i8),
    /// Until the last decision's rule has forgotten everything.
    Reset(i8),
    /// To the end of the first rule's aligned window.
    Edge(i8),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Acquire(Amount),
    Peek(Amount),
    Refund(Amount),
    Reset,
    Advance(Span),
    SetBack(Span),
}

impl Op {
    /// An operation from random bits, most of them near an edge.
    pub(crate) fn decode(bits: u32) -> Self {
        let [kind, which, number, beside] = bits.to_le_bytes();
        let offset = [-1, 0, 0, 1][usize::from(beside % 4)];
        let amount = match which % 8 {
            0..4 => Amount::Exactly(u64::from(number % 5)),
            4..7 => Amount::Remaining(offset),
            _ => Amount::Limit(offset),
        };
        let span = match which % 16 {
            0..5 => Span::Ns(u64::from(number % 21)),
            5..10 => Span::Eighths(number % 25, offset),
            10..13 => Span::Retry(offset),
            13 | 14 => Span::Edge(offset),
            _ => Span::Reset(offset),
        };
        match kind % 32 {
            0..14 => Self::Acquire(amount),
            14..17 => Self::Peek(amount),
            17..20 => Self::Refund(amount),
            20..29 => Self::Advance(span),
            29 | 30 => Self::SetBack(span),
            _ => Self::Reset,
        }
    }
}

/// A gate whose every decision is checked.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) gate: Gate,
    pub(crate) hand: ManualHand,
    pub(crate) oracle: Oracle,
    retry: Duration,
    reset: Duration,
}

impl Checked {
    pub(crate) fn new(policy: &Policy, start_ns: u64) -> Result<Self, String> {
        let (clock, hand) = Clock::manual();
        hand.set(Duration::from_nanos(start_ns));
        let gate = Gate::with_clock(policy.clone(), clock).map_err(|error| format!("{policy}: {error}"))?;
        let mut oracle = Oracle::new(policy);
        oracle.set_clock(start_ns);
        Ok(Self { gate, hand, oracle, retry: Duration::ZERO, reset: Duration::ZERO })
    }

    /// A gate with a past.
    pub(crate) fn with_history(policy: &Policy, start_ns: u64, ops: &[Op]) -> Result<Self, String> {
        let mut checked = Self::new(policy, start_ns)?;
        for (index, op) in ops.iter().enumerate() {
            checked.apply(*op).map_err(|error| {
                format!("`{policy}` from {start_ns} ns, operation {index}, {op:?}: {error}\n{checked:?}")
            })?;
        }
        Ok(checked)
    }

    pub(crate) fn apply(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Acquire(amount) => {
                let _ = self.acquire(self.cost(amount))?;
            }
            Op::Peek(amount) => {
                let _ = self.peek(self.cost(amount))?;
            }
            Op::Refund(amount) => self.refund(self.cost(amount)),
            Op::Reset => {
                self.gate.reset();
                self.oracle.reset();
            }
            Op::Advance(span) => {
                let by = Duration::from_nanos(self.ns(span));
                self.hand.advance(by);
                self.oracle.set_clock(nanos(self.hand.now()));
            }
            Op::SetBack(span) => self.set_clock(self.oracle.hand_ns().saturating_sub(self.ns(span))),
        }
        // Whatever the operation did or left alone shows here.
        self.oracle.check_peek(&self.gate.peek(), 1)
    }

    pub(crate) fn acquire(&mut self, cost: u64) -> Result<Decision, String> {
        let decision = self.gate.try_acquire_n(cost);
        self.oracle.check_acquire(&decision, cost)?;
        self.remember(&decision);
        Ok(decision)
    }

    pub(crate) fn peek(&mut self, cost: u64) -> Result<Decision, String> {
        let decision = self.gate.peek_n(cost);
        self.oracle.check_peek(&decision, cost)?;
        self.remember(&decision);
        Ok(decision)
    }

    pub(crate) fn refund(&mut self, cost: u64) {
        self.gate.refund(cost);
        self.oracle.refund(cost);
    }

    /// Lets the gate's time pass, wherever the clock's hand was set back to.
    pub(crate) fn wait(&mut self, by: Duration) {
        self.set_clock(self.oracle.now_ns().saturating_add(nanos(by)));
    }

    pub(crate) fn set_clock(&mut self, time_ns: u64) {
        self.hand.set(Duration::from_nanos(time_ns));
        self.oracle.set_clock(time_ns);
    }

    /// The least limit of the gate's rules.
    pub(crate) fn limit(&self) -> u64 {
        self.gate.policy().rules().iter().map(tollgate::Rule::limit).min().unwrap_or(0)
    }

    fn remember(&mut self, decision: &Decision) {
        self.retry = decision.retry_after().unwrap_or(self.retry);
        self.reset = decision.reset_after();
    }

    fn cost(&self, amount: Amount) -> u64 {
        match amount {
            Amount::Exactly(cost) => cost,
            Amount::Remaining(offset) => beside(self.gate.peek_n(0).remaining(), offset),
            Amount::Limit(offset) => beside(self.limit(), offset),
        }
    }

    fn ns(&self, span: Span) -> u64 {
        let period_ns = nanos(self.gate.policy().rules()[0].period());
        span.ns(period_ns, self.oracle.now_ns(), self.retry, self.reset)
    }
}

impl Span {
    /// The time meant, where a period is so long, and the last decision named these waits.
    pub(crate) fn ns(self, period_ns: u64, now_ns: u64, retry: Duration, reset: Duration) -> u64 {
        match self {
            Self::Ns(ns) => ns,
            Self::Eighths(eighths, offset) => {
                beside((period_ns / 8).saturating_mul(u64::from(eighths)), offset)
            }
            Self::Retry(offset) => beside(nanos(retry), offset),
            Self::Reset(offset) => beside(nanos(reset), offset),
            Self::Edge(offset) => beside(period_ns - now_ns % period_ns, offset),
        }
    }
}

pub(crate) fn beside(number: u64, offset: i8) -> u64 {
    number.saturating_add_signed(i64::from(offset))
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
