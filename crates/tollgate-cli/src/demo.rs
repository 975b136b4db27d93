//! The demonstration: seeded traffic through the engine, every decision checked, and what one costs.

use crate::check::{Answer, Findings, Verdict};
use crate::measure::{self, CALLS, ROUNDS};
use crate::table::{Table, grouped};
use crate::traffic::{self, Actor, CLIENTS, Request, SPAN};
use std::io::{self, Write};
use std::time::Duration;
use tollgate::{Clock, Error, Limiter, Policy, Rule};

const POLICY: &str = "20/s burst 40 named second; sliding 600/min named minute";

/// Runs it all and writes the account; false if a check does not hold.
pub(crate) fn run(seed: u64, out: &mut impl Write) -> io::Result<bool> {
    let policy: Policy = POLICY.parse().map_err(io::Error::other)?;
    let requests = traffic::generate(seed);
    let answers = simulate(&policy, &requests).map_err(io::Error::other)?;

    writeln!(out, "tollgate {}, seed={seed}\n", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "{} requests in {} simulated seconds;", grouped(requests.len() as u64), SPAN.as_secs())?;
    writeln!(out, "each of {} clients may make {policy}\n", grouped(CLIENTS as u64))?;
    writeln!(out, "{}", summary(&policy, &requests, &answers))?;

    let findings = judge(&policy, &requests, &answers);
    write_findings(out, &findings)?;
    if !findings.all_well() {
        writeln!(out, "\nA check failed. Run it again with --seed {seed}.")?;
    }
    out.flush()?;

    let costs = measure::costs().map_err(io::Error::other)?;
    writeln!(
        out,
        "\nns a call, precise clock, one thread (median of {ROUNDS} rounds of {})",
        grouped(u64::from(CALLS))
    )?;
    writeln!(out, "  reading the clock alone  {:6.1}", costs.clock_ns)?;
    writeln!(out, "  gate, admitted           {:6.1}", costs.gate_admit_ns)?;
    writeln!(out, "  gate, refused            {:6.1}", costs.gate_refuse_ns)?;
    writeln!(out, "  one of 1000 keys admitted{:6.1}", costs.key_admit_ns)?;
    writeln!(out, "  one of 1000 keys refused {:6.1}", costs.key_refuse_ns)?;
    Ok(findings.all_well())
}

/// Sends the requests through the engine on a clock moved by hand. One answer a request.
fn simulate(policy: &Policy, requests: &[Request]) -> Result<Vec<Answer>, Error> {
    let (clock, hand) = Clock::manual();
    let limiter = Limiter::builder().policy(policy.clone()).max_keys(CLIENTS).clock(clock).build()?;
    let answer = |request: &Request| {
        hand.set(Duration::from_nanos(request.at_ns));
        let decision = limiter.try_acquire_n(&request.client, request.cost);
        let verdict = match decision.is_allowed() {
            true => Verdict::Admitted,
            false => Verdict::Refused { rule: decision.rule(), retry_after: decision.retry_after() },
        };
        Answer { at_ns: request.at_ns, cost: request.cost, verdict }
    };
    Ok(requests.iter().map(answer).collect())
}

/// Judges every client's answers by brute force.
fn judge(policy: &Policy, requests: &[Request], answers: &[Answer]) -> Findings {
    let mut of_client = vec![Vec::new(); CLIENTS];
    for (request, answer) in requests.iter().zip(answers) {
        of_client[request.client].push(*answer);
    }
    let mut findings = Findings::default();
    for answers in &of_client {
        findings.judge(policy, answers);
    }
    findings
}

/// Requests admitted and refused, for each kind of actor, and which rule refused them.
fn summary(policy: &Policy, requests: &[Request], answers: &[Answer]) -> Table {
    let by_rule = policy.rules().iter().map(|rule| format!("by `{}`", rule_name(rule)));
    let headings = ["actor", "clients", "requests", "admitted", "refused"].map(str::to_owned);
    let mut table = Table::new(headings.into_iter().chain(by_rule));
    let mut totals = vec![0; 4 + policy.rules().len()];
    for actor in Actor::ALL {
        let mut row = vec![0; totals.len()];
        row[0] = actor.clients() as u64;
        for (_, answer) in requests.iter().zip(answers).filter(|(request, _)| request.actor == actor) {
            row[1] += 1;
            match answer.verdict {
                Verdict::Admitted => row[2] += 1,
                Verdict::Refused { rule, .. } => {
                    row[3] += 1;
                    row[4 + rule] += 1;
                }
            }
        }
        for (total, number) in totals.iter_mut().zip(&row) {
            *total += number;
        }
        table.row(actor.name(), row);
    }
    table.row("all", totals);
    table
}

fn rule_name(rule: &Rule) -> String {
    rule.name().map_or_else(|| rule.to_string(), str::to_owned)
}

fn write_findings(out: &mut impl Write, findings: &Findings) -> io::Result<()> {
    let (admissions, refusals) = (grouped(findings.admissions), grouped(findings.refusals));
    writeln!(out, "Checked by brute force, from the list of admissions alone:")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Long enough for every actor to be refused by both rules' kinds, short enough for a debug build.
    const PREFIX_NS: u64 = 40_000_000_000;

    fn answered() -> (Policy, Vec<Request>, Vec<Answer>) {
        let policy: Policy = POLICY.parse().expect(POLICY);
        let mut requests = traffic::generate(5);
        requests.retain(|request| request.at_ns < PREFIX_NS);
        let answers = simulate(&policy, &requests).expect(POLICY);
        (policy, requests, answers)
    }

    #[test]
    fn the_engine_stands_up_to_the_check() {
        let (policy, requests, answers) = answered();
        let findings = judge(&policy, &requests, &answers);
        assert!(findings.all_well(), "{findings:?}");
        assert_eq!(findings.admissions + findings.refusals, requests.len() as u64);
        assert!(findings.refusals > 1_000);
    }

    #[test]
    fn one_admission_too_many_is_noticed() {
        let (policy, requests, mut answers) = answered();
        let refused = answers.iter_mut().find(|answer| matches!(answer.verdict, Verdict::Refused { .. }));
        refused.expect("a refusal").verdict = Verdict::Admitted;
        assert!(judge(&policy, &requests, &answers).over_bound > 0);
    }
}
