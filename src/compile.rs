//! Policies as the engine runs them: integers, and which cells of a key hold the words of which rule.

use crate::algorithm::{Gcra, Plan, StoredGcra};
use crate::error::Error;
use crate::policy::{Algorithm, Policy, Rule, check_rule_count};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The most rules one policy may have.
pub(crate) const RULES_MAX: usize = 16;
/// The most words the state of one key may take: what all sliding logs of a policy remember, and one for
/// each other rule.
pub(crate) const CELLS_MAX: usize = 1024;
/// Cells that a table can tell apart, of all rules that were ever in force over it; the rest of what an owner
/// word can name is kept for what is not a rule's.
pub(crate) const LAYOUT_CELLS_MAX: usize = 2_000;
/// Kinds of rules that were ever in force over a table.
const LAYOUT_RULES_MAX: usize = 64;
/// Rules of one word each that are decided upon together.
const WORDS_MAX: usize = 3;
impl Policy {
    /// The policy as the engine runs it, for words that nothing else has been charged to.
    pub(crate) fn compile(&self) -> Result<Compiled, Error> {
        self.compile_in(&mut Vec::new(), false)
    }

    /// The policy as the engine runs it, among others that are or were in force over the same words: `layout`
    /// says which cells hold the words of which plan, and is added to. Where more are to come, logs are given cells
    /// to grow into.
    pub(crate) fn compile_in(
        &self,
        layout: &mut Vec<CompiledRule>,
        more_to_come: bool,
    ) -> Result<Compiled, Error> {
        check_rule_count(self.rules().len())?;
        let mut rules = Vec::with_capacity(self.rules().len());
        let mut cells = 0;
        for rule in self.rules() {
            let plan = rule.compile().map_err(|error| match self.rules().len() {
                1 => error,
                _ => Error::new(format!("rule `{rule}`: {error}")),
            })?;
            cells += plan.words();
            rules.push((plan, rule));
        }
        let places = self.rules().iter().filter(|rule| rule.algorithm() == Algorithm::InFlight);
        if places.clone().count() > 1 || places.clone().any(Rule::is_shadow) {
            return Err(Error::new(
                "a policy has at most one limit of so many at once, and that is no shadow",
            ));
        }
        if cells > CELLS_MAX {
            return Err(Error::new(format!(
                "the sliding logs of a policy remember at most {CELLS_MAX} requests in all, these would {cells}"
            )));
        }
        let mut grown = layout.clone();
        let mut all: Vec<CompiledRule> = Vec::with_capacity(rules.len());
        // Rules of one word first: those are to lie together, and logs take many.
        let mut order: Vec<usize> = (0..rules.len()).collect();
        order.sort_by_key(|&index| matches!(rules[index].0, Plan::SlidingLog(_)));
        for &index in &order {
            let (plan, rule) = rules[index];
            let name = rule.name();
            let new = CompiledRule {
                plan,
                name: None,
                first_cell: 0,
                kept: plan.words_kept(),
                shadow: rule.is_shadow(),
            };
            // A rule goes on with the words of one of its kind; of several, the one of the same name, else the one
            // that remembers for about as long, and about as much.
            let likeness = |held: &CompiledRule| {
                let other_name = held.name != name || name.is_none();
                let memory_ns = held.plan.memory_ns().abs_diff(plan.memory_ns());
                (other_name, memory_ns, held.plan.limit().abs_diff(plan.limit()))
            };
            let is_taken = |cell| all.iter().any(|rule| rule.first_cell == cell);
            let held = grown.iter_mut().filter(|held| {
                held.plan.kind() == plan.kind() && held.kept >= plan.words() && !is_taken(held.first_cell)
            });
            match held.min_by_key(|held| likeness(held)) {
                Some(held) => {
                    held.plan = plan.following(&held.plan);
                    all.push(CompiledRule { plan: held.plan, first_cell: held.first_cell, ..new });
                }
                None => {
                    let first_cell = grown.last().map_or(0, |last| last.first_cell + last.kept);
                    // To grow into, as long as there is plenty.
                    let plenty = LAYOUT_CELLS_MAX.saturating_sub(first_cell) / 4;
                    let grows = more_to_come && plan.words_kept() <= plenty;
                    let kept = if grows { plan.words_kept() } else { plan.words() };
                    grown.push(CompiledRule { first_cell, kept, ..new });
                    all.push(CompiledRule { first_cell, kept, ..new });
                }
            }
        }
        let cells_kept = grown.last().map_or(0, |last| last.first_cell + last.kept);
        if grown.len() > LAYOUT_RULES_MAX || cells_kept > LAYOUT_CELLS_MAX {
            return Err(Error::new(
                "too many different kinds of rules have been in force over this table: build a new limiter",
            ));
        }
        // Only now: a name is kept for ever, and what is refused leaves none behind.
        for (rule, &index) in all.iter_mut().zip(&order) {
            rule.name = rules[index].1.name().map(intern);
            for held in grown.iter_mut().filter(|held| held.first_cell == rule.first_cell) {
                held.name = rule.name;
            }
        }
        let mut in_order: Vec<(usize, CompiledRule)> = order.into_iter().zip(all).collect();
        in_order.sort_by_key(|&(index, _)| index);
        let all = in_order.into_iter().map(|(_, rule)| rule).collect();
        *layout = grown;
        Ok(Compiled::new(all, cells))
    }
}

/// A policy as the engine runs it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Compiled {
    pub(crate) rules: Box<[CompiledRule]>,
    /// How many words the state of one key takes.
    pub(crate) cells: usize,
    /// The only rule, where that is a token bucket in the first cell: the common case, kept where it is reached
    /// in one step. Elsewhere a bucket that no cost fits.
    pub(crate) bucket: Bucket,
    /// The only rule that decides, where that is a token bucket, in whichever cell: shadows may be beside it.
    pub(crate) only_bucket: Option<Bucket>,
    /// The only two rules, where those are token buckets in the first two cells.
    pub(crate) pair: Option<[Bucket; 2]>,
    /// The largest cost that a few rules of one word each can decide upon together; 0 where there are others.
    pub(crate) words_cost_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bucket {
    pub(crate) plan: Gcra,
    /// The same where a word is stored.
    pub(crate) stored: StoredGcra,
    pub(crate) name: Option<&'static str>,
    pub(crate) cell: usize,
}

impl Bucket {
    fn new(plan: Gcra, name: Option<&'static str>, cell: usize) -> Self {
        Self { plan, stored: StoredGcra::new(plan), name, cell }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CompiledRule {
    pub(crate) plan: Plan,
    pub(crate) name: Option<&'static str>,
    /// Which of a key's words is this rule's first.
    pub(crate) first_cell: usize,
    /// How many words are kept for it, of which it may use fewer.
    pub(crate) kept: usize,
    pub(crate) shadow: bool,
}

impl Compiled {
    fn new(rules: Vec<CompiledRule>, cells: usize) -> Self {
        let bucket = |rule: &CompiledRule| match *rule {
            CompiledRule { plan: Plan::Gcra(plan), name, first_cell, shadow: false, .. } => {
                Some(Bucket::new(plan, name, first_cell))
            }
            _ => None,
        };
        let mut deciding = rules.iter().filter(|rule| !rule.shadow);
        let only_bucket = match (deciding.next(), deciding.next()) {
            (Some(rule), None) => bucket(rule),
            _ => None,
        };
        let alone = only_bucket.filter(|_| rules.len() == 1);
        let pair = match &rules[..] {
            [first, second] => bucket(first).zip(bucket(second)).map(<[Bucket; 2]>::from),
            _ => None,
        };
        let pair = pair.filter(|[first, second]| (first.cell, second.cell) == (0, 1));
        let nothing = Bucket::new(Gcra::NOTHING_FITS, None, 0);
        let bucket = alone.filter(|bucket| bucket.cell == 0).unwrap_or(nothing);
        let is_word = |rule: &CompiledRule| {
            !rule.shadow && !matches!(rule.plan, Plan::SlidingLog(_) | Plan::InFlight(_))
        };
        let words_cost_max = if rules.len() <= WORDS_MAX && rules.iter().all(is_word) {
            rules.iter().map(|rule| rule.plan.limit()).min().unwrap_or(0)
        } else {
            0
        };
        Self { rules: rules.into_boxed_slice(), cells, bucket, only_bucket, pair, words_cost_max }
    }
}

impl Compiled {
    /// This policy's first rule and another one's others, which nobody asked for but a model.
    pub(crate) fn mixed_with(&self, other: &Self) -> Self {
        let rules = self.rules.iter().take(1).chain(other.rules.iter().skip(1));
        Self::new(rules.copied().collect(), other.cells)
    }

    /// The same policy among others over the same words, as `layout` has them.
    pub(crate) fn beside(&self, layout: &[CompiledRule]) -> Self {
        let among = |rule: &CompiledRule| {
            let held = layout.iter().find(|held| held.first_cell == rule.first_cell);
            CompiledRule { plan: held.map_or(rule.plan, |held| rule.plan.beside(&held.plan)), ..*rule }
        };
        Self::new(self.rules.iter().map(among).collect(), self.cells)
    }
}

impl CompiledRule {
    /// What a request of this cost takes under the rule: of places at work, one.
    #[inline]
    pub(crate) fn share(&self, cost: u64) -> u64 {
        if matches!(self.plan, Plan::InFlight(_)) { 1 } else { cost }
    }

    /// The cells that hold this rule's state.
    pub(crate) fn cells(&self) -> Range<usize> {
        self.first_cell..self.first_cell + self.plan.words()
    }
}

/// A name that lives as long as the program, so that a decision can carry it and still be `Copy`.
/// Each distinct name is kept once, however often rules are reloaded.
fn intern(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return known;
    }
    let kept: &'static str = Box::leak(name.into());
    names.insert(kept);
    kept
}
