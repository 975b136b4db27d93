//! Spending under all rules of a policy at once: the compare-exchange loops around the pure steps.
//!
//! A key's state is a row of cells, one word each: one for most rules, `limit` of them for a sliding log.
//! Whoever stores the row lends it as [`Cells`]. A gate owns its cells for ever; a table makes room for a
//! cell when something is first charged to it, and may take the room back once it is worth nothing.
//!
//! Several rules are all or nothing. First look, with loads only: if any rule would refuse, nothing is
//! written. Then charge rule by rule; a rule that refuses after all, because somebody else spent in
//! between, makes the earlier ones hand back what they took, as far as it still holds anything up. So no bound
//! is ever passed, and a refusal leaves nothing charged; but in the instant between charge and hand-back, a
//! third request may be refused although it would have fitted.

mod ahead;
mod back;
mod log;
mod note;
mod quick;
mod word;

pub(crate) use ahead::{Booking, Since, book, give_back, spend_into_debt, spend_within, unbook};
pub(crate) use back::{Charged, refund, undo};
pub(crate) use note::{note, set_note, strike, take_mark};

use crate::algorithm::{Charge, Plan, Seen, Spent, Step, View};
use crate::compile::{Bucket, Compiled, CompiledRule, RULES_MAX};
use crate::decision::{Cause, Decision, Outcome};
use crate::sync::{Fault, is_broken};
use log::{Tokens, hand_back_tokens, look_at_log, spend_tokens};
use quick::{OfPair, acquire_pair, acquire_words};
use std::cmp::Ordering;
use word::{
    Refusal, Refused, claim_now, decision_of, hand_back_word, payload, spend_word, spend_word_by_leave,
    undoubted, update, without_room,
};

/// How often a cell is tried again, where others come between, before it is looked for: whoever came between is done,
/// and the line is still near.
const TRIES: usize = 3;

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
    /// The table is closed, and the request refused.
    Closed,
}

/// How far one has to look for a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It is on its first line.
    AtOnce,
    /// It is on another line of its first bucket.
    InHome,
    /// It is in its second bucket.
    InPartner,
}

/// One word of a key's state, lent as a copy like [`Cells`].
pub(crate) trait Cell: Copy {
    /// The word as it is stored, and its payload: `fresh` where nothing has been charged yet.
    fn load(&self, fresh: impl FnOnce() -> u64) -> Result<(u64, u64), Stale>;
    /// Puts `payload` where `stored` was; false only if something else is there by now.
    fn replace(&self, stored: u64, payload: u64) -> bool;
    /// The word as it is stored, of a cell that was found by its name, and of which nothing but that is in doubt. `None`
    /// says only that it takes a closer look.
    fn load_live(&self) -> Option<u64>;
    /// Puts a word in the place of one that was loaded so, with the storer's bits as they were.
    fn replace_live(&self, stored: u64, next: u64) -> bool;
}

/// The row of words that is one key's state, and the clock it goes by.
///
/// Whatever is not inlined is lent a copy. The original then never leaves the processor's registers; if its own
/// address were handed on, even where hardly anybody comes, every decision would begin by writing it down.
pub(crate) trait Cells: Copy {
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
    /// Why `claim` would find no room for a cell that is missing, by loads alone.
    fn foresees(&self, _index: usize, _now_ns: u64) -> Option<NoRoom> {
        None
    }
    /// Notes that a request is refused because it was foreseen.
    fn count_no_room(&self, _now_ns: u64) {}
    /// The time.
    fn now_ns(&self) -> u64;
    /// The time, if it can be read in passing.
    fn quick_ns(&self) -> Option<u64>;

    /// A plan that knows what else may have been written to its words: by later rules, and by booking ahead.
    /// Asked after a word was read, it knows of that word, as it is judged by this time or a later one.
    fn seasoned(&self, plan: Plan, _index: usize, _now_ns: u64) -> Plan {
        plan
    }

    /// The word of a cell that nothing is known of.
    fn beginning(&self, plan: Plan, _index: usize, now_ns: u64) -> u64 {
        plan.fresh(now_ns)
    }

    /// Whether rules other than the first have been in force over these words.
    fn has_changed(&self) -> bool {
        false
    }

    /// Moves the horizon, before a word is written that lies a whole burst beyond this moment.
    fn book_ahead(&self, _moment_ns: u64) {}

    /// Notes that a shadow rule would have refused.
    fn count_shadow(&self) {}

    /// Notes that a refusal could not be counted against the key: there is no room.
    fn count_lost_strike(&self) {}

    /// How far one has to look for a cell, if it is there and there is anything to look through.
    fn reach(&self, _index: usize) -> Option<Reach> {
        None
    }
}

impl Bucket {
    /// The decision on a request under this rule, of which so much is not back afterwards.
    #[inline(always)]
    pub(crate) fn decision(
        &self,
        index: usize,
        outcome: Outcome,
        debt_units: u64,
        now_ns: u64,
        cost: u64,
    ) -> Decision {
        Decision::new(outcome, index, self.name, View::Bucket(self.plan.debt_of(debt_units)), now_ns, cost)
    }
}

/// Whether a request takes one of the seats of a rule that has so many at once, or only asks for one.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Seat {
    Ask,
    Take,
}

/// Spends `cost` under all rules, or under none.
#[inline(always)]
pub(crate) fn acquire(policy: &Compiled, cells: &impl Cells, cost: u64) -> Decision {
    match cells.quick_ns() {
        Some(now_ns) => acquire_at(policy, cells, now_ns, cost),
        None => acquire_by_any_clock(policy, &{ *cells }, cost),
    }
}

/// The same by a clock that takes a call to read. Apart, because those who may call have to save what they hold.
#[inline(never)]
fn acquire_by_any_clock(policy: &Compiled, cells: &impl Cells, cost: u64) -> Decision {
    acquire_at(policy, cells, cells.now_ns(), cost)
}

/// The same at a time that was read before.
#[inline(always)]
pub(crate) fn acquire_at(policy: &Compiled, cells: &impl Cells, now_ns: u64, cost: u64) -> Decision {
    if cost.wrapping_sub(1) >= policy.bucket.plan.burst {
        return acquire_several(policy, &{ *cells }, now_ns, cost);
    }
    match cells.glance(0) {
        Some(cell) => acquire_found(policy, cells, &cell, now_ns, cost),
        None => acquire_elsewhere(policy, &{ *cells }, now_ns, cost),
    }
}

/// The common case of [`acquire`] in plain values (what came of it, the debt and the time), for who has something
/// to do before a decision is made of them: a single token bucket, found at a glance and beyond doubt, and nobody
/// comes between. `None`, and nothing spent, where it is not that.
#[inline(always)]
pub(crate) fn acquire_plainly(
    policy: &Compiled,
    cells: &impl Cells,
    cost: u64,
) -> Option<(Outcome, u64, u64)> {
    let now_ns = cells.quick_ns()?;
    let (outcome, debt_units) = acquire_plainly_at(policy, &cells.glance(0)?, now_ns, cost)?;
    Some((outcome, debt_units, now_ns))
}

/// The same for a cell that was found, at a time that was read before.
#[inline(always)]
pub(crate) fn acquire_plainly_at(
    policy: &Compiled,
    cell: &impl Cell,
    now_ns: u64,
    cost: u64,
) -> Option<(Outcome, u64)> {
    if cost.wrapping_sub(1) >= policy.bucket.plan.burst {
        return None;
    }
    spend_at_once(&policy.bucket, cell, now_ns, cost).ok()
}

/// Why a bucket could not be spent from at once.
#[derive(PartialEq)]
enum Hindered {
    /// Somebody came between.
    Beaten,
    /// The cell or its word takes a closer look.
    InDoubt,
}

/// Spends from a cell that was found, where nothing about it is in doubt and nobody comes between: what came of it, and
/// what has not come back by then.
#[inline(always)]
fn spend_at_once(
    bucket: &Bucket,
    cell: &impl Cell,
    now_ns: u64,
    cost: u64,
) -> Result<(Outcome, u64), Hindered> {
    let stored = cell.load_live().ok_or(Hindered::InDoubt)?;
    match bucket.stored.spend(stored, now_ns, cost) {
        Spent::Fits { next, debt_units } if cell.replace_live(stored, next) => {
            Ok((Outcome::Allowed, debt_units))
        }
        Spent::Fits { .. } => Err(Hindered::Beaten),
        Spent::Exceeds { debt_units } => Ok((Outcome::Denied, debt_units)),
        Spent::Doubtful => Err(Hindered::InDoubt),
    }
}

/// Spends from the only cell of a policy that is one token bucket.
#[inline(always)]
fn acquire_found<C: Cells>(
    policy: &Compiled,
    cells: &C,
    cell: &C::Cell<'_>,
    now_ns: u64,
    cost: u64,
) -> Decision {
    match spend_at_once(&policy.bucket, cell, now_ns, cost) {
        Ok((outcome, debt_units)) => policy.bucket.decision(0, outcome, debt_units, now_ns, cost),
        Err(_) => acquire_again(policy, &{ *cells }, now_ns, cost),
    }
}

/// Spends from the only cell of such a policy, where it was found and did not do: mostly because somebody came between.
#[cold]
#[inline(never)]
fn acquire_again(policy: &Compiled, cells: &impl Cells, now_ns: u64, cost: u64) -> Decision {
    for _ in 0..TRIES {
        match cells.glance(0).map(|cell| spend_at_once(&policy.bucket, &cell, now_ns, cost)) {
            Some(Ok((outcome, debt_units))) => {
                return policy.bucket.decision(0, outcome, debt_units, now_ns, cost);
            }
            Some(Err(Hindered::Beaten)) => {}
            Some(Err(Hindered::InDoubt)) | None => break,
        }
    }
    acquire_bucket(policy, cells, cells.find(0), true, now_ns, cost)
}

/// Spends from the only cell of such a policy, where that takes more than a glance to find.
#[inline(never)]
fn acquire_elsewhere(policy: &Compiled, cells: &impl Cells, now_ns: u64, cost: u64) -> Decision {
    match cells.find(0) {
        Some(cell) => acquire_found(policy, cells, &cell, now_ns, cost),
        None => acquire_anew(policy, cells, now_ns, cost),
    }
}

/// Spends from the only cell of such a policy, for a key that has none.
fn acquire_anew(policy: &Compiled, cells: &impl Cells, now_ns: u64, cost: u64) -> Decision {
    let Bucket { plan, name, .. } = policy.bucket;
    let mut may_displace = true;
    match claim_now(cells, 0, now_ns, &mut may_displace) {
        Ok((cell, now_ns)) => {
            if let Ok((stored, word)) = cell.load(|| cells.beginning(Plan::Gcra(plan), 0, now_ns)) {
                if let Some(next) = plan.admit(word, now_ns, cost) {
                    if cell.replace(stored, next) {
                        let view = View::Bucket(plan.debt(next, now_ns));
                        return Decision::new(Outcome::Allowed, 0, name, view, now_ns, cost);
                    }
                }
            }
            acquire_bucket(policy, cells, Some(cell), may_displace, now_ns, cost)
        }
        Err(no_room) => decision_of(
            &without_room(Plan::Gcra(plan), no_room, now_ns),
            &Plan::Gcra(plan),
            name,
            now_ns,
            cost,
        ),
    }
}

/// Spends from the only cell of such a policy, whatever it takes.
#[inline(never)]
fn acquire_bucket<'a, C: Cells>(
    policy: &Compiled,
    cells: &'a C,
    found: Option<C::Cell<'a>>,
    may_displace: bool,
    now_ns: u64,
    cost: u64,
) -> Decision {
    let Bucket { plan, name, .. } = policy.bucket;
    let step = |plan: Plan, word, at_ns| plan.admit(word, at_ns, cost);
    let spent = spend_word_by_leave(Plan::Gcra(plan), 0, cells, found, may_displace, now_ns, step);
    decision_of(&spent, &cells.seasoned(Plan::Gcra(plan), 0, now_ns), name, now_ns, cost)
}

/// Other policies than one token bucket.
#[inline(never)]
fn acquire_several(policy: &Compiled, cells: &impl Cells, now_ns: u64, cost: u64) -> Decision {
    if cost.wrapping_sub(1) >= policy.words_cost_max {
        return acquire_all(policy, cells, now_ns, cost, Seat::Ask).0;
    }
    let Some(pair) = &policy.pair else { return acquire_otherwise(policy, cells, now_ns, cost) };
    match acquire_pair(pair, cells, now_ns, cost) {
        Some(OfPair { outcome, second_binds, debt_units }) => {
            let index = usize::from(second_binds);
            pair[index].decision(index, outcome, debt_units, now_ns, cost)
        }
        None => acquire_otherwise(policy, cells, now_ns, cost),
    }
}

/// A few rules together, or else one after the other.
#[inline(never)]
fn acquire_otherwise(policy: &Compiled, cells: &impl Cells, now_ns: u64, cost: u64) -> Decision {
    acquire_few(policy, cells, now_ns, cost)
        .unwrap_or_else(|| acquire_all(policy, cells, now_ns, cost, Seat::Ask).0)
}

/// A few rules of one word each.
#[inline]
fn acquire_few(policy: &Compiled, cells: &impl Cells, now_ns: u64, cost: u64) -> Option<Decision> {
    match &*policy.rules {
        [rule] => acquire_words(&[rule], cells, now_ns, cost),
        [first, second] => acquire_words(&[first, second], cells, now_ns, cost),
        [first, second, third] => acquire_words(&[first, second, third], cells, now_ns, cost),
        _ => None,
    }
}

/// The general case: any algorithms, any number of rules, shadows, a cost of nothing or one that never fits.
/// Says as well which cell a seat was taken in.
#[inline(never)]
pub(crate) fn acquire_all(
    policy: &Compiled,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
    seat: Seat,
) -> (Decision, Option<usize>) {
    let (decision, taken, _) = acquire_keeping(policy, cells, now_ns, cost, seat);
    (decision, taken)
}

/// The same, with what was charged to each rule, for who may undo it.
pub(crate) fn acquire_keeping(
    policy: &Compiled,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
    seat: Seat,
) -> (Decision, Option<usize>, Charged) {
    let rules = &policy.rules;
    let mut charged = Charged::default();
    // One word alone is its own look.
    let alone = policy.cells == 1 && cost.wrapping_sub(1) < policy.words_cost_max;
    if !alone {
        let look = peek_all(rules, cells, now_ns, cost);
        if look.is_denied() && cells.has_changed() && !is_broken(Fault::LeavesUncut) {
            cut_down(rules, cells);
        }
        if look.is_denied() || (cost == 0 && seat == Seat::Ask) {
            return (look, None, charged);
        }
        // Nor is anything charged for a key that will find no room for the rest.
        if let Some(refusal) = foreseen(rules, cells, now_ns, cost) {
            if refusal.cause() == Cause::NoRoom {
                cells.count_no_room(now_ns);
            }
            return (refusal, None, charged);
        }
    }
    let mut charges = [Charge::default(); RULES_MAX];
    let mut tokens = Tokens::default();
    let mut tightest = None;
    let mut taken = None;
    for (index, rule) in rules.iter().enumerate().filter(|(_, rule)| !rule.shadow) {
        let is_seat = matches!(rule.plan, Plan::InFlight(_));
        if (is_seat && seat == Seat::Ask) || rule.share(cost) == 0 {
            continue;
        }
        let charge = &mut charges[index];
        match spend(rule, cells, now_ns, rule.share(cost), charge, &mut tokens) {
            Ok(view) => {
                if is_seat && !charge.uncounted {
                    taken = Some(rule.first_cell);
                }
                let decision = Decision::new(Outcome::Allowed, index, rule.name, view, charge.at_ns, cost);
                tightest = Some(tighter(tightest, decision));
            }
            Err(Refused { cause, view, at_ns }) => {
                if !is_broken(Fault::NoHandBack) {
                    for (charged, charge) in rules[..index].iter().zip(charges) {
                        let is_charged = !charged.shadow
                            && charged.share(cost) > 0
                            && (seat == Seat::Take || !matches!(charged.plan, Plan::InFlight(_)));
                        if is_charged {
                            hand_back(charged, cells, charged.share(cost), charge, &tokens);
                        }
                    }
                }
                let refusal = Decision::new(Outcome::Denied, index, rule.name, view, at_ns, cost);
                return (refusal.because(cause), None, Charged::default());
            }
        }
    }
    let decision = tightest.unwrap_or_else(|| peek_all(rules, cells, now_ns, cost));
    for (index, charge) in charges.iter().enumerate().filter(|(index, _)| *index < rules.len()) {
        charged.note(index, *charge, !rules[index].shadow && rules[index].share(cost) > 0);
    }
    let decision = spend_shadows(rules, cells, now_ns, cost, decision, &mut charged);
    (decision, taken, charged)
}

/// Spends under the shadow rules what the others have admitted, where it fits, and notes where it does not.
fn spend_shadows(
    rules: &[CompiledRule],
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
    mut decision: Decision,
    charged: &mut Charged,
) -> Decision {
    for (index, rule) in rules.iter().enumerate().filter(|(_, rule)| rule.shadow) {
        let mut charge = Charge::default();
        let fits = cost <= rule.plan.limit()
            && spend(rule, cells, now_ns, cost, &mut charge, &mut Tokens::default()).is_ok();
        charged.note(index, charge, fits);
        if !fits {
            cells.count_shadow();
            decision = decision.noting_shadow(index);
        }
    }
    decision
}

/// What `acquire` would decide, by loads alone.
pub(crate) fn peek(policy: &Compiled, cells: &impl Cells, now_ns: u64, cost: u64) -> Decision {
    let mut decision = peek_all(&policy.rules, cells, now_ns, cost);
    if decision.is_allowed() {
        if let Some(refusal) = foreseen(&policy.rules, cells, now_ns, cost) {
            return refusal;
        }
        for (index, rule) in policy.rules.iter().enumerate().filter(|(_, rule)| rule.shadow) {
            if peek_rule(index, rule, cells, now_ns, cost).is_denied() {
                decision = decision.noting_shadow(index);
            }
        }
    }
    decision
}

/// The refusal of a key that would find no room for the first cell of a rule.
fn foreseen(rules: &[CompiledRule], cells: &impl Cells, now_ns: u64, cost: u64) -> Option<Decision> {
    let charged =
        |rule: &CompiledRule| !rule.shadow && !matches!(rule.plan, Plan::InFlight(_)) && rule.share(cost) > 0;
    rules.iter().enumerate().filter(|(_, rule)| charged(rule)).find_map(|(index, rule)| {
        if cells.find(rule.first_cell).is_some() {
            return None;
        }
        let (cause, wait_ns) = match cells.foresees(rule.first_cell, now_ns)? {
            NoRoom::Deny { wait_ns } => (Cause::NoRoom, wait_ns),
            NoRoom::Closed => (Cause::Closed, u64::MAX),
            NoRoom::Allow => return None,
        };
        let view = View::no_room(rule.plan.limit(), wait_ns);
        Some(Decision::new(Outcome::Denied, index, rule.name, view, now_ns, cost).because(cause))
    })
}

/// What the rules that are in force would decide together; where all are shadows, that it may pass.
fn peek_all(rules: &[CompiledRule], cells: &impl Cells, now_ns: u64, cost: u64) -> Decision {
    let mut worst: Option<Decision> = None;
    for (index, rule) in rules.iter().enumerate().filter(|(_, rule)| !rule.shadow) {
        let decision = peek_rule(index, rule, cells, now_ns, cost);
        if decision.outcome() == Outcome::NeverFits {
            return decision;
        }
        worst = Some(tighter(worst, decision));
    }
    worst.unwrap_or_else(|| peek_rule(0, &rules[0], cells, now_ns, 0).of_cost(cost))
}

fn peek_rule(index: usize, rule: &CompiledRule, cells: &impl Cells, now_ns: u64, cost: u64) -> Decision {
    let limit = rule.plan.limit();
    let share = rule.share(cost);
    let (view, at_ns) = look(rule, cells, now_ns, share.min(limit));
    let outcome = if share > limit {
        Outcome::NeverFits
    } else if cost == 0 || view.wait_ns(share) == 0 {
        Outcome::Allowed
    } else {
        Outcome::Denied
    };
    Decision::new(outcome, index, rule.name, view, at_ns, cost)
}

/// The one of two decisions that binds more; the earlier rule where they are equal.
pub(crate) fn tighter(first: Option<Decision>, second: Decision) -> Decision {
    let Some(first) = first else { return second };
    let second_binds = match (first.is_allowed(), second.is_allowed()) {
        (true, true) => second.headroom().compare(first.headroom()) == Ordering::Less,
        (false, false) => second.wait_ns() > first.wait_ns(),
        (first_allowed, _) => first_allowed,
    };
    if second_binds { second } else { first }
}

/// What one rule's state is, and at which time that was found.
fn look(rule: &CompiledRule, cells: &impl Cells, now_ns: u64, cost: u64) -> (View, u64) {
    if let Plan::SlidingLog(plan) = rule.plan {
        let (seen, at_ns) = look_at_log(plan, rule.first_cell, cells, now_ns, cost);
        return (View::Summary(seen), at_ns);
    }
    let word = payload(rule.plan, rule.first_cell, cells, now_ns);
    let plan = cells.seasoned(rule.plan, rule.first_cell, now_ns);
    let (at_ns, word) = undoubted(plan, word, now_ns, cells);
    (plan.view(word, at_ns), at_ns)
}

/// Spends under one rule; either way says what its state then was, and leaves a record of what it did.
fn spend(
    rule: &CompiledRule,
    cells: &impl Cells,
    now_ns: u64,
    cost: u64,
    charge: &mut Charge,
    tokens: &mut Tokens,
) -> Result<View, Refused> {
    let index = rule.first_cell;
    if let Plan::SlidingLog(plan) = rule.plan {
        charge.at_ns = now_ns;
        return spend_tokens(plan, index, cells, now_ns, cost, tokens);
    }
    let spent = spend_word(rule.plan, index, cells, cells.find(index), now_ns, |plan, word, at_ns| {
        plan.admit(word, at_ns, cost)
    });
    let view = |word, at_ns| cells.seasoned(rule.plan, index, now_ns).view(word, at_ns);
    match spent {
        Ok(made) => {
            *charge = made;
            Ok(view(made.word, made.at_ns))
        }
        Err(Refusal::Word { word, at_ns }) => Err(Refused::by_rule(view(word, at_ns), at_ns)),
        Err(Refusal::NoRoom { cause, wait_ns }) => {
            Err(Refused { cause, view: View::no_room(rule.plan.limit(), wait_ns), at_ns: now_ns })
        }
    }
}

/// Cuts down what an earlier policy has left to what this one can make a key wait: a look alone would find the
/// same wait at every look.
#[cold]
fn cut_down(rules: &[CompiledRule], cells: &impl Cells) {
    for rule in rules {
        for index in rule.cells() {
            update(cells, index, |word, now_ns| {
                let plan = cells.seasoned(rule.plan, index, now_ns);
                if plan.is_doubtful(word, now_ns) { plan.settled(word, now_ns) } else { word }
            });
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
        Plan::SlidingLog(plan) => hand_back_tokens(plan, index, cells, charge.at_ns, tokens),
        plan => hand_back_word(plan, index, cells, cost, charge.alone(plan, cost)),
    }
}

/// Makes every cell fresh. What has begun has not ended by it.
pub(crate) fn reset(policy: &Compiled, cells: &impl Cells) {
    for rule in policy.rules.iter().filter(|rule| !matches!(rule.plan, Plan::InFlight(_))) {
        for index in rule.cells() {
            update(cells, index, |_, now_ns| rule.plan.fresh(now_ns));
        }
    }
}

/// Leaves a seat that was taken in `cell`.
pub(crate) fn leave(cells: &impl Cells, cell: usize) {
    update(cells, cell, |count, _| count.saturating_sub(1));
}
