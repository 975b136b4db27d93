//! What the benchmarks share: keys, threads pinned to cores, interleaved rounds.

use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

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

/// Ranks drawn with a frequency that falls as `1 / rank^0.99`, by the usual approximation of its inverse.
pub fn zipf(keys: u64, draws: usize, seed: u64) -> Vec<u64> {
    let mut numbers = Numbers(seed);
    let exponent = 1.0 - 0.99;
    let top = (keys as f64).powf(exponent) - 1.0;
    (0..draws)
        .map(|_| {
            let rank = (numbers.unit() * top + 1.0).powf(1.0 / exponent) as u64;
            // Ranks are scattered so that frequent keys are not neighbours.
            rank.min(keys - 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        })
        .collect()
}

/// Keys drawn evenly.
pub fn uniform(keys: u64, draws: usize, seed: u64) -> Vec<u64> {
    let mut numbers = Numbers(seed);
    (0..draws).map(|_| numbers.below(keys).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

/// Runs `work(thread)` on pinned threads that start together, and gives the nanoseconds of the slowest.
pub fn timed(threads: usize, work: &(dyn Fn(usize) + Sync)) -> f64 {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let ready = AtomicUsize::new(0);
    let mut slowest = 0.0f64;
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                let (ready, cores) = (&ready, &cores);
                scope.spawn(move || {
                    if let Some(core) = cores.get(thread % cores.len().max(1)) {
                        core_affinity::set_for_current(*core);
                    }
                    // Spin: a barrier wakes threads microseconds apart.
                    ready.fetch_add(1, Ordering::SeqCst);
                    while ready.load(Ordering::SeqCst) < threads {
                        std::hint::spin_loop();
                    }
                    let start = Instant::now();
                    work(thread);
                    start.elapsed().as_nanos() as f64
                })
            })
            .collect();
        for handle in handles {
            slowest = slowest.max(handle.join().unwrap_or(f64::INFINITY));
        }
    });
    slowest
}

/// Something that decides for a stream of keys.
pub trait Contender<K: Hash>: Sync {
    /// Decides once for each key, and says how many were admitted.
    fn run(&self, keys: &[K]) -> usize;
}

impl<K: Hash, F: Fn(&[K]) -> usize + Sync> Contender<K> for F {
    fn run(&self, keys: &[K]) -> usize {
        self(keys)
    }
}
