//! Result files: read with faults that are named, imported from cyclictest, written whole.

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;
use tautline_state::text::{clean, plain};
use tautline_state::{Others, StateError, write_whole};

use crate::result::LabResult;
use tautline_machine::verdict::{FILE_BYTES_MAX, FORMAT, TEXT_CHARS_MAX, VERSION};

/// Why a file could not be used as a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResultFileError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error(transparent)]
    NotWritten(#[from] StateError),
    /// Well-formed JSON, but not a result of the lab nor of cyclictest, or no JSON at all.
    #[error("{path} is neither a result of taut lab nor of cyclictest ({found})")]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// Value that was found.
        found: String,
    },
    /// A file of cyclictest that contradicts itself.
    #[error("{path}, line {line}: {message}")]
    Impossible {
        /// The file.
        path: PathBuf,
        /// Line of the fault, or one close to it.
        line: usize,
        /// The fault.
        message: String,
    },
    /// A result of another version of the schema.
    #[error(
        "{path} has result version {found}, this program reads version {VERSION}; measure again, or use the taut that wrote it"
    )]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u64,
    },
    /// The file ends in the middle.
    #[error(
        "{path} is cut off at line {line}: it begins like a result but does not end; measure again"
    )]
    CutOff {
        /// The file.
        path: PathBuf,
        /// The last line.
        line: usize,
    },
    /// A result of our version with a field missing or of the wrong kind.
    #[error(
        "{path} says it is a result of version {VERSION}, but line {line}, column {column}: {message}"
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Line of the fault.
        line: usize,
        /// Column of the fault.
        column: usize,
        /// The fault.
        message: String,
    },
}

/// Results of several kernels.
#[derive(Deserialize)]
struct Kernels {
    kernels: Vec<Box<RawValue>>,
}

impl LabResult {
    /// Reads a result file, or imports what cyclictest wrote (`--json` or `--histfile`).
    pub fn read(path: &Path) -> Result<LabResult, ResultFileError> {
        LabResult::parse(&read_text(path)?, path)
    }

    /// Reads a file that holds one result, or several as `taut lab kernels` writes them; it once wrote a bare list.
    pub fn read_many(path: &Path) -> Result<Vec<LabResult>, ResultFileError> {
        let text = read_text(path)?;
        let several = serde_json::from_str(&text).map(|Kernels { kernels }| kernels);
        match several.or_else(|_| serde_json::from_str::<Vec<Box<RawValue>>>(&text)) {
            Ok(list) if !list.is_empty() => list
                .iter()
                .map(|one| LabResult::parse(one.get(), path))
                .collect(),
            _ => LabResult::parse(&text, path).map(|one| vec![one]),
        }
    }

    /// Understands the text of a result file; `path` is for messages and labels. Texts in the result have no control
    /// characters and are bounded: others may have written the file, and it is shown on a terminal.
    pub fn parse(text: &str, path: &Path) -> Result<LabResult, ResultFileError> {
        // Some programs of other systems write a byte order mark in front.
        let found = LabResult::understand(text.strip_prefix('\u{feff}').unwrap_or(text), path)?;
        let mut value = serde_json::to_value(&found).expect("a result has only string keys");
        clean(&mut value, TEXT_CHARS_MAX, usize::MAX);
        serde_json::from_value(value).map_err(|error| ResultFileError::Malformed {
            path: path.to_owned(),
            line: 0,
            column: 0,
            message: plain(&error.to_string(), TEXT_CHARS_MAX),
        })
    }

    fn understand(text: &str, path: &Path) -> Result<LabResult, ResultFileError> {
        let not_ours = |found: &str| ResultFileError::NotOurs {
            path: path.to_owned(),
            found: found.to_owned(),
        };
        let value: serde_json::Value = match serde_json::from_str(text) {
            Ok(value) => value,
            Err(error) if error.is_eof() && looks_like_a_result(text) => {
                return Err(ResultFileError::CutOff {
                    path: path.to_owned(),
                    line: error.line(),
                });
            }
            Err(_) => {
                return crate::cyclictest::from_histogram(text, path)?
                    .ok_or_else(|| not_ours("not JSON, and no histogram with samples"));
            }
        };
        if value.get("format").and_then(|format| format.as_str()) != Some(FORMAT) {
            return crate::cyclictest::from_json(text, path)?
                .ok_or_else(|| not_ours("JSON of another kind, or without samples"));
        }
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(found) if found == u64::from(VERSION) => {}
            found => {
                return Err(ResultFileError::OtherVersion {
                    path: path.to_owned(),
                    found: found.unwrap_or(0),
                });
            }
        }
        // Parsed again from the text, so that a fault has a line and a column.
        serde_json::from_str(text).map_err(|error| ResultFileError::Malformed {
            path: path.to_owned(),
            line: error.line(),
            column: error.column(),
            message: plain(&error.to_string(), TEXT_CHARS_MAX),
        })
    }

    /// The file's text.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a result has only string keys")
    }

    /// Writes the result; the file appears whole or not at all.
    pub fn write(&self, path: &Path) -> Result<(), ResultFileError> {
        Ok(write_whole(path, self.to_json().as_bytes())?)
    }
}

fn read_text(path: &Path) -> Result<String, ResultFileError> {
    let unreadable = |source| ResultFileError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let bytes = tautline_state::read_bytes(path, FILE_BYTES_MAX, Others::MayWrite);
    let bytes = bytes.map_err(unreadable)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn looks_like_a_result(text: &str) -> bool {
    text.trim_start().starts_with(['{', '[']) && text.contains(&format!("\"{FORMAT}\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    #[test]
    fn a_result_survives_its_file() {
        let text = serde_json::to_string(&sample()).unwrap();
        let read = LabResult::parse(&text, Path::new("x.json")).unwrap();
        assert_eq!(read, sample());
        let histogram = read.phases[0].series[0].histogram();
        assert_eq!(histogram.count(), 4);
        assert_eq!(histogram.summary().min_ns, 5_003);
        assert_eq!(histogram.summary().max_ns, 123_457);
    }

    #[test]
    fn every_wrong_file_has_its_own_answer() {
        let text = serde_json::to_string_pretty(&sample()).unwrap();
        let parse = |text: &str| LabResult::parse(text, Path::new("x.json")).unwrap_err();
        for cut in [text.len() / 2, text.len() - 2] {
            assert!(
                matches!(parse(&text[..cut]), ResultFileError::CutOff { .. }),
                "{cut}"
            );
        }
        let other = text.replace("\"version\": 1", "\"version\": 2");
        assert!(matches!(
            parse(&other),
            ResultFileError::OtherVersion { found: 2, .. }
        ));
        for foreign in [
            "{}",
            "[1,2]",
            "hello",
            "",
            "{\"format\":\"perf\"}",
            "\u{0}\u{1}",
        ] {
            assert!(
                matches!(parse(foreign), ResultFileError::NotOurs { .. }),
                "{foreign:?}"
            );
        }
        let wrong = text.replace("\"duration_ns\": 4000000", "\"duration_ns\": \"long\"");
        match parse(&wrong) {
            ResultFileError::Malformed { line, .. } => assert!(line > 10),
            error => panic!("{error}"),
        }
    }
}
