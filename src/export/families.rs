//! What there is to show, as families of samples: the same for every way to show it.

use super::{Backend, BackendSource, BackendState, Numbers, Source};
use crate::decision::Cause;
use crate::stats::Stats;
use std::sync::Arc;

/// Samples of one name.
pub(super) struct Family {
    /// Without the `_total` that counters end with.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    pub(super) samples: Vec<Sample>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

pub(super) struct Sample {
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) value: Value,
}

pub(super) enum Value {
    Number(u64),
    Latency {
        /// Upper ends in seconds, and how many fell in the class that ends there.
        classes: Vec<(f64, u64)>,
        sum_seconds: f64,
        #[cfg_attr(
            not(feature = "metrics"),
            allow(dead_code, reason = "only the facade is told of differences")
        )]
        source: Arc<BackendSource>,
    },
}

/// All families that have samples.
pub(super) fn of(sources: &[Source]) -> Vec<Family> {
    let mut limiters = Vec::new();
    let mut backends = Vec::new();
    for Source { name, numbers } in sources {
        match numbers {
            Numbers::Limiter(limiter) => limiters.push((&**name, limiter.stats())),
            Numbers::Backend(source) => backends.push((&**name, source, source.read())),
        }
    }
    let mut families = of_limiters(&limiters);
    families.extend(of_backends(&backends));
    families.retain(|family| !family.samples.is_empty());
    families
}

fn of_limiters(limiters: &[(&str, Stats)]) -> Vec<Family> {
    let family = |name, help, kind, read: &dyn Fn(&Stats) -> Vec<Sample>| {
        let named = |(limiter, stats): &(&str, Stats)| under_name(limiter, read(stats));
        Family { name, help, kind, samples: limiters.iter().flat_map(named).collect() }
    };
    let counter = |name, help, read: &dyn Fn(&Stats) -> Vec<Sample>| family(name, help, Kind::Counter, read);
    let gauge = |name, help, read: fn(&Stats) -> usize| {
        family(name, help, Kind::Gauge, &|stats| vec![number([], read(stats) as u64)])
    };
    vec![
        counter("tollgate_decisions", "Requests decided, by what decided and how.", &decisions),
        counter("tollgate_near_limit", "Requests that passed and left a rule at 80 % or more.", &near_limit),
        gauge("tollgate_keys", "Keys that are worth less than a fresh one.", |stats| stats.live_keys),
        gauge("tollgate_keys_max", "Keys there is room for.", |stats| stats.max_keys),
        gauge("tollgate_table_bytes", "Memory of the table.", |stats| stats.bytes),
        counter("tollgate_evictions", "Entries whose place was given to others, by why.", &|stats| {
            vec![
                number([("reason", "full")], stats.evicted - stats.lost_in_restore.min(stats.evicted)),
                number([("reason", "restore")], stats.lost_in_restore),
                number([("reason", "expired")], stats.expired),
            ]
        }),
        counter("tollgate_forgiven_cost", "What entries forgotten while they counted had spent.", &|stats| {
            vec![number([], stats.forgiven_cost)]
        }),
        counter(
            "tollgate_no_room",
            "Requests of keys that found no room, by what became of them.",
            &|stats| {
                vec![
                    number([("outcome", "denied")], stats.denied_for_room),
                    number([("outcome", "allowed")], stats.allowed_for_room),
                ]
            },
        ),
        counter("tollgate_shadow_denied", "Refusals by rules that only watch.", &|stats| {
            vec![number([], stats.shadow_denied)]
        }),
        counter("tollgate_probes", "Keys looked for, of a sample, by how far away they were.", &|stats| {
            let probes = stats.probes;
            let found =
                [("at_once", probes.at_once), ("home", probes.in_home), ("partner", probes.in_partner)];
            found.map(|(found, count)| number([("found", found)], count)).into()
        }),
    ]
}

fn decisions(stats: &Stats) -> Vec<Sample> {
    let mut samples = Vec::with_capacity(stats.decisions.len() * 3);
    for one in &stats.decisions {
        let cause = match one.cause {
            Cause::Rule => "rule",
            Cause::NoRoom => "no_room",
            Cause::Penalty => "penalty",
            Cause::List => "list",
            Cause::Closed => "closed",
            Cause::Unavailable => "unavailable",
        };
        let outcomes = [("denied", one.denied), ("allowed", one.allowed), ("never_fits", one.never_fits)];
        // What is no rule only refuses; a list lets pass as well.
        let possible = match one.cause {
            Cause::Rule => 3,
            Cause::List => 2,
            _ => 1,
        };
        samples.extend(outcomes[..possible].iter().map(|&(outcome, count)| {
            let tier = one.tier.as_deref().unwrap_or_default();
            number([("tier", tier), ("cause", cause), ("rule", &one.rule), ("outcome", outcome)], count)
        }));
    }
    samples
}

fn near_limit(stats: &Stats) -> Vec<Sample> {
    let of_rules = stats.decisions.iter().filter(|one| one.cause == Cause::Rule);
    of_rules
        .map(|one| {
            let tier = one.tier.as_deref().unwrap_or_default();
            number([("tier", tier), ("rule", &one.rule)], one.near_limit)
        })
        .collect()
}

fn of_backends(backends: &[(&str, &Arc<BackendSource>, Backend)]) -> Vec<Family> {
    let family = |name, help, kind, read: &dyn Fn(&Backend) -> Vec<Sample>| {
        let named =
            |(limiter, _, backend): &(&str, &Arc<BackendSource>, Backend)| under_name(limiter, read(backend));
        Family { name, help, kind, samples: backends.iter().flat_map(named).collect() }
    };
    let counter =
        |name, help, read: &dyn Fn(&Backend) -> Vec<Sample>| family(name, help, Kind::Counter, read);
    let latency = |(limiter, source, backend): &(&str, &Arc<BackendSource>, Backend)| {
        let (classes, sum_seconds) = (backend.latency_classes(), backend.latency_sum.as_secs_f64());
        let value = Value::Latency { classes, sum_seconds, source: Arc::clone(source) };
        under_name(limiter, vec![Sample { labels: Vec::new(), value }])
    };
    vec![
        family(
            "tollgate_backend_state",
            "1 for the state of the circuit breaker.",
            Kind::Gauge,
            &|backend| {
                let is_now = |state| u64::from(state == backend.state);
                BackendState::ALL.map(|state| number([("state", state.label())], is_now(state))).into()
            },
        ),
        counter("tollgate_backend_calls", "Calls to the backend, by how they ended.", &|backend| {
            vec![
                number([("result", "answered")], backend.answered),
                number([("result", "failed")], backend.failed),
                number([("result", "timed_out")], backend.timed_out),
            ]
        }),
        Family {
            name: "tollgate_backend_latency_seconds",
            help: "How long answered calls to the backend took.",
            kind: Kind::Histogram,
            samples: backends.iter().flat_map(latency).collect(),
        },
        counter("tollgate_backend_fallback_decisions", "Decisions made without the backend.", &|backend| {
            vec![number([], backend.fallback_decisions)]
        }),
        counter("tollgate_backend_breaker_changes", "How often the circuit breaker changed.", &|backend| {
            vec![number([], backend.breaker_changes)]
        }),
        counter("tollgate_lease_tokens", "Tokens taken in advance, by what became of them.", &|backend| {
            vec![
                number([("event", "taken")], backend.lease_tokens_taken),
                number([("event", "spent")], backend.lease_tokens_spent),
                number([("event", "returned")], backend.lease_tokens_returned),
                number([("event", "expired")], backend.lease_tokens_expired),
            ]
        }),
        family("tollgate_lease_tokens_in_hand", "Tokens in hand.", Kind::Gauge, &|backend| {
            vec![number([], backend.lease_tokens_in_hand)]
        }),
    ]
}

fn number<const LABELS: usize>(labels: [(&'static str, &str); LABELS], value: u64) -> Sample {
    let labels = labels.into_iter().map(|(key, value)| (key, value.to_owned())).collect();
    Sample { labels, value: Value::Number(value) }
}

/// The samples with the name of their limiter before their own labels.
fn under_name(limiter: &str, samples: Vec<Sample>) -> Vec<Sample> {
    let named = |sample: Sample| {
        let labels = std::iter::once(("limiter", limiter.to_owned())).chain(sample.labels).collect();
        Sample { labels, ..sample }
    };
    samples.into_iter().map(named).collect()
}
