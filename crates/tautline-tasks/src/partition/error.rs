//! Errors of partitions.

use std::io;
use std::path::PathBuf;

use tautline_state::StateError;
use tautline_state::cpus::CpuList;
use tautline_state::journal::JournalError;

/// Reason why a partition was not made, entered or removed. Whatever had been changed is put back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// A name that could not be part of a path and a table.
    #[error("invalid partition name `{0}`")]
    InvalidName(String),
    /// A CPU that does not run.
    #[error("CPU {cpu} is not online here; online are {online}")]
    NotOnline {
        /// The CPU.
        cpu: u32,
        /// CPUs that are.
        online: CpuList,
    },
    /// All CPUs were asked for.
    #[error(
        "no CPU would be left for everything else: online are {online}, set aside already {taken}"
    )]
    NoCpuLeft {
        /// CPUs of the machine.
        online: CpuList,
        /// CPUs of other partitions.
        taken: String,
    },
    /// A CPU belongs to another partition.
    #[error("CPU {cpu} belongs to partition `{partition}`")]
    Overlap {
        /// The CPU.
        cpu: u32,
        /// The other partition.
        partition: String,
    },
    /// A CPU belongs to a group of processes that others made and that does not share.
    #[error("CPUs {cpus} belong to the group {}, which has them for itself", group.display())]
    TakenByGroup {
        /// Its CPUs.
        cpus: String,
        /// Directory of the group.
        group: PathBuf,
    },
    /// The process may not use a CPU.
    #[error(
        "CPUs {cpus} are not all available to this process: its own group (cgroup, container) has {allowed}"
    )]
    NotAllowed {
        /// CPUs that were asked for.
        cpus: CpuList,
        /// CPUs that it may use of them.
        allowed: String,
    },
    /// The name is taken.
    #[error("there is a partition `{0}` already")]
    Exists(String),
    /// There is no such partition.
    #[error("there is no partition `{0}`")]
    Absent(String),
    /// A process owns the partition.
    #[error("partition `{name}` belongs to process {owner}")]
    Owned {
        /// The partition.
        name: String,
        /// Its process.
        owner: u32,
    },
    /// Programs run in it.
    #[error("{count} processes run in partition `{name}`, the first is {first}, of user {user}")]
    InUse {
        /// The partition.
        name: String,
        /// Number of processes.
        count: usize,
        /// One of them.
        first: u32,
        /// Number of its user.
        user: u32,
    },
    /// A group of processes cannot be changed.
    #[error("cannot {action} {}: {source}", path.display())]
    Group {
        /// Operation, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The program cannot be given the CPUs.
    #[error("the process cannot be put on CPUs {cpus}: {source}")]
    Affinity {
        /// The CPUs.
        cpus: CpuList,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Settings that could not be put back. They stay noted.
    #[error("not everything is put back: {}", .0.join("; "))]
    NotPutBack(Vec<String>),
    /// The journal cannot be kept.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl PartitionError {
    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::InvalidName(_) => {
                "use up to 32 letters, digits, `_`, `-` and `.`, a letter or digit first"
            }
            Self::NotOnline { .. } => "name CPUs of /sys/devices/system/cpu/online",
            Self::NoCpuLeft { .. } => "leave at least one CPU to Linux",
            Self::Overlap { .. } => "name other CPUs, or remove that partition",
            Self::TakenByGroup { .. } => "name other CPUs, or remove that group",
            Self::NotAllowed { .. } => "name CPUs of Cpus_allowed_list in /proc/self/status",
            Self::Exists(_) => "choose another name, or `taut partition remove` it",
            Self::Absent(_) => "`taut partition show` shows those that there are",
            Self::Owned { .. } => "end that process: it puts the partition back",
            Self::InUse { user, .. } if *user != rustix::process::geteuid().as_raw() => {
                "have that user end them, or move them to other CPUs (taskset)"
            }
            Self::InUse { .. } => "end them, or give --force, which moves them out",
            Self::Group { .. } | Self::Affinity { .. } => {
                "run as root, or in a group that is delegated with its cpuset controller"
            }
            Self::NotPutBack(_) => "run `taut partition remove` again as the user who made it",
            Self::Journal(JournalError::Busy { .. }) => "wait for that process, or end it",
            Self::Journal(error) => error.remedy(),
        }
    }

    pub(crate) fn group(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> PartitionError {
        let path = path.into();
        move |source| PartitionError::Group {
            action,
            path,
            source,
        }
    }
}

impl From<StateError> for PartitionError {
    fn from(error: StateError) -> Self {
        PartitionError::Journal(error.into())
    }
}
