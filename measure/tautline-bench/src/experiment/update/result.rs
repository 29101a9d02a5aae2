//! Results of the updates: rows, table, surfaces, and the targets.

use serde_json::{Value, json};
use tautline_report::plot::latency_text;
use tautline_report::surface::{Surface, Surfaces};
use tautline_report::table::{Cell, in_one_unit};

use super::{Moment, PATHS, PairUpdates, Plan};
use crate::experiment::{Check, Outcome, ratio};

/// So many states at once are a backlog: most of what ten times as many sent as read leave.
const MANY_STATES: u32 = 8;
/// Limit of a sampling update at the median, and how far its medians may lie apart.
const SAMPLING_P50_NS_MAX: u64 = 200;
const SAMPLING_SPREAD_MAX: f64 = 1.5;

/// All that was measured.
pub(super) struct Measured {
    pub(super) plan: Plan,
    /// For each path, for each pair.
    pub(super) found: Vec<Vec<PairUpdates>>,
}

impl Measured {
    /// Fills in what belongs to a path's figure.
    pub(super) fn tell(&self, outcome: &mut Outcome, path: usize) {
        outcome.rows = self.rows();
        outcome.table = self.table();
        outcome.plots = Moment::ALL
            .map(|moment| (&self.surfaces(moment)).into())
            .into();
        let name = PATHS[path];
        let spans = Moment::ALL.map(|moment| {
            let medians = self.medians(path, moment);
            (medians[0], medians[medians.len() - 1])
        });
        let [woken, awake] =
            spans.map(|(least, most)| format!("{} to {}", latency_text(least), latency_text(most)));
        let (few, many) = self.with_backlog(path);
        outcome.here = format!(
            "{name} {woken} straight from sleep (medians of the {} pairs; {} where one state had come, {} where {MANY_STATES} or more), {awake} when awake",
            self.plan.pairs(),
            latency_text(few),
            latency_text(many),
        );
        if path == 2 {
            let found = Moment::ALL.into_iter().zip(spans);
            outcome.checks = found
                .flat_map(|(moment, span)| sampling_checks(moment, span))
                .collect();
        } else {
            outcome.checks = vec![Check {
                target: format!("{name}: grows with the backlog"),
                found: format!("{} to {}", latency_text(few), latency_text(many)),
                met: many > few,
            }];
        }
    }

    /// Median costs of a path's pairs, rising.
    fn medians(&self, path: usize, moment: Moment) -> Vec<u64> {
        sorted(self.found[path].iter().map(|found| found.median(moment)))
    }

    /// Median costs straight from sleep of updates that found one state come, and of those that found many.
    fn with_backlog(&self, path: usize) -> (u64, u64) {
        let with = |wanted: fn(u32) -> bool| {
            let updates = self.found[path]
                .iter()
                .flat_map(|found| &found.0[Moment::Woken as usize]);
            let costs = updates
                .filter(|update| wanted(update.1))
                .map(|update| update.0);
            quantile(&sorted(costs), 0.5)
        };
        (
            with(|states| states == 1),
            with(|states| states >= MANY_STATES),
        )
    }

    fn rows(&self) -> Vec<Value> {
        let row = |path: usize, moment: Moment, pair: usize| {
            let found = &self.found[path][pair];
            let [sending_ns, updating_ns] = self.plan.pair(pair);
            let costs = found.costs(moment);
            let updates = &found.0[moment as usize];
            json!({
                "path": PATHS[path],
                "reader": moment.name(),
                "sending_period_ns": sending_ns,
                "updating_period_ns": updating_ns,
                "count": costs.len(),
                "min_ns": quantile(&costs, 0.0),
                "p50_ns": quantile(&costs, 0.5),
                "p99_ns": quantile(&costs, 0.99),
                "max_ns": quantile(&costs, 1.0),
                "states": updates.iter().map(|update| u64::from(update.1)).sum::<u64>(),
                "updates_with_news": updates.iter().filter(|update| update.1 > 0).count(),
                "costs_ns": updates.iter().map(|update| update.0).collect::<Vec<_>>(),
                "states_come": updates.iter().map(|update| update.1).collect::<Vec<_>>(),
            })
        };
        let mut rows = Vec::new();
        for path in 0..PATHS.len() {
            for moment in Moment::ALL {
                rows.extend((0..self.plan.pairs()).map(|pair| row(path, moment, pair)));
            }
        }
        rows
    }

    fn table(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let header = [
            "path, reader",
            "least median",
            "median pair",
            "greatest median",
            "greatest / least",
            "p50 with news",
            "p99 of all",
            "max of all",
            "updates",
        ];
        let mut cells = Vec::new();
        for (path, name) in PATHS.iter().enumerate() {
            for moment in Moment::ALL {
                let medians = self.medians(path, moment);
                let all = sorted(
                    self.found[path]
                        .iter()
                        .flat_map(|found| found.costs(moment)),
                );
                let news = sorted(
                    self.found[path]
                        .iter()
                        .flat_map(|found| found.costs_with_news(moment)),
                );
                let (least, most) = (medians[0], medians[medians.len() - 1]);
                cells.push(vec![
                    format!("{name}, {}", moment.name()).into(),
                    Cell::Time(least),
                    Cell::Time(quantile(&medians, 0.5)),
                    Cell::Time(most),
                    ratio(most, least).map_or("–".into(), |ratio| format!("{ratio:.2}").into()),
                    Cell::Time(quantile(&news, 0.5)),
                    Cell::Time(quantile(&all, 0.99)),
                    Cell::Time(quantile(&all, 1.0)),
                    all.len().to_string().into(),
                ]);
            }
        }
        in_one_unit(&header, &cells)
    }

    fn surfaces(&self, moment: Moment) -> Surfaces {
        let label = |ns: &u64| (ns / 1_000_000).to_string();
        let labels: Vec<String> = self.plan.periods.iter().map(label).collect();
        let count = labels.len();
        let surface = |path: usize| {
            let value = |sending: usize, updating: usize| {
                let found = &self.found[path][sending * count + updating];
                (!found.0[moment as usize].is_empty()).then(|| found.median(moment) as f64)
            };
            let row = |updating| (0..count).map(|sending| value(sending, updating)).collect();
            Surface {
                name: PATHS[path].to_owned(),
                rows_ns: (0..count).map(row).collect(),
            }
        };
        let when = match moment {
            Moment::Woken => "straight from sleep",
            Moment::Awake => "by a reader that is awake and has updated before",
        };
        Surfaces {
            caption: format!("Cost of an update {when}, medians"),
            across: ("sent every, ms", labels.clone()),
            up: ("updated every, ms", labels),
            surfaces: (0..PATHS.len()).map(surface).collect(),
            notes: vec![
                "The paper: RTDiP sync below 90 µs whatever the periods; TCP/IP and send/recv grow where more is sent than read."
                    .to_owned(),
            ],
        }
    }
}

/// The targets of figure 6, held against the least and the greatest median.
fn sampling_checks(moment: Moment, (least, most): (u64, u64)) -> [Check; 2] {
    let spread = most as f64 / least.max(1) as f64;
    let reader = moment.name();
    [
        Check {
            target: format!(
                "sampling, reader {reader}: median of every pair at most {SAMPLING_P50_NS_MAX} ns"
            ),
            found: latency_text(most),
            met: most <= SAMPLING_P50_NS_MAX,
        },
        Check {
            target: format!(
                "sampling, reader {reader}: medians of all pairs within a factor {SAMPLING_SPREAD_MAX}"
            ),
            found: format!("{spread:.2}"),
            met: spread <= SAMPLING_SPREAD_MAX,
        },
    ]
}

impl PairUpdates {
    fn costs(&self, moment: Moment) -> Vec<u64> {
        sorted(self.0[moment as usize].iter().map(|update| update.0))
    }

    fn costs_with_news(&self, moment: Moment) -> Vec<u64> {
        let updates = self.0[moment as usize].iter();
        updates
            .filter(|update| update.1 > 0)
            .map(|update| update.0)
            .collect()
    }

    fn median(&self, moment: Moment) -> u64 {
        quantile(&self.costs(moment), 0.5)
    }
}

fn sorted(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values
}

/// Of sorted values; 0 where there are none.
fn quantile(values: &[u64], share: f64) -> u64 {
    let last = values.len().saturating_sub(1);
    values
        .get((last as f64 * share).round() as usize)
        .copied()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_few_values() {
        assert_eq!(quantile(&[], 0.5), 0);
        assert_eq!(quantile(&[7], 0.99), 7);
        assert_eq!(quantile(&[1, 2, 3, 4, 5], 0.5), 3);
        assert_eq!(quantile(&[1, 2, 3, 4, 5], 1.0), 5);
    }
}
