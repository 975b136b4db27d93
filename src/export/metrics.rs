//! Publishing through the `metrics` facade, to whichever recorder is installed.

use super::families::{self, Family, Kind, Sample, Value};
use super::{Exporter, Numbers, Source};
use metrics::Label;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

/// What the recorder has been told, by source.
#[derive(Default)]
pub(super) struct Told {
    limiters: HashMap<Arc<str>, Series>,
    backends: HashMap<Arc<str>, Series>,
}

/// What was told of the sources that had one name after each other.
#[derive(Default)]
struct Series {
    /// Which limiter it was; 0 of a backend, which is told apart by its counts.
    identity: u64,
    counters: HashMap<SeriesKey, Counter>,
    /// How many latencies of each class.
    latencies: Vec<u64>,
}

/// A name and labels.
type SeriesKey = (&'static str, Vec<(&'static str, String)>);

/// A counter that goes on where another source takes the name.
#[derive(Clone, Copy, Default)]
struct Counter {
    /// What the earlier sources have come to.
    before: u64,
    now: u64,
}

impl Told {
    fn of(&mut self, source: &Source) -> Option<&mut Series> {
        let known = match source.numbers {
            Numbers::Limiter(_) => &mut self.limiters,
            Numbers::Backend(_) => &mut self.backends,
            #[cfg(feature = "tower")]
            Numbers::Rules(_) => return None,
        };
        Some(known.entry(Arc::clone(&source.name)).or_default())
    }
}

impl Series {
    /// Whether the samples are of another source than those before: of a backend, if it has counted less. Spent
    /// tokens may seem to go back a little by themselves.
    fn is_another(&self, identity: u64, samples: &[(&'static str, &Sample)]) -> bool {
        let has_less = |(name, sample): &(&'static str, &Sample)| match &sample.value {
            Value::Number(number) => {
                let counter = self.counters.get(&(*name, sample.labels.clone()));
                *name != "tollgate_lease_tokens" && counter.is_some_and(|counter| *number < counter.now)
            }
            Value::Latency { classes, .. } => {
                classes.iter().zip(&self.latencies).any(|((_, count), told)| count < told)
            }
        };
        identity != self.identity || (identity == 0 && samples.iter().any(has_less))
    }

    /// From here on, another source is counted.
    fn begin(&mut self, identity: u64) {
        self.identity = identity;
        for counter in self.counters.values_mut() {
            *counter = Counter { before: counter.before.wrapping_add(counter.now), now: 0 };
        }
        self.latencies.clear();
    }

    /// What a counter has come to over all sources.
    fn count(&mut self, name: &'static str, sample: &Sample, number: u64) -> u64 {
        let counter = self.counters.entry((name, sample.labels.clone())).or_default();
        counter.now = counter.now.max(number);
        counter.before.wrapping_add(counter.now)
    }
}

impl Exporter {
    /// Tells the recorder of the [`metrics`] facade everything there is to show, as it is now.
    ///
    /// To be called again and again, by a task or before every scrape: counters are set to what they have come to,
    /// so nothing is lost or told twice however often that is. The exception are latencies, which the facade only
    /// takes one by one: each answer since the last call is told as the upper end of its class, and those beyond the
    /// last as twice that.
    ///
    /// Where another limiter has taken a name, after a reload or a change of room, its counts are added to those of
    /// the one before, as that was told of last: a counter never stands still or goes back. What the earlier one
    /// counted after the last call is not told; call once more before the change if that matters.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # let limiter = Arc::new(tollgate::Limiter::new("100/min")?);
    /// let exporter = tollgate::export::Exporter::new();
    /// exporter.add("api", &limiter);
    /// exporter.publish();
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn publish(&self) {
        // Held while numbers are read: what is told later is never older.
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let sources = self.shown();
        let families = families::of(&sources);
        for (index, source) in sources.iter().enumerate() {
            let counted = families.iter().filter(|family| family.kind != Kind::Gauge);
            let samples =
                counted.flat_map(|family| family.samples.iter().map(|sample| (family.name, sample)));
            let samples: Vec<_> = samples.filter(|(_, sample)| sample.source == index).collect();
            let identity = match &source.numbers {
                Numbers::Limiter(limiter) => limiter.watch.identity.number(),
                _ => 0,
            };
            let Some(series) = told.of(source) else { continue };
            if series.is_another(identity, &samples) {
                series.begin(identity);
            }
        }
        for Family { name, help, kind, samples } in &families {
            describe(name, help, *kind);
            for sample in samples {
                if let Some(series) = told.of(&sources[sample.source]) {
                    tell(series, name, *kind, sample);
                }
            }
        }
    }
}

fn describe(name: &'static str, help: &'static str, kind: Kind) {
    match kind {
        Kind::Counter => metrics::describe_counter!(format!("{name}_total"), help),
        Kind::Gauge => metrics::describe_gauge!(name, help),
        Kind::Histogram => metrics::describe_histogram!(name, metrics::Unit::Seconds, help),
    }
}

fn tell(series: &mut Series, name: &'static str, kind: Kind, sample: &Sample) {
    let labels: Vec<Label> =
        sample.labels.iter().map(|(key, value)| Label::new(*key, value.clone())).collect();
    match &sample.value {
        Value::Number(number) if kind == Kind::Counter => {
            let count = series.count(name, sample, *number);
            metrics::counter!(format!("{name}_total"), labels).absolute(count);
        }
        #[allow(clippy::cast_precision_loss, reason = "a gauge is not exact beyond 2^53")]
        Value::Number(number) => metrics::gauge!(name, labels).set(*number as f64),
        Value::Latency { classes, .. } => {
            let histogram = metrics::histogram!(name, labels);
            tell_latencies(&mut series.latencies, classes, |seconds, count| {
                histogram.record_many(seconds, count);
            });
        }
    }
}

/// Tells what is new of each class, as its upper end.
fn tell_latencies(told: &mut Vec<u64>, classes: &[(f64, u64)], record: impl Fn(f64, usize)) {
    told.resize(classes.len(), 0);
    let mut last_bound = 0.0;
    for ((bound, count), told) in classes.iter().zip(told) {
        let seconds = if bound.is_finite() { *bound } else { last_bound * 2.0 };
        last_bound = seconds;
        let new = count.saturating_sub(*told);
        if new > 0 {
            record(seconds, usize::try_from(new).unwrap_or(usize::MAX));
            *told = *count;
        }
    }
}
