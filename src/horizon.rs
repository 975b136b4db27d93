//! How far ahead anything has been booked.

use crate::sync::{AtomicU64, Fault, Ordering, is_broken};

/// The longest wait that was ever booked, for those who find a word further ahead than its rule alone puts it.
#[derive(Debug)]
pub(crate) struct Horizon(AtomicU64);

impl Horizon {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline(always)]
    pub(crate) fn ns(&self) -> u64 {
        // Relaxed: it is read after a word, by an acquiring load, and was moved before that word was written.
        self.0.load(Ordering::Relaxed)
    }

    /// Moves the horizon, before a word is written that lies so far ahead.
    pub(crate) fn reach(&self, wait_ns: u64) {
        if is_broken(Fault::BooksUnseen) {
            return;
        }
        // Acquire: a horizon that somebody else has moved is passed on with the word that is written next.
        if self.0.load(Ordering::Acquire) < wait_ns {
            // AcqRel: as above.
            self.0.fetch_max(wait_ns, Ordering::AcqRel);
        }
    }
}
