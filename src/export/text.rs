//! The text that a Prometheus server takes from whoever does not speak `OpenMetrics`, version 0.0.4.

use super::Exporter;
use super::families::{Family, Kind, Sample, Value};
use std::fmt::Write;

impl Exporter {
    /// Everything there is to show, in the text format of Prometheus (`text/plain; version=0.0.4`): for those who
    /// ask for it, or where no registry of `prometheus-client` is at hand.
    ///
    /// ```
    /// use tollgate::{Limiter, export::Exporter};
    ///
    /// let exporter = Exporter::new();
    /// exporter.add("api", std::sync::Arc::new(Limiter::builder().policy("5/s").max_keys(100).build()?));
    /// assert!(exporter.text().contains("# TYPE tollgate_keys gauge\ntollgate_keys{limiter=\"api\"} 0\n"));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for Family { name, help, kind, samples } in self.families() {
            let (name, kind) = match kind {
                Kind::Counter => (format!("{name}_total"), "counter"),
                Kind::Gauge => (name.to_owned(), "gauge"),
                Kind::Histogram => (name.to_owned(), "histogram"),
            };
            // To write to a string does not fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            samples.iter().for_each(|sample| write_sample(&mut text, &name, sample));
        }
        text
    }
}

fn write_sample(text: &mut String, name: &str, sample: &Sample) {
    let labels: Vec<String> = sample.labels.iter().map(|(key, value)| label(key, value)).collect();
    let labels = labels.join(",");
    let _ = match &sample.value {
        Value::Number(number) => writeln!(text, "{name}{{{labels}}} {number}"),
        Value::Latency { classes, sum_seconds } => {
            let mut count = 0;
            for (bound, in_class) in classes {
                count += in_class;
                let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
                let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
            }
            writeln!(text, "{name}_sum{{{labels}}} {sum_seconds}\n{name}_count{{{labels}}} {count}")
        }
    };
}

fn label(key: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{key}=\"{value}\"")
}
