//! Publishing through the `metrics` facade, to whichever recorder is installed.

use super::Exporter;
use super::families::{Family, Kind, Sample, Value};
use metrics::Label;
use std::sync::PoisonError;

impl Exporter {
    /// Tells the recorder of the [`metrics`] facade everything there is to show, as it is now.
    ///
    /// To be called again and again, by a task or before every scrape: counters are set to what they have come to,
    /// so nothing is lost or told twice however often that is. The exception are latencies, which the facade only
    /// takes one by one: each answer since the last call is told as the upper end of its class, and those beyond the
    /// last as twice that.
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
        for Family { name, help, kind, samples } in self.families() {
            match kind {
                Kind::Counter => {
                    let name = format!("{name}_total");
                    metrics::describe_counter!(name.clone(), help);
                    for sample in samples {
                        let labels = labels_of(&sample);
                        if let Value::Number(number) = sample.value {
                            metrics::counter!(name.clone(), labels).absolute(number);
                        }
                    }
                }
                Kind::Gauge => {
                    metrics::describe_gauge!(name, help);
                    for sample in samples {
                        let labels = labels_of(&sample);
                        if let Value::Number(number) = sample.value {
                            #[allow(
                                clippy::cast_precision_loss,
                                reason = "a gauge is not exact beyond 2^53"
                            )]
                            metrics::gauge!(name, labels).set(number as f64);
                        }
                    }
                }
                Kind::Histogram => {
                    metrics::describe_histogram!(name, metrics::Unit::Seconds, help);
                    samples.iter().for_each(|sample| publish_latency(name, sample));
                }
            }
        }
    }
}

fn publish_latency(name: &'static str, sample: &Sample) {
    let Value::Latency { classes, source, .. } = &sample.value else { return };
    let histogram = metrics::histogram!(name, labels_of(sample));
    let mut published = source.published.lock().unwrap_or_else(PoisonError::into_inner);
    published.resize(classes.len(), 0);
    let mut last_bound = 0.0;
    for ((bound, count), published) in classes.iter().zip(published.iter_mut()) {
        let seconds = if bound.is_finite() { *bound } else { last_bound * 2.0 };
        last_bound = seconds;
        let new = count.saturating_sub(*published);
        if new > 0 {
            histogram.record_many(seconds, usize::try_from(new).unwrap_or(usize::MAX));
            *published = *count;
        }
    }
}

fn labels_of(sample: &Sample) -> Vec<Label> {
    sample.labels.iter().map(|(key, value)| Label::new(*key, value.clone())).collect()
}
