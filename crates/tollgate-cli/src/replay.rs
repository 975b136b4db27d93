//! Logs through policies: who would have been refused.

use crate::args::{LogArgs, ReplayArgs};
use crate::contender::{Contender, Unseen};
use crate::failure::{self, DONE, FAILED, Failure};
use crate::input::time::NS_PER_S;
use crate::input::{Batch, FieldNames, Format, Keying, Ordered, Place, Reading, Source, Totals};
use crate::key::{self, Keys, Routes};
use crate::memory;
use crate::page_file::PageFile;
use crate::progress::Progress;
use crate::report::table::grouped;
use crate::report::{self, Report, terminal};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tollgate::rules::{RouteRule, RuleSet, RulesError};
use tollgate::{Algorithm, Limiter, Policy};

/// More logs than this are better merged before.
const LOGS_MAX: usize = 256;

pub(crate) fn run(args: &ReplayArgs, out: &mut impl Write) -> Result<u8, Failure> {
    let started = Instant::now();
    let places = places(&args.input)?;
    if args.parse_only {
        return parse_only(args, &places, out);
    }
    let (keying, mut contenders) = contenders(args)?;
    let page = args.output.html.as_deref().map(|path| page_beside(path, &places)).transpose()?;
    let read = feed(&args.input, &places, &keying, &mut |chunk| {
        for contender in &mut contenders {
            contender.take(chunk, &mut Unseen);
        }
    })?;
    let has_keys = |contender: &Contender| contender.unkeyed < contender.requests;
    if !contenders.iter().all(has_keys) {
        return Err(nothing_decided(args, &read));
    }
    let names = places.iter().map(Place::name).collect();
    let report = Report::new(names, read, &contenders, started.elapsed().as_secs_f64());
    show(&report, args.output.json, page, out)?;
    Ok(verdict(&report, args.max_refused))
}

/// The page's file, which must not be one of the logs.
fn page_beside(path: &Path, places: &[Place]) -> Result<PageFile, Failure> {
    let is_log = |place: &Place| match (place, path.canonicalize()) {
        (Place::File(log), Ok(page)) => log.canonicalize().is_ok_and(|log| log == page),
        _ => false,
    };
    if places.iter().any(is_log) {
        return Err(Failure::usage(format!("`--html {}` would overwrite a log", path.display())));
    }
    PageFile::create(path)
}

/// No request has a key, or falls under a rule: that all are admitted would say nothing.
fn nothing_decided(args: &ReplayArgs, read: &Totals) -> Failure {
    let requests = grouped(read.requests);
    Failure::usage(match &args.rules {
        Some(file) => format!("none of {requests} requests falls under a rule of {}", file.display()),
        None => format!(
            "none of {requests} requests has the key `{}`, so nothing would be limited\nread as {}\n\
             Name another with `--key`, or where it is found with `--field ip=NAME`, `--field user=NAME` and so on.",
            args.key,
            report::formats(read).join("\n        ")
        ),
    })
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
    let text = std::fs::read_to_string(file).map_err(|error| Failure::file(file, "read", &error))?;
    let rules: RuleSet = text.parse().map_err(|error: RulesError| {
        let place = error.line().zip(error.column()).map(|(line, column)| format!(":{line}:{column}"));
        let place = place.unwrap_or_default();
        Failure::usage(format!("bad rules: {}{place}: {}", file.display(), error.message()))
    })?;
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
        contender(&policy, text, &args.key, args.input.max_keys)
    });
    let contenders = policies.collect::<Result<_, _>>()?;
    Ok((Arc::new(Keys(vec![key])), contenders))
}

/// A policy's contender, or which of policy and room is to blame.
pub(crate) fn contender(
    policy: &Policy,
    text: &str,
    key: &str,
    max_keys: usize,
) -> Result<Contender, Failure> {
    Contender::of_policy(policy, key, max_keys).map_err(|error| {
        match Limiter::builder().policy(policy.clone()).max_keys(1).build() {
            Ok(_) => Failure::usage(format!("bad --max-keys {max_keys}: {}", error.message())),
            Err(_) => Failure::policy(text, &error),
        }
    })
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
    let reading = reading(args)?;
    let mut ordered = Ordered::open(places, &reading, keying, args.reorder * NS_PER_S)?;
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
    all_found(&reading.fields, &totals)?;
    Ok(totals)
}

/// A field that was named on the command line has to be somewhere.
fn all_found(fields: &FieldNames, totals: &Totals) -> Result<(), Failure> {
    let is_found = |name| totals.formats.iter().any(|seen| seen.fields.contains_key(name));
    let Some(missing) = fields.chosen().iter().find(|field| !is_found(field.name())) else { return Ok(()) };
    if totals.formats.iter().all(|seen| seen.format == Format::Clf) {
        return Err(Failure::usage(
            "`--field` is for JSON and CSV: in the common log format every field has its place",
        ));
    }
    let names: Vec<_> = fields.of(*missing).collect();
    Err(Failure::usage(format!(
        "no line has a field called `{}`, as `--field {}=…` says",
        names.join("` or `"),
        missing.name()
    )))
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

/// Prints the report, then writes the page.
pub(crate) fn show(
    report: &Report,
    as_json: bool,
    page: Option<PageFile>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if as_json {
        serde_json::to_writer_pretty(&mut *out, report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        terminal::write(report, page.as_ref().map(PageFile::path), out)?;
    }
    out.flush()?;
    page.map_or(Ok(()), |page| page.write(&report::page(report)))
}

/// The status to end with; what speaks against it is said.
fn verdict(report: &Report, max_percent: Option<f64>) -> u8 {
    let mut status = DONE;
    if let Some(max_percent) = max_percent {
        for policy in report.policies.iter().filter(|policy| policy.refused_percent > max_percent) {
            status = FAILED;
            eprintln!(
                "tollgate: `{}` refuses {:.2} %, more than {max_percent} %",
                policy.title, policy.refused_percent
            );
        }
    }
    in_order(&report.read).unwrap_or(status)
}

/// Says so if what was read was not in order, and gives the status for that.
pub(crate) fn in_order(read: &Totals) -> Option<u8> {
    read.is_disordered().then(|| {
        eprintln!("tollgate: {}", report::disorder(read));
        failure::INPUT
    })
}

/// What comes before keys, order and engine, by itself.
fn parse_only(args: &ReplayArgs, places: &[Place], out: &mut impl Write) -> Result<u8, Failure> {
    let started = Instant::now();
    let reading = reading(&args.input)?;
    let (mut lines, mut requests, mut bad) = (0, 0, 0);
    for place in places {
        let (place, reading) = (place.clone(), reading.clone());
        let source = Source { place, reading, keying: None, bytes_read: Arc::default() };
        let (parsed, seen) = source.parse_only()?;
        lines += seen.lines;
        requests += parsed;
        bad += seen.bad;
    }
    let seconds = started.elapsed().as_secs_f64();
    let (lines, requests, bad) = (grouped(lines), grouped(requests), grouped(bad));
    writeln!(out, "{lines} lines, {requests} requests, {bad} bad, in {seconds:.3} s")?;
    if let Some(bytes) = memory::peak_bytes() {
        writeln!(out, "peak memory {} MiB", bytes >> 20)?;
    }
    Ok(DONE)
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
