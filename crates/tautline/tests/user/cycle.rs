//! A periodic loop: its settings take effect, or the report says why not; it puts back what it changed.

use std::time::Duration;

use crate::common::{child, unprivileged};
use rustix::process::{Resource, Rlimit, setrlimit};
use tautline::cycle::{CycleError, CycleOptions};
use tautline::{Cycle, now};

const PERIOD: Duration = Duration::from_millis(1);

/// User without privilege.
const STRANGER: u32 = 65_534;

/// Field of the calling thread's status.
fn status(field: &str) -> String {
    let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.unwrap().trim().to_owned()
}

/// Policy and real-time priority of the calling thread: fields 41 and 40 of its stat, proc_pid_stat(5).
fn policy() -> (u32, u32) {
    let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // The name, field 2, is in brackets and may have spaces.
    let after_name = text.rsplit_once(") ").unwrap().1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    (
        fields[41 - 3].parse().unwrap(),
        fields[40 - 3].parse().unwrap(),
    )
}

fn real_time() -> CycleOptions {
    CycleOptions::new(PERIOD)
        .with_fifo_priority(7)
        .with_cpu(0)
        .with_locked_memory()
}

/// In a process of its own: memory is locked for the whole of it.
#[test]
fn settings_take_effect_and_are_put_back() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: SCHED_FIFO needs root here");
        return;
    }
    if child::role().is_none() {
        child::run("settings_take_effect_and_are_put_back", "owner");
        return;
    }
    let (policy_before, cpus_before) = (policy(), status("Cpus_allowed_list:"));
    let mut cycle = Cycle::start(&real_time()).unwrap();
    let report = cycle.report();
    assert_eq!(
        report.to_string(),
        "cycle of 1ms, SCHED_FIFO 7, CPU 0, memory locked"
    );
    assert_eq!(policy(), (libc::SCHED_FIFO as u32, 7));
    assert_eq!(status("Cpus_allowed_list:"), "0");
    assert_ne!(status("VmLck:"), "0 kB");
    cycle.wait();
    drop(cycle);
    assert_eq!(policy(), policy_before);
    assert_eq!(status("Cpus_allowed_list:"), cpus_before);
}

#[test]
fn periods_begin_on_time() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: SCHED_FIFO needs root here");
        return;
    }
    // Asleep, the median is a wake-up: 10 us and more. A busy machine may have a bad moment, not three.
    let medians = (0..3).map(|_| {
        let options = CycleOptions::new(PERIOD).with_fifo_priority(7);
        let mut cycle = Cycle::start(&options).unwrap();
        for _ in 0..300 {
            cycle.wait();
        }
        println!("late: {}", cycle.statistics().late);
        cycle.statistics().late.p50_ns
    });
    let best = medians.min().unwrap();
    assert!(best <= 5_000, "late by {best} ns");
}

#[test]
fn a_stranger_gets_the_cycle_and_the_reasons() {
    if child::role().is_none() {
        child::run("a_stranger_gets_the_cycle_and_the_reasons", "stranger");
        return;
    }
    // Limits that were not raised before.
    let limit = |bytes| Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    setrlimit(Resource::Rtprio, limit(0)).unwrap();
    setrlimit(Resource::Memlock, limit(65_536)).unwrap();
    if rustix::process::geteuid().is_root() {
        unprivileged::become_user(STRANGER);
    }
    let before = policy();
    let mut cycle = Cycle::start(&real_time()).unwrap();
    let text = cycle.report().to_string();
    assert!(text.contains("limited: SCHED_FIFO 7 is refused"), "{text}");
    assert!(text.contains("ulimit -r 7"), "{text}");
    assert!(
        text.contains("limited: memory is not locked (RLIMIT_MEMLOCK is 65536 bytes)"),
        "{text}"
    );
    assert_eq!(cycle.report().cpu, Some(0));
    assert_eq!((cycle.report().fifo_priority, policy()), (None, before));
    // Allocations go on working.
    assert_eq!(std::hint::black_box(vec![1u8; 8 << 20]).len(), 8 << 20);
    assert_eq!(cycle.wait().number - cycle.statistics().skipped, 1);
}

#[test]
fn a_cpu_that_is_not_there_is_no_error() {
    for cpu in [1_000, usize::MAX] {
        let cycle = Cycle::start(&CycleOptions::new(PERIOD).with_cpu(cpu)).unwrap();
        let text = cycle.report().to_string();
        assert!(
            text.contains(&format!("not restricted to CPU {cpu}")),
            "{text}"
        );
    }
}

/// Times are multiples of the period from the first, whatever happened between them.
#[test]
fn periods_do_not_drift_and_overruns_are_skipped() {
    let mut cycle = Cycle::start(&CycleOptions::new(PERIOD)).unwrap();
    let first = cycle.wait();
    assert_eq!(first.deadline, cycle.next_due());
    // Work of more than three periods.
    std::thread::sleep(3 * PERIOD + PERIOD / 2);
    let second = cycle.wait();
    assert!(second.skipped >= 3, "{second:?}");
    let mut last = second;
    for _ in 0..20 {
        last = cycle.wait();
        assert!(now() >= last.due);
    }
    for tick in [second, last] {
        let elapsed = tick.due.saturating_duration_since(first.due);
        let periods = tick.number - first.number;
        assert_eq!(elapsed, PERIOD * u32::try_from(periods).unwrap());
    }
    let statistics = cycle.statistics();
    assert_eq!(statistics.cycles, 22);
    assert!(statistics.overruns >= 1);
    // Each period was begun or skipped.
    assert_eq!(statistics.cycles + statistics.skipped, last.number);
    assert!(statistics.work.max_ns >= 3_500_000);
}

#[test]
fn options_out_of_range_are_refused() {
    for period in [Duration::ZERO, Duration::from_nanos(9_999), Duration::MAX] {
        let error = Cycle::start(&CycleOptions::new(period)).unwrap_err();
        assert!(matches!(error, CycleError::BadPeriod { .. }));
        assert!(error.to_string().contains("10µs to 3600s"), "{error}");
    }
    for priority in [0, 100] {
        let options = CycleOptions::new(PERIOD).with_fifo_priority(priority);
        let error = Cycle::start(&options).unwrap_err();
        assert!(matches!(error, CycleError::BadPriority { .. }));
    }
}
