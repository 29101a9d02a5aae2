//! A node tells its state to whoever may ask: `taut status`, or [`nodes`] from code.
//!
//! Each node listens on a Unix socket in a directory of its user's, writes one JSON document to whoever connects, and
//! closes. Only the same user and root can connect; a control process tells everybody. The thread that does so sleeps
//! otherwise, has no real-time priority, and touches nothing of the data path but its counters.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::SocketType;
use tautline_state::{Directory, EntryKind};

use super::NodeStatus;
use crate::runtime::{self, Room};
use crate::sys::event::Event;
use crate::sys::foreign::{ForeignListener, ForeignSocket};
use crate::sys::wait;

/// Askers that can wait for a node to come to them. Lower: some are refused. Higher: a stopped one keeps more waiting.
const ASKERS_MAX: i32 = 16;
/// How long an asker may take to read, or an asked node to answer, in all. Lower: a busy machine's nodes seem dead.
/// Higher: `taut status` hangs on a stopped process for that long.
const TIME_LIMIT: Duration = Duration::from_secs(1);
/// Most bytes of one answer: a node with all ports open and all peers known is below 8 MiB.
const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// Pause where there is no descriptor for one who asks.
const NO_DESCRIPTOR_PAUSE: Duration = Duration::from_millis(250);

thread_local! {
    /// Whether this thread answers for a node.
    static IS_STATUS_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Tells the status of one node until dropped.
#[derive(Debug)]
pub(crate) struct StatusServer {
    room: Directory,
    name: String,
    stop: Arc<Event>,
    thread: Option<JoinHandle<()>>,
    /// The process that the thread is in: a forked one has none.
    process: u32,
}

impl StatusServer {
    /// Starts to answer for a node with its status.
    pub(crate) fn start<N: Send + Sync + 'static>(
        node: Weak<N>,
        status: fn(&N) -> NodeStatus,
    ) -> io::Result<Self> {
        let name = own_name();
        let kind = SocketType::STREAM;
        let (room, listener) = runtime::listen(Room::Nodes, &name, kind, 0o600, ASKERS_MAX)?;
        let mut server = Self {
            room,
            name,
            stop: Arc::new(Event::new()?),
            thread: None,
            process: std::process::id(),
        };
        let stop = Arc::clone(&server.stop);
        let listener = ForeignListener::new(listener);
        let thread = std::thread::Builder::new()
            .name("taut-status".to_owned())
            .spawn(move || serve(&listener, &stop, &node, status))?;
        server.thread = Some(thread);
        Ok(server)
    }
}

/// A name that no other node has, nor had.
fn own_name() -> String {
    use std::hash::{BuildHasher, Hasher};
    // Seeded by the kernel.
    let random = std::hash::RandomState::new().build_hasher().finish();
    format!("{}-{random:016x}", std::process::id())
}

fn serve<N>(
    listener: &ForeignListener,
    stop: &Event,
    node: &Weak<N>,
    status: fn(&N) -> NodeStatus,
) {
    IS_STATUS_THREAD.set(true);
    // The thread that opened the node may be a real-time one; this one never is.
    let _unchanged = tautline_state::policy::set_policy(0, libc::SCHED_OTHER, 0);
    let Ok(either) = wait::either(&[listener.as_fd(), stop.as_fd()]) else {
        return;
    };
    while wait::readable(either.as_fd(), None).is_ok() {
        let accepted = listener.accept();
        let Some(node) = node.upgrade() else {
            return;
        };
        match accepted {
            // An asker that went away is its own affair.
            Ok(Some(asker)) => drop(answer(&asker, &status(&node))),
            Ok(None) => {}
            Err(_) => std::thread::sleep(NO_DESCRIPTOR_PAUSE),
        }
    }
}

fn answer(asker: &ForeignSocket, status: &NodeStatus) -> io::Result<()> {
    let mut document = &serde_json::to_vec(status)?[..];
    let mut stream = UnixStream::from(asker.as_fd().try_clone_to_owned()?);
    stream.set_nonblocking(false)?;
    let deadline = Instant::now() + TIME_LIMIT;
    while !document.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        let written = stream.write(document)?;
        document = &document[written..];
    }
    Ok(())
}

fn left(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.process != std::process::id() {
            // A thread of the parent's, which this process does not have.
            std::mem::forget(thread);
            return;
        }
        self.stop.ring();
        let _gone_already = self.room.remove(&self.name);
        // The thread holds the node while it answers, so it waits for nobody here; it drops the node itself if that
        // was the last hold.
        if let Some(thread) = thread.filter(|_| !IS_STATUS_THREAD.get()) {
            let _ended = thread.join();
        }
    }
}

/// The states of the nodes in this network namespace that this user may ask, as they describe themselves: its own, and
/// control processes; for root those of all users in `/run/user` too. A node that does not answer in time is left out
/// and named in the second list.
///
/// # Errors
/// If the nodes' directory is not this user's own.
pub fn nodes() -> io::Result<(Vec<serde_json::Value>, Vec<String>)> {
    let mut states = Vec::new();
    let mut silent = Vec::new();
    let control = runtime::find(Room::Control);
    let nodes = runtime::find(Room::Nodes).into_iter();
    let rooms = control.into_iter().chain(nodes);
    for room in rooms.chain(runtime::find_of_users(Room::Nodes)) {
        for entry in room.entries()? {
            let name = entry.name.to_string_lossy().into_owned();
            let is_status = entry.kind == EntryKind::Socket
                && !name.starts_with('.')
                && !name.starts_with(CLIENTS);
            if !is_status {
                continue;
            }
            let deadline = Instant::now() + TIME_LIMIT;
            match runtime::connect(&room, &name, SocketType::STREAM, deadline) {
                Ok(Some(socket)) => match ask(socket, deadline) {
                    Ok(state) => states.push(state),
                    Err(_) => silent.push(name),
                },
                // Left by a process that was killed.
                Ok(None) => drop(room.remove(&name)),
                // Another user's.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(_) => silent.push(name),
            }
        }
    }
    Ok((states, silent))
}

/// How the names of sockets begin that tell no status.
const CLIENTS: &str = "clients-";

fn ask(socket: OwnedFd, deadline: Instant) -> io::Result<serde_json::Value> {
    let mut stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    let mut document = Vec::new();
    let mut part = [0; 65_536];
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut part)? {
            0 => break,
            bytes => document.extend_from_slice(&part[..bytes]),
        }
        if document.len() as u64 > ANSWER_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(printable(serde_json::from_slice(&document)?))
}

/// The same without characters that a terminal takes for commands, or that turn the order of what is printed: a node
/// says what it likes.
fn printable(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::String(text) => Value::String(text.chars().map(shown).collect()),
        Value::Array(values) => Value::Array(values.into_iter().map(printable).collect()),
        Value::Object(values) => {
            let shown_key = |key: String| key.chars().map(shown).collect();
            let values = values.into_iter();
            Value::Object(
                values
                    .map(|(key, value)| (shown_key(key), printable(value)))
                    .collect(),
            )
        }
        other => other,
    }
}

fn shown(character: char) -> char {
    let turns = matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    match character.is_control() || turns {
        true => char::REPLACEMENT_CHARACTER,
        false => character,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_node_says_moves_no_cursor() {
        let said =
            json!({"command": "\u{1b}[2Jx\u{9b}31m", "list": ["a\nb", 7], "\u{202e}key": null});
        let shown = json!({"command": "\u{fffd}[2Jx\u{fffd}31m", "list": ["a\u{fffd}b", 7], "\u{fffd}key": null});
        assert_eq!(printable(said), shown);
    }

    #[test]
    fn an_answer_that_trickles_is_given_up_as_a_whole() {
        let (asked, mut telling) = UnixStream::pair().unwrap();
        let told = std::thread::spawn(move || {
            // A byte every fifth of the limit would go on for ever.
            while telling.write_all(b" ").is_ok() {
                std::thread::sleep(TIME_LIMIT / 5);
            }
        });
        assert!(ask(asked.into(), Instant::now() + TIME_LIMIT).is_err());
        told.join().unwrap();
    }
}
