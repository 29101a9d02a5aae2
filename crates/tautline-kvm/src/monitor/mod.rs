//! The process of one machine: it makes the machine, gives up everything else, and lets the guest run.
//!
//! * `memory`: memories of the machine. `machine`: what KVM is told before the start. `processor`: its instructions
//!   that KVM does not execute, and its ends. `console`: the serial line. `confinement`: what the process gives up.
//! * `board`, of one processor: what the machine has of its own there.

#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
mod board;
mod confinement;
mod console;
mod machine;
mod memory;
mod processor;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;

use self::console::Console;
use self::machine::Machine;
use crate::packet::{self, End, Go, Report};

/// Threads of the process: that of its start, the processor's, the listener's and the console's.
const THREADS: usize = 4;

/// Makes the machine that is ordered on a socket, and runs it until it ends. Standard output is its console. The
/// calling process is the machine's from then on: it loses its privileges, and its access to files.
///
/// # Errors
/// The process has other threads, which would keep these; its parent is gone; no thread can be started.
pub fn serve(socket: OwnedFd) -> io::Result<()> {
    let _ = rustix::thread::set_name(c"taut-monitor"); // a name to be seen, no more
    let threads = tautline_state::process::threads(std::process::id());
    if threads.is_ok_and(|threads| threads.len() > 1) {
        return Err(io::Error::other("this process has threads already"));
    }
    let (order, descriptors) = packet::receive_order(&socket)?;
    let made = Machine::new(&order, descriptors).and_then(|machine| {
        confinement::give_up_files()?;
        Ok(machine)
    });
    let (machine, limits) = match made {
        Ok(made) => made,
        Err(why) => return packet::send(&socket, &Report::Refused(why.to_string())),
    };
    let socket = Arc::new(socket);
    let started = Arc::new(Barrier::new(THREADS));
    let (console, speaking) = Console::start(&started)?;
    let (go, may_go) = mpsc::channel();
    let (number, numbers) = mpsc::channel();
    let running = start_processor(machine, console, &started, number, may_go)?;
    start_listening(Arc::clone(&socket), &started, go)?;
    let processor = numbers.recv().map_err(io::Error::other)?;
    // A thread that is about to start needs calls that it needs never again.
    started.wait();
    if let Err(why) = confinement::give_up_calls() {
        return packet::send(&socket, &Report::Refused(why.to_string()));
    }
    packet::send(&socket, &Report::Ready { processor, limits })?;
    // A panic there has been reported already.
    let end = running.join().map_err(|_| io::ErrorKind::Other)?;
    if let Some(end) = end {
        packet::send(&socket, &Report::Ended(end))?;
        let _ = speaking.join(); // as above
    }
    Ok(())
}

/// The processor's thread: tells its number, and waits until it may go. The machine lives as long as the thread.
fn start_processor(
    mut machine: Machine,
    console: Console,
    started: &Arc<Barrier>,
    number: Sender<u32>,
    may_go: Receiver<()>,
) -> io::Result<JoinHandle<Option<End>>> {
    let started = Arc::clone(started);
    let body = move || {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        number.send(own.cast_unsigned()).ok()?;
        started.wait();
        may_go.recv().ok()?;
        Some(processor::run(&mut machine, &console))
    };
    std::thread::Builder::new()
        .name("taut-processor".to_owned())
        .spawn(body)
}

/// Thread that receives the parent's order to start, and then notices the parent's end.
fn start_listening(socket: Arc<OwnedFd>, started: &Arc<Barrier>, go: Sender<()>) -> io::Result<()> {
    let started = Arc::clone(started);
    let body = move || {
        started.wait();
        if packet::receive::<Go>(&*socket).is_ok() && go.send(()).is_ok() {
            // Nothing more is said: this is the end of the other side, or of the machine.
            let _ = packet::receive::<Go>(&*socket);
        }
        std::process::exit(1);
    };
    std::thread::Builder::new()
        .name("taut-listener".to_owned())
        .spawn(body)
        .map(drop)
}
