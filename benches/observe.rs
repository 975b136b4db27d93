//! What it costs to watch: a decision counted or not, and the record of a top key.
//!
//! Everything in one run, round by round in turn, so that whatever slows the machine slows all of them. The figures are
//! the median of the rounds; `--quick` makes fewer of them.

use std::hint::black_box;
use tollgate::{Limiter, TopKeys};
use tollgate_bench::{timed, zipf};

/// Decisions of one thread in a round.
const CALLS: usize = 200_000;
/// Keys that a hit is spread over: few, so that the figures are not those of the memory.
const HIT_KEYS: u64 = 1024;
const LISTED_KEYS: u64 = 1_000_000;

struct Case {
    name: String,
    threads: usize,
    /// One round of one thread.
    run: Box<dyn Fn(usize) + Sync>,
    /// Nanoseconds a call, round by round.
    rounds: Vec<f64>,
}

impl Case {
    fn median_ns(&self) -> f64 {
        let mut rounds = self.rounds.clone();
        rounds.sort_by(f64::total_cmp);
        rounds.get(rounds.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

fn hits(policy: &str, counted: bool) -> Box<dyn Fn(usize) + Sync> {
    let limiter = Limiter::builder().policy(policy).seeds([1, 2, 3, 4]).count_decisions(counted);
    let limiter = limiter.build().expect("a valid policy");
    // A thread has keys of its own: this is about counting, not about meeting at a key.
    for key in 0..HIT_KEYS * 2 {
        let _first = limiter.try_acquire(&key);
    }
    Box::new(move |thread| {
        let first = thread as u64 % 2 * HIT_KEYS;
        for call in 0..CALLS as u64 {
            black_box(limiter.try_acquire(&(first + call % HIT_KEYS)).is_allowed());
        }
    })
}

fn records(keys: Vec<String>) -> Box<dyn Fn(usize) + Sync> {
    let top = TopKeys::with_seeds(1024, [1, 2, 3, 4]);
    Box::new(move |thread| {
        let half = keys.len() / 2;
        for key in keys.iter().cycle().skip(thread * half).take(CALLS) {
            top.record(black_box(key), 1);
        }
    })
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let rounds = if quick { 5 } else { 51 };
    let mut cases = Vec::new();
    let mut case = |name: String, threads, run| cases.push(Case { name, threads, run, rounds: Vec::new() });
    for threads in [1, 2] {
        for (what, policy) in [("admit", "1000000000/s burst 1000000000"), ("refuse", "1/d")] {
            for (counted, label) in [(false, "not counted"), (true, "counted")] {
                case(format!("keyed hit, {what}, {label}"), threads, hits(policy, counted));
            }
        }
        let zipf_keys = zipf(LISTED_KEYS, CALLS, 1).into_iter().map(|key| format!("user-{key}")).collect();
        case("top keys, record, zipf of a million".to_owned(), threads, records(zipf_keys));
        let one = vec!["203.0.113.7".to_owned(); CALLS];
        case("top keys, record, one hot key".to_owned(), threads, records(one));
    }
    for case in &cases {
        timed(case.threads, &case.run);
    }
    for _ in 0..rounds {
        for case in &mut cases {
            let ns = timed(case.threads, &case.run);
            case.rounds.push(ns / CALLS as f64);
        }
    }
    println!("{:<42} {:>7} {:>9} {:>12}", "", "threads", "ns a call", "for counting");
    let mut before = f64::NAN;
    for case in &cases {
        let ns = case.median_ns();
        let added = match case.name.ends_with(", counted") {
            true => format!("{:+.1} ns, {:+.0} %", ns - before, (ns / before - 1.0) * 100.0),
            false => String::new(),
        };
        println!("{:<42} {:>7} {ns:>9.1} {added:>16}", case.name, case.threads);
        before = ns;
    }
}
