//! A limiter and an oracle for each of its keys, driven by one trace.

use super::harness::{Amount, Op, Span, beside, nanos};
use super::{Oracle, expect};
use std::time::Duration;
use tollgate::{
    Algorithm, Cause, Clock, Decision, Limiter, ManualHand, Outcome, Policy, Rule, Stats, WhenFull,
};

/// Slots of the smallest table: all keys meet in its only bucket.
const SMALLEST_SLOTS: usize = 8;
/// Cells of one key beyond this many are counted as another live key.
const CELLS_TOGETHER: usize = 4;

/// How keys come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Crowd {
    /// Never more live ones than the limiter has promised room for: none may be refused for room.
    Promised,
    /// As they like: the limiter refuses those it has no room for, and nothing else changes.
    Any,
}

/// A limiter under [`WhenFull::Deny`] whose every decision is checked.
#[derive(Debug)]
pub(crate) struct CheckedKeys {
    pub(crate) limiter: Limiter,
    pub(crate) hand: ManualHand,
    pub(crate) oracles: Vec<Oracle>,
    pub(crate) room_refusals: u64,
    crowd: Crowd,
    cells: usize,
    retry: Duration,
    reset: Duration,
}

/// What a trace starts from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) max_keys: usize,
    pub(crate) keys: usize,
    pub(crate) crowd: Crowd,
    pub(crate) start_ns: u64,
    pub(crate) seed: u64,
}

impl CheckedKeys {
    pub(crate) fn new(policy: &Policy, setting: Setting) -> Result<Self, String> {
        let (clock, hand) = Clock::manual();
        hand.set(Duration::from_nanos(setting.start_ns));
        let limiter = Limiter::builder()
            .policy(policy.clone())
            .max_keys(setting.max_keys)
            .when_full(WhenFull::Deny)
            .clock(clock)
            .seeds([setting.seed, 1, 2, 3])
            .build()
            .map_err(|error| format!("{policy}: {error}"))?;
        let mut oracle = Oracle::new(policy);
        oracle.set_clock(setting.start_ns);
        Ok(Self {
            limiter,
            hand,
            oracles: vec![oracle; setting.keys],
            room_refusals: 0,
            crowd: setting.crowd,
            cells: policy.rules().iter().map(cells).sum(),
            retry: Duration::ZERO,
            reset: Duration::ZERO,
        })
    }

    /// A limiter with a past: which key each operation is about, and what is done.
    pub(crate) fn with_history(
        policy: &Policy,
        setting: Setting,
        ops: &[(usize, Op)],
    ) -> Result<Self, String> {
        let mut checked = Self::new(policy, setting)?;
        for (index, (key, op)) in ops.iter().enumerate() {
            checked.apply(*key, *op).map_err(|error| {
                format!("`{policy}`, {setting:?}, operation {index}, key {key}, {op:?}: {error}\n{checked:?}")
            })?;
        }
        Ok(checked)
    }

    pub(crate) fn apply(&mut self, key: usize, op: Op) -> Result<(), String> {
        let key = key % self.oracles.len();
        match op {
            Op::Acquire(amount) if self.may_come(key) => self.acquire(key, self.cost(key, amount))?,
            Op::Acquire(amount) | Op::Peek(amount) => {
                let cost = self.cost(key, amount);
                let decision = self.limiter.peek_n(&key, cost);
                self.check_look(key, &decision, cost)?;
                self.remember(&decision);
            }
            Op::Refund(amount) => {
                let cost = self.cost(key, amount);
                self.limiter.refund(&key, cost);
                self.oracles[key].refund(cost);
            }
            Op::Reset => {
                self.limiter.reset(&key);
                self.oracles[key].reset();
            }
            Op::Advance(span) => {
                self.hand.advance(Duration::from_nanos(self.ns(span)));
                self.set_oracles(nanos(self.hand.now()));
            }
            Op::SetBack(span) => {
                let back_ns = self.oracles[key].hand_ns().saturating_sub(self.ns(span));
                self.hand.set(Duration::from_nanos(back_ns));
                self.set_oracles(back_ns);
            }
        }
        // Whatever the operation did or left alone shows here, to this key and to another.
        for shown in [key, (key + 1) % self.oracles.len()] {
            self.check_look(shown, &self.limiter.peek(&shown), 1)
                .map_err(|error| format!("key {shown}: {error}"))?;
        }
        self.check_stats()
    }

    /// All keys show what their oracles say.
    pub(crate) fn check_all(&self) -> Result<(), String> {
        for key in 0..self.oracles.len() {
            self.check_look(key, &self.limiter.peek(&key), 1)
                .map_err(|error| format!("key {key}: {error}\n{self:?}"))?;
        }
        Ok(())
    }

    /// A look says what a request would be told: what the oracle says, or that there is no room.
    fn check_look(&self, key: usize, decision: &Decision, cost: u64) -> Result<(), String> {
        match decision.cause() {
            Cause::NoRoom => self.check_room_refusal(key, decision, cost),
            _ => self.oracles[key].check_peek(decision, cost),
        }
    }

    fn acquire(&mut self, key: usize, cost: u64) -> Result<(), String> {
        let before = self.limiter.stats();
        let decision = self.limiter.try_acquire_n(&key, cost);
        let refused = self.limiter.stats().denied_for_room - before.denied_for_room;
        self.remember(&decision);
        if refused == 0 {
            return self.oracles[key].check_acquire(&decision, cost);
        }
        self.room_refusals += 1;
        expect(refused == 1, || format!("{decision:?}: {refused} room refusals of one request"))?;
        expect(self.crowd == Crowd::Any, || format!("{decision:?}: no room, against the promise"))?;
        self.check_room_refusal(key, &decision, cost)
    }

    /// A refusal for room spends nothing, which the next peeks show. Where all keys of one cell meet in one
    /// bucket, it can also be said when it is due and for how long.
    fn check_room_refusal(&self, key: usize, decision: &Decision, cost: u64) -> Result<(), String> {
        let wait_ns = decision.retry_after().map(nanos);
        expect(decision.outcome() == Outcome::Denied && cost > 0 && decision.cost() == cost, || {
            format!("{decision:?} is no refusal for room")
        })?;
        expect(decision.remaining() == 0, || format!("{decision:?}: something remains without room"))?;
        if self.limiter.stats().slots > SMALLEST_SLOTS || self.cells > 1 {
            return Ok(());
        }
        let now_ns = self.now_ns();
        let others = || self.oracles.iter().enumerate().filter(|(other, _)| *other != key).map(|(_, o)| o);
        let live = others().filter(|oracle| !oracle.must_be_fresh(now_ns)).count();
        expect(live >= SMALLEST_SLOTS, || format!("{decision:?}: no room beside {live} live keys"))?;
        let Some(wait_ns @ 1..) = wait_ns else { return Err(format!("{decision:?}: no wait for room")) };
        let then_ns = now_ns + wait_ns;
        expect(others().any(|oracle| oracle.may_be_fresh(then_ns) && !oracle.must_be_fresh(now_ns)), || {
            format!("{decision:?}: no room after the wait")
        })?;
        let early = others().filter(|o| !o.may_be_fresh(now_ns)).any(|o| o.must_be_fresh(then_ns - 1));
        expect(!early, || format!("{decision:?}: room before the wait is over"))
    }

    /// What is live by brute force is what is counted. Only an unround rate leaves a doubt.
    fn check_stats(&self) -> Result<(), String> {
        let stats = self.limiter.stats();
        let now_ns = self.now_ns();
        let at_least = self.oracles.iter().filter(|oracle| !oracle.may_be_fresh(now_ns)).count();
        let at_most = self.oracles.iter().filter(|oracle| !oracle.must_be_fresh(now_ns)).count();
        // Once for every four of its rules of one word and of the requests that a log remembers, or part of four.
        let of_rule = |rule: &Rule| match rule.algorithm() {
            Algorithm::SlidingLog => rule.count().div_ceil(CELLS_TOGETHER as u64) as usize + 1,
            _ => 0,
        };
        let rules = self.limiter.policy().rules();
        let counts_each = rules.len().div_ceil(CELLS_TOGETHER) + rules.iter().map(of_rule).sum::<usize>();
        let exact = (at_least..=at_most * counts_each).contains(&stats.live_keys);
        expect(exact, || format!("{stats:?} with {at_least} to {at_most} live keys"))?;
        let Stats { evicted, forgiven_cost, denied_for_room, allowed_for_room, .. } = stats;
        let counted = (evicted, forgiven_cost, denied_for_room, allowed_for_room);
        expect(counted == (0, 0, self.room_refusals, 0), || format!("{stats:?}"))
    }

    /// Whether one more key may become live without breaking the terms of the promise.
    fn may_come(&self, key: usize) -> bool {
        let now_ns = self.now_ns();
        let others = self.oracles.iter().enumerate().filter(|(other, _)| *other != key);
        let live = others.filter(|(_, oracle)| !oracle.must_be_fresh(now_ns)).count();
        self.crowd == Crowd::Any || live < self.limiter.stats().max_keys
    }

    fn now_ns(&self) -> u64 {
        self.oracles[0].now_ns()
    }

    fn set_oracles(&mut self, time_ns: u64) {
        for oracle in &mut self.oracles {
            oracle.set_clock(time_ns);
        }
    }

    fn remember(&mut self, decision: &Decision) {
        self.retry = decision.retry_after().unwrap_or(self.retry);
        self.reset = decision.reset_after();
    }

    fn cost(&self, key: usize, amount: Amount) -> u64 {
        let limit = self.limiter.policy().rules().iter().map(Rule::limit).min().unwrap_or(0);
        match amount {
            Amount::Exactly(cost) => cost,
            Amount::Remaining(offset) => beside(self.limiter.peek_n(&key, 0).remaining(), offset),
            Amount::Limit(offset) => beside(limit, offset),
        }
    }

    fn ns(&self, span: Span) -> u64 {
        let period_ns = nanos(self.limiter.policy().rules()[0].period());
        span.ns(period_ns, self.now_ns(), self.retry, self.reset)
    }
}

/// Words that a key takes under a rule.
pub(crate) fn cells(rule: &Rule) -> usize {
    match rule.algorithm() {
        Algorithm::SlidingLog => usize::try_from(rule.count()).unwrap_or(usize::MAX),
        _ => 1,
    }
}
