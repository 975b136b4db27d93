//! The list of top keys beside the exact answer.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "tests may stop"
)]

use std::collections::HashMap;
use tollgate::{Offender, TopKeys};

const KEYS: usize = 1_000_000;
const DRAWS: usize = 1_000_000;

/// A small generator of repeatable numbers (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Ranks whose frequency falls as `1 / rank^exponent`: exactly, by the whole table of sums.
fn zipf(exponent: f64, seed: u64) -> Vec<u32> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=KEYS)
        .map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        })
        .collect();
    let mut numbers = Numbers(seed);
    (0..DRAWS)
        .map(|_| {
            let drawn = numbers.unit() * sum;
            sums.partition_point(|&up_to| up_to <= drawn).min(KEYS - 1) as u32
        })
        .collect()
}

fn name(rank: u32) -> String {
    format!("user-{}", rank.wrapping_mul(2_654_435_761))
}

struct Exact {
    counts: HashMap<String, u64>,
    top: Vec<String>,
}

impl Exact {
    fn of(draws: &[u32]) -> Self {
        let mut by_rank = vec![0u64; KEYS];
        draws.iter().for_each(|&rank| by_rank[rank as usize] += 1);
        let mut ranks: Vec<u32> = (0..KEYS as u32).collect();
        ranks.sort_by_key(|&rank| std::cmp::Reverse(by_rank[rank as usize]));
        let top = ranks.iter().take(20).map(|&rank| name(rank)).collect();
        let drawn = ranks.iter().filter(|rank| by_rank[**rank as usize] > 0);
        let counts = drawn.map(|&rank| (name(rank), by_rank[rank as usize])).collect();
        Self { counts, top }
    }

    fn found(&self, listed: &[Offender]) -> usize {
        self.top.iter().filter(|key| listed.iter().any(|one| one.label == **key)).count()
    }
}

/// Twenty names, and how many of the true twenty are among them.
#[test]
fn the_top_twenty_of_a_million_are_found() {
    for (exponent, seed) in [(0.99, 1), (0.99, 2), (0.8, 3)] {
        let draws = zipf(exponent, seed);
        let exact = Exact::of(&draws);
        // A flatter distribution takes more counters to tell its keys apart.
        let capacity = if exponent < 0.9 { 8192 } else { 1024 };
        let keys = TopKeys::with_seeds(capacity, [seed, 2, 3, 4]);
        draws.iter().for_each(|&rank| keys.record(&name(rank), 1));
        assert_eq!(keys.total(), DRAWS as u64);

        let found = exact.found(&keys.top(20));
        println!("zipf {exponent}, {capacity} counters, seed {seed}: {found} of 20 found");
        assert!(found >= 19, "zipf {exponent}, seed {seed}: {found} of 20 found");
        let all = keys.top(usize::MAX);
        for Offender { label, count, error, .. } in &all {
            let truth = exact.counts[label];
            assert!((truth..=truth + error).contains(count), "{label}: {count} ± {error}, in truth {truth}");
        }
        // Whatever was recorded more often than the largest error there is must be among them.
        let error = all.iter().map(|one| one.error).max().unwrap();
        assert!(error <= 4 * DRAWS as u64 / capacity as u64, "an error of {error}");
        let listed: HashMap<&str, u64> = all.iter().map(|one| (one.label.as_str(), one.count)).collect();
        for (key, &truth) in exact.counts.iter().filter(|(_, truth)| **truth > error + 1) {
            assert!(listed.contains_key(key.as_str()), "{key} was recorded {truth} times and is not listed");
        }
    }
}

#[test]
fn threads_that_record_at_once_find_the_same() {
    let draws = zipf(0.99, 5);
    let exact = Exact::of(&draws);
    let keys = TopKeys::with_seeds(1024, [1, 2, 3, 4]);
    std::thread::scope(|scope| {
        for part in draws.chunks(DRAWS.div_ceil(4)) {
            scope.spawn(|| part.iter().for_each(|&rank| keys.record(&name(rank), 1)));
        }
        // Reading meanwhile shows whole names only.
        for _ in 0..50 {
            for Offender { label, .. } in keys.top(usize::MAX) {
                assert!(exact.counts.contains_key(&label), "nobody is called {label}");
            }
        }
    });
    assert_eq!(keys.total(), DRAWS as u64, "nothing was lost");
    let found = exact.found(&keys.top(20));
    println!("four threads: {found} of 20 found");
    assert!(found >= 19, "{found} of 20 found");
    for Offender { label, count, error, .. } in keys.top(usize::MAX) {
        let truth = exact.counts[&label];
        assert!((truth..=truth + error).contains(&count), "{label}: {count} ± {error}, in truth {truth}");
    }
}

#[test]
fn recent_offenders_pass_old_ones() {
    let keys = TopKeys::with_seeds(64, [1, 2, 3, 4]);
    (0..1000).for_each(|_| keys.record("yesterday", 1));
    for _ in 0..4 {
        keys.age();
    }
    (0..100).for_each(|_| keys.record("now", 1));
    let labels: Vec<_> = keys.top(2).into_iter().map(|one| (one.label, one.count)).collect();
    assert_eq!(labels, [("now".to_owned(), 100), ("yesterday".to_owned(), 62)]);
    for _ in 0..10 {
        keys.age();
    }
    assert_eq!(keys.top(10), [], "all is forgotten in the end");
    assert_eq!(keys.total(), 0);
}

/// Halved as often as the list, but without rounding.
#[test]
fn aged_counts_are_within_their_bounds() {
    let draws = zipf(0.99, 7);
    let keys = TopKeys::with_seeds(256, [1, 2, 3, 4]);
    let mut exact: HashMap<String, f64> = HashMap::new();
    for part in draws[..200_000].chunks(20_000) {
        for &rank in part {
            keys.record(&name(rank), 1);
            *exact.entry(name(rank)).or_default() += 1.0;
        }
        keys.age();
        exact.values_mut().for_each(|count| *count /= 2.0);
        let listed = keys.top(usize::MAX);
        assert!(listed.len() > 20, "{} listed", listed.len());
        for Offender { label, count, error, .. } in listed {
            let (count, truth) = (count as f64, exact[&label]);
            assert!(count > truth - 1.0, "{label}: {count}, in truth {truth}");
            assert!(count < truth + error as f64 + 1.0, "{label}: {count} + {error}, in truth {truth}");
        }
    }
}

#[test]
fn an_error_is_at_most_an_eighth_of_what_a_bucket_was_told() {
    // One bucket, whose counters nobody can keep.
    let keys = TopKeys::with_seeds(8, [1, 2, 3, 4]);
    for key in 0..1_000u64 {
        keys.record(&key, 1 + key % 3);
        keys.record(&key, 1);
        let errors = keys.top(8).into_iter().map(|one| one.error);
        assert!(errors.max().unwrap() <= keys.total() / 8);
    }
}

#[test]
fn a_cost_of_nothing_displaces_nobody() {
    let keys = TopKeys::with_seeds(8, [1, 2, 3, 4]);
    (0..8u64).for_each(|key| keys.record(&key, key + 1));
    let before = keys.top(8);
    (100..200u64).for_each(|key| keys.record(&key, 0));
    assert_eq!(keys.top(8), before);
}

#[test]
fn few_keys_are_counted_exactly_and_by_cost() {
    let keys = TopKeys::with_seeds(256, [1, 2, 3, 4]);
    for key in 0..40u64 {
        keys.record(&key, key * key);
        keys.record(&key, 1);
    }
    let expected: Vec<_> = (0..40u64).rev().take(5).map(|key| (key.to_string(), key * key + 1, 0)).collect();
    let top: Vec<_> = keys.top(5).into_iter().map(|one| (one.label, one.count, one.error)).collect();
    assert_eq!(top, expected);
    // A cost beyond all bounds fills a counter and breaks nothing.
    keys.record("huge", u64::MAX);
    keys.record("huge", u64::MAX);
    assert_eq!(keys.top(1)[0].count, (1 << 40) - 1);
}

#[test]
fn any_capacity_is_made_to_fit() {
    assert_eq!(TopKeys::new(0).capacity(), 8);
    assert_eq!(TopKeys::new(9).capacity(), 16);
    let keys = TopKeys::new(0);
    (0..1000).for_each(|key| keys.record(&key, 1));
    assert_eq!(keys.total(), 1000);
}
