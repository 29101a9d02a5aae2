//! Experiments: figures and tables of the papers, run again on this machine. `taut experiment` lists and runs them.
//!
//! An [`Experiment`] is one measurement, which may make several [`Figure`]s. To add one: a module with a constant
//! of this type, its place in [`ALL`], and a folder `measure/experiments/NAME` for each figure. Everything else (files,
//! page, table, line, list, completions) comes from the [`Outcome`]s that it returns.

mod bandwidth;
mod computation;
mod emblix;
mod ends;
mod latency;
mod layer_ends;
mod parameter;
mod passage;
mod receive;
mod redd_bandwidth;
mod redd_rtt;
pub mod report;
mod round_trips;
mod rtmux;
mod side_cpus;
pub mod somebody_else;
mod ssrtudp_beside;
mod ssrtudp_layers;
mod ssrtudp_size;
mod ssrtudp_smoother;
mod stream;
mod traffic;
mod update;
mod volley;
mod window;

use std::io;
use std::sync::Mutex;

use serde::Serialize;
use serde_json::{Map, Value};
use tautline_lab::kernels::{Event, KernelsError};
use tautline_report::bars::Bars;
use tautline_report::chart::Chart;
use tautline_report::page::Block;
use tautline_report::surface::Surfaces;
use tautline_testbed::hosts::HostsError;
use tautline_testbed::interrupt;
use thiserror::Error;

pub use parameter::{Assignment, Parameter, ParameterError, Values};

use crate::load::LoadError;
use crate::path::PathError;
use crate::rtt::RttError;

/// All of them, in the order of the list and of pages.
pub const ALL: [&Experiment; 12] = [
    &computation::EXPERIMENT,
    &update::EXPERIMENT,
    &latency::EXPERIMENT,
    &bandwidth::EXPERIMENT,
    &emblix::EXPERIMENT,
    &redd_rtt::EXPERIMENT,
    &redd_bandwidth::EXPERIMENT,
    &ssrtudp_size::EXPERIMENT,
    &ssrtudp_beside::EXPERIMENT,
    &ssrtudp_layers::EXPERIMENT,
    &ssrtudp_smoother::EXPERIMENT,
    &rtmux::EXPERIMENT,
];

/// One figure of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Its name on the command line, and its folder's.
    pub name: &'static str,
    /// Paper and figure.
    pub source: &'static str,
    /// Quantity that is measured, in a few words.
    pub title: &'static str,
    /// Result of the paper.
    pub found: &'static str,
}

/// One measurement.
#[derive(Debug)]
pub struct Experiment {
    /// The figures that it makes.
    pub figures: &'static [Figure],
    /// Parameters that the user may set.
    pub parameters: &'static [Parameter],
    /// Measures, and returns an outcome for each figure, in the same order.
    pub run: fn(&Request, &mut Progress<'_>) -> Result<Vec<Outcome>, ExperimentError>,
}

/// Called with what is done and what there is to do, in steps of the experiment's own.
pub type Progress<'a> = dyn FnMut(u64, u64) + Send + 'a;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// The paper's own periods and sizes, and enough samples for its percentiles.
    Full,
    /// Periods scaled down and fewer samples: about a minute.
    Quick,
    /// So little that the figures mean nothing: what the tests run.
    Tiny,
}

impl Scale {
    /// The value for this scale.
    pub fn pick<T>(self, full: T, quick: T, tiny: T) -> T {
        match self {
            Scale::Full => full,
            Scale::Quick => quick,
            Scale::Tiny => tiny,
        }
    }
}

/// Request to an experiment.
#[derive(Clone, Debug)]
pub struct Request {
    /// How much is measured.
    pub scale: Scale,
    /// Values that the user set; of these an experiment looks at those that are among its parameters.
    pub values: Values,
}

/// Result of a figure.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which.
    pub figure: &'static Figure,
    /// Parameters, by name with unit.
    pub settings: Map<String, Value>,
    /// Link and mode of each path.
    pub active: Vec<(String, String)>,
    /// The raw data: objects with the same keys throughout.
    pub rows: Vec<Value>,
    /// Table for people: the heading, and the cells. Columns of times have one unit each.
    pub table: (Vec<String>, Vec<Vec<String>>),
    /// The plots.
    pub plots: Vec<Plot>,
    /// Result found here, to stand beside the paper's.
    pub here: String,
    /// Targets and whether they were met.
    pub checks: Vec<Check>,
    /// Remarks that are needed to read the figures.
    pub remarks: Vec<String>,
}

impl Outcome {
    /// An outcome without anything in it yet.
    pub fn of(figure: &'static Figure) -> Outcome {
        Outcome {
            figure,
            settings: Map::new(),
            active: Vec::new(),
            rows: Vec::new(),
            table: (Vec::new(), Vec::new()),
            plots: Vec::new(),
            here: String::new(),
            checks: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// Notes a parameter.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.settings.insert(name.to_owned(), value.into());
    }

    /// The one line.
    pub fn line(&self) -> String {
        format!("the paper: {}, here: {}", self.figure.found, self.here)
    }
}

/// A target and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Target.
    pub target: String,
    /// Value that was reached.
    pub found: String,
    /// Whether that is enough.
    pub met: bool,
}

/// A plot, for the page and as a file where it can be one.
#[derive(Clone, Debug)]
pub struct Plot {
    /// For the page.
    pub block: Block,
    /// The drawing alone.
    pub svg: Option<String>,
}

impl From<&Chart> for Plot {
    fn from(chart: &Chart) -> Plot {
        Plot {
            block: chart.html(),
            svg: Some(chart.svg()),
        }
    }
}

impl From<&Surfaces> for Plot {
    fn from(surfaces: &Surfaces) -> Plot {
        Plot {
            block: surfaces.html(),
            svg: Some(surfaces.svg()),
        }
    }
}

impl From<&Bars> for Plot {
    fn from(bars: &Bars) -> Plot {
        Plot {
            block: bars.html(),
            svg: Some(bars.svg()),
        }
    }
}

impl From<Block> for Plot {
    fn from(block: Block) -> Plot {
        Plot { block, svg: None }
    }
}

/// Why there is no outcome.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The hosts could not be made or entered.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// A path could not be opened, or failed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The benchmark that the experiment is made of failed.
    #[error(transparent)]
    Rtt(#[from] RttError),
    /// There is no TCP stream to measure beside.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Kernels could not be compared.
    #[error(transparent)]
    Kernels(#[from] KernelsError),
    /// No part of the experiment could be measured; the reason of the first.
    #[error("{0}")]
    NoHome(String),
    /// Fewer CPUs than the experiment's sides.
    #[error("two CPUs are needed, and {allowed} is allowed to this process")]
    Cpus {
        /// The CPUs that there are.
        allowed: usize,
    },
    /// Something was refused, or failed on the way.
    #[error("cannot {operation}: {source}")]
    Io {
        /// Operation that failed.
        operation: String,
        /// Cause.
        source: io::Error,
    },
    /// Values that the user set contradict each other.
    #[error("{0}")]
    Settings(String),
    /// The user ended the run.
    #[error("interrupted by signal {0}")]
    Interrupted(i32),
}

impl ExperimentError {
    /// For `map_err`: an [`ExperimentError::Io`] of this operation.
    pub fn io<E: Into<io::Error>>(
        operation: impl Into<String>,
    ) -> impl FnOnce(E) -> ExperimentError {
        move |source| ExperimentError::Io {
            operation: operation.into(),
            source: source.into(),
        }
    }

    /// Remedy for the user.
    pub fn remedy(&self) -> String {
        match self {
            ExperimentError::Hosts(error) | ExperimentError::Rtt(RttError::Hosts(error)) => {
                error.remedy()
            }
            ExperimentError::Path(error) => error.remedy(),
            ExperimentError::Cpus { .. } => {
                "run it where two CPUs are allowed (taskset, the container's limits)".to_owned()
            }
            ExperimentError::Settings(_) => "give other values with --set".to_owned(),
            ExperimentError::Kernels(_) | ExperimentError::NoHome(_) => {
                "see docs/how-to/lab.md for what the lab needs".to_owned()
            }
            _ => "try again on a quieter machine; `taut doctor` shows what this machine can do"
                .to_owned(),
        }
    }
}

/// Tells the progress of the lab's guests, of which there are so many.
fn count_guests<'p>(progress: &'p mut Progress<'_>, guests: u64) -> impl Fn(Event) + Sync + 'p {
    let shown = Mutex::new((0, progress));
    move |event| {
        if let (Event::Finished(..), Ok(mut shown)) = (event, shown.lock()) {
            shown.0 += 1;
            let done = shown.0;
            (shown.1)(done, guests);
        }
    }
}

/// Ends an experiment that the user has interrupted.
fn go_on() -> Result<(), ExperimentError> {
    interrupt::interrupted().map_or(Ok(()), |signal| Err(ExperimentError::Interrupted(signal)))
}

/// Every figure with the experiment that makes it.
pub fn figures() -> impl Iterator<Item = (&'static Experiment, &'static Figure)> {
    ALL.into_iter()
        .flat_map(|experiment| experiment.figures.iter().map(move |one| (experiment, one)))
}

/// A ratio of two figures, rounded to a thousandth; nothing where there is nothing to divide by.
fn ratio(value: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| crate::rtt::ratio(value, of))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_figure_has_a_name_of_its_own_and_a_folder() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../experiments");
        let mut names = BTreeSet::new();
        for (_, figure) in figures() {
            assert!(names.insert(figure.name), "{} twice", figure.name);
            let readme = root.join(figure.name).join("README.md");
            assert!(readme.is_file(), "{}", readme.display());
        }
    }

    #[test]
    fn the_line_sets_the_paper_beside_what_was_found() {
        let mut outcome = Outcome::of(&latency::EXPERIMENT.figures[0]);
        outcome.here = "nothing".to_owned();
        assert!(outcome.line().starts_with("the paper: "));
        assert!(outcome.line().ends_with(", here: nothing"));
    }
}
