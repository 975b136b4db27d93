//! What there is to show, as families of samples: the same for every way to show it.

use super::{Backend, BackendState, Numbers, Source};
use crate::decision::{Cause, Outcome};
use crate::stats::{DecisionStats, Stats};

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
    /// Which of the sources it is of.
    #[cfg_attr(
        not(feature = "metrics"),
        allow(dead_code, reason = "only the facade asks whether it is still the same")
    )]
    pub(super) source: usize,
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) value: Value,
}

pub(super) enum Value {
    Number(u64),
    Latency {
        /// Upper ends in seconds, and how many fell in the class that ends there.
        classes: Vec<(f64, u64)>,
        #[cfg_attr(not(feature = "prometheus"), allow(dead_code, reason = "the facade adds up by itself"))]
        sum_seconds: f64,
    },
}

/// Numbers with the place of their source on the list, and its name.
type Read<'a, T> = (usize, &'a str, T);

/// All families that have samples.
pub(super) fn of(sources: &[Source]) -> Vec<Family> {
    let mut limiters = Vec::new();
    let mut backends = Vec::new();
    for (index, Source { name, numbers }) in sources.iter().enumerate() {
        match numbers {
            Numbers::Limiter(limiter) => limiters.push((index, &**name, limiter.stats())),
            Numbers::Backend(source) => backends.push((index, &**name, source.read())),
            // Its limiters are on the list by themselves.
            #[cfg(feature = "tower")]
            Numbers::Rules(_) => {}
        }
    }
    let mut families = of_decisions(&limiters, &backends);
    families.extend(of_limiters(&limiters));
    families.extend(of_backends(&backends));
    families.retain(|family| !family.samples.is_empty());
    families
}

/// A family by what is read from each source.
fn family<T>(
    sources: &[Read<'_, T>],
    (name, help, kind): (&'static str, &'static str, Kind),
    read: impl Fn(&T) -> Vec<Sample>,
) -> Family {
    let named = |(index, limiter, numbers): &Read<'_, T>| under_name(*index, limiter, read(numbers));
    Family { name, help, kind, samples: sources.iter().flat_map(named).collect() }
}

/// What limiters have decided, and backends that have no limiter of the same name beside them.
fn of_decisions(limiters: &[Read<'_, Stats>], backends: &[Read<'_, Backend>]) -> Vec<Family> {
    let has_limiter = |name: &str| limiters.iter().any(|(_, limiter, _)| *limiter == name);
    let of_limiters = limiters.iter().map(|(index, name, stats)| (*index, *name, &*stats.decisions));
    let alone = backends.iter().filter(|(_, name, _)| !has_limiter(name));
    let of_backends = alone.map(|(index, name, backend)| (*index, *name, &*backend.decisions));
    let decided: Vec<_> = of_limiters.chain(of_backends).collect();
    let (decisions_help, near_help) = (
        "Requests decided, by what decided and how.",
        "Requests that passed and left a rule at 80 % or more.",
    );
    vec![
        family(&decided, ("tollgate_decisions", decisions_help, Kind::Counter), |all| decisions(all)),
        family(&decided, ("tollgate_near_limit", near_help, Kind::Counter), |all| near_limit(all)),
    ]
}

fn of_limiters(limiters: &[Read<'_, Stats>]) -> Vec<Family> {
    let counter = |name, help, read: &dyn Fn(&Stats) -> Vec<Sample>| {
        family(limiters, (name, help, Kind::Counter), read)
    };
    let gauge = |name, help, read: fn(&Stats) -> usize| {
        family(limiters, (name, help, Kind::Gauge), |stats| vec![number([], read(stats) as u64)])
    };
    vec![
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
        counter(
            "tollgate_lost_strikes",
            "Refusals that no room was left to count against their key.",
            &|stats| vec![number([], stats.lost_strikes)],
        ),
        counter("tollgate_shadow_denied", "What rules that only watch would have refused.", &shadow_denied),
        counter("tollgate_probes", "Keys looked for, of a sample, by how far away they were.", &|stats| {
            let probes = stats.probes;
            let found =
                [("at_once", probes.at_once), ("home", probes.in_home), ("partner", probes.in_partner)];
            found.map(|(found, count)| number([("found", found)], count)).into()
        }),
    ]
}

fn decisions(all: &[DecisionStats]) -> Vec<Sample> {
    let mut samples = Vec::with_capacity(all.len() * 3);
    for one in all.iter().filter(|one| !one.is_shadow || one.allowed + one.denied + one.never_fits > 0) {
        let outcomes = [
            (Outcome::Denied, one.denied),
            (Outcome::Allowed, one.allowed),
            (Outcome::NeverFits, one.never_fits),
        ];
        // What is no rule only refuses; a list lets pass as well, and whoever is told to for want of a backend.
        let possible = match one.cause {
            Cause::Rule => 3,
            Cause::List | Cause::Unavailable => 2,
            _ => 1,
        };
        samples.extend(outcomes[..possible].iter().map(|&(outcome, count)| {
            let (tier, cause) = (one.tier.as_deref().unwrap_or_default(), one.cause.as_str());
            number(
                [("tier", tier), ("cause", cause), ("rule", &one.rule), ("outcome", outcome.as_str())],
                count,
            )
        }));
    }
    samples
}

fn near_limit(all: &[DecisionStats]) -> Vec<Sample> {
    let of_rules =
        all.iter().filter(|one| one.cause == Cause::Rule && (!one.is_shadow || one.near_limit > 0));
    of_rules.map(|one| number(of_rule(one), one.near_limit)).collect()
}

/// By rule, if decisions are counted; else all together.
fn shadow_denied(stats: &Stats) -> Vec<Sample> {
    if stats.decisions.is_empty() {
        return vec![number([("tier", ""), ("rule", "")], stats.shadow_denied)];
    }
    let shadows = stats.decisions.iter().filter(|one| one.is_shadow || one.shadow_denied > 0);
    shadows.map(|one| number(of_rule(one), one.shadow_denied)).collect()
}

fn of_rule(one: &DecisionStats) -> [(&'static str, &str); 2] {
    [("tier", one.tier.as_deref().unwrap_or_default()), ("rule", &one.rule)]
}

fn of_backends(backends: &[Read<'_, Backend>]) -> Vec<Family> {
    let family =
        |name, help, kind, read: &dyn Fn(&Backend) -> Vec<Sample>| family(backends, (name, help, kind), read);
    let counter =
        |name, help, read: &dyn Fn(&Backend) -> Vec<Sample>| family(name, help, Kind::Counter, read);
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
        family(
            "tollgate_backend_latency_seconds",
            "How long answered calls to the backend took.",
            Kind::Histogram,
            &|backend| {
                let (classes, sum_seconds) = (backend.latency_classes(), backend.latency_sum.as_secs_f64());
                vec![Sample { source: 0, labels: Vec::new(), value: Value::Latency { classes, sum_seconds } }]
            },
        ),
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
    Sample { source: 0, labels, value: Value::Number(value) }
}

/// The samples of a source, with its name before their own labels.
fn under_name(source: usize, limiter: &str, samples: Vec<Sample>) -> Vec<Sample> {
    let named = |sample: Sample| {
        let labels = std::iter::once(("limiter", limiter.to_owned())).chain(sample.labels).collect();
        Sample { source, labels, ..sample }
    };
    samples.into_iter().map(named).collect()
}
