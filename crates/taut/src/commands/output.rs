//! Standard output of the commands: tables or JSON, and messages.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tautline::Source;
use tautline::types::Declaration;
use tautline_state::Existing;

use crate::cli::{self, CommandError};

/// Where a result goes as JSON. The same option for every command that prints a table.
#[derive(Clone, Debug, Args)]
pub struct JsonArguments {
    /// Write JSON to standard output in place of the table; with =FILE, into a file beside it.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-", value_parser = cli::result_file())]
    json: Option<PathBuf>,
}

impl JsonArguments {
    /// File that was named; `-` is standard output.
    pub fn path(&self) -> Option<&Path> {
        self.json.as_deref()
    }

    /// Whether standard output is for JSON only.
    pub fn has_stdout(&self) -> bool {
        self.path() == Some(Path::new("-"))
    }

    /// Whether the table is shown beside these files. One that is named `-` has standard output to itself.
    ///
    /// # Errors
    /// Standard output is wanted for two things.
    pub fn shows_table(&self, files: &[Option<&Path>]) -> Result<bool, CommandError> {
        let files = files.iter().copied().chain([self.path()]).flatten();
        match files.filter(|path| *path == Path::new("-")).count() {
            0 => Ok(true),
            1 => Ok(false),
            _ => Err(CommandError::usage(
                "standard output cannot have two results",
                "give all but one of them a file, such as --json=FILE",
            )),
        }
    }

    /// As [`print`](Self::print), without the text where one of these files has standard output.
    pub fn print_beside(
        &self,
        files: &[Option<&Path>],
        json: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> Result<(), CommandError> {
        let shows_table = self.shows_table(files)?;
        let text = || if shows_table { text() } else { String::new() };
        self.print(json, text)
    }

    /// Writes JSON where it was asked for, and the text unless standard output is for JSON.
    pub fn print(
        &self,
        json: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> Result<(), CommandError> {
        self.print_written(|| format!("{:#}", json()), text)
    }

    /// The same for JSON that is text already.
    pub fn print_written(
        &self,
        json: impl FnOnce() -> String,
        text: impl FnOnce() -> String,
    ) -> Result<(), CommandError> {
        cli::all([
            match self.has_stdout() {
                true => Ok(()),
                false => cli::print(&text()),
            },
            match self.path() {
                Some(path) => cli::write_file(path, &(json() + "\n")),
                None => Ok(()),
            },
        ])
    }

    /// Opens what is written to again and again, a line each time.
    pub fn lines(&self) -> Result<JsonLines, CommandError> {
        match self.path() {
            None => Ok(JsonLines(None)),
            Some(path) if self.has_stdout() => Ok(JsonLines(Some((path.to_owned(), None)))),
            Some(path) => {
                let file = tautline_state::create(path, Existing::Overwritten);
                let file = file.map_err(|error| cli::not_made(path, &error.into()))?;
                Ok(JsonLines(Some((path.to_owned(), Some(file)))))
            }
        }
    }
}

/// Treatment of a file that exists, by the option `--overwrite`.
pub fn existing(overwrite: bool) -> Existing {
    match overwrite {
        true => Existing::Overwritten,
        false => Existing::Kept,
    }
}

/// Lines of JSON: nowhere, to standard output, or into a file.
#[derive(Debug)]
pub struct JsonLines(Option<(PathBuf, Option<File>)>);

impl JsonLines {
    /// Whether standard output is for JSON only.
    pub fn has_stdout(&self) -> bool {
        matches!(self.0, Some((_, None)))
    }

    /// Writes a line.
    pub fn write(&mut self, json: &Value) -> Result<(), CommandError> {
        match &mut self.0 {
            None => Ok(()),
            Some((_, None)) => cli::show(format!("{json}\n").as_bytes()),
            Some((path, Some(file))) => {
                writeln!(file, "{json}").map_err(|error| cli::not_written(path, &error))
            }
        }
    }
}

/// The form of messages on standard output.
#[derive(Debug, Args)]
pub struct OutputArguments {
    /// Write a line of JSON for each message, its bytes in hexadecimal, to standard output in place of the bytes; with
    /// =FILE, into a file beside them.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-", conflicts_with = "hex", value_parser = cli::result_file())]
    json: Option<PathBuf>,
    /// Write the bytes in hexadecimal, also those of a known type.
    #[arg(long)]
    hex: bool,
}

impl OutputArguments {
    /// Opens the output.
    pub fn open(&self) -> Result<Output, CommandError> {
        let json = JsonArguments {
            json: self.json.clone(),
        };
        Ok(Output {
            json: json.lines()?,
            hex: self.hex,
        })
    }
}

/// Where messages go.
#[derive(Debug)]
pub struct Output {
    json: JsonLines,
    hex: bool,
}

impl Output {
    /// Writes a frame: as JSON, in hexadecimal or as the given line.
    pub fn write_line(
        &mut self,
        bytes: &[u8],
        mut json: Value,
        line: &str,
    ) -> Result<(), CommandError> {
        json["payload"] = hex(bytes).into();
        self.json.write(&json)?;
        if self.json.has_stdout() {
            return Ok(());
        }
        match self.hex {
            true => show_line(&hex(bytes)),
            false => show_line(line),
        }
    }

    /// Writes a message in a line of its own; `json` is all that is known of it but its bytes. Of a type that is known,
    /// its fields by name.
    pub fn write(
        &mut self,
        bytes: &[u8],
        mut json: Value,
        declared: Option<&Declaration>,
    ) -> Result<(), CommandError> {
        json["payload"] = hex(bytes).into();
        let fields = declared.and_then(|declared| fields(declared, bytes, &mut json));
        self.json.write(&json)?;
        if self.json.has_stdout() {
            return Ok(());
        }
        if self.hex {
            return show_line(&hex(bytes));
        }
        if let Some(fields) = fields {
            return show_line(&fields);
        }
        if io::stdout().is_terminal() {
            // Others wrote them, and a terminal would obey them.
            return show_line(&String::from_utf8_lossy(bytes));
        }
        // The bytes as they are: they need not be text.
        cli::show(&[bytes, b"\n"].concat())
    }
}

fn show_line(line: &str) -> Result<(), CommandError> {
    cli::show_text(&format!("{line}\n"))
}

/// Fields of a message by name, as a line and in `json`; `None` if it has another size than its type.
pub fn fields(declared: &Declaration, bytes: &[u8], json: &mut Value) -> Option<String> {
    json["fields"] = declared.json(bytes)?;
    json["type"] = declared.name().into();
    Some(format!("{} {}", declared.name(), declared.text(bytes)?))
}

/// Sender of a message.
pub fn source_json(source: Source) -> Value {
    json!({ "address": source.address, "port": source.port.get() })
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
