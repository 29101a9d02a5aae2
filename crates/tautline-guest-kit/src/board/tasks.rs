//! Tasks of a set on the guest's processor, each with a stack of its own.
//!
//! All decisions are made in [`change`], with interrupts masked: after each interrupt of timer or doorbell, and when a
//! job ends. The main program's own stack is the one that runs when no task does.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use tautline_exec::{Analysis, HealthMonitor, Job, SetError, TaskResponse, TaskSet};

use super::processor::{self, Saved};
use super::{fail, now, tlg_acknowledge, tlg_set_timer};
use crate::dispatch::Dispatcher;
use crate::error::GuestError;

/// Bytes of a task's stack. Lower: a job that prints a number overflows it. Higher: fewer tasks fit the memory.
const STACK_BYTES: usize = 16 << 10;
/// Stands at the far end of each stack. Another word there: the stack has overflowed.
const STACK_MARK: u128 = 0x5461_7574_6c69_6e65_5374_6163_6b45_6e64;

type Body = Box<dyn FnMut(&Job) + Send>;

/// A set with the code of its tasks, before it runs.
pub struct Executive {
    set: TaskSet,
    bodies: Vec<Option<Body>>,
}

impl Executive {
    /// Admits a set.
    ///
    /// # Errors
    /// [`GuestError::Refused`]; [`GuestError::Set`] for a table with wrong windows.
    pub fn new(set: TaskSet) -> Result<Executive, GuestError> {
        for analysis in Analysis::of_all(&set)? {
            if let Some(refused) = analysis.refusals(&set).next() {
                return Err(GuestError::Refused {
                    task: set.tasks()[refused.task].name.clone(),
                    by: TaskResponse::excess(refused),
                });
            }
        }
        Ok(Executive {
            bodies: set.tasks().iter().map(|_| None).collect(),
            set,
        })
    }

    /// Gives a task its code, which is called for each job. Jobs of a task that messages activate take all that there
    /// are: see [`Port::take`](crate::Port::take).
    ///
    /// # Errors
    /// [`GuestError::UnknownTask`], [`GuestError::BodyRepeated`].
    pub fn task(
        &mut self,
        name: &str,
        body: impl FnMut(&Job) + Send + 'static,
    ) -> Result<(), GuestError> {
        let found = self.set.tasks().iter().position(|task| task.name == name);
        let task = found.ok_or_else(|| GuestError::UnknownTask(name.to_string()))?;
        match self.bodies[task].replace(Box::new(body)) {
            None => Ok(()),
            Some(_) => Err(GuestError::BodyRepeated(name.to_string())),
        }
    }

    /// Runs the tasks for ever, or until one of them ends the guest.
    ///
    /// # Errors
    /// [`GuestError::NoBody`]. It does not return otherwise.
    pub fn run(self) -> Result<(), GuestError> {
        let mut bodies = Vec::with_capacity(self.bodies.len());
        for (body, task) in self.bodies.into_iter().zip(self.set.tasks()) {
            bodies.push(body.ok_or_else(|| GuestError::NoBody(task.name.clone()))?);
        }
        let stacks = (0..bodies.len()).map(Stack::new).collect();
        let machine = Machine {
            dispatcher: Dispatcher::new(self.set, now()),
            stacks,
            idle: 0,
            running: None,
        };
        processor::mask();
        // SAFETY: interrupts are masked, and no task runs yet.
        unsafe {
            *BODIES.0.get() = bodies;
            *MACHINE.0.get() = Some(machine);
        }
        processor::unmask();
        processor::give_up();
        loop {
            processor::sleep();
        }
    }
}

struct Machine {
    dispatcher: Dispatcher,
    stacks: Vec<Stack>,
    /// Stack of the main program.
    idle: usize,
    running: Option<usize>,
}

/// Stack of a task.
struct Stack {
    /// Its far end.
    lowest: *const u128,
    /// Where the task's registers lie while it does not run.
    saved: usize,
}

impl Stack {
    fn new(task: usize) -> Stack {
        let mut memory = vec![0_u128; STACK_BYTES / size_of::<u128>()];
        memory[0] = STACK_MARK;
        let lowest = memory.leak().as_mut_ptr();
        let end = lowest as usize + STACK_BYTES;
        let saved = end - size_of::<Saved>().next_multiple_of(16);
        // SAFETY: within the stack, aligned, and not shared yet.
        unsafe { (saved as *mut Saved).write(Saved::new(run_jobs, task, end)) };
        Stack { lowest, saved }
    }

    fn has_overflowed(&self) -> bool {
        // SAFETY: a word of the stack. Its task may have written it, but does not run.
        unsafe { self.lowest.read_volatile() != STACK_MARK }
    }
}

struct Shared<T>(UnsafeCell<T>);

// SAFETY: there is one processor; `MACHINE` is used with interrupts masked alone, and each of `BODIES` by its own task.
unsafe impl<T> Sync for Shared<T> {}

static MACHINE: Shared<Option<Machine>> = Shared(UnsafeCell::new(None));
static BODIES: Shared<Vec<Body>> = Shared(UnsafeCell::new(Vec::new()));
/// The job of the task that runs has ended.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// Runs `work` without interrupts.
pub(super) fn masked<R>(work: impl FnOnce() -> R) -> R {
    let were_enabled = processor::mask();
    let result = work();
    if were_enabled {
        processor::unmask();
    }
    result
}

/// The machine, without interrupts; `None` before the tasks run.
fn with_machine<R>(look: impl FnOnce(&mut Machine) -> R) -> Option<R> {
    // SAFETY: interrupts are masked, and `look` cannot come here again: nothing that it is given leads here.
    masked(|| unsafe { &mut *MACHINE.0.get() }.as_mut().map(look))
}

/// Looks at the records of what happened to the tasks; `None` before they run.
pub fn with_monitor<R>(look: impl FnOnce(&HealthMonitor) -> R) -> Option<R> {
    with_machine(|machine| look(machine.dispatcher.monitor()))
}

/// Asks for another mode. Does nothing before the tasks run.
///
/// # Errors
/// A mode that the set does not have.
pub fn request_mode(mode: &str) -> Result<(), SetError> {
    with_machine(|machine| machine.dispatcher.request_mode(mode)).unwrap_or(Ok(()))
}

/// The whole life of a task: it begins where its first job is due.
extern "C" fn run_jobs(task: usize) -> ! {
    loop {
        let job = with_machine(|machine| machine.dispatcher.job(task)).flatten();
        if let Some(job) = job {
            // SAFETY: the code of this task, used here alone.
            let body = unsafe { &mut (&mut *BODIES.0.get())[task] };
            body(&job);
            HAS_ENDED.store(true, Relaxed);
        }
        processor::give_up();
    }
}

/// Chooses the running task. Called with interrupts masked, when the registers of the previous task are at `saved`;
/// returns the location of the next task's registers.
pub(super) extern "C" fn change(saved: usize) -> usize {
    tlg_set_timer(0);
    let has_rung = tlg_acknowledge();
    // SAFETY: interrupts are masked.
    let Some(machine) = (unsafe { &mut *MACHINE.0.get() }) else {
        return saved;
    };
    match machine.running {
        None => machine.idle = saved,
        Some(task) => {
            let stack = &mut machine.stacks[task];
            stack.saved = saved;
            if stack.has_overflowed() {
                fail(format_args!("the stack of task {task} is too small"));
            }
        }
    }
    let at = now();
    if HAS_ENDED.swap(false, Relaxed) {
        machine.dispatcher.end(at);
    }
    if has_rung {
        machine.dispatcher.call(at);
    }
    let choice = machine.dispatcher.choose(at);
    machine.running = choice.task;
    if let Some(until) = choice.until {
        tlg_set_timer(ns(until));
    }
    choice
        .task
        .map_or(machine.idle, |task| machine.stacks[task].saved)
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
