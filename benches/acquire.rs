//! What one call costs on one thread: the gate, keyed hits over few and many keys, new keys, rules, clocks, batches.
//!
//! `cargo bench --bench acquire`, criterion's arguments after `--`; `-- --quick` takes less than a minute.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use std::hash::Hash;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tollgate::{Clock, Gate, Limiter, Policy, Rule};
use tollgate_bench::limiters::{coarse, empty, filled, generous, strict};
use tollgate_bench::{Scale, key, text, uniform, zipf};

fn clocks() -> [(&'static str, Clock); 2] {
    [("precise", Clock::precise()), ("coarse", coarse())]
}

/// Asks for one drawn key after the other.
fn stream<K: Hash>(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, limiter: &Limiter, draws: &[K]) {
    let mut draws = draws.iter().cycle();
    group.bench_function(name, |bencher| {
        bencher.iter(|| black_box(limiter.try_acquire(draws.next().expect("endless")).is_allowed()));
    });
}

fn gate(criterion: &mut Criterion) {
    for (name, clock) in clocks() {
        let mut group = criterion.benchmark_group(format!("gate/{name}"));
        group.bench_function("clock alone", |bencher| bencher.iter(|| black_box(&clock).now_ns()));
        // What no gate can go below: some processors read their counter only when everything before is done.
        let word = AtomicU64::new(0);
        group.bench_function("clock and one compare-exchange", |bencher| {
            bencher.iter(|| {
                let (seen, now_ns) = (word.load(Ordering::Relaxed), black_box(&clock).now_ns());
                word.compare_exchange(seen, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            });
        });
        for (outcome, rule) in [("admit", generous()), ("refuse", strict())] {
            let gate = Gate::with_clock(rule, clock.clone()).expect("a valid rule");
            group.bench_function(outcome, |bencher| {
                bencher.iter(|| black_box(&gate).try_acquire().is_allowed())
            });
        }
        group.finish();
    }
}

fn hits(criterion: &mut Criterion) {
    let scale = Scale::from_arguments();
    let draws = scale.pick(1 << 8, 1 << 18, 1 << 20);
    let spaces = [
        ("hot", 1),
        ("1 k", 1_000),
        ("1 M", scale.pick(2_000, 1_000_000, 1_000_000)),
        ("10 M", scale.pick(3_000, 10_000_000, 10_000_000)),
    ];
    for (space, keys) in spaces {
        let mut group = criterion.benchmark_group(format!("hit/{space}"));
        let streams = [("uniform", uniform(keys, draws, 1)), ("Zipf", zipf(keys, draws, 2))];
        // One key is drawn in one way only.
        let streams = &streams[..if keys == 1 { 1 } else { 2 }];
        for (outcome, rule) in [("admit", generous()), ("refuse", strict())] {
            let known = filled(rule.clone(), keys, Clock::precise(), key);
            for (draw, draws) in streams {
                stream(&mut group, &format!("u64 {draw} {outcome}"), &known, draws);
            }
            drop(known);
            let known = filled(rule, keys, Clock::precise(), |rank| text(key(rank)));
            for (draw, draws) in streams {
                let draws: Vec<String> = draws.iter().map(|&key| text(key)).collect();
                stream(&mut group, &format!("20-byte string {draw} {outcome}"), &known, &draws);
            }
        }
        group.finish();
    }
}

fn around(criterion: &mut Criterion) {
    let scale = Scale::from_arguments();
    let draws = scale.pick(1 << 8, 1 << 18, 1 << 20);
    for (space, keys) in [("hot", 1), ("1 M", scale.pick(2_000, 1_000_000, 1_000_000))] {
        let draws = uniform(keys, draws, 3);
        let hourly = || Rule::per_hour(1_000_000_000).burst(1_000_000_000);
        let daily = || Rule::per_day(1_000_000_000).burst(1_000_000_000);

        let mut group = criterion.benchmark_group(format!("rules/{space}"));
        let policies = [
            ("one, admit", Policy::from(generous())),
            ("two, admit", Policy::from(generous()).and(hourly())),
            ("three, admit", Policy::from(generous()).and(hourly()).and(daily())),
            ("one, refuse", Policy::from(strict())),
            ("two, refuse", Policy::from(strict()).and(Rule::per_hour(2))),
            ("three, refuse", Policy::from(strict()).and(Rule::per_hour(2)).and(hourly())),
        ];
        for (name, policy) in policies {
            stream(&mut group, name, &filled(policy, keys, Clock::precise(), key), &draws);
        }
        group.finish();

        let mut group = criterion.benchmark_group(format!("clock/{space}"));
        for (name, clock) in clocks() {
            for (outcome, rule) in [("admit", generous()), ("refuse", strict())] {
                let known = filled(rule, keys, clock.clone(), key);
                stream(&mut group, &format!("{name}, {outcome}"), &known, &draws);
            }
        }
        group.finish();

        let mut group = criterion.benchmark_group(format!("batch/{space}"));
        let known = filled(generous(), keys, Clock::precise(), key);
        for batch in [1, 4, 16, 64] {
            let mut decisions = vec![known.peek(&0); batch];
            let mut batches = draws.chunks_exact(batch).cycle();
            group.throughput(Throughput::Elements(batch as u64));
            group.bench_function(format!("of {batch}"), |bencher| {
                bencher.iter(|| known.try_acquire_many(batches.next().expect("endless"), &mut decisions));
            });
        }
        group.finish();
    }
}

fn new_keys(criterion: &mut Criterion) {
    let room: u64 = Scale::from_arguments().pick(1_000, 1_000_000, 1_000_000);
    let mut group = criterion.benchmark_group("new keys");
    group.bench_function("into an empty table", |bencher| {
        bencher.iter_custom(|calls| {
            let mut took = Duration::ZERO;
            let mut left = calls;
            while left > 0 {
                let limiter = empty(strict(), room, Clock::precise());
                let start = Instant::now();
                for rank in 0..left.min(room) {
                    black_box(limiter.try_acquire(&key(rank)).is_allowed());
                }
                took += start.elapsed();
                left -= left.min(room);
            }
            took
        });
    });
    // Under the generous rule a key is worth a fresh one a nanosecond after its call.
    let worthless = filled(generous(), room, Clock::precise(), key);
    let mut rank = room;
    group.bench_function("in place of worthless ones", |bencher| {
        bencher.iter(|| {
            rank += 1;
            black_box(worthless.try_acquire(&key(rank)).is_allowed())
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    // A call is the same in every iteration: more time would not tell more.
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = gate, hits, around, new_keys
}
criterion_main!(benches);
