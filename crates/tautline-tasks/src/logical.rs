//! Logical execution time: inputs are read at the release of a job and outputs are written at its deadline, however
//! early it ends. So the data flow has the jitter of a thread that does nothing else, and not that of the jobs.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use tautline_exec::Job;

use crate::options::Options;
use crate::policy::rise_above_tasks;
use crate::shared::Shared;
use crate::sys::{self, PriorityMutex};
use crate::thread::TaskBody;

/// Longest wait. Only bounds one that nothing ends.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The parts of a task with logical execution time.
pub struct Logical<R, J, W, S> {
    /// Reads the inputs, such as sampling ports, into a value. Called at each release, in a thread above all tasks.
    pub read: R,
    /// The job: the inputs of its release, and the outputs to fill in.
    pub run: J,
    /// Writes the outputs. Called at the deadline of each job that ended by then, in the same thread as `read`; for
    /// outputs that are due at the same moment as a release, first.
    pub write: W,
    /// Sets the outputs to their safe values, as [`TaskBody::safe_state`].
    pub safe_state: S,
}

/// Reads inputs.
pub(crate) type Read<I> = Box<dyn FnMut(&mut I) + Send>;
/// Writes outputs.
pub(crate) type Write<O> = Box<dyn FnMut(&O) + Send>;

/// Values between the task and the exchange.
struct Slots<I, O> {
    read: Read<I>,
    input: I,
    /// Release for which the inputs were read.
    read_for: Option<Duration>,
    write: Write<O>,
    output: O,
    /// Deadline at which the outputs are to be written.
    write_at: Option<Duration>,
    /// Whether `read` or `write` has panicked in the exchange.
    is_broken: bool,
}

impl<I, O> Slots<I, O> {
    fn read_for(&mut self, release: Duration) {
        if self.read_for.is_none_or(|known| known < release) {
            (self.read)(&mut self.input);
            self.read_for = Some(release);
        }
    }

    fn write_due(&mut self, now: Duration) {
        if self.write_at.is_some_and(|at| at <= now) {
            (self.write)(&self.output);
            self.write_at = None;
        }
    }
}

/// One task's values, as the exchange sees them.
pub(crate) trait Exchanged: Send + Sync {
    fn read_for(&self, release: Duration);
    /// Writes what is due, and returns the time of what is not.
    fn write_due(&self, now: Duration) -> Option<Duration>;
    /// Lets the task fail at its next job.
    fn break_off(&self);
}

impl<I: Send, O: Send> Exchanged for PriorityMutex<Slots<I, O>> {
    fn read_for(&self, release: Duration) {
        self.lock().read_for(release);
    }

    fn write_due(&self, now: Duration) -> Option<Duration> {
        let mut slots = self.lock();
        slots.write_due(now);
        slots.write_at
    }

    fn break_off(&self) {
        let mut slots = self.lock();
        slots.is_broken = true;
        slots.write_at = None;
    }
}

/// The run that a body belongs to, once it has started.
pub(crate) type Home = Arc<OnceLock<Weak<Shared>>>;

/// A function that reads or writes the values of a task has panicked in the exchange.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("reading or writing its values panicked")]
pub(crate) struct Broken;

/// The job's side of the exchange: values that it works with while the others are read and written.
pub(crate) struct Side<I, O> {
    slots: Arc<PriorityMutex<Slots<I, O>>>,
    home: Home,
    pub(crate) input: I,
    pub(crate) output: O,
}

impl<I, O> Side<I, O> {
    /// Takes the inputs of a job's release.
    pub(crate) fn take(&mut self, job: &Job) -> Result<(), Broken> {
        let mut slots = self.slots.lock();
        if slots.is_broken {
            return Err(Broken);
        }
        // The exchange is late, or on another CPU: what it has not done yet is done here, in its order.
        slots.write_due(job.release);
        slots.read_for(job.release);
        std::mem::swap(&mut self.input, &mut slots.input);
        Ok(())
    }

    /// Has the outputs of a job written at its deadline. Outputs that come too late are left out.
    pub(crate) fn hand_over(&mut self, job: &Job) {
        if sys::monotonic() > job.deadline {
            return;
        }
        let mut slots = self.slots.lock();
        std::mem::swap(&mut self.output, &mut slots.output);
        slots.write_at = Some(job.deadline);
        drop(slots);
        if let Some(shared) = self.home.get().and_then(Weak::upgrade) {
            shared.exchange.wake();
        }
    }

    /// Withdraws outputs that wait, or the safe values would be overwritten at the deadline.
    pub(crate) fn withdraw(&self) {
        self.slots.lock().write_at = None;
    }
}

/// Values of the two sides: each has its own, which change hands.
pub(crate) struct First<I, O> {
    pub(crate) inputs: [I; 2],
    pub(crate) outputs: [O; 2],
}

/// The two sides of a task's values: that of its jobs, and that of the exchange.
pub(crate) fn sides<I: Send + 'static, O: Send + 'static>(
    read: Read<I>,
    write: Write<O>,
    first: First<I, O>,
    home: Home,
) -> io::Result<(Side<I, O>, Arc<dyn Exchanged>)> {
    let [input, own_input] = first.inputs;
    let [output, own_output] = first.outputs;
    let slots = Arc::new(PriorityMutex::new(Slots {
        read,
        input,
        read_for: None,
        write,
        output,
        write_at: None,
        is_broken: false,
    })?);
    let side = Side {
        slots: slots.clone(),
        home,
        input: own_input,
        output: own_output,
    };
    Ok((side, slots))
}

/// Code of the task.
pub(crate) struct Body<I, O, J, S> {
    pub(crate) side: Side<I, O>,
    pub(crate) run: J,
    pub(crate) safe_state: S,
}

impl<I, O, J, S> TaskBody for Body<I, O, J, S>
where
    I: Send,
    O: Send,
    J: FnMut(&Job, &I, &mut O) + Send,
    S: FnMut() + Send,
{
    fn run(&mut self, job: &Job) {
        let side = &mut self.side;
        let taken = side.take(job);
        taken.unwrap_or_else(|broken| panic!("{broken}"));
        (self.run)(job, &side.input, &mut side.output);
        side.hand_over(job);
    }

    fn safe_state(&mut self) {
        self.side.withdraw();
        (self.safe_state)();
    }
}

/// Starts the exchange of these tasks.
pub(crate) fn start(
    shared: &Arc<Shared>,
    tasks: Vec<(usize, Arc<dyn Exchanged>)>,
    options: &Options,
) -> io::Result<JoinHandle<()>> {
    let (shared, options) = (shared.clone(), options.clone());
    let builder = std::thread::Builder::new().name("taut-exchange".to_owned());
    builder.spawn(move || {
        if options.real_time {
            rise_above_tasks(&shared);
        }
        if let Some(cpu) = options.cpu {
            sys::stay_on(cpu);
        }
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        exchange(&shared, &tasks);
    })
}

fn exchange(shared: &Shared, tasks: &[(usize, Arc<dyn Exchanged>)]) {
    while !shared.is_stopping() {
        let seen = shared.exchange.value();
        let now = sys::monotonic();
        let mut until = now + WAIT_MAX;
        // Outputs before inputs: a task that reads what another one writes at this moment sees it.
        for (_, values) in tasks {
            let next = guarded(values, || values.write_due(now)).flatten();
            until = next.map_or(until, |at| until.min(at));
        }
        for (task, values) in tasks {
            let releases = shared.decisions.lock().executive.releases(*task, now);
            let Some((last, next)) = releases else {
                continue;
            };
            until = until.min(next);
            if let Some(release) = last {
                guarded(values, || values.read_for(release));
            }
        }
        shared.exchange.wait(seen, Some(until));
    }
}

/// Calls the functions of a task. One that panics breaks its own task off, and no other.
fn guarded<T>(values: &Arc<dyn Exchanged>, call: impl FnOnce() -> T) -> Option<T> {
    let called = catch_unwind(AssertUnwindSafe(call));
    called.inspect_err(|_| values.break_off()).ok()
}
