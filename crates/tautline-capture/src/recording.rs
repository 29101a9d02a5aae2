//! Recordings: messages in MCAP files, which Foxglove and the MCAP libraries read.
//!
//! A channel is a [`Flow`](crate::message::Flow), and the type of its messages if that is known: then their bytes are
//! what ROS 1 serialises, and its schema says so, because viewers read that. Files are not compressed: a recorder must
//! not compete with what it records for time. A record of metadata named [`METADATA`] says at the end how much was
//! captured and missed.

mod channel;
mod reading;
mod texts;
mod writing;

pub use channel::{Channel, Schema};
/// First bytes of a recording.
pub use mcap::MAGIC;
pub use reading::Recording;
pub use writing::Recorder;

use std::io;
use std::path::Path;

use mcap::McapError;
use tautline_state::StateError;

/// Name of the record of metadata with the recorder's figures.
pub const METADATA: &str = "tautline";

/// Reason why a recording cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The disk is full.
    #[error("the disk is full; the recording is whole up to there")]
    Full,
    /// The file has grown as far as this process may let files grow.
    #[error("a file may not be larger here (ulimit -f); the recording is whole up to there")]
    FileLimit,
    /// The file cannot be made.
    #[error("{0}")]
    File(#[from] StateError),
    /// The file cannot be used.
    #[error("{0}")]
    Io(io::Error),
    /// The file is no MCAP file.
    #[error("it is not an MCAP file")]
    Foreign,
    /// The file ends too early.
    #[error("it ends in the middle: the recorder was killed, or a copy was cut short")]
    Truncated,
    /// The messages are compressed.
    #[error("its messages are compressed with {name}, which is not read")]
    Compressed {
        /// Name of the compression in the file.
        name: String,
    },
    /// The messages are not in the order of their times, and too many to be sorted in memory.
    #[error("its messages are not in the order of their times")]
    Unsorted,
    /// The file is against the format.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// A channel is not one of a recording.
    #[error("channel `{topic}` was not recorded by Tautline: it has no `{key}`")]
    NotOurs {
        /// Name of the channel.
        topic: String,
        /// Entry that is missing or wrong.
        key: &'static str,
    },
}

impl RecordingError {
    /// The error as a sentence about the file at a path.
    #[must_use]
    pub fn about(&self, path: &Path) -> String {
        let (path, sentence) = (path.display().to_string(), self.to_string());
        match sentence.contains(&path) {
            true => sentence,
            false => format!("{path}: {sentence}"),
        }
    }

    /// Remedy.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::File(StateError::Exists { .. }) => "name another file, or give --overwrite",
            Self::File(StateError::Locked { .. }) => {
                "name another file, or end the program that writes this one"
            }
            Self::FileLimit => {
                "raise the limit (ulimit -f), or end the recording earlier with --count or --timeout"
            }
            Self::Compressed { .. } => {
                "`mcap decompress FILE -o OTHER` writes it without compression"
            }
            Self::Full => "make space, or name a file elsewhere",
            Self::File(_) | Self::Io(_) => {
                "name a file in a directory that exists, that you may use, and that has space"
            }
            Self::Foreign | Self::NotOurs { .. } => "name a file that `taut record` wrote",
            Self::Unsorted => "`mcap sort` writes a file with them in order",
            Self::Truncated | Self::Damaged(_) => "`mcap recover` saves what there is",
        }
    }
}

impl From<io::Error> for RecordingError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::FileTooLarge => Self::FileLimit,
            _ => Self::Io(error),
        }
    }
}

impl From<McapError> for RecordingError {
    fn from(error: McapError) -> Self {
        match error {
            McapError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => Self::Truncated,
            McapError::Io(error) => error.into(),
            McapError::UnexpectedEof | McapError::UnexpectedEoc => Self::Truncated,
            McapError::BadMagic => Self::Foreign,
            other => Self::Damaged(other.to_string()),
        }
    }
}
