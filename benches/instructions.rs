//! How many instructions the hot paths take, and that they do not grow: counted by callgrind, the same at every
//! run. `./test` fails where a count passes its limit by more than three parts in a hundred; or fifteen, where the
//! compiler is not the one that the limits were taken with (`INSTRUCTIONS_SLACK` says how many).
//!
//! Each case is sixteen calls on a limiter that is warm, and a loop around them. The loop is counted by itself, as
//! the case `nothing`: a sixteenth of the difference is what one call takes.

use iai_callgrind::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group,
};
use std::hint::black_box;
use std::process::{Command, exit};
use tollgate::{Gate, Limiter, LimiterBuilder};

const GENEROUS: &str = "1000000000/s burst 1000000000";
const TWO: &str = "1000000000/s burst 1000000000; 1000000000/h burst 1000000000";
/// Keys that a limiter has seen before it is asked.
const KEYS: u64 = 1024;

/// The calls of a case.
const CALLS: u64 = 16;

/// What a call takes, and what it may grow by.
fn at_most(instructions_a_call: u64) -> LibraryBenchmarkConfig {
    let instructions = (instructions_a_call + LOOP) * CALLS;
    let slack = std::env::var("INSTRUCTIONS_SLACK").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let mut config = LibraryBenchmarkConfig::default();
    config
        .tool(Callgrind::default().hard_limits([(EventKind::Ir, instructions + instructions * slack / 100)]));
    config
}

/// Left in its place for good: moving a limiter would be counted too.
fn gate(policy: &str) -> &'static Gate {
    let gate: &Gate = Box::leak(Box::new(Gate::new(policy).expect("a valid policy")));
    let _first = gate.try_acquire();
    gate
}

fn limiter(policy: &str) -> &'static Limiter {
    warm(Limiter::builder().policy(policy))
}

fn counting(policy: &str) -> &'static Limiter {
    warm(Limiter::builder().policy(policy).count_decisions(true))
}

fn warm(builder: LimiterBuilder) -> &'static Limiter {
    let limiter = builder.seeds([1, 2, 3, 4]).build().expect("a valid policy");
    let limiter: &Limiter = Box::leak(Box::new(limiter));
    for key in 0..KEYS {
        let _first = limiter.try_acquire(&key);
    }
    limiter
}

#[inline(always)]
fn ask(limiter: &Limiter, first_key: u64) -> u64 {
    let limiter = black_box(limiter);
    (0..CALLS).map(|key| u64::from(limiter.try_acquire(&(first_key + key)).is_allowed())).sum()
}

// The loop alone.
#[library_benchmark(config = at_most(0))]
#[bench::calls(limiter(GENEROUS))]
fn nothing(limiter: &Limiter) -> u64 {
    let limiter = black_box(std::ptr::from_ref(limiter));
    (0..CALLS).map(|key| u64::from(limiter.is_null() || black_box(key) < KEYS)).sum()
}

#[library_benchmark(config = at_most(GATE))]
#[bench::admit(gate(GENEROUS))]
#[bench::refuse(gate("1/d"))]
fn un_keyed(gate: &Gate) -> u64 {
    (0..CALLS).map(|_| u64::from(black_box(gate).try_acquire().is_allowed())).sum()
}

#[library_benchmark(config = at_most(HIT))]
#[bench::admit(limiter(GENEROUS))]
#[bench::refuse(limiter("1/d"))]
fn hit(limiter: &Limiter) -> u64 {
    ask(limiter, 0)
}

#[library_benchmark(config = at_most(COUNTED))]
#[bench::admit(counting(GENEROUS))]
#[bench::refuse(counting("1/d"))]
fn counted_hit(limiter: &Limiter) -> u64 {
    ask(limiter, 0)
}

#[library_benchmark(config = at_most(CLAIM))]
#[bench::new_keys(limiter(GENEROUS))]
fn claim(limiter: &Limiter) -> u64 {
    ask(limiter, KEYS)
}

#[library_benchmark(config = at_most(PAIR))]
#[bench::admit(limiter(TWO))]
#[bench::refuse(limiter("1/d; 1/h"))]
fn two_rules(limiter: &Limiter) -> u64 {
    ask(limiter, 0)
}

/// Of the loop, a call.
const LOOP: u64 = 9;
const GATE: u64 = 30;
const HIT: u64 = 68;
/// Of which 8 are for probes, 64 each: of sixteen calls one or two are looked at.
const COUNTED: u64 = 135 + 8;
const CLAIM: u64 = 756;
const PAIR: u64 = 214;

library_benchmark_group!(name = hot_paths; benchmarks = nothing, un_keyed, hit, counted_hit, claim, two_rules);

/// What the macro makes is called `main` and would be the whole program.
mod counting {
    use super::hot_paths;
    iai_callgrind::main!(library_benchmark_groups = hot_paths);

    pub(super) fn run() {
        main();
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runner = "iai-callgrind-runner";
    if arguments.first().is_some_and(|argument| argument == "--iai-run") {
        // Under valgrind already, and without the environment.
        counting::run();
    } else if let Some(tool) = ["valgrind", runner].into_iter().find(|tool| !is_installed(tool)) {
        println!(
            "instructions: not counted, because `{tool}` is missing. `./test --only instructions` installs it."
        );
    } else if arguments.iter().any(|argument| argument == "--quick") {
        // Counting is quick already, and the runner does not know the word.
        let rest = arguments.iter().filter(|argument| *argument != "--quick");
        let again = std::env::current_exe().and_then(|program| Command::new(program).args(rest).status());
        exit(again.ok().and_then(|status| status.code()).unwrap_or(1));
    } else {
        counting::run();
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
