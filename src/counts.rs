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

/// What a row has side by side: allowed, the same near the limit, denied, never fits.
const COLUMNS: usize = 4;
/// Words on one cache line (two on processors that fetch lines in pairs).
const LINE_WORDS: usize = 16;
/// Stripes for threads that have none of their own.
const SHARED: usize = 8;
/// Of so many decisions, one is looked at for how far the search went.
const PROBED_ONE_IN: u64 = 16;
/// Scatters counts that follow each other over all numbers evenly: by the golden ratio.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;
/// What is decided by something else than a rule has a row for each such thing.
const CAUSES: [Cause; 5] = [Cause::NoRoom, Cause::Penalty, Cause::List, Cause::Closed, Cause::Unavailable];

/// What a row counts; the last for a shadow rule that would have refused, in a word apart.
type Row = [u64; COLUMNS + 1];
type Line = CachePadded<[AtomicU64; LINE_WORDS]>;

#[derive(Debug)]
pub(crate) struct Counts {
    /// The first line of all stripes, then the second: the common rows are reached without a multiplication.
    lines: Box<[Line]>,
    stripes: usize,
    /// Stripes that belong to the thread of their number; the rest are shared.
    own: usize,
    tiers: usize,
    ledger: Mutex<Ledger>,
}

/// Which rules the rows have been counting for.
#[derive(Debug)]
struct Ledger {
    /// The rule of each row; none where the policy has fewer.
    rules: Vec<Option<Known>>,
    /// What each row had counted when its rule came.
    before: Vec<Row>,
    /// What was counted for rules by rows that are others' now.
    former: BTreeMap<(usize, RuleId), Tally>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    id: RuleId,
    is_shadow: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    row: Row,
    is_shadow: bool,
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
        let words = (tiers * RULES_MAX + CAUSES.len() + 1) * COLUMNS + tiers * RULES_MAX;
        // Twice the cores: runtimes have a thread a core, and some more that come and go.
        let own = (available_parallelism().map_or(1, usize::from) * 2).clamp(4, stripe::NUMBERS);
        let stripes = own + SHARED;
        let line = || CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0)));
        let ledger = Ledger {
            rules: rules_of(policies.first()),
            before: vec![Row::default(); tiers * RULES_MAX],
            former: BTreeMap::new(),
        };
        Self {
            lines: (0..words.div_ceil(LINE_WORDS) * stripes).map(|_| line()).collect(),
            stripes,
            own,
            tiers,
            ledger: Mutex::new(ledger),
        }
    }

    /// Counts one decision of a tier. `reach` says how far the key is away, if it is asked.
    pub(crate) fn count(&self, tier: usize, decision: &Decision, reach: impl FnOnce() -> Option<Reach>) {
        let row = match decision.cause() {
            Cause::Rule => tier * RULES_MAX + decision.rule(),
            cause => self.row_of(cause),
        };
        self.count_rule(row, decision.outcome(), || decision.is_near_limit(), reach);
        for rule in decision.would_all_deny() {
            self.add(self.shadow_word(tier * RULES_MAX + rule), 1);
        }
    }

    /// Counts one decision in a row: that of a rule of the first tier is the rule's own number.
    ///
    /// Of the decisions that a thread counts for one outcome, every sixteenth or so is looked at for how far the
    /// search went: evenly, but in no rhythm that keys could have too, and whatever the clock does.
    #[inline(always)]
    pub(crate) fn count_rule(
        &self,
        row: usize,
        outcome: Outcome,
        is_near_limit: impl FnOnce() -> bool,
        reach: impl FnOnce() -> Option<Reach>,
    ) {
        let column = match outcome {
            Outcome::Allowed => usize::from(is_near_limit()),
            Outcome::Denied => 2,
            Outcome::NeverFits => 3,
        };
        let counted = self.add(row * COLUMNS + column, 1);
        if counted.wrapping_mul(SCATTER) <= u64::MAX / PROBED_ONE_IN {
            self.count_probe(reach());
        }
    }

    /// Counts what a lease has let pass from its hand.
    pub(crate) fn count_leased(&self, tokens: u64) {
        self.add(0, tokens);
    }

    #[cold]
    fn count_probe(&self, reach: Option<Reach>) {
        let Some(reach) = reach else { return };
        let column = match reach {
            Reach::AtOnce => 0,
            Reach::InHome => 1,
            Reach::InPartner => 2,
        };
        self.add(self.probes_row() * COLUMNS + column, 1);
    }

    fn probes_row(&self) -> usize {
        self.tiers * RULES_MAX + CAUSES.len()
    }

    /// The word that counts what a shadow rule would have refused.
    fn shadow_word(&self, row: usize) -> usize {
        (self.probes_row() + 1) * COLUMNS + row
    }

    #[cold]
    fn row_of(&self, cause: Cause) -> usize {
        self.tiers * RULES_MAX + CAUSES.iter().position(|&known| known == cause).unwrap_or(0)
    }

    /// Adds to a word of this thread's, and says what it has come to.
    #[inline(always)]
    fn add(&self, word: usize, count: u64) -> u64 {
        match stripe::number_below(self.own) {
            Some(number) => {
                let cell = &self.lines[word / LINE_WORDS * self.stripes + number][word % LINE_WORDS];
                // Relaxed: this thread alone writes here, and nothing but the value is read.
                let sum = cell.load(Ordering::Relaxed).wrapping_add(count);
                // Relaxed: as above.
                cell.store(sum, Ordering::Relaxed);
                sum
            }
            None => self.add_shared(word, count),
        }
    }

    /// The same for a thread that has no stripe of its own, or does not know yet.
    #[cold]
    #[inline(never)]
    fn add_shared(&self, word: usize, count: u64) -> u64 {
        let stripe = match stripe::number() {
            Some(number) if number < self.own => number,
            number => self.own + number.unwrap_or(0) % SHARED,
        };
        let cell = &self.lines[word / LINE_WORDS * self.stripes + stripe][word % LINE_WORDS];
        // Relaxed: nothing but the value is read.
        cell.fetch_add(count, Ordering::Relaxed).wrapping_add(count)
    }

    fn sum(&self, word: usize) -> u64 {
        let stripes = &self.lines[word / LINE_WORDS * self.stripes..][..self.stripes];
        // Relaxed: counts are read for their values alone.
        let counts = stripes.iter().map(|line| line[word % LINE_WORDS].load(Ordering::Relaxed));
        counts.fold(0, u64::wrapping_add)
    }

    /// What was counted by the row of a rule.
    fn total(&self, row: usize) -> Row {
        std::array::from_fn(|column| match column {
            COLUMNS => self.sum(self.shadow_word(row)),
            _ => self.sum(row * COLUMNS + column),
        })
    }

    /// Goes on under the rules in force: what a row has counted stays with the rule that it was for. What is
    /// decided at that very moment may be counted for the one or the other.
    pub(crate) fn follow(&self, policies: &Policies) {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let ledger = &mut *ledger;
        for (row, rule) in rules_of(policies.current()).into_iter().enumerate() {
            let former = std::mem::replace(&mut ledger.rules[row], rule);
            if former.map(|known| known.id) == rule.map(|known| known.id) {
                continue;
            }
            let total = self.total(row);
            if let Some(Known { id, is_shadow }) = former {
                let since = difference(total, ledger.before[row]);
                ledger.former.entry((row / RULES_MAX, id)).or_default().add(since, is_shadow);
            }
            ledger.before[row] = total;
        }
    }

    /// Everything counted, by tier and rule; then what was decided by something else.
    pub(crate) fn decisions(&self, policies: &Policies) -> Vec<DecisionStats> {
        let ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let mut counts = ledger.former.clone();
        for (row, rule) in ledger.rules.iter().enumerate() {
            if let Some(Known { id, is_shadow }) = *rule {
                let since = difference(self.total(row), ledger.before[row]);
                counts.entry((row / RULES_MAX, id)).or_default().add(since, is_shadow);
            }
        }
        let rules = counts.into_iter().map(|((tier, id), tally)| {
            let label = match id {
                RuleId::Named(name) => name.to_owned(),
                RuleId::Numbered(number) => number.to_string(),
            };
            stats_of(policies.first().tiers[tier].name.clone(), Cause::Rule, label, tally)
        });
        let others = CAUSES.iter().map(|&cause| {
            let first = self.row_of(cause) * COLUMNS;
            let [far, near, denied, never_fits] = std::array::from_fn(|column| self.sum(first + column));
            let tally = Tally { row: [far, near, denied, never_fits, 0], is_shadow: false };
            stats_of(None, cause, String::new(), tally)
        });
        // What only asks in its own process is always there to be asked.
        let has_come = |one: &DecisionStats| one.cause != Cause::Unavailable || one.allowed + one.denied > 0;
        rules.chain(others.filter(has_come)).collect()
    }

    pub(crate) fn probes(&self) -> Probes {
        let first = self.probes_row() * COLUMNS;
        let [at_once, in_home, in_partner] = std::array::from_fn(|column| self.sum(first + column));
        Probes { at_once, in_home, in_partner }
    }
}

impl Tally {
    fn add(&mut self, row: Row, is_shadow: bool) {
        for (sum, count) in self.row.iter_mut().zip(row) {
            *sum = sum.wrapping_add(count);
        }
        self.is_shadow = is_shadow;
    }
}

/// The rule that each row of a set counts for.
fn rules_of(set: &Set) -> Vec<Option<Known>> {
    let known = |compiled: &Compiled, index: usize| {
        let rule = compiled.rules.get(index)?;
        let id = rule.name.map_or(RuleId::Numbered(index), RuleId::Named);
        Some(Known { id, is_shadow: rule.shadow })
    };
    set.tiers.iter().flat_map(|tier| (0..RULES_MAX).map(|index| known(&tier.compiled, index))).collect()
}

fn stats_of(tier: Option<Box<str>>, cause: Cause, rule: String, tally: Tally) -> DecisionStats {
    let [far, near_limit, denied, never_fits, shadow_denied] = tally.row;
    let (allowed, is_shadow) = (far + near_limit, tally.is_shadow);
    DecisionStats { tier, cause, rule, is_shadow, allowed, near_limit, denied, never_fits, shadow_denied }
}

fn difference(total: Row, before: Row) -> Row {
    std::array::from_fn(|column| total[column].wrapping_sub(before[column]))
}
