//! `taut types`: the types of a configuration file, for people, for other languages, and beside those of another file.

mod print;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use tautline::NodeConfig;
use tautline::types::Declaration;
use tautline_report::table;

use crate::cli::{self, CommandError};
use crate::commands::output::JsonArguments;

/// Arguments of `taut types`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Configuration file with [[type]] entries (TOML).
    file: PathBuf,
    #[command(flatten)]
    language: Language,
    /// Say where types of these names differ in another configuration file; exit status 1 if one does.
    #[arg(long, value_name = "FILE", conflicts_with = "Language")]
    compare: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArguments,
}

/// The language of the output.
#[derive(Debug, Args)]
#[group(multiple = false, conflicts_with = "json")]
struct Language {
    /// Print a header of C and C++, with structs whose sizes and offsets are asserted.
    #[arg(long)]
    c: bool,
    /// Print structs of Rust.
    #[arg(long)]
    rust: bool,
    /// Print dataclasses of Python, for tautline.layout().
    #[arg(long)]
    python: bool,
}

/// Prints the types. A file without types, and with `--compare` one that differs: exit status 1.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    let types = read(&arguments.file)?;
    if let Some(other) = &arguments.compare {
        return compare(&arguments, &types, &read(other)?);
    }
    let source = match &arguments.language {
        Language { c: true, .. } => print::c,
        Language { rust: true, .. } => print::rust,
        Language { python: true, .. } => print::python,
        _ => {
            return arguments.json.print(
                || json!({ "types": types.iter().map(type_json).collect::<Value>() }),
                || text(&types),
            );
        }
    };
    cli::print(&source(&types))
}

/// The types of a file, of which there is at least one.
fn read(file: &Path) -> Result<Vec<Declaration>, CommandError> {
    let config = NodeConfig::from_file(file)
        .map_err(|error| CommandError::usage(error.to_string(), error.remedy()))?;
    if config.types.is_empty() {
        return Err(CommandError::failed(
            format!("{} declares no types", file.display()),
            "declare one there: [[type]]; docs/reference/types.md has an example",
        ));
    }
    Ok(config.types.into_iter().map(Arc::unwrap_or_clone).collect())
}

fn text(types: &[Declaration]) -> String {
    let one = |declared: &Declaration| {
        let fields = declared.fields().iter().map(|field| {
            let numbers = [field.offset, field.bytes()].map(|number| number.to_string());
            [vec![field.name.clone(), field.type_text()], numbers.into()].concat()
        });
        let table = table::figures(&["field", "type", "offset", "bytes"], fields);
        format!(
            "{}, {} bytes, fingerprint {:016x}, type byte {}\n{table}",
            declared.name(),
            declared.bytes(),
            declared.fingerprint(),
            declared.type_byte()
        )
    };
    types.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn type_json(declared: &Declaration) -> Value {
    let fields = declared.fields().iter().map(|field| {
        json!({
            "name": field.name,
            "type": field.type_text(),
            "offset": field.offset,
            "bytes": field.bytes(),
        })
    });
    json!({
        "name": declared.name(),
        "bytes": declared.bytes(),
        "fingerprint": format!("{:016x}", declared.fingerprint()),
        "type_byte": declared.type_byte(),
        "fields": fields.collect::<Vec<_>>(),
    })
}

/// A type of one of two files, or of both.
struct Compared<'a> {
    name: &'a str,
    is_here: bool,
    is_there: bool,
    difference: Option<String>,
}

impl Compared<'_> {
    fn text(&self) -> String {
        let said = match (self.is_here, self.is_there, &self.difference) {
            (_, _, Some(difference)) => difference.as_str(),
            (true, true, None) => "the same",
            (true, false, None) => "only here",
            (false, _, None) => "only there",
        };
        format!("{}: {said}\n", self.name)
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "here": self.is_here,
            "there": self.is_there,
            "difference": self.difference,
        })
    }
}

/// Compares types of the same names; those that only one file has are told, and are no difference.
fn compare(
    arguments: &Arguments,
    here: &[Declaration],
    there: &[Declaration],
) -> Result<(), CommandError> {
    let in_list = |list: &[Declaration], name: &str| list.iter().position(|one| one.name() == name);
    let own = here.iter().map(|own| {
        let other = in_list(there, own.name()).map(|place| &there[place]);
        Compared {
            name: own.name(),
            is_here: true,
            is_there: other.is_some(),
            difference: other.and_then(|other| own.difference(other)),
        }
    });
    let others = there
        .iter()
        .filter(|other| in_list(here, other.name()).is_none());
    let others = others.map(|other| Compared {
        name: other.name(),
        is_here: false,
        is_there: true,
        difference: None,
    });
    let all: Vec<Compared<'_>> = own.chain(others).collect();
    arguments.json.print(
        || json!({ "compared": all.iter().map(Compared::json).collect::<Value>() }),
        || all.iter().map(Compared::text).collect(),
    )?;
    match all.iter().any(|one| one.difference.is_some()) {
        true => Err(CommandError::answer_is_no()),
        false => Ok(()),
    }
}
