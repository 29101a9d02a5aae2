//! Reasons why something cannot be captured.

use std::io;

/// Reason why something cannot be captured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// There is no such interface.
    #[error("there is no interface `{0}` here")]
    NoInterface(String),
    /// The kernel does not let this process look at frames.
    #[error("the kernel does not let this process {action}: {source}")]
    NotPrivileged {
        /// Action that was refused.
        action: &'static str,
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
    /// A file could not be written.
    #[error("writing stopped: {source}; the file is whole up to there")]
    Write {
        /// The reason.
        source: io::Error,
    },
}

impl CaptureError {
    /// Remedy.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoInterface(_) => "name one of the interfaces of `ip link`",
            Self::NotPrivileged { .. } => {
                "run as root, or with CAP_SYS_ADMIN and CAP_NET_RAW; --bus needs neither"
            }
            Self::Failed { .. } => "check that the interface is there and up",
            Self::Write { .. } => "make space, or name a file elsewhere",
        }
    }

    /// The error of an action, by the kernel's answer.
    pub(crate) fn of(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPrivileged { action, source },
            _ => Self::Failed { action, source },
        }
    }

    /// The error of the library that looks at programs and maps, told apart by the kernel's answer in it.
    pub(crate) fn kernel(error: impl std::error::Error + 'static) -> Self {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        let mut text = String::new();
        while let Some(inner) = cause {
            let answer = inner
                .downcast_ref::<io::Error>()
                .and_then(io::Error::raw_os_error);
            if let Some(number) = answer {
                return Self::of("look at the programs of the machine")(
                    io::Error::from_raw_os_error(number),
                );
            }
            text = inner.to_string();
            cause = inner.source();
        }
        Self::of("look at the programs of the machine")(io::Error::other(text))
    }
}
