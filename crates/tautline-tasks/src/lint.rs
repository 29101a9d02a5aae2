//! Calls that do not belong into a job: what allocates, takes a page fault, blocks, or has no bound is named with a
//! backtrace, on request and in debug builds.
//!
//! - Allocations are seen by [`WatchedAllocator`], in programs that install it.
//! - Page faults and blocking are counted by the kernel for each thread and read before and after each job, so none is
//!   missed. The backtrace of the first fault comes from the kernel's counter of faults (`faults`).
//! - System calls are handed over by the kernel one by one (`calls`), and held against a list (`bounds`).
#![allow(unsafe_code)] // An allocator is one by an unsafe trait; the kernel's interfaces have no safe form.

mod bounds;
mod calls;
mod faults;
mod frames;
mod signals;
mod state;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;

use crate::sys::{self, Usage};

use calls::CallWatch;
use faults::FaultWatch;
use frames::Frames;

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
    /// It made a system call that is not on the list of those with a bound.
    Call,
}

impl LintKind {
    const ALL: [LintKind; 4] = [
        LintKind::Allocation,
        LintKind::PageFault,
        LintKind::Blocking,
        LintKind::Call,
    ];

    fn verb(self) -> &'static str {
        match self {
            LintKind::Allocation => "allocated memory",
            LintKind::PageFault => "took page faults",
            LintKind::Blocking => "blocked",
            LintKind::Call => "made system calls without a bound",
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
    /// Where it happened first, if the kernel says so.
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
    found: [Option<Found>; LintKind::ALL.len()],
}

#[derive(Clone, Copy, Debug)]
struct Found {
    count: u64,
    jobs: u64,
    first_job: u64,
    place: Option<Frames>,
}

impl Tally {
    /// The findings about this task, with their backtraces in words: that takes a while.
    pub(crate) fn lints<'a>(&'a self, task: &'a str) -> impl Iterator<Item = Lint> + 'a {
        let found = LintKind::ALL.into_iter().zip(&self.found);
        found.filter_map(|(kind, found)| {
            let found = found.as_ref()?;
            Some(Lint {
                task: task.to_owned(),
                kind,
                count: found.count,
                jobs: found.jobs,
                first_job: found.first_job,
                backtrace: found.place.map(|place| place.text()),
            })
        })
    }

    /// Notes what a job did. Takes no memory.
    pub(crate) fn note(&mut self, job: u64, counts: Counts) {
        for (kind, count) in LintKind::ALL.into_iter().zip(counts) {
            if count == 0 {
                continue;
            }
            let found = self.found[kind as usize].get_or_insert(Found {
                count: 0,
                jobs: 0,
                first_job: job,
                place: None,
            });
            found.count += count;
            found.jobs += 1;
            found.place = found.place.or_else(|| state::take_first(kind));
        }
    }
}

/// Findings of a job, by kind.
pub(crate) type Counts = [u64; LintKind::ALL.len()];

/// Watches the jobs of the thread that made it.
pub(crate) struct Watch {
    /// `None` where the kernel does not say where a fault was.
    faults: Option<FaultWatch>,
    /// `None` where it does not hand calls over.
    calls: Option<CallWatch>,
    before: Usage,
}

impl Watch {
    pub(crate) fn new() -> Watch {
        Watch {
            faults: FaultWatch::new().ok(),
            calls: CallWatch::new().ok(),
            before: sys::own_usage(),
        }
    }

    /// A job begins.
    pub(crate) fn begin(&mut self) {
        self.before = sys::own_usage();
        state::begin();
        // One backtrace is enough.
        if let Some(faults) = self.faults.as_ref().filter(|_| is_first_fault()) {
            faults.enable();
        }
        if let Some(calls) = &self.calls {
            calls.enable();
        }
    }

    /// The job has ended: what was found, if anything was.
    pub(crate) fn end(&mut self) -> Option<Counts> {
        if let Some(calls) = &self.calls {
            calls.disable();
        }
        if let Some(faults) = &self.faults {
            faults.disable();
        }
        let (allocations, calls) = state::end();
        let after = sys::own_usage();
        let faults = after.faults - self.before.faults;
        let blocked = after.blocked - self.before.blocked;
        let found = [allocations, faults, blocked, calls];
        found.iter().any(|count| *count > 0).then_some(found)
    }
}

fn is_first_fault() -> bool {
    !state::has_first(LintKind::PageFault)
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

// SAFETY: each call goes to the wrapped allocator with the caller's arguments, and its answer is returned.
unsafe impl<A: GlobalAlloc> GlobalAlloc for WatchedAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        state::allocated();
        // SAFETY: the caller's promise.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        state::allocated();
        // SAFETY: the caller's promise.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        state::allocated();
        // SAFETY: the caller's promise.
        unsafe { self.0.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { self.0.dealloc(memory, layout) }
    }
}
