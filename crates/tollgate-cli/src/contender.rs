//! One policy on its way through the traffic: the engine that decides, and what comes of it.

use crate::input::{Batch, Touch};
use crate::ledger::{Fate, Ledger, Meter, ROWS_MAX};
use crate::timeline::{BUCKETS, Scale, fold};
use std::time::{Duration, Instant};
use tollgate::rules::RuleSet;
use tollgate::{Clock, Decision, Error, Limiter, LimiterBuilder, ManualHand, Policy};

/// The same for every run, so that a run can be repeated.
const SEEDS: [u64; 4] = [23, 29, 31, 37];

/// What costs more than this is counted as this.
const COST_NS_MAX: usize = 9_999;

/// A policy and the keys it is for.
pub(crate) struct Scope {
    /// The rule's name in its file; empty for a policy of its own.
    pub(crate) name: String,
    /// What clients are told apart by.
    pub(crate) key: String,
    pub(crate) policy: Policy,
    /// What a request costs.
    pub(crate) cost: u64,
    pub(crate) limiter: Limiter,
    pub(crate) ledger: Ledger,
    /// Requests that lack the key and share one budget.
    pub(crate) keyless: u64,
    /// The number of the policy's first rule among the rules of all scopes.
    pub(crate) first_rule: usize,
}

/// Sees every decision as it is counted.
pub(crate) trait Witness {
    /// A decision that allows is not charged if another rule of the file refuses.
    fn saw(&mut self, at_ns: u64, touch: &Touch, decision: &Decision, is_charged: bool);
}

/// Nobody.
pub(crate) struct Unseen;

impl Witness for Unseen {
    fn saw(&mut self, _at_ns: u64, _touch: &Touch, _decision: &Decision, _is_charged: bool) {}
}

pub(crate) struct Contender {
    pub(crate) title: String,
    hand: ManualHand,
    pub(crate) scopes: Vec<Scope>,
    rules: usize,
    /// When the counts over time began; nothing before the first request.
    pub(crate) scale: Option<Scale>,
    /// For each bucket: admitted, then refused by each rule.
    pub(crate) timeline: Vec<u64>,
    pub(crate) requests: u64,
    pub(crate) admitted: u64,
    /// Requests that no key was found for; they are admitted.
    pub(crate) unkeyed: u64,
    pub(crate) refused_by: Vec<u64>,
    /// For rules that only watch: how many they would have refused.
    pub(crate) would_refuse_by: Vec<u64>,
    /// How many chunks took so many nanoseconds a decision.
    costs: Vec<u64>,
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    answers: Vec<Decision>,
    /// Whether each request of the last chunk was admitted.
    verdicts: Vec<bool>,
    /// The place of each touch of the last chunk in its ledger.
    places: Vec<u32>,
    blank: Decision,
}

impl Contender {
    /// One policy over one kind of key.
    pub(crate) fn of_policy(policy: &Policy, key: &str, max_keys: usize) -> Result<Self, Error> {
        let builder = Limiter::builder().policy(policy.clone()).max_keys(max_keys);
        Self::new(policy.to_string(), vec![(String::new(), key.to_owned(), policy.clone(), 1, builder)])
    }

    /// The rules of a file, each over its own kind of key.
    pub(crate) fn of_rules(title: String, rules: &RuleSet) -> Result<Self, Error> {
        let mut plans = Vec::new();
        for rule in rules.rules() {
            let policy = rule.limit().map_err(Clone::clone)?.clone();
            plans.push((
                rule.name().to_owned(),
                rule.key_of().to_string(),
                policy,
                rule.cost_of(),
                rule.limiter(),
            ));
        }
        Self::new(title, plans)
    }

    fn new(title: String, plans: Vec<(String, String, Policy, u64, LimiterBuilder)>) -> Result<Self, Error> {
        let (clock, hand) = Clock::manual();
        let mut scopes = Vec::new();
        let mut rules = 0;
        for (name, key, policy, cost, builder) in plans {
            let limiter = builder.clock(clock.clone()).seeds(SEEDS).prefault(false).build()?;
            let meters = policy.rules().iter().map(|rule| {
                let period_ns = u64::try_from(rule.period().as_nanos()).unwrap_or(u64::MAX).max(1);
                Meter {
                    per_ns: rule.count() as f64 / period_ns as f64,
                    period_ns,
                    cost: u32::try_from(cost).unwrap_or(u32::MAX),
                }
            });
            let ledger = Ledger::new(meters.collect(), ROWS_MAX);
            let first_rule = rules;
            rules += policy.rules().len();
            scopes.push(Scope { name, key, policy, cost, limiter, ledger, keyless: 0, first_rule });
        }
        // Something to fill a slice with; every place is written before it is read.
        let blank = Limiter::new("1/s")?.peek(&0_u64);
        Ok(Self {
            title,
            hand,
            scopes,
            rules,
            scale: None,
            timeline: vec![0; BUCKETS * (1 + rules)],
            requests: 0,
            admitted: 0,
            unkeyed: 0,
            refused_by: vec![0; rules],
            would_refuse_by: vec![0; rules],
            costs: vec![0; COST_NS_MAX + 1],
            first_ns: 0,
            last_ns: 0,
            answers: Vec::new(),
            verdicts: Vec::new(),
            places: Vec::new(),
            blank,
        })
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused_by.iter().sum()
    }

    /// Whether each request of the last chunk was admitted.
    pub(crate) fn verdicts(&self) -> &[bool] {
        &self.verdicts
    }

    /// What a decision costs, the median over all chunks: whatever else the machine does falls on few of them.
    pub(crate) fn ns_per_decision(&self) -> usize {
        let half = self.costs.iter().sum::<u64>().div_ceil(2);
        let mut chunks = 0;
        let median = self.costs.iter().position(|count| {
            chunks += count;
            chunks >= half
        });
        median.unwrap_or(0)
    }

    /// Decides for a chunk of requests, in order, and counts what comes of it.
    pub(crate) fn take(&mut self, chunk: &Batch, witness: &mut impl Witness) {
        let start = Instant::now();
        self.decide(chunk);
        let each_ns = start.elapsed().as_nanos().checked_div(chunk.all_touches().len() as u128);
        if let Some(ns) = each_ns {
            self.costs[usize::try_from(ns).unwrap_or(COST_NS_MAX).min(COST_NS_MAX)] += 1;
        }
        self.count(chunk, witness);
    }

    /// One answer a touch. Requests of the same moment are asked together, so that the engine can read ahead.
    fn decide(&mut self, chunk: &Batch) {
        let touches = chunk.all_touches();
        self.answers.resize(touches.len(), self.blank);
        let [Scope { limiter, cost: 1, .. }] = &self.scopes[..] else { return self.decide_each(chunk) };
        let mut from = 0;
        for (index, entry) in chunk.entries.iter().enumerate() {
            let goes_on = chunk.entries.get(index + 1).is_some_and(|next| next.at_ns == entry.at_ns);
            if !goes_on {
                let to = (entry.first + entry.count) as usize;
                self.hand.set(Duration::from_nanos(entry.at_ns));
                limiter.try_acquire_many(&touches[from..to], &mut self.answers[from..to]);
                from = to;
            }
        }
    }

    /// A request spends from every budget that it falls under or from none: first a look, then the spending.
    fn decide_each(&mut self, chunk: &Batch) {
        for entry in &chunk.entries {
            self.hand.set(Duration::from_nanos(entry.at_ns));
            let answers = &mut self.answers[entry.first as usize..][..entry.count as usize];
            let touches = chunk.touches(entry);
            // One budget needs no look before.
            if touches.len() > 1 {
                for (touch, answer) in touches.iter().zip(&mut *answers) {
                    let scope = &self.scopes[usize::from(touch.scope)];
                    *answer = scope.limiter.peek_n(touch, scope.cost);
                }
                if answers.iter().any(Decision::is_denied) {
                    continue;
                }
            }
            for (touch, answer) in touches.iter().zip(answers) {
                let scope = &self.scopes[usize::from(touch.scope)];
                *answer = scope.limiter.try_acquire_n(touch, scope.cost);
            }
        }
    }

    fn count(&mut self, chunk: &Batch, witness: &mut impl Witness) {
        let lanes = 1 + self.rules;
        self.verdicts.clear();
        self.scopes.iter_mut().for_each(|scope| scope.ledger.settle());
        self.places.clear();
        for touch in chunk.all_touches() {
            let ledger = &mut self.scopes[usize::from(touch.scope)].ledger;
            self.places.push(ledger.place(touch.hash, chunk.label(touch)));
        }
        for entry in &chunk.entries {
            let at_ns = entry.at_ns;
            if self.scale.is_none() {
                self.first_ns = at_ns;
            }
            let scale = self.scale.get_or_insert_with(|| Scale::new(at_ns));
            self.last_ns = at_ns;
            let bucket = loop {
                match scale.bucket(at_ns) {
                    Some(bucket) => break bucket,
                    None => {
                        scale.double();
                        fold(&mut self.timeline, lanes);
                        self.scopes.iter_mut().for_each(|scope| scope.ledger.fold());
                    }
                }
            };
            self.requests += 1;
            let touches = chunk.touches(entry);
            let answers = &self.answers[entry.first as usize..][..touches.len()];
            self.unkeyed += u64::from(touches.is_empty());
            // Of several, the one with the longest wait; one that can never fit waits for ever.
            let refusal = touches.iter().zip(answers).filter(|(_, answer)| answer.is_denied());
            let refused_by = refusal
                .max_by_key(|(_, answer)| answer.retry_after().unwrap_or(Duration::MAX))
                .map(|(touch, answer)| self.scopes[usize::from(touch.scope)].first_rule + answer.rule());
            let places = &self.places[entry.first as usize..][..touches.len()];
            for ((touch, answer), &place) in touches.iter().zip(answers).zip(places) {
                let scope = &mut self.scopes[usize::from(touch.scope)];
                let fate = match (answer.is_denied(), refused_by) {
                    (true, _) => Fate::Refused,
                    (false, Some(_)) => Fate::RefusedByOthers,
                    (false, None) => Fate::Admitted,
                };
                scope.keyless += u64::from(touch.is_shared);
                if let Some(rule) = answer.would_deny() {
                    self.would_refuse_by[scope.first_rule + rule] += 1;
                }
                let client_bucket = Scale::client_bucket(bucket);
                scope.ledger.add(place, at_ns, client_bucket, fate);
                witness.saw(at_ns, touch, answer, refused_by.is_none());
            }
            self.verdicts.push(refused_by.is_none());
            let lane = match refused_by {
                None => {
                    self.admitted += 1;
                    0
                }
                Some(rule) => {
                    self.refused_by[rule] += 1;
                    1 + rule
                }
            };
            self.timeline[bucket * lanes + lane] += 1;
        }
    }
}
