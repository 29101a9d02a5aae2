//! Jobs that allocate, fault and block are named; one that does not is not. With an allocator of its own.

use std::time::{Duration, Instant};

use tautline_exec::{Job, Task, TaskSet};
use tautline_tasks::{Executive, LintKind, Options, Summary, WatchedAllocator};

#[global_allocator]
static ALLOCATOR: WatchedAllocator = WatchedAllocator::SYSTEM;

/// Far longer than any step takes; only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(30);
const JOBS: u64 = 5;

type Body = Box<dyn FnMut(&Job) + Send>;

fn run(options: &Options, bodies: Vec<(&str, Body)>) -> Summary {
    let ms = Duration::from_millis;
    let tasks = bodies
        .iter()
        .map(|(name, _)| Task::periodic(name, ms(10), ms(1)));
    let mut executive = Executive::new(TaskSet::new(tasks.collect()).unwrap()).unwrap();
    let names: Vec<String> = bodies.iter().map(|(name, _)| (*name).to_owned()).collect();
    for (name, mut body) in bodies {
        executive.task(name, move |job: &Job| body(job)).unwrap();
    }
    // The first reading of the clock in a process looks for it, by a call that a job should not make.
    let _found = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let running = executive.start(options).unwrap();
    let start = Instant::now();
    while names
        .iter()
        .any(|name| running.task(name).unwrap().jobs < JOBS)
    {
        assert!(start.elapsed() < PATIENCE, "waited too long");
        std::thread::sleep(ms(1));
    }
    running.stop(PATIENCE)
}

fn bodies() -> Vec<(&'static str, Body)> {
    vec![
        ("allocates", Box::new(take_memory)),
        ("blocks", Box::new(sleep_a_little)),
        ("calls", Box::new(ask_the_file_system)),
        (
            "behaves",
            Box::new(|job: &Job| {
                std::hint::black_box(job.number);
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
                std::hint::black_box((now, rustix::process::getppid()));
            }),
        ),
        ("faults", Box::new(touch_new_memory)),
    ]
}

#[inline(never)]
fn take_memory(job: &Job) {
    std::hint::black_box(vec![job.number; 10]);
}

#[inline(never)]
fn sleep_a_little(_: &Job) {
    std::thread::sleep(Duration::from_micros(50));
    std::hint::black_box(()); // or the compiler jumps to the sleep, and this function is in no backtrace
}

#[inline(never)]
fn ask_the_file_system(_: &Job) {
    std::hint::black_box(rustix::fs::stat("/").is_ok());
}

/// Stack beyond the part that is resident from the start.
#[inline(never)]
fn touch_new_memory(_: &Job) {
    let mut stack = [0u8; 300 * 1024];
    for page in stack.chunks_mut(4096) {
        page[0] = 1;
    }
    std::hint::black_box(&stack);
}

#[test]
fn what_does_not_belong_into_a_job_is_named_with_the_task() {
    let mut options = Options::default().with_lint(true);
    options.lock_memory = false; // or the whole stack would be resident
    let summary = run(&options, bodies());
    println!("{summary}");
    let found = |task: &str, kind: LintKind| {
        let lints = summary.lints.iter();
        lints
            .clone()
            .find(|lint| lint.task == task && lint.kind == kind)
    };
    let backtrace_of = |task: &str, kind: LintKind| {
        let backtrace = found(task, kind).unwrap().backtrace.clone();
        backtrace.unwrap_or_default()
    };
    let allocation = found("allocates", LintKind::Allocation).unwrap();
    assert!(allocation.count >= JOBS && allocation.jobs >= JOBS && allocation.first_job == 1);
    let backtrace = backtrace_of("allocates", LintKind::Allocation);
    assert!(backtrace.contains("take_memory"), "{backtrace}");
    assert!(!backtrace.contains("tautline-tasks/src"), "{backtrace}");
    let blocking = found("blocks", LintKind::Blocking).unwrap();
    assert!(blocking.jobs >= JOBS);
    let faults = found("faults", LintKind::PageFault).unwrap();
    assert!(faults.count > 10 && faults.first_job == 1 && faults.jobs < JOBS);
    assert_eq!(found("blocks", LintKind::Allocation), None);
    assert_eq!(found("blocks", LintKind::Call), None, "a bounded one");
    if kernel_hands_calls_over() {
        let calls = found("calls", LintKind::Call).unwrap();
        assert!(calls.count >= JOBS && calls.jobs >= JOBS && calls.first_job == 1);
        let backtrace = backtrace_of("calls", LintKind::Call);
        assert!(backtrace.contains("ask_the_file_system"), "{backtrace}");
        let backtrace = backtrace_of("blocks", LintKind::Blocking);
        assert!(backtrace.contains("sleep_a_little"), "{backtrace}");
    }
    if may_count_faults() {
        let backtrace = backtrace_of("faults", LintKind::PageFault);
        assert!(backtrace.contains("touch_new_memory"), "{backtrace}");
    }
    assert_eq!(found("behaves", LintKind::Call), None);
    assert_eq!(found("behaves", LintKind::Allocation), None);
    assert_eq!(found("behaves", LintKind::Blocking), None);
    let shown = summary.to_string();
    assert!(shown.contains("`allocates` allocated memory"), "{shown}");
}

/// Syscall User Dispatch came with Linux 5.11, for x86-64.
fn kernel_hands_calls_over() -> bool {
    let version = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let version: (u32, u32) = (parts.next().unwrap(), parts.next().unwrap());
    let has = cfg!(target_arch = "x86_64") && version >= (5, 11);
    if !has {
        println!("SKIPPED: system calls are not handed over here");
    }
    has
}

fn may_count_faults() -> bool {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let level: i32 = paranoid.map_or(9, |text| text.trim().parse().unwrap_or(9));
    let may = level <= 2 || rustix::process::geteuid().is_root();
    if !may {
        println!("SKIPPED: perf_event_paranoid lets nobody count faults");
    }
    may
}

/// Each call has the result that it has without a watch, whether it can be made at another place or not.
#[test]
fn calls_that_are_watched_do_what_they_do() {
    let (result, results) = std::sync::mpsc::channel();
    let body = move |job: &Job| {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut buffer = [0; 4];
        let written = rustix::io::write(&writer, b"four");
        let read = rustix::io::read(&reader, &mut buffer);
        let missing = std::fs::read("/nonexistent").unwrap_err().kind();
        // So large that the allocator asks the kernel, and is watched while it does.
        let large = std::hint::black_box(vec![1u8; 64 << 20]);
        let thread = std::thread::spawn(|| 7).join().unwrap();
        let child = std::process::Command::new("true").status().unwrap();
        let all = [
            written == Ok(4) && read == Ok(4) && buffer == *b"four",
            missing == std::io::ErrorKind::NotFound,
            large.len() == 64 << 20,
            thread == 7 && child.success(),
            std::fs::read_to_string("/proc/self/comm").is_ok(),
        ];
        let _ = result.send((job.number, all)); // nobody waits for the later ones
    };
    let mut options = Options::default().with_lint(true);
    options.lock_memory = false;
    let summary = run(&options, vec![("busy", Box::new(body) as Body)]);
    for (number, all) in results.iter().take(JOBS as usize) {
        assert_eq!(all, [true; 5], "job {number}");
    }
    assert!(!summary.tasks[0].is_stopped);
    assert_eq!(summary.lints.len(), 4, "{summary}");
}

#[test]
fn nothing_is_watched_unless_asked_for() {
    let mut options = Options::default().with_lint(false);
    options.lock_memory = false;
    let summary = run(&options, bodies());
    assert_eq!(summary.lints, []);
}
