//! Spending under all rules of a policy at once: the compare-exchange loops around the pure steps.
//!
//! A key's state is a row of cells, one word each: one for most rules, `limit` of them for a sliding log.
//! Whoever stores the row lends it as [`Cells`]; a gate owns its row for ever, a table slot may lose it.
//!
//! Several rules are all or nothing. First look, with loads only: if any rule would refuse, nothing is
//! written. Then charge rule by rule; a rule that refuses after all, because somebody else spent in
//! between, makes the earlier ones hand back exactly what they took. So no bound is ever passed, and a
//! refusal leaves nothing charged; but in the instant between charge and hand-back, a third request may be
//! refused although it would have fitted.

use crate::algorithm::{PAYLOAD_MASK, Plan, SlidingLog, Step};
use crate::decision::{Decision, Outcome, View};
use crate::policy::{Compiled, CompiledRule};
use crate::sync::{Fault, is_broken};
use std::cmp::Ordering;

/// The cells no longer belong to the key they were lent for.
#[derive(Debug)]
pub(crate) struct Stale;

/// The row of words that is one key's state.
pub(crate) trait Cells {
    /// The word of a cell as it is stored, if the row still belongs to the key.
    fn load(&self, cell: usize) -> Result<u64, Stale>;
    /// Puts `payload` where `stored` was; false if something else is there by now.
    fn replace(&self, cell: usize, stored: u64, payload: u64) -> bool;
}

/// How an attempt to spend under one rule ended, with what its state then was.
enum Attempt {
    Spent(View),
    Refused(View),
}

/// Spends `cost` under all rules, or under none.
#[inline]
pub(crate) fn acquire(
    policy: &Compiled,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
) -> Result<Decision, Stale> {
    match &*policy.rules {
        [rule] if cost.wrapping_sub(1) < rule.plan.limit() => Ok(match spend(rule, cells, now_ns, cost)? {
            Attempt::Spent(view) => Decision::new(Outcome::Allowed, 0, rule, view, now_ns, cost),
            Attempt::Refused(view) => Decision::new(Outcome::Denied, 0, rule, view, now_ns, cost),
        }),
        rules => acquire_all(rules, cells, now_ns, cost),
    }
}

/// The general case: several rules, or a cost of nothing, or one that never fits.
#[inline(never)]
fn acquire_all(
    rules: &[CompiledRule],
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
) -> Result<Decision, Stale> {
    let look = peek_all(rules, cells, now_ns, cost)?;
    if look.is_denied() || cost == 0 {
        return Ok(look);
    }
    let mut tightest: Option<Decision> = None;
    for (index, rule) in rules.iter().enumerate() {
        let view = match spend(rule, cells, now_ns, cost)? {
            Attempt::Spent(view) => view,
            Attempt::Refused(view) => {
                if !is_broken(Fault::NoHandBack) {
                    for charged in &rules[..index] {
                        hand_back(charged, cells, now_ns, cost)?;
                    }
                }
                return Ok(Decision::new(Outcome::Denied, index, rule, view, now_ns, cost));
            }
        };
        let decision = Decision::new(Outcome::Allowed, index, rule, view, now_ns, cost);
        tightest = Some(tighter(tightest, decision, now_ns));
    }
    Ok(tightest.unwrap_or(look))
}

/// What `acquire` would decide, by loads alone.
#[inline]
pub(crate) fn peek(policy: &Compiled, cells: &impl Cells, now_ns: u64, cost: u64) -> Result<Decision, Stale> {
    peek_all(&policy.rules, cells, now_ns, cost)
}

fn peek_all(rules: &[CompiledRule], cells: &impl Cells, now_ns: u64, cost: u64) -> Result<Decision, Stale> {
    let mut worst: Option<Decision> = None;
    for (index, rule) in rules.iter().enumerate() {
        let never_fits = cost > rule.plan.limit();
        let view = view(rule, cells, now_ns, cost.min(rule.plan.limit()))?;
        let outcome = match () {
            () if never_fits => Outcome::NeverFits,
            () if cost == 0 || view.wait_ns(now_ns, cost) == 0 => Outcome::Allowed,
            () => Outcome::Denied,
        };
        let decision = Decision::new(outcome, index, rule, view, now_ns, cost);
        if never_fits {
            return Ok(decision);
        }
        worst = Some(tighter(worst, decision, now_ns));
    }
    // A policy has at least one rule: there is no way to build an empty one.
    worst.ok_or(Stale)
}

/// The one of two decisions that binds more; the earlier rule where they are equal.
fn tighter(first: Option<Decision>, second: Decision, now_ns: u64) -> Decision {
    let Some(first) = first else { return second };
    let second_binds = match (first.is_allowed(), second.is_allowed()) {
        (true, true) => {
            second.view().headroom(now_ns).compare(first.view().headroom(now_ns)) == Ordering::Less
        }
        (false, false) => {
            second.view().wait_ns(now_ns, second.cost()) > first.view().wait_ns(now_ns, first.cost())
        }
        (first_allowed, _) => first_allowed,
    };
    if second_binds { second } else { first }
}

/// What one rule's state is now.
fn view(rule: &CompiledRule, cells: &impl Cells, now_ns: u64, cost: u64) -> Result<View, Stale> {
    let word = || cells.load(rule.first_cell).map(|stored| stored & PAYLOAD_MASK);
    Ok(match rule.plan {
        Plan::Gcra(plan) => View::Gcra(plan, word()?),
        Plan::FixedWindow(plan) => View::FixedWindow(plan, word()?),
        Plan::SlidingWindow(plan) => View::SlidingWindow(plan, word()?),
        Plan::SlidingLog(plan) => look_at_log(plan, rule.first_cell, cells, now_ns, cost)?,
    })
}

#[inline]
fn spend(rule: &CompiledRule, cells: &impl Cells, now_ns: u64, cost: u64) -> Result<Attempt, Stale> {
    let cell = rule.first_cell;
    match rule.plan {
        Plan::Gcra(plan) => spend_word(plan, cell, cells, now_ns, cost, |word| View::Gcra(plan, word)),
        Plan::FixedWindow(plan) => {
            spend_word(plan, cell, cells, now_ns, cost, |word| View::FixedWindow(plan, word))
        }
        Plan::SlidingWindow(plan) => {
            spend_word(plan, cell, cells, now_ns, cost, |word| View::SlidingWindow(plan, word))
        }
        Plan::SlidingLog(plan) => spend_tokens(plan, cell, cells, now_ns, cost),
    }
}

#[inline]
fn spend_word(
    step: impl Step,
    cell: usize,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
    view: impl Fn(u64) -> View,
) -> Result<Attempt, Stale> {
    loop {
        let stored = cells.load(cell)?;
        let word = stored & PAYLOAD_MASK;
        let Some(next) = step.admit(word, now_ns, cost) else { return Ok(Attempt::Refused(view(word))) };
        if cells.replace(cell, stored, next) {
            return Ok(Attempt::Spent(view(next)));
        }
    }
}

/// Changes one cell by a function that cannot refuse.
fn update(cell: usize, cells: &impl Cells, change: impl Fn(u64) -> u64) -> Result<(), Stale> {
    loop {
        let stored = cells.load(cell)?;
        let word = stored & PAYLOAD_MASK;
        let next = change(word);
        if next == word || cells.replace(cell, stored, next) {
            return Ok(());
        }
    }
}

fn hand_back(rule: &CompiledRule, cells: &impl Cells, now_ns: u64, cost: u64) -> Result<(), Stale> {
    let cell = rule.first_cell;
    match rule.plan {
        Plan::Gcra(plan) => update(cell, cells, |word| plan.hand_back(word, now_ns, cost, now_ns)),
        Plan::FixedWindow(plan) => update(cell, cells, |word| plan.hand_back(word, now_ns, cost, now_ns)),
        Plan::SlidingWindow(plan) => update(cell, cells, |word| plan.hand_back(word, now_ns, cost, now_ns)),
        Plan::SlidingLog(plan) => hand_back_tokens(plan, cell, cells, now_ns, cost),
    }
}

/// Undoes the newest `cost` spent under every rule, at most back to fresh.
pub(crate) fn refund(policy: &Compiled, cells: &impl Cells, now_ns: u64, cost: u64) -> Result<(), Stale> {
    for rule in &policy.rules {
        let cell = rule.first_cell;
        match rule.plan {
            Plan::Gcra(plan) => update(cell, cells, |word| plan.refund(word, now_ns, cost)),
            Plan::FixedWindow(plan) => update(cell, cells, |word| plan.refund(word, now_ns, cost)),
            Plan::SlidingWindow(plan) => update(cell, cells, |word| plan.refund(word, now_ns, cost)),
            Plan::SlidingLog(plan) => rest_newest(plan, cell, cells, now_ns, cost),
        }?;
    }
    Ok(())
}

/// Makes every cell fresh.
pub(crate) fn reset(policy: &Compiled, cells: &impl Cells, now_ns: u64) -> Result<(), Stale> {
    for rule in &policy.rules {
        for cell in rule.cells() {
            update(cell, cells, |_| rule.plan.fresh(now_ns))?;
        }
    }
    Ok(())
}

fn look_at_log(
    plan: SlidingLog,
    first: usize,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
) -> Result<View, Stale> {
    // A row that changes hands in the middle of the look shows itself in the last load.
    let words = (first..first + plan.words()).map(|cell| cells.load(cell).unwrap_or(0) & PAYLOAD_MASK);
    let view = plan.look(words, now_ns, cost);
    cells.load(first)?;
    Ok(View::SlidingLog(view))
}

/// Takes `cost` rested tokens of a log, or none.
fn spend_tokens(
    plan: SlidingLog,
    first: usize,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
) -> Result<Attempt, Stale> {
    let mut taken = 0;
    // One round over the row sees every token. A token that another request took first counts as its
    // success, not as ours to wait for.
    for cell in first..first + plan.words() {
        if taken == cost {
            break;
        }
        loop {
            let stored = cells.load(cell)?;
            let Some(next) = plan.token.admit(stored & PAYLOAD_MASK, now_ns, 1) else { break };
            if cells.replace(cell, stored, next) {
                taken += 1;
                break;
            }
        }
    }
    if taken < cost {
        hand_back_tokens(plan, first, cells, now_ns, taken)?;
        return look_at_log(plan, first, cells, now_ns, cost).map(Attempt::Refused);
    }
    look_at_log(plan, first, cells, now_ns, 0).map(Attempt::Spent)
}

/// Rests `cost` tokens that were taken at `now_ns`. Whether they are the very ones does not matter: tokens
/// taken at the same moment are worth the same. Older or newer ones are not, and are left alone.
fn hand_back_tokens(
    plan: SlidingLog,
    first: usize,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
) -> Result<(), Stale> {
    let taken_now = plan.token.admit(plan.token.fresh(now_ns), now_ns, 1);
    let mut left = cost;
    for cell in first..first + plan.words() {
        if left == 0 {
            break;
        }
        let stored = cells.load(cell)?;
        if Some(stored & PAYLOAD_MASK) == taken_now && cells.replace(cell, stored, plan.token.fresh(now_ns)) {
            left -= 1;
        }
    }
    Ok(())
}

/// Rests the `cost` tokens of a log that were used last.
fn rest_newest(
    plan: SlidingLog,
    first: usize,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
) -> Result<(), Stale> {
    for _ in 0..cost.min(plan.limit) {
        loop {
            let mut newest: Option<(usize, u64, u64)> = None;
            for cell in first..first + plan.words() {
                let stored = cells.load(cell)?;
                let rest_ns = plan.token.reset_ns(stored & PAYLOAD_MASK, now_ns);
                if rest_ns > newest.map_or(0, |(_, _, longest_ns)| longest_ns) {
                    newest = Some((cell, stored, rest_ns));
                }
            }
            let Some((cell, stored, _)) = newest else { return Ok(()) };
            if cells.replace(cell, stored, plan.token.fresh(now_ns)) {
                break;
            }
        }
    }
    Ok(())
}
