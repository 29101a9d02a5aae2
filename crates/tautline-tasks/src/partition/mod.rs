//! Partitions: CPUs of a Linux machine that are set aside for real-time work, and given back.
//!
//! ```no_run
//! use tautline_tasks::partition::{Partition, PartitionConfig};
//!
//! let config = PartitionConfig::new("control", "1".parse()?)?;
//! let partition = Partition::create(&config)?;
//! for one in partition.stays() {
//!     println!("stays on CPU 1: {}: {}", one.what, one.reason);
//! }
//! partition.enter(std::process::id())?; // this process, with all of its threads
//! // Dropped, it puts everything back; `keep` leaves it in force for others.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * [`Partition`]: makes a partition and puts it back; [`list`], [`find`] and [`remove`] for those that are kept.
//! * [`PartitionConfig`]: name, CPUs.
//! * [`placement`]: settings of the kernel that decide what runs on a CPU, also for the lab.
//! * [`Activity`]: interrupts and tasks that still ran there.
//!
//! Every change is in the [journal](tautline_state::journal). Nothing here runs on the way of a message.

mod active;
mod activity;
mod config;
mod cpuset;
mod create;
mod error;
pub mod placement;
mod threads;

pub use active::{ActivePartition, find, list, recover, remove};
pub use activity::{Activity, Runner};
pub use config::PartitionConfig;
pub use cpuset::Form;
pub use create::{Partition, Plan, plan};
pub use error::PartitionError;

use serde::{Deserialize, Serialize};

/// Something that a partition or a tuned machine was to be free of, and is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stays {
    /// The interrupt, thread or setting.
    pub what: String,
    /// Reason, with the remedy if there is one.
    pub reason: String,
}

impl Stays {
    fn new(what: impl Into<String>, reason: impl Into<String>) -> Stays {
        Stays {
            what: what.into(),
            reason: reason.into(),
        }
    }
}
