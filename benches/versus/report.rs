//! What was measured, as tables and charts, beside the aims.

use crate::cases::{BYTES_A_KEY, COARSE_GATE_NS, GATE_RATIO, Keys, OVER_AHASH, STALL_NS, TWO_OVER_ONE};
use crate::memory::Memory;
use crate::peers::{self, Peer, Traffic};
use crate::speed::Measured;
use crate::stalls::Stalls;
use tollgate_bench::chart::{self, Bar};
use tollgate_bench::page::{self, Table, time};
use tollgate_bench::{Rounds, Scale};

const OURS: &str = "tollgate";
const COARSE: &str = "tollgate, coarse clock";
const BATCH: &str = "tollgate, batch of 16";
const AHASH: &str = "governor + ahash";

pub struct Report {
    pub scale: Scale,
    pub speed: Vec<Measured>,
    pub memory: Vec<Memory>,
    pub growing: Vec<Stalls>,
    pub cleaning: Vec<Stalls>,
}

/// An aim: what, how much, how much it was, whether that will do.
struct Verdict(String, String, String, bool);

impl Report {
    /// What a terminal shows: the ratios, the rest, and what was reached.
    pub fn summary(&self) -> String {
        let sections = [self.speed_tables(true), self.other_tables(), self.verdicts()];
        sections.into_iter().filter(|section| !section.is_empty()).collect::<Vec<_>>().join("\n")
    }

    /// All of it, with machine, date, versions and command.
    pub fn page(&self, name: &str) -> String {
        let command =
            self.scale.pick("", "cargo bench --bench versus -- --quick", "cargo bench --bench versus");
        let charts: String =
            self.charts().iter().map(|(chart, _)| format!("![{chart}]({name}-{chart}.svg)\n\n")).collect();
        format!(
            "# tollgate beside other limiters\n\nMade by `{command}`; do not edit. {}\n\
             Least of interleaved rounds, threads pinned. Only ratios taken in the same run mean anything, and they \
             move from machine to machine. A dash: not measured, or nothing there to measure. With 10 M keys only those \
             take part whose memory is modest.\n\n{}\n{}\n{}\n{}\n{charts}## Who takes part\n\n{}",
            page::provenance(),
            self.verdicts(),
            self.speed_tables(true),
            self.speed_tables(false),
            self.other_tables(),
            contenders(),
        )
    }

    fn speed_tables(&self, as_ratios: bool) -> String {
        let (unkeyed, keyed): (Vec<_>, Vec<_>) =
            self.speed.iter().partition(|measured| measured.case.keys == Keys::None);
        let what = if as_ratios { "Times as fast as governor's default" } else { "Nanoseconds a call" };
        let mut text = String::new();
        for (cases, which) in [(keyed, "with keys"), (unkeyed, "without keys")] {
            // Those of the first case are those of all, but for the largest.
            let Some(first) = cases.first() else { continue };
            let names: Vec<_> = first.results.iter().map(|result| result.0).collect();
            let mut table = Table::new(std::iter::once("case").chain(names.iter().copied()));
            for measured in cases {
                let cell = |name: &&str| match (measured.ns(name), measured.ratio(name)) {
                    (Some(_), Some(ratio)) if as_ratios => format!("{ratio:.2}×"),
                    (Some(ns), _) => format!("{ns:.1}"),
                    _ => "–".to_owned(),
                };
                table.row(std::iter::once(measured.case.title()).chain(names.iter().map(cell)));
            }
            text += &format!("## {what}, {which}\n\n{table}\n");
        }
        text
    }

    fn other_tables(&self) -> String {
        let mut text = String::new();
        if !self.memory.is_empty() {
            let mut table = Table::new(["limiter", "u64 keys", "20-byte string keys"]);
            let bytes = |bytes: Option<f64>| bytes.map_or("–".to_owned(), |bytes| format!("{bytes:.1}"));
            for memory in &self.memory {
                table.row([memory.name, &bytes(memory.numbers), &bytes(memory.texts)]);
            }
            text += &format!("## Bytes of resident memory a key, each in a process of its own\n\n{table}\n");
        }
        let sections = [
            ("Longest call while filling to a million keys", &self.growing),
            ("Longest call while another thread cleans up", &self.cleaning),
        ];
        for (title, stalls) in sections.into_iter().filter(|(_, stalls)| !stalls.is_empty()) {
            let mut table =
                Table::new(["limiter", "longest call, median of rounds", "worst", "clean-up takes"]);
            for stall in stalls {
                let cleaning =
                    stall.cleaning.as_ref().map_or("–".to_owned(), |rounds| time(rounds.median()));
                table.row([
                    &stall.name,
                    &time(stall.longest.median()),
                    &time(stall.longest.most()),
                    &cleaning,
                ]);
            }
            text += &format!("## {title}\n\n{table}\n");
        }
        text
    }

    fn verdicts(&self) -> String {
        let verdicts = [self.speed_verdicts(), self.gate_verdicts(), self.room_verdicts()];
        let verdicts: Vec<_> = verdicts.into_iter().flatten().collect();
        if verdicts.is_empty() {
            return String::new();
        }
        let mut table = Table::new(["what", "aim", "measured", ""]);
        for Verdict(what, target, reached, holds) in &verdicts {
            table.row([what.as_str(), target, reached, if *holds { "yes" } else { "**no**" }]);
        }
        let held = verdicts.iter().filter(|verdict| verdict.3).count();
        format!("## Aims: {held} of {} were met\n\n{table}\n", verdicts.len())
    }

    fn speed_verdicts(&self) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for measured in &self.speed {
            let targets = measured.case.targets;
            for (name, target) in [(OURS, targets.precise), (COARSE, targets.coarse), (BATCH, targets.batch)]
            {
                if let (true, Some(ratio)) = (target > 0.0, measured.ratio(name)) {
                    let what = format!("{}: {name}", measured.case.title());
                    verdicts.push(at_least(what, target, ratio));
                }
            }
        }
        verdicts.extend(self.writeless_verdicts());
        let over = self.speed.iter().filter_map(|measured| {
            let ratio = measured.ns(AHASH)? / measured.ns(OURS)?;
            Some((ratio, measured.case.title()))
        });
        if let Some((ratio, title)) = over.min_by(|a, b| a.0.total_cmp(&b.0)) {
            verdicts.push(at_least(format!("over {AHASH}, where it is least ({title})"), OVER_AHASH, ratio));
        }
        verdicts
    }

    /// A refusal writes nothing: two threads that are refused on one key together do nearly twice as much as one.
    fn writeless_verdicts(&self) -> Vec<Verdict> {
        let of = |threads| {
            self.speed.iter().find(|measured| {
                let case = measured.case;
                case.keys == Keys::Hot && case.traffic == Traffic::Refuse && case.threads == threads
            })
        };
        let Some((one, two)) = of(1).zip(of(2)) else { return Vec::new() };
        let verdict = |name| {
            let times = 2.0 * one.ns(name)? / two.ns(name)?;
            Some(at_least(
                format!("refusals of two threads on one key, over one's: {name}"),
                TWO_OVER_ONE,
                times,
            ))
        };
        [OURS, COARSE].into_iter().filter_map(verdict).collect()
    }

    fn gate_verdicts(&self) -> Vec<Verdict> {
        let gate = self.speed.iter().find(|measured| measured.ns("the clock alone").is_some());
        let verdict = gate.and_then(|gate| {
            let (clock_ns, ns, coarse_ns) = (gate.ns("the clock alone")?, gate.ns(OURS)?, gate.ns(COARSE)?);
            let ratio = ns / clock_ns;
            Some(vec![
                Verdict(
                    "gate, in units of reading its clock".to_owned(),
                    format!("at most {GATE_RATIO}"),
                    format!("{ratio:.2}"),
                    ratio <= GATE_RATIO,
                ),
                at_most_ns("gate, coarse clock".to_owned(), COARSE_GATE_NS, coarse_ns),
            ])
        });
        verdict.unwrap_or_default()
    }

    fn room_verdicts(&self) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for memory in self.memory.iter().filter(|memory| memory.is_ours) {
            for (kind, bytes) in [("u64", memory.numbers), ("string", memory.texts)] {
                verdicts.extend(bytes.map(|bytes| {
                    let (target, reached) = (format!("at most {BYTES_A_KEY}"), format!("{bytes:.1}"));
                    // A process has some pages of its own.
                    Verdict(format!("bytes a live {kind} key"), target, reached, bytes < BYTES_A_KEY + 0.5)
                }));
            }
        }
        let stalls = self.growing.iter().map(|stall| ("filling", stall));
        for (when, stall) in stalls.chain(self.cleaning.iter().map(|stall| ("others cleaning", stall))) {
            if stall.is_ours {
                let what = format!("longest call, {when}: {}", stall.name);
                verdicts.push(at_most_ns(what, STALL_NS, stall.longest.median()));
            }
        }
        verdicts
    }

    /// Charts by name.
    pub fn charts(&self) -> Vec<(&'static str, String)> {
        let panels = |keyed: bool| -> Vec<(String, Vec<Bar>)> {
            let charted = |measured: &&Measured| {
                measured.case.is_charted && keyed == (measured.case.keys != Keys::None)
            };
            let bar = |(name, is_ours, rounds): &(&'static str, bool, Rounds)| {
                ((*name).to_owned(), rounds.least(), *is_ours)
            };
            let panel =
                |measured: &Measured| (measured.case.title(), measured.results.iter().map(bar).collect());
            self.speed.iter().filter(charted).map(panel).collect()
        };
        let memory = |title: &str, bytes: fn(&Memory) -> Option<f64>| {
            let bar = |memory: &Memory| Some((memory.name.to_owned(), bytes(memory)?, memory.is_ours));
            (title.to_owned(), self.memory.iter().filter_map(bar).collect::<Vec<_>>())
        };
        let stalls = |title: &str, stalls: &[Stalls]| {
            let bar = |stall: &Stalls| (stall.name.clone(), stall.longest.median(), stall.is_ours);
            (title.to_owned(), stalls.iter().map(bar).collect::<Vec<_>>())
        };
        let memory = [
            memory("u64 keys", |memory| memory.numbers),
            memory("20-byte string keys", |memory| memory.texts),
        ];
        let stalls = [
            stalls("filling to a million keys", &self.growing),
            stalls("while another thread cleans up", &self.cleaning),
        ];
        vec![
            ("keyed", chart::bars("Time of a call, with keys", time, &panels(true))),
            ("unkeyed", chart::bars("Time of a call, without keys", time, &panels(false))),
            ("memory", chart::bars("Bytes a key", |bytes| format!("{bytes:.1}"), &memory)),
            ("stalls", chart::bars("Longest call, median of rounds", time, &stalls)),
        ]
    }
}

fn at_least(what: String, target: f64, ratio: f64) -> Verdict {
    Verdict(what, format!("{target}×"), format!("{ratio:.2}×"), ratio >= target)
}

fn at_most_ns(what: String, target_ns: f64, ns: f64) -> Verdict {
    Verdict(what, format!("at most {}", time(target_ns)), time(ns), ns <= target_ns)
}

/// Everybody who takes part, with version and what has to be known.
fn contenders() -> Table {
    fn rows<K>(table: &mut Table, peers: &[Peer<K>], keys: &str) {
        for peer in peers {
            let version =
                if peer.package.is_empty() { "–".to_owned() } else { page::version(peer.package) };
            table.row([peer.name, keys, &version, peer.note]);
        }
    }
    let mut table = Table::new(["limiter", "keys", "version", "notes"]);
    rows(&mut table, &peers::keyed::<u64>(), "yes");
    rows(&mut table, &peers::unkeyed(), "no");
    table
}
