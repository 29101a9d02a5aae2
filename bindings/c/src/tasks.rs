//! Real-time tasks: functions of C as the code of a task set.
#![allow(unsafe_code)] // Exported functions that take pointers, and calls of the program's functions.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use ::tautline_tasks::{Executive, MessageSource, Options, RunError, Running, TaskBody};
use tautline_exec::Job;

use crate::border::{Fault, coded};
use crate::code::Code;
use crate::handle::Table;
use crate::pointer::{self, Out, put_text};
use crate::port;
use crate::types::{
    TAUTLINE_WITHOUT_REAL_TIME, tautline_job, tautline_job_function, tautline_port,
    tautline_safe_function, tautline_task_figures, tautline_tasks,
};

static TASKS: Table<Set> = Table::new();

/// A set before it runs, and while it does.
enum Set {
    Open(Box<Executive>),
    Running(Running),
    /// Between the two, or after a start that failed.
    Gone,
}

impl Set {
    fn open(&mut self) -> Result<&mut Executive, Fault> {
        match self {
            Set::Open(executive) => Ok(executive),
            _ => Err(Fault::new(
                Code::WrongOrder,
                "the set was started already; give tasks their code before",
            )),
        }
    }

    fn running(&self) -> Result<&Running, Fault> {
        match self {
            Set::Running(running) => Ok(running),
            _ => Err(Fault::new(
                Code::WrongOrder,
                "the set does not run; call tautline_tasks_start first",
            )),
        }
    }
}

/// A task's functions, with what the program passes to them.
struct Functions {
    run: tautline_job_function,
    safe_state: tautline_safe_function,
    context: *mut c_void,
}

// SAFETY: the header says that the functions are called in another thread, with this context.
unsafe impl Send for Functions {}

impl TaskBody for Functions {
    fn run(&mut self, job: &Job) {
        self.call(job, std::ptr::null(), 0);
    }

    fn run_on_message(&mut self, job: &Job, message: &[u8]) {
        self.call(job, message.as_ptr().cast(), message.len());
    }

    fn safe_state(&mut self) {
        if let Some(safe_state) = self.safe_state {
            // SAFETY: as above.
            unsafe { safe_state(self.context) };
        }
    }
}

impl Functions {
    fn call(&self, job: &Job, message: *const c_void, message_bytes: usize) {
        let job = in_c(job, message, message_bytes);
        if let Some(run) = self.run {
            // SAFETY: the program promises a function of this type that may be called until the set is closed.
            unsafe { run(&raw const job, self.context) };
        }
    }
}

fn in_c(job: &Job, message: *const c_void, message_bytes: usize) -> tautline_job {
    let nanoseconds = |time: Duration| time.as_nanos() as u64;
    tautline_job {
        number: job.number,
        release_ns: nanoseconds(job.release),
        deadline_ns: nanoseconds(job.deadline),
        message,
        message_bytes,
        arrival_ns: nanoseconds(job.arrival),
    }
}

fn fault(error: RunError) -> Fault {
    let code = match &error {
        RunError::Refused { .. } => Code::SetRefused,
        RunError::File(_) | RunError::Set(_) => Code::ConfigWrong,
        RunError::UnknownTask { .. } => Code::UnknownName,
        RunError::NoBody { .. } | RunError::BodyRepeated { .. } => Code::WrongOrder,
        RunError::OtherProcess => Code::OtherProcess,
        RunError::NotByMessage { .. } => Code::WrongKind,
        _ => Code::Refused,
    };
    Fault::new(code, format!("{error}; {}", error.remedy()))
}

/// Reads and admits a task set.
///
/// # Safety
/// `file` is null or a text; `tasks` is null or a handle can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_tasks_open(
    file: *const c_char,
    tasks: *mut tautline_tasks,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let (file, out) = unsafe { (pointer::text("file", file)?, Out::new("tasks", tasks)?) };
        let executive = Executive::from_file(file).map_err(fault)?;
        let id = TASKS.insert(Set::Open(Box::new(executive)))?;
        out.put(tautline_tasks { id });
        Ok(0)
    })
}

/// Gives a task its code.
///
/// # Safety
/// `task` is null or a text. The functions may be called with `context`, in another thread, until the set is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_tasks_code(
    tasks: tautline_tasks,
    task: *const c_char,
    run: tautline_job_function,
    safe_state: tautline_safe_function,
    context: *mut c_void,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let task = unsafe { pointer::text("task", task) }?;
        run.ok_or(Fault::null("run"))?;
        let functions = Functions {
            run,
            safe_state,
            context,
        };
        let mut set = TASKS.enter(tasks.id)?;
        set.open()?.task(task, functions).map_err(fault)?;
        Ok(0)
    })
}

/// Has a port's messages release a task.
///
/// # Safety
/// `task` is null or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_tasks_messages(
    tasks: tautline_tasks,
    task: *const c_char,
    port: tautline_port,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let task = unsafe { pointer::text("task", task) }?;
        let mut set = TASKS.enter(tasks.id)?;
        let executive = set.open()?;
        let (descriptor, bytes_max) = port::watched(port)?;
        let take = move |buffer: &mut [u8]| port::take_next(port, buffer);
        let source = MessageSource::new(descriptor, bytes_max, take);
        let source = source.map_err(|error| Fault::new(Code::Refused, error.to_string()))?;
        executive.messages(task, source).map_err(fault)?;
        Ok(0)
    })
}

/// Starts all tasks together.
#[unsafe(no_mangle)]
pub extern "C" fn tautline_tasks_start(tasks: tautline_tasks, cpu: c_int, flags: u32) -> c_int {
    coded(|| {
        if flags & !TAUTLINE_WITHOUT_REAL_TIME != 0 {
            return Err(Fault::new(Code::BadArgument, "no such flag"));
        }
        let mut options = Options::default();
        if flags & TAUTLINE_WITHOUT_REAL_TIME != 0 {
            options = options.without_real_time();
        }
        if let Some(cpu) = pointer::cpu(cpu)? {
            options = options.with_cpu(cpu);
        }
        let mut set = TASKS.enter(tasks.id)?;
        let missing = set.open()?.without_code().next().map(str::to_owned);
        if let Some(task) = missing {
            return Err(fault(RunError::NoBody { task }));
        }
        let Set::Open(executive) = std::mem::replace(&mut *set, Set::Gone) else {
            return Err(Code::Internal.into());
        };
        *set = Set::Running(executive.start(&options).map_err(fault)?);
        Ok(0)
    })
}

/// Activates a task that messages activate.
///
/// # Safety
/// `task` is null or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_tasks_trigger(
    tasks: tautline_tasks,
    task: *const c_char,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let task = unsafe { pointer::text("task", task) }?;
        let set = TASKS.enter(tasks.id)?;
        set.running()?.trigger(task).map_err(fault)?.fire();
        Ok(0)
    })
}

/// Asks for another mode.
///
/// # Safety
/// `mode` is null or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_tasks_request_mode(
    tasks: tautline_tasks,
    mode: *const c_char,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let mode = unsafe { pointer::text("mode", mode) }?;
        let set = TASKS.enter(tasks.id)?;
        set.running()?.request_mode(mode).map_err(fault)?;
        Ok(0)
    })
}

/// Figures of a task that runs.
///
/// # Safety
/// `task` is null or a text; `figures` is null or figures can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_tasks_figures(
    tasks: tautline_tasks,
    task: *const c_char,
    figures: *mut tautline_task_figures,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let (task, out) = unsafe { (pointer::text("task", task)?, Out::new("figures", figures)?) };
        let set = TASKS.enter(tasks.id)?;
        let view = set.running()?.task(task).map_err(fault)?;
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        out.put(tautline_task_figures {
            jobs: view.jobs,
            missed: view.missed,
            response_p50_ns: ns(view.response.p50),
            response_p99_ns: ns(view.response.p99),
            response_max_ns: ns(view.response.max),
            execution_max_ns: ns(view.execution.max),
            stopped: u64::from(view.state == ::tautline_tasks::TaskState::Stopped),
            latency_p50_ns: ns(view.latency.p50),
            latency_p99_ns: ns(view.latency.p99),
            latency_max_ns: ns(view.latency.max),
        });
        Ok(0)
    })
}

/// Settings that could not be had, and faults, as text.
///
/// # Safety
/// `text` is null or has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_tasks_limits(
    tasks: tautline_tasks,
    text: *mut c_char,
    bytes: usize,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let buffer = unsafe { pointer::buffer("text", text.cast(), bytes) }?;
        let set = TASKS.enter(tasks.id)?;
        let limits = set.running()?.limits().join("\n");
        Ok(put_text(limits.as_bytes(), buffer) as c_int)
    })
}

/// Stops the tasks and closes the set.
#[unsafe(no_mangle)]
pub extern "C" fn tautline_tasks_close(tasks: tautline_tasks, patience_ns: u64) -> c_int {
    coded(|| {
        let Set::Running(running) = TASKS.remove(tasks.id)? else {
            return Ok(0);
        };
        let summary = running.stop(Duration::from_nanos(patience_ns));
        Ok(summary.tasks.iter().filter(|task| task.is_left).count() as c_int)
    })
}
