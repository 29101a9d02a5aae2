//! Report that the library prints when the program ends: a line for each descriptor that was waited for, one for
//! sleeps.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tautline_awake::flow::Micros;
use tautline_awake::{cpu, thread};

use crate::table::Held;
use crate::{options, table};

/// Lateness of sleeps: eight buckets for each power of two of nanoseconds, from 64 ns.
const BUCKETS: usize = 8 * 28;
static LATE: [AtomicU64; BUCKETS] = [const { AtomicU64::new(0) }; BUCKETS];

/// Arrivals below which a descriptor has no line.
const ARRIVALS_MIN: u64 = 8;

/// A sleep ended so late.
pub(crate) fn slept(late: Duration) {
    let ns = (late.as_nanos().min(u64::MAX.into()) as u64).max(64);
    let power = ns.ilog2();
    let eighth = (ns >> (power - 3)) & 7;
    let bucket = ((power as usize - 6) * 8 + eighth as usize).min(BUCKETS - 1);
    LATE[bucket].fetch_add(1, Relaxed);
}

/// Upper bound of the bucket in which the quantile lies.
fn late(per_mille: u64) -> Option<Duration> {
    let counts: [u64; BUCKETS] = std::array::from_fn(|bucket| LATE[bucket].load(Relaxed));
    let total: u64 = counts.iter().sum();
    let wanted = (total * per_mille).div_ceil(1_000);
    let mut seen = 0;
    let bucket = counts.iter().position(|count| {
        seen += count;
        total > 0 && seen >= wanted
    })?;
    let (power, eighth) = (bucket / 8 + 6, bucket % 8);
    Some(Duration::from_nanos(((9 + eighth) as u64) << (power - 3)))
}

/// Prints to standard error, if it is still open.
pub(crate) fn print() {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _written = write_to(&mut text);
    let _printed = std::io::stderr().write_all(text.as_bytes());
}

fn write_to(text: &mut String) -> fmt::Result {
    let what = match (options::is_watching(), options::is_limited()) {
        (_, true) => "watched only, since a cgroup limits the CPU time (cpu.max)",
        (true, _) => "watched, nothing changed",
        _ => thread::settings(),
    };
    let head = format!(
        "taut exec: {what}; awake for {} ms in all\n",
        cpu::looked().as_millis()
    );
    for (fd, mut held) in table::all() {
        write_flow(text, fd, &mut held)?;
    }
    if let (Some(p50), Some(p99), Some(p999)) = (late(500), late(990), late(999)) {
        let (p50, p99, p999) = (Micros(p50), Micros(p99), Micros(p999));
        writeln!(
            text,
            "taut exec: sleeps: late by {p50} (p50), {p99} (p99), {p999} (p99.9)"
        )?;
    }
    // A shell script starts many programs that wait for nothing.
    if options::is_program() || !text.is_empty() {
        text.insert_str(0, &head);
    }
    Ok(())
}

/// Prints the line of a descriptor that the program closes.
#[cold]
pub(crate) fn closed(fd: usize, held: &mut Held) {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _written = write_flow(&mut text, fd, held);
    let _printed = std::io::stderr().write_all(text.as_bytes());
}

fn write_flow(text: &mut String, fd: usize, held: &mut Held) -> fmt::Result {
    let beside = held.slot().beside.told();
    let flow = held.flow();
    let counts = flow.counts();
    if counts.awake + counts.asleep < ARRIVALS_MIN {
        return Ok(());
    }
    write!(text, "taut exec: descriptor {fd}: {flow}")?;
    if options::is_watching() {
        let met = flow.could_be_met();
        write!(text, "; {met} per cent could be met awake")?;
    }
    match beside {
        Some(Ok(count)) => write!(text, "; {count} past the stack")?,
        Some(Err(refusal)) => write!(text, "; all through the stack: {}", refusal.why())?,
        None => {}
    }
    writeln!(text)
}
