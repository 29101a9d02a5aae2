//! Errors of state files.

use std::io;
use std::path::{Path, PathBuf};

/// Reason why a state file or directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The operating system refused.
    #[error("{action} {path}: {source}")]
    Io {
        /// Operation that was tried, as a verb: `open`, `write`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Another user may have created the link to lead elsewhere.
    #[error(
        "{path} is a symbolic link, and links are not followed here; give the path that it leads to"
    )]
    SymbolicLink {
        /// The link.
        path: PathBuf,
    },
    /// A file of another kind has the name.
    #[error("{path} is not a {expected}; remove it or choose another path")]
    WrongKind {
        /// The file.
        path: PathBuf,
        /// The kind that it should be.
        expected: &'static str,
    },
    /// The owner of the file could have written anything into it.
    #[error("{path} belongs to user {owner}, not to you or root; remove it or choose another path")]
    ForeignOwner {
        /// The file or directory.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
    },
    /// Others could change the file, or replace files in the directory.
    #[error(
        "{path} can be written by other users (mode {mode:04o}); take that away with chmod go-w, or choose another path"
    )]
    WritableByOthers {
        /// The file or directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A file has the name, and overwriting was not requested.
    #[error("{path} exists, and is left as it is")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file is longer than any that Tautline writes there.
    #[error("{path} is longer than {bytes_max} bytes; remove it")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        bytes_max: usize,
    },
    /// A journal of another release, or a damaged one.
    #[error("{path} cannot be read as a journal ({reason}), so nothing that it notes is put back")]
    NoJournal {
        /// The file.
        path: PathBuf,
        /// The part that is not understood.
        reason: String,
    },
    /// A journal without room for more changes, which are therefore not made.
    #[error("{path} would be longer than {bytes_max} bytes, so nothing more is changed")]
    JournalFull {
        /// The file.
        path: PathBuf,
        /// The limit.
        bytes_max: usize,
    },
    /// A name that is no single component of a path, or a path with `..` in it.
    #[error("invalid path {path}; leave out empty parts and `..`")]
    InvalidName {
        /// The name or path.
        path: PathBuf,
    },
    /// The journal was opened by the process that this one was forked from.
    #[error("{path} was opened by another process; open it again after fork")]
    OtherProcess {
        /// The journal.
        path: PathBuf,
    },
    /// Another process has held the lock for the whole time.
    #[error("{path} is locked by another process; try again, or look for it with lsof")]
    Locked {
        /// The file or directory.
        path: PathBuf,
    },
    /// The user has no directory for sockets and journals.
    #[error(
        "there is no runtime directory for user {user} ({path} is missing); log in through systemd-logind, or set \
         XDG_RUNTIME_DIR to a directory that belongs to you and that nobody else can write"
    )]
    NoRuntimeDirectory {
        /// The user id.
        user: u32,
        /// The directory that was looked for.
        path: PathBuf,
    },
}

impl StateError {
    /// Names the action and the path for an error of the operating system.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
        let path = path.to_owned();
        move |source| StateError::Io {
            action,
            path,
            source,
        }
    }

    /// Error for an error number.
    pub(crate) fn errno(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(rustix::io::Errno) -> StateError {
        let make = StateError::io(action, path);
        move |errno| make(errno.into())
    }

    /// Kind of the error, for callers that treat an absent file apart.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Io { source, .. } => source.kind(),
            Self::NoRuntimeDirectory { .. } => io::ErrorKind::NotFound,
            Self::Exists { .. } => io::ErrorKind::AlreadyExists,
            Self::Locked { .. } => io::ErrorKind::WouldBlock,
            Self::NoJournal { .. } => io::ErrorKind::InvalidData,
            Self::JournalFull { .. } => io::ErrorKind::StorageFull,
            Self::InvalidName { .. } | Self::TooLarge { .. } => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::PermissionDenied,
        }
    }

    /// Whether the file or directory is absent.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

impl From<StateError> for io::Error {
    fn from(error: StateError) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}
