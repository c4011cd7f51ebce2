//! The writer of Prometheus' text format 0.0.4 and of OpenMetrics 1.0.0.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::catalogue::{ALL, Kind, Metric};
use crate::counters::Histogram;

/// A format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format 0.0.4, also that of the textfile collector.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The format that a client prefers, by its `Accept` header.
    pub fn accepted(header: &str) -> Self {
        let mut open = 0.0;
        let mut text = 0.0;
        for range in header.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default().to_ascii_lowercase();
            let mut weight = 1.0_f64;
            let mut is_known = true;
            for (key, value) in parts.filter_map(|part| part.split_once('=')) {
                match key.trim() {
                    "q" => weight = value.trim().parse().unwrap_or(0.0),
                    "version" => is_known = !name.starts_with("application/") || is_version_1(value),
                    _ => {}
                }
            }
            match name.as_str() {
                "application/openmetrics-text" if is_known => open = weight.max(open),
                "text/plain" | "text/*" | "*/*" => text = weight.max(text),
                _ => {}
            }
        }
        if open > 0.0 && open >= text { Self::OpenMetrics } else { Self::Text }
    }
}

/// Version 0.0.1 of OpenMetrics, which older clients also accept, is the same for what is written here.
fn is_version_1(version: &str) -> bool {
    matches!(version.trim().trim_matches('"'), "1.0.0" | "0.0.1")
}

/// Values to be written, by metric.
#[derive(Debug, Default)]
pub struct Exposition {
    values: BTreeMap<&'static str, Vec<Sample>>,
}

/// One series, or all series of one histogram.
#[derive(Debug)]
struct Sample {
    /// The values in the order of the metric's labels.
    labels: Vec<String>,
    value: Value,
}

#[derive(Debug)]
enum Value {
    Number(f64),
    Histogram(Histogram),
}

impl Exposition {
    /// Sets one series. `labels` has a value for each label of the metric.
    pub fn set(&mut self, metric: &Metric, labels: &[&str], value: f64) {
        self.push(metric, labels, Value::Number(value));
    }

    /// Writes the sample of a counter or another whole number.
    #[expect(clippy::cast_precision_loss, reason = "Prometheus' values are floats")]
    pub fn count(&mut self, metric: &Metric, labels: &[&str], value: u64) {
        self.set(metric, labels, value as f64);
    }

    /// Writes a sample that is 1 for yes and 0 for no.
    pub fn flag(&mut self, metric: &Metric, labels: &[&str], value: bool) {
        self.set(metric, labels, f64::from(u8::from(value)));
    }

    pub fn histogram(&mut self, metric: &Metric, labels: &[&str], histogram: &Histogram) {
        self.push(metric, labels, Value::Histogram(histogram.clone()));
    }

    fn push(&mut self, metric: &Metric, labels: &[&str], value: Value) {
        debug_assert_eq!(labels.len(), metric.labels.len(), "{}", metric.name);
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        self.values.entry(metric.name).or_default().push(Sample { labels, value });
    }

    /// All values as text, in the order of the catalogue.
    pub fn render(&self, format: Format) -> String {
        let mut text = String::new();
        for metric in ALL {
            if let Some(samples) = self.values.get(metric.name) {
                family(&mut text, metric, samples, format);
            }
        }
        if format == Format::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }
}

/// Writing to a string cannot fail.
fn family(text: &mut String, metric: &Metric, samples: &[Sample], format: Format) {
    let (kind, name) = match (metric.kind, format) {
        (Kind::Gauge, _) | (Kind::Info, Format::Text) => ("gauge", metric.name),
        (Kind::Histogram, _) => ("histogram", metric.name),
        (Kind::Counter, Format::Text) => ("counter", metric.name),
        // The name of the family has no suffix there.
        (Kind::Counter, Format::OpenMetrics) => ("counter", metric.name.trim_end_matches("_total")),
        (Kind::Info, Format::OpenMetrics) => ("info", metric.name.trim_end_matches("_info")),
    };
    writeln!(text, "# HELP {name} {}", escaped(metric.help, format == Format::OpenMetrics)).ok();
    writeln!(text, "# TYPE {name} {kind}").ok();
    for sample in samples {
        match &sample.value {
            Value::Number(value) => {
                line(text, metric.name, "", &labels(metric, sample, None), *value);
            }
            Value::Histogram(histogram) => of_histogram(text, metric, sample, histogram),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus' values are floats")]
fn of_histogram(text: &mut String, metric: &Metric, sample: &Sample, histogram: &Histogram) {
    for (bound, below) in histogram.cumulative() {
        // A float in both formats, so that both give the same series.
        let bound = format!("{:?}", bound as f64 / 1e3);
        line(text, metric.name, "_bucket", &labels(metric, sample, Some(&bound)), below as f64);
    }
    let count = histogram.count() as f64;
    line(text, metric.name, "_bucket", &labels(metric, sample, Some("+Inf")), count);
    let own = labels(metric, sample, None);
    line(text, metric.name, "_sum", &own, histogram.sum_ms as f64 / 1e3);
    line(text, metric.name, "_count", &own, count);
}

fn line(text: &mut String, name: &str, suffix: &str, labels: &str, value: f64) {
    writeln!(text, "{name}{suffix}{labels} {value}").ok();
}

fn labels(metric: &Metric, sample: &Sample, bound: Option<&str>) -> String {
    let own = metric.labels.iter().copied().zip(sample.labels.iter().map(String::as_str));
    let mut text = String::new();
    for (name, value) in own.chain(bound.map(|bound| ("le", bound))) {
        text.push(if text.is_empty() { '{' } else { ',' });
        write!(text, "{name}=\"{}\"", escaped(value, true)).ok();
    }
    if !text.is_empty() {
        text.push('}');
    }
    text
}

fn escaped(text: &str, quotes: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '"' if quotes => escaped.push_str("\\\""),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::catalogue;
    use super::*;

    fn some() -> Exposition {
        let mut out = Exposition::default();
        out.count(&catalogue::KEEPER_STARTS, &[], 3);
        out.flag(&catalogue::KEEPER_UP, &[], true);
        out.set(&catalogue::BUILD, &["1\\2", "a\"b\nc", ""], 1.0);
        let histogram = Histogram { buckets: vec![1, 0, 2], sum_ms: 640 };
        out.histogram(&catalogue::JOB_WAIT, &["vm"], &histogram);
        out
    }

    #[test]
    fn the_text_format_is_written_as_specified() {
        let text = some().render(Format::Text);
        for expected in [
            "# TYPE greenroom_keeper_starts_total counter\ngreenroom_keeper_starts_total 3\n",
            "# TYPE greenroom_build_info gauge\ngreenroom_build_info{version=\"1\\\\2\",commit=\"a\\\"b\\nc\",features=\"\"} 1\n",
            "greenroom_job_wait_seconds_bucket{pool=\"vm\",le=\"0.05\"} 1\n",
            "greenroom_job_wait_seconds_bucket{pool=\"vm\",le=\"0.25\"} 3\n",
            "greenroom_job_wait_seconds_bucket{pool=\"vm\",le=\"1.0\"} 3\n",
            "greenroom_job_wait_seconds_bucket{pool=\"vm\",le=\"+Inf\"} 3\n\
             greenroom_job_wait_seconds_sum{pool=\"vm\"} 0.64\ngreenroom_job_wait_seconds_count{pool=\"vm\"} 3\n",
        ] {
            assert!(text.contains(expected), "{expected}\nis not in\n{text}");
        }
        assert!(!text.contains("# EOF"));
    }

    #[test]
    fn openmetrics_names_families_without_suffix_and_has_an_end() {
        let text = some().render(Format::OpenMetrics);
        for expected in [
            "# TYPE greenroom_keeper_starts counter\ngreenroom_keeper_starts_total 3\n",
            "# TYPE greenroom_build info\ngreenroom_build_info{",
        ] {
            assert!(text.contains(expected), "{expected}\nis not in\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n"));
    }

    #[test]
    fn a_client_gets_the_format_that_it_prefers() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (header, expected) in [
            (prometheus, Format::OpenMetrics),
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/html, */*;q=0.8", Format::Text),
            ("Application/OpenMetrics-Text; version=1.0.0; charset=utf-8", Format::OpenMetrics),
            ("application/openmetrics-text; version=2.0.0", Format::Text),
            ("application/openmetrics-text;q=0.3, text/plain;q=0.5", Format::Text),
            ("application/openmetrics-text;q=0", Format::Text),
            ("application/openmetrics-text;q=rubbish", Format::Text),
            (";;;=,,q=", Format::Text),
        ] {
            assert_eq!(Format::accepted(header), expected, "{header}");
        }
    }
}
