//! `taut capture`: what the ports of this machine send and receive, on the screen or for Wireshark.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use tautline_capture::frame;
use tautline_capture::message::Flow;
use tautline_capture::sink::Sink;
use tautline_capture::{
    Batch, CaptureError, Item, KnownTypes, MessageRead, Way, bus_message, pcapng,
};
use tautline_proto::authentication::{self, Protection, Trailer};
use tautline_proto::wire::Header;
use tautline_report::plot::latency_text;

use crate::cli::{self, CommandError};
use crate::commands::live::pause;
use crate::commands::output::{JsonArguments, JsonLines, fields};
use crate::commands::sources::{self, SourceArguments, Tap, failed};
use crate::units;

/// Arguments of `taut capture`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    sources: SourceArguments,
    /// Write a file for Wireshark (pcapng); - is standard output.
    #[arg(long, short, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Only plain UDP to or from this UDP port, where link xdp or xsk carries it.
    #[arg(long, value_name = "PORT", conflicts_with_all = ["port", "bus"])]
    udp_port: Option<u16>,
    /// Also when the application reads each message of --port or --udp-port, for a reading of the clock a message.
    #[arg(long)]
    reads: bool,
    /// End after this many frames and messages [default: never].
    #[arg(long, value_name = "N", value_parser = units::count)]
    count: Option<u64>,
    /// End after this time, 500ms or plain seconds [default: never].
    #[arg(long, value_name = "TIME", value_parser = units::seconds, allow_negative_numbers = true)]
    timeout: Option<Duration>,
    #[command(flatten)]
    json: JsonArguments,
}

/// Copies until it is ended. Fewer than `--count` came in time: exit status 1.
pub fn run(mut arguments: Arguments) -> Result<(), CommandError> {
    arguments.sources.udp_port = arguments.udp_port;
    let types = arguments.sources.types.ask()?;
    let mut taps = arguments.sources.open()?;
    if arguments.reads {
        taps.push(arguments.sources.reads()?);
    }
    eprintln!("capturing on {}", sources::names(&taps));
    let mut output = Output::open(&arguments, types, &taps)?;
    let result = copy(&arguments, &mut taps, &mut output);
    let seen = output.seen;
    // An error of the copying is worth more than one of the end.
    let ended = result.and(output.end(&mut taps));
    let lost: u64 = taps.iter_mut().map(Tap::lost).sum();
    eprintln!("{seen} captured, {lost} lost");
    ended?;
    match arguments.count.filter(|count| seen < *count) {
        Some(count) if arguments.timeout.is_some() => Err(CommandError::failed(
            format!("only {seen} of {count} came in time"),
            "wait longer with --timeout; `taut status` shows which ports are busy",
        )),
        _ => Ok(()),
    }
}

fn copy(
    arguments: &Arguments,
    taps: &mut [Tap],
    output: &mut Output<'_>,
) -> Result<(), CommandError> {
    let deadline = arguments
        .timeout
        .and_then(|timeout| Instant::now().checked_add(timeout));
    sources::stand_back();
    let mut batch = Batch::default();
    loop {
        // Read before the last look, so that everything up to the deadline is seen.
        let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        for (tap, origin) in taps.iter_mut().zip(0..) {
            tap.look(origin, &mut batch)
                .map_err(|error| failed(&error))?;
        }
        let rest = sources::pause_after(&*taps, batch.len());
        let written = output.write(&mut batch, taps);
        match written {
            // Wireshark was closed, or `head` has enough.
            Err(error) if Sink::is_reader_gone(&error) => return Ok(()),
            written => written.map_err(|error| failed(&error))?,
        }
        if is_over || output.is_full() || pause(rest).is_some() {
            for (tap, origin) in taps.iter_mut().zip(0..) {
                tap.look_last(origin, &mut batch);
            }
            return output
                .write(&mut batch, taps)
                .map_err(|error| failed(&error));
        }
    }
}

/// Where copies go.
struct Output<'a> {
    arguments: &'a Arguments,
    file: Option<Sink>,
    lines: JsonLines,
    /// Types of the messages, where lines are written.
    types: Option<KnownTypes>,
    seen: u64,
}

impl<'a> Output<'a> {
    fn open(
        arguments: &'a Arguments,
        types: KnownTypes,
        taps: &[Tap],
    ) -> Result<Output<'a>, CommandError> {
        let mut file = None;
        if let Some(path) = &arguments.write {
            let mut sink = Sink::create(path).map_err(|error| cli::not_written(path, &error))?;
            sink.block(pcapng::section);
            for tap in taps {
                let (link, about) = match (tap.is_bus(), tap.is_reads()) {
                    (true, _) => (pcapng::LINK_BUS, "messages of a bus"),
                    (_, true) => (pcapng::LINK_READS, "reads by applications"),
                    _ => (pcapng::LINK_ETHERNET, "frames of Tautline"),
                };
                sink.block(|buffer| pcapng::interface(buffer, link, &tap.name, about));
            }
            sink.flush().map_err(|error| failed(&error))?;
            file = Some(sink);
        }
        let is_shown = file.is_none() || arguments.json.path().is_some();
        Ok(Output {
            arguments,
            file,
            lines: arguments.json.lines()?,
            types: is_shown.then_some(types),
            seen: 0,
        })
    }

    fn is_full(&self) -> bool {
        self.arguments.count.is_some_and(|count| self.seen >= count)
    }

    /// Writes what was copied.
    fn write(&mut self, batch: &mut Batch, taps: &mut [Tap]) -> Result<(), CaptureError> {
        let mut text = String::new();
        batch.drain(|item, bytes| {
            let tap = &mut taps[item.origin as usize];
            if self.is_full() || !self.arguments.sources.wants(tap, bytes) {
                return Ok(());
            }
            self.seen += 1;
            tap.seen += 1;
            if let Some(file) = &mut self.file {
                file.block(|buffer| pcapng::packet(buffer, &packet(item, bytes)));
            }
            if let Some(types) = &mut self.types {
                let line = line((self.arguments.sources.ethertype, types), tap, item, bytes);
                let _ = writeln!(text, "{}", line.text);
                let written = self.lines.write(&line.json);
                written.map_err(|_| CaptureError::Write {
                    source: std::io::ErrorKind::BrokenPipe.into(),
                })?;
            }
            Ok(())
        })?;
        if let Some(file) = &mut self.file {
            file.flush()?;
        } else if !self.lines.has_stdout() {
            // Its errors are those of a reader that has gone.
            let _ = cli::print(&text);
        }
        Ok(())
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
        for (tap, number) in taps.iter_mut().zip(0..) {
            let (seen, lost) = (tap.seen, tap.lost());
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

fn line((ethertype, types): (u16, &mut KnownTypes), tap: &Tap, item: &Item, bytes: &[u8]) -> Line {
    let way = match item.way {
        Way::Received => "in ",
        Way::Sent => "out",
    };
    let mut json = json!({
        "time_ns": item.time_ns,
        "on": tap.name,
        "way": way.trim(),
        "lost_before": item.lost,
    });
    let (mut said, message) = match (tap.is_bus(), tap.is_reads()) {
        (true, _) => bus_line(&tap.name, bytes, &mut json),
        (_, true) => (read_line(bytes, &mut json), None),
        _ => frame_line((ethertype, &tap.name), item, bytes, &mut json),
    };
    let declared = message.and_then(|(flow, payload)| Some((types.of(&flow)?, payload)));
    if let Some((declared, payload)) = declared
        && let Some(fields) = fields(&declared, payload, &mut json)
    {
        said = format!("{said} {fields}");
    }
    let (seconds, rest) = (item.time_ns / 1_000_000_000, item.time_ns % 1_000_000_000);
    let lost = match item.lost {
        0 => String::new(),
        lost => format!(" ({lost} lost before)"),
    };
    Line {
        text: format!("{seconds}.{rest:09} {} {way} {said}{lost}", tap.name),
        json,
    }
}

/// Words about a copy, and the message in it if that is whole and alone.
type Said<'b> = (String, Option<(Flow, &'b [u8])>);

fn read_line(bytes: &[u8], json: &mut serde_json::Value) -> String {
    let Some(read) = MessageRead::from_bytes(bytes) else {
        return "not a read".to_owned();
    };
    json["way"] = "read".into();
    json[if read.is_udp { "udp_port" } else { "port" }] = read.port.into();
    json["process"] = read.process.into();
    json["arrival_ns"] = read.arrival_ns.into();
    json["waited_ns"] = read.waited_ns.into();
    let (seconds, rest) = (
        read.arrival_ns / 1_000_000_000,
        read.arrival_ns % 1_000_000_000,
    );
    format!(
        "process {} read what arrived at {seconds}.{rest:09}, {} later",
        read.process,
        latency_text(read.waited_ns)
    )
}

fn bus_line<'b>(on: &str, bytes: &'b [u8], json: &mut serde_json::Value) -> Said<'b> {
    let Some((message, payload)) = bus_message(bytes) else {
        return ("not a message".to_owned(), None);
    };
    json["from"] = message.from.to_string().into();
    json["to"] = message.to.to_string().into();
    json["priority"] = message.priority.into();
    json["sequence"] = message.sequence.into();
    json["bytes"] = payload.len().into();
    let said = format!(
        "{} > {} priority {} sequence {} {} B",
        message.from,
        message.to,
        message.priority,
        message.sequence,
        payload.len()
    );
    (said, Some((Flow::of_bus(on, &message), payload)))
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

fn frame_line<'b>(
    (ethertype, on): (u16, &str),
    item: &Item,
    bytes: &'b [u8],
    json: &mut serde_json::Value,
) -> Said<'b> {
    let frame = match frame::frame(bytes, ethertype) {
        Ok(Some(frame)) => frame,
        Ok(None) => return (other_frame(item, bytes, json), None),
        Err(error) => {
            json["error"] = error.name().into();
            return (format!("malformed: {}", error.name()), None);
        }
    };
    let (header, payload, trailer) = match protection(&frame) {
        Some((header, message, trailer)) => (header, message, Some(trailer)),
        None => (frame.header, frame.payload, None),
    };
    json["from"] = json!({ "address": frame.from.to_string(), "port": header.source.get() });
    json["to"] = json!({ "address": frame.to.to_string(), "port": header.destination.get() });
    json["priority"] = header.priority.get().into();
    json["sequence"] = header.sequence.into();
    json["bytes"] = payload.len().into();
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
        "{} port {} > {} port {} priority {} sequence {} {} B{part}",
        frame.from,
        header.source,
        frame.to,
        header.destination,
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
    let flow = is_message.then(|| Flow::of_frame(on, &frame, item.way));
    (said, flow.map(|flow| (flow, payload)))
}

/// Header, message and trailer of an authenticated frame that has one.
fn protection<'f>(frame: &frame::Frame<'f>) -> Option<(Header, &'f [u8], Trailer)> {
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
