//! The charge: one GCRA step on a 64-bit word and the compare-exchange that publishes it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds one admission costs. Small, so that the benchmark never refuses.
const INTERVAL: u64 = 1;
/// How far a stored time may lie ahead of now.
const FULL: u64 = 1 << 30;

/// Next theoretical arrival time, or `None` to refuse. A time outside `[now, now + FULL]` is fresh.
#[inline(always)]
fn gcra(word: u64, now: u64, mask: u64) -> Option<u64> {
    let ahead = word.wrapping_sub(now) & mask;
    let debt = if ahead <= FULL { ahead } else { 0 } + INTERVAL;
    (debt <= FULL).then(|| now.wrapping_add(debt) & mask)
}

/// A key's state, found and already read.
pub trait Spot {
    /// Charges the key; `false` if refused or if another thread was faster.
    fn charge(self, now: u64) -> bool;
}

/// A state word of its own: the whole word is the time.
pub struct Whole<'a> {
    pub state: &'a AtomicU64,
    pub seen: u64,
}

impl Spot for Whole<'_> {
    #[inline(always)]
    fn charge(self, now: u64) -> bool {
        gcra(self.seen, now, u64::MAX).is_some_and(|next| swap(self.state, self.seen, next))
    }
}

/// Tag (high) and time (low 40 bits) in one word.
pub struct Packed<'a> {
    pub word: &'a AtomicU64,
    pub seen: u64,
}

impl Packed<'_> {
    pub const TIME_BITS: u32 = 40;
    const TIME: u64 = (1 << Self::TIME_BITS) - 1;
}

impl Spot for Packed<'_> {
    #[inline(always)]
    fn charge(self, now: u64) -> bool {
        let next = gcra(self.seen & Self::TIME, now & Self::TIME, Self::TIME);
        next.is_some_and(|next| swap(self.word, self.seen, self.seen & !Self::TIME | next))
    }
}

#[inline(always)]
fn swap(word: &AtomicU64, seen: u64, next: u64) -> bool {
    // AcqRel as the real table would need; on x86-64 every ordering is the same instruction.
    word.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}
