//! What one subject has in hand, and what the server last said of it.
//!
//! ```text
//! hand: | good until: 40, in ticks of 2^20 ns | tokens: 24 |
//! ```
//!
//! There are two hands, so that tokens can be brought before the last are spent: what is good for less long goes first.
//! A refusal has the same layout: until when, and from which cost on.

use crate::redis::protocol::tag;
use crate::sync::unmodelled::{AtomicU64, Ordering};
use std::cmp::Reverse;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

pub(super) const TICK_SHIFT: u32 = 20;
const TOKEN_BITS: u32 = 24;
/// The most tokens of one lease.
pub(super) const TOKENS_MAX: u64 = (1 << TOKEN_BITS) - 1;
/// Leases smaller than this run out before they are low.
const LOW_FROM: u64 = 8;

/// The tick of a moment.
#[inline]
pub(super) fn tick(ns: u64) -> u64 {
    ns >> TICK_SHIFT
}

fn is_run_out(word: u64, now_tick: u64) -> bool {
    word & TOKENS_MAX != 0 && word >> TOKEN_BITS <= now_tick
}

#[derive(Debug)]
pub(in crate::redis) struct Entry {
    /// Who it belongs to, for those who bring tokens: as it goes over the wire, however long the subject is.
    pub(super) tag: Box<str>,
    hands: [AtomicU64; 2],
    /// At so many tokens in a hand it is time for more; 0 if the lease is too small for that.
    low: AtomicU64,
    /// Before which moment a cost of so much or more is not asked for. One word, so that no cost is refused by half of
    /// one refusal and half of another.
    refusal: AtomicU64,
    /// When what was refused will fit, as the server last said: only to tell others.
    fits_at_ns: AtomicU64,
    /// What was refused since the last flight: demand as well.
    refused: AtomicU64,
    /// 1 while a flight is out.
    flying: AtomicU64,
    /// 1 while somebody will look whether tokens have run out here.
    awaited: AtomicU64,
    /// How many flights came back with nothing because the server could not be asked.
    pub(super) failures: AtomicU64,
    pub(super) landed: Notify,
    available: AtomicU64,
    fresh_at_ns: AtomicU64,
    rule: AtomicU64,
    demand: Mutex<Demand>,
}

/// What the size of the next lease goes by. Only flights look at it, and there is one at a time.
#[derive(Debug, Default)]
pub(super) struct Demand {
    /// Tokens a nanosecond, the newest flights weighing most.
    pub(super) rate: f64,
    /// When the last flight came back.
    pub(super) landed_ns: Option<u64>,
    pub(super) last_granted: u64,
    /// Whether the server gave all it was asked for.
    pub(super) plenty: bool,
    pub(super) in_hand: u64,
    /// What each hand was filled with, and when by the server's clock.
    pub(super) leases: [Origin; 2],
}

#[derive(Clone, Copy, Debug, Default)]
pub(in crate::redis) struct Origin {
    pub(in crate::redis) taken: u64,
    pub(in crate::redis) at_us: u64,
}

/// A request that was served from a hand.
pub(super) struct Taken {
    pub(super) left: u64,
    /// It was the one that left the hand low.
    pub(super) is_low: bool,
}

/// What the server last said.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) available: u64,
    pub(super) fresh_at_ns: u64,
    pub(super) rule: usize,
}

impl Entry {
    pub(super) fn new(subject: &str) -> Self {
        Self {
            tag: tag(subject).into(),
            hands: [AtomicU64::new(0), AtomicU64::new(0)],
            low: AtomicU64::new(0),
            refusal: AtomicU64::new(0),
            fits_at_ns: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            flying: AtomicU64::new(0),
            awaited: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            landed: Notify::new(),
            available: AtomicU64::new(0),
            fresh_at_ns: AtomicU64::new(0),
            rule: AtomicU64::new(0),
            demand: Mutex::default(),
        }
    }

    /// Takes `cost` from one of the hands, if one has as much that is still good.
    #[inline]
    pub(super) fn take(&self, cost: u64, now_tick: u64) -> Option<Taken> {
        // Relaxed, here and below: a hand is all there is to know of its tokens, and is compared as a whole.
        let [first, second] = [0, 1].map(|hand: usize| self.hands[hand].load(Ordering::Relaxed));
        let sooner = usize::from(second < first);
        self.take_from(sooner, cost, now_tick).or_else(|| self.take_from(1 - sooner, cost, now_tick))
    }

    #[inline]
    fn take_from(&self, hand: usize, cost: u64, now_tick: u64) -> Option<Taken> {
        // Relaxed, also below: a hand is compared as a whole, and nothing is published by it.
        let mut word = self.hands[hand].load(Ordering::Relaxed);
        loop {
            let tokens = word & TOKENS_MAX;
            if tokens < cost || word >> TOKEN_BITS <= now_tick {
                return None;
            }
            match self.hands[hand].compare_exchange_weak(
                word,
                word - cost,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    let left = tokens - cost;
                    let low = self.low.load(Ordering::Relaxed);
                    return Some(Taken { left, is_low: left <= low && tokens > low });
                }
                Err(other) => word = other,
            }
        }
    }

    /// Whether it is worth asking the server for `cost`.
    #[inline]
    pub(super) fn may_fly(&self, now_ns: u64, cost: u64) -> bool {
        // Relaxed: until and cost are one word.
        let refusal = self.refusal.load(Ordering::Relaxed);
        tick(now_ns) >= refusal >> TOKEN_BITS || cost < refusal & TOKENS_MAX
    }

    /// How long to wait for what was refused.
    pub(super) fn wait_ns(&self, now_ns: u64) -> u64 {
        // Relaxed: two numbers for the caller's information; the later one is told.
        let asked_again_ns = (self.refusal.load(Ordering::Relaxed) >> TOKEN_BITS) << TICK_SHIFT;
        self.fits_at_ns.load(Ordering::Relaxed).max(asked_again_ns).saturating_sub(now_ns).max(1)
    }

    pub(super) fn count_refused(&self, cost: u64) {
        // Relaxed: a sum, read for its value alone.
        self.refused.fetch_add(cost, Ordering::Relaxed);
    }

    pub(super) fn take_refused(&self) -> u64 {
        // Relaxed: as above.
        self.refused.swap(0, Ordering::Relaxed)
    }

    /// Refuses `cost` and more until a moment, and says that it will fit at another.
    pub(super) fn refuse_until(&self, ns: u64, cost: u64, fits_at_ns: u64) {
        self.fits_at_ns.store(fits_at_ns, Ordering::Relaxed);
        let until = ns.div_ceil(1 << TICK_SHIFT);
        self.refusal.store(until << TOKEN_BITS | cost.min(TOKENS_MAX), Ordering::Relaxed);
    }

    /// Forgets what was refused: the server is worth asking again.
    pub(super) fn refuse_nothing(&self) {
        self.refuse_until(0, 0, 0);
    }

    /// True for the one who may bring tokens now.
    pub(super) fn take_off(&self) -> bool {
        // Acquire: sees what the flight before wrote.
        self.flying.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    pub(super) fn is_flying(&self) -> bool {
        // Acquire: after a landing, sees what the flight wrote.
        self.flying.load(Ordering::Acquire) != 0
    }

    pub(super) fn land(&self) {
        // Release: whoever takes off next, or looks after being woken, sees what this flight wrote.
        self.flying.store(0, Ordering::Release);
        self.landed.notify_waiters();
    }

    pub(super) fn demand(&self) -> MutexGuard<'_, Demand> {
        self.demand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Empties the hand that will be missed least, to be filled again: which it is, and what was left in it.
    pub(super) fn empty_hand(&self, now_tick: u64) -> (usize, u64) {
        let worth = |hand: usize| {
            let word = self.hands[hand].load(Ordering::Relaxed);
            let tokens = word & TOKENS_MAX;
            // Of two that are worth the same, the one that has more to give back.
            (if word >> TOKEN_BITS <= now_tick { 0 } else { tokens }, Reverse(tokens))
        };
        let hand = usize::from(worth(1) < worth(0));
        (hand, self.empty(hand))
    }

    pub(super) fn empty(&self, hand: usize) -> u64 {
        self.hands[hand].swap(0, Ordering::Relaxed) & TOKENS_MAX
    }

    /// Empties a hand whose tokens are no longer good: how many there were.
    pub(super) fn empty_if_run_out(&self, hand: usize, now_tick: u64) -> Option<u64> {
        let word = self.hands[hand].load(Ordering::Relaxed);
        if is_run_out(word, now_tick) { Some(self.empty(hand)).filter(|&left| left > 0) } else { None }
    }

    /// Whether there are tokens that are no longer good.
    pub(super) fn has_run_out(&self, now_tick: u64) -> bool {
        self.hands.iter().any(|hand| is_run_out(hand.load(Ordering::Relaxed), now_tick))
    }

    /// Whether somebody looks already, when tokens were brought; else it is for whoever brought them to see to that.
    pub(super) fn is_awaited(&self) -> bool {
        // AcqRel: the tokens were brought before, and whoever looks finds them: see below.
        self.awaited.swap(1, Ordering::AcqRel) != 0
    }

    pub(super) fn no_longer_awaited(&self) {
        // AcqRel: reads what the last one who brought tokens has written, and so finds the tokens themselves.
        self.awaited.swap(0, Ordering::AcqRel);
    }

    /// Fills a hand that was emptied. Only the one flight that is out does.
    pub(super) fn fill(&self, hand: usize, tokens: u64, good_until_ns: u64) {
        let low = if tokens >= LOW_FROM { tokens / 4 } else { 0 };
        self.low.store(low, Ordering::Relaxed);
        self.hands[hand].store(tick(good_until_ns) << TOKEN_BITS | tokens, Ordering::Relaxed);
    }

    /// All tokens in the hands, those included that are no longer good.
    pub(super) fn in_hand(&self) -> u64 {
        self.hands.iter().map(|hand| hand.load(Ordering::Relaxed) & TOKENS_MAX).sum()
    }

    /// Whether nothing would be lost with it: tokens that have run out are still to be given back.
    pub(super) fn is_idle(&self, now_ns: u64) -> bool {
        self.in_hand() == 0 && self.may_fly(now_ns, TOKENS_MAX) && self.flying.load(Ordering::Relaxed) == 0
    }

    #[inline]
    pub(super) fn seen(&self) -> Seen {
        Seen {
            available: self.available.load(Ordering::Relaxed),
            fresh_at_ns: self.fresh_at_ns.load(Ordering::Relaxed),
            rule: usize::try_from(self.rule.load(Ordering::Relaxed)).unwrap_or(0),
        }
    }

    pub(super) fn see(&self, seen: Seen) {
        self.available.store(seen.available, Ordering::Relaxed);
        self.fresh_at_ns.store(seen.fresh_at_ns, Ordering::Relaxed);
        self.rule.store(seen.rule as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK_NS: u64 = 1 << TICK_SHIFT;

    #[test]
    fn what_is_good_for_less_long_is_spent_first_and_nothing_after_its_end() {
        let entry = Entry::new("key");
        assert!(entry.take(1, 0).is_none());
        entry.fill(0, 10, 20 * TICK_NS);
        entry.fill(1, 2, 10 * TICK_NS);
        assert_eq!(entry.take(2, 0).map(|taken| taken.left), Some(0));
        assert_eq!(entry.take(7, 0).map(|taken| taken.left), Some(3));
        assert!(entry.take(4, 0).is_none(), "more than is in hand");
        assert!(entry.take(1, 19).is_some());
        assert!(entry.take(1, 20).is_none(), "no longer good");
        assert_eq!(entry.in_hand(), 2);
        assert!(!entry.has_run_out(19) && entry.empty_if_run_out(0, 19).is_none());
        assert!(entry.has_run_out(20) && !entry.is_idle(20 * TICK_NS), "still to be given back");
        assert_eq!([0, 1].map(|hand| entry.empty_if_run_out(hand, 20)), [Some(2), None]);
        assert!(!entry.has_run_out(20) && entry.is_idle(20 * TICK_NS));
    }

    #[test]
    fn a_long_subject_takes_no_more_room_than_a_short_one() {
        assert_eq!(&*Entry::new("key").tag, "key");
        assert_eq!(Entry::new(&"k".repeat(1 << 20)).tag.len(), 33);
    }

    #[test]
    fn one_request_finds_the_hand_low() {
        let entry = Entry::new("key");
        entry.fill(0, 16, TICK_NS);
        let lows = (0..16).filter(|_| entry.take(1, 0).is_some_and(|taken| taken.is_low)).count();
        assert_eq!(lows, 1);
    }

    #[test]
    fn a_refused_cost_says_nothing_of_a_smaller_one() {
        let entry = Entry::new("key");
        entry.refuse_until(99 * TICK_NS + 1, 5, 200 * TICK_NS);
        assert!(!entry.may_fly(100 * TICK_NS - 1, 5));
        assert!(entry.may_fly(100 * TICK_NS - 1, 4));
        assert!(entry.may_fly(100 * TICK_NS, 5));
        assert_eq!(entry.wait_ns(50 * TICK_NS), 150 * TICK_NS, "asked for again before it fits");
        entry.refuse_nothing();
        assert!(entry.may_fly(0, TOKENS_MAX));
    }

    #[test]
    fn of_two_hands_that_are_worth_nothing_the_one_with_leftovers_is_emptied() {
        let entry = Entry::new("key");
        entry.fill(1, 5, 10 * TICK_NS);
        assert_eq!(entry.empty_hand(9), (0, 0), "still good");
        assert_eq!(entry.empty_hand(10), (1, 5), "no longer");
        assert_eq!(entry.empty_hand(10), (0, 0));
    }
}
