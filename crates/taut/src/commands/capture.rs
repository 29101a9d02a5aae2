//! `taut capture`: what the ports of this machine send and receive, on the screen or for Wireshark.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use tautline::types::Declaration;
use tautline_capture::frame::{self, Frame};
use tautline_capture::message::Flow;
use tautline_capture::sink::Sink;
use tautline_capture::{
    Batch, FlowNames, Item, KnownNodes, Tap, Way, bus_message, pause_after, pcapng, stand_back,
};
use tautline_proto::authentication::{self, Protection, Trailer};
use tautline_proto::wire::Header;
use tautline_state::text::plain;

use crate::cli::{self, CommandError};
use crate::commands::live::pause;
use crate::commands::output::{self, JsonArguments, JsonLines, fields, hex};
use crate::commands::sources::{self, SourceArguments, failed};
use crate::units;

/// Characters of a name in a line. Lower cuts names of neighbours, which have up to 63 bytes.
const NAME_CHARS_MAX: usize = 63;

/// Arguments of `taut capture`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    sources: SourceArguments,
    /// Write a file for Wireshark (pcapng); - is standard output.
    #[arg(long, short, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Overwrite the file if it exists.
    #[arg(long, requires = "write")]
    overwrite: bool,
    /// End after this many frames and messages [default: never].
    #[arg(long, value_name = "N", value_parser = units::count)]
    count: Option<u64>,
    /// End after this time, such as 500ms [default: never].
    #[arg(long = "for", value_name = "TIME", value_parser = units::time)]
    length: Option<Duration>,
    #[command(flatten)]
    json: JsonArguments,
}

/// Copies until it is ended. Fewer than `--count` came in time: exit status 1; before a signal: 128 + its number.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    if arguments.json.has_stdout() && arguments.write.as_deref() == Some(Path::new("-")) {
        return Err(CommandError::usage(
            "standard output cannot have both the file for Wireshark and JSON",
            "give one of them a file: --json=FILE, or --write FILE",
        ));
    }
    let nodes = arguments.sources.known.ask()?;
    let mut taps = arguments.sources.open()?;
    say!("capturing on {}", sources::names(&taps));
    let mut output = Output::open(&arguments, nodes, &taps)?;
    let result = copy(&arguments, &mut taps, &mut output);
    let seen = output.seen;
    // An error of the copying is worth more than one of the end.
    let ended = result.and(output.end(&mut taps));
    let lost: u64 = taps.iter_mut().map(Tap::lost).sum();
    say!("{seen} captured, {lost} lost");
    ended?;
    sources::all_came(seen, arguments.count, sources::BUSY_REMEDY)
}

fn copy(
    arguments: &Arguments,
    taps: &mut [Tap],
    output: &mut Output<'_>,
) -> Result<(), CommandError> {
    let deadline = arguments
        .length
        .and_then(|length| Instant::now().checked_add(length));
    stand_back();
    let mut batch = Batch::default();
    loop {
        // Read before the last look, so that everything up to the deadline is seen.
        let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        for (tap, origin) in taps.iter_mut().zip(0..) {
            sources::look(tap, origin, &mut batch).map_err(|error| failed(&error))?;
        }
        let rest = pause_after(&*taps, batch.len());
        output.write(&mut batch, taps)?;
        if is_over || output.is_full() || pause(rest).is_some() {
            for (tap, origin) in taps.iter_mut().zip(0..) {
                tap.look_last(origin, &mut batch);
            }
            return output.write(&mut batch, taps);
        }
    }
}

/// Where copies go.
struct Output<'a> {
    arguments: &'a Arguments,
    file: Option<Sink>,
    lines: JsonLines,
    /// Names and types of the messages, where lines are written.
    nodes: Option<KnownNodes>,
    /// Copies that were written, of all taps and of each.
    seen: u64,
    seen_of: Vec<u64>,
}

impl<'a> Output<'a> {
    fn open(
        arguments: &'a Arguments,
        nodes: KnownNodes,
        taps: &[Tap],
    ) -> Result<Output<'a>, CommandError> {
        let mut file = None;
        if let Some(path) = &arguments.write {
            let mut sink = Sink::create(path, output::existing(arguments.overwrite))
                .map_err(|error| cli::not_made(path, &error))?;
            sink.block(pcapng::section);
            for tap in taps {
                let (link, about) = match tap.is_bus() {
                    true => (pcapng::LINK_BUS, "messages of a bus"),
                    false => (pcapng::LINK_ETHERNET, "frames of Tautline"),
                };
                sink.block(|buffer| pcapng::interface(buffer, link, tap.name(), about));
            }
            let named = nodes.addresses();
            if !named.is_empty() {
                sink.block(|buffer| pcapng::names(buffer, &named));
            }
            sink.flush().map_err(|error| failed(&error))?;
            file = Some(sink);
        }
        let is_shown = file.is_none() || arguments.json.path().is_some();
        Ok(Output {
            arguments,
            file,
            lines: arguments.json.lines()?,
            nodes: is_shown.then_some(nodes),
            seen: 0,
            seen_of: vec![0; taps.len()],
        })
    }

    fn is_full(&self) -> bool {
        self.arguments.count.is_some_and(|count| self.seen >= count)
    }

    /// Writes what was copied.
    fn write(&mut self, batch: &mut Batch, taps: &[Tap]) -> Result<(), CommandError> {
        let mut text = String::new();
        batch.drain(|item, bytes| -> Result<(), CommandError> {
            let tap = &taps[item.origin as usize];
            if self.is_full() || !self.arguments.sources.wants(tap, bytes) {
                return Ok(());
            }
            self.seen += 1;
            self.seen_of[item.origin as usize] += 1;
            if let Some(file) = &mut self.file {
                file.block(|buffer| pcapng::packet(buffer, &packet(item, bytes)));
            }
            if let Some(nodes) = &mut self.nodes {
                let line = line((self.arguments.sources.ethertype, nodes), tap, item, bytes);
                let _ = writeln!(text, "{}", line.text);
                self.lines.write(&line.json)?;
            }
            Ok(())
        })?;
        match &mut self.file {
            // Wireshark was closed, or `head` has enough.
            Some(file) => file
                .flush()
                .map_err(|error| match Sink::is_reader_gone(&error) {
                    true => CommandError::reader_gone(),
                    false => failed(&error),
                }),
            None if self.lines.has_stdout() => Ok(()),
            None => cli::show_text(&text),
        }
    }

    /// Ends the file with the figures of each source.
    fn end(mut self, taps: &mut [Tap]) -> Result<(), CommandError> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let now_ns = units::ns(
            std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap_or_default(),
        );
        for ((tap, seen), number) in taps.iter_mut().zip(self.seen_of).zip(0..) {
            let lost = tap.lost();
            file.block(|buffer| pcapng::statistics(buffer, number, now_ns, seen, lost));
        }
        match file.flush() {
            Err(error) if !Sink::is_reader_gone(&error) => Err(failed(&error)),
            _ => Ok(()),
        }
    }
}

fn packet<'b>(item: &Item, bytes: &'b [u8]) -> pcapng::Packet<'b> {
    pcapng::Packet {
        interface: item.origin,
        time_ns: item.time_ns,
        way: item.way,
        length: item.length,
        bytes,
        lost: item.lost,
        comment: "",
    }
}

/// A copy for the screen and as JSON.
struct Line {
    text: String,
    json: serde_json::Value,
}

fn line((ethertype, nodes): (u16, &mut KnownNodes), tap: &Tap, item: &Item, bytes: &[u8]) -> Line {
    let way = match item.way {
        Way::Received => "in ",
        Way::Sent => "out",
    };
    let mut json = json!({
        "time_ns": item.time_ns,
        "on": tap.name(),
        "way": way.trim(),
        "lost_before": item.lost,
    });
    let on = (tap.name(), nodes);
    let said = match tap.is_bus() {
        true => bus_line(on, bytes, &mut json),
        false => frame_line(on, ethertype, item, bytes, &mut json),
    };
    let (seconds, rest) = (item.time_ns / 1_000_000_000, item.time_ns % 1_000_000_000);
    let lost = match item.lost {
        0 => String::new(),
        lost => format!(" ({lost} lost before)"),
    };
    Line {
        text: format!("{seconds}.{rest:09} {} {way} {said}{lost}", tap.name()),
        json,
    }
}

/// Interface or bus of a copy, and the nodes that know names and types.
type On<'a> = (&'a str, &'a mut KnownNodes);

/// A node in a line: its name where it is known, otherwise its address.
fn node_text(name: &Option<String>, address: &str) -> String {
    name.as_ref()
        .map_or_else(|| address.to_owned(), |name| plain(name, NAME_CHARS_MAX))
}

/// The name of a port behind its number.
fn port_text(name: &Option<String>) -> String {
    let name = name.as_ref();
    name.map_or_else(String::new, |name| {
        format!(" ({})", plain(name, NAME_CHARS_MAX))
    })
}

/// The words, and behind them the fields of a message that is whole and alone.
fn with_fields(
    said: String,
    declared: Option<Arc<Declaration>>,
    payload: &[u8],
    json: &mut serde_json::Value,
) -> String {
    match declared.and_then(|declared| fields(&declared, payload, json)) {
        Some(fields) => format!("{said} {fields}"),
        None => said,
    }
}

fn bus_line((on, nodes): On<'_>, bytes: &[u8], json: &mut serde_json::Value) -> String {
    let Some((message, payload)) = bus_message(bytes) else {
        return "not a message".to_owned();
    };
    let about = nodes.about(&Flow::of_bus(on, &message));
    let names = &about.names;
    json["from"] = message.from.to_string().into();
    json["to"] = message.to.to_string().into();
    for (key, name) in [
        ("from_port_name", &names.source_port),
        ("to_port_name", &names.destination_port),
    ] {
        if let Some(name) = name {
            json[key] = name.as_str().into();
        }
    }
    json["priority"] = message.priority.into();
    json["sequence"] = message.sequence.into();
    json["bytes"] = payload.len().into();
    json["payload"] = hex(payload).into();
    let said = format!(
        "{}{} > {}{} priority {} sequence {} {} B",
        message.from,
        port_text(&names.source_port),
        message.to,
        port_text(&names.destination_port),
        message.priority,
        message.sequence,
        payload.len()
    );
    with_fields(said, about.declared, payload, json)
}

/// Words about a frame that is not of ours: plain UDP, of which Tautline may be one end only.
fn other_frame(item: &Item, bytes: &[u8], json: &mut serde_json::Value) -> String {
    let Some(datagram) = frame::plain_datagram(bytes) else {
        json["bytes"] = item.length.into();
        return format!("another frame, {} B", item.length);
    };
    let bytes = datagram.payload.len();
    for (end, address) in [("from", datagram.from), ("to", datagram.to)] {
        json[end] = json!({ "address": address.ip().to_string(), "udp_port": address.port() });
    }
    json["bytes"] = bytes.into();
    let [from, to] = [datagram.from, datagram.to];
    format!("UDP {from} > {to} {bytes} B")
}

/// Both ends of a frame as fields, with the names that are known.
fn ends(frame: &Frame<'_>, names: &FlowNames, json: &mut serde_json::Value) {
    let header = &frame.header;
    let sides = [
        (
            "from",
            frame.from,
            header.source,
            &names.from,
            &names.source_port,
        ),
        (
            "to",
            frame.to,
            header.destination,
            &names.to,
            &names.destination_port,
        ),
    ];
    for (key, end, port, name, port_name) in sides {
        let mut side = json!({ "address": end.to_string(), "port": port.get() });
        for (key, name) in [("name", name), ("port_name", port_name)] {
            if let Some(name) = name {
                side[key] = name.as_str().into();
            }
        }
        json[key] = side;
    }
}

fn frame_line(
    (on, nodes): On<'_>,
    ethertype: u16,
    item: &Item,
    bytes: &[u8],
    json: &mut serde_json::Value,
) -> String {
    let frame = match frame::frame(bytes, ethertype) {
        Ok(Some(frame)) => frame,
        Ok(None) => return other_frame(item, bytes, json),
        Err(error) => {
            json["error"] = error.name().into();
            return format!("malformed: {}", error.name());
        }
    };
    let about = nodes.about(&Flow::of_frame(on, &frame, item.way));
    let names = &about.names;
    let (header, payload, trailer) = match protection(&frame) {
        Some((header, message, trailer)) => (header, message, Some(trailer)),
        None => (frame.header, frame.payload, None),
    };
    ends(&frame, names, json);
    json["priority"] = header.priority.get().into();
    json["sequence"] = header.sequence.into();
    json["bytes"] = payload.len().into();
    json["payload"] = hex(payload).into();
    json["fragment_index"] = header.fragment_index.into();
    json["fragment_count"] = header.fragment_count.into();
    json["bundle"] = header.is_bundle().into();
    let part = match (header.is_whole(), header.is_bundle()) {
        (false, _) => format!(
            " part {} of {}",
            header.fragment_index + 1,
            header.fragment_count
        ),
        (true, true) => " bundle".to_owned(),
        (true, false) => String::new(),
    };
    let said = format!(
        "{} port {}{} > {} port {}{} priority {} sequence {} {} B{part}",
        node_text(&names.from, &frame.from.to_string()),
        header.source,
        port_text(&names.source_port),
        node_text(&names.to, &frame.to.to_string()),
        header.destination,
        port_text(&names.destination_port),
        header.priority,
        header.sequence,
        payload.len()
    );
    let said = match &trailer {
        Some(trailer) => format!("{said} {}", protected(trailer, json)),
        None => said,
    };
    let is_encrypted = trailer.is_some_and(|trailer| trailer.is_encrypted);
    let is_message = header.is_plain_message() && !is_encrypted;
    let declared = about.declared.filter(|_| is_message);
    with_fields(said, declared, payload, json)
}

/// Header, message and trailer of an authenticated frame that has one.
fn protection<'f>(frame: &Frame<'f>) -> Option<(Header, &'f [u8], Trailer)> {
    let is_authenticated = frame.header.is_authenticated();
    is_authenticated.then(|| authentication::unchecked(&frame.header, frame.payload))?
}

/// A trailer in words and fields. The command has no keys, so it checks nothing.
fn protected(trailer: &Trailer, json: &mut serde_json::Value) -> String {
    let protection = match trailer.is_encrypted {
        true => Protection::Encrypted,
        false => Protection::Authenticated,
    };
    json["protection"] = json!({
        "kind": protection.name(),
        "epoch": trailer.epoch,
        "run": format!("{:016x}", trailer.run),
        "time_ns": trailer.time_ns,
    });
    format!("{}, epoch {}", protection.name(), trailer.epoch)
}
