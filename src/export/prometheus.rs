//! The collector that a registry of `prometheus-client` reads at every scrape.

use super::Exporter;
use super::families::{Family, Kind, Value};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use std::fmt;

/// Read at every scrape, after `registry.register_collector(Box::new(exporter.clone()))`.
///
/// Once for all limiters: two exporters in one registry would show each family twice, which no scraper takes.
impl Collector for Exporter {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { name, help, kind, samples } in self.families() {
            let metric_type = match kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut family = encoder.encode_descriptor(name, help, None, metric_type)?;
            for sample in &samples {
                let mut metric = family.encode_family(&sample.labels)?;
                match &sample.value {
                    Value::Number(number) if kind == Kind::Counter => {
                        metric.encode_counter::<NoLabelSet, u64, u64>(number, None)?;
                    }
                    Value::Number(number) => metric.encode_gauge(number)?,
                    Value::Latency { classes, sum_seconds } => {
                        let count = classes.iter().map(|(_, count)| count).sum();
                        metric.encode_histogram::<NoLabelSet>(*sum_seconds, count, classes, None)?;
                    }
                }
            }
        }
        Ok(())
    }
}
