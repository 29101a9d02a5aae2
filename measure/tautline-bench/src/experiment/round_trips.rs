//! Round trips of paths side by side, measured as by `taut bench rtt`, for experiments.

use serde_json::json;
use tautline_report::Summary;
use tautline_testbed::child;
use tautline_testbed::hosts::Hosts;

use super::{Check, ExperimentError, Outcome, Progress, ratio};
use crate::echo::{self, Path};
use crate::rtt::{self, Row, RttError, Settings};
use crate::sides::Placement;

/// Round trips in one slice: about 2 ms.
const SLICE: u64 = 250;

/// Limit of a port of plain UDP as a share of a raw port's time, at the median and at p99.
const UDP_OF_RAW_MAX: f64 = 1.10;

/// Result of the measurement.
pub(super) struct Measured {
    pub(super) rows: Vec<Row>,
    active: Vec<(Path, String)>,
    offloads: &'static str,
    placement: Placement,
    count: u64,
    remark: Option<String>,
}

/// Measures `count` round trips of each path and size, on hosts of their own.
pub(super) fn measure(
    paths: &[Path],
    sizes: &[usize],
    count: u64,
    progress: &mut Progress<'_>,
) -> Result<Measured, ExperimentError> {
    let mut settings = Settings {
        slice: SLICE,
        ..Settings::new(paths.to_vec(), sizes.to_vec(), count)
    };
    let remark = settings
        .placement
        .choose_cpus(&child::allowed_cpus().unwrap_or_default());
    let hosts = Hosts::create(&echo::hosts_for(paths))?;
    let measured = rtt::run(&hosts, &settings, progress).map_err(|error| match error {
        RttError::Interrupted(signal) => ExperimentError::Interrupted(signal),
        other => other.into(),
    })?;
    Ok(Measured {
        rows: measured.rows,
        active: measured.active,
        offloads: measured.offloads,
        placement: settings.placement,
        count,
        remark,
    })
}

impl Measured {
    /// Of a path at a size; nothing if no round trip was counted.
    pub(super) fn summary(&self, path: Path, payload_bytes: usize) -> Option<Summary> {
        self.rows
            .iter()
            .find(|row| row.path == path && row.payload_bytes == payload_bytes)
            .map(|row| row.histogram.summary())
            .filter(|summary| summary.count > 0)
    }

    /// Adds what was the case to an outcome.
    pub(super) fn note(&self, outcome: &mut Outcome) {
        outcome.set("round_trips_of_each_path_and_size", self.count);
        outcome.set("client_cpu", json!(self.placement.client_cpu));
        outcome.set("server_cpu", json!(self.placement.server_cpu));
        outcome.set("clock", "CLOCK_MONOTONIC");
        outcome.set("link", "veth between two network namespaces");
        outcome.set("offloads", self.offloads);
        let active = self.active.iter();
        outcome
            .active
            .extend(active.map(|(path, text)| (path.name().to_owned(), text.clone())));
        outcome.remarks.extend(self.remark.clone());
        outcome.remarks.push(
            "No demux is attached to the cable of kernel UDP. Both sides of all paths but udp-block spin, under the ordinary policy."
                .to_owned(),
        );
    }
}

/// Checks what a port of plain UDP takes of a raw port, at each size that both have; says what came out.
pub(super) fn judge_udp_of_raw(
    outcome: &mut Outcome,
    measured: &Measured,
    sizes: &[usize],
) -> String {
    let found = ["p50", "p99"].map(|name| {
        let of = |summary: Summary| match name {
            "p50" => summary.p50_ns,
            _ => summary.p99_ns,
        };
        let at = |bytes: &usize| {
            let udp = measured.summary(Path::UdpPort, *bytes)?;
            ratio(of(udp), of(measured.summary(Path::Queuing, *bytes)?))
        };
        let ratios: Vec<f64> = sizes.iter().filter_map(at).collect();
        let found = span(&ratios);
        outcome.checks.push(Check {
            target: format!(
                "udp-port: at most {UDP_OF_RAW_MAX:.2} of queuing at {name}, every size"
            ),
            met: !ratios.is_empty() && ratios.iter().all(|ratio| *ratio <= UDP_OF_RAW_MAX),
            found: found.clone(),
        });
        format!("{found} at {name}")
    });
    format!("UDP takes {} of raw", found.join(" and "))
}

/// Medians of a path over those of kernel UDP, at each size that both have.
pub(super) fn of_kernel_udp(measured: &Measured, path: Path, sizes: &[usize]) -> Vec<f64> {
    let at = |bytes: &usize| {
        let ours = measured.summary(path, *bytes)?;
        ratio(ours.p50_ns, measured.summary(Path::UdpPoll, *bytes)?.p50_ns)
    };
    sizes.iter().filter_map(at).collect()
}

/// The least and the greatest of ratios, for the user.
pub(super) fn span(ratios: &[f64]) -> String {
    let least = ratios.iter().copied().reduce(f64::min);
    let most = ratios.iter().copied().reduce(f64::max);
    match (least, most) {
        (Some(least), Some(most)) if least < most => format!("{least:.2} to {most:.2}"),
        (Some(least), _) => format!("{least:.2}"),
        _ => "nothing".to_owned(),
    }
}
