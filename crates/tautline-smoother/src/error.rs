//! Reasons why an interface cannot be smoothed.

use std::io;

use tautline_state::StateError;
use tautline_state::journal::JournalError;

/// Reason why an interface cannot be smoothed. Whatever had been changed is put back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SmootherError {
    /// There is no such interface.
    #[error("there is no interface `{0}` here")]
    NoInterface(String),
    /// The interface has no Ethernet address.
    #[error("`{0}` has no Ethernet address")]
    NoEthernet(String),
    /// The interface has a queueing discipline that was configured.
    #[error("`{0}` has a queueing discipline of its own")]
    OwnQueue(String),
    /// The setup cannot work.
    #[error("{0}")]
    Setup(String),
    /// The process may not change queues or load programs.
    #[error("the kernel does not let this process {action}: {source}")]
    NotPrivileged {
        /// Action that was refused.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel lacks a part.
    #[error("the kernel has no {part}: {source}")]
    KernelPart {
        /// The part, with its configuration option.
        part: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Something else failed.
    #[error("cannot {action}: {source}")]
    Failed {
        /// Action that failed.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The crate was built without the feature `bpf`.
    #[error("this build has no BPF programs")]
    WithoutBpf,
    /// The programs do not load.
    #[error("the kernel does not take the smoother's programs: {0}")]
    Program(String),
    /// Changes that could not be put back. They stay noted.
    #[error("not everything is put back: {}", .0.join("; "))]
    NotPutBack(Vec<String>),
    /// The journal cannot be kept.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file of the runtime directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
}

impl SmootherError {
    /// Remedy.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoInterface(_) => "name one of the interfaces of `ip link`",
            Self::NoEthernet(_) => "name an Ethernet interface",
            Self::OwnQueue(_) => {
                "remove it (`tc qdisc del dev INTERFACE root`): other traffic is held where the kernel's default queue is"
            }
            Self::Setup(_) => "change it in the configuration file (docs/how-to/smoother.md)",
            Self::NotPrivileged { .. } => {
                "run as root, or with CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF"
            }
            Self::KernelPart { .. } => {
                "load the module, or use a kernel that has it; nothing is held without it"
            }
            Self::Failed { .. } => "nothing is held; what was set up is taken away again",
            Self::WithoutBpf => {
                "build with the feature `bpf`, which needs clang and libbpf's headers"
            }
            Self::Program(_) => "run as root; the kernel must be Linux 5.18 or later",
            Self::NotPutBack(_) => {
                "`taut smooth stop INTERFACE` as root tries again; by hand: `tc qdisc del dev INTERFACE root` and \
                 `clsact` in place of `root`, `ip link set INTERFACE gso_max_segs N`"
            }
            Self::Journal(JournalError::Busy { .. }) => "`taut smooth stop` ends it",
            Self::Journal(error) => error.remedy(),
            Self::State(StateError::NoJournal { .. }) => {
                "put it back with the release of Tautline that wrote it, or restart the machine"
            }
            Self::State(_) => "run as root",
        }
    }

    /// The error of an action, by the kernel's answer.
    pub(crate) fn of(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPrivileged { action, source },
            _ => Self::Failed { action, source },
        }
    }

    /// The error of reading the counts of an interface and its classes.
    pub(crate) fn counts(source: io::Error) -> Self {
        Self::of("read the counts of the interface")(source)
    }

    /// The error of an action that a kernel may lack a part for.
    pub(crate) fn of_part(
        action: &'static str,
        part: &'static str,
    ) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPrivileged { action, source },
            Some(libc::EOPNOTSUPP | libc::ENOENT) => Self::KernelPart { part, source },
            _ => Self::Failed { action, source },
        }
    }
}
