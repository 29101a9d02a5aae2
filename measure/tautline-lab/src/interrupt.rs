//! Interrupt latency, the measurement of RTMux's authors: events 100 µs apart while the machine is idle and while it
//! processes pictures, untouched and in a partition. From a timer to the kernel's handler and to a task, and from
//! another CPU to a task.
//!
//! Each probe is a process of its own ([`child`]), so that the partition holds the probe and nothing else. It is no
//! verdict: the figures stand beside the paper's.

pub mod child;

use std::io::{self, PipeWriter, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tautline_state::child::KilledOnDrop;
use tautline_state::cpus::CpuList;
use tautline_state::journal::Journal;
use tautline_tasks::partition::{Partition, PartitionConfig};

use crate::load::{self, Load};
use crate::measured::{Missing, Phase, ProbeKind, Series, TimeBase};
use crate::probe::Scheduling;
use crate::report::state_name;
use crate::result::LabResult;
use crate::session::{SETTLE, SessionError, best_scheduling, lock};
use crate::trace::handler::HandlerTrace;
use tautline_machine::Machine;
use tautline_machine::verdict::State;

/// Name of the partition that is made for the measurement.
const PARTITION: &str = "lab-interrupt";

/// Distance of looks at a probe. Lower: wake-ups beside it for nothing. Higher: ^C seems to do nothing.
const LOOK: Duration = Duration::from_millis(50);

/// Time that a probe may take beyond its events. Lower: one on a busy machine is given up. Higher: one that cannot run
/// at all, below other real-time work, is reported later.
const PATIENCE: Duration = Duration::from_secs(30);

pub use crate::measured::{PAPER, PaperLine};

/// Beginning and end of the latency that a probe measures here.
#[must_use]
pub fn event_name(kind: ProbeKind) -> &'static str {
    kind.event_name()
}

/// Events and conditions of a measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the result.
    pub label: String,
    /// Events of each kind, for each load and state.
    pub count: u64,
    /// Time between two events.
    pub period_ns: u64,
    /// The CPU of handler and task.
    pub cpu: u32,
    /// The CPU whose events wake the task; none on a machine with one CPU.
    pub other_cpu: Option<u32>,
    /// States of the machine: untouched, in a partition.
    pub states: Vec<State>,
    /// Work of the machine meanwhile.
    pub loads: Vec<Load>,
    /// How loads run; the probes are started by the same command.
    pub load: load::Settings,
}

/// Measures. When `stop` is set it ends early and says so in the result. `tell` is called with each step.
///
/// # Errors
/// A load that cannot be started, or no probe that could run.
pub fn run(
    settings: &Settings,
    journal: &Mutex<Journal>,
    stop: &Arc<AtomicBool>,
    tell: &mut dyn FnMut(&str),
) -> Result<LabResult, SessionError> {
    let mut result = LabResult::new(&settings.label, TimeBase::Real, Machine::read());
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    result.started_unix_s = now.map_or(0, |since| since.as_secs());
    let scheduling = best_scheduling(&mut result.missing);
    if settings.other_cpu.is_none() {
        result.missing.push(Missing {
            what: "events of another CPU".to_owned(),
            reason: "this process may use one CPU only".to_owned(),
            remedy: "allow it a second one".to_owned(),
            weakens_verdict: false,
        });
    }
    let mut measurement = Measurement {
        settings,
        journal,
        stop,
        scheduling,
        result,
    };
    for state in &settings.states {
        measurement.measure_in(*state, tell)?;
    }
    let mut result = measurement.result;
    if result.phases.iter().all(|phase| phase.series.is_empty()) {
        let reasons = result.missing.iter().map(|one| one.reason.clone());
        return Err(SessionError::NoProbe(
            reasons.collect::<Vec<_>>().join("; "),
        ));
    }
    if stop.load(Ordering::Relaxed) {
        let note = "ended early by the user: not all phases were measured";
        result.notes.push(note.to_owned());
    }
    let preemption = match result.machine.preemption.known().map(String::as_str) {
        Some("rt") => "a PREEMPT_RT kernel".to_owned(),
        Some(model) => format!("no PREEMPT_RT kernel (preemption {model})"),
        None => "preemption model unknown".to_owned(),
    };
    result.notes.push(preemption);
    let us = |ns: u64| ns as f64 / 1e3;
    let lines = PAPER.iter().map(|line| {
        let (mean, max) = (us(line.mean_ns), us(line.max_ns));
        format!("{}: mean {mean} µs, max {max} µs", line.what)
    });
    let lines: Vec<String> = lines.collect();
    let note = format!("the paper: {}", lines.join("; "));
    result.notes.push(note);
    Ok(result)
}

struct Measurement<'a> {
    settings: &'a Settings,
    journal: &'a Mutex<Journal>,
    stop: &'a AtomicBool,
    scheduling: Scheduling,
    result: LabResult,
}

impl Measurement<'_> {
    fn measure_in(&mut self, state: State, tell: &mut dyn FnMut(&str)) -> Result<(), SessionError> {
        let partition = match state {
            State::Partition => match self.partition() {
                Some(partition) => Some(partition),
                None => return Ok(()),
            },
            _ => None,
        };
        for load in &self.settings.loads {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            self.measure_under(*load, state, partition.as_ref(), tell)?;
        }
        if let Some(partition) = partition
            && let Err(error) = partition.put_back()
        {
            let note = format!("not all settings were put back: {error}");
            self.result.notes.push(note);
        }
        Ok(())
    }

    /// The partition, with a note of its form; `None`, and a reason in the result, if it cannot be made.
    fn partition(&mut self) -> Option<Partition> {
        let cpus: CpuList = [self.settings.cpu].into_iter().collect();
        let made =
            PartitionConfig::new(PARTITION, cpus).and_then(|config| Partition::create(&config));
        match made {
            Ok(partition) => {
                let (form, stays) = (partition.form().text(), partition.stays().len());
                self.result.notes.push(format!(
                    "partition of CPU {}: {form}; {stays} things could not be moved away from it",
                    self.settings.cpu
                ));
                Some(partition)
            }
            Err(error) => {
                self.result.missing.push(Missing {
                    what: "the measurement in a partition".to_owned(),
                    reason: error.to_string(),
                    remedy: error.remedy().to_owned(),
                    weakens_verdict: false,
                });
                None
            }
        }
    }

    fn measure_under(
        &mut self,
        load: Load,
        state: State,
        partition: Option<&Partition>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), SessionError> {
        let files = load::make_files(&self.settings.load, &mut lock(self.journal))?;
        let running = load::start(load, &self.settings.load, files)?;
        if load != Load::Idle {
            std::thread::sleep(SETTLE);
        }
        let mut series = Vec::new();
        for kind in [
            ProbeKind::TimerHandler,
            ProbeKind::Nanosleep,
            ProbeKind::OtherCpu,
        ] {
            if kind == ProbeKind::OtherCpu && self.settings.other_cpu.is_none() {
                continue;
            }
            tell(&format!(
                "{}, {load}, {}",
                event_name(kind),
                state_name(state)
            ));
            match self.probe(kind, partition) {
                _ if self.stop.load(Ordering::Relaxed) => break,
                Ok(one) => series.push(one),
                Err(missing) if self.result.missing.contains(&missing) => {}
                Err(missing) => self.result.missing.push(missing),
            }
        }
        let achieved = running.stop();
        let duration_ns = self.settings.count * self.settings.period_ns * series.len() as u64;
        if !series.is_empty() {
            self.result.phases.push(Phase {
                achieved,
                ..Phase::new(state, load.name(), duration_ns, series)
            });
        }
        Ok(())
    }

    /// One kind of event, `count` times.
    fn probe(&self, kind: ProbeKind, partition: Option<&Partition>) -> Result<Series, Missing> {
        let missing = |reason: String, remedy: &str| Missing {
            what: format!("the measurement {}", event_name(kind)),
            reason,
            remedy: remedy.to_owned(),
            weakens_verdict: false,
        };
        let settings = self.settings;
        let trace = match kind {
            ProbeKind::TimerHandler => {
                let mut journal = lock(self.journal);
                let started = HandlerTrace::start(settings.cpu, settings.count, &mut journal);
                let lacking = |error: crate::trace::TraceError| {
                    missing(error.to_string(), "run as root on a kernel that has it")
                };
                Some(started.map_err(lacking)?)
            }
            _ => None,
        };
        let task = self
            .run_child(kind, partition)
            .map_err(|error| missing(error.to_string(), "see taut doctor"))?;
        let Some(trace) = trace else {
            return Ok(task);
        };
        let histogram = trace
            .finish()
            .map_err(|error| missing(error.to_string(), "run again"))?;
        if histogram.count() == 0 {
            let reason = "the kernel's trace has no timer of the probe".to_owned();
            return Err(missing(reason, "look at events/timer of tracefs"));
        }
        Ok(Series::new(
            kind,
            Some(settings.cpu),
            "timer interrupt".to_owned(),
            settings.period_ns,
            &histogram,
        ))
    }

    fn run_child(&self, kind: ProbeKind, partition: Option<&Partition>) -> io::Result<Series> {
        let settings = self.settings;
        let (events, sender) = io::pipe()?;
        let priority = match self.scheduling {
            Scheduling::Fifo(priority) => priority.to_string(),
            _ => "0".to_owned(),
        };
        let mut probe = KilledOnDrop(
            self.worker(child::PROBE)
                .arg(child::kind_word(kind))
                .arg(settings.cpu.to_string())
                .arg(settings.period_ns.to_string())
                .arg(settings.count.to_string())
                .arg(&priority)
                .stdin(events)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?,
        );
        if let Some(partition) = partition {
            partition.enter(probe.0.id()).map_err(io::Error::other)?;
        }
        let signaller = self.begin(kind, &mut probe.0, sender, &priority)?;
        let text = self.wait(&mut probe.0)?;
        drop(signaller);
        serde_json::from_str(text.trim()).map_err(io::Error::other)
    }

    /// Tells the probe to begin, and starts the process whose events it waits for, once it does.
    fn begin(
        &self,
        kind: ProbeKind,
        probe: &mut Child,
        mut sender: PipeWriter,
        priority: &str,
    ) -> io::Result<Option<KilledOnDrop>> {
        sender.write_all(&child::BEGIN)?;
        let Some(cpu) = self
            .settings
            .other_cpu
            .filter(|_| kind == ProbeKind::OtherCpu)
        else {
            return Ok(None);
        };
        if !self.is_ready(probe)? {
            return Ok(None); // `wait` says why
        }
        let mut command = self.worker(child::SIGNAL);
        command
            .arg(cpu.to_string())
            .arg(self.settings.period_ns.to_string())
            .arg(priority)
            .stdin(Stdio::null())
            .stdout(sender);
        Ok(Some(KilledOnDrop(command.spawn()?)))
    }

    /// Waits until the probe says that it waits for events: one sent while it still prepares would be late by that.
    fn is_ready(&self, probe: &mut Child) -> io::Result<bool> {
        let Some(output) = &mut probe.stdout else {
            return Ok(false);
        };
        let end = Instant::now() + PATIENCE;
        let look = Timespec::try_from(LOOK).map_err(io::Error::other)?;
        while !self.stop.load(Ordering::Relaxed) && Instant::now() < end {
            let mut answer = [PollFd::new(&*output, PollFlags::IN)];
            match poll(&mut answer, Some(&look)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => {
                    let mut ready = [0];
                    return Ok(output.read(&mut ready)? == 1 && ready == [child::READY]);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    fn worker(&self, word: &str) -> Command {
        let words: &[PathBuf] = &self.settings.load.worker_command;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(word);
        command
    }

    /// Output of a probe, once it has ended.
    fn wait(&self, probe: &mut Child) -> io::Result<String> {
        let events = Duration::from_nanos(self.settings.count * self.settings.period_ns);
        let end = Instant::now() + events + PATIENCE;
        // On other threads: a pipe has no room for a whole result.
        let output = probe.stdout.take().map(read_all);
        let errors = probe.stderr.take().map(read_all);
        while probe.try_wait()?.is_none() {
            if self.stop.load(Ordering::Relaxed) || Instant::now() > end {
                let _ = probe.kill(); // it has ended at this moment
            }
            std::thread::sleep(LOOK);
        }
        let text = |reader: Option<JoinHandle<String>>| {
            let read = reader.map(JoinHandle::join);
            read.and_then(Result::ok).unwrap_or_default()
        };
        let (output, errors) = (text(output), text(errors));
        match (output.is_empty(), errors.trim()) {
            (false, _) => Ok(output),
            (true, "") => Err(io::Error::other("it did not end in time")),
            (true, reason) => Err(io::Error::other(reason.to_owned())),
        }
    }
}

fn read_all(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = from.read_to_string(&mut text); // a part is no result, which is found when it is read
        text
    })
}
