//! The error of a configuration file: what is wrong, and where.

use std::fmt;

/// Something in a configuration file is wrong, and where.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, if the text came from one.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Description of the mistake, and the values that were expected.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            line,
            column,
            message,
        } = self;
        match file {
            Some(file) => write!(formatter, "{file}:{line}:{column}: {message}"),
            None => write!(formatter, "line {line}, column {column}: {message}"),
        }
    }
}

impl std::error::Error for ConfigError {}
