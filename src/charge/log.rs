//! The row of tokens that is a sliding log: looking at it, taking some of it, and laying them down again.

use super::word::{Refusal, Refused, payload, spend_word};
use super::{Cell, Cells};
use crate::algorithm::{Charge, Plan, SlidingLog, Step, Summary, View};
use crate::compile::LAYOUT_CELLS_MAX;
use crate::sync::{Fault, is_broken};

/// Which cells of a policy's sliding logs a request has taken.
pub(super) struct Tokens {
    taken: [u64; LAYOUT_CELLS_MAX.div_ceil(64)],
    /// When the last was taken: a token for which room had to be made is taken by a later time.
    last_ns: u64,
}

impl Default for Tokens {
    fn default() -> Self {
        Self { taken: [0; LAYOUT_CELLS_MAX.div_ceil(64)], last_ns: 0 }
    }
}

impl Tokens {
    pub(super) fn add(&mut self, index: usize, charge: Charge) {
        self.taken[index / 64] |= u64::from(!charge.uncounted) << (index % 64);
        self.last_ns = self.last_ns.max(charge.at_ns);
    }

    pub(super) fn has(&self, index: usize) -> bool {
        self.taken[index / 64] >> (index % 64) & 1 == 1
    }
}

pub(super) fn look_at_log(
    plan: SlidingLog,
    first: usize,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
) -> (Summary, u64) {
    let row = first..first + plan.words();
    let word = |index| payload(Plan::SlidingLog(plan), index, cells, now_ns);
    // As for a single word: if one is doubtful, a later time decides.
    let doubtful = row.clone().any(|index| plan.token.is_doubtful(word(index), now_ns));
    let at_ns = if doubtful && !is_broken(Fault::TrustsOldTime) { cells.now_ns() } else { now_ns };
    (plan.look(row.map(word), at_ns, cost), at_ns)
}

/// Takes `cost` rested tokens of a log, or none.
pub(super) fn spend_tokens(
    plan: SlidingLog,
    first: usize,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
    tokens: &mut Tokens,
) -> Result<View, Refused> {
    let mut taken = 0;
    // One round over the row sees every token. One that another request took first counts as its success,
    // not as ours to wait for.
    for index in first..first + plan.words() {
        if taken == cost {
            break;
        }
        let token = spend_word(
            Plan::SlidingLog(plan),
            index,
            cells,
            cells.find(index),
            now_ns,
            |plan, word, at_ns| plan.admit(word, at_ns, 1),
        );
        match token {
            Ok(charge) => {
                tokens.add(index, charge);
                taken += 1;
            }
            Err(Refusal::Word { .. }) => {}
            Err(Refusal::NoRoom { cause, wait_ns }) => {
                hand_back_tokens(plan, first, cells, now_ns, tokens);
                return Err(Refused { cause, view: View::no_room(plan.limit, wait_ns), at_ns: now_ns });
            }
        }
    }
    if taken < cost {
        if !is_broken(Fault::NoHandBack) {
            hand_back_tokens(plan, first, cells, now_ns, tokens);
        }
        let (seen, at_ns) = look_at_log(plan, first, cells, now_ns, cost);
        // Where others have handed back meanwhile, it would fit by now: so come back at once.
        let view = View::Summary(Summary { wait_ns: seen.wait_ns.max(1), ..seen });
        return Err(Refused::by_rule(view, at_ns));
    }
    Ok(View::Summary(look_at_log(plan, first, cells, now_ns, 0).0))
}

/// Rests the tokens of one log that this request took at `at_ns`.
pub(super) fn hand_back_tokens(
    plan: SlidingLog,
    first: usize,
    cells: &impl Cells,
    at_ns: u64,
    tokens: &Tokens,
) {
    let rested = plan.token.fresh(at_ns);
    let taken_at = |time_ns| plan.token.admit(plan.token.fresh(time_ns), time_ns, 1);
    let (Some(ours), Some(last)) = (taken_at(at_ns), taken_at(tokens.last_ns.max(at_ns))) else { return };
    let mut missing = 0;
    for index in (first..first + plan.words()).filter(|&index| tokens.has(index)) {
        let Some(cell) = cells.find(index) else { continue };
        let Ok((stored, word)) = cell.load(|| rested) else { continue };
        // A token for which room had to be made bears a later time than the others.
        let now_ns = cells.now_ns();
        let until_ns = |word| plan.token.reset_ns(word, now_ns);
        let is_ours = word == ours || (until_ns(ours)..=until_ns(last)).contains(&until_ns(word));
        if is_ours && cell.replace(stored, rested) {
            continue;
        }
        // A refund that was meant for an earlier request may have rested ours, as the newest; then that
        // earlier one is still to be undone. After a window ours has come back by itself, and nothing is.
        missing += u64::from(until_ns(last) > 0);
    }
    rest_newest(plan, first, cells, missing, Some(last));
}

/// Rests the `cost` tokens of a log that were used last, of those used no later than `up_to` was.
pub(super) fn rest_newest(plan: SlidingLog, first: usize, cells: &impl Cells, cost: u64, up_to: Option<u64>) {
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
