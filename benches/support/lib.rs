//! What the benchmarks share: how much to run, keys, pinned threads, interleaved rounds; limiters,
//! pages, charts, the model.

pub mod chart;
pub mod limiters;
pub mod model;
pub mod page;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// How much a run is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Everything once and small, without optimisation: `cargo test --benches`.
    Smoke,
    /// `-- --quick`: two minutes at the most.
    Quick,
    /// What results are published from.
    Full,
}

impl Scale {
    /// What the command line asks for: cargo passes `--bench` when it benchmarks, and not when it tests.
    pub fn from_arguments() -> Self {
        let has = |flag: &str| std::env::args().any(|argument| argument == flag);
        match (has("--bench"), has("--quick")) {
            (false, _) => Self::Smoke,
            (_, true) => Self::Quick,
            _ => Self::Full,
        }
    }

    /// The one of three that goes with it.
    pub fn pick<T>(self, smoke: T, quick: T, full: T) -> T {
        match self {
            Self::Smoke => smoke,
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// The text that the command line wants names to contain, if any.
pub fn filter() -> Option<String> {
    std::env::args().skip(1).find(|argument| !argument.starts_with('-'))
}

/// Shows on the terminal what is being done, and for how long the run has gone on.
pub fn progress(what: &str) {
    static START: OnceLock<Instant> = OnceLock::new();
    eprintln!("[{:4} s] {what} ...", START.get_or_init(Instant::now).elapsed().as_secs());
}

/// A small generator of repeatable numbers (splitmix64).
pub struct Numbers(pub u64);

impl Numbers {
    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The key of a rank. Scattered, so that frequent keys are not neighbours and few bits tell nothing.
pub fn key(rank: u64) -> u64 {
    rank.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The same key as a text of 20 bytes.
pub fn text(key: u64) -> String {
    format!("{key:020}")
}

/// Keys drawn with a frequency that falls as `1 / rank^0.99`, by the usual approximation of its inverse.
pub fn zipf(keys: u64, draws: usize, seed: u64) -> Vec<u64> {
    let mut numbers = Numbers(seed);
    let exponent = 1.0 - 0.99;
    let top = (keys as f64).powf(exponent) - 1.0;
    let draw = |_| {
        let rank = (numbers.unit() * top + 1.0).powf(1.0 / exponent) as u64;
        key((rank - 1).min(keys - 1))
    };
    (0..draws).map(draw).collect()
}

/// Keys drawn evenly.
pub fn uniform(keys: u64, draws: usize, seed: u64) -> Vec<u64> {
    let mut numbers = Numbers(seed);
    (0..draws).map(|_| key(numbers.below(keys))).collect()
}

/// Cores there are to run on.
pub fn cores() -> usize {
    core_affinity::get_core_ids().map_or(1, |cores| cores.len().max(1))
}

/// 1, 2, 4 and so on up to the number of cores, which is the last.
pub fn thread_counts() -> Vec<usize> {
    let cores = cores();
    let mut counts: Vec<usize> =
        std::iter::successors(Some(1), |count| Some(count * 2)).take_while(|&count| count < cores).collect();
    counts.push(cores);
    counts
}

/// Runs `work(thread)` on a thread for each of the cores, which start together, and gives what each says.
pub fn on_cores<T: Send>(cores: &[usize], work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let ids = core_affinity::get_core_ids().unwrap_or_default();
    let ready = AtomicUsize::new(0);
    let (ready, ids, work) = (&ready, &ids, &work);
    std::thread::scope(|scope| {
        let run = |(thread, &core): (usize, &usize)| {
            scope.spawn(move || {
                if let Some(id) = ids.get(core % ids.len().max(1)) {
                    core_affinity::set_for_current(*id);
                }
                // Spin: a barrier wakes threads microseconds apart.
                ready.fetch_add(1, Ordering::SeqCst);
                while ready.load(Ordering::SeqCst) < cores.len() {
                    std::hint::spin_loop();
                }
                work(thread)
            })
        };
        let handles: Vec<_> = cores.iter().enumerate().map(run).collect();
        handles.into_iter().map(|handle| handle.join().expect("a thread of the benchmark failed")).collect()
    })
}

/// The nanoseconds that threads on the first cores take together, from the first start to the last end.
pub fn timed(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    timed_on(&(0..threads).collect::<Vec<_>>(), work)
}

/// The same on cores of one's choice.
pub fn timed_on(cores: &[usize], work: impl Fn(usize) + Sync) -> f64 {
    let times = on_cores(cores, |thread| {
        let start = Instant::now();
        work(thread);
        (start, Instant::now())
    });
    // Not the slowest by itself: on a busy machine one may run after the other, and none would have met the other.
    let start = times.iter().map(|(start, _)| *start).min();
    let end = times.iter().map(|(_, end)| *end).max();
    end.zip(start).map_or(0.0, |(end, start)| end.duration_since(start).as_nanos() as f64)
}

/// What the rounds of one contender came to.
#[derive(Clone, Debug, Default)]
pub struct Rounds(pub Vec<f64>);

impl Rounds {
    /// The round that was disturbed the least.
    pub fn least(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The round that was disturbed the most.
    pub fn most(&self) -> f64 {
        self.0.iter().copied().fold(0.0, f64::max)
    }

    /// The round in the middle.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

/// Measures every contender in turn, again and again, so that what the machine does meets all of them.
pub fn interleaved(
    contenders: usize,
    rounds: usize,
    mut measure: impl FnMut(usize, usize) -> f64,
) -> Vec<Rounds> {
    let mut results = vec![Rounds::default(); contenders];
    for round in 0..rounds {
        for (contender, result) in results.iter_mut().enumerate() {
            result.0.push(measure(contender, round));
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_ranks_are_as_frequent_as_zipf_says() {
        let draws = zipf(1000, 100_000, 1);
        let count = |rank| draws.iter().filter(|&&drawn| drawn == key(rank)).count() as f64;
        // The sum of 1/rank^0.99 over 1000 ranks is 7.73; the approximation is off by some parts in ten.
        assert!((0.09..0.20).contains(&(count(0) / 1e5)), "{}", count(0));
        assert!((5.0..20.0).contains(&(count(0) / count(9))), "{} {}", count(0), count(9));
        let known: std::collections::HashSet<u64> = (0..1000).map(key).collect();
        assert!(draws.iter().all(|drawn| known.contains(drawn)));
    }

    #[test]
    fn rounds_alternate_between_contenders() {
        let mut order = Vec::new();
        let rounds = interleaved(2, 3, |contender, round| {
            order.push((contender, round));
            (contender * 10 + round) as f64
        });
        assert_eq!(order, [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]);
        assert_eq!((rounds[1].least(), rounds[1].median(), rounds[1].most()), (10.0, 11.0, 12.0));
    }

    #[test]
    fn thread_counts_end_with_all_cores() {
        let counts = thread_counts();
        assert_eq!((counts[0], counts.last().copied()), (1, Some(cores())));
        assert!(counts.is_sorted());
    }
}
