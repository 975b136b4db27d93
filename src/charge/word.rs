//! One cell: spending from it by a step, and changing it, whatever it takes.

use super::{Cell, Cells, NoRoom, Stale};
use crate::algorithm::{Charge, Plan, Step, View};
use crate::decision::{Cause, Decision, Outcome};
use crate::sync::{Fault, is_broken};

/// Why a rule refuses, and what its state was.
pub(super) struct Refused {
    pub(super) cause: Cause,
    pub(super) view: View,
    pub(super) at_ns: u64,
}

impl Refused {
    pub(super) fn by_rule(view: View, at_ns: u64) -> Self {
        Self { cause: Cause::Rule, view, at_ns }
    }
}

/// Why nothing was spent.
pub(super) enum Refusal {
    /// It does not fit what the word says at this time.
    Word { word: u64, at_ns: u64 },
    /// The table has no room for the key.
    NoRoom { cause: Cause, wait_ns: u64 },
}

/// What spending from the only word of a plan came to.
pub(super) fn decision_of(
    spent: &Result<Charge, Refusal>,
    plan: &Plan,
    name: Option<&'static str>,
    now_ns: u64,
    cost: u64,
) -> Decision {
    let new = |outcome, view, at_ns| Decision::new(outcome, 0, name, view, at_ns, cost);
    match *spent {
        Ok(Charge { word, at_ns, .. }) => new(Outcome::Allowed, plan.view(word, at_ns), at_ns),
        Err(Refusal::Word { word, at_ns }) => new(Outcome::Denied, plan.view(word, at_ns), at_ns),
        Err(Refusal::NoRoom { cause, wait_ns }) => {
            new(Outcome::Denied, View::no_room(plan.limit(), wait_ns), now_ns).because(cause)
        }
    }
}

/// The payload of a cell; a cell that is not there, or no longer the key's, is worth one that begins.
pub(super) fn payload(plan: Plan, index: usize, cells: &impl Cells, now_ns: u64) -> u64 {
    match cells.find(index).map(|cell| cell.load(|| cells.beginning(plan, index, now_ns))) {
        Some(Ok((_, payload))) => payload,
        Some(Err(Stale)) | None => cells.beginning(plan, index, now_ns),
    }
}

/// A cell that was missing or stale, and the time from which what is spent from it counts.
#[inline]
pub(super) fn claim_now<'a, C: Cells>(
    cells: &'a C,
    index: usize,
    now_ns: u64,
    may_displace: &mut bool,
) -> Result<(C::Cell<'a>, u64), NoRoom> {
    let cell = cells.claim(index, now_ns, may_displace)?;
    // Since the time was read, the key may have come, spent and been forgotten. What it spends now would be back too
    // early, if it counted from then.
    let later_ns = if is_broken(Fault::TrustsOldTime) { now_ns } else { now_ns.max(cells.now_ns()) };
    Ok((cell, later_ns))
}

/// What becomes of a request whose key has no room.
pub(super) fn without_room(plan: Plan, no_room: NoRoom, now_ns: u64) -> Result<Charge, Refusal> {
    match no_room {
        NoRoom::Allow => Ok(Charge { word: plan.fresh(now_ns), at_ns: now_ns, uncounted: true }),
        NoRoom::Deny { wait_ns } => Err(Refusal::NoRoom { cause: Cause::NoRoom, wait_ns }),
        NoRoom::Closed => Err(Refusal::NoRoom { cause: Cause::Closed, wait_ns: u64::MAX }),
    }
}

/// Spends from one cell by `step`, whatever it takes: making room for it, or trying again after others.
#[inline]
pub(super) fn spend_word<'a, C: Cells>(
    plan: Plan,
    index: usize,
    cells: &'a C,
    found: Option<C::Cell<'a>>,
    now_ns: u64,
    step: impl Fn(Plan, u64, u64) -> Option<u64>,
) -> Result<Charge, Refusal> {
    spend_word_by_leave(plan, index, cells, found, true, now_ns, step)
}

/// The same for a request that may have used its leave to take the room from another key.
#[inline]
pub(super) fn spend_word_by_leave<'a, C: Cells>(
    plan: Plan,
    index: usize,
    cells: &'a C,
    mut found: Option<C::Cell<'a>>,
    mut may_displace: bool,
    mut now_ns: u64,
    step: impl Fn(Plan, u64, u64) -> Option<u64>,
) -> Result<Charge, Refusal> {
    loop {
        let cell = match found {
            Some(cell) => cell,
            None => match claim_now(cells, index, now_ns, &mut may_displace) {
                Ok((cell, later_ns)) => {
                    now_ns = later_ns;
                    cell
                }
                Err(no_room) => return without_room(plan, no_room, now_ns),
            },
        };
        while let Ok((stored, word)) = cell.load(|| cells.beginning(plan, index, now_ns)) {
            let plan = cells.seasoned(plan, index, now_ns);
            let (at_ns, judged) = undoubted(plan, word, now_ns, cells);
            match step(plan, judged, at_ns) {
                Some(next) if cell.replace(stored, next) => {
                    return Ok(Charge { word: next, at_ns, uncounted: false });
                }
                // What an earlier rule left is cut down to what this one can make a key wait, once; else the
                // wait would begin anew at every look.
                None if judged == word || is_broken(Fault::LeavesUncut) || cell.replace(stored, judged) => {
                    return Err(Refusal::Word { word: judged, at_ns });
                }
                _ => {}
            }
        }
        found = None;
    }
}

/// A word that was read after the time, and the time to judge it by: a later one, where the two are so far
/// apart that it makes a difference. A word that is still doubtful then is one long forgotten, or left by an
/// earlier rule.
pub(super) fn undoubted(plan: Plan, word: u64, now_ns: u64, cells: &impl Cells) -> (u64, u64) {
    if !plan.is_doubtful(word, now_ns) {
        return (now_ns, word);
    }
    let at_ns = if is_broken(Fault::TrustsOldTime) { now_ns } else { cells.now_ns() };
    (at_ns, if plan.is_doubtful(word, at_ns) { plan.settled(word, at_ns) } else { word })
}

/// Changes one cell by a function that cannot refuse, at a time read after the cell. A cell that is not
/// there has nothing to change.
pub(super) fn update(cells: &impl Cells, index: usize, change: impl Fn(u64, u64) -> u64) {
    let Some(cell) = cells.find(index) else { return };
    while let Ok((stored, word)) = cell.load(|| 0) {
        let next = change(word, cells.now_ns());
        if next == word || cell.replace(stored, next) {
            return;
        }
    }
}

/// Undoes one charge to a cell, as far as it still counts.
#[cold]
pub(super) fn hand_back_word(plan: Plan, index: usize, cells: &impl Cells, cost: u64, charge: Charge) {
    update(cells, index, |word, now_ns| {
        cells.seasoned(plan, index, now_ns).hand_back(word, now_ns, cost, charge)
    });
}
