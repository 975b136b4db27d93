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

use crate::algorithm::{Charge, LogView, Plan, SlidingLog, Step};
use crate::decision::{Decision, Outcome, View};
use crate::policy::{Bucket, CELLS_MAX, Compiled, CompiledRule, RULES_MAX};
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
    /// Puts `payload` where `stored` was; false only if something else is there by now.
    fn replace(&self, stored: u64, payload: u64) -> bool;
}

/// The row of words that is one key's state, and the clock it goes by.
pub(crate) trait Cells {
    type Cell<'a>: Cell
    where
        Self: 'a;

    /// A cell, if it is where it is likeliest to be.
    fn glance(&self, index: usize) -> Option<Self::Cell<'_>>;
    /// A cell, if it is there; it may still turn out stale.
    fn find(&self, index: usize) -> Option<Self::Cell<'_>>;
    /// A cell to charge, with room made for it where it was missing or stale. `may_displace` is the leave to
    /// take the room from another key that is about to have it.
    fn claim(&self, index: usize, now_ns: u64, may_displace: &mut bool) -> Result<Self::Cell<'_>, NoRoom>;
    /// The time.
    fn now_ns(&self) -> u64;
}

/// Why nothing was spent.
enum Refusal {
    /// It does not fit what the word says at this time.
    Word { word: u64, at_ns: u64 },
    /// The table has no room for the key.
    NoRoom { wait_ns: u64 },
}

/// Spends `cost` under all rules, or under none.
#[inline]
pub(crate) fn acquire(policy: &Compiled, cells: &impl Cells, cost: u64) -> Decision {
    if cost.wrapping_sub(1) >= policy.bucket.plan.burst {
        return acquire_all(policy, cells, cells.now_ns(), cost);
    }
    match cells.glance(0) {
        Some(cell) => acquire_found(policy, cells, &cell, || cells.now_ns(), cost),
        None => acquire_elsewhere(policy, cells, || cells.now_ns(), cost),
    }
}

/// The same at a time that was read before.
#[inline]
pub(crate) fn acquire_at(policy: &Compiled, cells: &impl Cells, now_ns: u64, cost: u64) -> Decision {
    if cost.wrapping_sub(1) >= policy.bucket.plan.burst {
        return acquire_all(policy, cells, now_ns, cost);
    }
    match cells.glance(0) {
        Some(cell) => acquire_found(policy, cells, &cell, || now_ns, cost),
        None => acquire_elsewhere(policy, cells, || now_ns, cost),
    }
}

/// Spends from the only cell of a policy that is one token bucket.
#[inline(always)]
fn acquire_found<C: Cells>(
    policy: &Compiled,
    cells: &C,
    cell: &C::Cell<'_>,
    now: impl FnOnce() -> u64,
    cost: u64,
) -> Decision {
    let Bucket { plan, name } = &policy.bucket;
    // Loaded before the time is read: a processor may hold back later loads until it has read its counter,
    // and the word may have a long way to come.
    let loaded = cell.load(|| 0);
    let now_ns = now();
    let decision = |outcome, word| Decision::new(outcome, 0, *name, View::Gcra(*plan, word), now_ns, cost);
    if let Ok((stored, word)) = loaded {
        match plan.admit(word, now_ns, cost) {
            Some(next) if cell.replace(stored, next) => return decision(Outcome::Allowed, next),
            None if !plan.is_doubtful(word, now_ns) => return decision(Outcome::Denied, word),
            _ => {}
        }
    }
    acquire_bucket(policy, cells, cells.find(0), now_ns, cost)
}

/// Spends from the only cell of such a policy, where that takes more than a glance to find.
#[inline(never)]
fn acquire_elsewhere(
    policy: &Compiled,
    cells: &impl Cells,
    now: impl FnOnce() -> u64,
    cost: u64,
) -> Decision {
    match cells.find(0) {
        Some(cell) => acquire_found(policy, cells, &cell, now, cost),
        None => acquire_bucket(policy, cells, None, now(), cost),
    }
}

/// Spends from the only cell of such a policy, whatever it takes.
#[inline(never)]
fn acquire_bucket<'a, C: Cells>(
    policy: &Compiled,
    cells: &'a C,
    found: Option<C::Cell<'a>>,
    now_ns: u64,
    cost: u64,
) -> Decision {
    let Bucket { plan, name } = policy.bucket;
    let (outcome, view, at_ns) = match spend_word(plan, 0, cells, found, now_ns, cost) {
        Ok(charge) => (Outcome::Allowed, View::Gcra(plan, charge.word), charge.at_ns),
        Err(Refusal::Word { word, at_ns }) => (Outcome::Denied, View::Gcra(plan, word), at_ns),
        Err(Refusal::NoRoom { wait_ns }) => {
            (Outcome::Denied, View::NoRoom { limit: plan.burst, wait_ns }, now_ns)
        }
    };
    Decision::new(outcome, 0, name, view, at_ns, cost)
}

/// The general case: other algorithms, several rules, a cost of nothing or one that never fits.
#[inline(never)]
fn acquire_all(policy: &Compiled, cells: &impl Cells, now_ns: u64, cost: u64) -> Decision {
    let rules = &policy.rules;
    // One word alone is its own look.
    let alone = policy.cells == 1 && cost.wrapping_sub(1) < rules[0].plan.limit();
    if !alone {
        let look = peek_all(rules, cells, now_ns, cost);
        if look.is_denied() || cost == 0 {
            return look;
        }
    }
    let mut charges = [Charge::default(); RULES_MAX];
    let mut tokens = Tokens::default();
    let mut tightest = None;
    for (index, rule) in rules.iter().enumerate() {
        let charge = &mut charges[index];
        match spend(rule, cells, now_ns, cost, charge, &mut tokens) {
            Ok(view) => {
                let decision = Decision::new(Outcome::Allowed, index, rule.name, view, charge.at_ns, cost);
                tightest = Some(tighter(tightest, decision));
            }
            Err((view, at_ns)) => {
                if !is_broken(Fault::NoHandBack) {
                    for (charged, charge) in rules[..index].iter().zip(charges) {
                        hand_back(charged, cells, cost, charge, &tokens);
                    }
                }
                return Decision::new(Outcome::Denied, index, rule.name, view, at_ns, cost);
            }
        }
    }
    tightest.unwrap_or_else(|| peek_all(rules, cells, now_ns, cost))
}

/// What `acquire` would decide, by loads alone.
pub(crate) fn peek(policy: &Compiled, cells: &impl Cells, cost: u64) -> Decision {
    peek_all(&policy.rules, cells, cells.now_ns(), cost)
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
            _ => tighter(Some(worst), decision),
        };
    }
    worst
}

fn peek_rule(index: usize, rule: &CompiledRule, cells: &impl Cells, now_ns: u64, cost: u64) -> Decision {
    let limit = rule.plan.limit();
    let (view, at_ns) = look(rule, cells, now_ns, cost.min(limit));
    let outcome = if cost > limit {
        Outcome::NeverFits
    } else if cost == 0 || view.wait_ns(at_ns, cost) == 0 {
        Outcome::Allowed
    } else {
        Outcome::Denied
    };
    Decision::new(outcome, index, rule.name, view, at_ns, cost)
}

/// The one of two decisions that binds more; the earlier rule where they are equal.
fn tighter(first: Option<Decision>, second: Decision) -> Decision {
    let Some(first) = first else { return second };
    let second_binds = match (first.is_allowed(), second.is_allowed()) {
        (true, true) => second.headroom().compare(first.headroom()) == Ordering::Less,
        (false, false) => second.retry_after() > first.retry_after(),
        (first_allowed, _) => first_allowed,
    };
    if second_binds { second } else { first }
}

/// What one rule's state is, and at which time that was found.
fn look(rule: &CompiledRule, cells: &impl Cells, now_ns: u64, cost: u64) -> (View, u64) {
    match rule.plan {
        Plan::Gcra(plan) => look_at_word(plan, rule, cells, now_ns),
        Plan::FixedWindow(plan) => look_at_word(plan, rule, cells, now_ns),
        Plan::SlidingWindow(plan) => look_at_word(plan, rule, cells, now_ns),
        Plan::SlidingLog(plan) => look_at_log(plan, rule.first_cell, cells, now_ns, cost),
    }
}

fn look_at_word(step: impl Step, rule: &CompiledRule, cells: &impl Cells, now_ns: u64) -> (View, u64) {
    let (at_ns, word) = undoubted(step, payload(step, rule.first_cell, cells, now_ns), now_ns, cells);
    (View::of_word(&rule.plan, word), at_ns)
}

/// The payload of a cell; a cell that is not there, or no longer the key's, is worth a fresh one.
fn payload(step: impl Step, index: usize, cells: &impl Cells, now_ns: u64) -> u64 {
    match cells.find(index).map(|cell| cell.load(|| step.fresh(now_ns))) {
        Some(Ok((_, payload))) => payload,
        Some(Err(Stale)) | None => step.fresh(now_ns),
    }
}

/// Spends under one rule; either way says what its state then was, and leaves a record of what it did.
fn spend(
    rule: &CompiledRule,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
    charge: &mut Charge,
    tokens: &mut Tokens,
) -> Result<View, (View, u64)> {
    let index = rule.first_cell;
    let spent = match rule.plan {
        Plan::Gcra(plan) => spend_word(plan, index, cells, cells.find(index), now_ns, cost),
        Plan::FixedWindow(plan) => spend_word(plan, index, cells, cells.find(index), now_ns, cost),
        Plan::SlidingWindow(plan) => spend_word(plan, index, cells, cells.find(index), now_ns, cost),
        Plan::SlidingLog(plan) => {
            charge.at_ns = now_ns;
            return spend_tokens(plan, index, cells, now_ns, cost, tokens);
        }
    };
    match spent {
        Ok(made) => {
            *charge = made;
            Ok(View::of_word(&rule.plan, made.word))
        }
        Err(Refusal::Word { word, at_ns }) => Err((View::of_word(&rule.plan, word), at_ns)),
        Err(Refusal::NoRoom { wait_ns }) => Err((View::NoRoom { limit: rule.plan.limit(), wait_ns }, now_ns)),
    }
}

/// Spends from one cell, whatever it takes: making room for it, or trying again after others.
#[inline]
fn spend_word<'a, C: Cells>(
    step: impl Step,
    index: usize,
    cells: &'a C,
    mut found: Option<C::Cell<'a>>,
    mut now_ns: u64,
    cost: u64,
) -> Result<Charge, Refusal> {
    let mut may_displace = true;
    loop {
        let cell = match found {
            Some(cell) => cell,
            None => match cells.claim(index, now_ns, &mut may_displace) {
                Ok(cell) => {
                    // Since the time was read, the key may have come, spent and been forgotten. What it spends
                    // now would be back too early, if it counted from then.
                    if !is_broken(Fault::TrustsOldTime) {
                        now_ns = now_ns.max(cells.now_ns());
                    }
                    cell
                }
                Err(NoRoom::Allow) => {
                    return Ok(Charge { word: step.fresh(now_ns), at_ns: now_ns, uncounted: true });
                }
                Err(NoRoom::Deny { wait_ns }) => return Err(Refusal::NoRoom { wait_ns }),
            },
        };
        while let Ok((stored, word)) = cell.load(|| step.fresh(now_ns)) {
            let (at_ns, word) = undoubted(step, word, now_ns, cells);
            let Some(next) = step.admit(word, at_ns, cost) else {
                return Err(Refusal::Word { word, at_ns });
            };
            if cell.replace(stored, next) {
                return Ok(Charge { word: next, at_ns, uncounted: false });
            }
        }
        found = None;
    }
}

/// A word that was read after the time, and the time to judge it by: a later one, where the two are so far
/// apart that it makes a difference. A word that is still doubtful then is one long forgotten.
fn undoubted(step: impl Step, word: u64, now_ns: u64, cells: &impl Cells) -> (u64, u64) {
    if !step.is_doubtful(word, now_ns) {
        return (now_ns, word);
    }
    let at_ns = if is_broken(Fault::TrustsOldTime) { now_ns } else { cells.now_ns() };
    (at_ns, if step.is_doubtful(word, at_ns) { step.fresh(at_ns) } else { word })
}

/// Changes one cell by a function that cannot refuse, at a time read after the cell. A cell that is not
/// there has nothing to change.
fn update(cells: &impl Cells, index: usize, change: impl Fn(u64, u64) -> u64) {
    let Some(cell) = cells.find(index) else { return };
    while let Ok((stored, word)) = cell.load(|| 0) {
        let next = change(word, cells.now_ns());
        if next == word || cell.replace(stored, next) {
            return;
        }
    }
}

/// Undoes what this request spent under one rule.
fn hand_back(rule: &CompiledRule, cells: &impl Cells, cost: u64, charge: Charge, tokens: &Tokens) {
    if charge.uncounted {
        return;
    }
    let index = rule.first_cell;
    match rule.plan {
        Plan::Gcra(plan) => update(cells, index, |word, now_ns| plan.hand_back(word, now_ns, cost, charge)),
        Plan::FixedWindow(plan) => {
            update(cells, index, |word, now_ns| plan.hand_back(word, now_ns, cost, charge));
        }
        Plan::SlidingWindow(plan) => {
            update(cells, index, |word, now_ns| plan.hand_back(word, now_ns, cost, charge));
        }
        Plan::SlidingLog(plan) => hand_back_tokens(plan, index, cells, charge.at_ns, tokens),
    }
}

/// Undoes the newest `cost` spent under every rule, at most back to fresh.
pub(crate) fn refund(policy: &Compiled, cells: &impl Cells, cost: u64) {
    for rule in &policy.rules {
        let index = rule.first_cell;
        match rule.plan {
            Plan::Gcra(plan) => update(cells, index, |word, now_ns| plan.refund(word, now_ns, cost)),
            Plan::FixedWindow(plan) => update(cells, index, |word, now_ns| plan.refund(word, now_ns, cost)),
            Plan::SlidingWindow(plan) => update(cells, index, |word, now_ns| plan.refund(word, now_ns, cost)),
            Plan::SlidingLog(plan) => rest_newest(plan, index, cells, cost, None),
        }
    }
}

/// Makes every cell fresh.
pub(crate) fn reset(policy: &Compiled, cells: &impl Cells) {
    for rule in &policy.rules {
        for index in rule.cells() {
            update(cells, index, |_, now_ns| rule.plan.fresh(now_ns));
        }
    }
}

/// Which cells of a policy's sliding logs a request has taken.
#[derive(Default)]
struct Tokens([u64; CELLS_MAX / 64]);

impl Tokens {
    fn add(&mut self, index: usize, charge: Charge) {
        self.0[index / 64] |= u64::from(!charge.uncounted) << (index % 64);
    }

    fn has(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }
}

fn look_at_log(plan: SlidingLog, first: usize, cells: &impl Cells, now_ns: u64, cost: u64) -> (View, u64) {
    let row = first..first + plan.words();
    let word = |index| payload(plan.token, index, cells, now_ns);
    // As for a single word: if one is doubtful, a later time decides.
    let doubtful = row.clone().any(|index| plan.token.is_doubtful(word(index), now_ns));
    let at_ns = if doubtful && !is_broken(Fault::TrustsOldTime) { cells.now_ns() } else { now_ns };
    (View::SlidingLog(plan.look(row.map(word), at_ns, cost)), at_ns)
}

/// Takes `cost` rested tokens of a log, or none.
fn spend_tokens(
    plan: SlidingLog,
    first: usize,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
    tokens: &mut Tokens,
) -> Result<View, (View, u64)> {
    let mut taken = 0;
    // One round over the row sees every token. One that another request took first counts as its success,
    // not as ours to wait for.
    for index in first..first + plan.words() {
        if taken == cost {
            break;
        }
        match spend_word(plan.token, index, cells, cells.find(index), now_ns, 1) {
            Ok(charge) => {
                tokens.add(index, charge);
                taken += 1;
            }
            Err(Refusal::Word { .. }) => {}
            Err(Refusal::NoRoom { wait_ns }) => {
                hand_back_tokens(plan, first, cells, now_ns, tokens);
                return Err((View::NoRoom { limit: plan.limit, wait_ns }, now_ns));
            }
        }
    }
    if taken < cost {
        if !is_broken(Fault::NoHandBack) {
            hand_back_tokens(plan, first, cells, now_ns, tokens);
        }
        return Err(match look_at_log(plan, first, cells, now_ns, cost) {
            // Others have handed back meanwhile: it would fit by now, so come back at once.
            (View::SlidingLog(view), at_ns) => {
                (View::SlidingLog(LogView { wait_ns: view.wait_ns.max(1), ..view }), at_ns)
            }
            other => other,
        });
    }
    Ok(look_at_log(plan, first, cells, now_ns, 0).0)
}

/// Rests the tokens of one log that this request took at `at_ns`.
fn hand_back_tokens(plan: SlidingLog, first: usize, cells: &impl Cells, at_ns: u64, tokens: &Tokens) {
    let rested = plan.token.fresh(at_ns);
    let Some(ours) = plan.token.admit(rested, at_ns, 1) else { return };
    let mut missing = 0;
    for index in (first..first + plan.words()).filter(|&index| tokens.has(index)) {
        let Some(cell) = cells.find(index) else { continue };
        let Ok((stored, word)) = cell.load(|| rested) else { continue };
        if word == ours && cell.replace(stored, rested) {
            continue;
        }
        // A refund that was meant for an earlier request may have rested ours, as the newest; then that
        // earlier one is still to be undone. A token for which room had to be made bears a later time, and
        // is the newest itself. After a window ours has come back by itself, and nothing is.
        missing += u64::from(plan.token.reset_ns(ours, cells.now_ns()) > 0);
    }
    rest_newest(plan, first, cells, missing, Some(ours));
}

/// Rests the `cost` tokens of a log that were used last, of those used no later than `up_to` was.
fn rest_newest(plan: SlidingLog, first: usize, cells: &impl Cells, cost: u64, up_to: Option<u64>) {
    let mut left = cost.min(plan.limit);
    while left > 0 {
        let now_ns = cells.now_ns();
        let rested = plan.token.fresh(now_ns);
        let latest_ns = up_to.map_or(u64::MAX, |word| plan.token.reset_ns(word, now_ns));
        let mut newest_ns = 0;
        let mut newest = None;
        for index in first..first + plan.words() {
            let Some(cell) = cells.find(index) else { continue };
            let Ok((stored, word)) = cell.load(|| rested) else { continue };
            let rest_ns = plan.token.reset_ns(word, now_ns);
            if rest_ns > newest_ns && rest_ns <= latest_ns {
                (newest_ns, newest) = (rest_ns, Some((cell, stored)));
            }
        }
        let Some((cell, stored)) = newest else { return };
        if cell.replace(stored, rested) {
            left -= 1;
        }
    }
}
