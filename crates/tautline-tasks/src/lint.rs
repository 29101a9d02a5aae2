//! Calls that do not belong into a job: what allocates, takes a page fault, or blocks is named, on request and in debug
//! builds.
//!
//! Faults and blocking are counted by the kernel for each thread and read before and after each job, so none is missed.
//! Allocations are seen by [`WatchedAllocator`], in programs that install it, with a backtrace of the first.
#![allow(unsafe_code)] // An allocator is one by an unsafe trait.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::fmt;

use crate::sys::{self, Usage};

/// Something that a job should not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LintKind {
    /// It took memory from the allocator, whose time has no bound.
    Allocation,
    /// It touched memory that was not resident.
    PageFault,
    /// It gave up the CPU: a lock, a sleep, input or output.
    Blocking,
}

impl LintKind {
    const ALL: [LintKind; 3] = [
        LintKind::Allocation,
        LintKind::PageFault,
        LintKind::Blocking,
    ];

    fn verb(self) -> &'static str {
        match self {
            LintKind::Allocation => "allocated memory",
            LintKind::PageFault => "took page faults",
            LintKind::Blocking => "blocked",
        }
    }
}

/// Finding about the code of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lint {
    /// Name of the task.
    pub task: String,
    /// The finding.
    pub kind: LintKind,
    /// How often it happened.
    pub count: u64,
    /// Jobs in which it happened.
    pub jobs: u64,
    /// Number of the first of them.
    pub first_job: u64,
    /// Where the first allocation was made.
    pub backtrace: Option<String>,
}

impl fmt::Display for Lint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "`{}` {} {} times in {} jobs, first in job {}",
            self.task,
            self.kind.verb(),
            self.count,
            self.jobs,
            self.first_job
        )?;
        match &self.backtrace {
            Some(backtrace) => write!(formatter, ":\n{backtrace}"),
            None => Ok(()),
        }
    }
}

/// Findings of one task so far, by kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    found: [Option<Lint>; LintKind::ALL.len()],
}

impl Tally {
    /// The findings.
    pub(crate) fn lints(&self) -> impl Iterator<Item = &Lint> {
        self.found.iter().flatten()
    }

    fn add(&mut self, task: &str, kind: LintKind, job: u64, count: u64) {
        let lint = self.found[kind as usize].get_or_insert_with(|| Lint {
            task: task.to_owned(),
            kind,
            count: 0,
            jobs: 0,
            first_job: job,
            backtrace: FIRST.take().map(|first| first.to_string()),
        });
        lint.count += count;
        lint.jobs += 1;
    }
}

/// A job that is watched, from its beginning on.
pub(crate) struct Watch {
    before: Usage,
}

impl Watch {
    pub(crate) fn begin() -> Watch {
        let before = sys::own_usage();
        ALLOCATIONS.set(Some(0));
        Watch { before }
    }

    /// Ends it, and returns what was found, if anything was.
    pub(crate) fn end(self) -> Option<[(LintKind, u64); 3]> {
        let allocations = ALLOCATIONS.take().unwrap_or(0);
        let after = sys::own_usage();
        let found = [
            (LintKind::Allocation, allocations),
            (LintKind::PageFault, after.faults - self.before.faults),
            (LintKind::Blocking, after.blocked - self.before.blocked),
        ];
        found.iter().any(|(_, count)| *count > 0).then_some(found)
    }
}

/// Notes what a job did.
pub(crate) fn note(tally: &mut Tally, task: &str, job: u64, found: [(LintKind, u64); 3]) {
    for (kind, count) in found.into_iter().filter(|(_, count)| *count > 0) {
        tally.add(task, kind, job, count);
    }
}

thread_local! {
    /// Allocations of the job that runs; `None` outside of a job that is watched.
    static ALLOCATIONS: Cell<Option<u64>> = const { Cell::new(None) };
    /// The first allocation of this thread's jobs.
    static FIRST: RefCell<Option<Backtrace>> = const { RefCell::new(None) };
    static HAS_FIRST: Cell<bool> = const { Cell::new(false) };
}

/// An allocator that notes what the jobs of watched tasks allocate, and passes everything on.
///
/// ```
/// use tautline_tasks::WatchedAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: WatchedAllocator = WatchedAllocator::SYSTEM;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct WatchedAllocator<A = System>(pub A);

impl WatchedAllocator {
    /// Around the system's allocator.
    pub const SYSTEM: WatchedAllocator = WatchedAllocator(System);
}

fn allocated() {
    // A thread that ends has no such variable any more, and no job.
    let Ok(Some(count)) = ALLOCATIONS.try_with(Cell::get) else {
        return;
    };
    if !HAS_FIRST.replace(true) {
        // The backtrace allocates as well, and is not the task's.
        ALLOCATIONS.set(None);
        FIRST.set(Some(Backtrace::force_capture()));
    }
    ALLOCATIONS.set(Some(count + 1));
}

// SAFETY: each call goes to the wrapped allocator with the caller's arguments, and its answer is returned.
unsafe impl<A: GlobalAlloc> GlobalAlloc for WatchedAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocated();
        // SAFETY: the caller's promise.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        allocated();
        // SAFETY: the caller's promise.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        allocated();
        // SAFETY: the caller's promise.
        unsafe { self.0.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.0.dealloc(memory, layout) }
    }
}
