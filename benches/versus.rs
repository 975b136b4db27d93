//! tollgate beside other limiters: the same keys, the same rule, in one process, in interleaved rounds.
//!
//! `cargo bench --bench versus` prints the ratios over governor's default; `-- --quick` takes a minute.

use governor::{Quota, RateLimiter};
use std::hash::Hash;
use std::num::NonZeroU32;
use std::time::Duration;
use tollgate::{Clock, Limiter, Rule};
use tollgate_bench::{Contender, timed, uniform, zipf};

type Boxed<K> = (&'static str, Box<dyn Contender<K>>);

/// A limit that is never reached, or that every key has reached after its first request.
#[derive(Clone, Copy, PartialEq)]
enum Traffic {
    Admit,
    Refuse,
}

fn governor_quota(traffic: Traffic) -> Quota {
    let most = NonZeroU32::new(1_000_000_000).expect("not zero");
    match traffic {
        Traffic::Admit => Quota::per_second(most).allow_burst(most),
        Traffic::Refuse => Quota::per_hour(NonZeroU32::MIN),
    }
}

fn rule(traffic: Traffic) -> Rule {
    match traffic {
        Traffic::Admit => Rule::per_second(1_000_000_000).burst(1_000_000_000),
        Traffic::Refuse => Rule::per_hour(1),
    }
}

fn contenders<K: Hash + Eq + Clone + Send + Sync + 'static>(traffic: Traffic, keys: usize) -> Vec<Boxed<K>> {
    let build = |clock: Clock| {
        Limiter::builder()
            .policy(rule(traffic))
            .max_keys(keys.max(1024))
            .clock(clock)
            .build()
            .expect("a limiter")
    };
    let default = RateLimiter::<K, _, _>::keyed(governor_quota(traffic));
    let with_ahash = RateLimiter::<K, _, _>::new(
        governor_quota(traffic),
        governor::state::keyed::DashMapStateStore::<K, ahash::RandomState>::with_hasher(
            ahash::RandomState::new(),
        ),
        governor::clock::DefaultClock::default(),
    );
    let precise = build(Clock::precise());
    let coarse = build(Clock::coarse(Duration::from_micros(500)));
    let batched = build(Clock::precise());
    vec![
        (
            "governor",
            Box::new(move |keys: &[K]| keys.iter().filter(|key| default.check_key(key).is_ok()).count()),
        ),
        (
            "governor + ahash",
            Box::new(move |keys: &[K]| keys.iter().filter(|key| with_ahash.check_key(key).is_ok()).count()),
        ),
        (
            "tollgate",
            Box::new(move |keys: &[K]| {
                keys.iter().filter(|key| precise.try_acquire(*key).is_allowed()).count()
            }),
        ),
        (
            "tollgate, coarse clock",
            Box::new(move |keys: &[K]| {
                keys.iter().filter(|key| coarse.try_acquire(*key).is_allowed()).count()
            }),
        ),
        (
            "tollgate, batch of 16",
            Box::new(move |keys: &[K]| {
                let mut decisions = [batched.peek(&0); 16];
                let mut admitted = 0;
                for keys in keys.chunks(16) {
                    let decided = batched.try_acquire_many(keys, &mut decisions);
                    admitted += decisions[..decided].iter().filter(|decision| decision.is_allowed()).count();
                }
                admitted
            }),
        ),
    ]
}

struct Case<K> {
    name: &'static str,
    keys: Vec<K>,
    distinct: usize,
    /// Every key is new: one round only, on fresh limiters.
    unseen: bool,
}

fn run<K: Hash + Eq + Clone + Send + Sync + 'static>(
    case: &Case<K>,
    traffic: Traffic,
    threads: usize,
    rounds: usize,
) {
    let mut best: Vec<(&'static str, f64)> = Vec::new();
    let mut pool = contenders::<K>(traffic, case.distinct);
    let part = case.keys.len() / threads;
    for round in 0..if case.unseen { rounds.min(3) } else { rounds + 1 } {
        if case.unseen {
            pool = contenders::<K>(traffic, case.distinct);
        }
        for (index, (name, contender)) in pool.iter().enumerate() {
            let ns = timed(threads, &|thread| {
                let keys = &case.keys[thread * part..(thread + 1) * part];
                std::hint::black_box(contender.run(keys));
            }) / part as f64;
            match best.get_mut(index) {
                None => best.push((name, if case.unseen { ns } else { f64::INFINITY })),
                // The first round only warms up.
                Some((_, least)) => *least = least.min(ns),
            }
        }
        let _ = round;
    }
    let reference = best[0].1;
    let kind = if traffic == Traffic::Admit { "admit" } else { "refuse" };
    print!("| {} {kind}, {threads} thr |", case.name);
    for (_, ns) in &best {
        print!(" {ns:.1} ({:.2}×) |", reference / ns);
    }
    println!();
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let filter = arguments.iter().skip(1).find(|argument| !argument.starts_with('-'));
    let (rounds, draws) = if quick { (5, 1 << 20) } else { (15, 1 << 21) };
    println!(
        "| ns a call (ratio over governor) | governor | governor + ahash | tollgate | coarse clock | batch of 16 |"
    );
    println!("|---|---|---|---|---|---|");
    let wanted = |name: &str| filter.is_none_or(|filter| name.contains(filter.as_str()));
    let numbers = |name, keys, distinct| Case { name, keys, distinct, unseen: false };
    let cases = [
        numbers("hot key", vec![7u64; draws], 1),
        numbers("1 k keys", uniform(1000, draws, 1), 1000),
        numbers("1 M uniform", uniform(1_000_000, draws, 2), 1_000_000),
        numbers("1 M Zipf", zipf(1_000_000, draws, 3), 1_000_000),
    ];
    for case in cases.iter().filter(|case| wanted(case.name)) {
        for threads in [1, 2] {
            for traffic in [Traffic::Admit, Traffic::Refuse] {
                run(case, traffic, threads, rounds);
            }
        }
    }
    if wanted("10 M uniform") {
        run(
            &numbers("10 M uniform", uniform(10_000_000, draws * 4, 4), 10_000_000),
            Traffic::Admit,
            1,
            rounds.min(5),
        );
    }
    if wanted("strings") {
        let keys = zipf(100_000, draws, 5).iter().map(|key| format!("{key:020}")).collect();
        let case = Case { name: "100 k strings of 20 bytes, Zipf", keys, distinct: 100_000, unseen: false };
        run(&case, Traffic::Admit, 1, rounds);
    }
    if wanted("never seen") {
        let keys = (0..5_000_000u64).map(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let case = Case { name: "5 M never seen", keys, distinct: 5_000_000, unseen: true };
        run(&case, Traffic::Refuse, 1, rounds);
    }
}
