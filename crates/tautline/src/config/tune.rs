//! The `[tune]` section of a configuration: the scheduling of receive processing on the interface. The library
//! reads it; `taut node run` and `taut node tune` apply it.

use serde::{Deserialize, Deserializer};

use super::within;

/// Scheduling of receive processing. A field that is `None` changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TuneConfig {
    /// Whether the interface is polled in kernel threads of its own, instead of in whatever is interrupted.
    pub threaded: Option<bool>,
    /// Real-time priority (SCHED_FIFO, 1 to 99) of these threads.
    #[serde(deserialize_with = "real_time_priority")]
    pub priority: Option<u8>,
    /// The CPU that these threads run on.
    pub cpu: Option<u32>,
    /// The CPU that the interface's interrupts go to, where it has any.
    pub interrupt_cpu: Option<u32>,
}

fn real_time_priority<'de, D: Deserializer<'de>>(given: D) -> Result<Option<u8>, D::Error> {
    within(given, 1..=99, "a real-time priority from 1 to 99").map(Some)
}
