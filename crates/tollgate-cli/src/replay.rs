//! Logs through policies: who would have been refused.

use crate::args::{LogArgs, OutputArgs, ReplayArgs};
use crate::contender::{Contender, Unseen};
use crate::failure::Failure;
use crate::input::time::NS_PER_S;
use crate::input::{Batch, FieldNames, Keying, Ordered, Place, Reading, Totals};
use crate::key::{self, Keys, Routes};
use crate::memory;
use crate::progress::Progress;
use crate::report::table::grouped;
use crate::report::{self, Report, terminal};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tollgate::rules::{RouteRule, RuleSet};
use tollgate::{Algorithm, Policy};

/// More logs than this are better merged before.
const LOGS_MAX: usize = 256;

pub(crate) fn run(args: &ReplayArgs, out: &mut impl Write) -> Result<bool, Failure> {
    let started = Instant::now();
    let places = places(&args.input)?;
    if args.parse_only {
        return parse_only(args, &places, out);
    }
    let (keying, mut contenders) = contenders(args)?;
    let read = feed(&args.input, &places, &keying, &mut |chunk| {
        for contender in &mut contenders {
            contender.take(chunk, &mut Unseen);
        }
    })?;
    let names = places.iter().map(Place::name).collect();
    let report = Report::new(names, read, &contenders, started.elapsed().as_secs_f64());
    let html = args.output.html.as_deref();
    show(&report, &args.output, html, out)?;
    stays_below(&report, args.max_refused, out)
}

/// The logs that are named, looked at before anything is read.
pub(crate) fn places(args: &LogArgs) -> Result<Vec<Place>, Failure> {
    let places: Vec<_> = args.logs.iter().map(|log| Place::new(log)).collect();
    if places.iter().filter(|place| **place == Place::Stdin).count() > 1 {
        return Err(Failure::usage("the standard input `-` can be read only once"));
    }
    if places.len() > LOGS_MAX {
        return Err(Failure::usage(format!(
            "{} logs at once are too many: at most {LOGS_MAX}",
            places.len()
        )));
    }
    for place in &places {
        if let Place::File(path) = place {
            path.metadata().map_err(|error| Failure::file(path, "open", &error))?;
        }
    }
    Ok(places)
}

pub(crate) fn reading(args: &LogArgs) -> Result<Reading, Failure> {
    Ok(Reading { format: args.format, fields: FieldNames::new(&args.fields)? })
}

pub(crate) fn policy(text: &str) -> Result<Policy, Failure> {
    let policy: Policy = text.parse().map_err(|error| Failure::policy(text, &error))?;
    if is_at_once(&policy) {
        return Err(Failure::usage(format!(
            "bad policy: a log does not say when a request ended, so `at once` cannot be replayed\n  {text}"
        )));
    }
    Ok(policy)
}

fn is_at_once(policy: &Policy) -> bool {
    policy.rules().iter().any(|rule| rule.algorithm() == Algorithm::InFlight)
}

fn rules(file: &Path) -> Result<RuleSet, Failure> {
    let rules = RuleSet::from_path(file).map_err(|error| Failure::usage(format!("bad rules: {error}")))?;
    let has_at_once = |rule: &RouteRule| {
        rule.limit().into_iter().chain(rule.tiers().map(|(_, policy)| policy)).any(is_at_once)
    };
    match rules.rules().iter().find(|&rule| has_at_once(rule)) {
        None => Ok(rules),
        Some(rule) => Err(Failure::usage(format!(
            "bad rules: {}: rule `{}`: a log does not say when a request ended, so `at once` cannot be replayed",
            file.display(),
            rule.name()
        ))),
    }
}

fn contenders(args: &ReplayArgs) -> Result<(Arc<dyn Keying>, Vec<Contender>), Failure> {
    if let Some(file) = &args.rules {
        let rules = rules(file)?;
        let contender = Contender::of_rules(file.display().to_string(), &rules)
            .map_err(|error| Failure::usage(format!("bad rules: {}: {error}", file.display())))?;
        return Ok((Arc::new(Routes(rules)), vec![contender]));
    }
    let key = key::parse(&args.key)?;
    let policies = args.policies.iter().map(|text| {
        let policy = policy(text)?;
        Contender::of_policy(&policy, &args.key, args.input.max_keys)
            .map_err(|error| Failure::policy(text, &error))
    });
    let contenders = policies.collect::<Result<_, _>>()?;
    Ok((Arc::new(Keys(vec![key])), contenders))
}

/// Reads logs to their end and gives every chunk of requests, in order of time, to `take`.
pub(crate) fn feed(
    args: &LogArgs,
    places: &[Place],
    keying: &Arc<dyn Keying>,
    take: &mut dyn FnMut(&Batch),
) -> Result<Totals, Failure> {
    let bytes = places.iter().map(Place::bytes).sum();
    let mut progress = Progress::new("reading", bytes);
    let mut ordered = Ordered::open(places, &reading(args)?, keying, args.reorder * NS_PER_S)?;
    let mut chunk = Batch::default();
    while ordered.next(&mut chunk)? {
        take(&chunk);
        let requests = ordered.totals.requests;
        progress.at(ordered.bytes_read(), || format!("{} requests", grouped(requests)));
    }
    progress.end();
    let totals = ordered.totals;
    if totals.requests == 0 {
        return Err(nothing_read(places, &totals));
    }
    Ok(totals)
}

fn nothing_read(places: &[Place], totals: &Totals) -> Failure {
    let names: Vec<_> = places.iter().map(Place::name).collect();
    let names = names.join(", ");
    match totals.bad_examples.first() {
        None => Failure::input(format!("there is no line in {names}: nothing to replay")),
        Some(bad) => Failure::input(format!(
            "no line of {names} could be read ({} bad). Line {}: {}\n  {}\n\
             If that is another format, name it with `--format clf|json|csv`.",
            totals.bad, bad.line, bad.cause, bad.text
        )),
    }
}

/// Prints the report and writes the page.
pub(crate) fn show(
    report: &Report,
    args: &OutputArgs,
    html: Option<&Path>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if let Some(path) = html {
        std::fs::write(path, report::page(report)).map_err(|error| Failure::file(path, "write", &error))?;
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *out, report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        terminal::write(report, html, out)?;
    }
    Ok(())
}

fn stays_below(report: &Report, max_percent: Option<f64>, out: &mut impl Write) -> Result<bool, Failure> {
    let Some(max_percent) = max_percent else { return Ok(true) };
    let over = report.policies.iter().filter(|policy| policy.refused_percent > max_percent);
    let over: Vec<_> = over.collect();
    out.flush()?;
    for policy in &over {
        eprintln!(
            "tollgate: `{}` refuses {:.2} %, more than {max_percent} %",
            policy.title, policy.refused_percent
        );
    }
    Ok(over.is_empty())
}

/// Everything that comes before the engine, by itself.
fn parse_only(args: &ReplayArgs, places: &[Place], out: &mut impl Write) -> Result<bool, Failure> {
    let started = Instant::now();
    let keying: Arc<dyn Keying> = Arc::new(Keys(vec![key::parse(&args.key)?]));
    let read = feed(&args.input, places, &keying, &mut |_| {})?;
    let seconds = started.elapsed().as_secs_f64();
    let lines = grouped(read.lines);
    writeln!(
        out,
        "{lines} lines, {} requests, {} bad, in {seconds:.3} s",
        grouped(read.requests),
        grouped(read.bad)
    )?;
    if let Some(bytes) = memory::peak_bytes() {
        writeln!(out, "peak memory {} MiB", bytes >> 20)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_with_at_once_are_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for (limits, is_wrong) in [
            ("limit = '5/s'", false),
            ("limit = '5 at once'", true),
            ("limit = '5/s'\ntiers = { pro = '5/s; 9 at once' }", true),
        ] {
            std::fs::write(file.path(), format!("[[rule]]\nname = 'api'\n{limits}\n")).expect("written");
            match rules(file.path()) {
                Ok(_) => assert!(!is_wrong, "{limits}"),
                Err(error) => {
                    assert!(is_wrong, "{limits}: {error}");
                    assert!(error.to_string().contains("rule `api`: a log does not say when"), "{error}");
                }
            }
        }
    }
}
