//! What machines with more cores would do: costs measured here, put into the model of `docs/scaling.md`.
//!
//! `cargo bench --bench scaling` measures, compares the model with the cores there are, and writes
//! `results/scaling.md` and its chart; `-- --quick` takes seconds and writes `results/scaling-quick.md`.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate::{Clock, Limiter};
use tollgate_bench::chart::{self, Line};
use tollgate_bench::limiters::{filled, generous, strict};
use tollgate_bench::model::{Costs, Work};
use tollgate_bench::page::{self, Table, time};
use tollgate_bench::{
    Rounds, Scale, cores, interleaved, key, progress, thread_counts, timed, timed_on, uniform,
};

const NEAR_KEYS: u64 = 1_000;
const BATCH: u64 = 64;
/// Cores to predict for.
const CORES: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 96, 128];
/// Line transfers of machines we do not have: one cache complex, one socket, two sockets.
const TRANSFERS_NS: [f64; 3] = [40.0, 100.0, 200.0];
/// What an admission moves beyond the caches: a line in, and later out.
const FAR_BYTES: f64 = 128.0;

/// On a line of its own, and on the next, which some processors fetch along with it.
#[repr(align(128))]
struct Alone(AtomicU64);

/// Decides for all keys.
type Decide<'a> = Box<dyn Fn(&[u64]) + Sync + 'a>;

fn ask(limiter: &Limiter) -> Decide<'_> {
    Box::new(|keys| {
        for key in keys {
            black_box(limiter.try_acquire(key).is_allowed());
        }
    })
}

fn main() {
    let scale = Scale::from_arguments();
    // Many short rounds: one that nothing disturbs is enough, and on several cores those are short.
    let (rounds, calls) = (scale.pick(1, 40, 400), scale.pick(1 << 6, 1 << 14, 1 << 15));
    let windows = scale.pick(2, 32, 32);
    let far_keys: u64 = scale.pick(1 << 10, 10_000_000, 10_000_000);

    progress("handing a line over, between every two cores");
    let transfers = transfers(rounds, (calls / 16) as u64);
    progress("filling limiters");
    let limiter = |rule, keys| filled(rule, keys, Clock::precise(), key);
    let hot = limiter(generous(), 1);
    let refusing = limiter(strict(), 1);
    let near = limiter(generous(), NEAR_KEYS);
    let far = limiter(generous(), far_keys);
    let lease: Decide<'_> = Box::new(|keys| {
        let mut lease = hot.lease(&keys[0], BATCH);
        for _ in keys {
            black_box(lease.try_acquire().is_allowed());
        }
    });
    let works: [(&str, Work, u64, Decide<'_>); 5] = [
        ("hot key, admitted", Work::HotAdmit, 1, ask(&hot)),
        ("hot key, refused", Work::HotRefuse, 1, ask(&refusing)),
        ("1 k keys, admitted", Work::Near(NEAR_KEYS as f64), NEAR_KEYS, ask(&near)),
        ("10 M keys, admitted", Work::Far, far_keys, ask(&far)),
        ("hot key, leases of 64", Work::Lease(BATCH as f64), 1, lease),
    ];

    let counts = thread_counts();
    let mut measured = Vec::new();
    for (name, _, keys, decide) in &works {
        progress(&format!("{name}, on {counts:?} threads"));
        // Not the same keys for all: cores would follow each other from line to line.
        let draws: Vec<Vec<u64>> =
            (0..cores()).map(|thread| uniform(*keys, calls * windows, thread as u64)).collect();
        measured.push(interleaved(counts.len(), rounds, |index, round| {
            // Other keys each time, or the caches would come to hold them.
            let start = round % windows * calls;
            timed(counts[index], |thread| decide(&draws[thread][start..start + calls])) / calls as f64
        }));
    }
    let line_ns = line_alone(rounds, calls);
    // A lease of one thread: what remains of its calls when the share of a refill is taken off.
    let admit_ns = measured[0][0].least();
    let costs = Costs {
        transfer_ns: transfers.median(),
        line_ns: line_ns.min(admit_ns),
        admit_ns,
        refuse_ns: measured[1][0].least(),
        far_admit_ns: measured[3][0].least(),
        lease_ns: (measured[4][0].least() - admit_ns / BATCH as f64).max(0.0),
    };

    let mut page = format!(
        "# Scaling: measured, and predicted\n\nMade by `cargo bench --bench scaling{}`. {}\n\
         The model is explained in [docs/scaling.md](../../docs/scaling.md).\n\n## Costs\n\n",
        scale.pick(" (smoke)", " -- --quick", ""),
        page::provenance(),
    );
    page += &costs_table(&costs, &transfers).to_string();
    page += "\n## The model beside this machine\n\nDecisions in a microsecond, all threads together: measured (predicted).\n\n";
    let mut table = Table::new(
        std::iter::once("case".to_owned()).chain(
            counts
                .iter()
                .map(|count| if *count == 1 { "1 thread".to_owned() } else { format!("{count} threads") }),
        ),
    );
    for ((name, work, ..), measured) in works.iter().zip(&measured) {
        let cells = counts.iter().zip(measured).map(|(&count, rounds)| {
            let (here, predicted) = (count as f64 * 1e3 / rounds.least(), costs.throughput(*work, count));
            format!("{here:.1} ({predicted:.1}, {:+.0} %)", (predicted / here - 1.0) * 100.0)
        });
        table.row(std::iter::once((*name).to_owned()).chain(cells));
    }
    page += &table.to_string();
    page += "\nAt one thread the model is what was measured; the first column only shows that it adds up.\n\n\
             ## Predicted\n\nDecisions in a microsecond, all cores together, with the costs above.\n\n\
             ![Predicted throughput](CHART)\n\n";
    page += &predictions(&works.each_ref().map(|(name, work, ..)| (*name, *work)), &costs).to_string();
    page += "\nThe same for the two cases that hang on the transfer, on machines where it takes another time.\n\n";
    page += &sensitivity(&costs).to_string();

    println!("{page}");
    let name = scale.pick("", "scaling-quick", "scaling");
    if !name.is_empty() {
        let lines: Vec<Line> = works
            .iter()
            .map(|(name, work, ..)| {
                let points = CORES.map(|cores| (cores as f64, costs.throughput(*work, cores)));
                ((*name).to_owned(), points.to_vec())
            })
            .collect();
        let chart = chart::lines("Predicted throughput", "cores", "decisions in a microsecond", &lines);
        page::save(&format!("{name}.svg"), &chart);
        page::save(&format!("{name}.md"), &page.replace("CHART", &format!("{name}.svg")));
    }
}

/// One way of a message between each two cores: write a line, and see the other's answer in it.
fn transfers(rounds: usize, trips: u64) -> Rounds {
    let mut medians = Rounds::default();
    for first in 0..cores() {
        for second in first + 1..cores() {
            let pair = interleaved(1, rounds, |_, _| {
                let line = Alone(AtomicU64::new(0));
                let took_ns = timed_on(&[first, second], |side| {
                    for trip in 0..trips {
                        // Acquire and release: a message, as one core would hand anything to another.
                        while line.0.load(Ordering::Acquire) != trip * 2 + side as u64 {
                            spin_loop();
                        }
                        line.0.store(trip * 2 + side as u64 + 1, Ordering::Release);
                    }
                });
                took_ns / (trips * 2) as f64
            });
            // Not the least: a hypervisor may for a moment run two cores as threads of one.
            medians.0.push(pair[0].median());
        }
    }
    if medians.0.is_empty() {
        eprintln!("there is one core only: a transfer is assumed to take {} ns", TRANSFERS_NS[1]);
        medians.0.push(TRANSFERS_NS[1]);
    }
    medians
}

/// What needs the line, where no other core does: what a load and a compare-exchange add to reading the clock.
fn line_alone(rounds: usize, calls: usize) -> f64 {
    let (clock, line) = (Clock::precise(), Alone(AtomicU64::new(0)));
    let results = interleaved(2, rounds, |contender, _| {
        timed(1, |_| {
            for _ in 0..calls {
                let now_ns = black_box(&clock).now_ns();
                if contender == 1 {
                    // Relaxed: only the cost matters.
                    let seen = line.0.load(Ordering::Relaxed);
                    let swapped = line.0.compare_exchange(seen, now_ns, Ordering::Relaxed, Ordering::Relaxed);
                    let _ = black_box(swapped);
                }
            }
        }) / calls as f64
    });
    (results[1].least() - results[0].least()).max(1.0)
}

fn costs_table(costs: &Costs, transfers: &Rounds) -> Table {
    let mut table = Table::new(["cost", "symbol", "here"]);
    let spread =
        format!("{} ({} to {})", time(transfers.median()), time(transfers.least()), time(transfers.most()));
    table.row(["handing a line over, median of all pairs of cores (least to most)", "t", &spread]);
    table.row(["load and compare-exchange on a line of one's own", "s", &time(costs.line_ns)]);
    table.row(["admission, hot key, one thread", "a", &time(costs.admit_ns)]);
    table.row(["refusal, hot key, one thread", "r", &time(costs.refuse_ns)]);
    table.row(["admission, 10 M keys, one thread", "f", &time(costs.far_admit_ns)]);
    table.row(["decision out of a lease in hand", "l", &time(costs.lease_ns)]);
    table
}

fn predictions(works: &[(&str, Work)], costs: &Costs) -> Table {
    let mut table = Table::new(
        std::iter::once("cores")
            .chain(works.iter().map(|(name, _)| *name))
            .chain(["memory that 10 M keys need"]),
    );
    for cores in CORES {
        let throughput = |work| costs.throughput(work, cores);
        let cells = works.iter().map(|(_, work)| format!("{:.1}", throughput(*work)));
        let memory = format!("{:.1} GB/s", throughput(Work::Far) * FAR_BYTES / 1e3);
        table.row(std::iter::once(cores.to_string()).chain(cells).chain([memory]));
    }
    table
}

fn sensitivity(costs: &Costs) -> Table {
    let headings = TRANSFERS_NS.map(|transfer_ns| format!("hot key, t = {transfer_ns} ns"));
    let leases = TRANSFERS_NS.map(|transfer_ns| format!("leases of 64, t = {transfer_ns} ns"));
    let mut table = Table::new(std::iter::once("cores".to_owned()).chain(headings).chain(leases));
    for cores in CORES {
        let cells = [Work::HotAdmit, Work::Lease(BATCH as f64)].into_iter().flat_map(|work| {
            TRANSFERS_NS
                .map(|transfer_ns| format!("{:.1}", Costs { transfer_ns, ..*costs }.throughput(work, cores)))
        });
        table.row(std::iter::once(cores.to_string()).chain(cells));
    }
    table
}
