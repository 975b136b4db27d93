//! Limits that would have left ordinary clients alone.
//!
//! First the log is measured: for each client and each of a few rates, the burst it would have taken never to be
//! refused at that rate. Then, for each share of the clients, the tightest pair of rate and burst is chosen. Last,
//! every suggestion is replayed, and the engine says whom it would have refused.

use crate::args::SuggestArgs;
use crate::contender::{Contender, Unseen};
use crate::failure::{DONE, Failure};
use crate::input::{Keying, Place, Totals};
use crate::key::{self, Keys};
use crate::need::{Needs, RATES, rate_text};
use crate::replay;
use crate::report::table::{Table, grouped};
use crate::report::terminal::{paint, printable};
use crate::report::{Outcome, disorder, evictions, formats, percent};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;
use tempfile::NamedTempFile;
use tollgate::Policy;

/// How many are named of those who would have been refused.
const NAMED: usize = 3;

#[derive(Debug, Serialize)]
struct Suggestions {
    version: &'static str,
    inputs: Vec<String>,
    read: Totals,
    horizon_s: u64,
    /// What makes the numbers doubtful.
    warnings: Vec<String>,
    keys: Vec<OfKey>,
}

/// What is suggested for one kind of key.
#[derive(Debug, Serialize)]
struct OfKey {
    key: String,
    /// Requests that have such a key, and clients that it tells apart.
    requests: u64,
    clients: u64,
    /// One in so many clients was measured.
    measured_one_in: u64,
    suggestions: Vec<Suggestion>,
    /// For each rate, the burst that each share needs.
    curve: Vec<Point>,
}

#[derive(Debug, Serialize)]
struct Suggestion {
    share_percent: f64,
    policy: String,
    admits_in_horizon: u64,
    refused: u64,
    refused_percent: f64,
    clients_touched: u64,
    clients_touched_percent: f64,
    most_refused: Vec<Refused>,
}

#[derive(Debug, Serialize)]
struct Refused {
    key: String,
    requests: u64,
    refused: u64,
}

#[derive(Debug, Serialize)]
struct Point {
    rate: String,
    bursts: Vec<u64>,
}

pub(crate) fn run(args: &SuggestArgs, out: &mut impl Write) -> Result<u8, Failure> {
    for share in &args.shares {
        if !(*share > 0.0 && *share <= 100.0) {
            return Err(Failure::usage(format!(
                "a share of {share} per cent: it is above 0 and at most 100"
            )));
        }
    }
    let named: Vec<_> = replay::places(&args.input)?;
    let inputs = named.iter().map(Place::name).collect();
    let mut kept = Vec::new();
    let places = named.into_iter().map(|place| twice(place, &mut kept)).collect::<Result<Vec<_>, _>>()?;

    let specs = args.keys.iter().map(|key| key::parse(key)).collect::<Result<Vec<_>, _>>()?;
    let keying: Arc<dyn Keying> = Arc::new(Keys(specs.clone()));
    let mut needs: Vec<_> = specs.iter().map(|_| Needs::new()).collect();
    let read = replay::feed(&args.input, &places, &keying, &mut |chunk| {
        for entry in &chunk.entries {
            for touch in chunk.touches(entry) {
                needs[usize::from(touch.scope)].add(touch.hash, entry.at_ns);
            }
        }
    })?;

    if needs.iter().all(|needs| needs.requests() == 0) {
        return Err(Failure::usage(format!(
            "no request has any of these keys: {}\nread as {}",
            args.keys.join(", "),
            formats(&read).join("\n        ")
        )));
    }
    let mut warnings: Vec<_> = read.is_disordered().then(|| disorder(&read)).into_iter().collect();
    let mut keys = Vec::new();
    for ((text, spec), needs) in args.keys.iter().zip(specs).zip(needs) {
        let choices: Vec<_> = args.shares.iter().map(|&share| needs.tightest(share, args.horizon)).collect();
        let curve = (0..RATES.len()).map(|rate| Point {
            rate: rate_text(rate),
            bursts: args.shares.iter().map(|&share| needs.burst(rate, share)).collect(),
        });
        let curve = curve.collect();
        let (requests, clients, measured_one_in) = (needs.requests(), needs.clients(), needs.one_in());
        drop(needs);
        let suggestions = match requests {
            0 => Vec::new(),
            _ => try_out(args, &places, text, spec, &choices, &mut warnings)?,
        };
        keys.push(OfKey { key: text.clone(), requests, clients, measured_one_in, suggestions, curve });
    }
    let version = env!("CARGO_PKG_VERSION");
    let suggestions = Suggestions { version, inputs, read, horizon_s: args.horizon, warnings, keys };
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &suggestions).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        write_text(&suggestions, out)?;
    }
    out.flush()?;
    Ok(replay::in_order(&suggestions.read).unwrap_or(DONE))
}

/// A place that says the same when it is read again: a pipe is put into a file that goes away with `kept`, and of a
/// file that grows, only what is there now is read.
fn twice(place: Place, kept: &mut Vec<NamedTempFile>) -> Result<Place, Failure> {
    let name = place.name();
    let mut source: Box<dyn Read> = match &place {
        Place::Stdin => Box::new(io::stdin().lock()),
        Place::Kept { .. } => return Ok(place),
        Place::File(path) => {
            let failed = |error| Failure::file(path, "open", &error);
            let data = path.metadata().map_err(failed)?;
            if data.is_file() {
                return Ok(Place::Kept { name, path: path.clone(), bytes: data.len() });
            }
            if data.is_dir() {
                return Ok(place);
            }
            Box::new(File::open(path).map_err(failed)?)
        }
    };
    let failed =
        |error: io::Error| Failure::input(format!("cannot keep `{name}` in a temporary file: {error}"));
    let mut file = NamedTempFile::new().map_err(failed)?;
    let bytes = io::copy(&mut source, &mut file).map_err(failed)?;
    let path = file.path().to_owned();
    kept.push(file);
    Ok(Place::Kept { name, path, bytes })
}

/// Replays the chosen policies side by side.
fn try_out(
    args: &SuggestArgs,
    places: &[Place],
    key: &str,
    spec: tollgate::rules::KeySpec,
    choices: &[(usize, u64)],
    warnings: &mut Vec<String>,
) -> Result<Vec<Suggestion>, Failure> {
    let policies = choices.iter().map(|&(rate, burst)| format!("{} burst {burst}", rate_text(rate)));
    let policies: Vec<_> = policies.collect();
    let mut contenders = Vec::new();
    for text in &policies {
        let policy: Policy = replay::policy(text)?;
        contenders.push(replay::contender(&policy, text, key, args.input.max_keys)?);
    }
    let keying: Arc<dyn Keying> = Arc::new(Keys(vec![spec]));
    replay::feed(&args.input, places, &keying, &mut |chunk| {
        for contender in &mut contenders {
            contender.take(chunk, &mut Unseen);
        }
    })?;
    let mut suggestion =
        |((contender, &share_percent), &(rate, burst)): ((&Contender, &f64), &(usize, u64))| {
            let outcome = Outcome::new(contender);
            warnings.extend(evictions(&outcome).map(|warning| format!("by {key}: {warning}")));
            let touched =
                outcome.scopes.first().map_or((0, 0), |scope| (scope.clients.touched, scope.clients.seen));
            let refused = outcome.top().filter(|(_, client)| client.refused > 0).take(NAMED);
            Suggestion {
                share_percent,
                policy: contender.title.clone(),
                admits_in_horizon: burst.saturating_add(RATES[rate].in_seconds(args.horizon)),
                refused: outcome.refused,
                // Of those that have such a key.
                refused_percent: percent(outcome.refused, outcome.requests - outcome.unkeyed),
                clients_touched: touched.0,
                clients_touched_percent: percent(touched.0, touched.1),
                most_refused: refused
                    .map(|(_, client)| Refused {
                        key: client.key.clone(),
                        requests: client.requests,
                        refused: client.refused,
                    })
                    .collect(),
            }
        };
    Ok(contenders.iter().zip(&args.shares).zip(choices).map(&mut suggestion).collect())
}

fn write_text(suggestions: &Suggestions, out: &mut impl Write) -> io::Result<()> {
    let Totals { requests, bad, .. } = &suggestions.read;
    let title =
        format!("tollgate {}: suggestions for {}", suggestions.version, suggestions.inputs.join(", "));
    writeln!(out, "{}", paint().bold(&title))?;
    writeln!(out, "{} requests read, {} bad lines", grouped(*requests), grouped(*bad))?;
    for format in formats(&suggestions.read) {
        writeln!(out, "read as {format}")?;
    }
    for warning in &suggestions.warnings {
        writeln!(out, "{} {warning}", paint().bad("warning:"))?;
    }
    for of_key in &suggestions.keys {
        if of_key.requests == 0 {
            writeln!(out, "\nby {}: no request has such a key", of_key.key)?;
            continue;
        }
        let about = if of_key.measured_one_in > 1 { "about " } else { "" };
        writeln!(
            out,
            "\nby {}: {about}{} clients with {} requests{}",
            paint().bold(&of_key.key),
            grouped(of_key.clients),
            grouped(of_key.requests),
            match of_key.measured_one_in {
                1 => String::new(),
                one_in => format!(" (one in {one_in} measured)"),
            }
        )?;
        let mut table = Table::new([
            "never refused",
            "limit",
            "would refuse",
            "%",
            "clients",
            "clients %",
            "most of it from",
        ]);
        for suggestion in &of_key.suggestions {
            let worst: Vec<_> = suggestion
                .most_refused
                .iter()
                .map(|client| format!("{} ({})", printable(&client.key), grouped(client.refused)))
                .collect();
            table.cells([
                format!("{} %", suggestion.share_percent),
                suggestion.policy.clone(),
                grouped(suggestion.refused),
                format!("{:.2}", suggestion.refused_percent),
                grouped(suggestion.clients_touched),
                format!("{:.2}", suggestion.clients_touched_percent),
                worst.join(", "),
            ]);
        }
        write!(out, "{table}")?;
    }
    writeln!(
        out,
        "\nEach is the tightest over {} s of a few rates: the least that one client gets in that time. Try one with\n  \
         tollgate replay … --policy \"POLICY\" --key KEY --html report.html",
        grouped(suggestions.horizon_s)
    )
}
