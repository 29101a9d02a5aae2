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
        ("allocates", Box::new(allocate)),
        (
            "blocks",
            Box::new(|_: &Job| std::thread::sleep(Duration::from_micros(50))),
        ),
        (
            "behaves",
            Box::new(|job: &Job| {
                std::hint::black_box(job.number);
            }),
        ),
        ("faults", Box::new(touch_new_memory)),
    ]
}

#[inline(never)]
fn allocate(job: &Job) {
    std::hint::black_box(vec![job.number; 10]);
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
    let allocation = found("allocates", LintKind::Allocation).unwrap();
    assert!(allocation.count >= JOBS && allocation.jobs >= JOBS && allocation.first_job == 1);
    let backtrace = allocation.backtrace.as_deref().unwrap();
    assert!(backtrace.contains("allocate"), "{backtrace}");
    let blocking = found("blocks", LintKind::Blocking).unwrap();
    assert!(blocking.jobs >= JOBS);
    let faults = found("faults", LintKind::PageFault).unwrap();
    assert!(faults.count > 10 && faults.first_job == 1 && faults.jobs < JOBS);
    assert_eq!(found("blocks", LintKind::Allocation), None);
    assert_eq!(found("behaves", LintKind::Allocation), None);
    assert_eq!(found("behaves", LintKind::Blocking), None);
    let shown = summary.to_string();
    assert!(shown.contains("`allocates` allocated memory"), "{shown}");
}

#[test]
fn nothing_is_watched_unless_asked_for() {
    let mut options = Options::default().with_lint(false);
    options.lock_memory = false;
    let summary = run(&options, bodies());
    assert_eq!(summary.lints, []);
}
