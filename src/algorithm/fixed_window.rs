//! The fixed window: at most `limit` in each aligned window.
//!
//! Windows are aligned to the clock's zero, which is the Unix epoch for real clocks. The word is the
//! window's number above the count.

use super::{
    Charge, Headroom, PAYLOAD_BITS, PAYLOAD_MASK, Seen, Step, WINDOW_NUMBER_BITS_MIN, Window, count_bits,
};
use crate::error::Error;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FixedWindow {
    pub(crate) limit: u64,
    window: Window,
    pub(crate) count_bits: u32,
    step_back: u64,
}

/// What a word says at a moment.
struct Reading {
    /// The number of the window the count belongs to: the present one, or a later one after a step back.
    number: u64,
    count: u64,
    /// From now to the start of that window (0 unless the clock stepped back).
    lead_ns: u64,
    /// From the start of that window to now.
    elapsed_ns: u64,
}

impl FixedWindow {
    pub(crate) fn new(limit: u64, window_ns: u64) -> Result<Self, Error> {
        let window = Window::new(window_ns);
        let count_bits = count_bits(limit).max(PAYLOAD_BITS - window.number_bits());
        if count_bits > PAYLOAD_BITS - WINDOW_NUMBER_BITS_MIN {
            let most = (1u64 << (PAYLOAD_BITS - WINDOW_NUMBER_BITS_MIN)) - 1;
            return Err(Error::new(format!(
                "the limit is too large for the word: a fixed window counts to {most}"
            )));
        }
        let Some(step_back) = window.step_back(PAYLOAD_MASK >> count_bits) else {
            return Err(Error::new("the limit is too large for the word, the window being so short"));
        };
        Ok(Self { limit, window, count_bits, step_back })
    }

    #[inline]
    fn number_mask(self) -> u64 {
        PAYLOAD_MASK >> self.count_bits
    }

    pub(crate) fn window_ns(self) -> u64 {
        self.window.len_ns
    }

    #[inline]
    fn read(self, word: u64, now_ns: u64) -> Reading {
        let (number, elapsed_ns) = self.window.locate(now_ns);
        let ahead = (word >> self.count_bits).wrapping_sub(number) & self.number_mask();
        let count = word & ((1 << self.count_bits) - 1);
        if ahead == 0 {
            Reading { number, count, lead_ns: 0, elapsed_ns }
        } else if ahead <= self.step_back {
            let lead_ns = ahead.saturating_mul(self.window.len_ns).saturating_sub(elapsed_ns);
            Reading { number: number.wrapping_add(ahead), count, lead_ns, elapsed_ns: 0 }
        } else {
            Reading { number, count: 0, lead_ns: 0, elapsed_ns }
        }
    }

    #[inline]
    pub(crate) fn word(self, number: u64, count: u64) -> u64 {
        (number << self.count_bits | count) & PAYLOAD_MASK
    }

    #[inline]
    pub(crate) fn seen(self, word: u64, now_ns: u64) -> FixedWindowSeen {
        let reading = self.read(word, now_ns);
        let to_end_ns = reading.lead_ns.saturating_add(self.window.len_ns - reading.elapsed_ns);
        FixedWindowSeen { limit: self.limit, count: reading.count, to_end_ns }
    }
}

/// What has been spent in a window, and how long until its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FixedWindowSeen {
    limit: u64,
    count: u64,
    to_end_ns: u64,
}

impl Seen for FixedWindowSeen {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn wait_ns(&self, cost: u64) -> u64 {
        if self.count + cost <= self.limit { 0 } else { self.to_end_ns }
    }

    fn reset_ns(&self) -> u64 {
        if self.count == 0 { 0 } else { self.to_end_ns }
    }

    fn headroom(&self) -> Headroom {
        Headroom::whole(self.limit.saturating_sub(self.count))
    }
}

impl Step for FixedWindow {
    fn fresh(self, now_ns: u64) -> u64 {
        self.word(self.window.locate(now_ns).0, 0)
    }

    #[inline]
    fn admit(self, word: u64, now_ns: u64, cost: u64) -> Option<u64> {
        let reading = self.read(word, now_ns);
        let count = reading.count + cost;
        (count <= self.limit).then(|| self.word(reading.number, count))
    }

    fn refund(self, word: u64, now_ns: u64, cost: u64) -> u64 {
        let reading = self.read(word, now_ns);
        self.word(reading.number, reading.count.saturating_sub(cost))
    }

    fn hand_back(self, word: u64, _now_ns: u64, cost: u64, charge: Charge) -> u64 {
        // What was spent in a window that has ended counts nowhere any more.
        if word >> self.count_bits == charge.word >> self.count_bits {
            let count = word & ((1 << self.count_bits) - 1);
            word - cost.min(count)
        } else {
            word
        }
    }

    fn is_doubtful(self, word: u64, now_ns: u64) -> bool {
        let ahead = (word >> self.count_bits).wrapping_sub(self.window.locate(now_ns).0) & self.number_mask();
        ahead > self.step_back && ahead <= self.number_mask() / 2
    }

    fn see(self, word: u64, now_ns: u64) -> impl Seen {
        self.seen(word, now_ns)
    }
}
