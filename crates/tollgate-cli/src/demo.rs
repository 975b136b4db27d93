//! The demonstration: traffic from a seed through the engine, every decision checked, and what one costs.

use crate::args::DemoArgs;
use crate::check::{Check, Findings};
use crate::contender::Contender;
use crate::failure::{DONE, FAILED, Failure};
use crate::input::time::NS_PER_S;
use crate::input::{Batch, Record, Totals};
use crate::key::Routes;
use crate::measure::{self, CALLS, ROUNDS};
use crate::page_file::PageFile;
use crate::progress::Progress;
use crate::replay;
use crate::report::table::{Table, grouped};
use crate::report::{ActorOutcome, Demonstration, Report, percent};
use crate::traffic::{Actor, Details, Plan, Traffic};
use std::collections::HashSet;
use std::io::{self, Write};
use std::time::Instant;
use tollgate::rules::RuleSet;

const RULES: &str = include_str!("demo.toml");
const READERS: u32 = 30_000;
const SPAN_S: u64 = 3_600;
const CHUNK: usize = 1_024;

/// Runs it all and writes the account.
pub(crate) fn run(args: &DemoArgs, out: &mut impl Write) -> Result<u8, Failure> {
    let started = Instant::now();
    let page = args.output.html.as_deref().map_or_else(PageFile::somewhere, PageFile::create)?;
    let rules: RuleSet =
        RULES.parse().map_err(|error| Failure::usage(format!("the demonstration's rules: {error}")))?;
    let plan =
        Plan { seed: args.seed, requests: args.requests, readers: READERS, span_ns: SPAN_S * NS_PER_S };
    let simulation = Simulation::run(plan, rules)?;

    let read = Totals { requests: simulation.contender.requests, ..Totals::default() };
    let inputs = vec![format!("generated traffic, seed={}", args.seed)];
    let demonstration = Demonstration {
        check: simulation.check.findings,
        actors: simulation.actors.outcomes(),
        readers_touched: simulation.actors.readers_touched.len() as u64,
    };
    let is_well = demonstration.check.all_well();
    let report = Report {
        demonstration: Some(demonstration),
        ..Report::new(inputs, read, &[simulation.contender], started.elapsed().as_secs_f64())
    };
    replay::show(&report, args.output.json, Some(page), out)?;
    if let (false, Some(demonstration)) = (args.output.json, &report.demonstration) {
        write_actors(out, demonstration)?;
        write_findings(out, &demonstration.check)?;
        if !is_well {
            writeln!(out, "\nA check failed. Run it again with --seed {}.", args.seed)?;
        }
        out.flush()?;
        write_costs(out)?;
    }
    Ok(if is_well { DONE } else { FAILED })
}

struct Simulation {
    contender: Contender,
    check: Check,
    actors: Actors,
}

impl Simulation {
    /// Sends the traffic through the engine on a clock that is moved by hand, and checks every decision.
    fn run(plan: Plan, rules: RuleSet) -> Result<Self, Failure> {
        let policies = rules.rules().iter().filter_map(|rule| rule.limit().ok().cloned()).collect();
        let mut contender = Contender::of_rules("the demonstration's rules".to_owned(), &rules)
            .map_err(|error| Failure::usage(error.to_string()))?;
        let mut check = Check::new(policies);
        let mut actors = Actors::default();
        let keying = Routes(rules);
        let mut progress = Progress::new("deciding", Some(plan.requests));
        let (mut chunk, mut senders, mut details) = (Batch::default(), Vec::new(), Details::default());
        let mut traffic = Traffic::new(plan);
        loop {
            chunk.clear();
            senders.clear();
            for event in traffic.by_ref().take(CHUNK) {
                details.tell(&event);
                let Details { ip, user, path, method, .. } = &details;
                let record =
                    Record { at_ns: event.at_ns, ip, user, method: method.as_bytes(), path, key: b"" };
                chunk.push(&record, &keying);
                senders.push((event.actor, event.client));
            }
            if senders.is_empty() {
                break;
            }
            contender.take(&chunk, &mut check);
            for (&(actor, client), &is_admitted) in senders.iter().zip(contender.verdicts()) {
                actors.count(actor, client, is_admitted);
            }
            let requests = contender.requests;
            progress.at(requests, || format!("{} requests", grouped(requests)));
        }
        progress.end();
        Ok(Self { contender, check, actors })
    }
}

/// What became of whom: only a generated log says who is who.
#[derive(Debug, Default)]
struct Actors {
    /// Admitted and refused, for each of [`Actor::ALL`].
    counts: [[u64; 2]; Actor::ALL.len()],
    clients: [HashSet<u32>; Actor::ALL.len()],
    readers_touched: HashSet<u32>,
}

impl Actors {
    fn count(&mut self, actor: Actor, client: u32, is_admitted: bool) {
        self.counts[actor as usize][usize::from(!is_admitted)] += 1;
        self.clients[actor as usize].insert(client);
        if !is_admitted && actor == Actor::Reader {
            self.readers_touched.insert(client);
        }
    }

    fn outcomes(&self) -> Vec<ActorOutcome> {
        let outcome = |actor: Actor| {
            let [admitted, refused] = self.counts[actor as usize];
            let clients = self.clients[actor as usize].len() as u64;
            ActorOutcome { name: actor.name(), clients, requests: admitted + refused, admitted, refused }
        };
        Actor::ALL.map(outcome).into()
    }
}

fn write_actors(out: &mut impl Write, demonstration: &Demonstration) -> io::Result<()> {
    let mut table = Table::new(["who", "clients", "requests", "admitted", "refused"]);
    for actor in &demonstration.actors {
        table.row(actor.name, [actor.clients, actor.requests, actor.admitted, actor.refused]);
    }
    writeln!(out, "\n{table}")?;
    let Some(readers) = demonstration.actors.first() else { return Ok(()) };
    let touched = demonstration.readers_touched;
    writeln!(
        out,
        "ordinary clients (readers): {} of {} were refused at least once ({:.2} %), {} of their {} requests\n",
        grouped(touched),
        grouped(readers.clients),
        percent(touched, readers.clients),
        grouped(readers.refused),
        grouped(readers.requests)
    )
}

fn write_findings(out: &mut impl Write, findings: &Findings) -> io::Result<()> {
    let (admissions, refusals) = (grouped(findings.admissions), grouped(findings.refusals));
    writeln!(out, "Every decision of either rule, checked against an independent count:")?;
    for (wrong, held, failed) in [
        (
            findings.over_bound,
            format!("no bound was exceeded in {admissions} admissions"),
            "admissions exceeded a bound",
        ),
        (
            findings.undue,
            format!("each of {refusals} refusals was due to the rule it names"),
            "refusals named a rule that had room",
        ),
        (
            findings.not_tight,
            format!("each of {refusals} retry_after was exact to the nanosecond"),
            "retry_after were too short or too long",
        ),
    ] {
        match wrong {
            0 => writeln!(out, "  ✓ {held}")?,
            _ => writeln!(out, "  ✗ {} {failed}", grouped(wrong))?,
        }
    }
    Ok(())
}

fn write_costs(out: &mut impl Write) -> Result<(), Failure> {
    let costs = measure::costs().map_err(|error| Failure::usage(error.to_string()))?;
    writeln!(
        out,
        "\nns a call, precise clock, one thread (median of {ROUNDS} rounds of {})",
        grouped(u64::from(CALLS))
    )?;
    for (what, ns) in [
        ("reading the clock alone", costs.clock_ns),
        ("gate, admitted", costs.gate_admit_ns),
        ("gate, refused", costs.gate_refuse_ns),
        ("one of 1000 keys, admitted", costs.key_admit_ns),
        ("one of 1000 keys, refused", costs.key_refuse_ns),
    ] {
        writeln!(out, "  {what:<27} {ns:6.1}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simulated(seed: u64) -> Simulation {
        let plan = Plan { seed, requests: 60_000, readers: 500, span_ns: 120 * NS_PER_S };
        Simulation::run(plan, RULES.parse().expect("rules")).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn the_engine_stands_up_to_the_check() {
        let Simulation { contender, check, actors } = simulated(5);
        assert!(check.findings.all_well(), "{:?}", check.findings);
        assert_eq!(contender.admitted + contender.refused(), 60_000);
        assert_eq!(actors.counts.iter().flatten().sum::<u64>(), 60_000);
        assert!(contender.refused_by.iter().all(|&refused| refused > 100), "{:?}", contender.refused_by);
        assert_eq!(actors.counts.iter().map(|counts| counts[1]).sum::<u64>(), contender.refused());
    }

    #[test]
    fn a_looser_engine_is_noticed() {
        let plan = Plan { seed: 5, requests: 60_000, readers: 500, span_ns: 120 * NS_PER_S };
        let loose = RULES.replace("10/s burst 40", "10/s burst 41");
        let simulation =
            Simulation::run(plan, loose.parse().expect("rules")).unwrap_or_else(|error| panic!("{error}"));
        let honest: RuleSet = RULES.parse().expect("rules");
        // The same answers, judged by the rules that should have held.
        let mut check =
            Check::new(honest.rules().iter().filter_map(|rule| rule.limit().ok().cloned()).collect());
        let mut contender =
            Contender::of_rules(String::new(), &loose.parse().expect("rules")).expect("rules");
        let (keying, mut details) = (Routes(honest), Details::default());
        let mut chunk = Batch::default();
        for event in Traffic::new(plan) {
            details.tell(&event);
            let Details { ip, user, path, method, .. } = &details;
            chunk.push(
                &Record { at_ns: event.at_ns, ip, user, method: method.as_bytes(), path, key: b"" },
                &keying,
            );
        }
        contender.take(&chunk, &mut check);
        assert!(simulation.check.findings.all_well());
        assert!(check.findings.over_bound > 0, "{:?}", check.findings);
    }
}
