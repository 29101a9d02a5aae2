//! Figures of the live view for Prometheus, in its text format.

use std::fmt::Error;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use tautline_state::text::plain;

use super::Picture;
use crate::look::{NodeFigures, Port};
use crate::row::{Kind, NAME_CHARS_MAX, all_ports, full, lost, node_name, refused, sum};

/// Labels of a metric.
type Labels = Vec<(&'static str, String)>;

/// All metrics of a picture as text.
pub(super) fn text(picture: &Arc<Picture>) -> Result<String, Error> {
    let mut registry = Registry::with_prefix("taut");
    registry.register_collector(Box::new(Metrics(Arc::clone(picture))));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Metrics(Arc<Picture>);

/// A metric of ports: name, help, figure; and whether it counts.
type PortMetric = (&'static str, &'static str, fn(&Port) -> Option<u64>, bool);

const PORT_METRICS: [PortMetric; 10] = [
    ("port_sent", "Messages sent", |port| Some(port.sent), true),
    (
        "port_sent_bytes",
        "Bytes of the messages sent",
        |port| Some(port.sent_bytes),
        true,
    ),
    (
        "port_received",
        "Messages handed to the application",
        |port| Some(port.received),
        true,
    ),
    (
        "port_received_bytes",
        "Bytes of those",
        |port| Some(port.received_bytes),
        true,
    ),
    (
        "port_lost",
        "Messages lost or incomplete",
        |port| Some(lost(port)),
        true,
    ),
    (
        "port_dropped_full",
        "Messages for which there was no room",
        |port| Some(full(port)),
        true,
    ),
    (
        "port_refused",
        "Messages refused, and sends that failed",
        |port| Some(refused(port)),
        true,
    ),
    (
        "port_waiting",
        "Messages that wait",
        |port| Some(sum(port.queued.iter().copied())),
        false,
    ),
    (
        "port_age_nanoseconds",
        "Age of the newest value",
        |port| port.age_ns,
        false,
    ),
    (
        "port_valid",
        "Whether the newest value is valid",
        |port| port.valid.map(u64::from),
        false,
    ),
];

impl Metrics {
    /// Ports with their labels.
    fn ports(&self) -> impl Iterator<Item = (Labels, &Port)> {
        let nodes = self.0.now.nodes.iter().map(|node| &node.status);
        nodes.flat_map(|node| {
            all_ports(node)
                .map(move |(kind, number, port)| (labels(node, kind, number, port), port))
        })
    }

    fn latencies(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let name = "port_latency_nanoseconds";
        let help = "From arrival to read, measured while somebody looks into a port";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, port) in self.ports() {
            let Some(latency) = &port.latency else {
                continue;
            };
            let buckets = latency
                .buckets
                .iter()
                .map(|(upper_ns, count)| (*upper_ns as f64, *count));
            let mut buckets: Vec<(f64, u64)> = buckets.collect();
            buckets.push((f64::MAX, 0));
            let count = sum(latency.buckets.iter().map(|(_, count)| *count));
            let mut one = family.encode_family(&labels)?;
            one.encode_histogram::<NoLabelSet>(latency.sum_ns as f64, count, &buckets, None)?;
        }
        Ok(())
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        for (name, help, figure, counts) in PORT_METRICS {
            let metric_type = match counts {
                true => MetricType::Counter,
                false => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(name, help, None, metric_type)?;
            for (labels, port) in self.ports() {
                let Some(value) = figure(port) else { continue };
                let mut one = family.encode_family(&labels)?;
                match counts {
                    true => count(&mut one, value)?,
                    false => one.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?,
                }
            }
        }
        self.latencies(&mut encoder)?;
        let (name, help) = ("task_missed", "Jobs that ended after their deadline");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for run in &self.0.now.runs {
            for (about, view) in run.about.tasks.iter().zip(&run.tasks) {
                let labels: Labels = vec![
                    ("process", run.about.process.to_string()),
                    ("run", label(&run.about.name)),
                    ("task", label(&about.name)),
                ];
                count(&mut family.encode_family(&labels)?, view.missed)?;
            }
        }
        Ok(())
    }
}

fn count(encoder: &mut MetricEncoder<'_>, value: u64) -> Result<(), Error> {
    encoder.encode_counter::<NoLabelSet, u64, u64>(&value, None)
}

/// A name from another process as a label; the library escapes the rest.
fn label(text: &str) -> String {
    plain(text, NAME_CHARS_MAX)
}

fn labels(node: &NodeFigures, kind: Kind, number: u16, port: &Port) -> Labels {
    vec![
        ("process", node.process.to_string()),
        ("node", label(&node_name(node))),
        ("kind", kind.name().to_owned()),
        ("port", number.to_string()),
        ("name", label(port.name.as_deref().unwrap_or_default())),
    ]
}
