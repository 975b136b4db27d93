//! What a scraper gets to see: by the collector, read strictly and over a real connection; and by the facade.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "tests may stop"
)]

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tollgate::export::{Backend, BackendState, Exporter};
use tollgate::tower::RateLimitLayer;
use tollgate::{Clock, Limiter};

#[path = "../examples/metrics_server.rs"]
mod metrics_server;

/// Labels of an exposition, which are few and none of which is a key.
const LABELS: [&str; 11] =
    ["limiter", "tier", "cause", "rule", "outcome", "reason", "found", "state", "result", "event", "le"];

type Labels = BTreeMap<String, String>;

/// An exposition, read by all rules that a scraper may insist on.
#[derive(Debug, PartialEq)]
struct Exposition {
    samples: BTreeMap<(String, Labels), f64>,
}

impl Exposition {
    /// In the format of `OpenMetrics`, which calls a counter by its name without `_total` and says where it ends.
    fn parse(text: &str) -> Self {
        Self::of_lines(text.strip_suffix("# EOF\n").expect("ends with its end"), "_total")
    }

    /// In the older text format.
    fn parse_text(text: &str) -> Self {
        assert!(text.ends_with('\n') && !text.contains("# EOF"));
        Self::of_lines(text, "")
    }

    fn of_lines(text: &str, counter_suffix: &'static str) -> Self {
        let lines = text.lines();
        let mut families: BTreeMap<String, String> = BTreeMap::new();
        let mut samples = BTreeMap::new();
        let (mut helped, mut current) = (None, None);
        for line in lines {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').expect("help has a text");
                assert!(helped.is_none() && !help.is_empty(), "{line}");
                helped = Some(name.to_owned());
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a type has a name");
                assert_eq!(helped.take().as_deref(), Some(name), "help comes before the type");
                assert!(is_name(name) && ["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(families.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} comes twice");
                current = Some((name.to_owned(), kind.to_owned()));
            } else {
                let (family, kind) = current.as_ref().expect("a sample belongs to a family");
                let (name, labels, value) = sample(line);
                let suffixes: &[&str] = match kind.as_str() {
                    "counter" => &[counter_suffix],
                    "histogram" => &["_bucket", "_sum", "_count"],
                    _ => &[""],
                };
                let suffix = name.strip_prefix(family.as_str()).unwrap_or("?");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(suffixes.contains(&suffix), "{name} in the family {family}, a {kind}");
                assert_eq!(labels.contains_key("le"), suffix == "_bucket", "{line}");
                assert!(value >= 0.0, "{line}");
                assert!(samples.insert((name, labels), value).is_none(), "the same sample twice: {line}");
            }
        }
        let exposition = Self { samples };
        for (family, _) in families.iter().filter(|(_, kind)| *kind == "histogram") {
            exposition.check_histogram(family);
        }
        exposition
    }

    fn check_histogram(&self, family: &str) {
        let count_name = format!("{family}_count");
        for ((_, labels), &count) in self.samples.iter().filter(|((name, _), _)| *name == count_name) {
            let mut buckets: Vec<(f64, f64)> = Vec::new();
            for ((name, bucket), &value) in &self.samples {
                let mut others = bucket.clone();
                if *name == format!("{family}_bucket") && others.remove("le").is_some() && others == *labels {
                    let le =
                        if bucket["le"] == "+Inf" { f64::INFINITY } else { bucket["le"].parse().unwrap() };
                    buckets.push((le, value));
                }
            }
            buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
            assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{buckets:?} are cumulative");
            assert_eq!(buckets.last(), Some(&(f64::INFINITY, count)));
            assert!(self.samples.contains_key(&(format!("{family}_sum"), labels.clone())));
        }
    }

    /// The sum of all samples of a name that have these labels among theirs.
    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has_all =
            |all: &Labels| labels.iter().all(|(key, value)| all.get(*key).is_some_and(|v| v == value));
        let found: Vec<f64> = self
            .samples
            .iter()
            .filter(|((known, all), _)| known == name && has_all(all))
            .map(|(_, value)| *value)
            .collect();
        assert!(!found.is_empty(), "no {name} with {labels:?} in {self:?}");
        found.iter().sum()
    }
}

fn is_name(name: &str) -> bool {
    name.starts_with("tollgate_")
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// `name{key="value",...} number`, with the escapes of the format and no others.
fn sample(line: &str) -> (String, Labels, f64) {
    let (name, rest) = line.split_once('{').expect("every sample has the name of its limiter");
    let (mut labels, mut rest) = (Labels::new(), rest);
    loop {
        let (key, after) = rest.split_once("=\"").expect("a label");
        assert!(LABELS.contains(&key), "{key} is no label that has few values: {line}");
        let (mut value, mut chars) = (String::new(), after.char_indices());
        let end = loop {
            match chars.next().expect("a value ends") {
                (end, '"') => break end,
                (_, '\\') => value.push(match chars.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, c @ ('"' | '\\'))) => c,
                    other => panic!("an escape {other:?} in {line}"),
                }),
                (_, c) => value.push(c),
            }
        };
        assert!(labels.insert(key.to_owned(), value).is_none(), "{key} twice in {line}");
        rest = &after[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    let value = rest.strip_prefix("} ").expect("a value after the labels");
    (name.to_owned(), labels, value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
}

fn exposition(exporter: &Exporter) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(exporter.clone()));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

fn backend() -> Backend {
    let mut backend = Backend::default();
    backend.state = BackendState::Probing;
    (backend.answered, backend.failed, backend.timed_out) = (10, 2, 1);
    (backend.fallback_decisions, backend.breaker_changes) = (7, 3);
    backend.latency_bounds = vec![Duration::from_micros(500), Duration::from_millis(5)];
    backend.latency_counts = vec![6, 3, 1];
    backend.latency_sum = Duration::from_millis(40);
    (backend.lease_tokens_taken, backend.lease_tokens_spent) = (100, 80);
    (backend.lease_tokens_returned, backend.lease_tokens_expired, backend.lease_tokens_in_hand) = (10, 4, 6);
    backend
}

/// Two limiters, one with a name that has to be escaped and with tiers, and a backend.
fn everything() -> Exporter {
    let (clock, _hand) = Clock::manual();
    let api = Limiter::builder().policy("3/h named api; 100/h; shadow 2/h named strict");
    let api = api.tier("premium", "50/h").count_decisions(true);
    let api = Arc::new(api.clock(clock.clone()).build().unwrap());
    for _ in 0..5 {
        let _ = api.try_acquire("key");
    }
    let _ = api.try_acquire_n("key", 1000);
    let _ = api.tier("premium").unwrap().try_acquire("other");
    let full = Limiter::builder().policy("1/h").max_keys(8).clock(clock);
    let full = Arc::new(full.build().unwrap());
    for key in 0..20 {
        let _ = full.try_acquire(&key);
    }
    let exporter = Exporter::new();
    exporter.add("a \"quoted\\\" name\nof two lines", &api);
    exporter.add("api", &api);
    exporter.add("full", &full);
    exporter.add_backend("api", backend);
    exporter
}

#[test]
fn the_exposition_is_one_that_a_strict_reader_takes() {
    let exporter = everything();
    let text = exposition(&exporter);
    let shown = Exposition::parse(&text);
    let count = |name: &str, labels: &[(&str, &str)]| shown.sum(name, labels) as u64;
    let api = |rest: &[(&'static str, &'static str)]| {
        let labels: Vec<_> = [("limiter", "api")].iter().chain(rest).copied().collect();
        count("tollgate_decisions_total", &labels)
    };
    assert_eq!(api(&[("tier", ""), ("rule", "api"), ("outcome", "allowed")]), 3);
    assert_eq!(api(&[("rule", "api"), ("outcome", "denied")]), 2);
    assert_eq!(api(&[("cause", "rule"), ("outcome", "never_fits")]), 1);
    assert_eq!(api(&[("tier", "premium"), ("outcome", "allowed")]), 1);
    assert_eq!(api(&[("cause", "list"), ("rule", ""), ("outcome", "denied")]), 0);
    assert_eq!(count("tollgate_near_limit_total", &[("limiter", "api"), ("rule", "api")]), 1);
    assert_eq!(count("tollgate_shadow_denied_total", &[("limiter", "api"), ("rule", "strict")]), 1);
    assert_eq!(count("tollgate_shadow_denied_total", &[("limiter", "full"), ("rule", "")]), 0);
    let decided_by = |rule: &str| {
        let is_it = |(name, labels): &&(String, Labels)| {
            name == "tollgate_decisions_total" && labels["limiter"] == "api" && labels["rule"] == rule
        };
        shown.samples.keys().filter(is_it).count()
    };
    assert_eq!((decided_by("api"), decided_by("strict")), (3, 0), "what only watches decides nothing");
    assert_eq!(count("tollgate_keys", &[("limiter", "a \"quoted\\\" name\nof two lines")]), 2);
    assert_eq!(count("tollgate_keys", &[("limiter", "full")]), 8);
    assert_eq!(count("tollgate_keys_max", &[("limiter", "full")]), 8);
    assert_eq!(count("tollgate_evictions_total", &[("limiter", "full"), ("reason", "full")]), 12);
    assert_eq!(count("tollgate_evictions_total", &[("limiter", "full"), ("reason", "expired")]), 0);
    assert_eq!(count("tollgate_backend_state", &[("limiter", "api"), ("state", "probing")]), 1);
    assert_eq!(count("tollgate_backend_state", &[]), 1, "one state at a time");
    assert_eq!(count("tollgate_backend_calls_total", &[("result", "timed_out")]), 1);
    assert_eq!(count("tollgate_backend_latency_seconds_bucket", &[("le", "0.005")]), 9);
    assert_eq!(count("tollgate_backend_latency_seconds_count", &[]), 10);
    assert!((shown.sum("tollgate_backend_latency_seconds_sum", &[]) - 0.04).abs() < 1e-9);
    assert_eq!(count("tollgate_lease_tokens_total", &[("event", "spent")]), 80);
    assert_eq!(count("tollgate_lease_tokens_in_hand", &[]), 6);

    assert_eq!(text.matches("# TYPE tollgate_keys gauge\n").count(), 1, "a family once for all limiters");
    exporter.remove("full");
    let shown = Exposition::parse(&exposition(&exporter));
    assert!(shown.samples.keys().all(|(_, labels)| labels["limiter"] != "full"));
}

/// What `promtool` says of a text, as it is; nothing where it is not installed.
fn promtool(text: &str) -> Option<String> {
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        println!("promtool is not installed: only the reader above has been asked");
        return None;
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    Some(format!("{} {said}", output.status))
}

/// Promtool reads the older text format, and what it is given is what is served.
#[test]
fn promtool_has_nothing_to_say() {
    let exporter = everything();
    let text = exporter.text();
    assert_eq!(
        Exposition::parse_text(&text),
        Exposition::parse(&exposition(&exporter)),
        "both show the same"
    );
    if let Some(said) = promtool(&text) {
        assert_eq!(said, "exit status: 0 ");
    }
}

#[test]
fn the_dashboard_asks_for_all_that_is_shown_and_nothing_else() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/grafana-dashboard.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let queries = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let mut asked = BTreeSet::new();
    for query in queries.map(|target| target["expr"].as_str().unwrap()) {
        let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        asked.extend(words.filter(|word| word.starts_with("tollgate_")).map(str::to_owned));
    }
    let shown = Exposition::parse(&exposition(&everything()));
    let is_part = |name: &str| name.ends_with("_seconds_sum") || name.ends_with("_seconds_count");
    let shown: BTreeSet<String> =
        shown.samples.into_keys().map(|(name, _)| name).filter(|name| !is_part(name)).collect();
    assert_eq!(asked, shown);
}

#[test]
fn a_real_client_scrapes_the_example() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let server = runtime.spawn(metrics_server::serve(listener));
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let ask = |path: &str| {
        let mut response = agent.get(format!("http://{address}{path}")).call().unwrap();
        let kind = response.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
        (response.status().as_u16(), kind.unwrap_or_default(), response.body_mut().read_to_string().unwrap())
    };
    let statuses: Vec<u16> = (0..40).map(|_| ask("/").0).collect();
    let refused = statuses.iter().filter(|status| **status == 429).count() as u64;
    assert!(refused > 0 && statuses.contains(&200), "{statuses:?}");

    let (status, kind, older) = ask("/metrics");
    assert_eq!((status, &*kind), (200, "text/plain; version=0.0.4; charset=utf-8"));
    if let Some(said) = promtool(&older) {
        assert_eq!(said, "exit status: 0 ");
    }
    let scrape = agent.get(format!("http://{address}/metrics"));
    let accepted = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2";
    let mut response = scrape.header("accept", accepted).call().unwrap();
    let kind = response.headers().get("content-type").unwrap().to_str().unwrap();
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let text = response.body_mut().read_to_string().unwrap();
    let shown = Exposition::parse(&text);
    let decisions_of = |one: &Exposition| {
        let of_name = one.samples.iter().filter(|((name, _), _)| name == "tollgate_decisions_total");
        of_name.map(|((_, labels), count)| (labels.clone(), *count as u64)).collect::<Vec<_>>()
    };
    assert_eq!(decisions_of(&Exposition::parse_text(&older)), decisions_of(&shown));
    let decisions = |outcome| {
        shown.sum("tollgate_decisions_total", &[("limiter", "api"), ("rule", "api"), ("outcome", outcome)])
    };
    assert_eq!((decisions("allowed") as u64, decisions("denied") as u64), (40 - refused, refused));
    assert!(!text.contains("127.0.0.1"), "no label by key");

    let (_, _, offenders) = ask("/offenders");
    assert_eq!(offenders.trim(), format!("{refused} (+ 0) 127.0.0.1"));
    server.abort();
}

#[test]
fn the_facade_is_told_the_same() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let answers = Arc::new(AtomicU64::new(6));
    let exporter = everything();
    let more = Arc::clone(&answers);
    exporter.add_backend("api", move || {
        let mut backend = backend();
        backend.latency_counts[0] = more.load(Ordering::Relaxed);
        backend
    });
    metrics::with_local_recorder(&recorder, || exporter.publish());
    answers.store(9, Ordering::Relaxed);
    metrics::with_local_recorder(&recorder, || exporter.publish());

    let shown = Exposition::parse(&exposition(&exporter));
    let mut published = 0;
    for (key, _, help, value) in snapshotter.snapshot().into_vec() {
        let (_, key) = key.into_parts();
        assert!(help.is_some(), "{key:?} says what it is");
        let labels: Labels = key.labels().map(|one| (one.key().to_owned(), one.value().to_owned())).collect();
        match value {
            DebugValue::Counter(count) => {
                assert_eq!(shown.samples[&(key.name().to_owned(), labels)] as u64, count, "{key:?}");
            }
            DebugValue::Gauge(value) => {
                assert_eq!(shown.samples[&(key.name().to_owned(), labels)] as u64, value.0 as u64, "{key:?}");
            }
            DebugValue::Histogram(seconds) => {
                assert_eq!(key.name(), "tollgate_backend_latency_seconds");
                let count = |at: f64| seconds.iter().filter(|value| (value.0 - at).abs() < 1e-9).count();
                // Nine of the first class, three of which came between the two tellings.
                assert_eq!((count(0.000_5), count(0.005), count(0.01), seconds.len()), (9, 3, 1, 13));
            }
        }
        published += 1;
    }
    let histogram_samples = shown.samples.keys().filter(|(name, _)| name.contains("_seconds")).count();
    assert_eq!(published, shown.samples.len() - histogram_samples + 1);
}

/// What the recorder has of a counter, summed over the series that have these labels.
fn told(snapshotter: &Snapshotter, name: &str, labels: &[(&str, &str)]) -> u64 {
    let has = |key: &metrics::Key, (name, value): &(&str, &str)| {
        key.labels().any(|label| label.key() == *name && label.value() == *value)
    };
    let of_key = |(key, _, _, value): (metrics_util::CompositeKey, _, _, DebugValue)| {
        let key = key.key();
        let is_it = key.name() == name && labels.iter().all(|label| has(key, label));
        match value {
            DebugValue::Counter(count) if is_it => Some(count),
            _ => None,
        }
    };
    snapshotter.snapshot().into_vec().into_iter().filter_map(of_key).sum()
}

#[test]
fn a_counter_goes_on_where_another_limiter_has_the_name() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let exporter = Exporter::new();
    let publish = || metrics::with_local_recorder(&recorder, || exporter.publish());
    // As it was told since it was asked for last.
    let allowed = || {
        let labels = [("limiter", "api"), ("rule", "0"), ("outcome", "allowed")];
        told(&snapshotter, "tollgate_decisions_total", &labels)
    };
    let built = |requests: u64| {
        let limiter = Limiter::builder().policy("1000/s").max_keys(8).named("api").count_decisions(true);
        let limiter = Arc::new(limiter.build().unwrap());
        (0..requests).for_each(|_| assert!(limiter.try_acquire("key").is_allowed()));
        limiter
    };
    let first = built(10);
    exporter.add_named(&first);
    // As often as one likes, and with a recorder that comes late.
    exporter.publish();
    publish();
    publish();
    assert_eq!(allowed(), 10);

    // One that has counted less, one that has counted more, and the same again.
    exporter.add("api", built(3));
    publish();
    assert_eq!(allowed(), 13);
    let third = built(50);
    exporter.add_named(&third);
    publish();
    exporter.add("api", &third);
    publish();
    assert_eq!(allowed(), 63);
    assert!(third.try_acquire("key").is_allowed());
    exporter.remove("api");
    publish();
    assert_eq!(allowed(), 0, "nothing more is told");
    assert_eq!(Arc::strong_count(&third), 1, "what was removed is let go of");
    exporter.add_named(&third);
    publish();
    assert_eq!(allowed(), 64);
}

#[test]
fn a_backend_that_is_added_again_is_told_once() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let exporter = Exporter::new();
    let show = |answers: u64| {
        exporter.add_backend("api", move || {
            let mut backend = backend();
            (backend.answered, backend.latency_counts[0]) = (answers, answers);
            backend
        });
        metrics::with_local_recorder(&recorder, || exporter.publish());
        let taken = snapshotter.snapshot().into_vec().into_iter().filter_map(|(key, _, _, value)| {
            let is_first = |seconds: &f64| (seconds - 0.000_5).abs() < 1e-9;
            match value {
                DebugValue::Histogram(seconds) => {
                    Some(seconds.iter().filter(|value| is_first(&value.0)).count() as u64)
                }
                DebugValue::Counter(count) if key.key().labels().any(|label| label.value() == "answered") => {
                    Some(count * 1000)
                }
                _ => None,
            }
        });
        // A snapshot empties the histogram, and the counter with it.
        taken.sum::<u64>()
    };
    assert_eq!(show(6), 6_006);
    assert_eq!(show(6), 6_000, "no latency is told twice");
    assert_eq!(show(8), 8_002);
    assert_eq!(show(3), 11_003, "another one, which began anew");
}

#[test]
fn a_static_is_shown_and_a_name_is_known() {
    static LOGIN: LazyLock<Limiter> = LazyLock::new(|| Limiter::new("5/min").unwrap());
    let exporter = Exporter::new();
    exporter.add("login", &*LOGIN);
    exporter.add_named(&*LOGIN);
    exporter.add_named(Arc::new(Limiter::builder().policy("1/s").named("api").build().unwrap()));
    let shown = Exposition::parse(&exposition(&exporter));
    let names: BTreeSet<_> = shown.samples.into_keys().map(|(_, labels)| labels["limiter"].clone()).collect();
    assert_eq!(names, ["api", "login", "unnamed"].map(str::to_owned).into());
}

/// Decisions of a backend beside a limiter of its name would be the same series twice.
#[test]
fn decisions_of_a_backend_are_shown_where_no_limiter_has_its_name() {
    let limiter = Limiter::builder().policy("2/h named api").count_decisions(true).build().unwrap();
    (0..3).for_each(|_| assert_eq!(limiter.try_acquire("key").limit(), 2));
    let exporter = Exporter::new();
    let decisions = limiter.stats().decisions;
    for name in ["api", "shared"] {
        let decisions = decisions.clone();
        exporter.add_backend(name, move || {
            let mut backend = backend();
            backend.decisions = decisions.clone();
            backend
        });
    }
    exporter.add("api", Arc::new(Limiter::new("1/s").unwrap()));
    let shown = Exposition::parse(&exposition(&exporter));
    assert_eq!(
        shown.sum("tollgate_decisions_total", &[("limiter", "shared"), ("outcome", "denied")]) as u64,
        1
    );
    let is_of_api =
        |(name, labels): &(String, Labels)| name == "tollgate_decisions_total" && labels["limiter"] == "api";
    assert!(!shown.samples.keys().any(is_of_api));
}

#[test]
fn rules_that_are_reloaded_are_shown_as_they_are() {
    let layer = RateLimitLayer::builder().limit("100/min").count_decisions(true).build().unwrap();
    let (handle, exporter) = (layer.handle(), Exporter::new());
    exporter.add_rules(&handle);
    let names = || -> BTreeSet<String> {
        let shown = Exposition::parse(&exposition(&exporter)).samples;
        shown.into_keys().map(|(_, labels)| labels["limiter"].clone()).collect()
    };
    let own = names();
    assert_eq!(own.len(), 1, "{own:?}");
    handle
        .reload("[[rule]]\nname = 'login'\nlimit = '5/min'\n[[rule]]\nname = 'api'\nlimit = '9/s'")
        .unwrap();
    assert_eq!(names(), own.iter().cloned().chain(["login".to_owned(), "api".to_owned()]).collect());
    exporter.add("api", Arc::new(Limiter::new("1/s").unwrap()));
    assert_eq!(names().len(), 3, "a name is shown once");
    handle.reload("rule = []").unwrap();
    exporter.remove("api");
    assert_eq!(names(), own, "what is gone is shown no more");
}

#[test]
fn a_count_that_is_worked_out_never_goes_back() {
    let spent = Arc::new(AtomicU64::new(50));
    let exporter = Exporter::new();
    let read = Arc::clone(&spent);
    exporter.add_backend("api", move || {
        let mut backend = Backend::default();
        backend.lease_tokens_spent = read.load(Ordering::Relaxed);
        backend
    });
    let mut seen = Vec::new();
    for now in [50, 49, 51] {
        spent.store(now, Ordering::Relaxed);
        let shown = Exposition::parse(&exposition(&exporter));
        seen.push(shown.sum("tollgate_lease_tokens_total", &[("event", "spent")]) as u64);
    }
    assert_eq!(seen, [50, 50, 51]);
}
