//! Several rules whose words are all there: charged one after the other without a look before, which is the
//! common case and costs little more than one rule.

use super::word::hand_back_word;
use super::{Cell, Cells, hand_back};
use crate::algorithm::{Charge, Headroom, Plan, Step};
use crate::charge::log::Tokens;
use crate::compile::{Bucket, CompiledRule};
use crate::decision::{Decision, Outcome, View};
use crate::sync::{Fault, is_broken};
use std::cmp::Ordering;

/// Two token buckets, whose words are there and undoubted, and nobody comes between: a burst and a longer rate,
/// the most common of several rules. `None`, and nothing spent, where it is not that.
#[inline]
pub(super) fn acquire_pair<C: Cells>(
    pair: &[Bucket; 2],
    cells: &C,
    now_ns: u64,
    cost: u64,
) -> Option<Decision> {
    let [first, second] = pair;
    let first_cell = cells.glance(first.cell).or_else(|| cells.find(first.cell))?;
    let second_cell = cells.glance(second.cell).or_else(|| cells.find(second.cell))?;
    let (first_stored, first_word) = first_cell.load(|| 0).ok()?;
    let (second_stored, second_word) = second_cell.load(|| 0).ok()?;
    let admitted = (first.plan.admit(first_word, now_ns, cost), second.plan.admit(second_word, now_ns, cost));
    let (outcome, first_word, second_word, second_binds) = match admitted {
        (Some(first_next), Some(mut second_next)) => {
            if !first_cell.replace(first_stored, first_next) {
                return None;
            }
            if !second_cell.replace(second_stored, second_next) {
                second_next = charge_second_again(pair, &{ *cells }, second_cell, first_next, now_ns, cost)?;
            }
            let headroom = first.plan.headroom(first_next, now_ns);
            let second_binds = second.plan.headroom(second_next, now_ns).compare(headroom) == Ordering::Less;
            (Outcome::Allowed, first_next, second_next, second_binds)
        }
        _ if first.plan.is_doubtful(first_word, now_ns) || second.plan.is_doubtful(second_word, now_ns) => {
            return None;
        }
        (first_next, second_next) => {
            let second_binds = match (first_next, second_next) {
                (None, None) => {
                    second.plan.wait_ns(second_word, now_ns, cost)
                        > first.plan.wait_ns(first_word, now_ns, cost)
                }
                (first_next, _) => first_next.is_some(),
            };
            (Outcome::Denied, first_word, second_word, second_binds)
        }
    };
    let (Bucket { plan, name, .. }, word) =
        if second_binds { (second, second_word) } else { (first, first_word) };
    Some(Decision::new(outcome, usize::from(second_binds), *name, View::Gcra(*plan, word), now_ns, cost))
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

/// Charges the second of two cells, to which somebody else came first; or hands back what the first one took.
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
    next
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
    Decision::new(outcome, index, rule.name, View::of_word(&rule.plan, word), now_ns, cost)
}
