//! Bucket layouts of the keyed table, compared: lookup and charge of a present key, one thread.
//!
//! All contenders hold the same keys, and get the same calls in the same order, in interleaved rounds;
//! the figures are min / median ns a call over the rounds. Compare them within one run only.
//! The output is markdown. Usage:
//!
//! - `tollgate-layouts [--quick]` measures everything.
//! - `tollgate-layouts --count N CALLS` makes that many calls over 1000 keys on the contender numbered `N`
//!   and no more, for counting instructions from outside (see `run.sh`); `--list` names the numbers.

mod drive;
mod hash;
mod layouts;
mod matching;
mod step;
mod table;

use drive::{Contender, Order, Time, Tools};
use layouts::{Bucket, Dense5, Directory7, Line4, Matched, Packed8, Side8, Split8};
use matching::{BranchFree, HalfFirst, Preferred, Scan};
use table::{BothAtOnce, HomeFirst, Probe, Table};

const LOAD: f64 = 0.70;
/// Four ways do not fill to 0.70 with two choices.
const LOAD_OF_FOUR: f64 = 0.50;

type Build = fn(&Tools, u64) -> Box<dyn Contender>;

fn build<B: Bucket + 'static, P: Probe<B> + 'static>(tools: &Tools, keys: u64) -> Box<dyn Contender> {
    let load = if B::WAYS == 4 { LOAD_OF_FOUR } else { LOAD };
    let hashes: Vec<u64> = (0..keys).map(|key| tools.hasher.hash_one(key)).collect();
    Box::new(Table::<B, P>::filled(hashes.into_iter(), load))
}

const CONTENDERS: [Build; 15] = [
    build::<Matched<Line4, Scan>, HomeFirst>,
    build::<Matched<Line4, BranchFree>, HomeFirst>,
    build::<Matched<Side8, Scan>, HomeFirst>,
    build::<Matched<Side8, BranchFree>, HomeFirst>,
    build::<Matched<Side8, Preferred>, HomeFirst>,
    build::<Matched<Side8, HalfFirst>, HomeFirst>,
    build::<Matched<Side8, BranchFree>, BothAtOnce>,
    build::<Matched<Split8, Scan>, HomeFirst>,
    build::<Matched<Split8, BranchFree>, HomeFirst>,
    build::<Matched<Split8, Preferred>, HomeFirst>,
    build::<Matched<Split8, HalfFirst>, HomeFirst>,
    build::<Matched<Split8, BranchFree>, BothAtOnce>,
    build::<Directory7, HomeFirst>,
    build::<Dense5, HomeFirst>,
    build::<Packed8, HomeFirst>,
];

/// One number of keys and how to measure it.
struct Case {
    name: &'static str,
    keys: u64,
    calls: usize,
    rounds: usize,
    orders: &'static [Order],
}

const CASES: [Case; 4] = [
    Case { name: "hot key", keys: 1, calls: 400_000, rounds: 15, orders: &[Order::ClockFirst] },
    Case { name: "1 k keys", keys: 1_000, calls: 400_000, rounds: 15, orders: &Order::ALL },
    Case { name: "1 M keys", keys: 1_000_000, calls: 1_000_000, rounds: 7, orders: &Order::ALL },
    Case { name: "10 M keys", keys: 10_000_000, calls: 600_000, rounds: 5, orders: &Order::ALL },
];

impl Case {
    /// Smaller, for a look at whether everything works.
    fn quick(self) -> Self {
        Case { keys: self.keys.min(100_000), calls: self.calls / 10, rounds: 3, ..self }
    }

    /// Keys in random order, enough for every round to have its own.
    fn calls(&self) -> Vec<u64> {
        let mut state = 0x2545_F491_4F6C_DD1D_u64;
        let mut draw = || {
            // xorshift64, scaled to the number of keys.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((u128::from(state) * u128::from(self.keys)) >> 64) as u64
        };
        (0..self.calls * self.rounds).map(|_| draw()).collect()
    }
}

/// Samples of one contender under one order and time source.
struct Cell {
    order: Order,
    time: Time,
    samples: Vec<f64>,
}

impl Cell {
    fn show(&self) -> String {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        format!("{:.1} / {:.1}", sorted[0], sorted[sorted.len() / 2])
    }
}

fn measure(case: &Case, tools: &Tools) {
    let contenders: Vec<_> = CONTENDERS.iter().map(|build| build(tools, case.keys)).collect();
    let calls = case.calls();
    let times = [Time::Counter, Time::Precise];
    let cells = || {
        let pairs = case.orders.iter().flat_map(|&order| times.map(|time| (order, time)));
        pairs.map(|(order, time)| Cell { order, time, samples: Vec::new() }).collect::<Vec<_>>()
    };
    let mut table: Vec<Vec<Cell>> = contenders.iter().map(|_| cells()).collect();
    for keys in calls.chunks(case.calls) {
        for column in 0..table[0].len() {
            for (contender, row) in contenders.iter().zip(&mut table) {
                let cell = &mut row[column];
                std::hint::black_box(contender.warm());
                cell.samples.push(contender.run(tools, keys, cell.time, cell.order));
            }
        }
    }

    println!("\n### {}: {} keys, {} calls, {} rounds\n", case.name, case.keys, case.calls, case.rounds);
    print!("| layout | matching |");
    table[0].iter().for_each(|cell| print!(" {:?}, {:?} |", cell.order, cell.time));
    println!("\n|---|---|{}", "---|".repeat(table[0].len()));
    for (contender, row) in contenders.iter().zip(&table) {
        print!("| {} | {} |", contender.layout(), contender.matching());
        row.iter().for_each(|cell| print!(" {} |", cell.show()));
        println!();
    }
    if case.keys >= 100_000 {
        describe(&contenders);
    }
}

/// How the tables were filled.
fn describe(contenders: &[Box<dyn Contender>]) {
    println!(
        "\n| layout | matching | bytes a key | no room | second bucket | preferred slot | preferred half |"
    );
    println!("|---|---|---|---|---|---|---|");
    for contender in contenders {
        let filled = contender.filled();
        let percent = |part: usize| 100.0 * part as f64 / filled.keys as f64;
        println!(
            "| {} | {} | {:.1} | {:.4} % | {:.1} % | {:.1} % | {:.1} % |",
            contender.layout(),
            contender.matching(),
            contender.bytes() as f64 / filled.keys as f64,
            percent(filled.no_room),
            percent(filled.in_second),
            percent(filled.in_preferred),
            percent(filled.in_preferred_half),
        );
    }
}

/// Calls on one contender only: what a tool that counts instructions needs.
fn count(contender: usize, calls: usize) {
    let tools = Tools::new();
    let case = Case { calls, rounds: 1, ..CASES[1] };
    let Some(build) = CONTENDERS.get(contender) else {
        eprintln!("no contender {contender}; there are {}", CONTENDERS.len());
        std::process::exit(2);
    };
    build(&tools, case.keys).run(&tools, &case.calls(), Time::Counter, Order::ClockFirst);
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let tools = Tools::new();
    match args[..] {
        [] => CASES.into_iter().for_each(|case| measure(&case, &tools)),
        ["--quick"] => CASES.into_iter().for_each(|case| measure(&case.quick(), &tools)),
        ["--list"] => {
            for (number, build) in CONTENDERS.iter().enumerate() {
                let contender = build(&tools, 1);
                println!("{number}\t{}, {}", contender.layout(), contender.matching());
            }
        }
        ["--count", contender, calls] => match (contender.parse(), calls.parse()) {
            (Ok(contender), Ok(calls)) => count(contender, calls),
            _ => eprintln!("--count takes two numbers: the contender and the calls"),
        },
        _ => eprintln!("usage: tollgate-layouts [--quick | --list | --count N CALLS]"),
    }
}
