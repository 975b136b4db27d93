//! Giving back what was spent: the newest of it, or what one request has spent, as far as it still counts.

use super::Cells;
use super::log::rest_newest;
use super::word::{hand_back_word, update};
use crate::algorithm::{Charge, Plan, Step};
use crate::compile::Compiled;
#[cfg(feature = "tower")]
use crate::compile::CompiledRule;

/// Under which rules of a policy something was charged and counted, and when.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Charged {
    /// In bits.
    rules: u32,
    /// When the first of it was, ...
    at_ns: u64,
    /// ... and the last: a log's token for which room had to be made counts from later.
    until_ns: u64,
}

impl Charged {
    /// All rules of a policy, the shadows too where they were charged: decided by the first of the two times, and done by
    /// the other.
    #[cfg(feature = "tower")]
    pub(crate) fn all(policy: &Compiled, with_shadows: bool, (at_ns, until_ns): (u64, u64)) -> Self {
        let is_charged = |&(_, rule): &(usize, &CompiledRule)| with_shadows || !rule.shadow;
        let charged = policy.rules.iter().enumerate().filter(is_charged);
        Self { rules: charged.fold(0, |rules, (index, _)| rules | 1 << index), at_ns, until_ns }
    }

    pub(super) fn note(&mut self, index: usize, charge: Charge, is_charged: bool) {
        if is_charged && !charge.uncounted {
            self.at_ns = if self.rules == 0 { charge.at_ns } else { self.at_ns.min(charge.at_ns) };
            self.until_ns = self.until_ns.max(charge.at_ns);
            self.rules |= 1 << index;
        }
    }
}

/// Undoes the newest `cost` spent under every rule, at most back to fresh. What has begun has not ended by it.
pub(crate) fn refund(policy: &Compiled, cells: &impl Cells, cost: u64) {
    for rule in &policy.rules {
        let index = rule.first_cell;
        match rule.plan {
            Plan::SlidingLog(plan) => rest_newest(plan, index, cells, cost, None),
            Plan::InFlight(_) => {}
            plan => {
                update(cells, index, |word, now_ns| {
                    cells.seasoned(plan, index, now_ns).refund(word, now_ns, cost)
                });
            }
        }
    }
}

/// Undoes `left` of the `taken` that were spent under these rules, as far as they still count: what others have spent
/// since stays.
pub(crate) fn undo(policy: &Compiled, cells: &impl Cells, left: u64, taken: u64, charged: Charged) {
    let Charged { at_ns, until_ns, .. } = charged;
    let is_charged = |index: usize| charged.rules >> index & 1 == 1;
    for (_, rule) in policy.rules.iter().enumerate().filter(|&(index, _)| is_charged(index)) {
        let (index, plan) = (rule.first_cell, rule.plan);
        // Another policy may be in force by now, in which so much has no room.
        let (left, taken) = (left.min(plan.limit()), taken.min(plan.limit()));
        match plan {
            Plan::SlidingLog(log) => {
                let last = log.token.admit(log.token.fresh(until_ns), until_ns, 1);
                rest_newest(log, index, cells, left, last);
            }
            Plan::InFlight(_) => {}
            _ => {
                let charge = Charge { word: plan.fresh(at_ns), at_ns, uncounted: false };
                hand_back_word(plan, index, cells, left, charge.alone(plan, taken));
            }
        }
    }
}
