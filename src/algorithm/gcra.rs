//! The token bucket as GCRA: the whole state is the moment at which the bucket will be full again.
//!
//! Time is counted in `2^-shift` ns, the shift chosen a rule, so that the interval of one token is exact
//! to a few parts per million. The interval is rounded up: the rate is never above the configured one.

use super::{Charge, Headroom, PAYLOAD_BITS, PAYLOAD_MASK, STEP_BACK_NS, Step};
use crate::error::Error;

/// The finest unit of time: 2^-12 ns, which keeps a rule of a billion a second within 0.025 %.
const SHIFT_MAX: u32 = 12;
/// An interval of this many units is exact to 7.6 ppm however it was rounded.
const INTERVAL_UNITS_FINE: u128 = 1 << 17;
/// The most a stored moment may lie ahead: a quarter of the word. Half of it means "past", and the quarter
/// between is the room for doubt.
const SPAN_UNITS_MAX: u128 = (PAST_UNITS / 2) as u128;
/// From here on, "ahead" is the modular form of "behind".
const PAST_UNITS: u64 = 1 << (PAYLOAD_BITS - 1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Gcra {
    /// What one token takes to come back.
    interval_units: u64,
    /// What a whole burst takes to come back.
    full_units: u64,
    /// The furthest ahead that a stored moment is believed: `full_units` and the step-back allowance.
    span_units: u64,
    shift: u32,
    pub(crate) burst: u64,
}

impl Gcra {
    pub(crate) const NOTHING_FITS: Self =
        Self { interval_units: 0, full_units: 0, span_units: 0, shift: 0, burst: 0 };

    pub(crate) fn new(count: u64, period_ns: u64, burst: u64) -> Result<Self, Error> {
        if burst == 0 {
            return Err(Error::new("a burst of 0 admits nothing: the burst must be at least 1"));
        }
        let (count_wide, period_wide) = (u128::from(count), u128::from(period_ns));
        let interval_at = |shift: u32| (period_wide << shift).div_ceil(count_wide);
        // Fine enough, and no finer: every bit of fraction halves the word's range.
        let wanted =
            (0..SHIFT_MAX).find(|&shift| interval_at(shift) >= INTERVAL_UNITS_FINE).unwrap_or(SHIFT_MAX);
        for shift in (0..=wanted).rev() {
            let interval = interval_at(shift);
            // Rounding up may lose 10 ppm of the rate up to 10 million a second, and 0.1 % above.
            let lost = interval * count_wide - (period_wide << shift);
            let tolerance = if count_wide * 100 <= period_wide { 100_000 } else { 1_000 };
            if lost * tolerance > period_wide << shift {
                if shift == SHIFT_MAX {
                    return Err(Error::new(
                        "the rate is too fast for the word: at most about 4 a nanosecond",
                    ));
                }
                break;
            }
            let full = interval.saturating_mul(u128::from(burst));
            let span = full.saturating_add(u128::from(STEP_BACK_NS) << shift);
            if span <= SPAN_UNITS_MAX {
                #[allow(clippy::cast_possible_truncation, reason = "all at most 2^55")]
                return Ok(Self {
                    interval_units: interval as u64,
                    full_units: full as u64,
                    span_units: span as u64,
                    shift,
                    burst,
                });
            }
        }
        let days = period_wide.saturating_mul(u128::from(burst)) / count_wide / 86_400_000_000_000;
        Err(Error::new(format!(
            "the rule is too large for the word: a burst of {burst} takes {days} days to come back, \
             and a word holds 208 days at slow rates and less at fast ones"
        )))
    }

    /// How far the stored moment lies ahead of now: what is spent and not yet come back.
    #[inline]
    fn debt_units(self, word: u64, now_ns: u64) -> u64 {
        let ahead = word.wrapping_sub(now_ns << self.shift) & PAYLOAD_MASK;
        if ahead <= self.span_units { ahead } else { 0 }
    }

    #[inline]
    fn word_at(self, debt_units: u64, now_ns: u64) -> u64 {
        (now_ns << self.shift).wrapping_add(debt_units) & PAYLOAD_MASK
    }

    #[inline]
    fn whole_ns(self, units: u64) -> u64 {
        units.div_ceil(1 << self.shift)
    }
}

impl Step for Gcra {
    #[inline]
    fn fresh(self, now_ns: u64) -> u64 {
        self.word_at(0, now_ns)
    }

    #[inline(always)]
    fn admit(self, word: u64, now_ns: u64, cost: u64) -> Option<u64> {
        // Here a doubtful word counts as ahead, however far, and is refused: the common case need not ask.
        let ahead = word.wrapping_sub(now_ns << self.shift) << (u64::BITS - PAYLOAD_BITS);
        let debt = if ahead >> (u64::BITS - 1) == 1 { 0 } else { ahead >> (u64::BITS - PAYLOAD_BITS) };
        let debt = debt + cost * self.interval_units;
        (debt <= self.full_units).then(|| self.word_at(debt, now_ns))
    }

    fn refund(self, word: u64, now_ns: u64, cost: u64) -> u64 {
        let back = cost.min(self.burst) * self.interval_units;
        self.word_at(self.debt_units(word, now_ns).saturating_sub(back), now_ns)
    }

    fn hand_back(self, word: u64, now_ns: u64, cost: u64, charge: Charge) -> u64 {
        // Without the charge the bucket may have been full since this much before it is with it; others who
        // spent after that would have begun later. So no more is given back than the charge still holds up.
        let held_up = self.debt_units(charge.word, now_ns);
        let back = held_up.min(cost * self.interval_units);
        self.word_at(self.debt_units(word, now_ns).saturating_sub(back), now_ns)
    }

    #[inline]
    fn is_doubtful(self, word: u64, now_ns: u64) -> bool {
        let ahead = word.wrapping_sub(now_ns << self.shift) & PAYLOAD_MASK;
        ahead > self.span_units && ahead < PAST_UNITS
    }

    fn wait_ns(self, word: u64, now_ns: u64, cost: u64) -> u64 {
        let debt = self.debt_units(word, now_ns) + cost * self.interval_units;
        self.whole_ns(debt.saturating_sub(self.full_units))
    }

    fn reset_ns(self, word: u64, now_ns: u64) -> u64 {
        self.whole_ns(self.debt_units(word, now_ns))
    }

    fn headroom(self, word: u64, now_ns: u64) -> Headroom {
        let parts = self.full_units.saturating_sub(self.debt_units(word, now_ns));
        Headroom { parts: u128::from(parts), parts_per_cost: self.interval_units }
    }
}
