//! Several rules whose words are all there: charged one after the other without a look before, which is the
//! common case and costs little more than one rule.

use super::word::hand_back_word;
use super::{Cell, Cells, hand_back};
use crate::algorithm::{Charge, Headroom, Plan, STORER_BITS, Seen, Spent, Step};
use crate::charge::log::Tokens;
use crate::compile::{Bucket, CompiledRule};
use crate::decision::{Decision, Outcome};
use crate::sync::{Fault, is_broken};
use std::cmp::Ordering;

/// What came of spending under two token buckets, in plain values: what a decision is made of, which is made once.
pub(super) struct OfPair {
    pub(super) outcome: Outcome,
    /// Whether the second of the two binds more than the first.
    pub(super) second_binds: bool,
    /// What has not come back under the one that does.
    pub(super) debt_units: u64,
}

/// Two token buckets, whose words are there and undoubted, and nobody comes between: a burst and a longer rate,
/// the most common of several rules. `None`, and nothing spent, where it is not that.
#[inline(always)]
pub(super) fn acquire_pair<C: Cells>(
    pair: &[Bucket; 2],
    cells: &C,
    now_ns: u64,
    cost: u64,
) -> Option<OfPair> {
    let [first, second] = pair;
    let first_cell = cells.glance(0).or_else(|| cells.find(0))?;
    let second_cell = cells.glance(1).or_else(|| cells.find(1))?;
    let (first_stored, second_stored) = (first_cell.load_live()?, second_cell.load_live()?);
    let spent =
        (first.stored.spend(first_stored, now_ns, cost), second.stored.spend(second_stored, now_ns, cost));
    let of = |outcome, second_binds, debt_units| Some(OfPair { outcome, second_binds, debt_units });
    match spent {
        (
            Spent::Fits { next, debt_units },
            Spent::Fits { next: second_next, debt_units: mut second_units },
        ) => {
            if !first_cell.replace_live(first_stored, next) {
                return None;
            }
            if !second_cell.replace_live(second_stored, second_next) {
                let first_word = next >> STORER_BITS;
                second_units = charge_second_again(pair, &{ *cells }, second_cell, first_word, now_ns, cost)?;
            }
            let headroom = first.plan.debt_of(debt_units).headroom();
            let second_headroom = second.plan.debt_of(second_units).headroom();
            let second_binds = second_headroom.compare(headroom) == Ordering::Less;
            of(Outcome::Allowed, second_binds, if second_binds { second_units } else { debt_units })
        }
        (Spent::Doubtful, _) | (_, Spent::Doubtful) => None,
        (Spent::Exceeds { debt_units }, Spent::Exceeds { debt_units: second_units }) => {
            let wait_ns = first.plan.debt_of(debt_units).wait_ns(cost);
            let second_binds = second.plan.debt_of(second_units).wait_ns(cost) > wait_ns;
            of(Outcome::Denied, second_binds, if second_binds { second_units } else { debt_units })
        }
        (Spent::Exceeds { debt_units }, Spent::Fits { .. }) => of(Outcome::Denied, false, debt_units),
        (Spent::Fits { .. }, Spent::Exceeds { debt_units }) => of(Outcome::Denied, true, debt_units),
    }
}

/// A few rules of one word each, of which every word is there and undoubted, and nobody comes between: the
/// common case of several rules. `None`, and nothing spent, where it is not that.
#[inline]
pub(super) fn acquire_words<const RULES: usize, C: Cells>(
    rules: &[&CompiledRule; RULES],
    cells: &C,
    now_ns: u64,
    cost: u64,
) -> Option<Decision> {
    let mut found = [const { None }; RULES];
    let mut words = [0; RULES];
    let mut refused: Option<(usize, u64)> = None;
    for index in 0..RULES {
        let CompiledRule { plan, first_cell, .. } = rules[index];
        let cell = cells.glance(*first_cell).or_else(|| cells.find(*first_cell))?;
        let (stored, word) = cell.load(|| 0).ok()?;
        // Windows would admit a doubtful word as a fresh one.
        if plan.is_doubtful(word, now_ns) {
            return None;
        }
        match plan.admit(word, now_ns, cost) {
            Some(next) => (found[index], words[index]) = (Some((cell, stored)), next),
            None => {
                words[index] = word;
                let wait_ns = plan.wait_ns(word, now_ns, cost);
                if refused.is_none_or(|(_, longest_ns)| wait_ns > longest_ns) {
                    refused = Some((index, wait_ns));
                }
            }
        }
    }
    if let Some((index, _)) = refused {
        return Some(decision_of_word(rules[index], index, Outcome::Denied, words[index], now_ns, cost));
    }
    let mut tightest = 0;
    let mut least: Option<Headroom> = None;
    for index in 0..RULES {
        let (cell, stored) = found[index].as_ref()?;
        if !cell.replace(*stored, words[index]) {
            let Some(next) = charge_again(rules[index].plan, *cell, now_ns, cost) else {
                hand_back_words(&rules[..index], cells, &words, now_ns, cost);
                return None;
            };
            words[index] = next;
        }
        let headroom = rules[index].plan.headroom(words[index], now_ns);
        if least.is_none_or(|least| headroom.compare(least) == Ordering::Less) {
            (tightest, least) = (index, Some(headroom));
        }
    }
    Some(decision_of_word(rules[tightest], tightest, Outcome::Allowed, words[tightest], now_ns, cost))
}

/// Charges the second of two cells, to which somebody else came first, and says what has not come back by then; or hands
/// back what the first one took.
#[cold]
#[inline(never)]
fn charge_second_again<C: Cells>(
    pair: &[Bucket; 2],
    cells: &C,
    second_cell: C::Cell<'_>,
    first_word: u64,
    now_ns: u64,
    cost: u64,
) -> Option<u64> {
    let [first, second] = pair;
    let next = charge_again(second.plan, second_cell, now_ns, cost);
    if next.is_none() && !is_broken(Fault::NoHandBack) {
        let charge = Charge { word: first_word, at_ns: now_ns, uncounted: false };
        let plan = Plan::Gcra(first.plan);
        hand_back_word(plan, first.cell, cells, cost, charge.alone(plan, cost));
    }
    next.map(|word| second.plan.debt(word, now_ns).units())
}

/// Charges a cell to which somebody else came first, for as long as it still fits: handing back what the earlier rules
/// took would lose the time since. `None` where it does not, or the word is doubtful.
#[cold]
fn charge_again(plan: impl Step, cell: impl Cell, now_ns: u64, cost: u64) -> Option<u64> {
    loop {
        let (stored, word) = cell.load(|| 0).ok()?;
        if plan.is_doubtful(word, now_ns) {
            return None;
        }
        let next = plan.admit(word, now_ns, cost)?;
        if cell.replace(stored, next) {
            return Some(next);
        }
    }
}

/// Undoes what was spent under the first few of several rules of one word each.
#[cold]
fn hand_back_words(rules: &[&CompiledRule], cells: &impl Cells, words: &[u64], now_ns: u64, cost: u64) {
    if is_broken(Fault::NoHandBack) {
        return;
    }
    for (rule, &word) in rules.iter().zip(words) {
        let charge = Charge { word, at_ns: now_ns, uncounted: false };
        hand_back(rule, cells, cost, charge, &Tokens::default());
    }
}

#[inline]
fn decision_of_word(
    rule: &CompiledRule,
    index: usize,
    outcome: Outcome,
    word: u64,
    now_ns: u64,
    cost: u64,
) -> Decision {
    Decision::new(outcome, index, rule.name, rule.plan.view(word, now_ns), now_ns, cost)
}
