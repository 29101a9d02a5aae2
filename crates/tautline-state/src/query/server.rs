//! The side that is asked: a thread that waits for askers, and answers within limits.

use std::any::Any;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::gettid;

use crate::Event;
use crate::fork::OwnerProcess;
use crate::untrusted::{UntrustedListener, UntrustedSocket};

/// How long an asker may read nothing. Lower: on a busy machine an answer is broken off. Higher: an asker that reads
/// nothing holds the others up for longer.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// How long an answer may take in all. Lower: a large one is broken off on a busy machine. Higher: an asker that reads
/// a byte now and then holds the others up for longer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Pause when there is no descriptor for a client. Lower: a process without descriptors wastes more time. Higher: once
/// there are some, waiting clients are answered later.
const NO_DESCRIPTOR_PAUSE: Duration = Duration::from_millis(250);
/// How long the end of the thread is waited for: it looks at its askers no more, but may be in the middle of putting
/// the state into words. Lower: on a busy machine it is left behind where it was about to end. Higher: one that waits
/// for something else keeps the program from its end.
const END_MAX: Duration = Duration::from_secs(5);

/// Rings when it is dropped, also by a panic.
struct RungAtEnd(Arc<Event>);

impl Drop for RungAtEnd {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// Clients that a program answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// All that can connect, by the modes of the socket and of its directory.
    ByFile,
    /// All that can connect, which are only root and this process's user. No others decide how often the thread runs,
    /// so it keeps the priority of the thread that starts it.
    ByOwnDirectory,
    /// Root and this process's user.
    RootAndUser,
}

/// The thread that answers. Dropped, it ends.
#[derive(Debug)]
pub struct StateServer {
    stop: Arc<Event>,
    /// Rung when the thread ends.
    ended: Arc<Event>,
    /// The kernel's number of the thread, which it writes first. Relaxed: only the thread must find its own.
    number: Arc<AtomicI32>,
    thread: Option<JoinHandle<()>>,
    /// The process that the thread is in: a forked one has none.
    process: OwnerProcess,
}

impl StateServer {
    /// Starts a thread of this name, which does `work` until [`Clients::next`] says that it is to end.
    ///
    /// # Errors
    /// There is no thread, or no descriptor.
    pub fn start(
        name: &str,
        listener: UntrustedListener,
        admission: Admission,
        work: impl FnOnce(&Clients) + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(Event::new()?);
        let askers = Clients {
            listener,
            admission,
            stop: Arc::clone(&stop),
        };
        let ended = Arc::new(Event::new()?);
        let ends = RungAtEnd(Arc::clone(&ended));
        let number = Arc::new(AtomicI32::new(0));
        let own_number = Arc::clone(&number);
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            let _rings_last = ends;
            own_number.store(gettid().as_raw_nonzero().get(), Relaxed);
            // Clients must not delay other work.
            if admission != Admission::ByOwnDirectory {
                crate::policy::be_ordinary();
            }
            work(&askers);
        })?;
        Ok(Self {
            stop,
            ended,
            number,
            thread: Some(thread),
            process: OwnerProcess::current(),
        })
    }

    /// Whether this process has the thread, and not the one that this one was forked from.
    #[must_use]
    pub fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    /// Whether the thread itself asks. By the kernel's numbers: the standard library allocates something for a thread
    /// that it did not start, when that asks who it is, and never frees it for the first thread of a C program.
    fn is_the_thread(&self) -> bool {
        self.number.load(Relaxed) == gettid().as_raw_nonzero().get()
    }

    /// Ends the thread, as dropping it does.
    ///
    /// # Errors
    /// The thread's panic.
    pub fn end(mut self) -> Result<(), Box<dyn Any + Send>> {
        self.end_thread()
    }

    fn end_thread(&mut self) -> Result<(), Box<dyn Any + Send>> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        if !self.is_of_this_process() {
            std::mem::forget(thread);
            return Ok(());
        }
        self.stop.ring();
        // The thread itself, when the last hold on this is the one that it has for the length of an answer.
        if self.is_the_thread() {
            return Ok(());
        }
        let deadline = Instant::now() + END_MAX;
        while let Ok(left) = left(deadline) {
            match is_rung(&self.ended, left) {
                Ok(true) => return thread.join(),
                Ok(false) => {}
                Err(_) => break,
            }
        }
        // It ends by itself as soon as it looks up.
        Ok(())
    }
}

impl Drop for StateServer {
    fn drop(&mut self) {
        // A panic there has been reported already.
        let _ended = self.end_thread();
    }
}

/// Clients, in turn.
#[derive(Debug)]
pub struct Clients {
    listener: UntrustedListener,
    admission: Admission,
    stop: Arc<Event>,
}

/// Result of waiting for an asker.
#[derive(Debug)]
pub enum Next<'a> {
    /// A client asks.
    Client(Client<'a>),
    /// The time is over, or a client without permission asked.
    Nobody,
    /// The thread is to end.
    Stop,
}

impl Clients {
    /// Answers all, one after the other, until the thread is to end.
    pub fn each(&self, mut answer: impl FnMut(&Client<'_>)) {
        loop {
            match self.next(None) {
                Next::Client(asker) => answer(&asker),
                Next::Nobody => {}
                Next::Stop => return,
            }
        }
    }

    /// Sleeps until a client asks; at most `timeout`, indefinitely if `None`. May end early with [`Next::Nobody`].
    pub fn next(&self, timeout: Option<Duration>) -> Next<'_> {
        match wait(self.listener.as_fd(), PollFlags::IN, &self.stop, timeout) {
            Ok(Woken::Ready) => {}
            Ok(Woken::TimeOver) => return Next::Nobody,
            Ok(Woken::Stopped) => return Next::Stop,
            Err(_) => return self.pause(),
        }
        match self.listener.accept() {
            Ok(Some(socket)) if self.admits(&socket) => Next::Client(Client {
                socket,
                stop: &self.stop,
            }),
            Ok(_) => Next::Nobody,
            // Where there is no descriptor for it, the listener stays readable.
            Err(_) => self.pause(),
        }
    }

    fn admits(&self, socket: &UntrustedSocket) -> bool {
        match self.admission {
            Admission::ByFile | Admission::ByOwnDirectory => true,
            Admission::RootAndUser => socket.peer().is_ok_and(|peer| peer.is_near()),
        }
    }

    fn pause(&self) -> Next<'_> {
        match is_rung(&self.stop, NO_DESCRIPTOR_PAUSE) {
            Ok(true) => Next::Stop,
            Ok(false) => Next::Nobody,
            Err(_) => {
                std::thread::sleep(NO_DESCRIPTOR_PAUSE);
                Next::Nobody
            }
        }
    }
}

/// A client. The connection ends when this is dropped.
#[derive(Debug)]
pub struct Client<'a> {
    socket: UntrustedSocket,
    stop: &'a Event,
}

impl Client<'_> {
    /// Its question, as far as it has come when `is_whole` says so of it, when it has ended, when `place` is full, or
    /// when the time is over.
    pub fn question<'p>(
        &self,
        place: &'p mut [u8],
        time: Duration,
        is_whole: impl Fn(&[u8]) -> bool,
    ) -> &'p [u8] {
        let deadline = Instant::now() + time;
        let mut length = 0;
        while length < place.len() && !(length > 0 && is_whole(&place[..length])) {
            let Ok(left) = left(deadline) else { break };
            match self.socket.receive(&mut place[length..]) {
                Ok(more) if more > 0 => length += more,
                Err(error) if is_for_now(&error) => {
                    let socket = self.socket.as_fd();
                    match wait(socket, PollFlags::IN, self.stop, Some(left)) {
                        Ok(Woken::Ready | Woken::TimeOver) => {}
                        Ok(Woken::Stopped) | Err(_) => break,
                    }
                }
                Ok(_) | Err(_) => break,
            }
        }
        &place[..length]
    }

    /// A writer of the answer, which begins now. It fails when the asker has read nothing for a second, or the answer
    /// takes more than five in all.
    #[must_use]
    pub fn answer(&self) -> Answer<'_> {
        Answer {
            asker: self,
            deadline: Instant::now() + ANSWER_MAX,
        }
    }
}

/// Writes an answer, within the time that there is for it.
#[derive(Debug)]
pub struct Answer<'a> {
    asker: &'a Client<'a>,
    deadline: Instant,
}

impl Write for Answer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let silent = Instant::now() + SILENCE_MAX;
        loop {
            let left = left(self.deadline.min(silent))?;
            match self.asker.socket.send(bytes) {
                Err(error) if is_for_now(&error) => {}
                sent => return sent,
            }
            let socket = self.asker.socket.as_fd();
            if let Woken::Stopped = wait(socket, PollFlags::OUT, self.asker.stop, Some(left))? {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn is_for_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

fn left(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// Sleeps until an event is rung, at most for so long; whether it is. A signal ends it as the time does.
fn is_rung(event: &Event, time: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(time).ok();
    match poll(&mut [PollFd::new(event, PollFlags::IN)], limit.as_ref()) {
        Ok(0) | Err(Errno::INTR) => Ok(false),
        Ok(_) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

enum Woken {
    Ready,
    TimeOver,
    Stopped,
}

/// Sleeps until a descriptor is ready, the bell has been rung, or the time is over (never if `None`). A signal ends it
/// as the time does.
fn wait(
    descriptor: BorrowedFd<'_>,
    flags: PollFlags,
    stop: &Event,
    timeout: Option<Duration>,
) -> io::Result<Woken> {
    let mut polled = [
        PollFd::new(stop, PollFlags::IN),
        PollFd::from_borrowed_fd(descriptor, flags),
    ];
    // A time that the kernel's type cannot hold is for ever.
    let limit = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut polled, limit.as_ref()) {
        Ok(0) | Err(Errno::INTR) => Ok(Woken::TimeOver),
        Ok(_) if !polled[0].revents().is_empty() => Ok(Woken::Stopped),
        Ok(_) => Ok(Woken::Ready),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    use rustix::net::SocketType;

    use super::*;
    use crate::TemporaryDirectory;
    use crate::untrusted::unnamed;

    fn listener(made: &TemporaryDirectory) -> UntrustedListener {
        let bound = unnamed(SocketType::STREAM).unwrap();
        let path = made.path().join("told");
        rustix::net::bind(&bound, &rustix::net::SocketAddrUnix::new(path).unwrap()).unwrap();
        let listener = UntrustedListener::new(bound);
        listener.listen(4).unwrap();
        listener
    }

    #[test]
    fn the_thread_is_urgent_only_where_nobody_else_can_ask() {
        for (admission, policy) in [
            (Admission::ByFile, (libc::SCHED_OTHER, 0)),
            (Admission::RootAndUser, (libc::SCHED_OTHER, 0)),
            (Admission::ByOwnDirectory, (libc::SCHED_FIFO, 1)),
        ] {
            let made = TemporaryDirectory::make("told-").unwrap();
            let listener = listener(&made);
            let (told, has) = mpsc::channel();
            let start = move || {
                if crate::policy::set_policy(0, libc::SCHED_FIFO, 1).is_err() {
                    println!("SKIPPED: real-time priorities cannot be had here");
                    return None;
                }
                let work =
                    move |_: &Clients| told.send(crate::policy::policy_of(0).unwrap()).unwrap();
                Some(StateServer::start("told", listener, admission, work).unwrap())
            };
            if std::thread::spawn(start).join().unwrap().is_some() {
                assert_eq!(has.recv().unwrap(), policy, "{admission:?}");
            }
        }
    }

    #[test]
    fn where_nobody_can_be_accepted_the_thread_does_not_spin() {
        // As where there is no descriptor: the listener is ready, and accepting fails.
        let listener = UntrustedListener::new(unnamed(SocketType::STREAM).unwrap());
        let (told, looked) = mpsc::channel();
        let work = move |askers: &Clients| {
            while let Next::Client(_) | Next::Nobody = askers.next(None) {
                told.send(()).unwrap();
            }
        };
        let teller = StateServer::start("told", listener, Admission::ByFile, work).unwrap();
        std::thread::sleep(2 * NO_DESCRIPTOR_PAUSE);
        let began = Instant::now();
        teller.end().unwrap();
        assert!(began.elapsed() < NO_DESCRIPTOR_PAUSE, "the pause ends");
        let looks = looked.iter().count();
        assert!((1..=3).contains(&looks), "{looks}");
    }

    #[test]
    fn an_asker_who_neither_speaks_nor_reads_does_not_hold_up_the_end() {
        let made = TemporaryDirectory::make("told-").unwrap();
        let listener = listener(&made);
        let (told, answering) = mpsc::channel();
        let work = move |askers: &Clients| {
            while let next @ (Next::Client(_) | Next::Nobody) = askers.next(None) {
                let Next::Client(asker) = next else { continue };
                let question = asker.question(&mut [0; 16], ANSWER_MAX, |_| true).len();
                told.send(question).unwrap();
                let _broken_off = asker.answer().write_all(&vec![b'x'; 8 << 20]);
            }
        };
        let teller = StateServer::start("told", listener, Admission::ByFile, work).unwrap();
        let mut asker = UnixStream::connect(made.path().join("told")).unwrap();
        asker.write_all(b"all").unwrap();
        assert_eq!(answering.recv().unwrap(), 3);
        let began = Instant::now();
        teller.end().unwrap();
        assert!(began.elapsed() < SILENCE_MAX, "{:?}", began.elapsed());
    }

    #[test]
    fn a_thread_that_does_not_end_is_not_waited_for_without_end() {
        let made = TemporaryDirectory::make("told-").unwrap();
        let listener = listener(&made);
        let (never, waits) = mpsc::channel::<()>();
        let work = move |_: &Clients| {
            let _hung_up = waits.recv();
        };
        let teller = StateServer::start("told", listener, Admission::ByFile, work).unwrap();
        let began = Instant::now();
        teller.end().unwrap();
        assert!(began.elapsed() < 2 * END_MAX, "{:?}", began.elapsed());
        drop(never);
    }
}
