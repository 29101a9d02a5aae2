//! The Emblix paper's figures 1 to 4: what `taut lab kernels` compares by itself. It needs QEMU, and kernels from the
//! distribution.

use super::{Experiment, ExperimentError, Figure, Outcome, Plot, Progress, Scale};
use crate::lab::kernels;

pub(super) const EXPERIMENT: Experiment = Experiment {
    figures: &FIGURES,
    in_all: false,
    run,
};

const FIGURES: [Figure; 1] = [Figure {
    name: "emblix-fig1-fig4",
    source: "Predictability in Embedded Linux, figures 1 to 4",
    title: "wake-up delay of four kernels under load, in virtual time",
    found: kernels::PAPER_FOUND,
}];
