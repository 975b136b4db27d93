//! How many different keys were seen, in a fixed 16 KiB: a `HyperLogLog`, right within about one per cent.

const BITS: u32 = 14;
const REGISTERS: usize = 1 << BITS;

#[derive(Clone, Debug)]
pub(crate) struct Distinct {
    /// The longest run of leading zeros seen among the hashes of each register, plus one.
    registers: Box<[u8]>,
}

impl Distinct {
    pub(crate) fn new() -> Self {
        Self { registers: vec![0; REGISTERS].into() }
    }

    pub(crate) fn add(&mut self, hash: u64) {
        // A multiplication spreads what the hash map's use of the low bits leaves alike.
        let mixed = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = mixed ^ mixed >> 32;
        let register = (mixed >> (64 - BITS)) as usize;
        let zeros = (mixed << BITS | 1 << (BITS - 1)).leading_zeros();
        let rank = u8::try_from(zeros + 1).unwrap_or(u8::MAX);
        self.registers[register] = self.registers[register].max(rank);
    }

    pub(crate) fn estimate(&self) -> u64 {
        let count = REGISTERS as f64;
        let sum: f64 = self.registers.iter().map(|&rank| 0.5_f64.powi(i32::from(rank))).sum();
        let raw = 0.7213 / (1.0 + 1.079 / count) * count * count / sum;
        let empty = self.registers.iter().filter(|&&rank| rank == 0).count();
        // Few keys: by the registers that are still empty.
        let estimate =
            if raw <= 2.5 * count && empty > 0 { count * (count / empty as f64).ln() } else { raw };
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, far below 2^53"
        )]
        let whole = estimate.round() as u64;
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_within_three_per_cent() {
        let hasher = ahash::RandomState::with_seeds(1, 2, 3, 4);
        for count in [1_u64, 100, 10_000, 40_000, 300_000] {
            let mut distinct = Distinct::new();
            (0..count).for_each(|key| distinct.add(hasher.hash_one(key)));
            (0..count).for_each(|key| distinct.add(hasher.hash_one(key)));
            let off = distinct.estimate().abs_diff(count) as f64 / count as f64;
            assert!(off < 0.03, "{count}: {}", distinct.estimate());
        }
    }
}
