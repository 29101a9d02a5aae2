//! Culprits of late replies from the network: on the CPU that takes what the card receives, until the kernel had
//! the reply, or on the program's CPU after that.

use std::collections::HashMap;
use std::fs;
use std::io::Write;

use super::{Line, Outlier, Recorder, TraceError, field, parse_line};
use crate::probe::Tripped;
use tautline_report::plot::latency_text;

/// Events of an interface's receive path. A kernel without them leaves the CPU unknown.
const RECEIVE_EVENTS: [&str; 2] = ["net/netif_receive_skb", "napi/napi_poll"];

/// Stamps of the trace are microseconds, and the reply is noted after them.
const SLACK_NS: u64 = 5_000;

/// A reply that came late, on CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub struct LateReply<'a> {
    /// Interface that it came over.
    pub interface: &'a str,
    /// When its request was sent.
    pub sent_ns: u64,
    /// From then until the program had the reply.
    pub latency_ns: u64,
    /// Part of that for which the kernel had it; nothing if that is not known.
    pub here_ns: Option<u64>,
    /// CPU of the program, whose thread is called `taut-probe`.
    pub cpu: u32,
}

impl Recorder {
    /// Records the receive path of interfaces too.
    pub fn with_receive_path(self) -> Recorder {
        for event in RECEIVE_EVENTS {
            // Without them the trace says less.
            let _ = self.instance.write(&format!("events/{event}/enable"), "1");
        }
        self
    }

    /// Stops the recording: to be called before anything else that is traced happens.
    pub fn stop(&self) {
        let _ = (&self.switch).write_all(b"0");
    }

    /// Names the likely culprit of a late reply, of a recording that was [stopped](Self::stop), and records anew.
    ///
    /// # Errors
    /// The trace cannot be read.
    pub fn late_reply(&self, late: &LateReply<'_>) -> Result<Outlier, TraceError> {
        let texts = self.of_all_cpus()?;
        let outlier = judge(late, &texts);
        self.instance.write("trace", "")?;
        let _ = (&self.switch).write_all(b"1");
        Ok(outlier)
    }

    /// The trace of each CPU, by its number.
    fn of_all_cpus(&self) -> Result<HashMap<u32, String>, TraceError> {
        let directory = self.instance.path.join("per_cpu");
        let failed = |path| move |source| TraceError::File { path, source };
        let entries = fs::read_dir(&directory).map_err(failed(directory.clone()))?;
        let mut texts = HashMap::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("cpu"));
            let Some(Ok(cpu)) = number.map(str::parse) else {
                continue;
            };
            let path = entry.path().join("trace");
            let text = fs::read(&path).map_err(failed(path))?;
            texts.insert(cpu, String::from_utf8_lossy(&text).into_owned());
        }
        Ok(texts)
    }
}

fn judge(late: &LateReply<'_>, texts: &HashMap<u32, String>) -> Outlier {
    let ended_ns = late.sent_ns + late.latency_ns;
    let here_ns = late.here_ns.unwrap_or(0).min(late.latency_ns);
    let text = |cpu| texts.get(&cpu).map_or("", String::as_str);
    if here_ns * 2 >= late.latency_ns {
        let tripped = Tripped {
            latency_ns: here_ns,
            due_ns: ended_ns - here_ns,
            cpu: late.cpu,
        };
        let mut outlier = Outlier::judge(tripped, text(late.cpu));
        outlier.latency_ns = late.latency_ns;
        outlier.culprit = format!(
            "this machine, after the reply had come: {}",
            outlier.culprit
        );
        return outlier;
    }
    let arrived_ns = ended_ns - here_ns;
    let takers = texts.iter().filter_map(|(cpu, text)| {
        let lines = text.lines().filter_map(parse_line);
        let taken = lines.filter(|line| {
            (late.sent_ns..=ended_ns).contains(&line.at_ns) && takes_for(line, late.interface)
        });
        Some((taken.map(|line| line.at_ns).max()?, *cpu))
    });
    let taker = takers.max().map(|(_, cpu)| cpu);
    let cpu = taker.unwrap_or(late.cpu);
    // Only what the CPU did while the reply was awaited counts.
    let tripped = Tripped {
        latency_ns: arrived_ns - late.sent_ns,
        due_ns: late.sent_ns,
        cpu,
    };
    let mut outlier = Outlier::judge(tripped, text(cpu));
    outlier.latency_ns = late.latency_ns;
    outlier.culprit = match taker {
        None => "unknown: the trace does not show which CPU took the reply".to_owned(),
        Some(cpu) => before_arrival(cpu, late, arrived_ns, text(cpu)),
    };
    outlier
}

/// Whether an event is this interface's packets being taken.
fn takes_for(line: &Line<'_>, interface: &str) -> bool {
    match line.event {
        "netif_receive_skb" => field(line.detail, "dev") == Some(interface),
        "napi_poll" => {
            let mut words = line.detail.split_whitespace();
            let device = words.by_ref().skip_while(|word| *word != "device").nth(1);
            let work = words.skip_while(|word| *word != "work").nth(1);
            device == Some(interface) && work != Some("0")
        }
        _ => false,
    }
}

fn before_arrival(cpu: u32, late: &LateReply<'_>, arrived_ns: u64, text: &str) -> String {
    let waited_ns = arrived_ns - late.sent_ns;
    let found = occupants(late.sent_ns, arrived_ns, text);
    let (waited, taking) = (
        latency_text(waited_ns),
        format!("CPU {cpu}, which takes what {} receives", late.interface),
    );
    if let Some((task, ns)) = found.urgent
        && ns * 4 >= waited_ns
    {
        return format!(
            "{} of the {waited} before the kernel had the reply: the urgent task {task} on {taking}",
            latency_text(ns)
        );
    }
    // An interrupt takes the CPU from these; they delay a reply only where the kernel puts its work off to a thread.
    let ordinary = found.ordinary.map_or(String::new(), |(task, ns)| {
        format!(", the ordinary task {task} had it for {}", latency_text(ns))
    });
    format!(
        "card, cable or peer: the kernel had no reply for {waited}; meanwhile {taking}, was idle for {}{ordinary}",
        latency_text(found.idle_ns)
    )
}

/// Threads that had a CPU between two moments.
#[derive(Default)]
struct Occupants {
    idle_ns: u64,
    /// The real-time task that had it longest.
    urgent: Option<(String, u64)>,
    /// The ordinary task that had it longest.
    ordinary: Option<(String, u64)>,
}

/// The kernel's number of the most urgent ordinary priority; real-time ones are below.
const ORDINARY_PRIORITY: u32 = 100;

/// Finds the occupants of a CPU. The program that waits for the reply does not count: it gives way to what takes it;
/// nor do the threads that poll cards.
fn occupants(from_ns: u64, to_ns: u64, text: &str) -> Occupants {
    let mut times: HashMap<(&str, bool), u64> = HashMap::new();
    let (mut since_ns, mut task) = (from_ns, ("", false));
    for line in text.lines().filter_map(parse_line) {
        if line.event != "sched_switch" {
            continue;
        }
        let of = |name, priority| {
            let number = field(line.detail, priority).and_then(|text| text.parse().ok());
            let is_urgent = number.is_some_and(|number: u32| number < ORDINARY_PRIORITY);
            (field(line.detail, name).unwrap_or("?"), is_urgent)
        };
        let until_ns = line.at_ns.clamp(from_ns, to_ns + SLACK_NS);
        *times.entry(of("prev_comm", "prev_prio")).or_default() +=
            until_ns.saturating_sub(since_ns);
        (since_ns, task) = (since_ns.max(until_ns), of("next_comm", "next_prio"));
    }
    *times.entry(task).or_default() += to_ns.saturating_sub(since_ns);
    let mut found = Occupants::default();
    for ((name, is_urgent), ns) in times {
        let longest = match (name, is_urgent) {
            _ if name.starts_with("swapper") => {
                found.idle_ns += ns;
                continue;
            }
            ("" | "taut-probe", _) => continue,
            _ if name.starts_with("napi/") || ns == 0 => continue,
            (_, true) => &mut found.urgent,
            (_, false) => &mut found.ordinary,
        };
        if longest.as_ref().is_none_or(|(_, most)| ns > *most) {
            *longest = Some((name.to_owned(), ns));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: &str = "\
<idle>-0 [001] d..2. 10.000100: sched_switch: prev_comm=taut-probe prev_pid=9 prev_prio=19 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120
<idle>-0 [001] ..s1. 10.004000: netif_receive_skb: dev=eth1 skbaddr=0000000000000001 len=92
<idle>-0 [001] d..2. 10.004020: sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=taut-probe next_pid=9 next_prio=19
";
    const BUSY: &str = "\
hog-7 [000] d..2. 10.000200: sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=hog next_pid=7 next_prio=10
hog-7 [000] d..2. 10.003900: sched_switch: prev_comm=hog prev_pid=7 prev_prio=10 prev_state=S ==> next_comm=ksoftirqd/0 next_pid=5 next_prio=120
ksoftirqd/0-5 [000] ..s1. 10.004000: napi_poll: napi poll on napi struct 00 for device eth1 work 1 budget 64
";

    fn culprit(texts: &[(u32, &str)], here_ns: Option<u64>) -> Outlier {
        let texts = texts.iter().map(|(cpu, text)| (*cpu, (*text).to_owned()));
        let late = LateReply {
            interface: "eth1",
            sent_ns: 10_000_090_000,
            latency_ns: 3_940_000,
            here_ns,
            cpu: 1,
        };
        judge(&late, &texts.collect())
    }

    #[test]
    fn a_reply_that_an_idle_cpu_waited_for_was_late_outside() {
        let found = culprit(&[(1, IDLE)], Some(30_000));
        assert!(
            found.culprit.starts_with("card, cable or peer"),
            "{found:?}"
        );
        assert!(found.culprit.contains("CPU 1"), "{found:?}");
        assert_eq!(found.latency_ns, 3_940_000);
    }

    #[test]
    fn a_task_that_keeps_the_receiving_cpu_is_named() {
        let without_reply = IDLE.replace("eth1", "eth0");
        let found = culprit(&[(0, BUSY), (1, &without_reply)], Some(30_000));
        assert!(
            found.culprit.contains("the urgent task hog on CPU 0"),
            "{found:?}"
        );
        assert!(found.culprit.starts_with("3.70 ms"), "{found:?}");
    }

    #[test]
    fn an_ordinary_task_is_named_and_not_blamed() {
        let ordinary = BUSY.replace("prio=10", "prio=120");
        let found = culprit(&[(0, &ordinary)], Some(30_000));
        assert!(
            found.culprit.starts_with("card, cable or peer"),
            "{found:?}"
        );
        assert!(
            found.culprit.ends_with("task hog had it for 3.70 ms"),
            "{found:?}"
        );
    }

    #[test]
    fn after_the_reply_the_programs_own_cpu_counts() {
        let found = culprit(&[(1, IDLE)], Some(3_900_000));
        assert!(found.culprit.starts_with("this machine"), "{found:?}");
    }

    #[test]
    fn a_trace_without_the_interface_leaves_it_unknown() {
        let found = culprit(&[(1, "")], None);
        assert!(found.culprit.starts_with("unknown"), "{found:?}");
        let poll = parse_line(BUSY.lines().last().unwrap()).unwrap();
        assert!(takes_for(&poll, "eth1") && !takes_for(&poll, "eth"));
        let nothing = BUSY.lines().last().unwrap().replace("work 1", "work 0");
        assert!(!takes_for(&parse_line(&nothing).unwrap(), "eth1"));
    }
}
