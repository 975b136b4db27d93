//! How far ahead anything has been booked.

use crate::sync::{AtomicU64, Fault, Ordering, is_broken};

/// The latest moment that was ever booked, for those who find a word further ahead than its rule alone puts it.
///
/// A moment and not a wait: what is booked comes nearer as time passes, and so does what a word is believed for
/// its sake. Once the moment has come, no word is believed any further than its rule puts it.
#[derive(Debug)]
pub(crate) struct Horizon(AtomicU64);

impl Horizon {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// How far it lies ahead of a time. A word that is judged by that time lies no further beyond a whole burst.
    #[inline(always)]
    pub(crate) fn ns(&self, now_ns: u64) -> u64 {
        // Relaxed: it is read after a word, by an acquiring load, and was moved before that word was written.
        self.0.load(Ordering::Relaxed).saturating_sub(now_ns)
    }

    /// Moves the horizon, before a word is written that lies a whole burst beyond this moment.
    pub(crate) fn reach(&self, moment_ns: u64) {
        if is_broken(Fault::BooksUnseen) {
            return;
        }
        // Acquire: a horizon that somebody else has moved is passed on with the word that is written next.
        if self.0.load(Ordering::Acquire) < moment_ns {
            // AcqRel: as above.
            self.0.fetch_max(moment_ns, Ordering::AcqRel);
        }
    }
}
