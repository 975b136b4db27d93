//! Lockouts that grow: refusals are counted, and so many of them lock a key out for longer each time.
//!
//! ```text
//! word: | level: 4 | strikes: 8 | moment: 44, in 2^20 ns |
//! ```
//!
//! The moment is the end of the last lockout, or the last strike since. A key that keeps clear of refusals
//! for as long as it takes to be forgiven is fresh again.

use super::PAYLOAD_BITS;

/// A moment is kept to about a millisecond, which makes 44 bits of it last for five centuries.
pub(crate) const MOMENT_SHIFT: u32 = 20;
pub(crate) const MOMENT_BITS: u32 = 44;
const STRIKE_BITS: u32 = 8;
const LEVEL_BITS: u32 = 4;
/// The most lockouts a schedule may have.
pub(crate) const LEVELS_MAX: usize = (1 << LEVEL_BITS) - 1;
/// The most refusals that may go before a lockout.
pub(crate) const STRIKES_MAX: u64 = (1 << STRIKE_BITS) - 1;

const _: () = assert!(MOMENT_BITS + STRIKE_BITS + LEVEL_BITS == PAYLOAD_BITS);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Penalty {
    lockouts_ns: [u64; LEVELS_MAX],
    levels: u64,
    strikes: u64,
    forgiven_ns: u64,
}

struct Reading {
    level: u64,
    strikes: u64,
    moment_ns: u64,
}

impl Penalty {
    /// The schedule has 1 to [`LEVELS_MAX`] lockouts, and a lockout follows 1 to [`STRIKES_MAX`] strikes.
    pub(crate) fn new(schedule_ns: &[u64], strikes: u64, forgiven_ns: u64) -> Self {
        let mut lockouts_ns = [0; LEVELS_MAX];
        for (lockout_ns, &asked_ns) in lockouts_ns.iter_mut().zip(schedule_ns) {
            *lockout_ns = asked_ns;
        }
        Self { lockouts_ns, levels: schedule_ns.len().min(LEVELS_MAX) as u64, strikes, forgiven_ns }
    }

    fn read(&self, word: u64) -> Reading {
        Reading {
            level: word >> (STRIKE_BITS + MOMENT_BITS),
            strikes: word >> MOMENT_BITS & STRIKES_MAX,
            moment_ns: (word & ((1 << MOMENT_BITS) - 1)) << MOMENT_SHIFT,
        }
    }

    /// How long the key is still locked out; 0 if it is not.
    pub(crate) fn locked_ns(&self, word: u64, now_ns: u64) -> u64 {
        let reading = self.read(word);
        if reading.level > 0 && reading.strikes == 0 { reading.moment_ns.saturating_sub(now_ns) } else { 0 }
    }

    /// How long until the key is forgiven; 0 if it is.
    pub(crate) fn reset_ns(&self, word: u64, now_ns: u64) -> u64 {
        match word {
            0 => 0,
            _ => self.read(word).moment_ns.saturating_add(self.forgiven_ns).saturating_sub(now_ns),
        }
    }

    /// The word after one more refusal.
    pub(crate) fn strike(&self, word: u64, now_ns: u64) -> u64 {
        let reading = self.read(if self.reset_ns(word, now_ns) == 0 { 0 } else { word });
        if reading.strikes + 1 < self.strikes {
            return pack(reading.level, reading.strikes + 1, now_ns);
        }
        let level = (reading.level + 1).min(self.levels);
        #[allow(clippy::cast_possible_truncation, reason = "at most 15")]
        let lockout_ns = self.lockouts_ns[level as usize - 1];
        pack(level, 0, now_ns.saturating_add(lockout_ns))
    }
}

/// Rounded up: a lockout is never shorter than it was meant to be.
fn pack(level: u64, strikes: u64, moment_ns: u64) -> u64 {
    let moment = moment_ns.div_ceil(1 << MOMENT_SHIFT).min((1 << MOMENT_BITS) - 1);
    level << (STRIKE_BITS + MOMENT_BITS) | strikes << MOMENT_BITS | moment
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const ROUNDING_NS: u64 = 1 << MOMENT_SHIFT;

    #[test]
    fn lockouts_grow_by_the_schedule_and_are_forgiven() {
        let penalty = Penalty::new(&[60 * S, 300 * S, 3_600 * S], 2, 7_200 * S);
        let (mut word, mut now) = (0, 1_790_000_000 * S);
        for lockout_ns in [60 * S, 300 * S, 3_600 * S, 3_600 * S] {
            word = penalty.strike(word, now);
            assert_eq!(penalty.locked_ns(word, now), 0, "one strike is not yet a lockout");
            word = penalty.strike(word, now);
            let locked_ns = penalty.locked_ns(word, now);
            assert!((lockout_ns..lockout_ns + ROUNDING_NS).contains(&locked_ns), "{locked_ns}");
            assert_eq!(penalty.locked_ns(word, now + locked_ns - 1), 1);
            now += locked_ns;
            assert_eq!(penalty.locked_ns(word, now), 0);
        }
        assert!(penalty.reset_ns(word, now) <= 7_200 * S);
        now += penalty.reset_ns(word, now);
        assert_eq!(penalty.reset_ns(word, now), 0);
        let word = penalty.strike(penalty.strike(word, now), now);
        assert!(penalty.locked_ns(word, now) < 60 * S + ROUNDING_NS, "begins again at the first");
    }

    #[test]
    fn no_time_or_length_overflows() {
        let penalty = Penalty::new(&[u64::MAX], 1, u64::MAX);
        let word = penalty.strike(0, u64::MAX);
        assert!(penalty.locked_ns(word, 0) > 0 && penalty.reset_ns(word, 0) > 0);
        assert!(penalty.strike(word, u64::MAX) > 0);
    }
}
