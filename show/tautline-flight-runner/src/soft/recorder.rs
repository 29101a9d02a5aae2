//! The recorder: a watcher of the bus that writes to MCAP files, with one picture in ten. No program sends to it or
//! waits for it. Its first file is on a small disk; when that is full, the recorder completes the file, moves it away,
//! and continues in a second one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountPropagationFlags, mount_change};
use serde::{Deserialize, Serialize};
use tautline_capture::message::{Message, Messages};
use tautline_capture::recording::{Recorder, Recording, RecordingError};
use tautline_capture::{Batch, BusTap, FlowFacts};
use tautline_flight::vision::PictureHead;
use tautline_state::Existing;
use tautline_testbed::sys::{monotonic_ns, mount, sleep_until};

use super::{SoftLine, say};
use crate::part::end_of_input;
use crate::wire::{Means, Role, Stream};

/// Distance of looks at the bus: values that are replaced in between are missed.
const LOOK_NS: u64 = 10_000_000;
/// One picture in so many is kept. Lower: the file is mostly pictures. Higher: a page finds none of a moment.
const PICTURE_SHARE: u64 = 10;
/// Size of the small disk: 4 MiB that a recording keeps for its end, and one more.
const DISK: &str = "size=5m";
/// Name of the file there.
const ON_DISK: &str = "recording";
/// Name of the bus in topics: its directory is a temporary one.
const BUS: &str = "flight";

/// Files of a flight's recorder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recordings {
    pub(crate) directory: PathBuf,
    /// Beginning of their names.
    pub(crate) stem: String,
}

impl Recordings {
    pub(crate) fn file(&self, index: usize) -> PathBuf {
        self.directory.join(format!("{}-{index}.mcap", self.stem))
    }
}

/// Settings of the recorder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RecorderSettings {
    bus: PathBuf,
    /// Directory on which the small disk is mounted; `None` for one that starts again.
    disk: Option<PathBuf>,
    /// Files, in the order in which they are written.
    files: Vec<PathBuf>,
}

impl RecorderSettings {
    /// For a flight with this directory, the start with this number.
    pub(crate) fn new(means: &Means, home: &Path, recordings: &Recordings, number: usize) -> Self {
        let file = |index: usize| recordings.file(index);
        Self {
            bus: match means {
                Means::Bus(bus) => bus.clone(),
                Means::Sockets(_) => PathBuf::new(),
            },
            disk: (number == 0).then(|| home.join("disk")),
            files: vec![file(2 * number + 1), file(2 * number + 2)],
        }
    }
}

/// Records until standard input ends.
pub(crate) fn run(settings: &RecorderSettings) -> io::Result<()> {
    let ended = end_of_input();
    let on_disk = settings.disk.as_deref().map(make_disk).transpose()?;
    let mut tap = BusTap::open(&settings.bus.display().to_string(), None);
    let mut messages = Messages::new(BUS, true, 0);
    let mut batch = Batch::default();
    let mut tape = Tape::begin(on_disk, settings.files.clone()).map_err(io::Error::other)?;
    say(&SoftLine::Ready);
    while !ended() {
        sleep_until(monotonic_ns() + LOOK_NS);
        tap.look(0, &mut batch);
        let written =
            batch.drain(|item, bytes| messages.take(item, bytes, |message| tape.write(&message)));
        written.map_err(io::Error::other)?;
    }
    let report = tape.end().map_err(io::Error::other)?;
    say(&report);
    Ok(())
}

/// Mounts a small disk that only this process sees, and returns its directory.
fn make_disk(directory: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(directory)?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Nothing that is mounted here reaches the machine.
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    mount("tmpfs", &directory.display().to_string(), DISK)?;
    Ok(directory.to_owned())
}

/// Files of a recording, one after the other.
struct Tape {
    recorder: Recorder,
    /// Small disk that holds the file under way.
    disk: Option<PathBuf>,
    files: Vec<PathBuf>,
    done: Vec<PathBuf>,
    /// Messages of the file under way, and of those before.
    messages: u64,
    before: u64,
    pictures: u64,
}

impl Tape {
    fn begin(disk: Option<PathBuf>, mut files: Vec<PathBuf>) -> Result<Tape, RecordingError> {
        let file = files.remove(0);
        let path = disk
            .as_deref()
            .map_or(file.clone(), |disk| disk.join(ON_DISK));
        Ok(Tape {
            recorder: Recorder::create(&path, Existing::Overwritten)?,
            disk,
            files,
            done: vec![file],
            messages: 0,
            before: 0,
            pictures: 0,
        })
    }

    fn write(&mut self, message: &Message<'_>) -> Result<(), RecordingError> {
        if is_picture(message) {
            self.pictures += 1;
            if self.pictures % PICTURE_SHARE != 1 {
                return Ok(());
            }
        }
        match self.recorder.write(message, &FlowFacts::default()) {
            Err(RecordingError::Full) if self.disk.is_some() && !self.files.is_empty() => {
                say(&SoftLine::Full {
                    at_ns: monotonic_ns(),
                    messages: self.messages,
                });
                self.change()?;
                self.recorder.write(message, &FlowFacts::default())?;
            }
            written => written?,
        }
        self.messages += 1;
        Ok(())
    }

    /// Ends the file on the small disk, brings it away, and begins the next one.
    fn change(&mut self) -> Result<(), RecordingError> {
        let next = self.files.remove(0);
        let full = std::mem::replace(
            &mut self.recorder,
            Recorder::create(&next, Existing::Overwritten)?,
        );
        full.finish(&[("messages", self.messages)])?;
        bring_away(self.disk.take(), &self.done)?;
        self.done.push(next);
        self.before += self.messages;
        self.messages = 0;
        Ok(())
    }

    fn end(self) -> Result<SoftLine, RecordingError> {
        self.recorder.finish(&[("messages", self.messages)])?;
        bring_away(self.disk, &self.done)?;
        Ok(SoftLine::Recorded {
            messages: self.before + self.messages,
            files: self.done,
        })
    }
}

/// Copies the file on the small disk, if that is in use, to where it was to be.
fn bring_away(disk: Option<PathBuf>, done: &[PathBuf]) -> io::Result<()> {
    if let (Some(disk), Some(file)) = (disk, done.last()) {
        fs::copy(disk.join(ON_DISK), file)?;
    }
    Ok(())
}

fn is_picture(message: &Message<'_>) -> bool {
    message.flow.to == Role::Mapping.name()
        && message.flow.destination_port == Stream::Picture.number()
}

/// A picture out of a recording: seconds from the world's start, and its pixels.
pub(crate) type Shot = (f64, Vec<u8>);

/// Pictures of recordings, in the order in which they were drawn.
///
/// # Errors
/// [`RecordingError`].
pub(crate) fn pictures(files: &[PathBuf]) -> Result<Vec<Shot>, RecordingError> {
    let mut shots = Vec::new();
    for file in files {
        Recording::open(file)?.play(|_, message| {
            let read = PictureHead::read(message.bytes).filter(|_| is_picture(&message));
            if let Some((head, pixels)) = read {
                shots.push((head.time_us as f64 * 1e-6, pixels.to_vec()));
            }
            Ok::<(), RecordingError>(())
        })?;
    }
    Ok(shots)
}
