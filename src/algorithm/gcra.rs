//! The token bucket as GCRA: the whole state is the moment at which the bucket will be full again.
//!
//! Time is counted in `2^-shift` ns, the shift chosen a rule, so that the interval of one token is exact
//! to a few parts per million. The interval is rounded up: the rate is never above the configured one.

use super::{Charge, Headroom, PAYLOAD_BITS, PAYLOAD_MASK, STEP_BACK_NS, STORER_BITS, Seen, Step};
use crate::error::Error;

/// The finest unit of time: 2^-12 ns, which keeps a rule of a billion a second within 0.025 %.
const SHIFT_MAX: u32 = 12;
/// An interval of this many units is exact to 7.6 ppm however it was rounded.
const INTERVAL_UNITS_FINE: u128 = 1 << 17;
/// The most a stored moment may lie ahead: a quarter of the word. Half of it means "past", and the quarter
/// between is the room for doubt.
const SPAN_UNITS_MAX: u64 = PAST_UNITS / 2;
/// The longest mark, with room for a step back: 208 days.
const SPAN_NS_MAX: u64 = PAST_UNITS / 2 - STEP_BACK_NS;
/// From here on, "ahead" is the modular form of "behind".
const PAST_UNITS: u64 = 1 << (PAYLOAD_BITS - 1);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gcra {
    /// What one token takes to come back.
    pub(crate) interval_units: u64,
    /// What a whole burst takes to come back.
    pub(crate) full_units: u64,
    /// The furthest ahead that a stored moment is taken as it is: `full_units`, the step-back allowance, and
    /// as far as anything has been booked.
    believed_units: u64,
    /// The furthest ahead that a stored moment is taken for one at all: what an earlier rule for the same words
    /// may have left. Beyond `believed_units` it counts as a whole burst.
    span_units: u64,
    shift: u32,
    pub(crate) burst: u64,
}

impl Gcra {
    pub(crate) const NOTHING_FITS: Self =
        Self { interval_units: 0, full_units: 0, believed_units: 0, span_units: 0, shift: 0, burst: 0 };

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
            if span <= u128::from(SPAN_UNITS_MAX) {
                #[allow(clippy::cast_possible_truncation, reason = "all at most 2^55")]
                return Ok(Self {
                    interval_units: interval as u64,
                    full_units: full as u64,
                    believed_units: span as u64,
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

    /// A mark that lasts for `length_ns` and counts once: a bucket of one that believes every word.
    pub(crate) fn mark(length_ns: u64) -> Self {
        let length = length_ns.min(SPAN_NS_MAX);
        Self {
            interval_units: length,
            full_units: length,
            believed_units: SPAN_UNITS_MAX,
            span_units: SPAN_UNITS_MAX,
            shift: 0,
            burst: 1,
        }
    }

    /// What has to be the same for two buckets to go on with each other's words.
    pub(crate) fn unit(self) -> u32 {
        self.shift
    }

    /// The same bucket, where words may have been left by `earlier`, which counts in the same unit.
    pub(crate) fn following(self, earlier: Self) -> Self {
        Self { span_units: self.span_units.max(earlier.span_units), ..self }
    }

    /// The same bucket, where `other` is in force over the same words, in the same unit: what it puts them at is
    /// taken as it is.
    pub(crate) fn beside(self, other: Self) -> Self {
        Self {
            believed_units: self.believed_units.max(other.believed_units),
            span_units: self.span_units.max(other.span_units),
            ..self
        }
    }

    /// The same bucket, where moments up to `horizon_ns` beyond a whole burst have been booked.
    #[inline]
    pub(crate) fn booked(self, horizon_ns: u64) -> Self {
        let horizon = self.units(horizon_ns);
        Self {
            believed_units: (self.believed_units + horizon).min(SPAN_UNITS_MAX),
            span_units: (self.span_units + horizon).min(SPAN_UNITS_MAX),
            ..self
        }
    }

    /// The word after booking `cost` for the earliest moment there is, and how long until that: `None` if it is
    /// more than `wait_ns_max`, or further ahead than a word can say.
    pub(crate) fn book(self, word: u64, now_ns: u64, cost: u64, wait_ns_max: u64) -> Option<(u64, u64)> {
        let debt = self.debt_units(word, now_ns) + cost * self.interval_units;
        let wait_ns = self.whole_ns(debt.saturating_sub(self.full_units));
        let fits = wait_ns <= wait_ns_max && debt + self.units(STEP_BACK_NS) <= SPAN_UNITS_MAX;
        fits.then(|| (self.word_at(debt, now_ns), wait_ns))
    }

    /// The word after spending `cost` as of a moment `delay_ns` from now, if it fits now already: whoever spends
    /// it at any time in between stays within the bound.
    pub(crate) fn spend_within(self, word: u64, now_ns: u64, cost: u64, delay_ns: u64) -> Option<u64> {
        let debt = self.debt_units(word, now_ns).max(self.units(delay_ns)) + cost * self.interval_units;
        (debt <= self.full_units).then(|| self.word_at(debt, now_ns))
    }

    /// The word after a change from `before`, which counts in the same unit: see [`Plan::cut_down`](super::Plan).
    pub(crate) fn cut_down(self, before: Self, word: u64, now_ns: u64) -> u64 {
        let debt = self.debt_units(word, now_ns);
        let booked = debt.saturating_sub(before.full_units);
        // As much as a step back may have put a word further is believed here as everywhere.
        let is_believed = debt <= self.full_units + self.units(STEP_BACK_NS);
        if is_believed || before.full_units <= self.full_units {
            return word;
        }
        self.word_at(self.full_units + booked, now_ns)
    }

    /// Whether one word lies at or beyond another, as long as that still counts.
    pub(crate) fn is_at_or_beyond(self, word: u64, other: u64, now_ns: u64) -> bool {
        self.debt_units(word, now_ns) >= self.debt_units(other, now_ns)
    }

    /// Whether what was spent from the one bucket is the same on the other.
    pub(crate) fn counts_as(self, other: Self) -> bool {
        (self.interval_units, self.full_units, self.shift)
            == (other.interval_units, other.full_units, other.shift)
    }

    /// The word that owes what `word` owed at another time.
    pub(crate) fn carried(self, word: u64, then_ns: u64, now_ns: u64) -> u64 {
        self.word_at(self.debt_units(word, then_ns), now_ns)
    }

    /// A length of time in the bucket's unit, or as much of it as a word can say.
    fn units(self, ns: u64) -> u64 {
        ns.min(SPAN_UNITS_MAX >> self.shift) << self.shift
    }

    /// How far the stored moment lies ahead of now: what is spent and not yet come back.
    #[inline]
    fn debt_units(self, word: u64, now_ns: u64) -> u64 {
        let ahead = word.wrapping_sub(now_ns << self.shift) & PAYLOAD_MASK;
        if ahead <= self.span_units { ahead } else { 0 }
    }

    /// What has been spent and not come back.
    #[inline]
    pub(crate) fn debt(self, word: u64, now_ns: u64) -> Debt {
        self.debt_of(self.debt_units(word, now_ns))
    }

    #[inline(always)]
    pub(crate) fn debt_of(&self, units: u64) -> Debt {
        Debt { units, interval_units: self.interval_units, burst: self.burst, shift: self.shift }
    }

    /// Whether nothing that was spent is still to come back.
    #[inline(always)]
    pub(crate) fn is_fresh(&self, word: u64, now_ns: u64) -> bool {
        let ahead = word.wrapping_sub(now_ns << self.shift) & PAYLOAD_MASK;
        // One comparison for both ends: 0 wraps to the furthest ahead.
        ahead.wrapping_sub(1) >= self.span_units
    }

    /// The word that owes so much.
    #[inline]
    pub(crate) fn word_at(self, debt_units: u64, now_ns: u64) -> u64 {
        (now_ns << self.shift).wrapping_add(debt_units) & PAYLOAD_MASK
    }

    #[inline]
    fn whole_ns(self, units: u64) -> u64 {
        units.div_ceil(1 << self.shift)
    }
}

/// What has been spent from a bucket and not come back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Debt {
    units: u64,
    interval_units: u64,
    burst: u64,
    shift: u32,
}

impl Debt {
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    #[inline]
    fn full_units(&self) -> u64 {
        // No overflow: as in the bucket, of which this is the product.
        self.interval_units * self.burst
    }

    fn whole_ns(&self, units: u64) -> u64 {
        units.div_ceil(1 << self.shift)
    }

    /// Whether four fifths of a burst or more have not come back.
    #[inline]
    pub(crate) fn is_near_limit(&self) -> bool {
        // No overflow: a stored moment lies at most 2^54 ahead.
        self.units * 5 >= self.full_units() * 4
    }
}

impl Seen for Debt {
    fn limit(&self) -> u64 {
        self.burst
    }

    #[inline]
    fn wait_ns(&self, cost: u64) -> u64 {
        self.whole_ns((self.units + cost * self.interval_units).saturating_sub(self.full_units()))
    }

    fn reset_ns(&self) -> u64 {
        self.whole_ns(self.units)
    }

    #[inline]
    fn headroom(&self) -> Headroom {
        let parts = self.full_units().saturating_sub(self.units);
        Headroom { parts: u128::from(parts), parts_per_cost: self.interval_units }
    }
}

/// A bucket as it is decided upon where a word is stored: everything as far up as the algorithm's bits are, so that the
/// storer's bits below need not be taken off and put back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StoredGcra {
    interval: u64,
    /// With all of the storer's bits set, whatever a word has there.
    full: u64,
    believed: u64,
    shift: u32,
}

/// What came of spending from a stored word.
pub(crate) enum Spent {
    /// The word that is to be put in its place, and what has not come back with it.
    Fits { next: u64, debt_units: u64 },
    /// What has not come back.
    Exceeds { debt_units: u64 },
    /// The word lies too far ahead to be believed.
    Doubtful,
}

impl StoredGcra {
    pub(crate) const fn new(plan: Gcra) -> Self {
        let all = (1 << STORER_BITS) - 1;
        Self {
            interval: plan.interval_units << STORER_BITS,
            full: plan.full_units << STORER_BITS | all,
            believed: plan.believed_units << STORER_BITS | all,
            shift: plan.shift + STORER_BITS,
        }
    }

    /// [`Gcra::admit`], with the storer's bits left as they are. The cost is at most the burst.
    #[inline(always)]
    pub(crate) fn spend(&self, stored: u64, now_ns: u64, cost: u64) -> Spent {
        let now = now_ns << self.shift;
        // What lies behind is negative: the moment stands at the top of the word.
        let ahead = stored.wrapping_sub(now);
        let is_past = (ahead as i64) < 0;
        let debt = if is_past { stored & ((1 << STORER_BITS) - 1) } else { ahead };
        // No overflow: a debt is below 2^63, and what a burst costs below 2^62.
        let next = debt + cost * self.interval;
        if next <= self.full {
            Spent::Fits { next: now.wrapping_add(next), debt_units: next >> STORER_BITS }
        } else if debt > self.believed {
            Spent::Doubtful
        } else {
            Spent::Exceeds { debt_units: debt >> STORER_BITS }
        }
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
        // What lies behind is negative, once the moment stands at the top of the word.
        let ahead = (word.wrapping_sub(now_ns << self.shift) << (u64::BITS - PAYLOAD_BITS)) as i64;
        let debt = ahead.max(0).unsigned_abs() >> (u64::BITS - PAYLOAD_BITS);
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
        ahead > self.believed_units && ahead < PAST_UNITS
    }

    fn settled(self, word: u64, now_ns: u64) -> u64 {
        match self.debt_units(word, now_ns) {
            debt if debt > self.believed_units => self.word_at(self.full_units, now_ns),
            0 => self.fresh(now_ns),
            _ => word,
        }
    }

    #[inline]
    fn see(self, word: u64, now_ns: u64) -> impl Seen {
        self.debt(word, now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two ways of spending say the same of every word, and leave the storer's bits alone.
    #[test]
    fn a_stored_word_is_spent_from_as_any_other() {
        let rules = [
            (1, 1_000_000_000, 1),
            (100, 1_000_000_000, 20),
            (1_000_000_000, 1_000_000_000, 7),
            (7, 86_400_000_000_000, 3),
        ];
        let now_ns = 1_790_000_000_123_456_789u64;
        for (count, period_ns, burst) in rules {
            let plan = Gcra::new(count, period_ns, burst).expect("a valid rule");
            let stored_plan = StoredGcra::new(plan);
            let full = plan.full_units.cast_signed();
            let edges = [0, 1, full / 2, full - 1, full, full + 1, plan.believed_units.cast_signed()];
            let far = [1 << 54, (1 << 55) - 1, 1 << 55, -(1 << 54), -(1 << 55)];
            for around in edges.into_iter().flat_map(|edge| [edge, -edge]).chain(far) {
                for units in around - 2..=around + 2 {
                    let word = plan.word_at(units.cast_unsigned(), now_ns);
                    for (cost, bits) in (1..=burst).flat_map(|cost| [(cost, 0), (cost, 0xff), (cost, 0x5a)]) {
                        let spent = stored_plan.spend(word << STORER_BITS | bits, now_ns, cost);
                        let what =
                            format!("{count}/{period_ns} ns burst {burst}: {units} ahead, cost {cost}");
                        match (plan.admit(word, now_ns, cost), spent) {
                            (Some(next), Spent::Fits { next: stored, debt_units }) => {
                                assert_eq!(stored, next << STORER_BITS | bits, "{what}");
                                assert_eq!(debt_units, plan.debt_units(next, now_ns), "{what}");
                            }
                            (None, Spent::Exceeds { debt_units }) => {
                                assert!(!plan.is_doubtful(word, now_ns), "{what}");
                                assert_eq!(debt_units, plan.debt_units(word, now_ns), "{what}");
                            }
                            (None, Spent::Doubtful) => assert!(plan.is_doubtful(word, now_ns), "{what}"),
                            _ => panic!("{what}: the two differ"),
                        }
                    }
                }
            }
        }
    }
}
