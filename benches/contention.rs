//! What calls cost when several threads make them: throughput by criterion, and a table of how long single calls take.
//!
//! `cargo bench --bench contention`; one thread, then twice as many until all cores are busy, each thread pinned.

use criterion::{BenchmarkId, Criterion, Throughput};
use hdrhistogram::Histogram;
use std::hint::black_box;
use std::time::Duration;
use tollgate::{Clock, Limiter, Rule};
use tollgate_bench::limiters::{coarse, filled, generous, strict};
use tollgate_bench::page::{self, Table, time};
use tollgate_bench::{Scale, cores, filter, key, on_cores, progress, thread_counts, timed, uniform, zipf};

const TIMING: &str = "Each call is timed by itself, threads pinned: reading the clock is part of every figure, and the \
    first row of a number of threads is nothing else. What the machine does by itself is in the last columns.";

/// How a thread asks.
#[derive(Clone, Copy)]
enum How {
    Call,
    Handle,
    Lease,
    /// Not at all: what timing costs.
    Never,
}

struct Case {
    name: &'static str,
    limiter: Limiter,
    /// For each thread: the same for all would have threads follow each other from line to line.
    draws: Vec<Vec<u64>>,
    how: How,
}

/// Decides for all keys, and tells after each. Generic, so that telling nobody costs nothing.
fn decide(limiter: &Limiter, how: How, keys: &[u64], after: impl FnMut()) {
    match how {
        How::Call => each(keys, after, |key| limiter.try_acquire(key).is_allowed()),
        How::Handle => {
            let handle = limiter.key(&keys[0]);
            each(keys, after, |_| handle.try_acquire().is_allowed());
        }
        How::Lease => {
            let mut lease = limiter.lease(&keys[0], 64);
            each(keys, after, |_| lease.try_acquire().is_allowed());
        }
        How::Never => each(keys, after, |_| true),
    }
}

#[inline(always)]
fn each(keys: &[u64], mut after: impl FnMut(), mut acquire: impl FnMut(&u64) -> bool) {
    for key in keys {
        black_box(acquire(key));
        after();
    }
}

fn cases(scale: Scale) -> Vec<Case> {
    let draws = scale.pick(1 << 7, 1 << 17, 1 << 19);
    let million = scale.pick(2_000, 1_000_000, 1_000_000);
    type Draw = fn(u64, usize, u64) -> Vec<u64>;
    let case = |name, rule: fn() -> Rule, keys: u64, draw: Draw, clock, how| {
        let draws = (0..cores()).map(|thread| draw(keys, draws, thread as u64)).collect();
        Case { name, limiter: filled(rule(), keys, clock, key), draws, how }
    };
    let precise = Clock::precise;
    vec![
        case("hot key, admit", generous, 1, uniform, precise(), How::Call),
        case("hot key, admit, coarse clock", generous, 1, uniform, coarse(), How::Call),
        case("hot key, admit, a handle", generous, 1, uniform, precise(), How::Handle),
        case("hot key, admit, leases of 64", generous, 1, uniform, precise(), How::Lease),
        case("hot key, refuse", strict, 1, uniform, precise(), How::Call),
        case("1 k keys, admit", generous, 1_000, uniform, precise(), How::Call),
        case("1 k keys, refuse", strict, 1_000, uniform, precise(), How::Call),
        case("1 M keys, admit", generous, million, uniform, precise(), How::Call),
        case("1 M keys, admit, coarse clock", generous, million, uniform, coarse(), How::Call),
        case("1 M keys, refuse", strict, million, uniform, precise(), How::Call),
        case("1 M keys Zipf, admit", generous, million, zipf, precise(), How::Call),
    ]
}

fn main() {
    let scale = Scale::from_arguments();
    progress("filling limiters");
    let cases = cases(scale);
    // Criterion prints its figures as it goes; the table of single calls comes first, and is short.
    if filter().is_none() {
        let table = latencies(&cases);
        println!("{table}");
        if scale == Scale::Full {
            let made =
                format!("Made by `cargo bench --bench contention`; do not edit. {}", page::provenance());
            page::save(
                "contention.md",
                &format!("# How long single calls take\n\n{made}\n{TIMING}\n\n{table}"),
            );
        }
    }
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(10)
        .configure_from_args();
    for case in &cases {
        let mut group = criterion.benchmark_group(case.name);
        for threads in thread_counts() {
            // Of all threads together: so many decisions in a second.
            group.throughput(Throughput::Elements(threads as u64));
            group.bench_function(BenchmarkId::new("threads", threads), |bencher| {
                bencher.iter_custom(|calls| {
                    Duration::from_nanos(timed(threads, |thread| case.run(thread, calls)) as u64)
                });
            });
        }
        group.finish();
    }
    criterion.final_summary();
}

impl Case {
    fn run(&self, thread: usize, calls: u64) {
        let (mut left, draws) = (calls as usize, &self.draws[thread]);
        while left > 0 {
            let part = left.min(draws.len());
            decide(&self.limiter, self.how, &draws[..part], || ());
            left -= part;
        }
    }
}

/// How long single calls take, timed one by one: reading the clock is part of every figure.
fn latencies(cases: &[Case]) -> Table {
    const SHARES: [(f64, &str); 4] =
        [(0.5, "half below"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %")];
    let headings = ["one call, timed by itself", "threads"].into_iter().chain(SHARES.map(|(_, name)| name));
    let mut table = Table::new(headings.chain(["longest"]));
    let mut row = |name: &str, threads: usize, times: &Histogram<u64>| {
        let shares = SHARES.map(|(share, _)| time(times.value_at_quantile(share) as f64));
        let cells = [name.to_owned(), threads.to_string()].into_iter().chain(shares);
        table.row(cells.chain([time(times.max() as f64)]));
    };
    for threads in thread_counts() {
        row("nothing: the clock alone", threads, &histogram(&cases[0], How::Never, threads));
        for case in cases {
            progress(&format!("single calls: {}, {threads} threads", case.name));
            row(case.name, threads, &histogram(case, case.how, threads));
        }
    }
    table
}

fn histogram(case: &Case, how: How, threads: usize) -> Histogram<u64> {
    let clock = Clock::precise();
    let parts = on_cores(&(0..threads).collect::<Vec<_>>(), |thread| {
        // Two digits are kept, of anything up to a minute.
        let mut times = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 2).expect("bounds in order");
        let mut last_ns = clock.now_ns();
        decide(&case.limiter, how, &case.draws[thread], || {
            // Counters of two cores may differ, if the thread was moved after all.
            times.saturating_record(clock.now_ns().saturating_sub(last_ns).max(1));
            // Read again: recording is not part of the next call.
            last_ns = clock.now_ns();
        });
        times
    });
    let mut all = Histogram::new_with_bounds(1, 60_000_000_000, 2).expect("bounds in order");
    for part in parts {
        all.add(part).expect("the same bounds");
    }
    all
}
