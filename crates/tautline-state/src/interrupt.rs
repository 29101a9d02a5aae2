//! ^C and termination: what was made is removed, whatever the program is doing.
//!
//! The first signal sets a flag, which long work looks at ([`interrupted`]) so that it can end in
//! order. If the program still runs after [`GRACE`], or a second signal comes, the registered
//! clean-ups run on the watcher's own thread and the process ends with 128 + the signal's number.

use std::io;
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::lock;

/// Time that orderly work has to end after the first signal. Lower would cut off a report being
/// written, higher makes ^C feel dead.
pub const GRACE: Duration = Duration::from_secs(3);

/// The first signal's number, or 0. Stored by the watcher's thread, loaded by [`interrupted`]; it
/// carries no other data, so that relaxed order suffices.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

type Action = Box<dyn FnOnce() + Send>;

/// Action to be undone, with the number by which its owner withdraws it.
static CLEAN_UPS: Mutex<Vec<(u64, Action)>> = Mutex::new(Vec::new());

/// Starts to watch for SIGINT, SIGTERM and SIGHUP. Calls after the first do nothing.
pub fn watch() -> io::Result<()> {
    static WATCHING: OnceLock<Result<(), io::ErrorKind>> = OnceLock::new();
    WATCHING
        .get_or_init(|| start().map_err(|error| error.kind()))
        .map_err(io::Error::from)
}

/// Remedy where [`watch`] or [`descriptor`] fails: the first also needs a thread, which the kernel refuses with EAGAIN.
pub fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            "raise this user's limit of processes and threads (ulimit -u, TasksMax= of a service)"
        }
        _ => "raise the limit of open files (ulimit -n)",
    }
}

/// The number of the signal that asked the program to end, if one did.
pub fn interrupted() -> Option<i32> {
    match SIGNAL.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(signal),
    }
}

/// A flag that a signal to this process sets.
pub fn flag() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let watched = Arc::clone(&stop);
    // Ends with the process; it only passes the signal's number on.
    thread::spawn(move || {
        while interrupted().is_none() {
            thread::sleep(Duration::from_millis(50));
        }
        watched.store(true, Ordering::Relaxed);
    });
    stop
}

/// A descriptor that becomes readable with the first signal, for callers that wait for several descriptors.
pub fn descriptor() -> io::Result<UnixStream> {
    let (stop, signalled) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, signalled.try_clone()?)?;
    }
    Ok(stop)
}

/// Something to be undone if the process is told to end before its owner does so.
#[derive(Debug)]
pub struct CleanUp(u64);

impl CleanUp {
    /// Registers `action`, which runs on the watcher's thread unless this value is dropped before.
    pub fn new(action: impl FnOnce() + Send + 'static) -> CleanUp {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        lock(&CLEAN_UPS).push((number, Box::new(action)));
        CleanUp(number)
    }
}

impl Drop for CleanUp {
    fn drop(&mut self) {
        lock(&CLEAN_UPS).retain(|(number, _)| *number != self.0);
    }
}

fn start() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::Builder::new()
        .name("interrupt".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                if SIGNAL.swap(signal, Ordering::Relaxed) != 0 {
                    end(signal);
                }
                thread::spawn(move || {
                    thread::sleep(GRACE);
                    end(signal);
                });
            }
        })?;
    Ok(())
}

fn end(signal: i32) -> ! {
    let actions: Vec<_> = lock(&CLEAN_UPS).drain(..).collect();
    for (_, action) in actions {
        action();
    }
    process::exit(128 + signal);
}
