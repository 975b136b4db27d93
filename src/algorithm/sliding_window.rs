//! The sliding-window counter: the previous window counts by the share of it that is still in view.
//!
//! With `P` spent in the previous window, `C` in the present one, `e` elapsed of the window `W`, a cost
//! `c` fits under the limit `L` when `P·(W−e) + (C+c)·W ≤ L·W`. The word is the window's number, `P`, `C`.

use super::{
    Charge, Headroom, PAYLOAD_BITS, PAYLOAD_MASK, Seen, Step, WINDOW_NUMBER_BITS_MIN, Window, count_bits,
};
use crate::error::Error;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SlidingWindow {
    pub(crate) limit: u64,
    window: Window,
    pub(crate) count_bits: u32,
    step_back: u64,
}

/// What a word says at a moment, rotated to the present window.
struct Reading {
    /// The present window, or a later one that a step back left in the word.
    number: u64,
    previous: u64,
    current: u64,
    /// From now to the start of that window (0 unless the clock stepped back).
    lead_ns: u64,
    /// From the start of that window to now.
    elapsed_ns: u64,
}

impl SlidingWindow {
    pub(crate) fn new(limit: u64, window_ns: u64) -> Result<Self, Error> {
        let window = Window::new(window_ns);
        let count_bits = count_bits(limit).max((PAYLOAD_BITS - window.number_bits()) / 2);
        if 2 * count_bits > PAYLOAD_BITS - WINDOW_NUMBER_BITS_MIN {
            let most = (1u64 << ((PAYLOAD_BITS - WINDOW_NUMBER_BITS_MIN) / 2)) - 1;
            return Err(Error::new(format!(
                "the limit is too large for the word: a sliding window counts to {most}; \
                 a token bucket has no such bound"
            )));
        }
        let Some(step_back) = window.step_back(PAYLOAD_MASK >> (2 * count_bits)) else {
            return Err(Error::new("the limit is too large for the word, the window being so short"));
        };
        Ok(Self { limit, window, count_bits, step_back })
    }

    pub(crate) fn window_ns(self) -> u64 {
        self.window.len_ns
    }

    #[inline]
    fn read(self, word: u64, now_ns: u64) -> Reading {
        let (number, elapsed_ns) = self.window.locate(now_ns);
        let number_mask = PAYLOAD_MASK >> (2 * self.count_bits);
        let count_mask = (1 << self.count_bits) - 1;
        let ahead = (word >> (2 * self.count_bits)).wrapping_sub(number) & number_mask;
        let previous = word >> self.count_bits & count_mask;
        let current = word & count_mask;
        if ahead == 0 {
            Reading { number, previous, current, lead_ns: 0, elapsed_ns }
        } else if ahead == number_mask {
            // The stored window is the one before.
            Reading { number, previous: current, current: 0, lead_ns: 0, elapsed_ns }
        } else if ahead <= self.step_back {
            // Time stands still at the start of the stored window, where its past weighs most.
            let lead_ns = ahead.saturating_mul(self.window.len_ns).saturating_sub(elapsed_ns);
            Reading { number: number.wrapping_add(ahead), previous, current, lead_ns, elapsed_ns: 0 }
        } else {
            Reading { number, previous: 0, current: 0, lead_ns: 0, elapsed_ns }
        }
    }

    #[inline]
    pub(crate) fn word(self, number: u64, previous: u64, current: u64) -> u64 {
        (number << (2 * self.count_bits) | previous << self.count_bits | current) & PAYLOAD_MASK
    }

    #[inline]
    pub(crate) fn seen(self, word: u64, now_ns: u64) -> SlidingWindowSeen {
        let Reading { previous, current, lead_ns, elapsed_ns, .. } = self.read(word, now_ns);
        #[allow(
            clippy::cast_possible_truncation,
            reason = "a word has 40 bits for two counts up to the limit"
        )]
        let [limit, previous, current] = [self.limit, previous, current].map(|count| count as u32);
        let is_ahead = lead_ns > 0;
        let from_start_ns = if is_ahead { lead_ns } else { elapsed_ns };
        SlidingWindowSeen { limit, previous, current, is_ahead, from_start_ns, len_ns: self.window.len_ns }
    }
}

/// What has been spent in two windows, and where in the second one that is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlidingWindowSeen {
    limit: u32,
    previous: u32,
    current: u32,
    /// The window has not begun, after a step back; and so how long until it does, instead of since.
    is_ahead: bool,
    from_start_ns: u64,
    len_ns: u64,
}

impl SlidingWindowSeen {
    fn elapsed_ns(&self) -> u64 {
        if self.is_ahead { 0 } else { self.from_start_ns }
    }

    fn lead_ns(&self) -> u64 {
        if self.is_ahead { self.from_start_ns } else { 0 }
    }

    /// The earliest moment within a window, from its start, at which `previous` weighs no more than `room`.
    fn decayed_ns(&self, previous: u32, room: u64) -> u64 {
        if u64::from(previous) <= room {
            return 0;
        }
        #[allow(
            clippy::cast_possible_truncation,
            reason = "room < previous, so the quotient is below the window"
        )]
        let left_ns = (u128::from(room) * u128::from(self.len_ns) / u128::from(previous)) as u64;
        self.len_ns - left_ns
    }
}

impl Seen for SlidingWindowSeen {
    fn limit(&self) -> u64 {
        u64::from(self.limit)
    }

    fn wait_ns(&self, cost: u64) -> u64 {
        let from_start_ns = match self.limit().checked_sub(u64::from(self.current) + cost) {
            // Inside this window, once the previous one has faded enough.
            Some(room) => self.decayed_ns(self.previous, room),
            // After rotation, once what is current now has faded enough as the previous.
            None => self.len_ns.saturating_add(self.decayed_ns(self.current, self.limit() - cost)),
        };
        // Where it fits now, the moment it began to fit lies before now.
        let from_start_ns = from_start_ns.saturating_sub(self.elapsed_ns());
        if from_start_ns == 0 { 0 } else { self.lead_ns().saturating_add(from_start_ns) }
    }

    fn reset_ns(&self) -> u64 {
        let to_end_ns = self.lead_ns().saturating_add(self.len_ns - self.elapsed_ns());
        match (self.previous, self.current) {
            (0, 0) => 0,
            (_, 0) => to_end_ns,
            _ => to_end_ns.saturating_add(self.len_ns),
        }
    }

    fn headroom(&self) -> Headroom {
        let room = u128::from(self.limit.saturating_sub(self.current)) * u128::from(self.len_ns);
        let parts = room.saturating_sub(previous_parts(self.previous.into(), self.len_ns, self.elapsed_ns()));
        Headroom { parts, parts_per_cost: self.len_ns }
    }
}

/// What is left of the previous window's count, times the length of a window.
#[inline]
fn previous_parts(previous: u64, len_ns: u64, elapsed_ns: u64) -> u128 {
    u128::from(previous) * u128::from(len_ns - elapsed_ns)
}

impl Step for SlidingWindow {
    fn fresh(self, now_ns: u64) -> u64 {
        self.word(self.window.locate(now_ns).0, 0, 0)
    }

    #[inline]
    fn admit(self, word: u64, now_ns: u64, cost: u64) -> Option<u64> {
        let reading = self.read(word, now_ns);
        let current = reading.current + cost;
        let len_ns = self.window.len_ns;
        let room_parts = u128::from(self.limit.checked_sub(current)?) * u128::from(len_ns);
        (previous_parts(reading.previous, len_ns, reading.elapsed_ns) <= room_parts)
            .then(|| self.word(reading.number, reading.previous, current))
    }

    fn refund(self, word: u64, now_ns: u64, cost: u64) -> u64 {
        let reading = self.read(word, now_ns);
        let from_current = cost.min(reading.current);
        let previous = reading.previous.saturating_sub(cost - from_current);
        self.word(reading.number, previous, reading.current - from_current)
    }

    fn hand_back(self, word: u64, _now_ns: u64, cost: u64, charge: Charge) -> u64 {
        let number_mask = PAYLOAD_MASK >> (2 * self.count_bits);
        let count_mask = (1 << self.count_bits) - 1;
        let windows_ago = (word >> (2 * self.count_bits)).wrapping_sub(charge.word >> (2 * self.count_bits));
        // Where it was spent it still counts: as current, or by now as previous, or no more.
        match windows_ago & number_mask {
            0 => word - cost.min(word & count_mask),
            1 => word - (cost.min(word >> self.count_bits & count_mask) << self.count_bits),
            _ => word,
        }
    }

    fn is_doubtful(self, word: u64, now_ns: u64) -> bool {
        let number_mask = PAYLOAD_MASK >> (2 * self.count_bits);
        let number = word >> (2 * self.count_bits);
        let ahead = number.wrapping_sub(self.window.locate(now_ns).0) & number_mask;
        ahead > self.step_back && ahead <= number_mask / 2
    }

    fn see(self, word: u64, now_ns: u64) -> impl Seen {
        self.seen(word, now_ns)
    }
}
