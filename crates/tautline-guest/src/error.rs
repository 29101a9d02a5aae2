//! Errors, each with its remedy.

use std::fmt;
use std::io;
use std::path::PathBuf;

use tautline::{OpenError, PortError};
use tautline_kvm::KvmError;
use tautline_state::StateError;
use tautline_tasks::partition::PartitionError;

use crate::monitor::START_MAX;

/// A guest could not be started, or reached.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// The guest's file has a mistake.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// Mistake, with line and column where there are such.
        reason: String,
    },
    /// A setting is beyond its limits.
    #[error("{0}")]
    Setting(String),
    /// The image cannot be started.
    #[error("image {}: {reason}", path.display())]
    Image {
        /// The image.
        path: PathBuf,
        /// Cause.
        reason: String,
    },
    /// QEMU is not installed.
    #[error("`{program}` is not installed")]
    NoQemu {
        /// The program.
        program: &'static str,
    },
    /// KVM cannot be used.
    #[error("{0}")]
    Kvm(#[from] KvmError),
    /// A monitor did not start the guest.
    #[error("{monitor} did not start the guest: {why}")]
    NotStarted {
        /// The monitor.
        monitor: &'static str,
        /// Cause, in its words.
        why: String,
    },
    /// A monitor did not answer in time.
    #[error("{monitor} did not start the guest within {} s", START_MAX.as_secs())]
    Late {
        /// The monitor.
        monitor: &'static str,
    },
    /// The node of the guest could not be opened.
    #[error("the guest's node: {0}")]
    Node(#[from] OpenError),
    /// A port of that node could not be opened.
    #[error("port {port} of the guest: {source}")]
    Port {
        /// Its number.
        port: u16,
        /// Cause.
        source: PortError,
    },
    /// The partition could not be entered.
    #[error("{0}")]
    Partition(#[from] PartitionError),
    /// There is a guest of this name.
    #[error("a guest `{0}` runs already")]
    Exists(String),
    /// There is none.
    #[error("no guest `{0}` runs")]
    Absent(String),
    /// The process that runs the guest did not answer.
    #[error("the process that runs guest `{0}` does not answer")]
    Silent(String),
    /// A directory or file of the guest cannot be used.
    #[error("{0}")]
    State(#[from] StateError),
    /// The system refused something.
    #[error("{doing}: {source}")]
    System {
        /// The attempt.
        doing: &'static str,
        /// Cause.
        source: io::Error,
    },
}

/// Message and remedy: this is how a program shows the error that it returns from `main`.
impl fmt::Debug for GuestError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}\n  what to do: {}", self.remedy())
    }
}

impl GuestError {
    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(&self) -> &str {
        match self {
            GuestError::File { .. } => "docs/reference/guest.md lists every key with its limits",
            GuestError::Setting(_) => "docs/reference/guest.md names the limits",
            GuestError::Image { .. } => {
                "build an ELF file for aarch64 or x86-64, linked into the guest's memory (bindings/guest), or give more --ram"
            }
            GuestError::NoQemu { .. } => "install it (Debian: apt install qemu-system-arm)",
            GuestError::Kvm(error) => error.remedy(),
            GuestError::NotStarted { monitor: "KVM", .. } => {
                "give the guest less memory (--ram), and look at the kernel's log (dmesg)"
            }
            GuestError::NotStarted { .. } => {
                "run the QEMU that is installed with --version; guests need 7.0 or later"
            }
            GuestError::Late { .. } => {
                "let its process run: it was stopped, or other work had the CPUs (`top` and its cgroup's cpu.max show it)"
            }
            GuestError::Node(error) => error.remedy(),
            GuestError::Port { source, .. } => source.remedy(),
            GuestError::Partition(error) => error.remedy(),
            GuestError::Exists(_) => {
                "give this one another --name, or stop the other: taut guest stop NAME"
            }
            GuestError::Absent(_) => {
                "see taut guest show; a guest of another user is theirs to reach"
            }
            GuestError::Silent(_) => "look at that process: it may be stopped, or busy for ever",
            GuestError::State(_) => {
                "log in as that user, or set XDG_RUNTIME_DIR to a directory that belongs to this user alone"
            }
            GuestError::System { .. } => {
                "raise the limits of memory, descriptors and threads (ulimit -a)"
            }
        }
    }

    pub(crate) fn system(doing: &'static str) -> impl Fn(io::Error) -> GuestError {
        move |source| GuestError::System { doing, source }
    }
}
