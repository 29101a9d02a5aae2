//! Settings of a run.

/// Settings of a run. The default asks for all that makes tasks punctual; what is refused is reported.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The only CPU that the tasks may run on; the analysis expects one. `None` takes the first CPU of
    /// the partition; without a partition it leaves that to the kernel.
    pub cpu: Option<usize>,
    /// Whether the tasks run under SCHED_FIFO at their priorities.
    pub real_time: bool,
    /// Whether all memory of the process is locked. It stays locked afterwards.
    pub lock_memory: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cpu: None,
            real_time: true,
            lock_memory: true,
        }
    }
}

impl Options {
    /// The same on one CPU.
    #[must_use]
    pub fn with_cpu(self, cpu: usize) -> Self {
        Self {
            cpu: Some(cpu),
            ..self
        }
    }

    /// The same with the scheduling that threads have by themselves, and memory that can be paged out.
    #[must_use]
    pub fn without_real_time(self) -> Self {
        Self {
            real_time: false,
            lock_memory: false,
            ..self
        }
    }
}
