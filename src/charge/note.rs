//! Cells that are no rule's: marks, list entries, lockouts.

use super::word::{decision_of, spend_word};
use super::{Cell, Cells};
use crate::algorithm::{Gcra, Penalty, Plan, Step};
use crate::decision::Decision;

/// Takes the mark in `cell` for `length_ns`, unless it is taken.
pub(crate) fn take_mark(cells: &impl Cells, cell: usize, now_ns: u64, length_ns: u64) -> Decision {
    let plan = Plan::Gcra(Gcra::mark(length_ns));
    let spent = spend_word(plan, cell, cells, cells.find(cell), now_ns, |plan, word, at_ns| {
        plan.admit(word, at_ns, 1)
    });
    decision_of(&spent, &plan, None, now_ns, 1)
}

/// The payload of a cell that is no rule's, if there is one.
pub(crate) fn note(cells: &impl Cells, cell: usize) -> Option<u64> {
    cells.find(cell)?.load(|| 0).ok().map(|(_, payload)| payload)
}

/// Puts `payload` into a cell that is no rule's; false if there is no room.
pub(crate) fn set_note(cells: &impl Cells, cell: usize, payload: u64) -> bool {
    change_note(cells, cell, |_, _| Some(payload))
}

/// Counts a refusal against the key, unless it is locked out by now.
pub(crate) fn strike(penalty: &Penalty, cells: &impl Cells, cell: usize) {
    let is_counted = change_note(cells, cell, |word, now_ns| {
        (penalty.locked_ns(word, now_ns) == 0).then(|| penalty.strike(word, now_ns))
    });
    if !is_counted {
        cells.count_lost_strike();
    }
}

/// Changes a cell that is no rule's, with room made for it; `None` leaves it. False if there is no room.
fn change_note(cells: &impl Cells, index: usize, change: impl Fn(u64, u64) -> Option<u64>) -> bool {
    let mut found = cells.find(index);
    let mut may_displace = true;
    loop {
        let cell = match found {
            Some(cell) => cell,
            None => match cells.claim(index, cells.now_ns(), &mut may_displace) {
                Ok(cell) => cell,
                Err(_) => return false,
            },
        };
        while let Ok((stored, word)) = cell.load(|| 0) {
            match change(word, cells.now_ns()) {
                Some(next) if !cell.replace(stored, next) => {}
                _ => return true,
            }
        }
        found = None;
    }
}
