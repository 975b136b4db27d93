//! What is said in the end: one set of numbers, for the terminal, as JSON, and as a page.

pub(crate) mod chart;
mod html;
mod svg;
pub(crate) mod table;
pub(crate) mod terminal;
mod warning;

use crate::check::Findings;
use crate::contender::{Contender, Scope};
use crate::input::Totals;
use crate::input::time::{Moment, NS_PER_S};
use crate::ledger::ClientCounts;
use crate::memory;
use crate::timeline::BUCKETS;
use serde::Serialize;
use table::grouped;

pub(crate) use html::page;
pub(crate) use warning::{disorder, evictions, formats};

/// How many clients are named.
const TOP: usize = 12;
/// Bars of a distribution: up to 1, 2, 4, …
const BARS: usize = 24;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) version: &'static str,
    pub(crate) inputs: Vec<String>,
    pub(crate) read: Totals,
    /// First and last request.
    pub(crate) from: String,
    pub(crate) to: String,
    /// What makes the numbers doubtful.
    pub(crate) warnings: Vec<String>,
    pub(crate) policies: Vec<Outcome>,
    /// What took how long, in seconds.
    pub(crate) elapsed_s: f64,
    pub(crate) peak_memory_bytes: Option<u64>,
    /// What the demonstration knows beside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) demonstration: Option<Demonstration>,
}

/// What only a demonstration knows: whether every decision was right, and who is who.
#[derive(Debug, Serialize)]
pub(crate) struct Demonstration {
    pub(crate) check: Findings,
    pub(crate) actors: Vec<ActorOutcome>,
    /// Readers that were refused at least once.
    pub(crate) readers_touched: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct ActorOutcome {
    pub(crate) name: &'static str,
    pub(crate) clients: u64,
    pub(crate) requests: u64,
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
}

/// What became of the traffic under one policy.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) title: String,
    pub(crate) requests: u64,
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
    pub(crate) refused_percent: f64,
    /// Of the admitted, those that have no key of the kind, or fall under no rule.
    pub(crate) unkeyed: u64,
    pub(crate) rules: Vec<RuleOutcome>,
    pub(crate) scopes: Vec<ScopeOutcome>,
    pub(crate) timeline: Timeline,
    /// The median over chunks of about a thousand.
    pub(crate) ns_per_decision: usize,
}

#[derive(Debug, Serialize)]
pub(crate) struct RuleOutcome {
    pub(crate) name: String,
    pub(crate) limit: String,
    pub(crate) shadow: bool,
    /// Refused by this rule; for one that only watches, how many it would have refused.
    pub(crate) refused: u64,
    pub(crate) demand: Option<DemandOutcome>,
}

/// How much of a rule the clients wanted, as numbers of clients.
#[derive(Debug, Serialize)]
pub(crate) struct DemandOutcome {
    /// What a client may take at once, and how many clients would have wanted up to 1, 2, 4, … at once.
    pub(crate) burst_limit: u64,
    /// In how many clients the numbers below are, and what a request costs: limits are in tokens.
    pub(crate) clients: u64,
    pub(crate) cost: u64,
    pub(crate) burst_clients: Vec<u64>,
    /// What a client may take in a period, and how many clients wanted up to 1, 2, 4, … in their busiest one.
    pub(crate) period: String,
    pub(crate) period_limit: u64,
    pub(crate) period_clients: Vec<u64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ScopeOutcome {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) policy: String,
    pub(crate) clients: ClientCounts,
    /// Requests that lack the key and share one budget, and count as one client.
    pub(crate) keyless: u64,
    /// How many requests the counts of a client may lack; nothing if they are exact.
    pub(crate) client_error_max: Option<u64>,
    pub(crate) top: Vec<TopClient>,
    pub(crate) table_bytes: usize,
    pub(crate) live_keys: usize,
    pub(crate) evicted: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct TopClient {
    pub(crate) key: String,
    pub(crate) requests: u64,
    pub(crate) admitted: u64,
    /// Refused under this key.
    pub(crate) refused: u64,
    /// Refused by other rules of the file alone.
    pub(crate) refused_by_others: u64,
    pub(crate) admitted_over_time: Vec<u32>,
    /// By whichever rule.
    pub(crate) refused_over_time: Vec<u32>,
}

/// Counts for each bucket of time.
#[derive(Debug, Serialize)]
pub(crate) struct Timeline {
    pub(crate) start: String,
    pub(crate) start_ns: u64,
    pub(crate) bucket_s: u64,
    pub(crate) admitted: Vec<u64>,
    /// For each rule, in the order of `rules`.
    pub(crate) refused_by: Vec<Vec<u64>>,
}

impl Timeline {
    /// Refused by any rule, in each bucket.
    pub(crate) fn refused(&self) -> Vec<u64> {
        (0..self.admitted.len()).map(|at| self.refused_by.iter().map(|rule| rule[at]).sum()).collect()
    }
}

impl Report {
    pub(crate) fn new(inputs: Vec<String>, read: Totals, contenders: &[Contender], elapsed_s: f64) -> Self {
        let policies: Vec<_> = contenders.iter().map(Outcome::new).collect();
        let ends = contenders.first().map_or((0, 0), |first| (first.first_ns, first.last_ns));
        Self {
            version: env!("CARGO_PKG_VERSION"),
            inputs,
            warnings: warning::warnings(&read, &policies),
            read,
            from: Moment::of(ends.0 - ends.0 % 1_000_000).to_string(),
            to: Moment::of(ends.1 - ends.1 % 1_000_000).to_string(),
            policies,
            elapsed_s,
            peak_memory_bytes: memory::peak_bytes(),
            demonstration: None,
        }
    }
}

impl Outcome {
    pub(crate) fn new(contender: &Contender) -> Self {
        let refused = contender.refused();
        let mut rules = Vec::new();
        for scope in &contender.scopes {
            for (index, rule) in scope.policy.rules().iter().enumerate() {
                let number = scope.first_rule + index;
                let counts =
                    if rule.is_shadow() { &contender.would_refuse_by } else { &contender.refused_by };
                rules.push(RuleOutcome {
                    name: rule_name(scope, index),
                    limit: rule.to_string(),
                    shadow: rule.is_shadow(),
                    refused: counts[number],
                    demand: DemandOutcome::new(scope, index),
                });
            }
        }
        Self {
            title: contender.title.clone(),
            requests: contender.requests,
            admitted: contender.admitted,
            refused,
            refused_percent: percent(refused, contender.requests),
            unkeyed: contender.unkeyed,
            timeline: timeline(contender, rules.len()),
            rules,
            scopes: contender.scopes.iter().map(ScopeOutcome::new).collect(),
            ns_per_decision: contender.ns_per_decision(),
        }
    }

    /// What is said of the requests that are not counted under any key.
    pub(crate) fn unkeyed_are(&self) -> &'static str {
        match self.scopes.first() {
            Some(scope) if scope.name.is_empty() => "of the admitted have no such key",
            _ => "of the admitted fall under no rule",
        }
    }

    /// Clients over all scopes.
    pub(crate) fn top(&self) -> impl Iterator<Item = (&ScopeOutcome, &TopClient)> {
        let mut all: Vec<_> = self
            .scopes
            .iter()
            .flat_map(|scope| scope.top.iter().map(move |client| (scope, client)))
            .collect();
        all.sort_by_key(|(_, client)| std::cmp::Reverse((client.refused, client.requests)));
        all.into_iter().take(TOP)
    }
}

/// The rule's own name, or its text; with the scope's before it, if it has one.
fn rule_name(scope: &Scope, index: usize) -> String {
    let rule = &scope.policy.rules()[index];
    let own = rule.name().map_or_else(|| rule.to_string(), str::to_owned);
    match (scope.name.as_str(), scope.policy.rules().len()) {
        ("", _) => own,
        (name, 1) => name.to_owned(),
        (name, _) => format!("{name}: {own}"),
    }
}

impl ScopeOutcome {
    /// How many clients were refused, and lightly refused; said to be estimates or of those that are kept.
    pub(crate) fn touched_told(&self) -> (String, String) {
        let ClientCounts { touched, lightly, exact, .. } = self.clients;
        match exact {
            true => (grouped(touched), grouped(lightly)),
            false => (format!("about {}", grouped(touched)), format!("{} of those kept", grouped(lightly))),
        }
    }

    pub(crate) fn clients_told(&self) -> String {
        let ClientCounts { seen, touched, lightly, kept, exact } = self.clients;
        let (seen_told, lightly_told) = match exact {
            true => (grouped(seen), format!("{} of them lightly", grouped(lightly))),
            false => (
                format!("about {}", grouped(seen)),
                format!("of the {} busiest that were kept {} lightly", grouped(kept), grouped(lightly)),
            ),
        };
        let (touched_told, _) = self.touched_told();
        format!(
            "{seen_told} seen, {touched_told} refused at least once ({:.2} %), {lightly_told} (nine in ten admitted)",
            percent(touched, seen)
        )
    }

    pub(crate) fn keyless_told(&self) -> String {
        format!("{} requests have no such key and share one budget, as one client", grouped(self.keyless))
    }

    fn new(scope: &Scope) -> Self {
        let stats = scope.limiter.stats();
        let top = scope.ledger.top(TOP).into_iter().map(|row| TopClient {
            key: String::from_utf8_lossy(&row.label).into_owned(),
            requests: row.requests,
            admitted: row.admitted,
            refused: row.refused,
            refused_by_others: row.requests - row.admitted - row.refused,
            admitted_over_time: row.series.iter().map(|counts| counts[0]).collect(),
            refused_over_time: row.series.iter().map(|counts| counts[1]).collect(),
        });
        Self {
            name: scope.name.clone(),
            key: scope.key.clone(),
            policy: scope.policy.to_string(),
            clients: scope.ledger.counts(),
            keyless: scope.keyless,
            client_error_max: scope.ledger.lost_max(),
            top: top.collect(),
            table_bytes: stats.bytes,
            live_keys: stats.live_keys,
            evicted: stats.evicted,
        }
    }
}

impl DemandOutcome {
    fn new(scope: &Scope, index: usize) -> Option<Self> {
        let rule = &scope.policy.rules()[index];
        let period_ns = rule.period().as_nanos();
        if period_ns == 0 {
            return None;
        }
        let mut burst_clients = vec![0; BARS];
        let mut period_clients = vec![0; BARS];
        for demand in scope.ledger.demands(index) {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive count")]
            let burst = demand.burst.ceil() as u64;
            burst_clients[bar(burst)] += 1;
            period_clients[bar(u64::from(demand.in_period))] += 1;
        }
        Some(Self {
            burst_limit: rule.limit(),
            clients: scope.ledger.counts().kept,
            cost: scope.cost,
            burst_clients,
            period: duration(u64::try_from(period_ns).unwrap_or(u64::MAX)),
            period_limit: rule.count(),
            period_clients,
        })
    }
}

/// Which bar a number belongs to: the first whose end is not below it.
fn bar(number: u64) -> usize {
    let bits = 64 - number.saturating_sub(1).leading_zeros();
    (bits as usize).min(BARS - 1)
}

fn timeline(contender: &Contender, rules: usize) -> Timeline {
    let lanes = 1 + rules;
    let scale = contender.scale;
    let used =
        scale.and_then(|scale| scale.bucket(contender.last_ns)).map_or(0, |last| last + 1).min(BUCKETS);
    let lane = |lane: usize| (0..used).map(|bucket| contender.timeline[bucket * lanes + lane]).collect();
    let start_ns = scale.map_or(0, |scale| scale.origin_ns);
    Timeline {
        start: Moment::of(start_ns).to_string(),
        start_ns,
        bucket_s: scale.map_or(1, |scale| scale.width_ns / NS_PER_S),
        admitted: lane(0),
        refused_by: (0..rules).map(|rule| lane(1 + rule)).collect(),
    }
}

pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// A length of time in its largest whole unit, or with one digit behind the point.
pub(crate) fn duration(ns: u64) -> String {
    const UNITS: [(u64, &str); 7] = [
        (86_400 * NS_PER_S, "d"),
        (3_600 * NS_PER_S, "h"),
        (60 * NS_PER_S, "min"),
        (NS_PER_S, "s"),
        (1_000_000, "ms"),
        (1_000, "µs"),
        (1, "ns"),
    ];
    let (unit_ns, unit) = UNITS.into_iter().find(|&(unit_ns, _)| ns >= unit_ns).unwrap_or((1, "ns"));
    match ns % unit_ns {
        0 => format!("{} {unit}", ns / unit_ns),
        _ => format!("{:.1} {unit}", ns as f64 / unit_ns as f64),
    }
}

/// How many in so many seconds, by the second, the minute or the hour: whichever is not below one.
pub(crate) fn rate(count: u64, seconds: u64) -> String {
    let per_s = count as f64 / seconds.max(1) as f64;
    let (rate, unit) = match per_s {
        1.0.. => (per_s, "s"),
        _ if per_s * 60.0 >= 1.0 => (per_s * 60.0, "min"),
        _ => (per_s * 3_600.0, "h"),
    };
    if rate >= 10.0 { format!("{rate:.0}/{unit}") } else { format!("{rate:.1}/{unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_end_at_powers_of_two() {
        for (number, at) in
            [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1 << 22, 22), (u64::MAX, BARS - 1)]
        {
            assert_eq!(bar(number), at, "{number}");
        }
    }

    #[test]
    fn rates_are_not_below_one() {
        for (count, seconds, text) in
            [(900, 1, "900/s"), (3, 2, "1.5/s"), (1, 2, "30/min"), (1, 600, "6.0/h")]
        {
            assert_eq!(rate(count, seconds), text);
        }
    }

    #[test]
    fn durations_are_short() {
        for (ns, text) in
            [(0, "0 ns"), (1_500, "1.5 µs"), (60 * NS_PER_S, "1 min"), (5_400 * NS_PER_S, "1.5 h")]
        {
            assert_eq!(duration(ns), text);
        }
    }
}
