//! The longest call while a limiter fills from empty to all the keys it was made for.
//!
//! `cargo bench --bench pause`. A call is timed by the same counter for all; what the machine itself does (an
//! interrupt, another program) is in the figures, so the median of the rounds' longest says more than the worst.

use governor::{Quota, RateLimiter};
use std::hint::black_box;
use std::num::NonZeroU32;
use tollgate::{Clock, Limiter, Rule};

const KEYS: u64 = 1_000_000;
const ROUNDS: usize = 7;

/// Calls `acquire` once for each key, and gives the longest call and the 99.99th percentile, in nanoseconds.
fn fill<T>(mut acquire: impl FnMut(u64) -> T) -> (u64, u64) {
    let clock = Clock::precise();
    let mut calls_ns: Vec<u64> = vec![0; usize::try_from(KEYS).expect("fits")];
    for (key, took_ns) in (0..KEYS).zip(&mut calls_ns) {
        let start_ns = clock.now_ns();
        black_box(acquire(key.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        *took_ns = clock.now_ns() - start_ns;
    }
    calls_ns.sort_unstable();
    (calls_ns[calls_ns.len() - 1], calls_ns[calls_ns.len() / 10_000 * 9_999])
}

fn main() {
    let mut rounds: [Vec<(u64, u64)>; 3] = Default::default();
    for _ in 0..ROUNDS {
        let limiter =
            Limiter::builder().policy(Rule::per_hour(1)).max_keys(KEYS as usize).build().expect("a limiter");
        rounds[0].push(fill(|key| limiter.try_acquire(&key).is_allowed()));
        let governor = RateLimiter::keyed(Quota::per_hour(NonZeroU32::MIN));
        rounds[1].push(fill(|key| governor.check_key(&key).is_ok()));
        // What the machine does to a loop that reads the clock and nothing else.
        rounds[2].push(fill(|key| key));
    }
    println!(
        "| filling to {KEYS} keys, {ROUNDS} rounds | longest call, median of rounds | longest of all | 99.99 % below |"
    );
    println!("|---|---|---|---|");
    for (name, mut round) in ["tollgate", "governor", "nothing at all"].into_iter().zip(rounds) {
        round.sort_unstable();
        let micros = |ns: u64| ns as f64 / 1e3;
        let tail = round.iter().map(|&(_, tail_ns)| tail_ns).min().unwrap_or(0);
        let (median, worst) = (round[round.len() / 2].0, round[round.len() - 1].0);
        println!("| {name} | {:.1} µs | {:.1} µs | {:.1} µs |", micros(median), micros(worst), micros(tail));
    }
}
