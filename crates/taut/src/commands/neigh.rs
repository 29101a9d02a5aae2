//! `taut neigh`: the neighbour table that a control process has for all its clients.

use std::net::Ipv4Addr;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tautline::control::{self, SharedTable};
use tautline::neighbours::{self, Origin};
use tautline::{Form, MacAddress, Neighbour, NeighbourTable, NeighbourTableError, TableState};

use crate::cli::CommandError;
use crate::commands::live::unless_interrupted;
use crate::commands::output::JsonArguments;
use crate::units;
use tautline_report::table;
use tautline_testbed::interface;

/// Arguments of `taut neigh`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the table: entries, the origin of each, and whether the table is locked.
    Show(ShowArguments),
    /// Add a neighbour with known addresses.
    Add(AddArguments),
    /// Ask the network once, by ARP, for the MAC address of an IPv4 address, and add it; without a control process,
    /// print it for a configuration.
    Solicit(SolicitArguments),
    /// Unlock the table although ports are open: for maintenance, without guarantees.
    Unlock(ShowArguments),
    /// Lock the table, after maintenance or before the first port.
    Lock(ShowArguments),
}

#[derive(Debug, Args)]
struct ShowArguments {
    /// Interface whose control process it is [default: the only one that there is].
    #[arg(long, value_name = "IF")]
    interface: Option<String>,
    #[command(flatten)]
    json: JsonArguments,
}

#[derive(Debug, Args)]
struct AddArguments {
    /// Name by which ports find it.
    #[arg(value_parser = name)]
    name: String,
    /// Its MAC address; a peer behind a router has the router's.
    #[arg(long, value_name = "MAC", required_unless_present = "ip", value_parser = mac)]
    mac: Option<MacAddress>,
    /// Its IPv4 address.
    #[arg(long, value_name = "IPV4")]
    ip: Option<Ipv4Addr>,
    /// Form in which messages are sent to it: ethernet or udp [default: ethernet if there is a MAC address].
    #[arg(long, value_name = "FORM", value_parser = form)]
    form: Option<Form>,
    #[command(flatten)]
    of: ShowArguments,
}

#[derive(Debug, Args)]
struct SolicitArguments {
    /// Name by which ports find it.
    #[arg(value_parser = name)]
    name: String,
    /// Its IPv4 address.
    #[arg(value_name = "IPV4")]
    ip: Ipv4Addr,
    /// Form in which messages are sent to it: ethernet or udp.
    #[arg(long, value_name = "FORM", value_parser = form, default_value = "ethernet")]
    form: Form,
    /// Time to wait for the answer, 1ms to 10s; 500ms or plain seconds.
    #[arg(long, value_name = "TIME", value_parser = timeout, default_value = "1s")]
    timeout: Duration,
    #[command(flatten)]
    of: ShowArguments,
}

/// Whether a table would take the name.
fn name(text: &str) -> Result<String, String> {
    let entry = tautline::neighbour(text, Ipv4Addr::LOCALHOST);
    let taken = NeighbourTable::new().add(entry);
    taken
        .map(|_| text.to_owned())
        .map_err(|error| error.to_string())
}

fn mac(text: &str) -> Result<MacAddress, String> {
    let parsed = text.parse();
    parsed.map_err(|_| "expected a MAC address such as 02:00:00:00:00:02".to_owned())
}

fn form(text: &str) -> Result<Form, String> {
    let parsed: Result<Form, _> = text.parse();
    parsed.map_err(|error| error.to_string())
}

fn timeout(text: &str) -> Result<Duration, String> {
    let longest = neighbours::SOLICIT_TIME_MAX;
    Some(units::seconds(text)?)
        .filter(|timeout| (Duration::from_millis(1)..=longest).contains(timeout))
        .ok_or_else(|| format!("expected 1ms to {longest:?}"))
}

/// Runs the subcommand.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    match arguments.command {
        Command::Show(arguments) => show(&arguments),
        Command::Add(arguments) => add(arguments),
        Command::Solicit(arguments) => solicit(arguments),
        Command::Unlock(arguments) => set_lock(&arguments, SharedTable::unlock),
        Command::Lock(arguments) => set_lock(&arguments, SharedTable::lock),
    }
}

fn error(error: NeighbourTableError) -> CommandError {
    let build = match error {
        NeighbourTableError::NoSuchInterface { .. }
        | NeighbourTableError::OwnAddress { .. }
        | NeighbourTableError::GroupAddress { .. }
        | NeighbourTableError::UnusableAddress { .. }
        | NeighbourTableError::OutsideNetwork { .. } => CommandError::usage,
        _ => CommandError::failed,
    };
    build(error.to_string(), error.remedy().to_owned())
}

impl ShowArguments {
    /// The interface that is named, or the only one with a control process.
    fn interface(&self) -> Result<String, CommandError> {
        if let Some(name) = &self.interface {
            return Ok(name.clone());
        }
        let names = interface::names().map_err(|error| {
            CommandError::failed(
                format!("cannot list the interfaces: {error}"),
                "name one with --interface",
            )
        })?;
        let mut served: Vec<String> = names
            .into_iter()
            .filter(|name| control::look(name).is_some())
            .collect();
        match (served.pop(), served.is_empty()) {
            (Some(only), true) => Ok(only),
            (None, _) => Err(CommandError::usage(
                "no interface has a control process here",
                "start one (taut node run); taut neigh solicit --interface IF asks the network without one",
            )),
            (Some(last), false) => Err(CommandError::usage(
                format!(
                    "several interfaces have a control process: {}, {last}",
                    served.join(", ")
                ),
                "name one with --interface",
            )),
        }
    }

    /// The table of its control process.
    fn connect(&self) -> Result<(String, SharedTable), CommandError> {
        let interface = self.interface()?;
        match SharedTable::connect(&interface).map_err(error)? {
            Some(table) => Ok((interface, table)),
            None => Err(CommandError::failed(
                format!("`{interface}` has no control process"),
                "start one (taut node run), or write the neighbour into the configuration of the node",
            )),
        }
    }

    /// Says what was done, and the entry as JSON where that is asked for.
    fn say(&self, text: &str, json: &Value) -> Result<(), CommandError> {
        self.json.print(|| json.clone(), || format!("{text}\n"))
    }
}

fn entry_json(entry: &Neighbour, origin: Origin) -> Value {
    json!({
        "name": entry.name,
        "mac": known(entry.mac),
        "ip": entry.ip,
        "form": entry.form.to_string(),
        "origin": origin.name(),
    })
}

fn known(mac: MacAddress) -> Option<String> {
    (!mac.is_unspecified()).then(|| mac.to_string())
}

fn state_json(state: TableState) -> Value {
    let by = match state {
        TableState::Locked(by) => Some(by.to_string()),
        _ => None,
    };
    json!({ "state": state.name(), "locked_by": by })
}

fn show(arguments: &ShowArguments) -> Result<(), CommandError> {
    let (interface, mut table) = arguments.connect()?;
    let content = table.read().map_err(error)?;
    let entries = || content.entries.iter();
    let json = || {
        let entries: Vec<Value> = entries()
            .map(|(entry, origin)| entry_json(entry, *origin))
            .collect();
        json!({
            "interface": interface,
            "control_process": table.pid(),
            "neighbour_table": state_json(content.state),
            "neighbours": entries,
        })
    };
    let header = ["neighbour", "mac", "ip", "form", "origin"];
    let rows = entries().map(|(entry, origin)| {
        let dash = || "–".to_owned();
        vec![
            entry.name.clone(),
            known(entry.mac).unwrap_or_else(dash),
            entry.ip.map_or_else(dash, |ip| ip.to_string()),
            entry.form.to_string(),
            origin.name().to_owned(),
        ]
    });
    let mut text = format!(
        "control process {} of {interface}, neighbour table {}\n",
        table.pid(),
        content.state
    );
    text += &match content.entries.is_empty() {
        true => "  no neighbours\n".to_owned(),
        false => table::figures(&header, rows),
    };
    arguments.json.print(json, || text)
}

fn add(arguments: AddArguments) -> Result<(), CommandError> {
    let form = match (arguments.form, arguments.mac) {
        (Some(form), _) => form,
        (None, Some(_)) => Form::Ethernet,
        (None, None) => Form::Udp,
    };
    let entry = Neighbour {
        name: arguments.name,
        mac: arguments.mac.unwrap_or(MacAddress::UNSPECIFIED),
        ip: arguments.ip,
        form,
    };
    let (interface, mut table) = arguments.of.connect()?;
    table.add(&entry).map_err(error)?;
    let added = (&entry, Origin::Added);
    entered(&arguments.of, &interface, table.pid(), added)
}

/// An entry, with the interface and the control process that has it.
fn entered_json(interface: &str, pid: Option<i32>, (entry, origin): (&Neighbour, Origin)) -> Value {
    let mut json = entry_json(entry, origin);
    json["interface"] = json!(interface);
    json["control_process"] = json!(pid);
    json
}

fn entered(
    arguments: &ShowArguments,
    interface: &str,
    pid: i32,
    (entry, origin): (&Neighbour, Origin),
) -> Result<(), CommandError> {
    let json = entered_json(interface, Some(pid), (entry, origin));
    let addresses = [known(entry.mac), entry.ip.map(|ip| ip.to_string())];
    let addresses: Vec<String> = addresses.into_iter().flatten().collect();
    let text = format!("{} is {} on {interface}", entry.name, addresses.join(", "));
    arguments.say(&text, &json)
}

fn solicit(arguments: SolicitArguments) -> Result<(), CommandError> {
    let SolicitArguments {
        name,
        ip,
        form,
        timeout,
        of,
    } = arguments;
    let mut entry = Neighbour {
        name,
        mac: MacAddress::UNSPECIFIED,
        ip: Some(ip),
        form,
    };
    let interface = of.interface()?;
    if let Some(mut table) = SharedTable::connect(&interface).map_err(error)? {
        let pid = table.pid();
        let wanted = entry.clone();
        let answer = unless_interrupted(move || table.solicit(&wanted, ip, timeout))?;
        entry.mac = answer.map_err(error)?;
        return entered(&of, &interface, pid, (&entry, Origin::Solicited));
    }
    let asked = interface.clone();
    let answer = unless_interrupted(move || neighbours::solicit(&asked, ip, timeout))?;
    entry.mac = answer.map_err(error)?;
    if !of.json.has_stdout() {
        say!("taut: `{interface}` has no control process: for the configuration of a node:");
    }
    let mac = entry.mac;
    of.json.print(
        || entered_json(&interface, None, (&entry, Origin::Solicited)),
        || {
            // A name may have quotation marks in it.
            let name = Value::from(entry.name.as_str());
            format!(
                "[[neighbour]]\nname = {name}\nmac = \"{mac}\"\nip = \"{ip}\"\nform = \"{form}\"\n"
            )
        },
    )
}

fn set_lock(
    arguments: &ShowArguments,
    set: impl FnOnce(&mut SharedTable) -> Result<(), NeighbourTableError>,
) -> Result<(), CommandError> {
    let (interface, mut table) = arguments.connect()?;
    set(&mut table).map_err(error)?;
    let state = table.read().map_err(error)?.state;
    let json = json!({
        "interface": interface,
        "control_process": table.pid(),
        "neighbour_table": state_json(state),
    });
    arguments.say(
        &format!("the neighbour table of {interface} is {state}"),
        &json,
    )
}
