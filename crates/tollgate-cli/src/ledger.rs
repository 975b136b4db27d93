//! What became of each client, in bounded memory.
//!
//! Up to [`ROWS_MAX`] clients are kept, and for a moment a few more, each with all its counts. Beyond, the half with the fewest requests is let
//! go: those that stay may have lost, from an earlier stay, at most as many requests as the busiest that went.
//! How many clients there were at all is then an estimate.

use crate::distinct::Distinct;
use crate::timeline::CLIENT_BUCKETS;
use ahash::RandomState;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) const ROWS_MAX: usize = 1 << 16;

/// What became of a client.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) label: Box<[u8]>,
    pub(crate) requests: u64,
    pub(crate) admitted: u64,
    /// Refused under this key; what is missing was refused by other rules of the file alone.
    pub(crate) refused: u64,
    /// Admitted and refused by whichever rule, over time.
    pub(crate) series: [[u32; 2]; CLIENT_BUCKETS],
}

#[derive(Clone, Debug)]
struct Client {
    hash: u64,
    label: Box<[u8]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    requests: u64,
    admitted: u64,
    refused: u64,
}

/// What became of a request, seen from one of the keys it falls under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Admitted,
    Refused,
    RefusedByOthers,
}

/// How much of one rule a client would have wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    last_ns: u64,
    level: f32,
    /// The burst it would have taken never to refuse, at the rule's rate.
    pub(crate) burst: f32,
    period_end_ns: u64,
    count: u32,
    /// The most tokens that its requests of one aligned period cost.
    pub(crate) in_period: u32,
}

impl Demand {
    fn add(&mut self, meter: &Meter, at_ns: u64) {
        let passed_ns = at_ns - self.last_ns;
        self.last_ns = at_ns;
        #[allow(clippy::cast_possible_truncation, reason = "for a chart")]
        let refilled = (passed_ns as f64 * meter.per_ns) as f32;
        self.level = (self.level - refilled).max(0.0) + meter.cost as f32;
        self.burst = self.burst.max(self.level);
        if at_ns >= self.period_end_ns {
            let into_ns = at_ns % meter.period_ns;
            (self.period_end_ns, self.count) = ((at_ns - into_ns).saturating_add(meter.period_ns), 0);
        }
        self.count = self.count.saturating_add(meter.cost);
        self.in_period = self.in_period.max(self.count);
    }
}

/// A rule, as demand is measured by it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    pub(crate) per_ns: f64,
    pub(crate) period_ns: u64,
    /// What a request costs, in tokens.
    pub(crate) cost: u32,
}

/// Hashes are hashed already.
#[derive(Default)]
pub(crate) struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = RandomState::with_seeds(1, 2, 3, 4).hash_one(bytes);
    }
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

pub(crate) type ByHash<T> = HashMap<u64, T, BuildHasherDefault<AsIs>>;

/// Column by column: what is written for every request lies together, and most of it stays in the processor's cache.
#[derive(Debug)]
pub(crate) struct Ledger {
    index: ByHash<u32>,
    clients: Vec<Client>,
    counts: Vec<Counts>,
    /// For each stretch of time, for each client: admitted and refused.
    series: [Vec<[u32; 2]>; CLIENT_BUCKETS],
    rows_max: usize,
    meters: Vec<Meter>,
    /// For each client, one for each meter.
    demands: Vec<Demand>,
    seen: Distinct,
    touched: Distinct,
    /// The most requests that a row which was let go had.
    lost_max: Option<u64>,
}

/// How many clients there were.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct ClientCounts {
    pub(crate) seen: u64,
    /// Refused at least once.
    pub(crate) touched: u64,
    /// Of those that are kept: refused at least once, and admitted for at least nine in ten of their requests.
    pub(crate) lightly: u64,
    pub(crate) kept: u64,
    /// Whether all clients are kept: if not, how many were seen and touched are estimates.
    pub(crate) exact: bool,
}

impl Ledger {
    pub(crate) fn new(meters: Vec<Meter>, rows_max: usize) -> Self {
        Self {
            index: ByHash::default(),
            clients: Vec::new(),
            counts: Vec::new(),
            series: [const { Vec::new() }; CLIENT_BUCKETS],
            rows_max,
            meters,
            demands: Vec::new(),
            seen: Distinct::new(),
            touched: Distinct::new(),
            lost_max: None,
        }
    }

    /// Lets clients go if there are too many. The places of those that stay are others then.
    pub(crate) fn settle(&mut self) {
        if self.clients.len() > self.rows_max {
            self.let_half_go();
        }
    }

    /// The place of a client. Looked up for many requests before any is counted: so the processor need not wait for
    /// memory once for each.
    pub(crate) fn place(&mut self, hash: u64, label: &[u8]) -> u32 {
        match self.index.get(&hash) {
            Some(&place) => place,
            None => self.enter(hash, label),
        }
    }

    /// Counts one request of the client at a place.
    pub(crate) fn add(&mut self, place: u32, at_ns: u64, bucket: usize, fate: Fate) {
        let at = place as usize;
        let counts = &mut self.counts[at];
        counts.requests += 1;
        match fate {
            Fate::Admitted => counts.admitted += 1,
            Fate::Refused => {
                counts.refused += 1;
                if counts.refused == 1 {
                    self.touched.add(self.clients[at].hash);
                }
            }
            Fate::RefusedByOthers => {}
        }
        let count = &mut self.series[bucket][at][usize::from(fate != Fate::Admitted)];
        *count = count.saturating_add(1);
        let meters = self.meters.len();
        for (demand, meter) in self.demands[at * meters..][..meters].iter_mut().zip(&self.meters) {
            demand.add(meter, at_ns);
        }
    }

    #[cold]
    fn enter(&mut self, hash: u64, label: &[u8]) -> u32 {
        self.seen.add(hash);
        let place = u32::try_from(self.clients.len()).unwrap_or(u32::MAX);
        self.index.insert(hash, place);
        self.clients.push(Client { hash, label: label.into() });
        self.counts.push(Counts::default());
        self.series.iter_mut().for_each(|column| column.push([0; 2]));
        self.demands.resize(self.clients.len() * self.meters.len(), Demand::default());
        place
    }

    fn let_half_go(&mut self) {
        let mut order: Vec<_> = (0..self.clients.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(self.counts[at].requests));
        let busiest_lost = order.get(order.len() / 2).map_or(0, |&at| self.counts[at].requests);
        self.lost_max = Some(self.lost_max.unwrap_or(0) + busiest_lost);
        order.truncate(order.len() / 2);
        order.sort_unstable();
        keep(&mut self.clients, &order, 1);
        keep(&mut self.counts, &order, 1);
        self.series.iter_mut().for_each(|column| keep(column, &order, 1));
        keep(&mut self.demands, &order, self.meters.len());
        self.index.clear();
        let places = self.clients.iter().zip(0..).map(|(client, at)| (client.hash, at));
        self.index.extend(places);
    }

    /// Makes one stretch of time of each two.
    pub(crate) fn fold(&mut self) {
        for bucket in 0..CLIENT_BUCKETS {
            // What is taken or read lies at or behind what is written, so nothing is read twice.
            let first = self.series.get_mut(2 * bucket).map(std::mem::take);
            let mut column = first.unwrap_or_else(|| vec![[0; 2]; self.clients.len()]);
            for (into, from) in column.iter_mut().zip(self.series.get(2 * bucket + 1).into_iter().flatten()) {
                *into = [into[0].saturating_add(from[0]), into[1].saturating_add(from[1])];
            }
            self.series[bucket] = column;
        }
    }

    pub(crate) fn counts(&self) -> ClientCounts {
        let exact = self.lost_max.is_none();
        let touched = self.counts.iter().filter(|counts| counts.refused > 0);
        let is_light = |counts: &&Counts| counts.admitted * 10 >= counts.requests * 9;
        let lightly = touched.clone().filter(is_light).count() as u64;
        let kept = self.clients.len() as u64;
        let (seen, touched) = match exact {
            true => (kept, touched.count() as u64),
            false => (self.seen.estimate(), self.touched.estimate()),
        };
        ClientCounts { seen, touched, lightly, kept, exact }
    }

    /// How many requests may be missing from a client's; nothing if none are.
    pub(crate) fn lost_max(&self) -> Option<u64> {
        self.lost_max
    }

    /// The clients with the most refusals, and among equals the busiest.
    pub(crate) fn top(&self, count: usize) -> Vec<Row> {
        let mut order: Vec<_> = (0..self.clients.len()).collect();
        order.sort_by(|&a, &b| {
            let key = |at: usize| (self.counts[at].refused, self.counts[at].requests);
            key(b).cmp(&key(a)).then_with(|| self.clients[a].label.cmp(&self.clients[b].label))
        });
        order.truncate(count);
        order.into_iter().map(|at| self.row(at)).collect()
    }

    fn row(&self, at: usize) -> Row {
        let Counts { requests, admitted, refused } = self.counts[at];
        let series = std::array::from_fn(|bucket| self.series[bucket][at]);
        Row { label: self.clients[at].label.clone(), requests, admitted, refused, series }
    }

    /// What all clients wanted of the rule with this number.
    pub(crate) fn demands(&self, meter: usize) -> impl Iterator<Item = &Demand> {
        self.demands.iter().skip(meter).step_by(self.meters.len().max(1))
    }
}

/// Keeps the places in `order`, each of `width` items.
fn keep<T>(items: &mut Vec<T>, order: &[usize], width: usize) {
    for (to, &from) in order.iter().enumerate() {
        for item in 0..width {
            items.swap(to * width + item, from * width + item);
        }
    }
    items.truncate(order.len() * width);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed(key: u64) -> u64 {
        RandomState::with_seeds(5, 6, 7, 8).hash_one(key)
    }

    #[test]
    fn the_busiest_stay_and_what_is_lost_is_bounded() {
        let mut ledger = Ledger::new(vec![Meter { per_ns: 1e-9, period_ns: 1_000_000_000, cost: 1 }], 100);
        for round in 0..2_000_u64 {
            // Ten that come all the time, and a stream of strangers.
            ledger.settle();
            assert!(ledger.clients.len() <= 100);
            for key in (0..10).chain([1_000 + round]) {
                let fate = if key == 3 { Fate::Refused } else { Fate::Admitted };
                let place = ledger.place(mixed(key), key.to_string().as_bytes());
                ledger.add(place, round, 0, fate);
            }
        }
        let lost = ledger.lost_max().expect("strangers went");
        let top = ledger.top(1);
        assert_eq!((&*top[0].label, top[0].refused), (&b"3"[..], 2_000));
        for key in 0..10_u64 {
            let at =
                ledger.clients.iter().position(|client| client.hash == mixed(key)).expect("the busy stay");
            let row = ledger.row(at);
            assert_eq!(*row.label, *key.to_string().as_bytes());
            assert!(row.requests + lost >= 2_000 && row.requests <= 2_000);
        }
        let counts = ledger.counts();
        assert!(!counts.exact && counts.seen.abs_diff(2_010) < 60, "{counts:?}");
        assert_eq!(counts.touched, 1);
        let widest = ledger.demands(0).map(|demand| demand.in_period).max();
        assert_eq!(widest, Some(2_000));
    }

    #[test]
    fn folding_halves_time_and_keeps_every_count() {
        let mut ledger = Ledger::new(Vec::new(), 10);
        for (client, label) in [b"a", b"b"].into_iter().enumerate() {
            let place = ledger.place(client as u64, label);
            for bucket in 0..CLIENT_BUCKETS {
                (0..=bucket + client).for_each(|_| ledger.add(place, 0, bucket, Fate::Admitted));
                ledger.add(place, 0, bucket, Fate::RefusedByOthers);
            }
        }
        ledger.fold();
        for (client, row) in [ledger.row(0), ledger.row(1)].iter().enumerate() {
            for (bucket, counts) in row.series.iter().enumerate() {
                let expected = match bucket < CLIENT_BUCKETS / 2 {
                    true => [u32::try_from(4 * bucket + 3 + 2 * client).expect("small"), 2],
                    false => [0; 2],
                };
                assert_eq!(*counts, expected, "{client} {bucket}");
            }
        }
    }

    #[test]
    fn demand_is_in_tokens() {
        let meter = Meter { per_ns: 5e-9, period_ns: 1_000_000_000, cost: 3 };
        let mut ledger = Ledger::new(vec![meter], 10);
        for at_ns in [0, 0, 0, 1_000_000_000] {
            let place = ledger.place(7, b"x");
            ledger.add(place, at_ns, 0, Fate::RefusedByOthers);
        }
        let demand = ledger.demands(0).next().expect("one client");
        assert_eq!((demand.burst, demand.in_period), (9.0, 9));
        assert_eq!((ledger.top(1)[0].admitted, ledger.counts().touched), (0, 0));
    }
}
