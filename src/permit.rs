//! The right to be at work, given back when it is dropped.

use crate::charge;
use crate::decision::Decision;
use crate::gate::Gate;
use crate::limiter::Limiter;
use crate::sync::{Fault, is_broken};
use std::fmt;
use std::sync::Arc;

/// Leave to do one piece of work, by [`Limiter::try_start`] or [`Gate::try_start`]. Dropping it ends the work.
///
/// ```
/// let limiter = tollgate::Limiter::new("1 at once")?;
/// let permit = limiter.try_start("report")?;
/// assert!(limiter.try_start("report").is_err());
/// drop(permit);
/// assert!(limiter.try_start("report").is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the work has ended once this is dropped"]
pub struct Permit<'a> {
    limiter: Holder<'a>,
    hash: u64,
    /// The cell in which a place was taken, if one was.
    place: Option<usize>,
    decision: Decision,
}

/// Who gave a permit.
#[derive(Clone)]
pub(crate) enum Holder<'a> {
    Limiter(&'a Limiter),
    Shared(Arc<Limiter>),
    Gate(&'a Gate),
}

impl<'a> From<&'a Limiter> for Holder<'a> {
    fn from(limiter: &'a Limiter) -> Self {
        Self::Limiter(limiter)
    }
}

impl From<Arc<Limiter>> for Holder<'_> {
    fn from(limiter: Arc<Limiter>) -> Self {
        Self::Shared(limiter)
    }
}

impl<'a> From<&'a Gate> for Holder<'a> {
    fn from(gate: &'a Gate) -> Self {
        Self::Gate(gate)
    }
}

impl<'a> Permit<'a> {
    pub(crate) fn new(limiter: Holder<'a>, hash: u64, place: Option<usize>, decision: Decision) -> Self {
        Self { limiter, hash, place, decision }
    }

    /// The decision by which the work began.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::new("10/h; 5 at once")?;
    /// let permit = limiter.try_start_n("report", 9)?;
    /// assert_eq!(permit.decision().remaining(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn decision(&self) -> Decision {
        self.decision
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let Some(cell) = self.place else { return };
        for _ in 0..if is_broken(Fault::LeavesTwice) { 2 } else { 1 } {
            match &self.limiter {
                Holder::Limiter(limiter) => charge::leave(&limiter.cells_of(self.hash), cell),
                Holder::Shared(limiter) => charge::leave(&limiter.cells_of(self.hash), cell),
                Holder::Gate(gate) => charge::leave(gate, cell),
            }
        }
    }
}

impl fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("decision", &self.decision).finish_non_exhaustive()
    }
}
