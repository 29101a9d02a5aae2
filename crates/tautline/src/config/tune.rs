//! The `[tune]` section of a configuration: the scheduling of receive processing on the interface. The library
//! reads it; `taut node run` and `taut node tune` apply it.

use serde::Deserialize;
use toml::Spanned;

use super::Wrong;

/// Scheduling of receive processing. A field that is `None` changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuneConfig {
    /// Whether the interface is polled in kernel threads of its own, instead of in whatever is
    /// interrupted.
    pub threaded: Option<bool>,
    /// Real-time priority (SCHED_FIFO, 1 to 99) of these threads.
    pub priority: Option<u8>,
    /// The CPU that these threads run on.
    pub cpu: Option<u32>,
    /// The CPU that the interface's interrupts go to, where it has any.
    pub interrupt_cpu: Option<u32>,
    /// Polls that find nothing before interrupts are enabled again.
    pub defer_hard_irqs: Option<u32>,
    /// Time for which interrupts stay disabled after such a poll.
    pub gro_flush_timeout_ns: Option<u64>,
    /// Time for which `poll` on sockets polls the device itself; of the whole machine.
    pub busy_poll_us: Option<u32>,
    /// Time for which a blocking read of a socket polls the device itself; of the whole machine.
    pub busy_read_us: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TuneSection {
    threaded: Option<bool>,
    priority: Option<Spanned<u8>>,
    cpu: Option<u32>,
    interrupt_cpu: Option<u32>,
    defer_hard_irqs: Option<u32>,
    gro_flush_timeout_ns: Option<u64>,
    busy_poll_us: Option<u32>,
    busy_read_us: Option<u32>,
}

pub(super) fn tune(section: TuneSection) -> Result<TuneConfig, Wrong> {
    if let Some(priority) = &section.priority
        && !(1..=99).contains(priority.get_ref())
    {
        let message = "expected a real-time priority from 1 to 99".to_owned();
        return Err((priority.span(), message));
    }
    Ok(TuneConfig {
        threaded: section.threaded,
        priority: section.priority.map(Spanned::into_inner),
        cpu: section.cpu,
        interrupt_cpu: section.interrupt_cpu,
        defer_hard_irqs: section.defer_hard_irqs,
        gro_flush_timeout_ns: section.gro_flush_timeout_ns,
        busy_poll_us: section.busy_poll_us,
        busy_read_us: section.busy_read_us,
    })
}
