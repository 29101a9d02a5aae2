//! Measuring of a network: loads one after the other, and alongside each the paths in turns.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::ProgressBar;
use serde::Serialize;
use taut::commands::peer::learn_mac;
use taut::say;
use taut::tune::Tuned;
use tautline::MacAddress;
use tautline::config::TuneConfig;
use tautline_bench::echo::Path;
use tautline_bench::network::{
    Cycles, Late, Opened, PATHS, Row, Settings, open_port, open_socket, path_name,
};
use tautline_bench::path::{End, PathError};
use tautline_bench::sides::Placement;
use tautline_lab::probe::Scheduling;
use tautline_lab::result::Missing;
use tautline_lab::session::{best_scheduling, lock_memory};
use tautline_lab::sys;
use tautline_lab::trace::reply::LateReply;
use tautline_lab::trace::{Outlier, Recorder};
use tautline_machine::Machine;
use tautline_testbed::child;
use tautline_testbed::interrupt::{self, CleanUp};

use super::card::{Card, Counters, Traffic};
use super::load::PeerLoad;
use crate::lab::journal_guard::JournalGuard;
use crate::lab::progress_bar;
use taut::cli::CommandError;

/// SCHED_FIFO priority of the threads that poll the card: above that of the measuring thread, below the kernel's own.
const POLL_PRIORITY: u8 = 98;
/// Name of the measuring thread, by which the trace knows it.
const THREAD: &str = "taut-probe";

/// Turns of each path alongside each load, if the time allows. Lower: a disturbance falls on one path alone. Higher:
/// more of the time goes into changes of settings.
const ROUNDS: u32 = 8;
/// Shortest and longest turn. Lower: too few cycles between two changes of settings. Higher: less interleaving.
const TURN_MIN: Duration = Duration::from_millis(500);
/// See [`TURN_MIN`].
const TURN_MAX: Duration = Duration::from_secs(60);

/// Time in which the peer must answer at first. Lower: a slow one is given up. Higher: a mistake is noticed later.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(3);
/// Time in which it must answer after settings were changed: a card whose demux is attached brings its link up anew.
const LINK_TIME_MAX: Duration = Duration::from_secs(10);

/// Culprits that are named. Each costs the rest of a turn.
const CULPRITS_MAX: usize = 10;

/// Course of a measurement.
pub(super) struct Plan<'a> {
    settings: &'a Settings,
    loads: &'a [PeerLoad],
    /// Time of each load.
    each: Duration,
    turn: Duration,
}

impl<'a> Plan<'a> {
    pub(super) fn new(
        settings: &'a Settings,
        loads: &'a [PeerLoad],
        length: Duration,
    ) -> Result<Plan<'a>, CommandError> {
        let each = length / loads.len().max(1) as u32;
        let paths = PATHS.len() as u32;
        if each < TURN_MIN * paths {
            return Err(CommandError::usage(
                format!(
                    "{length:?} is too short for {} and {paths} paths",
                    loads.len()
                ),
                format!(
                    "give each load {:?} or more with --for, or name fewer loads",
                    TURN_MIN * paths
                ),
            ));
        }
        Ok(Plan {
            settings,
            loads,
            each,
            turn: (each / (paths * ROUNDS)).clamp(TURN_MIN, TURN_MAX),
        })
    }

    fn cycles_of_a_turn(&self) -> u64 {
        (self.turn.as_nanos() / self.settings.period.as_nanos().max(1)).max(5) as u64
    }
}

/// Rows of one load.
pub(super) struct Phase {
    pub(super) load: PeerLoad,
    pub(super) rows: Vec<Row>,
    pub(super) traffic: Traffic,
    pub(super) duration: Duration,
}

/// A late reply whose culprit was looked for.
#[derive(Serialize)]
pub(super) struct Culprit {
    pub(super) path: &'static str,
    pub(super) load: String,
    #[serde(flatten)]
    pub(super) outlier: Outlier,
}

/// Result of a measurement.
pub(super) struct Measured {
    pub(super) settings: Settings,
    pub(super) machine: Machine,
    pub(super) card: Card,
    pub(super) started_unix_s: u64,
    pub(super) phases: Vec<Phase>,
    pub(super) culprits: Vec<Culprit>,
    /// Paths that were left out, and privileges that are lacking.
    pub(super) missing: Vec<Missing>,
    pub(super) notes: Vec<String>,
}

/// Measures. Ends early with what it has when the user asks for that.
pub(super) fn run(
    plan: &Plan<'_>,
    journal: Option<&JournalGuard>,
) -> Result<Measured, CommandError> {
    let settings = plan.settings;
    let mut sockets = BTreeMap::new();
    for path in [Path::UdpBlock, Path::UdpTuned, Path::UdpAwake] {
        let opened = open_socket(path, settings).map_err(|error| not_reached(settings, &error))?;
        sockets.insert(path, opened);
    }
    let mut cycles = Cycles::new(settings);
    let plain = sockets
        .get_mut(&Path::UdpBlock)
        .expect("it was opened above");
    wait_for_peer(&mut cycles, &mut *plain.end, settings)?;
    if plan.loads.contains(&PeerLoad::Iperf3) {
        // A mistake shows now, not after hours with another load.
        drop(PeerLoad::Iperf3.start(*settings.peer.ip())?);
    }
    let mut session = Session::new(plan, sockets, cycles, journal);
    for load in plan.loads {
        if interrupt::interrupted().is_some() {
            break;
        }
        session.measure(*load)?;
    }
    let mut measured = session.finish();
    if interrupt::interrupted().is_some() {
        let note = "ended early by the user: less was measured than was asked for";
        measured.notes.push(note.to_owned());
    }
    Ok(measured)
}

/// An error before anything was measured.
fn not_reached(settings: &Settings, error: &PathError) -> CommandError {
    let Settings {
        interface, peer, ..
    } = settings;
    CommandError::failed(
        format!("{peer} over `{interface}`: {error}"),
        format!(
            "bring `{interface}` up and give it an address in the peer's network: ip addr show {interface}"
        ),
    )
}

fn wait_for_peer(
    cycles: &mut Cycles<'_>,
    end: &mut dyn End,
    settings: &Settings,
) -> Result<(), CommandError> {
    let Settings {
        interface, peer, ..
    } = settings;
    let what = match cycles.settle(end, ANSWER_TIME_MAX) {
        Ok(true) => return Ok(()),
        Ok(false) => format!("no reply from {peer} over `{interface}` in {ANSWER_TIME_MAX:?}"),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            format!(
                "no program answers on UDP port {} of {}",
                peer.port(),
                peer.ip()
            )
        }
        Err(error) => format!("no reply from {peer} over `{interface}`: {error}"),
    };
    if let Some(signal) = interrupt::interrupted() {
        return Err(CommandError::interrupted(signal));
    }
    let port = peer.port();
    Err(CommandError::failed(
        what,
        format!(
            "start an echo there, such as `taut echo --interface IF --udp {port}`; check the address, the cable and the \
             peer's firewall"
        ),
    ))
}

struct Session<'a> {
    plan: &'a Plan<'a>,
    sockets: BTreeMap<Path, Opened>,
    cycles: Cycles<'a>,
    peer_mac: Option<MacAddress>,
    placement: Placement,
    /// Paths that are still measured.
    paths: Vec<Path>,
    /// Paths that had a reply.
    answered: Vec<Path>,
    tuned: Arc<Mutex<Option<Tuned>>>,
    recorder: Option<Recorder>,
    measured: Measured,
    _clean_up: CleanUp,
}

impl<'a> Session<'a> {
    fn new(
        plan: &'a Plan<'a>,
        sockets: BTreeMap<Path, Opened>,
        cycles: Cycles<'a>,
        journal: Option<&JournalGuard>,
    ) -> Session<'a> {
        let settings = plan.settings;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut measured = Measured {
            settings: settings.clone(),
            machine: Machine::read(),
            card: Card::read(&settings.interface),
            started_unix_s: since.map_or(0, |since| since.as_secs()),
            phases: Vec::new(),
            culprits: Vec::new(),
            missing: Vec::new(),
            notes: Vec::new(),
        };
        let placement = placement(&mut measured.missing);
        lock_memory(&mut measured.missing);
        let recorder = journal.and_then(|guard| start_recorder(guard, &mut measured.missing));
        let tuned = Arc::new(Mutex::new(None));
        let left = Arc::clone(&tuned);
        Session {
            plan,
            sockets,
            cycles,
            peer_mac: learn_mac(*settings.peer.ip()),
            placement,
            paths: PATHS.to_vec(),
            answered: Vec::new(),
            tuned,
            recorder,
            measured,
            // Dropped, it puts its settings back.
            _clean_up: CleanUp::new(move || drop(take(&left))),
        }
    }

    /// Measures alongside a load. The load is started here, so that its processes have neither the measuring thread's
    /// priority nor its CPU.
    fn measure(&mut self, load: PeerLoad) -> Result<(), CommandError> {
        let settings = self.plan.settings;
        let mut running = match load.start(*settings.peer.ip()) {
            Ok(running) => running,
            Err(_) if !self.measured.phases.is_empty() => {
                let note = format!("load {load} was left out: it did not start");
                self.measured.notes.push(note);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let (began, before) = (Instant::now(), Counters::read(&settings.interface));
        let rows = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name(THREAD.to_owned());
            let measuring = thread.spawn_scoped(scope, || {
                place(&self.placement)?;
                self.rows(load)
            });
            let measuring = measuring.map_err(|error| {
                CommandError::failed(
                    format!("cannot start a thread: {error}"),
                    interrupt::remedy(&error),
                )
            })?;
            measuring
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let traffic = Counters::read(&settings.interface).since(&before);
        if let Some(problem) = running.problem() {
            self.measured.notes.push(format!("load {load}: {problem}"));
        }
        self.measured.phases.push(Phase {
            load,
            rows,
            traffic,
            duration: began.elapsed(),
        });
        Ok(())
    }

    /// Rows of all paths, which take turns until the load's time is over.
    fn rows(&mut self, load: PeerLoad) -> Result<Vec<Row>, CommandError> {
        let began = Instant::now();
        let mut rows = PATHS.map(Row::new);
        let bar = Bar::new(load);
        let is_over = || began.elapsed() >= self.plan.each || interrupt::interrupted().is_some();
        let mut turns = 0;
        while !is_over() && !self.paths.is_empty() {
            // Each round begins with the next path.
            let (round, step) = (turns / self.paths.len(), turns % self.paths.len());
            let path = self.paths[(round + step) % self.paths.len()];
            bar.show(path, began.elapsed(), self.plan.each);
            let row = rows.iter_mut().find(|row| row.path == path);
            self.turn(load, row.expect("each path has a row"))?;
            turns += 1;
        }
        bar.bar.finish_and_clear();
        Ok(rows.into_iter().filter(|row| row.cycles > 0).collect())
    }

    /// One turn of a path. A path that cannot be had is left out from now on.
    fn turn(&mut self, load: PeerLoad, row: &mut Row) -> Result<(), CommandError> {
        let path = row.path;
        let mut opened = match self.open(path) {
            Ok(opened) => opened,
            Err(missing) => {
                self.leave_out(path, missing);
                return Ok(());
            }
        };
        row.description.clone_from(&opened.description);
        let measured = self.measure_turn(&mut *opened.end, load, row);
        self.close(path, opened);
        measured.map_err(|error| {
            CommandError::failed(
                format!("{}: {error}", path_name(path)),
                "try again; `taut doctor` shows what this machine can do",
            )
        })
    }

    fn measure_turn(&mut self, end: &mut dyn End, load: PeerLoad, row: &mut Row) -> io::Result<()> {
        let path = row.path;
        let settled = self.cycles.settle(end, LINK_TIME_MAX);
        if interrupt::interrupted().is_some() {
            return Ok(());
        }
        if matches!(settled, Ok(true)) {
            if !self.answered.contains(&path) {
                self.answered.push(path);
            }
        } else if !self.answered.contains(&path) {
            let reason = match settled {
                Err(error) => error.to_string(),
                Ok(_) => format!("no reply in {LINK_TIME_MAX:?}, though the plain socket had some"),
            };
            self.leave_out(
                path,
                lacking(path, reason, "see docs/how-to/troubleshooting.md"),
            );
            return Ok(());
        }
        let recorder = self.recorder.as_ref();
        let mut traced = None;
        let mut note = |late: &Late| {
            if let Some(recorder) = recorder {
                recorder.stop();
                traced = Some(*late);
            }
            recorder.is_none()
        };
        let count = self.plan.cycles_of_a_turn();
        self.cycles.block(end, count, row, &mut note)?;
        if let Some(late) = traced {
            self.name_culprit(&late, path, load);
        }
        Ok(())
    }

    fn open(&mut self, path: Path) -> Result<Opened, Missing> {
        if path == Path::UdpPortBlock {
            return self.open_port();
        }
        let mut opened = self.sockets.remove(&path).expect("sockets stay open");
        if path == Path::UdpTuned {
            match self.tune() {
                Ok(text) => opened.description = text,
                Err(missing) => return Err(missing),
            }
        }
        Ok(opened)
    }

    fn close(&mut self, path: Path, opened: Opened) {
        if path != Path::UdpPortBlock {
            self.sockets.insert(path, opened);
        }
        if let Some(tuned) = take(&self.tuned) {
            let refused = tuned.put_back().refused;
            self.measured.notes.extend(refused);
        }
    }

    fn open_port(&self) -> Result<Opened, Missing> {
        let refused = |reason, remedy: &str| lacking(Path::UdpPortBlock, reason, remedy);
        let mac = self.peer_mac.ok_or_else(|| {
            refused(
                "the peer's MAC address could not be learnt".to_owned(),
                "measure a peer on this cable, not behind a router",
            )
        })?;
        match open_port(self.plan.settings, mac) {
            Ok(Ok(opened)) => Ok(opened),
            Ok(Err(report)) => Err(refused(
                format!("here it would be a socket of the kernel's: {report}"),
                "run as root on a kernel that taut doctor calls able",
            )),
            Err(error) => Err(refused(error.to_string(), &error.remedy())),
        }
    }

    /// Puts the polls of the card into threads above the measuring one, on its CPU, with the card's interrupts.
    fn tune(&self) -> Result<String, Missing> {
        let cpu = self.placement.client_cpu.map(|cpu| cpu as u32);
        let wanted = TuneConfig {
            threaded: Some(true),
            priority: Some(POLL_PRIORITY),
            cpu,
            interrupt_cpu: cpu,
        };
        let interface = &self.plan.settings.interface;
        let tuned = Tuned::begin(interface).and_then(|mut tuned| {
            tuned.apply(&wanted)?;
            Ok(tuned)
        });
        let refused = |error: taut::tune::TuneError| {
            lacking(Path::UdpTuned, error.to_string(), error.remedy())
        };
        *held(&self.tuned) = Some(tuned.map_err(refused)?);
        let place = cpu.map_or(String::new(), |cpu| {
            format!(", on CPU {cpu} with the interrupts")
        });
        Ok(format!(
            "kernel UDP, blocking sockets; polls in threads under SCHED_FIFO {POLL_PRIORITY}{place}"
        ))
    }

    /// Result of all loads.
    fn finish(self) -> Measured {
        sys::unlock_memory();
        self.measured
    }

    fn leave_out(&mut self, path: Path, missing: Missing) {
        self.paths.retain(|other| *other != path);
        say!("left out: {}: {}", missing.what, missing.reason);
        self.measured.missing.push(missing);
    }

    fn name_culprit(&mut self, late: &Late, path: Path, load: PeerLoad) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        let found = recorder.late_reply(&LateReply {
            interface: &self.plan.settings.interface,
            sent_ns: late.sent_ns,
            latency_ns: late.latency_ns,
            here_ns: late.here_ns,
            cpu: late.cpu,
        });
        match found {
            Ok(outlier) => self.measured.culprits.push(Culprit {
                path: path_name(path),
                load: load.to_string(),
                outlier,
            }),
            Err(error) => self.measured.notes.push(format!("no culprit: {error}")),
        }
        if self.measured.culprits.len() >= CULPRITS_MAX {
            self.recorder = None;
        }
    }
}

fn lacking(path: Path, reason: String, remedy: &str) -> Missing {
    Missing {
        what: path_name(path).to_owned(),
        reason,
        remedy: remedy.to_owned(),
        weakens_verdict: false,
    }
}

fn held(tuned: &Mutex<Option<Tuned>>) -> MutexGuard<'_, Option<Tuned>> {
    // A panic elsewhere leaves it whole: it is only replaced.
    tuned.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(tuned: &Mutex<Option<Tuned>>) -> Option<Tuned> {
    held(tuned).take()
}

/// CPU and priority of the measuring thread.
fn placement(missing: &mut Vec<Missing>) -> Placement {
    let mut placement = Placement {
        fifo_priority: match best_scheduling(missing) {
            Scheduling::Fifo(priority) => Some(priority),
            _ => None,
        },
        ..Placement::default()
    };
    let allowed = child::allowed_cpus().unwrap_or_default();
    // Its remark is about a second side, which is another machine here.
    let _ = placement.choose_cpus(&allowed);
    placement
}

fn place(placement: &Placement) -> Result<(), CommandError> {
    let placed = Placement::place(placement.client_cpu, placement.fifo_priority);
    placed.map_err(|error| CommandError::failed(error.to_string(), "see taut doctor, Timing"))
}

fn start_recorder(guard: &JournalGuard, missing: &mut Vec<Missing>) -> Option<Recorder> {
    let mut journal = guard.journal.lock().unwrap_or_else(PoisonError::into_inner);
    match Recorder::start(&mut journal) {
        Ok(recorder) => Some(recorder.with_receive_path()),
        Err(error) => {
            missing.push(Missing {
                what: "trace of late replies".to_owned(),
                reason: error.to_string(),
                remedy: "run as root on a kernel that has it".to_owned(),
                weakens_verdict: false,
            });
            None
        }
    }
}

/// A progress bar on a terminal, a line for each load elsewhere.
struct Bar {
    bar: ProgressBar,
    load: PeerLoad,
}

impl Bar {
    fn new(load: PeerLoad) -> Bar {
        let is_terminal = io::stderr().is_terminal();
        if !is_terminal {
            say!("load {load}");
        }
        Bar {
            bar: progress_bar(is_terminal),
            load,
        }
    }

    fn show(&self, path: Path, elapsed: Duration, of: Duration) {
        let share = elapsed.as_secs_f64() / of.as_secs_f64();
        self.bar.set_position((share * 1000.0) as u64);
        self.bar
            .set_message(format!("{}, {}", self.load, path_name(path)));
    }
}
