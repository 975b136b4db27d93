//! The report as text.

use super::chart::{Paint, stacked};
use super::table::{Table, grouped};
use super::warning::{WHOLE_SECONDS, formats};
use super::{Outcome, Report, ScopeOutcome, duration, rate};
use crate::input::Totals;
use crate::input::time::NS_PER_S;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

/// Colours if the standard output is a terminal and nobody objects.
pub(crate) fn paint() -> Paint {
    Paint { colours: io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() }
}

pub(crate) fn write(report: &Report, html: Option<&Path>, out: &mut impl Write) -> io::Result<()> {
    write_read(report, out)?;
    if let [only] = &report.policies[..] {
        write_outcome(only, out)?;
    } else {
        write_comparison(report, out)?;
    }
    write_cost(report, out)?;
    if let Some(path) = html {
        writeln!(out, "report       {}", path.display())?;
    }
    Ok(())
}

/// Text in lines of a width that terminals have, under a label that stands before the first.
fn write_wrapped(label: &str, text: &str, out: &mut impl Write) -> io::Result<()> {
    const WIDTH: usize = 100;
    let mut line = String::new();
    let mut label = format!("{label:<12}");
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + word.chars().count() >= WIDTH {
            writeln!(out, "{label} {line}")?;
            line.clear();
            label = " ".repeat(12);
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    writeln!(out, "{label} {line}")
}

fn write_read(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let Totals {
        lines,
        bad,
        bad_examples,
        out_of_order,
        too_late,
        latest_by_ns,
        requests,
        whole_seconds,
        ..
    } = &report.read;
    writeln!(out, "{}", paint().bold(&format!("tollgate {}: {}", report.version, report.inputs.join(", "))))?;
    writeln!(out, "traffic      {} requests from {} to {}", grouped(*requests), report.from, report.to)?;
    if *lines > 0 {
        write!(out, "read         {} lines, {} of them bad", grouped(*lines), grouped(*bad))?;
        match out_of_order {
            0 => writeln!(out, ", all in order")?,
            _ => writeln!(out, ", {} out of order", grouped(*out_of_order))?,
        }
    }
    for format in formats(&report.read) {
        writeln!(out, "read as      {format}")?;
    }
    if *whole_seconds {
        write_wrapped("", WHOLE_SECONDS, out)?;
    }
    if *too_late > 0 {
        writeln!(
            out,
            "             {} were too late to be put in order, by up to {}: decided at the time of the line before",
            grouped(*too_late),
            duration(*latest_by_ns)
        )?;
    }
    for warning in &report.warnings {
        write_wrapped("warning", warning, out)?;
    }
    for example in bad_examples {
        writeln!(out, "  bad line   {}:{}: {}", example.source, example.line, example.cause)?;
        if !example.text.is_empty() {
            writeln!(out, "             {}", paint().dim(&example.text))?;
        }
    }
    if *bad > bad_examples.len() as u64 {
        writeln!(out, "             and {} more", grouped(bad - bad_examples.len() as u64))?;
    }
    Ok(())
}

fn write_outcome(outcome: &Outcome, out: &mut impl Write) -> io::Result<()> {
    let paint = paint();
    writeln!(out, "policy       {}", outcome.title)?;
    for scope in &outcome.scopes {
        match scope.name.as_str() {
            "" => writeln!(out, "key          {}", scope.key)?,
            name => writeln!(out, "  {name:<10} {} by {}", scope.policy, scope.key)?,
        }
    }
    let refused_percent = outcome.refused_percent;
    writeln!(out)?;
    writeln!(out, "admitted     {:>12}  {:6.2} %", grouped(outcome.admitted), 100.0 - refused_percent)?;
    writeln!(out, "refused      {:>12}  {refused_percent:6.2} %", grouped(outcome.refused))?;
    if outcome.unkeyed > 0 {
        writeln!(out, "             {:>12}  {}", grouped(outcome.unkeyed), outcome.unkeyed_are())?;
    }
    writeln!(out)?;
    write_chart(outcome, paint, out)?;

    let mut rules = Table::new(["by rule", "refused", "limit"]);
    for rule in &outcome.rules {
        let watching = if rule.shadow { " (only watches)" } else { "" };
        rules.cells([rule.name.clone(), grouped(rule.refused), format!("{}{watching}", rule.limit)]);
    }
    writeln!(out, "{rules}")?;

    for scope in &outcome.scopes {
        let of = if scope.name.is_empty() { String::new() } else { format!(" of `{}`", scope.name) };
        writeln!(out, "clients{of}: {}", scope.clients_told())?;
        if scope.keyless > 0 {
            writeln!(out, "  {}", scope.keyless_told())?;
        }
        if let Some(lost) = scope.client_error_max {
            writeln!(
                out,
                "  a client's counts may lack up to {} requests: there were too many to keep all",
                grouped(lost)
            )?;
        }
    }
    if outcome.refused > 0 {
        let headings = ["most refused", "requests", "admitted", "refused", "by others"];
        let columns = if outcome.scopes.len() > 1 { 4 } else { 3 };
        let mut top = Table::new(headings.into_iter().take(1 + columns));
        for (scope, client) in outcome.top().filter(|(_, client)| client.refused > 0) {
            let of = if scope.name.is_empty() { String::new() } else { format!("  ({})", scope.name) };
            let numbers = [client.requests, client.admitted, client.refused, client.refused_by_others];
            top.row(&format!("{}{of}", printable(&client.key)), numbers.into_iter().take(columns));
        }
        writeln!(out, "\n{top}")?;
    }
    Ok(())
}

/// A key without what a terminal would take for an order.
pub(crate) fn printable(key: &str) -> String {
    const CHARS_MAX: usize = 60;
    let mut text: String =
        key.chars().take(CHARS_MAX).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if key.chars().count() > CHARS_MAX {
        text.push('…');
    }
    text
}

fn write_chart(outcome: &Outcome, paint: Paint, out: &mut impl Write) -> io::Result<()> {
    let timeline = &outcome.timeline;
    let refused = timeline.refused();
    let (lines, most) = stacked(&timeline.admitted, &refused, paint);
    let columns = lines
        .first()
        .map_or(0, |_| timeline.admitted.len().div_ceil(timeline.admitted.len().div_ceil(64).max(1)));
    let column_s = timeline.bucket_s * timeline.admitted.len().div_ceil(columns.max(1)) as u64;
    for (index, line) in lines.iter().enumerate() {
        let scale = match index {
            0 => rate(most, column_s),
            _ => String::new(),
        };
        writeln!(out, "  {scale:>9} │{line}")?;
    }
    writeln!(out, "  {:>9} └{}", "0", "─".repeat(columns))?;
    let legend = match paint.colours {
        true => format!("{} admitted  {} refused", paint.good("█"), paint.bad("█")),
        false => "█ admitted  ░ refused".to_owned(),
    };
    writeln!(out, "             {legend}; a column is {}\n", duration(column_s * NS_PER_S))
}

fn write_comparison(report: &Report, out: &mut impl Write) -> io::Result<()> {
    writeln!(out)?;
    let mut table = Table::new([
        "policy",
        "admitted",
        "refused",
        "refused %",
        "clients touched",
        "of them lightly",
        "no such key",
        "most refused",
    ]);
    for policy in &report.policies {
        let worst = policy.top().find(|(_, client)| client.refused > 0);
        let (touched, lightly) =
            policy.scopes.first().map_or_else(Default::default, ScopeOutcome::touched_told);
        table.cells([
            policy.title.clone(),
            grouped(policy.admitted),
            grouped(policy.refused),
            format!("{:.2}", policy.refused_percent),
            touched,
            lightly,
            grouped(policy.unkeyed),
            worst.map_or_else(String::new, |(_, client)| {
                format!("{} ({})", printable(&client.key), grouped(client.refused))
            }),
        ]);
    }
    writeln!(out, "{table}")?;
    for policy in report.policies.iter().filter(|policy| policy.rules.len() > 1) {
        let mut rules = Table::new([policy.title.as_str(), "refused"]);
        for rule in &policy.rules {
            rules.row(&format!("  by {}", rule.name), [rule.refused]);
        }
        writeln!(out, "{rules}")?;
    }
    Ok(())
}

fn write_cost(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let Some(first) = report.policies.first() else { return Ok(()) };
    let table_bytes: usize =
        report.policies.iter().flat_map(|policy| &policy.scopes).map(|scope| scope.table_bytes).sum();
    writeln!(
        out,
        "engine       {} ns a decision; table of {} MiB, fixed when it is built",
        first.ns_per_decision,
        table_bytes.div_ceil(1 << 20)
    )?;
    write!(
        out,
        "took         {:.2} s, {:.2} million requests a second",
        report.elapsed_s,
        report.read.requests as f64 / report.elapsed_s.max(1e-9) / 1e6
    )?;
    match report.peak_memory_bytes {
        Some(bytes) => writeln!(out, "; peak memory {} MiB", bytes >> 20),
        None => writeln!(out),
    }
}
