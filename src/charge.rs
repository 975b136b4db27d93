//! Spending under all rules of a policy at once: the compare-exchange loops around the pure steps.
//!
//! A key's state is a row of cells, one word each: one for most rules, `limit` of them for a sliding log.
//! Whoever stores the row lends it as [`Cells`]. A gate owns its cells for ever; a table makes room for a
//! cell when something is first charged to it, and may take the room back once it is worth nothing.
//!
//! Several rules are all or nothing. First look, with loads only: if any rule would refuse, nothing is
//! written. Then charge rule by rule; a rule that refuses after all, because somebody else spent in
//! between, makes the earlier ones hand back exactly what they took. So no bound is ever passed, and a
//! refusal leaves nothing charged; but in the instant between charge and hand-back, a third request may be
//! refused although it would have fitted.

use crate::algorithm::{Plan, SlidingLog, Step};
use crate::decision::{Decision, Outcome, View};
use crate::policy::{Compiled, CompiledRule};
use crate::sync::{Fault, is_broken};
use std::cmp::Ordering;

/// The cell no longer belongs to the key it was lent for.
#[derive(Debug)]
pub(crate) struct Stale;

/// There is no room for a cell that a key does not have yet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoRoom {
    /// The request is refused; there will be room after this long.
    Deny { wait_ns: u64 },
    /// The request passes uncounted.
    Allow,
}

/// One word of a key's state.
pub(crate) trait Cell {
    /// The word as it is stored, and its payload: `fresh` where nothing has been charged yet.
    fn load(&self, fresh: impl FnOnce() -> u64) -> Result<(u64, u64), Stale>;
    /// Puts `payload` where `stored` was; false if something else is there by now.
    fn replace(&self, stored: u64, payload: u64) -> bool;
}

/// The row of words that is one key's state.
pub(crate) trait Cells {
    type Cell<'a>: Cell
    where
        Self: 'a;

    /// A cell, if it is there; it may still turn out stale.
    fn find(&self, index: usize) -> Option<Self::Cell<'_>>;
    /// A cell to charge, with room made for it where it was missing or stale.
    fn claim(&self, index: usize, now_ns: u64) -> Result<Self::Cell<'_>, NoRoom>;
}

/// How an attempt to spend under one rule ended, with what its state then was.
enum Attempt {
    Spent(View),
    Refused(View),
}

/// Spends `cost` under all rules, or under none. The cell is looked for before the time is read, so that
/// the one's way from memory covers the other's.
#[inline]
pub(crate) fn acquire(
    policy: &Compiled,
    cells: &impl Cells,
    now: impl FnOnce() -> u64,
    cost: u64,
) -> Decision {
    match &*policy.rules {
        [rule] if cost.wrapping_sub(1) < rule.plan.limit() => {
            let found = cells.find(rule.first_cell);
            let now_ns = now();
            let (outcome, view) = match spend(rule, cells, found, now_ns, cost) {
                Attempt::Spent(view) => (Outcome::Allowed, view),
                Attempt::Refused(view) => (Outcome::Denied, view),
            };
            Decision::new(outcome, 0, rule, view, now_ns, cost)
        }
        rules => acquire_all(rules, cells, now(), cost),
    }
}

/// The general case: several rules, or a cost of nothing, or one that never fits.
#[inline(never)]
fn acquire_all(rules: &[CompiledRule], cells: &impl Cells, now_ns: u64, cost: u64) -> Decision {
    let look = peek_all(rules, cells, now_ns, cost);
    if look.is_denied() || cost == 0 {
        return look;
    }
    let mut tightest = None;
    for (index, rule) in rules.iter().enumerate() {
        let found = cells.find(rule.first_cell);
        match spend(rule, cells, found, now_ns, cost) {
            Attempt::Spent(view) => {
                let decision = Decision::new(Outcome::Allowed, index, rule, view, now_ns, cost);
                tightest = Some(tighter(tightest, decision, now_ns));
            }
            Attempt::Refused(view) => {
                if !is_broken(Fault::NoHandBack) {
                    for charged in &rules[..index] {
                        hand_back(charged, cells, now_ns, cost);
                    }
                }
                return Decision::new(Outcome::Denied, index, rule, view, now_ns, cost);
            }
        }
    }
    tightest.unwrap_or(look)
}

/// What `acquire` would decide, by loads alone.
pub(crate) fn peek(policy: &Compiled, cells: &impl Cells, now_ns: u64, cost: u64) -> Decision {
    peek_all(&policy.rules, cells, now_ns, cost)
}

fn peek_all(rules: &[CompiledRule], cells: &impl Cells, now_ns: u64, cost: u64) -> Decision {
    // A policy has at least one rule: there is no way to build an empty one.
    let mut worst = peek_rule(0, &rules[0], cells, now_ns, cost);
    for (index, rule) in rules.iter().enumerate().skip(1) {
        if worst.outcome() == Outcome::NeverFits {
            break;
        }
        let decision = peek_rule(index, rule, cells, now_ns, cost);
        worst = match decision.outcome() {
            Outcome::NeverFits => decision,
            _ => tighter(Some(worst), decision, now_ns),
        };
    }
    worst
}

fn peek_rule(index: usize, rule: &CompiledRule, cells: &impl Cells, now_ns: u64, cost: u64) -> Decision {
    let view = view(rule, cells, now_ns, cost.min(rule.plan.limit()));
    let outcome = if cost > rule.plan.limit() {
        Outcome::NeverFits
    } else if cost == 0 || view.wait_ns(now_ns, cost) == 0 {
        Outcome::Allowed
    } else {
        Outcome::Denied
    };
    Decision::new(outcome, index, rule, view, now_ns, cost)
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

/// The payload of a cell; a cell that is not there, or no longer the key's, is worth a fresh one.
fn payload(cells: &impl Cells, index: usize, fresh: impl Fn() -> u64) -> u64 {
    match cells.find(index).map(|cell| cell.load(&fresh)) {
        Some(Ok((_, payload))) => payload,
        Some(Err(Stale)) | None => fresh(),
    }
}

/// What one rule's state is now.
fn view(rule: &CompiledRule, cells: &impl Cells, now_ns: u64, cost: u64) -> View {
    let word = || payload(cells, rule.first_cell, || rule.plan.fresh(now_ns));
    match rule.plan {
        Plan::Gcra(plan) => View::Gcra(plan, word()),
        Plan::FixedWindow(plan) => View::FixedWindow(plan, word()),
        Plan::SlidingWindow(plan) => View::SlidingWindow(plan, word()),
        Plan::SlidingLog(plan) => look_at_log(plan, rule.first_cell, cells, now_ns, cost),
    }
}

#[inline]
fn spend<'a, C: Cells>(
    rule: &CompiledRule,
    cells: &'a C,
    found: Option<C::Cell<'a>>,
    now_ns: u64,
    cost: u64,
) -> Attempt {
    let index = rule.first_cell;
    match rule.plan {
        Plan::Gcra(plan) => {
            spend_word(plan, index, cells, found, now_ns, cost, |word| View::Gcra(plan, word))
        }
        Plan::FixedWindow(plan) => {
            spend_word(plan, index, cells, found, now_ns, cost, |word| View::FixedWindow(plan, word))
        }
        Plan::SlidingWindow(plan) => {
            spend_word(plan, index, cells, found, now_ns, cost, |word| View::SlidingWindow(plan, word))
        }
        Plan::SlidingLog(plan) => spend_tokens(plan, index, cells, now_ns, cost),
    }
}

#[inline]
fn spend_word<'a, C: Cells>(
    step: impl Step,
    index: usize,
    cells: &'a C,
    mut found: Option<C::Cell<'a>>,
    now_ns: u64,
    cost: u64,
    view: impl Fn(u64) -> View,
) -> Attempt {
    loop {
        let cell = match found {
            Some(cell) => cell,
            None => match cells.claim(index, now_ns) {
                Ok(cell) => cell,
                Err(NoRoom::Allow) => return Attempt::Spent(view(step.fresh(now_ns))),
                Err(NoRoom::Deny { wait_ns }) => {
                    return Attempt::Refused(View::NoRoom { limit: step.limit(), wait_ns });
                }
            },
        };
        while let Ok((stored, word)) = cell.load(|| step.fresh(now_ns)) {
            let Some(next) = step.admit(word, now_ns, cost) else { return Attempt::Refused(view(word)) };
            if cell.replace(stored, next) {
                return Attempt::Spent(view(next));
            }
        }
        found = None;
    }
}

/// Changes one cell by a function that cannot refuse. A cell that is not there has nothing to change.
fn update(cells: &impl Cells, index: usize, fresh: impl Fn() -> u64, change: impl Fn(u64) -> u64) {
    let Some(cell) = cells.find(index) else { return };
    while let Ok((stored, word)) = cell.load(&fresh) {
        let next = change(word);
        if next == word || cell.replace(stored, next) {
            return;
        }
    }
}

/// Changes the word of a rule that keeps its state in one, by the function that its algorithm has for it.
macro_rules! update_word {
    ($rule:expr, $cells:expr, $now_ns:expr, |$plan:ident, $word:ident| $change:expr, $log:expr) => {{
        let fresh = || $rule.plan.fresh($now_ns);
        match $rule.plan {
            Plan::Gcra($plan) => update($cells, $rule.first_cell, fresh, |$word| $change),
            Plan::FixedWindow($plan) => update($cells, $rule.first_cell, fresh, |$word| $change),
            Plan::SlidingWindow($plan) => update($cells, $rule.first_cell, fresh, |$word| $change),
            Plan::SlidingLog($plan) => $log($plan, $rule.first_cell),
        }
    }};
}

/// Undoes what this request spent at `now_ns`.
fn hand_back(rule: &CompiledRule, cells: &impl Cells, now_ns: u64, cost: u64) {
    update_word!(
        rule,
        cells,
        now_ns,
        |plan, word| plan.hand_back(word, now_ns, cost, now_ns),
        |plan, first| hand_back_tokens(plan, first, cells, now_ns, cost)
    );
}

/// Undoes the newest `cost` spent under every rule, at most back to fresh.
pub(crate) fn refund(policy: &Compiled, cells: &impl Cells, now_ns: u64, cost: u64) {
    for rule in &policy.rules {
        update_word!(rule, cells, now_ns, |plan, word| plan.refund(word, now_ns, cost), |plan, first| {
            rest_newest(plan, first, cells, now_ns, cost)
        });
    }
}

/// Makes every cell fresh.
pub(crate) fn reset(policy: &Compiled, cells: &impl Cells, now_ns: u64) {
    for rule in &policy.rules {
        let fresh = || rule.plan.fresh(now_ns);
        for index in rule.cells() {
            update(cells, index, fresh, |_| fresh());
        }
    }
}

fn look_at_log(plan: SlidingLog, first: usize, cells: &impl Cells, now_ns: u64, cost: u64) -> View {
    let tokens =
        (first..first + plan.words()).map(|index| payload(cells, index, || plan.token.fresh(now_ns)));
    View::SlidingLog(plan.look(tokens, now_ns, cost))
}

/// Takes `cost` rested tokens of a log, or none.
fn spend_tokens(plan: SlidingLog, first: usize, cells: &impl Cells, now_ns: u64, cost: u64) -> Attempt {
    let mut taken = 0;
    // One round over the row sees every token. One that another request took first counts as its success,
    // not as ours to wait for.
    for index in first..first + plan.words() {
        if taken == cost {
            break;
        }
        match spend_word(plan.token, index, cells, cells.find(index), now_ns, 1, |word| {
            View::Gcra(plan.token, word)
        }) {
            Attempt::Spent(_) => taken += 1,
            Attempt::Refused(View::NoRoom { wait_ns, .. }) => {
                hand_back_tokens(plan, first, cells, now_ns, taken);
                return Attempt::Refused(View::NoRoom { limit: plan.limit, wait_ns });
            }
            Attempt::Refused(_) => {}
        }
    }
    if taken < cost {
        hand_back_tokens(plan, first, cells, now_ns, taken);
        return Attempt::Refused(look_at_log(plan, first, cells, now_ns, cost));
    }
    Attempt::Spent(look_at_log(plan, first, cells, now_ns, 0))
}

/// Rests `cost` tokens that were taken at `now_ns`. Whether they are the very ones does not matter: tokens
/// taken at the same moment are worth the same. Older or newer ones are not, and are left alone.
fn hand_back_tokens(plan: SlidingLog, first: usize, cells: &impl Cells, now_ns: u64, cost: u64) {
    let rested = || plan.token.fresh(now_ns);
    let taken_now = plan.token.admit(rested(), now_ns, 1);
    let mut left = cost;
    for index in first..first + plan.words() {
        if left == 0 {
            break;
        }
        let Some(cell) = cells.find(index) else { continue };
        let Ok((stored, word)) = cell.load(rested) else { continue };
        if Some(word) == taken_now && cell.replace(stored, rested()) {
            left -= 1;
        }
    }
}

/// Rests the `cost` tokens of a log that were used last.
fn rest_newest(plan: SlidingLog, first: usize, cells: &impl Cells, now_ns: u64, cost: u64) {
    let rested = || plan.token.fresh(now_ns);
    let mut left = cost.min(plan.limit);
    while left > 0 {
        let mut newest_ns = 0;
        let mut newest = None;
        for index in first..first + plan.words() {
            let Some(cell) = cells.find(index) else { continue };
            let Ok((stored, word)) = cell.load(rested) else { continue };
            let rest_ns = plan.token.reset_ns(word, now_ns);
            if rest_ns > newest_ns {
                (newest_ns, newest) = (rest_ns, Some((cell, stored)));
            }
        }
        let Some((cell, stored)) = newest else { return };
        if cell.replace(stored, rested()) {
            left -= 1;
        }
    }
}
