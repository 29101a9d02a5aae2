//! One run of the lab on the machine at hand: each state, each load, all probes, one result.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::episodes::Episodes;
use crate::load::{self, Load, LoadError};
use crate::probe::{self, Live, Measured, Plan, ProbeError, Scheduling, Trigger};
use crate::result::{LabResult, Missing, Phase, ProbeKind, Series, TimeBase};
use crate::sys;
use crate::trace::timerlat::Timerlat;
use crate::trace::{Recorder, TraceError};
use crate::tuning;
use tautline_machine::Machine;
use tautline_machine::verdict::State;
use tautline_report::histogram::{LatencyHistogram, Summary};
use tautline_report::plot::latency_text;
use tautline_state::journal::Journal;

/// SCHED_FIFO priority of the probes: above the interrupt threads (50) of a PREEMPT_RT kernel, below the migration and
/// watchdog threads (99).
const PRIORITY: u8 = 80;

/// Time for a load to come up to speed before its phase is measured.
pub(crate) const SETTLE: Duration = Duration::from_millis(500);

/// The noise probe's share of the time, and its limit: stalls from outside come often or are not worth the CPU.
const NOISE_SHARE: f64 = 0.1;
const NOISE_TIME_MAX: Duration = Duration::from_secs(10);

/// The timerlat tracer's share of each phase, where there is one. It cannot run beside the probes: its threads are
/// more urgent and would be measured.
const TIMERLAT_SHARE: f64 = 0.25;

const REAL_TIME_CLOCK: &str = "/dev/rtc0";

/// Shorter phases than this measure nothing that could be called a sample.
const PHASE_TIME_MIN: Duration = Duration::from_millis(100);

/// Probes and loads to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the result.
    pub label: String,
    /// Measuring time in all, divided evenly over states and loads.
    pub total: Duration,
    /// The states, in order.
    pub states: Vec<State>,
    /// The loads, in order.
    pub loads: Vec<Load>,
    /// The CPUs to probe.
    pub cpus: Vec<u32>,
    /// Time between two wake-ups of a probe.
    pub period_ns: u64,
    /// Deadlines whose episodes of late wake-ups are counted.
    pub deadlines_ns: Vec<u64>,
    /// End at the first latency above this and keep the kernel's trace.
    pub trace_above_ns: Option<u64>,
    /// How loads run.
    pub load: load::Settings,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Too little time for so many phases.
    #[error("{total_s:.1} s for {phases} phases is too short: each needs at least 0.1 s")]
    TooShort {
        /// Seconds in all.
        total_s: f64,
        /// Phases.
        phases: usize,
    },
    /// A load could not be started.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// No probe could run at all.
    #[error("no probe could run: {0}")]
    NoProbe(String),
}

/// Where a run is, for a progress bar.
#[derive(Clone, Debug)]
pub struct Progress {
    /// This phase, from 0.
    pub phase: usize,
    /// All phases.
    pub phase_count: usize,
    /// The state.
    pub state: State,
    /// Running part: the name of a load or of a probe.
    pub what: String,
    /// Share of the phase that is over.
    pub share: f64,
    /// Live figures of all wake-up probes of this phase.
    pub summary: Summary,
}

/// Runs and returns the result. When `stop` is set it ends early and says so in the result. Everything that it changes
/// is put back before it returns; `journal` is shared so that a signal's clean-up can do it too.
pub fn run(
    settings: &Settings,
    journal: &Mutex<Journal>,
    stop: &Arc<AtomicBool>,
    tell: &mut dyn FnMut(&Progress),
) -> Result<LabResult, SessionError> {
    let mut session = Session::new(settings, journal, stop)?;
    let outcome = session.measure_all(tell);
    session.result.changes.extend(lock(journal).restore());
    sys::unlock_memory();
    outcome?;
    Ok(session.result)
}

pub(crate) fn lock(journal: &Mutex<Journal>) -> MutexGuard<'_, Journal> {
    // A panic elsewhere leaves the journal whole: it is saved before each change.
    journal.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Session<'a> {
    settings: &'a Settings,
    journal: &'a Mutex<Journal>,
    stop: &'a Arc<AtomicBool>,
    scheduling: Scheduling,
    recorder: Option<Recorder>,
    has_timerlat: bool,
    phase_time: Duration,
    noise_time: Option<Duration>,
    result: LabResult,
}

impl<'a> Session<'a> {
    fn new(
        settings: &'a Settings,
        journal: &'a Mutex<Journal>,
        stop: &'a Arc<AtomicBool>,
    ) -> Result<Session<'a>, SessionError> {
        let mut result = LabResult::new(&settings.label, TimeBase::Real, Machine::read());
        result.started_unix_s = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let scheduling = best_scheduling(&mut result.missing);
        lock_memory(&mut result.missing);
        let noise_time = (scheduling != Scheduling::Other)
            .then(|| settings.total.mul_f64(NOISE_SHARE).min(NOISE_TIME_MAX));
        let phases = settings.states.len() * settings.loads.len();
        let left = settings
            .total
            .saturating_sub(noise_time.unwrap_or_default());
        let phase_time = left / phases.max(1) as u32;
        if phase_time < PHASE_TIME_MIN {
            return Err(SessionError::TooShort {
                total_s: settings.total.as_secs_f64(),
                phases,
            });
        }
        let mut session = Session {
            settings,
            journal,
            stop,
            scheduling,
            recorder: None,
            has_timerlat: false,
            phase_time,
            noise_time,
            result,
        };
        session.look_for_tracers();
        Ok(session)
    }

    fn look_for_tracers(&mut self) {
        if !Path::new(REAL_TIME_CLOCK).exists() {
            self.result.missing.push(Missing {
                what: "probe on the real-time clock".to_owned(),
                reason: format!("there is no {REAL_TIME_CLOCK}"),
                remedy: "none is needed: the other probes use the same timers as programs do"
                    .to_owned(),
                weakens_verdict: false,
            });
        }
        if self.settings.trace_above_ns.is_some() {
            match Recorder::start(&mut lock(self.journal)) {
                Ok(recorder) => self.recorder = Some(recorder),
                Err(error) => self.lacks_tracer("trace of the outlier", &error),
            }
            return; // a trace and the timerlat tracer at once would disturb each other
        }
        match Timerlat::start(&mut lock(self.journal)) {
            Ok(_) => self.has_timerlat = true,
            Err(error) => self.lacks_tracer("interrupt and thread latency apart", &error),
        }
    }

    fn lacks_tracer(&mut self, what: &str, error: &TraceError) {
        self.result.missing.push(Missing {
            what: what.to_owned(),
            reason: error.to_string(),
            remedy: "run as root on a kernel that has it".to_owned(),
            weakens_verdict: false,
        });
    }

    fn measure_all(&mut self, tell: &mut dyn FnMut(&Progress)) -> Result<(), SessionError> {
        let mut progress = Progress {
            phase: 0,
            phase_count: self.settings.states.len() * self.settings.loads.len()
                + usize::from(self.noise_time.is_some()),
            state: State::Untouched,
            what: String::new(),
            share: 0.0,
            summary: Summary::default(),
        };
        for state in &self.settings.states {
            progress.state = *state;
            if *state == State::Tuned {
                tuning::apply(
                    &self.settings.cpus,
                    &mut lock(self.journal),
                    &mut self.result.missing,
                );
            }
            if let (State::Untouched, Some(duration)) = (state, self.noise_time) {
                self.measure_noise(duration, &mut progress, tell);
            }
            for load in &self.settings.loads {
                if self.is_over() {
                    return Ok(());
                }
                progress.what = load.name().to_owned();
                self.measure_under(*load, *state, &mut progress, tell)?;
                progress.phase += 1;
            }
        }
        Ok(())
    }

    fn is_over(&mut self) -> bool {
        if self.stop.load(Ordering::Relaxed) {
            let note = "ended early by the user: not all phases were measured";
            if !self.result.notes.iter().any(|present| present == note) {
                self.result.notes.push(note.to_owned());
            }
            return true;
        }
        self.result.outlier.is_some()
    }

    fn measure_noise(
        &mut self,
        duration: Duration,
        progress: &mut Progress,
        tell: &mut dyn FnMut(&Progress),
    ) {
        progress.what = "noise".to_owned();
        let plans: Vec<Plan> = self
            .settings
            .cpus
            .iter()
            .map(|cpu| self.plan(ProbeKind::Noise, Some(*cpu), 0))
            .collect();
        let uncounted = Arc::new(Episodes::new(&[]));
        let measured = self.run_probes(&plans, duration, &uncounted, progress, tell, None);
        self.result.phases.push(Phase::new(
            State::Untouched,
            Load::Idle.name(),
            measured.duration_ns,
            measured.series,
        ));
        progress.phase += 1;
    }

    fn measure_under(
        &mut self,
        load: Load,
        state: State,
        progress: &mut Progress,
        tell: &mut dyn FnMut(&Progress),
    ) -> Result<(), SessionError> {
        let files = load::make_files(&self.settings.load, &mut lock(self.journal))?;
        let running = load::start(load, &self.settings.load, files)?;
        std::thread::sleep(if load == Load::Idle {
            Duration::ZERO
        } else {
            SETTLE
        });
        let timerlat_time = self.phase_time.mul_f64(if self.has_timerlat {
            TIMERLAT_SHARE
        } else {
            0.0
        });
        let trigger = self.settings.trace_above_ns.map(|above_ns| Trigger {
            above_ns,
            tracing_on: self.recorder.as_ref().map(Recorder::switch),
        });
        let plans = self.plans();
        let episodes = Arc::new(Episodes::new(&self.settings.deadlines_ns));
        let mut measured = self.run_probes(
            &plans,
            self.phase_time - timerlat_time,
            &episodes,
            progress,
            tell,
            trigger,
        );
        if let Some(tripped) = measured.tripped {
            self.keep_outlier(tripped);
        } else if self.has_timerlat && !self.stop.load(Ordering::Relaxed) {
            measured
                .series
                .extend(self.run_timerlat(timerlat_time, &episodes));
        }
        let achieved = running.stop();
        for problem in achieved
            .iter()
            .filter_map(|part| Some((part, part.problem.as_ref()?)))
        {
            self.result.missing.push(Missing {
                what: format!("{} load at full strength", problem.0.part),
                reason: problem.1.clone(),
                remedy: "give the load what it lacked and run again".to_owned(),
                weakens_verdict: true,
            });
        }
        if measured.series.is_empty() {
            let reasons: Vec<String> = measured
                .refused
                .iter()
                .map(|(_, error)| error.to_string())
                .collect();
            return Err(SessionError::NoProbe(reasons.join("; ")));
        }
        self.result.phases.push(Phase {
            state,
            load: load.name().to_owned(),
            achieved,
            duration_ns: measured.duration_ns,
            series: measured.series,
            episodes: episodes.counts(),
        });
        Ok(())
    }

    fn plan(&self, kind: ProbeKind, cpu: Option<u32>, offset_ns: u64) -> Plan {
        Plan {
            kind,
            cpu,
            scheduling: self.scheduling,
            period_ns: self.settings.period_ns,
            offset_ns,
        }
    }

    /// On each CPU a sleeper and a timerfd half a period apart; beside them the real-time clock where there is one, and
    /// SCHED_DEADLINE, which the kernel allows only to a thread that may run on every CPU.
    fn plans(&self) -> Vec<Plan> {
        let period_ns = self.settings.period_ns;
        let mut plans: Vec<Plan> = self
            .settings
            .cpus
            .iter()
            .flat_map(|cpu| {
                [
                    self.plan(ProbeKind::Nanosleep, Some(*cpu), 0),
                    self.plan(ProbeKind::Timerfd, Some(*cpu), period_ns / 2),
                ]
            })
            .collect();
        if Path::new(REAL_TIME_CLOCK).exists() {
            plans.push(self.plan(ProbeKind::Rtc, self.settings.cpus.first().copied(), 0));
        }
        if self.scheduling != Scheduling::Other {
            let mut deadline = self.plan(ProbeKind::Nanosleep, None, period_ns / 4);
            deadline.scheduling = Scheduling::Deadline;
            plans.push(deadline);
        }
        plans
    }

    fn run_probes(
        &mut self,
        plans: &[Plan],
        duration: Duration,
        episodes: &Arc<Episodes>,
        progress: &mut Progress,
        tell: &mut dyn FnMut(&Progress),
        trigger: Option<Trigger>,
    ) -> Measured {
        let mut seen = vec![0; plans.len()];
        let mut all = LatencyHistogram::new();
        let measured = probe::measure(
            plans,
            duration,
            episodes,
            self.stop,
            trigger,
            &mut |share, live: &[Arc<Live>]| {
                for (live, seen) in live.iter().zip(&mut seen) {
                    live.take_since(seen, &mut all);
                }
                progress.share = share;
                progress.summary = all.summary();
                tell(progress);
            },
        );
        for (plan, error) in &measured.refused {
            let missing = refusal(plan, error);
            if !self
                .result
                .missing
                .iter()
                .any(|known| known.what == missing.what)
            {
                self.result.missing.push(missing);
            }
        }
        measured
    }

    fn run_timerlat(&mut self, duration: Duration, episodes: &Episodes) -> Vec<Series> {
        let started = Timerlat::start(&mut lock(self.journal));
        match started {
            Ok(tracer) => tracer.run(duration, self.stop, episodes, &self.settings.cpus),
            Err(error) => {
                self.lacks_tracer("timerlat", &error);
                Vec::new()
            }
        }
    }

    fn keep_outlier(&mut self, tripped: probe::Tripped) {
        let outlier = match self
            .recorder
            .as_ref()
            .map(|recorder| recorder.outlier(tripped))
        {
            Some(Ok(outlier)) => outlier,
            Some(Err(error)) => crate::trace::Outlier::without_trace(tripped, &error.to_string()),
            None => crate::trace::Outlier::without_trace(tripped, "tracing is not available"),
        };
        self.result.notes.push(format!(
            "ended at the first latency above the limit: {} on CPU {}",
            latency_text(outlier.latency_ns),
            outlier.cpu
        ));
        self.result.outlier = Some(outlier);
    }
}

fn refusal(plan: &Plan, error: &ProbeError) -> Missing {
    let what = match (plan.kind, plan.scheduling) {
        (ProbeKind::Rtc, _) => "probe on the real-time clock".to_owned(),
        (_, Scheduling::Deadline) => "probe under SCHED_DEADLINE".to_owned(),
        (kind, _) => match plan.cpu {
            Some(cpu) => format!("{} probe on CPU {cpu}", kind.name()),
            None => format!("{} probe", kind.name()),
        },
    };
    // The sleepers carry the verdict; the others are further witnesses, unless a CPU was not measured to the end.
    let is_moved = matches!(error, ProbeError::Moved { .. });
    let weakens_verdict = is_moved
        || matches!(plan.kind, ProbeKind::Nanosleep | ProbeKind::Timerfd)
            && plan.scheduling != Scheduling::Deadline;
    let remedy = match is_moved {
        true => "leave the CPUs online while the lab measures, and run again",
        false => "see taut doctor",
    };
    Missing {
        what,
        reason: error.to_string(),
        remedy: remedy.to_owned(),
        weakens_verdict,
    }
}

/// SCHED_FIFO where it is allowed, found by trying on a thread of its own.
pub fn best_scheduling(missing: &mut Vec<Missing>) -> Scheduling {
    let refused = std::thread::spawn(|| sys::set_fifo(PRIORITY).err())
        .join()
        .ok()
        .flatten();
    let Some(error) = refused else {
        return Scheduling::Fifo(PRIORITY);
    };
    missing.push(Missing {
        what: "real-time priority".to_owned(),
        reason: format!("SCHED_FIFO {PRIORITY} was refused: {error}"),
        remedy: "run as root, or set an rtprio limit in /etc/security/limits.conf".to_owned(),
        weakens_verdict: true,
    });
    Scheduling::Other
}

/// Locks this process's memory, or notes why not.
pub fn lock_memory(missing: &mut Vec<Missing>) {
    if let Err(refused) = tautline_state::memory::lock_all() {
        missing.push(Missing {
            what: "memory locking".to_owned(),
            reason: refused.to_string(),
            remedy: "run as root, or ulimit -l unlimited".to_owned(),
            weakens_verdict: true,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_was_not_measured_to_the_end_weakens_the_verdict() {
        let plan = Plan {
            kind: ProbeKind::Noise,
            cpu: Some(1),
            scheduling: Scheduling::Fifo(PRIORITY),
            period_ns: 1_000_000,
            offset_ns: 0,
        };
        let moved = ProbeError::Moved {
            cpu: 1,
            to_cpu: 0,
            after_ns: 4_000_000_000,
        };
        let missing = refusal(&plan, &moved);
        assert!(missing.weakens_verdict);
        assert_eq!(missing.what, "noise probe on CPU 1");
        assert!(missing.reason.contains("moved to CPU 0 after 4.00 s"));
    }
}
