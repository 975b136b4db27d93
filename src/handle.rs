//! A key that is asked for again and again.

use crate::algorithm::Plan;
use crate::cells::TableCells;
use crate::charge::{Cells, NoRoom, Reach};
use crate::decision::Decision;
use crate::limiter::Limiter;
use crate::table::{SlotRef, Spot};
use std::cell::Cell;
use std::fmt;

/// One key of a limiter, for a connection that asks again and again: its hash and the place of its state are
/// kept from call to call.
///
/// The place is only a guess that saves a search. It is asked who it belongs to at every call, so a handle is
/// right however often its key is forgotten and comes back elsewhere.
///
/// ```
/// let limiter = tollgate::Limiter::new("2/s")?;
/// let key = limiter.key("203.0.113.7");
/// assert!(key.try_acquire().is_allowed());
/// assert!(limiter.try_acquire("203.0.113.7").is_allowed());
/// assert!(key.try_acquire().is_denied());
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone)]
pub struct KeyHandle<'a> {
    limiter: &'a Limiter,
    cells: TableCells<'a>,
    /// Where the first cell was found last.
    slot: Cell<Spot>,
}

impl<'a> KeyHandle<'a> {
    pub(crate) fn new(limiter: &'a Limiter, hash: u64) -> Self {
        let cells = limiter.cells_of(hash);
        let slot = limiter.table.preferred(cells.place(0));
        Self { limiter, cells, slot: Cell::new(slot) }
    }

    /// As [`Limiter::try_acquire`].
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("1/h")?;
    /// let key = limiter.key("203.0.113.7");
    /// assert!(key.try_acquire().is_allowed());
    /// assert!(key.try_acquire().is_denied());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[inline]
    pub fn try_acquire(&self) -> Decision {
        self.try_acquire_n(1)
    }

    /// As [`Limiter::try_acquire_n`].
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("10/h")?;
    /// let key = limiter.key("203.0.113.7");
    /// assert_eq!(key.try_acquire_n(7).remaining(), 3);
    /// assert!(key.try_acquire_n(4).is_denied());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[inline]
    pub fn try_acquire_n(&self, cost: u64) -> Decision {
        self.limiter.spend(&self, cost)
    }

    /// As [`Limiter::peek`].
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("1/h")?;
    /// let key = limiter.key("203.0.113.7");
    /// assert!(key.peek().is_allowed());
    /// assert!(key.try_acquire().is_allowed());
    /// assert!(key.peek().is_denied());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn peek(&self) -> Decision {
        self.peek_n(1)
    }

    /// As [`Limiter::peek_n`].
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("10/h")?;
    /// let key = limiter.key("203.0.113.7");
    /// assert!(key.try_acquire_n(6).is_allowed());
    /// assert!(key.peek_n(4).is_allowed() && key.peek_n(5).is_denied());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn peek_n(&self, cost: u64) -> Decision {
        self.limiter.look(0, &self, cost)
    }

    /// As [`Limiter::refund`].
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("10/h")?;
    /// let key = limiter.key("203.0.113.7");
    /// assert!(key.try_acquire_n(10).is_allowed());
    /// key.refund(4);
    /// assert_eq!(key.peek().remaining(), 4);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn refund(&self, cost: u64) {
        crate::charge::refund(self.limiter.compiled(0), &self, cost);
    }

    /// As [`Limiter::reset`].
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("1/h")?;
    /// let key = limiter.key("203.0.113.7");
    /// assert!(key.try_acquire().is_allowed());
    /// key.reset();
    /// assert!(key.try_acquire().is_allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn reset(&self) {
        self.limiter.forget(0, &self, self.cells.hash());
    }

    #[inline]
    fn remembering<'s>(&self, index: usize, slot: SlotRef<'s>) -> SlotRef<'s> {
        if index == 0 {
            self.slot.set(self.limiter.table.spot(slot));
        }
        slot
    }
}

impl Cells for &KeyHandle<'_> {
    type Cell<'a>
        = SlotRef<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn glance(&self, index: usize) -> Option<SlotRef<'_>> {
        match index {
            0 => self.limiter.table.glance_at(self.slot.get()),
            _ => self.cells.glance(index),
        }
    }

    fn find(&self, index: usize) -> Option<SlotRef<'_>> {
        let found = self.limiter.table.find(self.cells.place(index))?;
        Some(self.remembering(index, found))
    }

    fn claim(&self, index: usize, now_ns: u64, may_displace: &mut bool) -> Result<SlotRef<'_>, NoRoom> {
        let worth = self.limiter.worth();
        let claimed = self.limiter.table.claim(self.cells.place(index), now_ns, &worth, may_displace)?;
        Ok(self.remembering(index, claimed))
    }

    fn foresees(&self, index: usize, now_ns: u64) -> Option<NoRoom> {
        self.cells.foresees(index, now_ns)
    }

    #[inline(always)]
    fn quick_ns(&self) -> Option<u64> {
        self.cells.quick_ns()
    }

    #[inline(always)]
    fn now_ns(&self) -> u64 {
        self.cells.now_ns()
    }

    fn seasoned(&self, plan: Plan, index: usize, now_ns: u64) -> Plan {
        self.cells.seasoned(plan, index, now_ns)
    }

    fn beginning(&self, plan: Plan, index: usize, now_ns: u64) -> u64 {
        self.cells.beginning(plan, index, now_ns)
    }

    fn has_changed(&self) -> bool {
        self.cells.has_changed()
    }

    fn book_ahead(&self, moment_ns: u64) {
        self.cells.book_ahead(moment_ns);
    }

    fn count_shadow(&self) {
        self.cells.count_shadow();
    }

    fn count_no_room(&self, now_ns: u64) {
        self.cells.count_no_room(now_ns);
    }

    fn count_lost_strike(&self) {
        self.cells.count_lost_strike();
    }

    fn reach(&self, index: usize) -> Option<Reach> {
        self.cells.reach(index)
    }
}

impl fmt::Debug for KeyHandle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyHandle").field("limiter", self.limiter).finish_non_exhaustive()
    }
}
