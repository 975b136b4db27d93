//! Spending that is not for now: booked for a later moment, or taken in advance.

use super::Cells;
use super::word::{decision_of, hand_back_word, spend_word};
use crate::algorithm::{Charge, Plan, Step};
use crate::compile::{Bucket, Compiled};
use crate::decision::Decision;

/// Books `cost` from a policy's one token bucket for the earliest moment within `wait_ns_max`: what was charged,
/// and how long until that moment. The cost is at least 1 and at most the burst.
pub(crate) fn book(
    bucket: &Bucket,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
    wait_ns_max: u64,
) -> Result<(Decision, Charge, u64), Decision> {
    let Bucket { plan, name, cell } = *bucket;
    let booked = spend_word(Plan::Gcra(plan), cell, cells, cells.find(cell), now_ns, |plan, word, at_ns| {
        let Plan::Gcra(plan) = plan else { return None };
        let (next, wait_ns) = plan.book(word, at_ns, cost, wait_ns_max)?;
        cells.book_ahead(wait_ns);
        Some(next)
    });
    let plan = cells.seasoned(Plan::Gcra(plan), cell);
    let decision = decision_of(&booked, &plan, name, now_ns, cost);
    let Ok(charge) = booked else { return Err(decision) };
    // The word after the charge holds up a request for nothing for as long as this one has to wait.
    let wait_ns = if charge.uncounted { 0 } else { plan.wait_ns(charge.word, charge.at_ns, 0) };
    Ok((decision, charge, wait_ns))
}

/// Undoes `cost` of what [`book`] charged to a policy's one token bucket, if all that was ahead of it still is.
pub(crate) fn unbook(policy: &Compiled, cells: &impl Cells, cost: u64, charge: Charge) {
    if let (Some(bucket), false) = (policy.only_bucket, charge.uncounted) {
        hand_back_word(Plan::Gcra(bucket.plan), bucket.cell, cells, cost, charge);
    }
}

/// Undoes `left` of the `taken` that [`spend_within`] charged.
pub(crate) fn give_back(bucket: &Bucket, cells: &impl Cells, left: u64, taken: u64, charge: Charge) {
    if !charge.uncounted {
        let plan = Plan::Gcra(bucket.plan);
        hand_back_word(plan, bucket.cell, cells, left, charge.alone(plan, taken));
    }
}

/// Spends `cost` from a policy's one token bucket as of a moment `delay_ns` from now, if it fits now already.
pub(crate) fn spend_within(
    bucket: &Bucket,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
    delay_ns: u64,
) -> Option<Charge> {
    let (plan, cell) = (Plan::Gcra(bucket.plan), bucket.cell);
    spend_word(plan, cell, cells, cells.find(cell), now_ns, |plan, word, at_ns| match plan {
        Plan::Gcra(plan) => plan.spend_within(word, at_ns, cost, delay_ns),
        _ => None,
    })
    .ok()
}
