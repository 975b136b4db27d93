//! How large a burst each client would have needed never to be refused, at each of a few rates.
//!
//! Memory is bounded by measuring a sample: when there are too many clients, only those are kept whose hash has a
//! zero in a certain place, then in two, and so on. A client is in the sample from its first request or never, so what is
//! known of it is complete, and shares of the sample are shares of all.

use crate::ledger::ByHash;

/// Clients that are measured at most.
const CLIENTS_MAX: usize = 100_000;

/// A rate to choose from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    count: u64,
    period_s: u64,
    unit: &'static str,
}

impl Rate {
    const fn new(count: u64, period_s: u64, unit: &'static str) -> Self {
        Self { count, period_s, unit }
    }

    /// How many that is in so many seconds.
    pub(crate) fn in_seconds(self, seconds: u64) -> u64 {
        self.count.saturating_mul(seconds) / self.period_s
    }
}

/// Rates as people write them, each a little more than the one before.
pub(crate) const RATES: [Rate; 20] = [
    Rate::new(10, 3_600, "h"),
    Rate::new(20, 3_600, "h"),
    Rate::new(30, 3_600, "h"),
    Rate::new(1, 60, "min"),
    Rate::new(2, 60, "min"),
    Rate::new(3, 60, "min"),
    Rate::new(5, 60, "min"),
    Rate::new(10, 60, "min"),
    Rate::new(15, 60, "min"),
    Rate::new(20, 60, "min"),
    Rate::new(30, 60, "min"),
    Rate::new(1, 1, "s"),
    Rate::new(2, 1, "s"),
    Rate::new(3, 1, "s"),
    Rate::new(5, 1, "s"),
    Rate::new(10, 1, "s"),
    Rate::new(20, 1, "s"),
    Rate::new(50, 1, "s"),
    Rate::new(100, 1, "s"),
    Rate::new(500, 1, "s"),
];

/// The rate as a policy writes it.
pub(crate) fn rate_text(rate: usize) -> String {
    format!("{}/{}", RATES[rate].count, RATES[rate].unit)
}

/// One client: how much is missing from its bucket at each rate, and the most that ever was.
#[derive(Clone, Copy, Debug)]
struct Need {
    last_ns: u64,
    missing: [f32; RATES.len()],
    most: [f32; RATES.len()],
}

impl Need {
    fn new(at_ns: u64) -> Self {
        Self { last_ns: at_ns, missing: [0.0; RATES.len()], most: [0.0; RATES.len()] }
    }

    fn add(&mut self, at_ns: u64) {
        let passed_s = (at_ns - self.last_ns) as f64 / 1e9;
        self.last_ns = at_ns;
        for (index, rate) in RATES.iter().enumerate() {
            let back = passed_s * rate.count as f64 / rate.period_s as f64;
            #[allow(
                clippy::cast_possible_truncation,
                reason = "bursts are far below the 24 bits that are exact"
            )]
            let missing = (f64::from(self.missing[index]) - back).max(0.0) as f32 + 1.0;
            self.missing[index] = missing;
            self.most[index] = self.most[index].max(missing);
        }
    }
}

/// The needs of all clients of one kind of key, or of a sample.
#[derive(Debug)]
pub(crate) struct Needs {
    clients: ByHash<Need>,
    clients_max: usize,
    /// How many bits of a hash are zero for those that are measured.
    bits: u32,
    requests: u64,
}

impl Needs {
    pub(crate) fn new() -> Self {
        Self::with_room_for(CLIENTS_MAX)
    }

    fn with_room_for(clients_max: usize) -> Self {
        Self { clients: ByHash::default(), clients_max, bits: 0, requests: 0 }
    }

    pub(crate) fn add(&mut self, hash: u64, at_ns: u64) {
        self.requests += 1;
        if zero_bits(hash) < self.bits {
            return;
        }
        self.clients.entry(hash).or_insert_with(|| Need::new(at_ns)).add(at_ns);
        while self.clients.len() > self.clients_max {
            self.bits += 1;
            let bits = self.bits;
            self.clients.retain(|&hash, _| zero_bits(hash) >= bits);
        }
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// How many clients there are; an estimate if only a sample was measured.
    pub(crate) fn clients(&self) -> u64 {
        self.clients.len() as u64 * self.one_in()
    }

    pub(crate) fn one_in(&self) -> u64 {
        1 << self.bits
    }

    /// The burst with which a share of the clients, at least, is never refused at a rate.
    pub(crate) fn burst(&self, rate: usize, share: f64) -> u64 {
        let mut most: Vec<_> = self.clients.values().map(|need| need.most[rate]).collect();
        if most.is_empty() {
            return 1;
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place within the list")]
        let place = ((most.len() as f64 * share).ceil() as usize).clamp(1, most.len()) - 1;
        let (_, burst, _) = most.select_nth_unstable_by(place, f32::total_cmp);
        // A little more than what rounding may have lost.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive count")]
        let burst = (f64::from(*burst) - 1e-3).ceil() as u64;
        roomy(burst.max(1))
    }

    /// The rate and burst that let the least through in so many seconds.
    pub(crate) fn tightest(&self, share: f64, horizon_s: u64) -> (usize, u64) {
        let pairs = (0..RATES.len()).map(|rate| (rate, self.burst(rate, share)));
        let pairs = pairs.filter(|&(rate, burst)| is_buildable(rate, burst));
        pairs
            .min_by_key(|&(rate, burst)| burst.saturating_add(RATES[rate].in_seconds(horizon_s)))
            .unwrap_or((RATES.len() - 1, self.burst(RATES.len() - 1, share)))
    }
}

/// Zeros at the end of the middle of a hash: its ends are for the map.
fn zero_bits(hash: u64) -> u32 {
    (hash >> 24).trailing_zeros()
}

/// A bucket must come back whole within what a word of the engine holds.
fn is_buildable(rate: usize, burst: u64) -> bool {
    let text = format!("{} burst {burst}", rate_text(rate));
    text.parse::<tollgate::Policy>().is_ok()
}

/// The next number with two digits and zeros behind them: bursts are said by people.
fn roomy(burst: u64) -> u64 {
    let mut unit = 1;
    while burst / unit >= 100 {
        unit *= 10;
    }
    burst.div_ceil(unit) * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn needs_are_what_a_bucket_would_have_to_hold() {
        let mut needs = Needs::new();
        // Ten at once, then one a second.
        (0..10).for_each(|_| needs.add(1 << 20, 0));
        (1..100).for_each(|second| needs.add(1 << 20, second * S));
        let rate = |text: &str| (0..RATES.len()).find(|&rate| rate_text(rate) == text).expect(text);
        assert_eq!(needs.burst(rate("1/s"), 1.0), 10);
        assert_eq!(needs.burst(rate("2/s"), 1.0), 10);
        // At 30 a minute, half of what comes each second stays missing: 10 + 99/2.
        assert_eq!(needs.burst(rate("30/min"), 1.0), 60);
        // In 100 s, a bucket of 93 with 16 more is no more than any other pair: 10 and 100, or 110 and none.
        assert_eq!(needs.tightest(1.0, 100), (rate("10/min"), 93));
        assert_eq!(needs.tightest(1.0, 86_400).0, rate("10/h"));
    }

    #[test]
    fn a_share_leaves_the_rest_out() {
        let mut needs = Needs::new();
        for client in 0..100_u64 {
            (0..if client == 0 { 500 } else { 5 }).for_each(|_| needs.add(client << 32 | 1 << 20, 0));
        }
        assert_eq!((needs.burst(0, 0.99), needs.burst(0, 1.0)), (5, 500));
        assert_eq!(needs.clients(), 100);
    }

    #[test]
    fn a_sample_is_complete_for_those_in_it() {
        let hasher = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let mut needs = Needs::with_room_for(1_000);
        for round in 0..3 {
            (0..20_000_u64).for_each(|client| needs.add(hasher.hash_one(client), round * 100 * 3_600 * S));
        }
        assert!(needs.one_in() >= 16 && needs.clients.len() <= 1_000);
        assert!(needs.clients().abs_diff(20_000) < 3_000, "{}", needs.clients());
        assert!(needs.clients.values().all(|need| need.most[0] == 1.0));
    }

    #[test]
    fn bursts_are_said_in_two_digits() {
        for (burst, said) in [(1, 1), (99, 99), (101, 110), (1_234, 1_300), (2_000, 2_000)] {
            assert_eq!(roomy(burst), said);
        }
    }
}
