//! Earliest deadlines.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tautline_exec::{Job, Machine, Scheduling, TaskSet};
use tautline_state::TemporaryDirectory;
use tautline_tasks::{Executive, RunError};

use super::{compute, count_of, ms, now, options, policy, stopped, task, us, wait_until};

/// Held by whichever of these tests runs: partitions change settings of the whole machine.
static MACHINE: Mutex<()> = Mutex::new(());

/// Puts the machine's settings back however a test ends: a process that was killed leaves its partition in force.
struct OfMachine {
    _alone: MutexGuard<'static, ()>,
}

impl OfMachine {
    fn lend() -> OfMachine {
        // A test that failed has put its partition back as well.
        let alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        OfMachine { _alone: alone }
    }
}

impl Drop for OfMachine {
    fn drop(&mut self) {
        let _ = tautline_tasks::partition::recover(); // without privileges there is none
    }
}

#[test]
fn earliest_deadlines_are_refused_with_a_reason_where_they_cannot_be_had() {
    let _machine = OfMachine::lend();
    let set = || {
        let tasks = vec![task("one", ms(10)), task("two", ms(20))];
        let scheduling = Scheduling::EarliestDeadline;
        TaskSet::declare(
            scheduling,
            Machine::default(),
            Vec::new(),
            Vec::new(),
            tasks,
        )
        .unwrap()
    };
    let mut executive = Executive::new(set()).unwrap();
    executive.task("one", |_: &Job| {}).unwrap();
    executive.task("two", |_: &Job| {}).unwrap();
    // The kernel's test of admission, which a partition turns off, counts the whole CPU for each task.
    let limit = std::fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap();
    if limit.trim() != "-1" {
        let refused = executive.start(&options().with_cpu(0)).err().unwrap();
        assert!(
            matches!(refused, RunError::DeadlineRefused { .. }),
            "{refused}"
        );
        assert!(refused.remedy().contains("in a partition"));
    }
}

/// Runs a file in a partition and in a process of its own, which the partition is entered with: the named test, which
/// finds the path in the variable. The partition has the last CPU.
fn in_partition(test: &str, variable: &str, text: &str, programs: &[(&str, &str)]) {
    let _machine = OfMachine::lend();
    let place = TemporaryDirectory::make("tautline-tasks-test").unwrap();
    let path = place.path().join("deadlines.toml");
    let cpu = std::thread::available_parallelism().unwrap().get() - 1;
    let of_test = variable.rsplit('_').next().unwrap().to_lowercase();
    let name = format!("edf-{of_test}-{}", std::process::id());
    let partition = format!("[partition]\nname = \"{name}\"\ncpus = \"{cpu}\"\n");
    std::fs::write(&path, text.replace("PARTITION\n", &partition)).unwrap();
    for (name, text) in programs {
        std::fs::write(place.path().join(name), text).unwrap();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]);
    let output = child.env(variable, &path).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{shown}{errors}");
    let line = |start: &str| {
        let found = shown.lines().find(|line| line.contains(start));
        found.map(str::to_owned)
    };
    println!("{}", line("SKIPPED").or(line("ran under")).unwrap());
}

#[test]
fn earliest_deadlines_run_under_sched_deadline() {
    const CHILD: &str = "TAUTLINE_TEST_POLICY";
    let Some(path) = std::env::var_os(CHILD) else {
        let text = "schedule = \"earliest-deadline\"\nPARTITION\n\
             [machine]\noverhead = \"500us\"\n\
             [[task]]\nname = \"one\"\nperiod = \"10ms\"\nworst_case = \"1ms\"\n\
             [[task]]\nname = \"two\"\nperiod = \"50ms\"\nworst_case = \"20ms\"\nexec = \"sh policy.sh\"\n";
        // Its children have no deadlines.
        let program = "while read number rest; do cut -d' ' -f41 /proc/$$/stat >> policies; echo $number; done";
        return in_partition(
            "run::deadlines::earliest_deadlines_run_under_sched_deadline",
            CHILD,
            text,
            &[("policy.sh", program)],
        );
    };
    let place = std::path::PathBuf::from(&path);
    let place = place.parent().unwrap();
    let mut executive = Executive::from_file(&path).unwrap();
    let policies = Arc::new(AtomicU64::new(0));
    let seen = policies.clone();
    let body = move |_: &Job| seen.store(100 + u64::from(policy()), Ordering::Relaxed);
    executive.task("one", body).unwrap();
    match executive.start(&options()) {
        Ok(running) => {
            wait_until(|| count_of(&policies) > 0 && running.task("two").unwrap().jobs > 2);
            let limits = running.limits().join("; ");
            assert!(stopped(running).tasks[0].jobs > 0);
            // 6 is SCHED_DEADLINE.
            assert_eq!(count_of(&policies), 106, "{limits}");
            let of_program = std::fs::read_to_string(place.join("policies")).unwrap();
            let of_jobs: Vec<&str> = of_program.lines().skip(1).collect();
            assert!(of_jobs.len() > 2, "{of_program}");
            assert!(
                of_jobs.iter().all(|policy| *policy == "6"),
                "{of_program}{limits}"
            );
            println!("ran under SCHED_DEADLINE");
        }
        Err(error) => println!("SKIPPED: {error}"),
    }
}

/// A deadline far before the end of the period, once held back by the kernel in each period; one job that is late by
/// itself, after which no other one is.
#[test]
fn short_deadlines_are_held_and_one_late_job_makes_no_other_late() {
    const CHILD: &str = "TAUTLINE_TEST_SHORT";
    let Some(path) = std::env::var_os(CHILD) else {
        let text = "schedule = \"earliest-deadline\"\nPARTITION\n\
             [machine]\nrelease_jitter = \"500us\"\noverhead = \"60us\"\n\
             [[task]]\nname = \"short\"\nperiod = \"20ms\"\ndeadline = \"4ms\"\nworst_case = \"500us\"\n\
             [[task]]\nname = \"whole\"\nperiod = \"10ms\"\nworst_case = \"1ms\"\n\
             [[task]]\nname = \"long\"\nperiod = \"56ms\"\nworst_case = \"36ms\"\n";
        return in_partition(
            "run::deadlines::short_deadlines_are_held_and_one_late_job_makes_no_other_late",
            CHILD,
            text,
            &[],
        );
    };
    let mut executive = Executive::from_file(&path).unwrap();
    let late = |job: &Job| compute(if job.number == 20 { ms(14) } else { us(300) });
    executive.task("short", late).unwrap();
    executive.task("whole", |_: &Job| {}).unwrap();
    executive.task("long", |_: &Job| compute(ms(34))).unwrap();
    let running = match executive.start(&options()) {
        Ok(running) => running,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    wait_until(|| running.task("short").unwrap().jobs > 120);
    let summary = stopped(running);
    // A quarter of all is what one stall of a shared machine does not reach, and the fault of before far exceeded.
    let short = &summary.tasks[0];
    assert!(short.missed * 4 < short.jobs, "{short:?}");
    assert!(short.response.p50 < ms(4), "{short:?}");
    println!("ran under SCHED_DEADLINE");
}

/// The thread that ends the last job of a mode has time left until its kernel deadline.
#[test]
fn a_mode_begins_at_once_in_the_thread_that_ended_the_one_before() {
    const CHILD: &str = "TAUTLINE_TEST_CHANGE";
    let Some(path) = std::env::var_os(CHILD) else {
        let text = "schedule = \"earliest-deadline\"\nmodes = [\"one\", \"two\"]\nPARTITION\n\
             [[task]]\nname = \"both\"\nperiod = \"200ms\"\nworst_case = \"40ms\"\n";
        return in_partition(
            "run::deadlines::a_mode_begins_at_once_in_the_thread_that_ended_the_one_before",
            CHILD,
            text,
            &[],
        );
    };
    let mut executive = Executive::from_file(&path).unwrap();
    let jobs = Arc::new(Mutex::new(Vec::new()));
    let noted = jobs.clone();
    let body = move |_: &Job| {
        noted.lock().unwrap().push(now());
        compute(ms(30));
    };
    executive.task("both", body).unwrap();
    let running = match executive.start(&options()) {
        Ok(running) => running,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    wait_until(|| jobs.lock().unwrap().len() == 2);
    running.request_mode("two").unwrap();
    wait_until(|| jobs.lock().unwrap().len() == 3);
    stopped(running);
    let jobs = jobs.lock().unwrap();
    let after = jobs[2] - jobs[1];
    assert!(after < ms(100), "{after:?}");
    println!("ran under SCHED_DEADLINE: {after:?} from begin to begin");
}
