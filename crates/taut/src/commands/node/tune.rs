//! `taut node tune`: how receive processing on an interface is scheduled.

use std::path::PathBuf;

use clap::{Args, value_parser};
use serde_json::{Value, json};
use tautline::NodeConfig;
use tautline::config::{ServiceConfig, TuneConfig};
use tautline_state::journal::PutBack;

use crate::cli::CommandError;
use crate::commands::output::JsonArguments;
use crate::commands::peer;
use crate::tune::{self, TuneError, Tuned};
use tautline_report::table;

/// Arguments of `taut node tune`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Interface whose receive processing is scheduled.
    #[arg(long, value_name = "IF", required_unless_present_any = ["config", "undo"])]
    interface: Option<String>,
    /// Configuration file of the node (TOML); its [tune] section says what to set.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Poll the interface in kernel threads of its own.
    #[arg(long)]
    threaded: bool,
    /// Real-time priority of these threads, 1 to 99 [default with --threaded: 10].
    #[arg(long, value_name = "N", value_parser = value_parser!(u8).range(1..=99))]
    priority: Option<u8>,
    /// CPU that these threads run on.
    #[arg(long, value_name = "CPU")]
    cpu: Option<u32>,
    /// CPU that the interface's interrupts go to.
    #[arg(long, value_name = "CPU")]
    interrupt_cpu: Option<u32>,
    /// Put back what `tune`, or a `node run` that was killed, has changed [default: on every interface].
    #[arg(long, conflicts_with_all = ["config", "threaded", "priority", "cpu", "interrupt_cpu"])]
    undo: bool,
    #[command(flatten)]
    json: JsonArguments,
}

impl Arguments {
    /// The interface, and what to set on it.
    fn wanted(&self) -> Result<(String, TuneConfig), CommandError> {
        let config = match &self.config {
            Some(file) => ServiceConfig::from_file(file).map_err(peer::open_error)?,
            None => ServiceConfig::new(NodeConfig::on("")),
        };
        let interface = self.interface.clone().or(config.node.interface);
        let interface = interface.filter(|name| !name.is_empty()).ok_or_else(|| {
            CommandError::usage(
                "the configuration names no interface",
                "set `interface` in it, or name one with --interface",
            )
        })?;
        let file = config.tune.unwrap_or_default();
        let wanted = TuneConfig {
            threaded: self.threaded.then_some(true).or(file.threaded),
            priority: self.priority.or(file.priority),
            cpu: self.cpu.or(file.cpu),
            interrupt_cpu: self.interrupt_cpu.or(file.interrupt_cpu),
        };
        Ok((interface, wanted))
    }
}

/// Shows what is in force, and changes what is asked for until `--undo`.
pub(super) fn run(arguments: Arguments) -> Result<(), CommandError> {
    if arguments.undo {
        return undo(&arguments);
    }
    let (interface, wanted) = arguments.wanted()?;
    if wanted == TuneConfig::default() {
        let settings = tune::current(&interface).map_err(error)?;
        return arguments.json.print(
            || current_json(&interface, &settings),
            || current_text(&settings),
        );
    }
    let mut tuned = Tuned::begin(&interface).map_err(error)?;
    tuned.apply(&wanted).map_err(error)?;
    let (text, json) = (tuned.text(), tuned.json());
    tuned.keep().map_err(|error| {
        CommandError::failed(
            format!("the settings cannot be noted, and are put back: {error}"),
            "make room in /run",
        )
    })?;
    arguments.json.print(
        || json,
        || format!("{text}until: taut node tune --undo --interface {interface}\n"),
    )
}

fn current_json(interface: &str, settings: &[(String, String)]) -> Value {
    let settings = settings
        .iter()
        .map(|(setting, now)| json!({ "setting": setting, "now": now }));
    json!({ "interface": interface, "settings": Value::from_iter(settings) })
}

fn current_text(settings: &[(String, String)]) -> String {
    let rows = settings
        .iter()
        .map(|(setting, now)| vec![setting.clone(), now.clone()]);
    table::figures(&["setting", "now"], rows)
}

/// Puts back what was changed.
fn undo(arguments: &Arguments) -> Result<(), CommandError> {
    let mut interfaces = tune::tuned_interfaces();
    if let Some(interface) = arguments.interface.clone() {
        if !interfaces.contains(&interface) {
            tune::index(&interface).map_err(error)?;
        }
        interfaces = vec![interface];
    }
    let mut all = PutBack::default();
    let mut remedy = "bring the interface up, or run this as root; what is left is noted and can be put back later";
    for interface in interfaces {
        // One that cannot be put back does not keep the others from it.
        let put_back = tune::put_back_left(&interface).map_err(|error| {
            remedy = error.remedy();
            format!("{interface}: {error}")
        });
        all.add(put_back);
    }
    if all == PutBack::default() {
        all.done.push("nothing is tuned".to_owned());
    }
    arguments.json.print(
        || json!({ "put_back": all.done, "left": all.refused }),
        || all.done.iter().map(|line| format!("{line}\n")).collect(),
    )?;
    match all.refused.is_empty() {
        true => Ok(()),
        false => Err(CommandError::failed(all.refused.join("; "), remedy)),
    }
}

/// Failure as the command line reports it.
pub(super) fn error(error: TuneError) -> CommandError {
    let build = match error {
        TuneError::NoInterface(_) => CommandError::usage,
        _ => CommandError::failed,
    };
    build(error.to_string(), error.remedy().to_owned())
}
