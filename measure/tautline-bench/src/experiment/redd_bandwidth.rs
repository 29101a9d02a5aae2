//! rtl_redd_udp, the bandwidth test that did not work then: n messages, and the time until all have arrived.

use tautline_report::table::in_one_unit;
use tautline_testbed::hosts::Hosts;

use super::volley::{self, VolleyPath, VolleyPaths};
use super::{Experiment, ExperimentError, Figure, Outcome, Parameter, Progress, Request};
use crate::path::{PAYLOAD_BYTES_MAX, sides};

pub(super) const EXPERIMENT: Experiment = Experiment {
    figures: &FIGURES,
    parameters: &PARAMETERS,
    run,
};

const FIGURES: [Figure; 1] = [Figure {
    name: "redd-bandwidth",
    source: "rtl_redd_udp, section 4",
    title: "n messages, and the time until all have arrived",
    found: "the test had troubles, no figures",
}];

const PARAMETERS: [Parameter; 2] = [
    Parameter {
        name: "count",
        meaning: "messages of a volley",
        range: (1, 100_000_000),
    },
    Parameter {
        name: "bytes",
        meaning: "one size of message in place of several, in bytes",
        range: (1, PAYLOAD_BYTES_MAX as u64),
    },
];

fn run(request: &Request, progress: &mut Progress<'_>) -> Result<Vec<Outcome>, ExperimentError> {
    let scale = request.scale;
    let sizes = match request.values.or("bytes", 0) {
        0 => vec![50, 64, 250, 500, 1000, 1472],
        bytes => vec![bytes as usize],
    };
    let count = request.values.or("count", scale.pick(200_000, 20_000, 300));
    let rounds = scale.pick(15, 5, 1);
    let hosts = Hosts::create(&sides::compared())?;
    let largest = sizes.iter().copied().max().unwrap_or(1);
    let mut ways = VolleyPaths::open(&hosts, largest)?;
    let rows = ways.measure(&sizes, rounds, |_| count, progress)?;
    let mut outcome = Outcome::of(&FIGURES[0]);
    ways.note(&mut outcome);
    outcome.set("volleys_of_each_path_and_size", rounds);
    outcome.set("offloads", hosts.offloads().text());
    outcome.rows = rows.iter().map(volley::Row::json).collect();
    outcome.table = {
        let (header, cells) = volley::table(&rows);
        in_one_unit(&header, &cells)
    };
    outcome.plots = vec![(&volley::chart(&rows, Vec::new())).into()];
    volley::judge(&mut outcome, &rows, &[(64, 2.0)]);
    let parts = VolleyPath::ALL.map(|way| {
        let last = sizes
            .iter()
            .rev()
            .find_map(|bytes| volley::row(&rows, way, *bytes));
        last.map(|row| {
            format!(
                "{} {} messages of {} bytes in {:.1} ms",
                way.name(),
                count,
                row.bytes,
                count as f64 / row.messages_per_s() * 1e3
            )
        })
    });
    outcome.here = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    Ok(vec![outcome])
}
