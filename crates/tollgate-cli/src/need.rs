//! How large a burst each client would have needed never to be refused, at each of a few rates.
//!
//! Memory is bounded by measuring a sample: when there are too many clients, only those are kept whose hash has a
//! zero in a certain place, then in two, and so on. A client is in the sample from its first request or never, so what is
//! known of it is complete, and shares of the sample are shares of all.

use crate::input::time::NS_PER_S;
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

    /// How long a token takes to come back, rounded up as the engine does.
    const fn token_ns(self) -> u64 {
        (self.period_s * NS_PER_S).div_ceil(self.count)
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

/// One client: how much is missing from its bucket at each rate, as the time until it is whole, and the most tokens that
/// ever were.
#[derive(Clone, Copy, Debug)]
struct Need {
    last_ns: u64,
    missing_ns: [u64; RATES.len()],
    most: [u32; RATES.len()],
}

impl Need {
    fn new(at_ns: u64) -> Self {
        Self { last_ns: at_ns, missing_ns: [0; RATES.len()], most: [0; RATES.len()] }
    }

    fn add(&mut self, at_ns: u64) {
        let passed_ns = at_ns - self.last_ns;
        self.last_ns = at_ns;
        for ((rate, missing_ns), most) in RATES.iter().zip(&mut self.missing_ns).zip(&mut self.most) {
            let token_ns = rate.token_ns();
            *missing_ns = missing_ns.saturating_sub(passed_ns).saturating_add(token_ns);
            // A token that is missing in part is missing.
            if *missing_ns > u64::from(*most).saturating_mul(token_ns) {
                *most = u32::try_from(missing_ns.div_ceil(token_ns)).unwrap_or(u32::MAX);
            }
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
    pub(crate) fn burst(&self, rate: usize, share_percent: f64) -> u64 {
        let mut most: Vec<_> = self.clients.values().map(|need| need.most[rate]).collect();
        if most.is_empty() {
            return 1;
        }
        let place = rank(most.len(), share_percent) - 1;
        let (_, burst, _) = most.select_nth_unstable(place);
        roomy(u64::from(*burst).max(1))
    }

    /// The rate and burst that let the least through in so many seconds.
    pub(crate) fn tightest(&self, share_percent: f64, horizon_s: u64) -> (usize, u64) {
        let pairs = (0..RATES.len()).map(|rate| (rate, self.burst(rate, share_percent)));
        let pairs = pairs.filter(|&(rate, burst)| is_buildable(rate, burst));
        pairs
            .min_by_key(|&(rate, burst)| burst.saturating_add(RATES[rate].in_seconds(horizon_s)))
            .unwrap_or((RATES.len() - 1, self.burst(RATES.len() - 1, share_percent)))
    }
}

/// How many of so many make up a share. What is typed in decimals is meant in decimals: of 1000, 99.9 % are 999.
fn rank(count: usize, share_percent: f64) -> usize {
    const WHOLE: u128 = 1_000_000_000;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a hundred per cent")]
    let billionths = (share_percent * 1e7).round() as u128;
    let rank = (count as u128 * billionths).div_ceil(WHOLE);
    usize::try_from(rank).unwrap_or(count).clamp(1, count)
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
        assert_eq!(needs.burst(rate("1/s"), 100.0), 10);
        assert_eq!(needs.burst(rate("2/s"), 100.0), 10);
        // At 30 a minute, half of what comes each second stays missing: 10 + 99/2.
        assert_eq!(needs.burst(rate("30/min"), 100.0), 60);
        // In 100 s, a bucket of 93 with 16 more is no more than any other pair: 10 and 100, or 110 and none.
        assert_eq!(needs.tightest(100.0, 100), (rate("10/min"), 93));
        assert_eq!(needs.tightest(100.0, 86_400).0, rate("10/h"));
    }

    #[test]
    fn a_share_leaves_the_rest_out() {
        let mut needs = Needs::new();
        for client in 0..100_u64 {
            (0..if client == 0 { 500 } else { 5 }).for_each(|_| needs.add(client << 32 | 1 << 20, 0));
        }
        assert_eq!((needs.burst(0, 99.0), needs.burst(0, 100.0)), (5, 500));
        assert_eq!(needs.clients(), 100);
    }

    #[test]
    fn shares_are_exact() {
        for count in [1_000, 2_000, 3_000] {
            assert_eq!(rank(count, 99.9), count - count / 1_000);
            assert_eq!(rank(count, 99.0), count - count / 100);
        }
        for (count, share, expected) in
            [(999, 99.9, 999), (1_001, 99.9, 1_000), (10_000, 99.99, 9_999), (7, 100.0, 7), (7, 1e-9, 1)]
        {
            assert_eq!(rank(count, share), expected, "{count} {share}");
        }
    }

    /// The engine agrees: with that burst nobody is refused, and with one less somebody is.
    #[test]
    fn no_rounding_refuses_anybody() {
        let mut random = 1_u64;
        for (rate, _) in RATES.iter().enumerate() {
            let (mut needs, mut times, mut at_ns) = (Needs::new(), Vec::new(), 1_000 * S);
            for _ in 0..90 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                at_ns += (random >> 33) % (2 * RATES[rate].token_ns());
                times.push(at_ns);
                needs.add(1 << 20, at_ns);
            }
            let burst = needs.clients[&(1 << 20)].most[rate];
            let refused = |burst: u32| {
                let (clock, hand) = tollgate::Clock::manual();
                let policy = format!("{} burst {burst}", rate_text(rate));
                let gate = tollgate::Gate::with_clock(policy.as_str(), clock).expect("a gate");
                times.iter().any(|&at_ns| {
                    hand.set(std::time::Duration::from_nanos(at_ns));
                    gate.try_acquire().is_denied()
                })
            };
            assert!(!refused(burst), "{} burst {burst}", rate_text(rate));
            assert!(burst == 1 || refused(burst - 1), "{} burst {burst}", rate_text(rate));
        }
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
        assert!(needs.clients.values().all(|need| need.most[0] == 1));
    }

    #[test]
    fn bursts_are_said_in_two_digits() {
        for (burst, said) in [(1, 1), (99, 99), (101, 110), (1_234, 1_300), (2_000, 2_000)] {
            assert_eq!(roomy(burst), said);
        }
    }
}
