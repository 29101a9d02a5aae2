//! CPUs and priority of the two sides of an experiment.

use std::io;
use std::thread;

use tautline_testbed::child;

use super::ExperimentError;

/// Priority of measured threads: below that of threaded interrupts (50), above everything ordinary.
pub(super) const PRIORITY: u8 = 40;

/// Two CPUs: one for what is measured and for receiving, the other for the sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct SideCpus {
    pub(super) receiver_cpu: usize,
    pub(super) sender_cpu: usize,
    /// Priority of measured threads under SCHED_FIFO, if that is permitted.
    pub(super) fifo: Option<u8>,
}

impl SideCpus {
    /// The second and the first CPU of those allowed: most interrupts go to the first.
    pub(super) fn choose() -> Result<SideCpus, ExperimentError> {
        let allowed =
            child::allowed_cpus().map_err(ExperimentError::io("read the allowed CPUs"))?;
        let [sender_cpu, receiver_cpu, ..] = allowed[..] else {
            return Err(ExperimentError::Cpus {
                allowed: allowed.len(),
            });
        };
        Ok(SideCpus {
            receiver_cpu,
            sender_cpu,
            fifo: may_use_fifo().then_some(PRIORITY),
        })
    }

    /// How measured threads are scheduled, for reports.
    pub(super) fn scheduling(&self) -> String {
        self.fifo.map_or(
            "ordinary: SCHED_FIFO is not permitted here".to_owned(),
            |priority| format!("SCHED_FIFO {priority}"),
        )
    }
}

/// Keeps the calling thread on a CPU, with a real-time priority if one is given.
pub(super) fn settle(cpu: usize, fifo: Option<u8>) -> Result<(), ExperimentError> {
    let refused = |source: io::Error| ExperimentError::Io {
        operation: format!("keep a thread on CPU {cpu} with its priority"),
        source,
    };
    child::pin(cpu).map_err(refused)?;
    fifo.map_or(Ok(()), child::schedule_fifo).map_err(refused)
}

/// Tried on a thread of its own.
fn may_use_fifo() -> bool {
    thread::spawn(|| child::schedule_fifo(PRIORITY).is_ok())
        .join()
        .unwrap_or(false)
}

/// Result of a thread; its panic goes on.
pub(super) fn joined<T>(result: thread::Result<T>) -> T {
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
