//! Geometry of the table, simulated: how many keys find no room, and how many
//! end up in their second bucket, for several bucket widths, loads and
//! placement policies.
//!
//! A key has two candidate buckets, home and second. Only the fill count of a
//! bucket matters here, so a bucket is one byte. The output is markdown.
//!
//! Usage: `geometry [--quick]`

use std::fmt;

/// Which of its two buckets a new key goes to.
#[derive(Clone, Copy, PartialEq)]
enum Policy {
    /// The emptier of the two; home when they are equal.
    Emptier,
    /// Home while it has fewer than `ways - spare` keys, else the emptier one.
    /// `spare` 0 means "home until it is full".
    HomeUntil { spare: u8 },
    /// Home unless the second has at least `by` keys fewer.
    Lead { by: u8 },
}

impl Policy {
    const ALL: [Policy; 7] = [
        Policy::Emptier,
        Policy::HomeUntil { spare: 4 },
        Policy::HomeUntil { spare: 3 },
        Policy::HomeUntil { spare: 2 },
        Policy::HomeUntil { spare: 1 },
        Policy::HomeUntil { spare: 0 },
        Policy::Lead { by: 2 },
    ];

    /// The bucket to use, or `None` if both are full.
    fn choose(self, ways: u8, home: u8, second: u8) -> Option<Choice> {
        let stays_home = match self {
            Policy::Emptier => home <= second,
            Policy::HomeUntil { spare } => home < ways - spare || home <= second,
            Policy::Lead { by } => home < second + by,
        };
        if stays_home && home < ways {
            Some(Choice::Home)
        } else if second < ways {
            Some(Choice::Second)
        } else {
            None
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Emptier => f.write_str("emptier first"),
            Policy::HomeUntil { spare: 0 } => f.write_str("home until full"),
            Policy::HomeUntil { spare } => write!(f, "home while < ways-{spare}"),
            Policy::Lead { by } => write!(f, "home unless second has {by} fewer"),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Choice {
    Home,
    Second,
}

/// SplitMix64: a small generator that is good enough to stand in for a hash.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        scale(self.next(), n)
    }
}

/// Multiply-shift: maps a hash onto `0..n` for any `n`.
fn scale(hash: u64, n: usize) -> usize {
    ((u128::from(hash) * n as u128) >> 64) as usize
}

/// Home and second bucket of a hash, as the table computes them.
fn buckets_of(hash: u64, n: usize) -> (usize, usize) {
    const SECOND: u64 = 0x9FB2_1C65_1E98_DF25;
    (scale(hash, n), scale(hash.wrapping_mul(SECOND), n))
}

#[derive(Clone, Copy)]
struct Placed {
    bucket: u32,
    choice: Choice,
}

struct Simulation {
    ways: u8,
    policy: Policy,
    used: Vec<u8>,
    placed: Vec<Placed>,
    random: Random,
    tried: u64,
    failed: u64,
}

impl Simulation {
    fn new(ways: u8, load: f64, keys: usize, policy: Policy, seed: u64) -> Self {
        let buckets = (keys as f64 / (f64::from(ways) * load)).ceil() as usize;
        Simulation {
            ways,
            policy,
            used: vec![0; buckets],
            placed: Vec::with_capacity(keys),
            random: Random(seed),
            tried: 0,
            failed: 0,
        }
    }

    /// Tries one never-seen key.
    fn insert(&mut self) {
        let (home, second) = buckets_of(self.random.next(), self.used.len());
        self.tried += 1;
        let choice = self.policy.choose(self.ways, self.used[home], self.used[second]);
        let Some(choice) = choice else {
            self.failed += 1;
            return;
        };
        let bucket = if choice == Choice::Home { home } else { second };
        self.used[bucket] += 1;
        self.placed.push(Placed { bucket: bucket as u32, choice });
    }

    /// Deletes random keys, then brings as many new ones as are missing.
    fn churn(&mut self, keys: usize, share: f64) {
        for _ in 0..(keys as f64 * share) as usize {
            let victim = self.random.below(self.placed.len());
            let gone = self.placed.swap_remove(victim);
            self.used[gone.bucket as usize] -= 1;
        }
        for _ in self.placed.len()..keys {
            self.insert();
        }
    }

    fn failed_share(&self) -> f64 {
        self.failed as f64 / self.tried as f64
    }

    fn second_share(&self) -> f64 {
        let second = self.placed.iter().filter(|p| p.choice == Choice::Second);
        second.count() as f64 / self.placed.len() as f64
    }
}

/// Outcome of one cell, summed up over all seeds.
#[derive(Default)]
struct Cell {
    /// Mean share of keys that found no room while filling.
    fill_failed: f64,
    /// Mean share of keys in their second bucket after filling.
    fill_second: f64,
    /// The same two after the rounds of churn (failures: of churned keys).
    churn_failed: f64,
    churn_second: f64,
}

#[derive(Clone, Copy)]
struct Setup {
    keys: usize,
    seeds: u64,
    churn_rounds: usize,
    churn_share: f64,
}

fn measure(setup: Setup, ways: u8, load: f64, policy: Policy) -> Cell {
    let mut cell = Cell::default();
    for seed in 0..setup.seeds {
        let mut sim = Simulation::new(ways, load, setup.keys, policy, seed << 40);
        for _ in 0..setup.keys {
            sim.insert();
        }
        cell.fill_failed += sim.failed_share();
        cell.fill_second += sim.second_share();
        (sim.tried, sim.failed) = (0, 0);
        for _ in 0..setup.churn_rounds {
            sim.churn(setup.keys, setup.churn_share);
        }
        cell.churn_failed += sim.failed_share();
        cell.churn_second += sim.second_share();
    }
    let n = setup.seeds as f64;
    cell.fill_failed /= n;
    cell.fill_second /= n;
    cell.churn_failed /= n;
    cell.churn_second /= n;
    cell
}

/// `0` for none at all, else one significant digit.
fn rate(share: f64) -> String {
    if share == 0.0 { "0".to_owned() } else { format!("{share:.0e}") }
}

/// The highest load, in steps of 0.01, at which no key fails under any seed.
fn highest_load(setup: Setup, ways: u8, policy: Policy) -> Option<(f64, Cell)> {
    let mut best = None;
    for hundredths in 40..=90 {
        let load = f64::from(hundredths) / 100.0;
        let cell = measure(setup, ways, load, policy);
        if cell.fill_failed > 0.0 || cell.churn_failed > 0.0 {
            break;
        }
        best = Some((load, cell));
    }
    best
}

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick");
    let setup = Setup {
        keys: if quick { 1 << 16 } else { 1 << 20 },
        seeds: if quick { 2 } else { 6 },
        churn_rounds: 5,
        churn_share: 0.5,
    };
    println!(
        "{} keys, {} seeds, 2 choices; churn: {} rounds, each replaces {:.0} % of the keys.\n",
        setup.keys,
        setup.seeds,
        setup.churn_rounds,
        setup.churn_share * 100.0
    );
    println!("Each cell: share without room, fill / churn (share in the second bucket, fill / churn).");

    let loads = [0.60, 0.65, 0.70, 0.75, 0.80];
    for ways in [5, 7, 8] {
        println!("\n### {ways} ways\n");
        print!("| policy |");
        loads.iter().for_each(|load| print!(" {load:.2} |"));
        println!("\n|---|{}", "---|".repeat(loads.len()));
        for policy in Policy::ALL {
            print!("| {policy} |");
            for load in loads {
                let cell = measure(setup, ways, load, policy);
                print!(
                    " {} / {} ({:.1} / {:.1} %) |",
                    rate(cell.fill_failed),
                    rate(cell.churn_failed),
                    cell.fill_second * 100.0,
                    cell.churn_second * 100.0
                );
            }
            println!();
        }
    }

    println!("\n### Highest load without a single failure (steps of 0.01, fill and churn)\n");
    println!("| policy | 5 ways | 7 ways | 8 ways |\n|---|---|---|---|");
    for policy in Policy::ALL {
        print!("| {policy} |");
        for ways in [5, 7, 8] {
            match highest_load(setup, ways, policy) {
                Some((load, cell)) => {
                    print!(" {load:.2} ({:.1} % second) |", cell.churn_second * 100.0)
                }
                None => print!(" below 0.40 |"),
            }
        }
        println!();
    }
}
