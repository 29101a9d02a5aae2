//! A node tells its state to whoever may ask: `taut status`, or [`nodes`] from code.
//!
//! Each node listens on a Unix socket in a directory of its user's, writes one JSON document to whoever connects, and
//! closes. Only the same user and root can connect; a control process tells everybody. The thread that does so sleeps
//! otherwise, has no real-time priority, and touches nothing of the data path but its counters. Whoever writes
//! [`WATCH`] first has the ports' latencies measured for some seconds, and is told the newest values of typed ports.

use std::cell::Cell;
use std::io::{self, BufWriter, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::SocketType;
use serde::Serialize;
use tautline_state::{Directory, EntryKind, text};

use super::NodeStatus;
use super::reads::{self, ReadPort, ReadsTold};
use crate::runtime::{self, Room};
use crate::sys::event::Event;
use crate::sys::foreign::{ForeignListener, ForeignSocket};
use crate::sys::wait;

/// Askers that can wait for a node to come to them. Lower: some are refused. Higher: a stopped one keeps more waiting.
const ASKERS_MAX: i32 = 16;
/// How long an asker may read nothing, and an asked node say nothing. Lower: a busy machine's nodes seem dead. Higher:
/// `taut status` hangs on a stopped process for that long.
const TIME_LIMIT: Duration = Duration::from_secs(1);
/// How long an answer may take in all. Lower: a node of thousands of ports is not shown on a busy machine. Higher: one
/// that trickles holds its asker up for longer, and an asker that trickles holds up the others.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Bytes of an answer that are written at once. Lower: more system calls. Higher: a large answer begins later.
const PART_BYTES: usize = 64 << 10;
/// Most bytes of one answer. Lower: a node with all 4,095 ports open, all peers known and latencies of all lengths,
/// 50 MB, is not shown. Higher: a hostile one takes more of the asker's memory.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Nodes of another user that root asks. Lower: some of an honest user's are not shown. Higher: a hostile one takes
/// more of the asker's descriptors.
const NODES_OF_ANOTHER_MAX: usize = 64;
/// Most bytes of the answers of all nodes of another user together. Lower: nodes with hundreds of ports are not shown
/// to root. Higher: a hostile user takes more of the asker's memory, up to 25 times this.
const BYTES_OF_ANOTHER_MAX: u64 = 4 << 20;
/// Request of an asker that wants latencies measured and newest values, too.
const WATCH: &[u8] = b"watch";
/// Request of one who captures: frames that the node sends are to be seen.
const FRAMES: &[u8] = b"frames";
/// Time for which latencies are measured, or frames shown, after such a request. Lower: a watcher that asks once a
/// second and is late once misses some. Higher: a port pays for longer after its watcher has gone.
const WATCH_TIME: Duration = Duration::from_secs(5);
/// Time that an asker has to say what it wants. Lower: on a busy machine a request is not seen. Higher: one who says
/// nothing holds the others up for longer.
const REQUEST_LIMIT: Duration = Duration::from_millis(50);
/// Pause where there is no descriptor for one who asks.
const NO_DESCRIPTOR_PAUSE: Duration = Duration::from_millis(250);

thread_local! {
    /// Whether this thread answers for a node.
    static IS_STATUS_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Functions of a node that its askers are answered with.
pub(crate) struct Told<N> {
    /// Its state.
    pub(crate) status: fn(&N) -> NodeStatus,
    /// Its state with the newest values of typed ports, for watchers.
    pub(crate) status_with_values: fn(&N) -> NodeStatus,
    /// The reads of a port from a number on, which it notes from now on.
    pub(crate) reads_since: fn(&N, ReadPort, u64) -> Option<ReadsTold>,
    /// Switches the measurement of its ports' latencies.
    pub(crate) measure_latency: fn(&N, bool),
    /// Has frames that it sends seen by whoever captures, or not.
    pub(crate) show_frames: fn(&N, bool),
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
    /// Starts to answer for a node.
    pub(crate) fn start<N: Send + Sync + 'static>(
        node: Weak<N>,
        told: Told<N>,
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
            .spawn(move || serve(&listener, &stop, &node, &told))?;
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

fn serve<N>(listener: &ForeignListener, stop: &Event, node: &Weak<N>, told: &Told<N>) {
    IS_STATUS_THREAD.set(true);
    // The thread that opened the node may be a real-time one; this one never is.
    let _unchanged = tautline_state::policy::set_policy(0, libc::SCHED_OTHER, 0);
    let Ok(either) = wait::either(&[listener.as_fd(), stop.as_fd()]) else {
        return;
    };
    let mut watched_until: Option<Instant> = None;
    let mut shown_until: Option<Instant> = None;
    loop {
        let until = watched_until.into_iter().chain(shown_until).min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if wait::readable(either.as_fd(), left).is_err() {
            return;
        }
        let accepted = listener.accept();
        let Some(node) = node.upgrade() else {
            return;
        };
        if watched_until.is_some_and(|until| until <= Instant::now()) {
            (told.measure_latency)(&node, false);
            watched_until = None;
        }
        if shown_until.is_some_and(|until| until <= Instant::now()) {
            (told.show_frames)(&node, false);
            shown_until = None;
        }
        match accepted {
            Ok(Some(asker)) => {
                let request = request(&asker);
                if !matches!(request, Request::Status | Request::Frames) {
                    watched_until = Some(Instant::now() + WATCH_TIME);
                }
                // An asker that went away is its own affair.
                let _gone = match request {
                    Request::Status => answer(&asker, &(told.status)(&node)),
                    Request::Watch => {
                        // Also of ports that were opened since the last request.
                        (told.measure_latency)(&node, true);
                        answer(&asker, &(told.status_with_values)(&node))
                    }
                    Request::Frames => {
                        shown_until = Some(Instant::now() + WATCH_TIME);
                        (told.show_frames)(&node, true);
                        answer(&asker, &())
                    }
                    Request::Reads(port, seen) => {
                        answer(&asker, &(told.reads_since)(&node, port, seen))
                    }
                };
            }
            Ok(None) => {}
            Err(_) => std::thread::sleep(NO_DESCRIPTOR_PAUSE),
        }
    }
}

/// Wishes of an asker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// The status.
    Status,
    /// The status, with latencies measured and newest values.
    Watch,
    /// Frames that are sent, shown to whoever captures.
    Frames,
    /// The reads of a port.
    Reads(ReadPort, u64),
}

/// Wishes of an asker. One who only wants the status shuts down its side at once.
fn request(asker: &ForeignSocket) -> Request {
    if wait::readable(asker.as_fd(), Some(REQUEST_LIMIT)).is_err() {
        return Request::Status;
    }
    let mut bytes = [0; reads::REQUEST_BYTES];
    let length = asker.receive(&mut bytes).unwrap_or(0);
    match &bytes[..length] {
        WATCH => Request::Watch,
        FRAMES => Request::Frames,
        other => {
            reads::wanted(other).map_or(Request::Status, |(port, seen)| Request::Reads(port, seen))
        }
    }
}

fn answer(asker: &ForeignSocket, status: &impl Serialize) -> io::Result<()> {
    let stream = UnixStream::from(asker.as_fd().try_clone_to_owned()?);
    stream.set_nonblocking(false)?;
    let deadline = Instant::now() + ANSWER_LIMIT;
    // It begins while the rest is still to be put into words: whoever asks sees that the node lives.
    let mut answer = BufWriter::with_capacity(PART_BYTES, BoundedStream { stream, deadline });
    serde_json::to_writer(&mut answer, status)?;
    answer.flush()
}

/// A stream that is written to until a deadline, each time for [`TIME_LIMIT`] at most.
struct BoundedStream {
    stream: UnixStream,
    deadline: Instant,
}

impl Write for BoundedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let time = left(self.deadline)?.min(TIME_LIMIT);
        self.stream.set_write_timeout(Some(time))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
/// control processes; for root those of all users in `/run/user` too. A node that says nothing for a second, or has not
/// said all within five, is left out and named in the second list.
///
/// # Errors
/// If the nodes' directory is not this user's own.
pub fn nodes() -> io::Result<(Vec<serde_json::Value>, Vec<String>)> {
    ask_all(&[])
}

/// The same with the newest value of each sampling port that has a type. Asks the nodes to measure the latencies of
/// their ports for the next five seconds, too. That takes each port
/// a reading of the clock a message; `docs/decisions/0051-latency-is-measured-while-watched.md` has the figures.
///
/// # Errors
/// As [`nodes`].
pub fn nodes_with_latency() -> io::Result<(Vec<serde_json::Value>, Vec<String>)> {
    ask_all(WATCH)
}

/// Asks all at once, so that one that does not answer holds nobody up.
fn ask_all(request: &[u8]) -> io::Result<(Vec<serde_json::Value>, Vec<String>)> {
    let control = runtime::find(Room::Control);
    // A control process is asked nothing: its answer comes at once.
    let control = control.into_iter().map(|directory| AskedRoom {
        directory,
        is_asked: false,
        is_of_another: false,
    });
    let rooms = control.chain(node_rooms());
    let mut silent = Vec::new();
    let states = ask(rooms, |_| request.to_vec(), &mut silent)?;
    Ok((states.into_iter().map(|(_, state)| state).collect(), silent))
}

/// Asks the nodes alone, each by the name of its socket, and gives that name with each answer.
pub(super) fn ask_nodes(
    request: impl Fn(&str) -> Vec<u8>,
) -> io::Result<Vec<(String, serde_json::Value)>> {
    ask(node_rooms(), request, &mut Vec::new())
}

/// Has the nodes in this network namespace that this user may ask show the frames that they send to packet sockets that
/// listen to all, for the next five seconds. That concerns link `packet`, which otherwise sends past them.
///
/// # Errors
/// If the nodes' directory is not this user's own.
pub fn show_frames() -> io::Result<()> {
    ask_nodes(|_| FRAMES.to_vec()).map(drop)
}

/// A directory of sockets at which somebody tells a state.
struct AskedRoom {
    directory: Directory,
    /// Whether a request is sent.
    is_asked: bool,
    /// Whether a user made it who is neither root nor this process's.
    is_of_another: bool,
}

fn node_rooms() -> impl Iterator<Item = AskedRoom> {
    let room = |is_of_another| {
        move |directory| AskedRoom {
            directory,
            is_asked: true,
            is_of_another,
        }
    };
    let own = runtime::find(Room::Nodes).into_iter().map(room(false));
    let of_users = runtime::find_of_users(Room::Nodes).into_iter();
    own.chain(of_users.map(room(true)))
}

fn ask(
    rooms: impl Iterator<Item = AskedRoom>,
    request: impl Fn(&str) -> Vec<u8>,
    silent: &mut Vec<String>,
) -> io::Result<Vec<(String, serde_json::Value)>> {
    let mut asked = Vec::new();
    let begun = Instant::now();
    for AskedRoom {
        directory: room,
        is_asked,
        is_of_another,
    } in rooms
    {
        let entries = match room.entries() {
            Ok(entries) => entries,
            Err(_) if is_of_another => {
                silent.push(room.path().display().to_string());
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let (count_max, together) = match is_of_another {
            true => (NODES_OF_ANOTHER_MAX, Some(Rc::default())),
            false => (usize::MAX, None),
        };
        let sockets = entries
            .into_iter()
            .filter(|entry| entry.kind == EntryKind::Socket);
        let names = sockets.map(|entry| entry.name.to_string_lossy().into_owned());
        let names = names.filter(|name| !name.starts_with('.') && !name.starts_with(CLIENTS));
        for name in names.take(count_max) {
            match runtime::connect(&room, &name, SocketType::STREAM, begun + TIME_LIMIT) {
                Ok(Some(socket)) => {
                    let request = is_asked.then(|| request(&name));
                    match Asked::new(name.clone(), socket, request.as_deref()) {
                        Ok(mut one) => {
                            one.together.clone_from(&together);
                            asked.push(one);
                        }
                        Err(_) => silent.push(name),
                    }
                }
                // Left by a process that was killed.
                Ok(None) => drop(room.remove(&name)),
                // Another user's.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(_) => silent.push(name),
            }
        }
    }
    answers(asked, begun + ANSWER_LIMIT, silent)
}

/// How the names of sockets begin that tell no status.
const CLIENTS: &str = "clients-";

/// A node that has been asked, and its answer so far.
struct Asked {
    name: String,
    stream: UnixStream,
    document: Vec<u8>,
    /// When it said something last, or was asked.
    heard: Instant,
    /// Bytes that all nodes of its user have said, if that is another user.
    together: Option<Rc<Cell<u64>>>,
}

impl Asked {
    fn new(name: String, socket: OwnedFd, request: Option<&[u8]>) -> io::Result<Self> {
        let mut stream = UnixStream::from(socket);
        stream.set_nonblocking(true)?;
        if let Some(request) = request {
            // One that has gone away shows when its answer is read.
            let _gone = stream.write(request);
            let _gone = stream.shutdown(Shutdown::Write);
        }
        Ok(Self {
            name,
            stream,
            document: Vec::new(),
            heard: Instant::now(),
            together: None,
        })
    }

    /// Reads what there is; whether that was the end.
    fn read(&mut self) -> io::Result<bool> {
        let mut part = [0; 65_536];
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => return Ok(true),
                Ok(bytes) => {
                    self.document.extend_from_slice(&part[..bytes]);
                    if let Some(said) = &self.together {
                        said.set(said.get() + bytes as u64);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            let together = self.together.as_ref().map_or(0, |said| said.get());
            if self.document.len() as u64 > ANSWER_BYTES_MAX || together > BYTES_OF_ANOTHER_MAX {
                self.document = Vec::new();
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }

    fn state(&self) -> io::Result<serde_json::Value> {
        let mut state = serde_json::from_slice(&self.document)?;
        // A node says what it likes.
        text::clean(&mut state, usize::MAX, usize::MAX);
        Ok(state)
    }
}

/// Answers of nodes, in the order in which they were asked, until the deadline. The names of those that gave none, or
/// said nothing for [`TIME_LIMIT`], are added to `silent`.
fn answers(
    mut asked: Vec<Asked>,
    deadline: Instant,
    silent: &mut Vec<String>,
) -> io::Result<Vec<(String, serde_json::Value)>> {
    let mut is_whole = vec![false; asked.len()];
    let mut open: Vec<usize> = (0..asked.len()).collect();
    loop {
        let now = Instant::now();
        open.retain(|place| now < (asked[*place].heard + TIME_LIMIT).min(deadline));
        let ends = open.iter().map(|place| asked[*place].heard + TIME_LIMIT);
        let Some(end) = ends.min() else {
            break;
        };
        let Ok(left) = left(end.min(deadline)) else {
            continue;
        };
        let streams: Vec<_> = open
            .iter()
            .map(|place| asked[*place].stream.as_fd())
            .collect();
        let readable = wait::which_readable(&streams, Some(left))?;
        let mut is_readable = readable.into_iter();
        open.retain(|place| {
            if !is_readable.next().unwrap_or_default() {
                return true;
            }
            let one = &mut asked[*place];
            one.heard = Instant::now();
            match one.read() {
                Ok(false) => return true,
                Ok(true) => is_whole[*place] = true,
                Err(_) => {}
            }
            false
        });
    }
    let mut told = Vec::with_capacity(asked.len());
    // Understood when all have been heard: large answers take a while.
    for (one, is_whole) in asked.into_iter().zip(is_whole) {
        match one.state().ok().filter(|_| is_whole) {
            Some(state) => told.push((one.name, state)),
            None => silent.push(one.name),
        }
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    #[test]
    fn what_a_node_says_moves_no_cursor() {
        let (asked, mut telling) = UnixStream::pair().unwrap();
        telling.write_all(br#"{"command": "\u001b[2J"}"#).unwrap();
        drop(telling);
        let mut node = Asked::new("node".to_owned(), asked.into(), None).unwrap();
        assert!(node.read().unwrap());
        assert_eq!(node.state().unwrap(), json!({"command": "\u{fffd}[2J"}));
    }

    #[test]
    fn one_that_says_something_is_heard_out() {
        let (asked, mut telling) = UnixStream::pair().unwrap();
        let told = std::thread::spawn(move || {
            // Longer in all than one may be silent.
            for part in [&b"["[..], b"1", b",", b"2", b"]"] {
                std::thread::sleep(TIME_LIMIT / 4);
                telling.write_all(part).unwrap();
            }
        });
        let slow = Asked::new("slow".to_owned(), asked.into(), None).unwrap();
        let (asked, _telling) = UnixStream::pair().unwrap();
        let stopped = Asked::new("stopped".to_owned(), asked.into(), None).unwrap();
        let (deadline, mut silent) = (Instant::now() + ANSWER_LIMIT, Vec::new());
        let states = answers(vec![slow, stopped], deadline, &mut silent).unwrap();
        assert_eq!(states, [("slow".to_owned(), json!([1, 2]))]);
        assert_eq!(silent, ["stopped"]);
        told.join().unwrap();
    }

    #[test]
    fn another_user_takes_no_more_than_a_share() {
        let made = tautline_state::TemporaryDirectory::make("taut-status").unwrap();
        let room = |is_of_another| AskedRoom {
            directory: Directory::open(made.path()).unwrap(),
            is_asked: true,
            is_of_another,
        };
        let listen = |number: usize| UnixListener::bind(made.path().join(number.to_string()));
        let listeners: Vec<_> = (0..80).map(|number| listen(number).unwrap()).collect();
        let answer = |bytes: usize| {
            let answered = |listener: &UnixListener| {
                listener.set_nonblocking(true).unwrap();
                let Ok((mut asker, _)) = listener.accept() else {
                    return;
                };
                asker.set_nonblocking(false).unwrap();
                // One that has said too much is hung up on.
                let _gone = asker.write_all(format!("{}7", " ".repeat(bytes)).as_bytes());
            };
            listeners.iter().for_each(answered);
        };
        let asked = |is_of_another, bytes| {
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let answering = scope.spawn(|| {
                    while !done.load(Relaxed) {
                        answer(bytes);
                    }
                });
                let rooms = [room(is_of_another)].into_iter();
                let (mut silent, request) = (Vec::new(), |_: &str| Vec::new());
                let answers = ask(rooms, request, &mut silent).unwrap();
                done.store(true, Relaxed);
                answering.join().unwrap();
                (answers.len(), silent.len())
            })
        };
        assert_eq!(asked(false, 0), (80, 0));
        assert_eq!(asked(true, 0), (NODES_OF_ANOTHER_MAX, 0));
        let (heard, silent) = asked(true, (BYTES_OF_ANOTHER_MAX / 8) as usize);
        assert_eq!(heard + silent, NODES_OF_ANOTHER_MAX);
        assert!(heard < 8, "{heard}");
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
        let trickles = Asked::new("trickles".to_owned(), asked.into(), None).unwrap();
        let (asked, mut telling) = UnixStream::pair().unwrap();
        let prompt = Asked::new("prompt".to_owned(), asked.into(), None).unwrap();
        telling.write_all(b"7").unwrap();
        drop(telling);
        let (deadline, mut silent) = (Instant::now() + TIME_LIMIT, Vec::new());
        let states = answers(vec![trickles, prompt], deadline, &mut silent).unwrap();
        let expected = [("prompt".to_owned(), json!(7))];
        assert_eq!(states, expected, "the one is not held up by the other");
        assert_eq!(silent, ["trickles"]);
        told.join().unwrap();
    }
}
