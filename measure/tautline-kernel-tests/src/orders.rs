//! Messages between host and guest: the orders of the host, and the answers of the guest.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Place of the orders in the guest's initramfs.
pub(crate) const PATH: &str = "/kernel-test-orders.json";

/// Work of one guest.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Orders {
    /// Kernel modules to load, in this order.
    pub(crate) modules: Vec<PathBuf>,
    /// Programs to run, in this order.
    pub(crate) steps: Vec<Step>,
}

/// A program to run in the guest.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Step {
    /// The program and its arguments.
    pub(crate) command: Vec<String>,
    /// Further environment.
    pub(crate) environment: Vec<(String, String)>,
    /// Driver of the two network cards that the program is to use instead of a virtual cable.
    pub(crate) driver: Option<String>,
    /// Seconds after which the program is killed.
    pub(crate) seconds_max: u64,
}

/// A message of the guest on its console, in a frame of the lab's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The first: what it is.
    Booted {
        /// `uname -r`.
        release: String,
        /// `uname -v`.
        version: String,
        /// Mounts and modules that failed, and why.
        missing: Vec<String>,
    },
    /// A step has ended.
    Done(Outcome),
    /// All have ended.
    End,
}

/// End of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Exit status; none if the program was killed or could not be started.
    pub(crate) status: Option<i32>,
    /// Seconds that it took, in the guest's clock.
    pub(crate) seconds: f64,
    /// All that it printed, up to a limit.
    pub(crate) text: String,
}
