//! The processes of an interrupt measurement: the probe, and the one on another CPU whose events wake it. Both are
//! this program started again, by the lab itself.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::episodes::Episodes;
use crate::measured::{ProbeKind, Series};
use crate::probe::{self, Plan, Record, Scheduling};
use crate::sys;

/// Word for the probe.
pub const PROBE: &str = "interrupt-probe";
/// Word for the process that sends events.
pub const SIGNAL: &str = "interrupt-signal";
/// First message to a probe: it has entered its partition.
pub const BEGIN: [u8; 8] = [0; 8];
/// First byte from a probe of another CPU's events: it waits for them. An end of a line, which leaves the buffer.
pub(super) const READY: u8 = b'\n';

/// Word for a kind of event.
pub(super) fn kind_word(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::OtherCpu => "other-cpu",
        _ => "timer",
    }
}

/// Whether these are the arguments of such a process.
#[must_use]
pub fn is_meant(arguments: &[String]) -> bool {
    let first = arguments.first().map(String::as_str);
    matches!(first, Some(PROBE | SIGNAL))
}

/// Runs the process.
///
/// # Errors
/// Wrong arguments, or a probe that cannot run.
pub fn run(arguments: &[String]) -> io::Result<()> {
    sys::die_with_parent();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().map_err(io::Error::other);
    match words[..] {
        [PROBE, kind, cpu, period_ns, count, priority] => {
            let plan = Plan {
                kind: ProbeKind::Nanosleep,
                cpu: Some(number(cpu)? as u32),
                scheduling: scheduling(number(priority)?),
                period_ns: number(period_ns)?.max(1),
                offset_ns: 0,
            };
            run_probe(kind == kind_word(ProbeKind::OtherCpu), plan, number(count)?)
        }
        [SIGNAL, cpu, period_ns, priority] => {
            sys::pin_to_cpu(number(cpu)? as u32)?;
            prepare(scheduling(number(priority)?))?;
            send(number(period_ns)?.max(1))
        }
        _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
    }
}

fn scheduling(priority: u64) -> Scheduling {
    match u8::try_from(priority) {
        Ok(priority @ 1..) => Scheduling::Fifo(priority),
        _ => Scheduling::Other,
    }
}

fn prepare(scheduling: Scheduling) -> io::Result<()> {
    let _ = tautline_state::memory::lock_all(); // the lab says if it is refused
    match scheduling {
        Scheduling::Fifo(priority) => sys::set_fifo(priority),
        _ => sys::set_timer_slack(1),
    }
}

fn run_probe(is_signalled: bool, plan: Plan, count: u64) -> io::Result<()> {
    let mut begin = BEGIN;
    io::stdin().read_exact(&mut begin)?;
    let series = match is_signalled {
        true => receive(&plan, count)?,
        false => {
            let span = Duration::from_nanos(plan.period_ns.saturating_mul(count));
            let stop = Arc::new(AtomicBool::new(false));
            let uncounted = Arc::new(Episodes::new(&[])); // there is no verdict
            let mut measured =
                probe::measure(&[plan], span, &uncounted, &stop, None, &mut |_, _| {});
            match (measured.series.pop(), measured.refused.pop()) {
                (Some(series), None) => series,
                (_, refused) => {
                    let reason = refused.map(|(_, error)| error.to_string());
                    return Err(io::Error::other(reason.unwrap_or_default()));
                }
            }
        }
    };
    let text = serde_json::to_string(&series)?;
    writeln!(io::stdout(), "{text}")
}

/// Waits for the events of another CPU. Each is the time at which it was sent, so none is lost if the task is late.
fn receive(plan: &Plan, count: u64) -> io::Result<Series> {
    if let Some(cpu) = plan.cpu {
        sys::pin_to_cpu(cpu)?;
    }
    prepare(plan.scheduling)?;
    let mut record = Record::new(plan.period_ns.saturating_mul(count));
    io::stdout().write_all(&[READY])?;
    let before = sys::thread_usage();
    let start_ns = sys::monotonic_ns();
    let input = rustix::stdio::stdin();
    let mut received = 0;
    while received < count {
        let mut sent = [0; size_of::<u64>()];
        // A pipe gives all that was written at once, and this is never more than one event asks for.
        match sys::read(input, &mut sent) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        let now_ns = sys::monotonic_ns();
        plan.still_in_place(now_ns, start_ns)
            .map_err(io::Error::other)?;
        let sent_ns = u64::from_ne_bytes(sent);
        record.add(now_ns - start_ns, now_ns.saturating_sub(sent_ns));
        received += 1;
    }
    let took_ns = (sys::monotonic_ns() - start_ns).max(1);
    let after = sys::thread_usage();
    Ok(Series {
        page_faults: (after.faults_minor - before.faults_minor)
            + (after.faults_major - before.faults_major),
        switches_involuntary: after.switches_involuntary - before.switches_involuntary,
        cpu_share: (after.cpu_time_ns - before.cpu_time_ns) as f64 / took_ns as f64,
        timeline: record.slices(),
        ..Series::new(
            ProbeKind::OtherCpu,
            plan.cpu,
            plan.scheduling.name(),
            plan.period_ns,
            &record.histogram,
        )
    })
}

/// Sends an event each period until the reader is gone.
fn send(period_ns: u64) -> io::Result<()> {
    let output = rustix::stdio::stdout();
    let mut due_ns = sys::monotonic_ns() + period_ns;
    loop {
        sys::sleep_until(due_ns);
        let now_ns = sys::monotonic_ns();
        match rustix::io::write(output, &now_ns.to_ne_bytes()) {
            Err(rustix::io::Errno::PIPE) => return Ok(()),
            sent => sent?,
        };
        due_ns += period_ns * (1 + now_ns.saturating_sub(due_ns) / period_ns);
    }
}
