//! The report as a page that needs nothing else: no script, no network, light and dark.

use super::svg::{self, RULE_COLOURS, escaped};
use super::table::grouped;
use super::warning::{WHOLE_SECONDS, formats};
use super::{DemandOutcome, Outcome, Report, RuleOutcome, ScopeOutcome, duration, percent};
use crate::timeline::{BUCKETS, CLIENT_BUCKETS};
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// The whole page.
pub(crate) fn page(report: &Report) -> String {
    let mut body = String::new();
    // Writing to memory does not fail, here and below.
    let _ = write!(
        body,
        "<h1>Rate limit replay</h1><p class=\"soft\">{}</p><p class=\"soft\">{} to {}</p>",
        escaped(&report.inputs.join(", ")),
        report.from,
        report.to
    );
    write_read(&mut body, report);
    for warning in &report.warnings {
        let _ = write!(body, "<p class=\"card warning\"><b>Warning:</b> {}</p>", escaped(warning));
    }
    if report.policies.len() > 1 {
        write_comparison(&mut body, report);
    }
    for (index, policy) in report.policies.iter().enumerate() {
        write_policy(&mut body, index, policy);
    }
    write_footer(&mut body, report);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>tollgate report</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

fn write_read(out: &mut String, report: &Report) {
    let read = &report.read;
    if read.lines == 0 {
        return;
    }
    let _ = write!(
        out,
        "<p class=\"soft\"><span id=\"lines\">{}</span> lines, <span id=\"bad\">{}</span> of them bad, {} out of order",
        grouped(read.lines),
        grouped(read.bad),
        grouped(read.out_of_order)
    );
    if read.too_late > 0 {
        let _ = write!(
            out,
            ", {} of those too late by up to {}",
            grouped(read.too_late),
            duration(read.latest_by_ns)
        );
    }
    out.push_str("</p>");
    for format in formats(read) {
        let _ = write!(out, "<p class=\"soft\">Read as {}.</p>", escaped(&format));
    }
    if read.whole_seconds {
        let _ = write!(out, "<p class=\"soft\">{WHOLE_SECONDS}</p>");
    }
    if !read.bad_examples.is_empty() {
        out.push_str("<div class=\"card\"><h3>Lines that could not be read</h3>");
        for bad in &read.bad_examples {
            let (source, cause, text) = (escaped(&bad.source), escaped(&bad.cause), escaped(&bad.text));
            let _ = write!(out, "<p>{source}:{}: {cause}<br><code>{text}</code></p>", bad.line);
        }
        out.push_str("</div>");
    }
}

fn write_comparison(out: &mut String, report: &Report) {
    out.push_str(
        "<h2>Side by side</h2><div class=\"card scroll\"><table><tr><th>policy</th><th>admitted</th><th>refused</th>\
         <th>refused %</th><th>clients touched</th><th class=\"extra\">no such key</th></tr>",
    );
    for policy in &report.policies {
        let touched = policy.scopes.first().map_or_else(String::new, |scope| scope.touched_told().0);
        let _ = write!(
            out,
            "<tr><td><code>{}</code></td><td>{}</td><td>{}</td><td>{:.2}</td><td>{touched}</td><td class=\"extra\">{}</td></tr>",
            escaped(&policy.title),
            grouped(policy.admitted),
            grouped(policy.refused),
            policy.refused_percent,
            grouped(policy.unkeyed)
        );
    }
    out.push_str("</table></div>");
}

fn write_policy(out: &mut String, index: usize, policy: &Outcome) {
    let _ = write!(out, "<h2><code>{}</code></h2>", escaped(&policy.title));
    out.push_str("<div class=\"numbers\">");
    for (id, number, what) in [
        ("requests", policy.requests, "requests".to_owned()),
        ("admitted", policy.admitted, format!("admitted, {:.2} %", 100.0 - policy.refused_percent)),
        ("refused", policy.refused, format!("refused, {:.2} %", policy.refused_percent)),
    ] {
        let _ = write!(
            out,
            "<div class=\"card\"><b id=\"p{index}-{id}\">{}</b><span>{what}</span></div>",
            grouped(number)
        );
    }
    // A client of one rule may be one of another's too: no sum over them would be a number of clients.
    for (number, scope) in policy.scopes.iter().enumerate() {
        let about = if scope.clients.exact { "" } else { "about " };
        let by = if scope.name.is_empty() { String::new() } else { format!(" by {}", escaped(&scope.name)) };
        let _ = write!(
            out,
            "<div class=\"card\"><b id=\"p{index}-touched{number}\">{}</b><span>of {about}{} clients refused at least \
             once{by}</span></div>",
            scope.touched_told().0,
            grouped(scope.clients.seen)
        );
    }
    out.push_str("</div>");
    if policy.unkeyed > 0 {
        let _ = write!(
            out,
            "<p class=\"note\"><span id=\"p{index}-unkeyed\">{}</span> {}.</p>",
            grouped(policy.unkeyed),
            policy.unkeyed_are()
        );
    }

    out.push_str("<div class=\"card\"><h3>Requests over time</h3>");
    write_legend(out, policy);
    out.push_str(&svg::over_time(policy));
    out.push_str("</div>");
    write_rules(out, index, policy);
    for scope in &policy.scopes {
        write_clients(out, index, policy, scope);
    }
    write_demand(out, policy);
}

fn write_legend(out: &mut String, policy: &Outcome) {
    out.push_str("<div class=\"legend\"><span><i style=\"background:var(--ok)\"></i>admitted</span>");
    for (number, rule) in policy.rules.iter().enumerate().filter(|(_, rule)| !rule.shadow) {
        let _ = write!(
            out,
            "<span><i style=\"background:var(--r{})\"></i>refused by {}</span>",
            number % RULE_COLOURS,
            escaped(&rule.name)
        );
    }
    out.push_str("</div>");
}

fn write_rules(out: &mut String, index: usize, policy: &Outcome) {
    let most = policy.rules.iter().map(|rule| rule.refused).max().unwrap_or(0).max(1);
    out.push_str(
        "<div class=\"card scroll\"><h3>By rule</h3><table><tr><th>rule</th><th class=\"text\">limit</th><th>refused</th>\
         <th class=\"extra\"></th></tr>",
    );
    for (number, rule) in policy.rules.iter().enumerate() {
        let RuleOutcome { name, limit, refused, shadow, .. } = rule;
        let watches = if *shadow { " (only watches)" } else { "" };
        let _ = write!(
            out,
            "<tr><td>{}{watches}</td><td class=\"text\"><code>{}</code></td><td id=\"p{index}-rule{number}\">{}</td>\
             <td class=\"wide extra\"><span class=\"meter\" style=\"width:{:.1}%;background:var(--r{})\"></span></td></tr>",
            escaped(name),
            escaped(limit),
            grouped(*refused),
            percent(*refused, most),
            number % RULE_COLOURS
        );
    }
    out.push_str("</table></div>");
}

fn write_clients(out: &mut String, index: usize, policy: &Outcome, scope: &ScopeOutcome) {
    let title = match scope.name.as_str() {
        "" => "Top clients".to_owned(),
        name => format!("Top clients under {}", escaped(name)),
    };
    let mut note = format!("By {}: {}.", escaped(&scope.key), scope.clients_told());
    if scope.keyless > 0 {
        let _ = write!(note, " {}.", scope.keyless_told());
    }
    if let Some(lost) = scope.client_error_max {
        let _ = write!(note, " A client’s counts may lack up to {} requests.", grouped(lost));
    }
    let is_one = policy.scopes.len() == 1;
    let others = if is_one { "" } else { "<th class=\"extra\">by others</th>" };
    let _ = write!(
        out,
        "<div class=\"card scroll\"><h3>{title}</h3><p class=\"note\">{note}</p><table><tr><th>client</th><th>requests</th>\
         <th class=\"extra\">admitted</th><th>refused</th>{others}<th class=\"text\">over time</th></tr>"
    );
    let used = policy.timeline.admitted.len().div_ceil(BUCKETS / CLIENT_BUCKETS);
    for client in &scope.top {
        let others = match is_one {
            true => String::new(),
            false => format!("<td class=\"extra\">{}</td>", grouped(client.refused_by_others)),
        };
        let _ = write!(
            out,
            "<tr class=\"client p{index}\"><td>{}</td><td>{}</td><td class=\"extra\">{}</td><td>{}</td>{others}\
             <td class=\"text\">{}</td></tr>",
            escaped(&client.key),
            grouped(client.requests),
            grouped(client.admitted),
            grouped(client.refused),
            svg::spark(client, used)
        );
    }
    out.push_str("</table></div>");
}

fn write_demand(out: &mut String, policy: &Outcome) {
    for rule in &policy.rules {
        let Some(demand) = &rule.demand else { continue };
        let DemandOutcome { clients, cost, burst_limit, burst_clients, period, period_limit, period_clients } =
            demand;
        let most = match cost {
            1 => "most requests".to_owned(),
            cost => format!("most tokens (a request costs {cost})"),
        };
        let _ = write!(
            out,
            "<div class=\"card\"><h3>What clients wanted of {}</h3><div class=\"pair\">",
            escaped(&rule.name)
        );
        out.push_str(&svg::distribution(
            "Clients by the burst they would have needed never to be refused at this rate",
            burst_clients,
            *burst_limit,
            &format!("{} at once", grouped(*burst_limit)),
        ));
        out.push_str(&svg::distribution(
            &format!("Clients by the {most} in any one period of {period}"),
            period_clients,
            *period_limit,
            &format!("{} in {period}", grouped(*period_limit)),
        ));
        let _ = write!(
            out,
            "</div><p class=\"note\">Of {} clients. Both scales are logarithmic; a bar is up to the number below its right \
             edge.</p></div>",
            grouped(*clients)
        );
    }
}

fn write_footer(out: &mut String, report: &Report) {
    let bytes: usize =
        report.policies.iter().flat_map(|policy| &policy.scopes).map(|scope| scope.table_bytes).sum();
    let ns = report.policies.first().map_or(0, |policy| policy.ns_per_decision);
    let _ = write!(
        out,
        "<p class=\"note\">tollgate {}: {ns} ns a decision, a table of {} MiB, {:.2} s in all.</p>",
        report.version,
        bytes.div_ceil(1 << 20),
        report.elapsed_s
    );
}
