//! `taut record`: the messages of ports in an MCAP file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use tautline_capture::message::{FLOWS_MAX, Messages};
use tautline_capture::recording::{Recorder, RecordingError};
use tautline_capture::{Batch, CaptureError, KnownNodes, Tap, pause_after, stand_back};

use crate::cli::{self, CommandError};
use crate::commands::live::pause;
use crate::commands::output;
use crate::commands::sources::{self, SourceArguments, failed};
use crate::units;

/// Arguments of `taut record`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// File to write (MCAP).
    #[arg(value_parser = cli::recording_file())]
    file: PathBuf,
    /// Overwrite the file if it exists.
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    sources: SourceArguments,
    /// End after this many messages [default: never].
    #[arg(long, value_name = "N", value_parser = units::count)]
    count: Option<u64>,
    /// End after this time, such as 500ms [default: never].
    #[arg(long = "for", value_name = "TIME", value_parser = units::time)]
    length: Option<Duration>,
}

/// Records until it is ended. Fewer than `--count` came in time: exit status 1; before a signal: 128 + its number.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    if arguments.sources.wants_datagrams() {
        return Err(CommandError::usage(
            "a recording has messages, and no datagrams of plain UDP",
            "copy them into a file for Wireshark: taut capture --port udp:PORT --write FILE",
        ));
    }
    let nodes = arguments.sources.known.ask()?;
    let taps = arguments.sources.open()?;
    let existing = output::existing(arguments.overwrite);
    let recorder = Recorder::create(&arguments.file, existing)
        .map_err(|error| not_made(&arguments.file, &error))?;
    say!("recording {}", sources::names(&taps));
    let mut recording = Running {
        arguments: &arguments,
        recorder,
        sources: taps
            .into_iter()
            .map(|tap| Source::new(tap, &arguments))
            .collect(),
        nodes,
    };
    let copied = recording.copy();
    let (seen, ended) = recording.end();
    copied.and(ended)?;
    sources::all_came(seen, arguments.count, sources::BUSY_REMEDY)
}

/// An interface or a bus with what is under way there.
struct Source {
    tap: Tap,
    messages: Messages,
    /// Its interface went down or is gone, and nothing came since.
    has_failed: bool,
}

impl Source {
    fn new(tap: Tap, arguments: &Arguments) -> Source {
        let messages = Messages::new(tap.name(), tap.is_bus(), arguments.sources.ethertype);
        Source {
            tap,
            messages,
            has_failed: false,
        }
    }

    /// Copies what has passed. Others go on without it.
    fn look(&mut self, origin: u32, batch: &mut Batch) -> Result<(), CaptureError> {
        let before = batch.len();
        let looked = sources::look(&mut self.tap, origin, batch);
        self.has_failed = match &looked {
            Ok(()) => self.has_failed && batch.len() == before,
            Err(_) => true,
        };
        looked
    }
}

/// A recording that is being made.
struct Running<'a> {
    arguments: &'a Arguments,
    recorder: Recorder,
    sources: Vec<Source>,
    nodes: KnownNodes,
}

impl Running<'_> {
    fn copy(&mut self) -> Result<(), CommandError> {
        let length = self.arguments.length;
        let deadline = length.and_then(|length| Instant::now().checked_add(length));
        stand_back();
        let mut batch = Batch::default();
        let mut is_warned = false;
        loop {
            // Read before the last look, so that everything up to the deadline is seen.
            let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            self.look(&mut batch)?;
            let taps = self.sources.iter().map(|source| &source.tap);
            let rest = pause_after(taps, batch.len());
            self.write(&mut batch)
                .map_err(|error| explain(self.arguments, &error))?;
            if self.recorder.left_out() > 0 && !is_warned {
                is_warned = true;
                say!(
                    "a recording has {FLOWS_MAX} flows at most: messages of further ones are left out; --interface, \
                     --bus and --port choose"
                );
            }
            if is_over || self.is_full() || pause(rest).is_some() {
                for (source, origin) in self.sources.iter_mut().zip(0..) {
                    source.tap.look_last(origin, &mut batch);
                }
                return self
                    .write(&mut batch)
                    .map_err(|error| explain(self.arguments, &error));
            }
        }
    }

    /// Looks at all sources. Fails if none is left.
    fn look(&mut self, batch: &mut Batch) -> Result<(), CommandError> {
        for place in 0..self.sources.len() {
            let source = &mut self.sources[place];
            let Err(error) = source.look(place as u32, batch) else {
                continue;
            };
            if self.sources.iter().all(|source| source.has_failed) {
                return Err(failed(&error));
            }
            say!(
                "{}: {error}; the others go on",
                self.sources[place].tap.name()
            );
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        let recorded = self.recorder.messages();
        self.arguments.count.is_some_and(|count| recorded >= count)
    }

    fn write(&mut self, batch: &mut Batch) -> Result<(), RecordingError> {
        let Self {
            arguments,
            recorder,
            sources,
            nodes,
        } = self;
        let count = arguments.count.unwrap_or(u64::MAX);
        batch.drain(|item, bytes| {
            let Source { tap, messages, .. } = &mut sources[item.origin as usize];
            if !arguments.sources.wants(tap, bytes) {
                return Ok(());
            }
            messages.take(item, bytes, |message| {
                if recorder.messages() < count {
                    recorder.write(&message, &nodes.about(message.flow))?;
                }
                Ok(())
            })
        })
    }

    /// Ends the file, with what was captured and missed in it.
    fn end(mut self) -> (u64, Result<(), CommandError>) {
        let lost: u64 = self
            .sources
            .iter_mut()
            .map(|source| source.tap.lost())
            .sum();
        let incomplete: u64 = self
            .sources
            .iter()
            .map(|source| source.messages.incomplete())
            .sum();
        let (seen, left_out) = (self.recorder.messages(), self.recorder.left_out());
        let figures = [
            ("messages", seen),
            ("lost", lost),
            ("incomplete", incomplete),
            ("left_out", left_out),
        ];
        let ended = self.recorder.finish(&figures);
        let others = match left_out {
            0 => String::new(),
            _ => format!(", {left_out} left out"),
        };
        say!("{seen} recorded, {lost} lost, {incomplete} incomplete{others}");
        (seen, ended.map_err(|error| explain(self.arguments, &error)))
    }
}

/// A recording that cannot be made.
pub(super) fn not_made(path: &Path, error: &RecordingError) -> CommandError {
    let why = match error {
        RecordingError::File(error) => error.kind(),
        RecordingError::Io(error) => error.kind(),
        RecordingError::Full | RecordingError::FileLimit => ErrorKind::StorageFull,
        _ => ErrorKind::Other,
    };
    CommandError::failed(error.about(path), error.remedy()).of_place(why)
}

fn explain(arguments: &Arguments, error: &RecordingError) -> CommandError {
    CommandError::failed(error.about(&arguments.file), error.remedy())
}
