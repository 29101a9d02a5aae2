//! The soft half of a flight: camera and video, mapping, recorder. Ordinary processes in the Linux part of the machine:
//! one that ends is counted and started again, and the loops wait for none of them.
//!
//! ```text
//! world ── view ──► video ── picture ──► mapping ── sighting ──► navigator
//! navigator ── telemetry ──► video             recorder: observes the bus
//! ```

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tautline_testbed::sys::monotonic_ns;

use crate::child::{Said, Started};
use crate::part::Part;
use crate::record::{Restart, SoftRecord};
use crate::wire::Means;

mod mapping;
mod recorder;
mod video;

pub(crate) use mapping::run as map;
pub(crate) use recorder::{RecorderSettings, Recordings, Shot, pictures, run as record};
pub(crate) use video::{VideoSettings, run as show_video};

/// Time that a soft process has for its report.
const PATIENCE: Duration = Duration::from_secs(5);
/// Priority among ordinary programs. Higher: a camera waits for its turn behind every load. Lower: little changes.
const NICE: i32 = -10;
/// Distance of looks after the processes.
const LOOK: Duration = Duration::from_millis(20);
/// Restarts of one process. Higher: one that cannot start takes the time of the others.
const RESTARTS_MAX: usize = 5;

/// A soft process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SoftPart {
    /// Camera, flight data.
    Video,
    /// Door in the pictures.
    Mapping,
    /// Messages in a file.
    Recorder,
}

impl SoftPart {
    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            SoftPart::Video => "video",
            SoftPart::Mapping => "mapping",
            SoftPart::Recorder => "recorder",
        }
    }
}

/// Line of a soft process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum SoftLine {
    /// It works from now on.
    Ready,
    /// Its disk is full since that time on CLOCK_MONOTONIC, after so many messages.
    Full { at_ns: u64, messages: u64 },
    /// End: pictures that were seen, those that were missed, and those with a door.
    Mapped {
        pictures: u64,
        missed: u64,
        doors: u64,
    },
    /// End of the recorder: messages in all its files.
    Recorded { messages: u64, files: Vec<PathBuf> },
    /// End of the video: pictures, and those whose time had passed.
    Filmed { pictures: u64, skipped: u64 },
}

/// Says a line to the process that started this one.
fn say(line: &SoftLine) {
    if let Ok(text) = serde_json::to_string(line) {
        crate::part::say(&text);
    }
}

/// Settings of the soft half of a flight.
#[derive(Clone, Debug)]
pub(crate) struct SoftSettings {
    pub(crate) part_command: Vec<PathBuf>,
    pub(crate) means: Means,
    pub(crate) seed: u64,
    /// Directory of the flight, removed at its end.
    pub(crate) home: PathBuf,
    /// Files for recordings; `None` without a recorder.
    pub(crate) recordings: Option<Recordings>,
    /// Moments at which the video process is killed, seconds from the world's start.
    pub(crate) kills: &'static [f64],
}

struct Process {
    which: SoftPart,
    started: Started,
    /// Whether it has ended for good.
    is_over: bool,
}

/// The soft half of a flight: a thread that looks after its processes.
pub(crate) struct Soft {
    tell: Sender<Moment>,
    thread: JoinHandle<io::Result<SoftRecord>>,
    restarts: Arc<Mutex<Vec<Restart>>>,
}

/// Moment of a flight that the thread is told.
enum Moment {
    /// Start of the world's time on CLOCK_MONOTONIC.
    Start(u64),
    /// A process is to be killed now.
    Kill(SoftPart),
    End,
}

impl Soft {
    /// Starts all processes.
    pub(crate) fn start(settings: SoftSettings) -> Soft {
        let (tell, told) = channel();
        let restarts = Arc::new(Mutex::new(Vec::new()));
        let shown = Arc::clone(&restarts);
        let thread = thread::spawn(move || {
            // For this thread and what it starts. Who may not have it competes with the loads.
            let _ = rustix::process::setpriority_process(None, NICE);
            Supervisor::start(settings)?.run(&told, &shown)
        });
        Soft {
            tell,
            thread,
            restarts,
        }
    }

    /// Kills a process, which is then started again.
    pub(crate) fn kill(&self, which: SoftPart) {
        let _ = self.tell.send(Moment::Kill(which));
    }

    /// Processes that were started again so far.
    pub(crate) fn restarts(&self) -> Vec<Restart> {
        let restarts = self.restarts.lock();
        restarts.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes note of the start of the world's time.
    pub(crate) fn begin(&self, start_ns: u64) {
        // A thread that has ended tells why at the end.
        let _ = self.tell.send(Moment::Start(start_ns));
    }

    /// Ends all processes and takes their reports.
    pub(crate) fn stop(self) -> io::Result<SoftRecord> {
        let _ = self.tell.send(Moment::End);
        let ended = self.thread.join();
        ended.unwrap_or_else(|_| Err(io::Error::other("the supervisor has panicked")))
    }
}

/// Processes under supervision.
struct Supervisor {
    settings: SoftSettings,
    processes: Vec<Process>,
    record: SoftRecord,
    /// World's start on CLOCK_MONOTONIC, once it is known.
    start_ns: Option<u64>,
    /// Kills by [`Moment::Kill`], each of which allows a restart.
    pressed: usize,
}

impl Supervisor {
    fn start(settings: SoftSettings) -> io::Result<Supervisor> {
        let mut supervisor = Supervisor {
            settings,
            processes: Vec::new(),
            record: SoftRecord::default(),
            start_ns: None,
            pressed: 0,
        };
        for which in [SoftPart::Mapping, SoftPart::Video, SoftPart::Recorder] {
            if which != SoftPart::Recorder || supervisor.settings.recordings.is_some() {
                let started = supervisor.launch(which, 0)?;
                supervisor.processes.push(Process {
                    which,
                    started,
                    is_over: false,
                });
            }
        }
        Ok(supervisor)
    }

    fn run(
        mut self,
        told: &Receiver<Moment>,
        shown: &Mutex<Vec<Restart>>,
    ) -> io::Result<SoftRecord> {
        loop {
            match told.recv_timeout(LOOK) {
                Ok(Moment::Start(start_ns)) => self.start_ns = Some(start_ns),
                Ok(Moment::Kill(which)) => {
                    self.pressed += 1;
                    self.kill(which);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Moment::End) | Err(RecvTimeoutError::Disconnected) => return Ok(self.stop()),
            }
            let due = self.settings.kills.get(self.record.killed);
            if due.is_some_and(|due| self.at() >= *due) {
                self.record.killed += 1;
                self.kill(SoftPart::Video);
            }
            self.tend()?;
            let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
            shown.clone_from(&self.record.restarts);
        }
    }

    /// Seconds of the world; before its start, the moment of the start.
    fn at(&self) -> f64 {
        let passed = |start| monotonic_ns().saturating_sub(start) as f64 * 1e-9;
        self.start_ns.map_or(0.0, passed)
    }

    fn launch(&self, which: SoftPart, number: usize) -> io::Result<Started> {
        let settings = &self.settings;
        let part = match which {
            SoftPart::Video => Part::Video(VideoSettings {
                means: settings.means.clone(),
                seed: settings.seed,
            }),
            SoftPart::Mapping => Part::Mapping(settings.means.clone()),
            SoftPart::Recorder => {
                let recordings = settings.recordings.as_ref();
                let recordings = recordings.ok_or(io::ErrorKind::NotFound)?;
                Part::Recorder(RecorderSettings::new(
                    &settings.means,
                    &settings.home,
                    recordings,
                    number,
                ))
            }
        };
        Started::part(&settings.part_command, &part)
    }

    /// Kills a process, as a fault.
    fn kill(&mut self, which: SoftPart) {
        for process in &mut self.processes {
            if process.which == which {
                process.started.kill();
            }
        }
    }

    /// Hears what the processes say, and starts again who has ended.
    fn tend(&mut self) -> io::Result<()> {
        for index in 0..self.processes.len() {
            while !self.processes[index].is_over {
                match self.processes[index].started.said() {
                    Said::Line(line) => self.hear(index, &line),
                    Said::Ended => self.restart(index)?,
                    _ => break,
                }
            }
        }
        Ok(())
    }

    fn restart(&mut self, index: usize) -> io::Result<()> {
        let which = self.processes[index].which;
        let before = self.record.restarts.iter();
        let number = 1 + before.filter(|one| one.which == which).count();
        if number > RESTARTS_MAX + self.pressed {
            self.processes[index].is_over = true;
            return Ok(());
        }
        let started = self.launch(which, number)?;
        self.record.restarts.push(Restart {
            which,
            at: self.at(),
            again_at: None,
        });
        self.processes[index].started = started;
        Ok(())
    }

    fn hear(&mut self, index: usize, line: &str) {
        let (at, start_ns) = (self.at(), self.start_ns.unwrap_or(0));
        let which = self.processes[index].which;
        let record = &mut self.record;
        match serde_json::from_str(line) {
            Ok(SoftLine::Ready) => {
                let mut restarts = record.restarts.iter_mut().rev();
                if let Some(restart) = restarts.find(|one| one.which == which) {
                    restart.again_at.get_or_insert(at);
                }
            }
            Ok(SoftLine::Full { at_ns, messages }) => {
                let at = at_ns.saturating_sub(start_ns) as f64 * 1e-9;
                record.disk_full.get_or_insert((at, messages));
            }
            Ok(SoftLine::Mapped {
                pictures,
                missed,
                doors,
            }) => {
                record.pictures += pictures;
                record.pictures_missed += missed;
                record.doors += doors;
            }
            Ok(SoftLine::Recorded { messages, files }) => {
                record.recorded += messages;
                record.recordings.extend(files);
            }
            Ok(SoftLine::Filmed { pictures, skipped }) => {
                record.pictures_drawn += pictures;
                record.pictures_skipped += skipped;
            }
            // An empty line.
            Err(_) => {}
        }
    }

    /// Ends all processes and takes their reports.
    fn stop(mut self) -> SoftRecord {
        self.processes
            .iter_mut()
            .for_each(|process| drop(process.started.input()));
        let end = Instant::now() + PATIENCE;
        for index in 0..self.processes.len() {
            let left = || end.saturating_duration_since(Instant::now());
            while let Said::Line(line) = self.processes[index].started.line(left()) {
                self.hear(index, &line);
            }
        }
        self.record
    }
}
