//! Spending that is not for now: booked for a later moment, or taken in advance.

use super::word::{Refusal, decision_of, spend_word, update};
use super::{Cells, Charged, spend_shadows};
use crate::algorithm::{Charge, Plan, Step};
use crate::compile::{Bucket, Compiled};
use crate::decision::Decision;
use crate::sync::{Fault, is_broken};
use std::cell::Cell;

/// What was booked.
pub(crate) struct Booking {
    pub(crate) decision: Decision,
    pub(crate) charge: Charge,
    /// How long until its moment.
    pub(crate) wait_ns: u64,
    /// The shadow rules that it was charged to.
    pub(crate) shadows: Charged,
}

/// Books `cost` on the one token bucket that decides, for the earliest moment within `wait_ns_max`; shadow rules are
/// charged now. The cost is at least 1 and at most the burst.
pub(crate) fn book(
    policy: &Compiled,
    bucket: &Bucket,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
    wait_ns_max: u64,
) -> Result<Booking, Decision> {
    let index = policy.rules.iter().position(|rule| !rule.shadow).unwrap_or(0);
    let (booked, plan) = book_word(bucket, cells, now_ns, cost, wait_ns_max);
    let decision = decision_of(&booked, &plan, bucket.name, now_ns, cost).of_rule(index);
    let Ok(charge) = booked else { return Err(decision) };
    // The word after the charge holds up a request for nothing for as long as this one has to wait.
    let wait_ns = if charge.uncounted { 0 } else { plan.wait_ns(charge.word, charge.at_ns, 0) };
    let mut shadows = Charged::default();
    let decision = spend_shadows(&policy.rules, cells, charge.at_ns, cost, decision, &mut shadows);
    Ok(Booking { decision, charge, wait_ns, shadows })
}

/// Spends `cost` from a bucket now, however far that puts it into debt; false if a word cannot say so.
pub(crate) fn spend_into_debt(bucket: &Bucket, cells: &impl Cells, cost: u64) -> bool {
    book_word(bucket, cells, cells.now_ns(), cost, u64::MAX).0.is_ok()
}

fn book_word(
    bucket: &Bucket,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
    wait_ns_max: u64,
) -> (Result<Charge, Refusal>, Plan) {
    let (plan, cell) = (Plan::Gcra(bucket.plan), bucket.cell);
    let booked = spend_word(plan, cell, cells, cells.find(cell), now_ns, |plan, word, at_ns| {
        let Plan::Gcra(plan) = plan else { return None };
        let (next, wait_ns) = plan.book(word, at_ns, cost, wait_ns_max)?;
        cells.book_ahead(at_ns.saturating_add(wait_ns));
        Some(next)
    });
    (booked, cells.seasoned(plan, cell, now_ns))
}

/// Whether the rule is still the one that was charged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// It is, and nothing was forgotten.
    Same,
    /// Another one may have cut the word down: what was charged is on it only as long as it lies at least where the
    /// charge has left it.
    Other,
    /// The word was reset: what was charged is not on it any more.
    Forgotten,
}

/// Undoes `cost` of what [`book`] charged to a bucket, if all that was ahead of it still is; false if it was cut
/// down.
pub(crate) fn unbook(
    bucket: &Bucket,
    cells: &impl Cells,
    cost: u64,
    charge: Charge,
    since: impl Fn() -> Since,
) -> bool {
    charge.uncounted || hand_back_to(bucket, cells, cost, charge, charge.word, since)
}

/// Undoes `left` of the `taken` that [`spend_within`] charged.
pub(crate) fn give_back(
    bucket: &Bucket,
    cells: &impl Cells,
    left: u64,
    taken: u64,
    charge: Charge,
    since: impl Fn() -> Since,
) {
    if !charge.uncounted {
        let alone = charge.alone(Plan::Gcra(bucket.plan), taken);
        hand_back_to(bucket, cells, left, alone, charge.word, since);
    }
}

/// Undoes one charge, which left the bucket's word at `left_at`; false if the word was cut down since.
fn hand_back_to(
    bucket: &Bucket,
    cells: &impl Cells,
    cost: u64,
    charge: Charge,
    left_at: u64,
    since: impl Fn() -> Since,
) -> bool {
    let is_whole = Cell::new(true);
    let early = is_broken(Fault::JudgesEarly).then(&since);
    update(cells, bucket.cell, |word, now_ns| {
        let Plan::Gcra(plan) = cells.seasoned(Plan::Gcra(bucket.plan), bucket.cell, now_ns) else {
            return word;
        };
        // Asked after the word was read: whoever reads what was written since then by another rule, or since it was
        // reset, finds that it was. And what was not read is not written over.
        is_whole.set(match early.unwrap_or_else(&since) {
            Since::Same => true,
            Since::Other => plan.is_at_or_beyond(word, left_at, now_ns),
            Since::Forgotten => false,
        });
        if is_whole.get() { plan.hand_back(word, now_ns, cost, charge) } else { word }
    });
    is_whole.get()
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
