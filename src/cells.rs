//! One key's cells in the table, and what the table may know of what is in them.

use crate::algorithm::{Plan, Step};
use crate::charge::{Cells, NoRoom, Reach};
use crate::compile::LAYOUT_CELLS_MAX;
use crate::guard::{self, LIST_CELL, ONCE_CELL, PENALTY_CELL};
use crate::limiter::Limiter;
use crate::table::{Line, Place, SlotRef, WhenFull, Worth};

/// Cells of one key that want the same line; the next ones go elsewhere.
const CELLS_TOGETHER: usize = 4;
/// What is added to a key's hash for each line further on: to the half that chooses the line.
const GROUP_OFFSET: u64 = 0x9e37_79b9 << 32;
const LAYOUT_GROUPS: usize = LAYOUT_CELLS_MAX / CELLS_TOGETHER;

/// What is added to a key's hash for the place of this cell.
#[inline(always)]
pub(crate) fn group_offset(index: usize) -> u64 {
    match index / CELLS_TOGETHER {
        group @ 1..LAYOUT_GROUPS => (group as u64).wrapping_mul(GROUP_OFFSET),
        _ => 0,
    }
}

/// One key's cells in a limiter's table.
#[derive(Clone, Copy)]
pub(crate) struct TableCells<'t> {
    limiter: &'t Limiter,
    hash: u64,
    /// The line where the first few cells are looked for first. More is not kept: it would take registers from
    /// those who do not need it.
    line: &'t Line,
}

impl<'t> TableCells<'t> {
    #[inline(always)]
    pub(crate) fn new(limiter: &'t Limiter, hash: u64) -> Self {
        Self { limiter, hash, line: limiter.table.first_line(limiter.table.place(hash, 0)) }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Where a cell lives: a few cells share their line, a long log spreads over more. What is no rule's
    /// lives with the first ones.
    #[inline(always)]
    pub(crate) fn place(&self, index: usize) -> Place {
        self.limiter.table.place(self.hash.wrapping_add(group_offset(index)), index)
    }

    /// The first cell, if it is on the key's line, of which the caller has seen to it that it is near. Whether it is in the slot
    /// of its choice is a branch that depends on the key, and in a large table often goes the other way: where nothing
    /// is waited for, it is better to look at the whole line without one.
    #[inline(always)]
    pub(crate) fn on_line(&self) -> Option<SlotRef<'t>> {
        let (table, name) = (&self.limiter.table, self.place(0).name());
        if table.is_large() { self.line.find(name) } else { self.line.glance(name) }
    }

    /// Has the key's line on its way before anything waits: for the time, or for other keys.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        self.limiter.table.prefetch(self.line);
    }
}

impl Cells for TableCells<'_> {
    type Cell<'a>
        = SlotRef<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn glance(&self, index: usize) -> Option<SlotRef<'_>> {
        let place = self.place(index);
        let line = if index < CELLS_TOGETHER { self.line } else { self.limiter.table.first_line(place) };
        line.glance(place.name())
    }

    fn find(&self, index: usize) -> Option<SlotRef<'_>> {
        self.limiter.table.find(self.place(index)).map(SlotRef::looking)
    }

    #[inline(never)]
    fn claim(&self, index: usize, now_ns: u64, may_displace: &mut bool) -> Result<SlotRef<'_>, NoRoom> {
        self.limiter.table.claim(self.place(index), now_ns, &self.limiter.worth(), may_displace)
    }

    fn foresees(&self, index: usize, now_ns: u64) -> Option<NoRoom> {
        self.limiter.table.foresees(self.place(index), now_ns, &self.limiter.worth())
    }

    fn count_no_room(&self, now_ns: u64) {
        self.limiter.watch.table_full(now_ns, WhenFull::Deny);
        self.limiter.table.count_denied_for_room(self.place(0));
    }

    #[inline(always)]
    fn quick_ns(&self) -> Option<u64> {
        self.limiter.clock.quick_ns()
    }

    #[inline(always)]
    fn now_ns(&self) -> u64 {
        self.limiter.clock.now_ns()
    }

    fn seasoned(&self, plan: Plan, index: usize, now_ns: u64) -> Plan {
        let plan = match self.limiter.policies.later() {
            Some(set) => set.plan_of(index).map_or(plan, |latest| plan.beside(latest)),
            None => plan,
        };
        plan.booked(self.limiter.horizon.ns(now_ns))
    }

    #[inline(always)]
    fn beginning(&self, plan: Plan, index: usize, now_ns: u64) -> u64 {
        match self.limiter.spent_at_ns {
            Some(spent_at_ns) if index < LAYOUT_CELLS_MAX => plan.used_up_since(spent_at_ns, now_ns),
            _ => plan.fresh(now_ns),
        }
    }

    fn has_changed(&self) -> bool {
        self.limiter.policies.later().is_some()
    }

    fn book_ahead(&self, moment_ns: u64) {
        self.limiter.horizon.reach(moment_ns);
    }

    fn count_shadow(&self) {
        self.limiter.table.count_shadow(self.place(0));
    }

    fn count_lost_strike(&self) {
        self.limiter.table.count_lost_strike(self.place(0));
    }

    fn reach(&self, index: usize) -> Option<Reach> {
        self.limiter.table.reach(self.place(index))
    }
}

/// What the words of a limiter are worth: by the policies that are in force when it is asked, which is after the
/// word was read, and so no earlier ones than it was written by.
pub(crate) struct PolicyWorth<'p> {
    pub(crate) limiter: &'p Limiter,
}

impl Worth for PolicyWorth<'_> {
    fn now_ns(&self) -> u64 {
        self.limiter.clock.now_ns()
    }

    #[inline(always)]
    fn is_fresh(&self, cell: usize, payload: u64, now_ns: u64) -> bool {
        match self.limiter.policies.current().plan_of(cell) {
            Some(plan) if self.limiter.horizon.ns(now_ns) == 0 => plan.is_fresh(payload, now_ns),
            _ => self.reset_ns(cell, payload, now_ns) == 0,
        }
    }

    #[inline(always)]
    fn glimpse(&self, now_ns: u64) -> impl Fn(usize, u64) -> bool {
        let has_booked = self.limiter.horizon.ns(now_ns) > 0;
        // A copy: what is behind a reference would be read again for every word.
        let only_bucket = self.limiter.policies.current().only_bucket().filter(|_| !has_booked).copied();
        move |cell, payload| match only_bucket {
            Some(bucket) if cell == 0 => bucket.is_fresh(payload, now_ns),
            _ => self.is_fresh(cell, payload, now_ns),
        }
    }

    fn reset_ns(&self, cell: usize, payload: u64, now_ns: u64) -> u64 {
        match (cell, self.limiter.policies.current().plan_of(cell)) {
            (_, Some(plan)) => plan.booked(self.limiter.horizon.ns(now_ns)).reset_ns(payload, now_ns),
            (PENALTY_CELL, _) => match &self.limiter.penalty {
                Some(penalty) => penalty.reset_ns(payload, now_ns),
                None => 0,
            },
            (LIST_CELL, _) => guard::listing_reset_ns(payload, now_ns),
            (ONCE_CELL, _) => guard::mark_reset_ns(payload, now_ns),
            // Of a rule that was put in force a moment ago.
            _ => u64::MAX,
        }
    }

    fn spent(&self, cell: usize, payload: u64, now_ns: u64) -> u64 {
        match self.limiter.policies.current().plan_of(cell) {
            Some(plan) => plan.booked(self.limiter.horizon.ns(now_ns)).spent(payload, now_ns),
            None => 1,
        }
    }

    fn note_full(&self, now_ns: u64, action: WhenFull) {
        self.limiter.watch.table_full(now_ns, action);
    }
}
