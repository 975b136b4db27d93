//! What a gate adds to reading its clock.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tollgate::{Clock, Gate, Rule};

fn gate(criterion: &mut Criterion) {
    let precise = Clock::precise();
    let coarse = Clock::coarse(Duration::from_micros(500));
    // So fast that no call is refused, and so slow that every call but the first is.
    let generous = || Rule::per_second(1_000_000_000).burst(1_000_000_000);
    let build = |rule: Rule, clock: &Clock| Gate::with_clock(rule, clock.clone()).expect("a valid rule");
    for (name, clock) in [("precise", &precise), ("coarse", &coarse)] {
        let mut group = criterion.benchmark_group(format!("gate/{name}"));
        group.measurement_time(Duration::from_secs(3));
        group.bench_function("clock alone", |bencher| bencher.iter(|| black_box(clock).now_ns()));
        // What no gate can go below: some processors read their counter only when everything before is done.
        let word = AtomicU64::new(0);
        group.bench_function("clock and one compare-exchange", |bencher| {
            bencher.iter(|| {
                let (seen, now_ns) = (word.load(Ordering::Relaxed), black_box(clock).now_ns());
                word.compare_exchange(seen, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            });
        });
        let admitting = build(generous(), clock);
        group.bench_function("admit", |bencher| {
            bencher.iter(|| black_box(&admitting).try_acquire().is_allowed())
        });
        let refusing = build(Rule::per_day(1), clock);
        group.bench_function("refuse", |bencher| {
            bencher.iter(|| black_box(&refusing).try_acquire().is_allowed())
        });
        group.finish();
    }
}

criterion_group!(benches, gate);
criterion_main!(benches);
