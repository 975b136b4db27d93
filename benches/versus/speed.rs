//! Nanoseconds a call: all contenders of a case in interleaved rounds.

use crate::cases::{CASES, Case, Keys};
use crate::peers::{self, Contender, Key, Peer, Setup, Traffic};
use std::hint::black_box;
use tollgate_bench::{Rounds, Scale, filter, interleaved, key, progress, timed, uniform, zipf};

/// The figures of a case: for each contender its name, whether it is ours, and its rounds.
pub struct Measured {
    pub case: Case,
    pub results: Vec<(&'static str, bool, Rounds)>,
}

impl Measured {
    /// The least nanoseconds a call of a contender.
    pub fn ns(&self, name: &str) -> Option<f64> {
        self.results.iter().find(|result| result.0 == name).map(|result| result.2.least())
    }

    /// How many times as fast as the first it is.
    pub fn ratio(&self, name: &str) -> Option<f64> {
        Some(self.results[0].2.least() / self.ns(name)?)
    }
}

/// Limiters that hold every key they will be asked for.
struct Pool<K> {
    keys: Keys,
    traffic: Traffic,
    contenders: Vec<(Peer<K>, Box<dyn Contender<K>>)>,
}

/// Beyond this, only those take part whose memory is known to be modest.
const LARGE: u64 = 5_000_000;
const LEAN: [&str; 6] = [
    "governor",
    "governor + ahash",
    "tollgate",
    "tollgate, coarse clock",
    "tollgate, batch of 16",
    "DashMap by hand",
];

pub fn measure(scale: Scale) -> Vec<Measured> {
    let wanted = |case: &&Case| filter().is_none_or(|filter| case.title().contains(&filter));
    let (mut unkeyed, mut numbers, mut texts) = (None, None, None);
    let cases = CASES.iter().filter(wanted).map(|case| {
        progress(&case.title());
        let case = Case { keys: sized(case.keys, scale), ..*case };
        let distinct = case.keys.distinct();
        let results = match case.keys {
            Keys::None => {
                let draws = vec![(); draws(scale)];
                on_pool(&mut unkeyed, &case, scale, &draws, |traffic| {
                    contenders(peers::unkeyed(), traffic, 1, |_| ())
                })
            }
            Keys::Texts(_) => {
                let draws: Vec<String> = zipf(distinct, draws(scale), 1).into_iter().map(Key::of).collect();
                on_pool(&mut texts, &case, scale, &draws, |traffic| {
                    contenders(peers::keyed(), traffic, distinct, |rank| Key::of(key(rank)))
                })
            }
            Keys::New(_) => on_new(&case, scale),
            Keys::Hot | Keys::Uniform(_) | Keys::Zipf(_) => {
                let draw = if let Keys::Zipf(_) = case.keys { zipf } else { uniform };
                let draws = draw(distinct, draws(scale), 1);
                on_pool(&mut numbers, &case, scale, &draws, |traffic| {
                    contenders(peers::keyed(), traffic, distinct, key)
                })
            }
        };
        Measured { case, results }
    });
    cases.collect()
}

/// Fewer keys where a run is to be short.
fn sized(keys: Keys, scale: Scale) -> Keys {
    let most = |keys: u64| keys.min(scale.pick(2_000, u64::MAX, u64::MAX));
    match keys {
        Keys::None | Keys::Hot => keys,
        Keys::Uniform(keys) => Keys::Uniform(most(keys)),
        Keys::Zipf(keys) => Keys::Zipf(most(keys)),
        Keys::Texts(keys) => Keys::Texts(most(keys)),
        Keys::New(keys) => Keys::New(most(keys).min(scale.pick(u64::MAX, 500_000, u64::MAX))),
    }
}

fn draws(scale: Scale) -> usize {
    scale.pick(1 << 10, 1 << 20, 1 << 22)
}

/// Builds those who take part and shows them every key: all at once, since filling is not measured here.
fn contenders<K: Send + Sync + 'static>(
    peers: Vec<Peer<K>>,
    traffic: Traffic,
    distinct: u64,
    of_rank: impl Fn(u64) -> K + Sync,
) -> Vec<(Peer<K>, Box<dyn Contender<K>>)> {
    let takes_part = |peer: &Peer<K>| distinct <= LARGE || LEAN.contains(&peer.name);
    let fill = |peer: &Peer<K>| {
        let contender = (peer.build)(Setup::new(traffic, distinct as usize));
        for key in (0..distinct).map(&of_rank) {
            // Until it refuses: one of them admits two before it does.
            while contender.decide(std::slice::from_ref(&key)) > 0 && traffic == Traffic::Refuse {}
        }
        contender
    };
    let peers: Vec<_> = peers.into_iter().filter(takes_part).collect();
    let filled: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = peers.iter().map(|peer| scope.spawn(|| fill(peer))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a limiter that fills")).collect()
    });
    peers.into_iter().zip(filled).collect()
}

/// Measures a case on the limiters of the last one if they hold the same keys, or on new ones.
fn on_pool<K: Send + Sync + 'static>(
    pool: &mut Option<Pool<K>>,
    case: &Case,
    scale: Scale,
    draws: &[K],
    build: impl FnOnce(Traffic) -> Vec<(Peer<K>, Box<dyn Contender<K>>)>,
) -> Vec<(&'static str, bool, Rounds)> {
    let fits = |pool: &Pool<K>| pool.keys.distinct() == case.keys.distinct() && pool.traffic == case.traffic;
    if !pool.as_ref().is_some_and(fits) {
        // The old ones go before the new ones come.
        *pool = None;
        *pool = Some(Pool { keys: case.keys, traffic: case.traffic, contenders: build(case.traffic) });
    }
    let contenders = &pool.as_ref().expect("just built").contenders;
    let part = draws.len() / case.threads;
    let budget_ns = scale.pick(0.0, 6e6, 50e6);
    let run = |index: usize, round: usize, calls: usize| {
        // The next part of the draws each time, so that no contender meets them warm.
        let windows = part / calls;
        let ns = timed(case.threads, |thread| {
            let start = thread * part + round % windows * calls;
            let admitted = black_box(contenders[index].1.decide(&draws[start..start + calls]));
            let expected = if case.traffic == Traffic::Admit { calls } else { 0 };
            assert_eq!(admitted, expected, "{} in {}", contenders[index].0.name, case.title());
        });
        ns / calls as f64
    };
    let calls: Vec<usize> = (0..contenders.len())
        .map(|index| {
            let warm_up_ns = run(index, 0, part.min(1 << 12));
            ((budget_ns / warm_up_ns) as usize).clamp(part.min(1 << 12), part)
        })
        .collect();
    let rounds = scale.pick(1, 8, 25);
    let results = interleaved(contenders.len(), rounds, |index, round| run(index, round, calls[index]));
    contenders.iter().zip(results).map(|((peer, _), rounds)| (peer.name, peer.is_ours(), rounds)).collect()
}

/// Every key is new: a limiter for each round.
fn on_new(case: &Case, scale: Scale) -> Vec<(&'static str, bool, Rounds)> {
    let keys: Vec<u64> = (0..case.keys.distinct()).map(key).collect();
    let peers = peers::keyed::<u64>();
    let results = interleaved(peers.len(), scale.pick(1, 2, 5), |index, _| {
        let contender = (peers[index].build)(Setup::new(case.traffic, keys.len()));
        timed(1, |_| {
            black_box(contender.decide(&keys));
        }) / keys.len() as f64
    });
    peers.iter().zip(results).map(|(peer, rounds)| (peer.name, peer.is_ours(), rounds)).collect()
}
