//! The kernel's own trace: what ran while a probe was late, or a reply from the network ([`reply`]), when a probe's
//! timer's handler began ([`handler`]), and the timerlat tracer ([`timerlat`]). Each works in a trace instance of its
//! own, so that traces of other programs continue; without tracefs it reports that.

pub mod handler;
pub mod reply;
pub mod timerlat;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::probe::Tripped;
use tautline_report::plot::latency_text;
use tautline_state::journal::Journal;

/// Events that show the thread on the CPU. All are cheap; function tracing would change what is measured.
const EVENTS: [&str; 7] = [
    "sched/sched_switch",
    "sched/sched_waking",
    "irq/irq_handler_entry",
    "irq/irq_handler_exit",
    "irq/softirq_entry",
    "irq/softirq_exit",
    "timer/hrtimer_expire_entry",
];

/// Kept for each CPU. About 50,000 events: a few milliseconds before the outlier even on a busy machine.
const BUFFER_KIB: &str = "4096";

/// Lines of the trace that a result keeps: those around the outlier.
const KEPT_LINES_MAX: usize = 400;

/// How much of the time before the moment is kept.
const LEAD_NS: u64 = 1_000_000;

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// No tracefs.
    #[error(
        "no tracefs: mount -t tracefs tracefs /sys/kernel/tracing (as root; the kernel needs CONFIG_FTRACE)"
    )]
    NoTracefs,
    /// The kernel lacks a tracer or an event.
    #[error("this kernel has no {0}")]
    Lacking(String),
    /// The trace cannot be noted in the journal.
    #[error(transparent)]
    Journal(#[from] tautline_state::StateError),
    /// A file of tracefs cannot be used.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// Where tracefs is mounted.
pub fn tracefs() -> Result<PathBuf, TraceError> {
    ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
        .map(PathBuf::from)
        .into_iter()
        .find(|path| path.join("instances").is_dir())
        .ok_or(TraceError::NoTracefs)
}

/// A trace instance of our own. Dropped, it is removed.
#[derive(Debug)]
struct Instance {
    path: PathBuf,
}

impl Instance {
    fn new(name: &str, journal: &mut Journal) -> Result<Instance, TraceError> {
        let path = tracefs()?
            .join("instances")
            .join(format!("taut-lab-{name}-{}", std::process::id()));
        let fail = |source| TraceError::File {
            path: path.clone(),
            source,
        };
        journal.will_make_trace_instance(&path)?;
        fs::create_dir(&path).map_err(fail)?;
        Ok(Instance { path })
    }

    fn write(&self, file: &str, text: &str) -> Result<(), TraceError> {
        let path = self.path.join(file);
        fs::write(&path, text).map_err(|source| TraceError::File { path, source })
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // While it traces the kernel may answer EBUSY; the journal has it for the next start.
        let _ = self.write("tracing_on", "0");
        let _ = fs::remove_dir(&self.path);
    }
}

/// A trace that runs until a probe is late.
#[derive(Debug)]
pub struct Recorder {
    instance: Instance,
    switch: File,
}

impl Recorder {
    /// Starts to record.
    pub fn start(journal: &mut Journal) -> Result<Recorder, TraceError> {
        let instance = Instance::new("outlier", journal)?;
        // The probes' clock, so that the moments of the trace and of the probe can be compared.
        instance.write("trace_clock", "mono")?;
        instance.write("buffer_size_kb", BUFFER_KIB)?;
        for event in EVENTS {
            instance
                .write(&format!("events/{event}/enable"), "1")
                .map_err(|_| TraceError::Lacking(event.to_owned()))?;
        }
        // x86 has its vectors (local timer, reschedule) apart; others do not have the directory.
        let _ = instance.write("events/irq_vectors/enable", "1");
        let path = instance.path.join("tracing_on");
        let switch = OpenOptions::new()
            .write(true)
            .open(&path)
            .map_err(|source| TraceError::File { path, source })?;
        instance.write("tracing_on", "1")?;
        Ok(Recorder { instance, switch })
    }

    /// File to which the probe writes "0".
    pub fn switch(&self) -> RawFd {
        self.switch.as_raw_fd()
    }

    /// Reads what the CPU of a late wake-up did, and judges.
    pub fn outlier(&self, tripped: Tripped) -> Result<Outlier, TraceError> {
        let path = self
            .instance
            .path
            .join(format!("per_cpu/cpu{}/trace", tripped.cpu));
        let text = fs::read(&path).map_err(|source| TraceError::File { path, source })?;
        Ok(Outlier::judge(tripped, &String::from_utf8_lossy(&text)))
    }
}

/// A late wake-up, what the kernel's trace shows of it, and the likely culprit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outlier {
    /// The CPU.
    pub cpu: u32,
    /// How late.
    pub latency_ns: u64,
    /// The likely culprit, in plain words.
    pub culprit: String,
    /// The trace around it, oldest first.
    pub trace: Vec<String>,
}

/// One line of a trace.
struct Line<'a> {
    at_ns: u64,
    event: &'a str,
    detail: &'a str,
}

/// `  comm-123 [001] d.h1. 12.345678: event_name: details`. The task's name may hold spaces and brackets.
fn parse_line(line: &str) -> Option<Line<'_>> {
    let mut best = None;
    for (index, _) in line.match_indices(": ") {
        let Some(stamp) = line[..index].split_whitespace().last() else {
            continue;
        };
        let Some((seconds, fraction)) = stamp.split_once('.') else {
            continue;
        };
        if fraction.is_empty()
            || fraction.len() > 9
            || !fraction.bytes().all(|b| b.is_ascii_digit())
        {
            continue;
        }
        let Ok(seconds) = seconds.parse::<u64>() else {
            continue;
        };
        let scale = 10u64.pow(9 - fraction.len() as u32);
        best = Some((
            index,
            seconds * 1_000_000_000 + fraction.parse::<u64>().ok()? * scale,
        ));
        break;
    }
    let (index, at_ns) = best?;
    let (event, detail) = line[index + 2..].split_once(':')?;
    Some(Line {
        at_ns,
        event: event.trim(),
        detail: detail.trim(),
    })
}

/// The value of `name=` in an event's details; it ends at the next space.
fn field<'a>(detail: &'a str, name: &str) -> Option<&'a str> {
    let begin = detail.find(&format!("{name}="))? + name.len() + 1;
    detail[begin..].split([' ', ']']).next()
}

impl Outlier {
    /// An outlier of which nothing but its latency is known, and why.
    pub fn without_trace(tripped: Tripped, reason: &str) -> Outlier {
        Outlier {
            cpu: tripped.cpu,
            latency_ns: tripped.latency_ns,
            culprit: format!("unknown: {reason}"),
            trace: Vec::new(),
        }
    }

    /// Judges a trace of one CPU. `tripped.due_ns` and the trace are on the same clock.
    pub fn judge(tripped: Tripped, text: &str) -> Outlier {
        let end_ns = tripped.due_ns + tripped.latency_ns;
        let begin_ns = tripped.due_ns.saturating_sub(LEAD_NS);
        let lines: Vec<(&str, Line<'_>)> = text
            .lines()
            .filter_map(|line| Some((line, parse_line(line)?)))
            .filter(|(_, parsed)| parsed.at_ns >= begin_ns && parsed.at_ns <= end_ns + 1_000)
            .collect();
        let culprit = name_culprit(tripped, end_ns, &lines);
        let skip = lines.len().saturating_sub(KEPT_LINES_MAX);
        Outlier {
            cpu: tripped.cpu,
            latency_ns: tripped.latency_ns,
            culprit,
            trace: lines[skip..]
                .iter()
                .map(|(line, _)| (*line).to_owned())
                .collect(),
        }
    }
}

/// Something that had the CPU, and for how long between the moment the probe was due and the moment it ran.
struct Stretch {
    length_ns: u64,
    end_ns: u64,
    words: String,
}

fn name_culprit(tripped: Tripped, end_ns: u64, lines: &[(&str, Line<'_>)]) -> String {
    let late = latency_text(tripped.latency_ns);
    if !lines.iter().any(|(_, line)| line.at_ns < tripped.due_ns) {
        return format!(
            "unknown: the trace does not reach back to the moment that the wake-up was due ({late} before it came)"
        );
    }
    let mut scan = Scan::new(tripped.due_ns);
    lines.iter().for_each(|(_, line)| scan.take(line));
    match scan.worst(tripped, end_ns) {
        Some(worst) if worst.length_ns * 4 >= tripped.latency_ns => format!(
            "{} of the {late}: {}",
            latency_text(worst.length_ns.min(tripped.latency_ns)),
            worst.words
        ),
        _ => format!(
            "nothing single: the {late} are spread over {} events on this CPU",
            lines.len()
        ),
    }
}

/// One pass over the events of a CPU, gathering the threads on it after the wake-up was due.
struct Scan {
    due_ns: u64,
    stretches: Vec<Stretch>,
    /// Handlers that have begun and not ended: event of the end, moment, words.
    open: Vec<(&'static str, u64, String)>,
    last_ns: u64,
    /// The longest time without any event, and when it began.
    silence: (u64, u64),
    woken_ns: Option<u64>,
    /// Which thread was woken, and its priority: other probes have the same name.
    probe: (String, String),
    /// The first switch to the probe after it was woken: when, from which task, of which priority.
    switched: Option<(u64, String, String)>,
}

impl Scan {
    fn new(due_ns: u64) -> Scan {
        Scan {
            due_ns,
            stretches: Vec::new(),
            open: Vec::new(),
            last_ns: due_ns,
            silence: (0, due_ns),
            woken_ns: None,
            probe: (String::new(), String::new()),
            switched: None,
        }
    }

    fn take(&mut self, line: &Line<'_>) {
        if line.at_ns >= self.due_ns {
            self.silence = self.silence.max((line.at_ns - self.last_ns, self.last_ns));
            self.last_ns = line.at_ns;
        }
        let name = |of: &str| field(line.detail, of).unwrap_or("?").to_owned();
        match line.event {
            "irq_handler_entry" => {
                let words = format!("the interrupt handler of {}", name("name"));
                self.open.push(("irq_handler_exit", line.at_ns, words));
            }
            "softirq_entry" => {
                let words = format!("the soft interrupt {}", name("action"));
                self.open.push(("softirq_exit", line.at_ns, words));
            }
            "irq_handler_exit" | "softirq_exit" => self.close(line),
            "sched_waking"
                if line.detail.contains("comm=taut-probe")
                    && line.at_ns >= self.due_ns
                    && self.woken_ns.is_none() =>
            {
                self.woken_ns = Some(line.at_ns);
                self.probe = (name("pid"), name("prio"));
            }
            "sched_switch" if self.woken_ns.is_some() && name("next_pid") == self.probe.0 => {
                self.switched
                    .get_or_insert_with(|| (line.at_ns, name("prev_comm"), name("prev_prio")));
            }
            _ => {}
        }
    }

    fn close(&mut self, line: &Line<'_>) {
        let Some(at) = self.open.iter().rposition(|(end, ..)| *end == line.event) else {
            return; // it began before the trace
        };
        let (_, from_ns, words) = self.open.remove(at);
        if line.at_ns > self.due_ns {
            let length_ns = line.at_ns - from_ns.max(self.due_ns);
            self.stretches.push(Stretch {
                length_ns,
                end_ns: line.at_ns,
                words,
            });
        }
    }

    /// Occupant of the CPU between the probe's waking and the switch to it, without the handlers that ran then:
    /// they have stretches of their own.
    fn before_the_switch(&self) -> Option<Stretch> {
        let woken_ns = self.woken_ns?;
        let (switched_ns, task, priority) = self.switched.as_ref()?;
        let within = |stretch: &Stretch| {
            let end_ns = stretch.end_ns.min(*switched_ns);
            end_ns.saturating_sub((stretch.end_ns - stretch.length_ns).max(woken_ns))
        };
        // A handler within another is part of it; the longest stands for all.
        let handlers_ns = self.stretches.iter().map(within).max().unwrap_or(0);
        let urgency = |priority: &str| priority.parse::<i32>().ok();
        let words = match (urgency(priority), urgency(&self.probe.1)) {
            _ if task == "swapper" || task.starts_with("swapper/") => {
                "the CPU's way out of its idle state".to_owned()
            }
            (Some(task_has), Some(probe_has)) if task_has < probe_has => format!(
                "the task {task}, which is more urgent than the probe (priority {task_has} before {probe_has}, as the kernel counts)"
            ),
            (Some(task_has), Some(probe_has)) if task_has == probe_has => {
                format!("the task {task}, which is as urgent as the probe and was there before")
            }
            _ => format!(
                "the task {task} (priority {priority}, less urgent than the probe), which the kernel did not take off the CPU at once: it was in the kernel with preemption or interrupts off"
            ),
        };
        Some(Stretch {
            length_ns: switched_ns
                .saturating_sub(woken_ns)
                .saturating_sub(handlers_ns),
            end_ns: *switched_ns,
            words,
        })
    }

    fn worst(mut self, tripped: Tripped, end_ns: u64) -> Option<Stretch> {
        self.silence = self
            .silence
            .max((end_ns.saturating_sub(self.last_ns), self.last_ns));
        self.stretches.extend(self.before_the_switch());
        let half_ns = tripped.latency_ns / 2;
        if let Some(woken_ns) = self.woken_ns
            && self.silence.0 > half_ns
            && self.silence.1 <= self.due_ns
            && woken_ns > self.due_ns + half_ns
            // A handler that spans the silence explains it.
            && self.stretches.iter().all(|stretch| stretch.length_ns <= half_ns)
        {
            self.stretches.push(Stretch {
                length_ns: woken_ns - self.due_ns,
                end_ns: woken_ns,
                words: "a stretch before the timer's interrupt in which nothing at all is recorded on this CPU: interrupts were off in the kernel, or firmware or a hypervisor had the CPU (compare the noise probe)".to_owned(),
            });
        }
        self.stretches
            .into_iter()
            .max_by_key(|stretch| stretch.length_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIPPED: Tripped = Tripped {
        latency_ns: 400_000,
        due_ns: 100_000_000_000,
        cpu: 1,
    };

    fn judge(text: &str) -> Outlier {
        Outlier::judge(TRIPPED, text)
    }

    #[test]
    fn a_task_that_was_not_preempted_is_named() {
        let outlier = judge(
            " kworker/1:2-77  [001] d..2.   99.999000: sched_switch: prev_comm=a prev_pid=1 prev_prio=120 prev_state=S ==> next_comm=kworker/1:2 next_pid=77 next_prio=120\n\
             \x20kworker/1:2-77  [001] d.h1.  100.000004: sched_waking: comm=taut-probe pid=5 prio=19 target_cpu=001\n\
             \x20kworker/1:2-77  [001] d..2.  100.000399: sched_switch: prev_comm=kworker/1:2 prev_pid=77 prev_prio=120 prev_state=R+ ==> next_comm=taut-probe next_pid=5 next_prio=19\n",
        );
        assert!(
            outlier
                .culprit
                .starts_with("395 µs of the 400 µs: the task kworker/1:2"),
            "{}",
            outlier.culprit
        );
        assert!(outlier.culprit.contains("preemption or interrupts off"));
        assert_eq!(outlier.trace.len(), 3);
    }

    #[test]
    fn a_soft_interrupt_is_named_rather_than_the_task_that_it_came_over() {
        let outlier = judge(
            " cat-77  [001] d.h1.   99.999999: sched_waking: comm=other pid=9 prio=120 target_cpu=001\n\
             \x20cat-77  [001] d.h1.  100.000004: sched_waking: comm=taut-probe pid=5 prio=19 target_cpu=001\n\
             \x20cat-77  [001] ..s1.  100.000010: softirq_entry: vec=3 [action=NET_RX]\n\
             \x20cat-77  [001] ..s1.  100.000390: softirq_exit: vec=3 [action=NET_RX]\n\
             \x20cat-77  [001] d..2.  100.000399: sched_switch: prev_comm=cat prev_pid=77 prev_prio=120 prev_state=R+ ==> next_comm=taut-probe next_pid=5 next_prio=19\n",
        );
        assert!(
            outlier
                .culprit
                .contains("380 µs of the 400 µs: the soft interrupt NET_RX"),
            "{}",
            outlier.culprit
        );
    }

    #[test]
    fn a_more_urgent_task_is_told_from_one_that_was_not_preempted() {
        let outlier = |priority: &str| {
            judge(&format!(
                " x-7  [001] d..2.   99.999000: sched_switch: prev_comm=a prev_pid=1 prev_prio=120 prev_state=S ==> next_comm=x next_pid=7 next_prio={priority}\n\
                 \x20x-7  [001] d.h1.  100.000004: sched_waking: comm=taut-probe pid=5 prio=19 target_cpu=001\n\
                 \x20x-7  [001] d..2.  100.000399: sched_switch: prev_comm=x prev_pid=7 prev_prio={priority} prev_state=S ==> next_comm=taut-probe next_pid=5 next_prio=19\n"
            ))
            .culprit
        };
        assert!(
            outlier("0").contains("x, which is more urgent"),
            "{}",
            outlier("0")
        );
        assert!(
            outlier("19").contains("as urgent as the probe"),
            "{}",
            outlier("19")
        );
        assert!(
            outlier("120").contains("preemption or interrupts off"),
            "{}",
            outlier("120")
        );
    }

    #[test]
    fn an_interrupt_handler_is_named() {
        let outlier = judge(
            "  <idle>-0  [001] d.h1.  99.999990: irq_handler_entry: irq=24 name=virtio0-req.0\n\
             \x20 <idle>-0  [001] d.h1.  100.000350: irq_handler_exit: irq=24 ret=handled\n\
             \x20 <idle>-0  [001] d.h1.  100.000352: sched_waking: comm=taut-probe pid=5 prio=19 target_cpu=001\n\
             \x20 <idle>-0  [001] d..2.  100.000399: sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=taut-probe next_pid=5 next_prio=19\n",
        );
        assert!(
            outlier
                .culprit
                .contains("350 µs of the 400 µs: the interrupt handler of virtio0-req.0"),
            "{}",
            outlier.culprit
        );
    }

    #[test]
    fn a_stall_from_outside_is_told_from_the_kernel() {
        let outlier = judge(
            "  <idle>-0  [001] d..2.  99.999900: sched_switch: prev_comm=x prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120\n\
             \x20 <idle>-0  [001] d.h1.  100.000390: hrtimer_expire_entry: hrtimer=0 now=1\n\
             \x20 <idle>-0  [001] d.h1.  100.000391: sched_waking: comm=taut-probe pid=5 prio=19 target_cpu=001\n\
             \x20 <idle>-0  [001] d..2.  100.000399: sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=taut-probe next_pid=5 next_prio=19\n",
        );
        assert!(
            outlier.culprit.contains("nothing at all is recorded"),
            "{}",
            outlier.culprit
        );
    }

    #[test]
    fn another_probes_switch_is_not_taken_for_this_ones() {
        let outlier = judge(
            " x-1  [001] d..2.   99.999000: sched_waking: comm=taut-probe pid=6 prio=19 target_cpu=001\n\
             \x20x-1  [001] d..2.  100.000001: sched_switch: prev_comm=x prev_pid=1 prev_prio=120 prev_state=R ==> next_comm=taut-probe next_pid=6 next_prio=19\n\
             \x20x-1  [001] d.h1.  100.000004: sched_waking: comm=taut-probe pid=5 prio=19 target_cpu=001\n\
             \x20x-1  [001] d..2.  100.000399: sched_switch: prev_comm=y prev_pid=7 prev_prio=120 prev_state=R+ ==> next_comm=taut-probe next_pid=5 next_prio=19\n",
        );
        assert!(
            outlier.culprit.contains("the task y"),
            "{}",
            outlier.culprit
        );
    }

    #[test]
    fn a_trace_that_says_nothing_is_not_made_to() {
        assert!(judge("").culprit.starts_with("unknown"));
        assert!(
            judge("# tracer: nop\nrubbish: [\n 1.2.3: x: y\n")
                .culprit
                .starts_with("unknown")
        );
    }
}
