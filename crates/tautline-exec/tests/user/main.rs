//! Random task sets, simulated.

mod gaps;
mod simulation;
