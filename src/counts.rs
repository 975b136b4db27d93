//! Decisions counted by rule and outcome, in cells that no two threads write at the same time.
//!
//! A thread with a number of its own has a stripe of cells for itself: to count is a load, an addition and a
//! store. Threads beyond that share a few more stripes, and add by an atomic instruction. Reading adds all
//! stripes up. No count is lost either way; what is read while others count is of no single moment.

use crate::charge::Reach;
use crate::compile::{Compiled, RULES_MAX};
use crate::decision::{Cause, Decision, Outcome};
use crate::policies::{Policies, Set};
use crate::stats::{DecisionStats, Probes};
use crate::stripe;
use crate::sync::{AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;

/// What one row counts: allowed, the same near the limit, denied, never fits.
const COLUMNS: usize = 4;
/// Words on one cache line (two on processors that fetch lines in pairs).
const LINE_WORDS: usize = 16;
/// Stripes for threads that have none of their own.
const SHARED: usize = 8;
/// Of so many decisions, one is looked at for how far the search went.
const PROBED_ONE_IN: u64 = 16;
/// What is decided by something else than a rule has a row for each such thing.
const CAUSES: [Cause; 4] = [Cause::NoRoom, Cause::Penalty, Cause::List, Cause::Closed];

type Row = [u64; COLUMNS];
type Line = CachePadded<[AtomicU64; LINE_WORDS]>;

#[derive(Debug)]
pub(crate) struct Counts {
    /// All lines of a stripe together, stripe after stripe.
    lines: Box<[Line]>,
    lines_a_stripe: usize,
    /// Stripes that belong to the thread of their number; the rest are shared.
    own: usize,
    tiers: usize,
    ledger: Mutex<Ledger>,
}

/// Which rules the rows have been counting for.
#[derive(Debug)]
struct Ledger {
    /// The rule of each row; none where the policy has fewer.
    rules: Vec<Option<RuleId>>,
    /// What each row had counted when its rule came.
    before: Vec<Row>,
    /// What was counted for rules by rows that are others' now.
    former: BTreeMap<(usize, RuleId), Row>,
}

/// What a rule is called in its tier: a name stays with its count wherever a later policy puts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RuleId {
    Numbered(usize),
    Named(&'static str),
}

impl Counts {
    pub(crate) fn new(policies: &Policies) -> Self {
        let tiers = policies.first().tiers.len();
        let rows = tiers * RULES_MAX + CAUSES.len() + 1;
        let lines_a_stripe = (rows * COLUMNS).div_ceil(LINE_WORDS);
        // Twice the cores: runtimes have a thread a core, and some more that come and go.
        let own = (available_parallelism().map_or(1, usize::from) * 2).clamp(4, stripe::NUMBERS);
        let line = || CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0)));
        let ledger = Ledger {
            rules: rules_of(policies.first()),
            before: vec![Row::default(); tiers * RULES_MAX],
            former: BTreeMap::new(),
        };
        Self {
            lines: (0..(own + SHARED) * lines_a_stripe).map(|_| line()).collect(),
            lines_a_stripe,
            own,
            tiers,
            ledger: Mutex::new(ledger),
        }
    }

    /// Counts one decision of a tier.
    pub(crate) fn count(&self, tier: usize, decision: &Decision) {
        let row = match decision.cause() {
            Cause::Rule => tier * RULES_MAX + decision.rule(),
            cause => self.row_of(cause),
        };
        self.count_rule(row, decision.outcome(), || decision.is_near_limit());
    }

    /// Counts one decision in a row: that of a rule of the first tier is the rule's own number.
    #[inline(always)]
    pub(crate) fn count_rule(&self, row: usize, outcome: Outcome, is_near_limit: impl FnOnce() -> bool) {
        let column = match outcome {
            Outcome::Allowed => usize::from(is_near_limit()),
            Outcome::Denied => 2,
            Outcome::NeverFits => 3,
        };
        self.add(row, column, 1);
    }

    /// Counts what a lease has let pass from its hand.
    pub(crate) fn count_leased(&self, tokens: u64) {
        self.add(0, 0, tokens);
    }

    /// Counts how far one had to look for a key, once in a while: every so many nanoseconds of a precise clock
    /// are as good as every so many decisions, and need nobody to count them.
    #[inline]
    pub(crate) fn sample_probe(&self, at_ns: u64, reach: impl FnOnce() -> Option<Reach>) {
        if at_ns % PROBED_ONE_IN == 0 {
            self.count_probe(reach());
        }
    }

    #[cold]
    fn count_probe(&self, reach: Option<Reach>) {
        let Some(reach) = reach else { return };
        let column = match reach {
            Reach::AtOnce => 0,
            Reach::InHome => 1,
            Reach::InPartner => 2,
        };
        self.add(self.tiers * RULES_MAX + CAUSES.len(), column, 1);
    }

    #[cold]
    fn row_of(&self, cause: Cause) -> usize {
        self.tiers * RULES_MAX + CAUSES.iter().position(|&known| known == cause).unwrap_or(0)
    }

    #[inline(always)]
    fn add(&self, row: usize, column: usize, count: u64) {
        let word = row * COLUMNS + column;
        let cell =
            |stripe: usize| &self.lines[stripe * self.lines_a_stripe + word / LINE_WORDS][word % LINE_WORDS];
        match stripe::number() {
            Some(number) if number < self.own => {
                let cell = cell(number);
                // Relaxed: this thread alone writes here, and nothing but the value is read.
                cell.store(cell.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
            }
            number => {
                let shared = self.own + number.unwrap_or(0) % SHARED;
                // Relaxed: nothing but the value is read.
                cell(shared).fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    fn total(&self, row: usize) -> Row {
        let (line, first) = (row * COLUMNS / LINE_WORDS, row * COLUMNS % LINE_WORDS);
        let stripes = self.lines.iter().skip(line).step_by(self.lines_a_stripe);
        let mut total = Row::default();
        for cells in stripes {
            for (sum, cell) in total.iter_mut().zip(&cells[first..]) {
                // Relaxed: counts are read for their values alone.
                *sum = sum.wrapping_add(cell.load(Ordering::Relaxed));
            }
        }
        total
    }

    /// Goes on under the rules in force: what a row has counted stays with the rule that it was for. What is
    /// decided at that very moment may be counted for the one or the other.
    pub(crate) fn follow(&self, policies: &Policies) {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let ledger = &mut *ledger;
        for (row, rule) in rules_of(policies.current()).into_iter().enumerate() {
            if ledger.rules[row] == rule {
                continue;
            }
            let total = self.total(row);
            if let Some(former) = ledger.rules[row] {
                let since = difference(total, ledger.before[row]);
                add(ledger.former.entry((row / RULES_MAX, former)).or_default(), since);
            }
            ledger.rules[row] = rule;
            ledger.before[row] = total;
        }
    }

    /// Everything counted, by tier and rule; then what was decided by something else.
    pub(crate) fn decisions(&self, policies: &Policies) -> Vec<DecisionStats> {
        let ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let mut counts = ledger.former.clone();
        for (row, rule) in ledger.rules.iter().enumerate() {
            if let Some(rule) = *rule {
                let since = difference(self.total(row), ledger.before[row]);
                add(counts.entry((row / RULES_MAX, rule)).or_default(), since);
            }
        }
        let rules = counts.into_iter().map(|((tier, rule), row)| {
            let label = match rule {
                RuleId::Named(name) => name.to_owned(),
                RuleId::Numbered(number) => number.to_string(),
            };
            stats_of(policies.first().tiers[tier].name.clone(), Cause::Rule, label, row)
        });
        let others = CAUSES.iter().map(|&cause| {
            let row = self.total(self.row_of(cause));
            stats_of(None, cause, String::new(), row)
        });
        rules.chain(others).collect()
    }

    pub(crate) fn probes(&self) -> Probes {
        let [at_once, in_home, in_partner, _] = self.total(self.tiers * RULES_MAX + CAUSES.len());
        Probes { at_once, in_home, in_partner }
    }
}

/// The rule that each row of a set counts for.
fn rules_of(set: &Set) -> Vec<Option<RuleId>> {
    let id = |compiled: &Compiled, index: usize| {
        compiled.rules.get(index).map(|rule| rule.name.map_or(RuleId::Numbered(index), RuleId::Named))
    };
    set.tiers.iter().flat_map(|tier| (0..RULES_MAX).map(|index| id(&tier.compiled, index))).collect()
}

fn stats_of(tier: Option<Box<str>>, cause: Cause, rule: String, row: Row) -> DecisionStats {
    let [far, near_limit, denied, never_fits] = row;
    DecisionStats { tier, cause, rule, allowed: far + near_limit, near_limit, denied, never_fits }
}

fn difference(total: Row, before: Row) -> Row {
    std::array::from_fn(|column| total[column].wrapping_sub(before[column]))
}

fn add(sum: &mut Row, row: Row) {
    for (sum, count) in sum.iter_mut().zip(row) {
        *sum = sum.wrapping_add(count);
    }
}
