//! What it costs to watch: a decision counted or not, the record of a top key, and reading what was counted.
//!
//! `cargo bench --bench observe` takes less than three minutes and writes `results/observe.md`; `-- --quick` takes
//! seconds and writes `results/observe-quick.md`. Everything in one run, round by round in turn, so that whatever
//! slows the machine slows all of it.

use std::hint::black_box;
use tollgate::{Limiter, TopKeys};
use tollgate_bench::page::{self, Table, time};
use tollgate_bench::{Rounds, Scale, interleaved, progress, timed, zipf};

/// Keys that a hit is spread over: few, so that the figures are not those of the memory.
const HIT_KEYS: u64 = 1024;
const LISTED_KEYS: u64 = 1_000_000;
const LIST_CAPACITY: usize = 1024;
/// Live keys of the tables that are read.
const TABLES: [(&str, u64); 2] = [("65 k", 65_536), ("1 M", 1_000_000)];
/// What counting may cost a keyed hit to be on by default: so many nanoseconds, or so much of the hit.
const FREE_NS: f64 = 1.0;
const FREE_SHARE: f64 = 0.05;

const GENEROUS: &str = "1000000000/s burst 1000000000";
const STRICT: &str = "1/d";

/// One round of one thread.
type Run = Box<dyn Fn(usize) + Sync>;

struct Case {
    name: String,
    threads: usize,
    /// Of one thread in a round.
    calls: usize,
    run: Run,
}

fn hits(policy: &str, counted: bool, calls: usize) -> Run {
    let limiter = Limiter::builder().policy(policy).seeds([1, 2, 3, 4]).count_decisions(counted);
    let limiter = limiter.build().expect("a valid policy");
    // A thread has keys of its own: this is about counting, not about meeting at a key.
    for key in 0..HIT_KEYS * 2 {
        let _first = limiter.try_acquire(&key);
    }
    Box::new(move |thread| {
        let first = thread as u64 % 2 * HIT_KEYS;
        for call in 0..calls as u64 {
            black_box(limiter.try_acquire(&(first + call % HIT_KEYS)).is_allowed());
        }
    })
}

fn records(keys: Vec<String>, calls: usize) -> Run {
    let top = TopKeys::with_seeds(LIST_CAPACITY, [1, 2, 3, 4]);
    Box::new(move |thread| {
        let half = keys.len() / 2;
        for key in keys.iter().cycle().skip(thread * half).take(calls) {
            top.record(black_box(key), 1);
        }
    })
}

fn readings(keys: u64, counted: bool) -> Run {
    let limiter = Limiter::builder().policy(STRICT).max_keys(keys as usize).count_decisions(counted);
    let limiter = limiter.build().expect("a valid policy");
    for key in 0..keys {
        let _first = limiter.try_acquire(&key);
    }
    Box::new(move |_| {
        black_box(limiter.stats());
    })
}

fn lists() -> Run {
    let top = TopKeys::with_seeds(LIST_CAPACITY, [1, 2, 3, 4]);
    for key in zipf(LISTED_KEYS, 200_000, 1) {
        top.record(&key, 1);
    }
    Box::new(move |_| {
        black_box(top.top(20));
    })
}

/// Each pair of cases that differ in counting alone, one behind the other.
fn hit_cases(calls: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for threads in [1, 2] {
        for (what, policy) in [("admitted", GENEROUS), ("refused", STRICT)] {
            for counted in [false, true] {
                let (name, run) = (format!("keyed hit, {what}"), hits(policy, counted, calls));
                cases.push(Case { name, threads, calls, run });
            }
        }
    }
    cases
}

fn other_cases(calls: usize, keys_max: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut case = |name: String, threads, calls, run| cases.push(Case { name, threads, calls, run });
    for threads in [1, 2] {
        let name = |key: u64| format!("user-{key}");
        let zipf_keys = zipf(LISTED_KEYS, calls, 1).into_iter().map(name).collect();
        case(
            "`TopKeys::record`, Zipf 0.99 of 1 M keys".to_owned(),
            threads,
            calls,
            records(zipf_keys, calls),
        );
        let one = vec!["203.0.113.7".to_owned(); calls];
        case("`TopKeys::record`, one key".to_owned(), threads, calls, records(one, calls));
    }
    case(format!("`TopKeys::top(20)` of {LIST_CAPACITY} counters"), 1, 1, lists());
    for (label, keys) in TABLES {
        for (counted, how) in [(false, "not counted"), (true, "counted")] {
            case(format!("`stats()`, {label} live keys, {how}"), 1, 1, readings(keys.min(keys_max), counted));
        }
    }
    cases
}

/// What the second of each pair takes longer than the first, round by round.
fn added_ns(without: &Rounds, with: &Rounds) -> f64 {
    Rounds(with.0.iter().zip(&without.0).map(|(with, without)| with - without).collect()).median()
}

fn counting_table(cases: &[Case], rounds: &[Rounds]) -> Table {
    let mut table =
        Table::new(["", "threads", "not counted", "counted", "for counting", "at most 1 ns or 5 %"]);
    for (pair, rounds) in cases.chunks_exact(2).zip(rounds.chunks_exact(2)) {
        let (without, with) = (rounds[0].median(), rounds[1].median());
        let added = added_ns(&rounds[0], &rounds[1]);
        let is_free = added <= FREE_NS || added <= FREE_SHARE * without;
        table.row([
            pair[0].name.clone(),
            pair[0].threads.to_string(),
            time(without),
            time(with),
            format!("{added:+.1} ns, {:+.0} %", added / without * 100.0),
            if is_free { "yes" } else { "no" }.to_owned(),
        ]);
    }
    table
}

fn other_table(cases: &[Case], rounds: &[Rounds]) -> Table {
    let mut table = Table::new(["", "threads", "median", "least to most"]);
    for (case, rounds) in cases.iter().zip(rounds) {
        let spread = format!("{} to {}", time(rounds.least()), time(rounds.most()));
        table.row([case.name.clone(), case.threads.to_string(), time(rounds.median()), spread]);
    }
    table
}

fn main() {
    let scale = Scale::from_arguments();
    let calls = scale.pick(100, 100_000, 200_000);
    let rounds = scale.pick(1, 9, 101);
    progress("filling limiters");
    let hits = hit_cases(calls);
    let others = other_cases(calls, scale.pick(1_000, u64::MAX, u64::MAX));
    let all: Vec<&Case> = hits.iter().chain(&others).collect();
    progress("measuring");
    for case in &all {
        timed(case.threads, &case.run);
    }
    let measured = interleaved(all.len(), rounds, |index, _| {
        let case = all[index];
        timed(case.threads, &case.run) / case.calls as f64
    });
    let (of_hits, of_others) = measured.split_at(hits.len());
    let tables = (counting_table(&hits, of_hits), other_table(&others, of_others));
    let page = report(scale, rounds, &tables);
    println!("{page}");
    match scale {
        Scale::Smoke => {}
        Scale::Quick => page::save("observe-quick.md", &page),
        Scale::Full => page::save("observe.md", &page),
    }
}

fn report(scale: Scale, rounds: usize, (counting, others): &(Table, Table)) -> String {
    let flag = if scale == Scale::Full { "" } else { " -- --quick" };
    format!(
        "# What it costs to watch\n\n\
         Made by `cargo bench --bench observe{flag}`. {} tollgate {}.\n\n\
         Medians of {rounds} rounds, taken in turn, by the precise clock; of two threads, the time of a call as one thread \
         sees it.\n\n\
         ## Counting decisions\n\n\
         A keyed hit on {HIT_KEYS} keys, with `count_decisions` and without. *For counting* is the median of the \
         differences within a round. To be on by default, it would have to take at most {FREE_NS} ns or {} % of the hit in \
         every row; where it does not, it is for whoever asks for it.\n\n{counting}\n\
         ## Top keys and reading\n\n\
         A scrape reads `stats()` once for each limiter, which walks the whole table; nothing waits for it.\n\n{others}",
        page::provenance(),
        page::version("tollgate"),
        FREE_SHARE * 100.0,
    )
}
