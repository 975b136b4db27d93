//! Traffic from a seed: the same seed gives the same requests on every machine.
//!
//! Integers only, so that no platform's floating point can tell the difference.

use std::time::Duration;

/// How long the simulation lasts.
pub(crate) const SPAN: Duration = Duration::from_secs(120);

const NS_PER_S: u64 = 1_000_000_000;
const READERS: usize = 2_000;
const READER_REQUESTS: usize = 120_000;
/// When the importer wakes up, how many requests it then makes, and over how long.
const IMPORTS_AT_S: [u64; 2] = [30, 85];
const IMPORT_REQUESTS: usize = 4_000;
const IMPORT_SPREAD_S: u64 = 2;
const IMPORT_COST_MAX: u64 = 4;
const SCANNER_INTERVAL_NS: u64 = NS_PER_S / 250;

/// Who sends a request, and in which manner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Actor {
    /// Many clients, a few of them busy and most of them rare, at random times.
    Reader,
    /// One client that is silent but for bursts of weighted requests.
    Importer,
    /// One client that knocks at a steady pace, far above its limit, whatever the answer.
    Scanner,
}

impl Actor {
    pub(crate) const ALL: [Self; 3] = [Self::Reader, Self::Importer, Self::Scanner];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reader => "readers",
            Self::Importer => "importer",
            Self::Scanner => "scanner",
        }
    }

    pub(crate) fn clients(self) -> usize {
        match self {
            Self::Reader => READERS,
            Self::Importer | Self::Scanner => 1,
        }
    }
}

/// How many clients there are in all. Readers come first, then the importer, then the scanner.
pub(crate) const CLIENTS: usize = READERS + 2;
const IMPORTER: usize = READERS;
const SCANNER: usize = READERS + 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) at_ns: u64,
    pub(crate) client: usize,
    pub(crate) cost: u64,
    pub(crate) actor: Actor,
}

/// All requests of the simulation, in order of time.
pub(crate) fn generate(seed: u64) -> Vec<Request> {
    let mut random = Random(seed);
    let span_ns = SPAN.as_secs() * NS_PER_S;
    let ranks = Zipf::new(READERS);
    let mut requests = Vec::new();
    for _ in 0..READER_REQUESTS {
        let (at_ns, client) = (random.below(span_ns), ranks.draw(&mut random));
        requests.push(Request { at_ns, client, cost: 1, actor: Actor::Reader });
    }
    for start_s in IMPORTS_AT_S {
        for _ in 0..IMPORT_REQUESTS {
            let at_ns = start_s * NS_PER_S + random.below(IMPORT_SPREAD_S * NS_PER_S);
            let cost = 1 + random.below(IMPORT_COST_MAX);
            requests.push(Request { at_ns, client: IMPORTER, cost, actor: Actor::Importer });
        }
    }
    for knock in 0..span_ns / SCANNER_INTERVAL_NS {
        // Somewhere within its interval: a real scanner's pace trembles.
        let at_ns = knock * SCANNER_INTERVAL_NS + random.below(SCANNER_INTERVAL_NS);
        requests.push(Request { at_ns, client: SCANNER, cost: 1, actor: Actor::Scanner });
    }
    requests.sort_by_key(|request| request.at_ns);
    requests
}

/// Ranks with weights 1, 1/2, 1/3, …: the few that are busy, the many that are not.
struct Zipf {
    /// The sum of the weights up to and with each rank.
    cumulative: Vec<u64>,
}

impl Zipf {
    fn new(ranks: usize) -> Self {
        let weights = (1..).take(ranks).map(|rank: u64| (1 << 32) / rank);
        let cumulative = weights
            .scan(0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        Self { cumulative }
    }

    fn draw(&self, random: &mut Random) -> usize {
        let total = self.cumulative.last().copied().unwrap_or(1);
        let at = random.below(total);
        self.cumulative.partition_point(|&sum| sum <= at)
    }
}

/// The `splitmix64` generator: small, even, and good enough for traffic.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, by the high half of a product; the bias is below `bound / 2^64`.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_gives_its_published_sequence() {
        let mut random = Random(1_234_567);
        let drawn = [random.next(), random.next(), random.next()];
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn the_seed_decides_everything() {
        assert!(generate(7) == generate(7));
        assert!(generate(7) != generate(8));
    }

    #[test]
    fn requests_are_ordered_and_in_range() {
        let requests = generate(0);
        let span_ns = SPAN.as_secs() * NS_PER_S;
        assert!(requests.is_sorted_by_key(|request| request.at_ns));
        for request in &requests {
            assert!(request.at_ns < span_ns && request.client < CLIENTS);
            assert!((1..=IMPORT_COST_MAX).contains(&request.cost));
        }
        assert_eq!(CLIENTS, Actor::ALL.into_iter().map(Actor::clients).sum());
    }

    #[test]
    fn the_first_rank_is_the_busiest() {
        let requests = generate(3);
        let of = |client| requests.iter().filter(|request| request.client == client).count();
        assert!(of(0) > of(9) * 5 && of(9) > of(999));
    }
}
