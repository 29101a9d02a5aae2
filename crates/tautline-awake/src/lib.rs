//! Waits that end awake: a loop that sleeps between two messages is there when its message comes.
//!
//! [`Awake`] stands before the receiving call of a program's own loop, on any descriptor: a socket of any kind, a pipe,
//! a timer, an epoll instance. It needs no privilege and no configuration. The descriptor stays the kernel's, and so do
//! all its semantics: `Awake` only waits, with `poll`, and learns from when the waits end.
//!
//! ```
//! use std::net::UdpSocket;
//! use tautline_awake::Awake;
//!
//! # fn main() -> std::io::Result<()> {
//! let socket = UdpSocket::bind("127.0.0.1:0")?;
//! # let peer = UdpSocket::bind("127.0.0.1:0")?;
//! # peer.send_to(b"state", socket.local_addr()?)?;
//! let mut awake = Awake::new(&socket);
//! let mut buffer = [0; 1500];
//! # for _ in 0..1 {
//! awake.wait(None)?; // sleeps, and is awake when the message comes
//! let length = socket.recv(&mut buffer)?;
//! # assert_eq!(&buffer[..length], b"state");
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! A thread spends at most [`cpu::SHARE_PERCENT`] per cent of its time awake for this, and so do all threads of a
//! process on one CPU. A message without rhythm costs as much as ever. [`sleep::until`] is the same for a time.
//!
//! `taut exec` puts this before the calls of programs without recompiling them.

pub mod board;
pub mod cpu;
pub mod exec;
pub mod flow;
pub mod raw;
pub mod sleep;
pub mod thread;
pub mod wait;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use libc::pollfd;

use flow::{Counts, Flow};
pub use tautline_proto::arrival::Pattern;
use wait::Waited;

/// Waits for one descriptor, and learns when its messages come.
#[derive(Debug)]
pub struct Awake<'f> {
    descriptor: BorrowedFd<'f>,
    flow: Flow,
    is_allowed: bool,
}

impl<'f> Awake<'f> {
    /// Waits for this descriptor. Where a cgroup limits the CPU time of the process, they are ordinary ones.
    pub fn new(descriptor: &'f impl AsFd) -> Self {
        descriptor.as_fd().into()
    }

    /// The program sent something to which the peer answers. Without this call answers are awaited by their own rhythm
    /// alone.
    pub fn sent(&mut self) {
        self.flow.sent(raw::now());
    }

    /// Waits until the descriptor has something to read or an error, or the time is over: whether it has.
    ///
    /// # Errors
    /// Those of poll(2); a wait that a signal handler interrupted goes on.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let began = raw::now();
        let deadline = timeout.map(|timeout| began + timeout);
        let mut entries = [pollfd {
            fd: self.descriptor.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        if self.is_allowed {
            loop {
                let mut flows = [Some(&mut self.flow)];
                match wait::until_ready(&mut entries, &mut flows, deadline, std::ptr::null(), ()) {
                    Waited::Ready => return Ok(true),
                    Waited::TimedOut => return Ok(false),
                    Waited::Interrupted => {}
                    Waited::Unknown => break,
                }
            }
        }
        loop {
            match raw::poll(&mut entries, deadline, raw::now(), std::ptr::null()) {
                raw::Polled::Ready => {
                    self.flow.returned(began, raw::now());
                    return Ok(true);
                }
                raw::Polled::Nothing => return Ok(false),
                raw::Polled::Interrupted => {}
                raw::Polled::Refused => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
            }
        }
    }

    /// Rhythm of the sender, as far as it is known.
    pub fn pattern(&self) -> Pattern {
        self.flow.pattern()
    }

    /// Messages so far, by how they were found.
    pub fn counts(&self) -> Counts {
        self.flow.counts()
    }
}

impl<'f> From<BorrowedFd<'f>> for Awake<'f> {
    fn from(descriptor: BorrowedFd<'f>) -> Self {
        Self {
            descriptor,
            flow: Flow::new(),
            is_allowed: !cpu::is_limited(),
        }
    }
}

/// Rhythm of the sender and how the messages were found, for a report.
impl fmt::Display for Awake<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.flow.fmt(f)
    }
}
