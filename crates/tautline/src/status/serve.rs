//! A node reports its state to permitted clients: `taut status`, or [`nodes`] from code.
//!
//! Each node listens on a Unix socket in a directory of its user's, writes one JSON document to each client, and
//! closes. Only the same user and root can connect; a control process tells everybody. The thread that does so sleeps
//! otherwise, has no real-time priority, and touches nothing of the data path but its counters. A client that writes
//! [`WATCH`] first has the ports' latencies measured for some seconds, and is told the newest values of typed ports.

use std::io::{self, BufWriter, Write};
use std::sync::Weak;
use std::time::{Duration, Instant};

use rustix::net::SocketType;
use serde::Serialize;
use tautline_state::query::{
    Admission, Client, Clients, Limits, Next, Query, Reply, Share, StateServer, hear,
};
use tautline_state::{Directory, EntryKind, text};

use super::NodeStatus;
use crate::runtime::{self, Room};

/// Clients that can wait for a node to come to them. Lower: some are refused. Higher: a stopped one keeps more waiting.
const ASKERS_MAX: i32 = 16;
/// How long an asked node may say nothing. Lower: a busy machine's nodes seem dead. Higher: `taut status` hangs on a
/// stopped process for that long.
const TIME_LIMIT: Duration = Duration::from_secs(1);
/// How long an answer may take in all. Lower: a node of thousands of ports is not shown on a busy machine. Higher: one
/// that trickles holds its asker up for longer.
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
/// Functions of a node that its askers are answered with.
pub(crate) struct Told<N> {
    pub(crate) status: fn(&N) -> NodeStatus,
    /// Its state with the newest values of typed ports, for watchers.
    pub(crate) status_with_values: fn(&N) -> NodeStatus,
    /// Switches the measurement of its ports' latencies.
    pub(crate) measure_latency: fn(&N, bool),
    /// Has captures see the frames that it sends, or not.
    pub(crate) show_frames: fn(&N, bool),
}

#[derive(Debug)]
pub(crate) struct StatusServer {
    room: Directory,
    name: String,
    teller: StateServer,
}

impl StatusServer {
    pub(crate) fn start<N: Send + Sync + 'static>(
        node: Weak<N>,
        told: Told<N>,
    ) -> io::Result<Self> {
        let name = own_name();
        let kind = SocketType::STREAM;
        let (room, listener) = runtime::listen(Room::Nodes, &name, kind, 0o600, ASKERS_MAX)?;
        let serve = move |askers: &Clients| serve(askers, &node, &told);
        match StateServer::start("taut-status", listener, Admission::ByFile, serve) {
            Ok(teller) => Ok(Self { room, name, teller }),
            Err(error) => {
                let _gone_already = room.remove(&name);
                Err(error)
            }
        }
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        // In a forked process, the node is still the parent's.
        if self.teller.is_of_this_process() {
            let _gone_already = self.room.remove(&self.name);
        }
    }
}

/// A name that no other node has, nor had.
fn own_name() -> String {
    use std::hash::{BuildHasher, Hasher};
    // Seeded by the kernel.
    let random = std::hash::RandomState::new().build_hasher().finish();
    format!("{}-{random:016x}", std::process::id())
}

fn serve<N>(askers: &Clients, node: &Weak<N>, told: &Told<N>) {
    // When latencies are measured no more, and when frames are hidden again.
    let mut ends: [Option<Instant>; 2] = [None; 2];
    let switches = [told.measure_latency, told.show_frames];
    loop {
        let until = ends.iter().copied().flatten().min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let next = askers.next(left);
        // Held for the length of an answer: it may be the last hold.
        let (false, Some(node)) = (matches!(next, Next::Stop), node.upgrade()) else {
            return;
        };
        for (until, switch) in ends.iter_mut().zip(switches) {
            if until.is_some_and(|until| until <= Instant::now()) {
                switch(&node, false);
                *until = None;
            }
        }
        let Next::Client(asker) = next else { continue };
        let request = request(&asker);
        // An asker that went away is its own affair.
        let _gone = match request {
            Request::Status => answer(&asker, &(told.status)(&node)),
            Request::Watch => {
                ends[0] = Some(Instant::now() + WATCH_TIME);
                // Also of ports that were opened since the last request.
                (told.measure_latency)(&node, true);
                answer(&asker, &(told.status_with_values)(&node))
            }
            Request::Frames => {
                ends[1] = Some(Instant::now() + WATCH_TIME);
                (told.show_frames)(&node, true);
                answer(&asker, &())
            }
        };
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Status,
    /// The status, with latencies measured and newest values.
    Watch,
    /// Frames that are sent, shown to captures.
    Frames,
}

/// Wishes of an asker. One who only wants the status shuts down its side at once.
fn request(asker: &Client<'_>) -> Request {
    let mut bytes = [0; FRAMES.len()];
    match asker.question(&mut bytes, REQUEST_LIMIT, |_| true) {
        WATCH => Request::Watch,
        FRAMES => Request::Frames,
        _ => Request::Status,
    }
}

fn answer(asker: &Client<'_>, status: &impl Serialize) -> io::Result<()> {
    // It begins while the rest is still to be put into words: the client sees that the node lives.
    let mut answer = BufWriter::with_capacity(PART_BYTES, asker.answer());
    serde_json::to_writer(&mut answer, status)?;
    answer.flush()
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

/// States of [`nodes`] with the newest value of each sampling port that has a type. Asks the nodes to measure the
/// latencies of their ports for the next five seconds, too. That takes each port a reading of the clock a message;
/// `docs/decisions/0051-latency-is-measured-while-watched.md` has the figures.
///
/// # Errors
/// Those of [`nodes`].
pub fn nodes_with_latency() -> io::Result<(Vec<serde_json::Value>, Vec<String>)> {
    ask_all(WATCH)
}

/// Asks all at once, so that one that does not answer delays no other.
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
    let states = ask(rooms, request, &mut silent)?;
    Ok((states, silent))
}

/// Has the nodes in this network namespace that this user may ask show the frames that they send to packet sockets that
/// listen to all, for the next five seconds. That concerns link `packet`, which otherwise sends past them.
///
/// # Errors
/// If the nodes' directory is not this user's own.
pub fn show_frames() -> io::Result<()> {
    ask(node_rooms(), FRAMES, &mut Vec::new()).map(drop)
}

/// A directory of sockets at which programs report a state.
struct AskedRoom {
    directory: Directory,
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
    request: &[u8],
    silent: &mut Vec<String>,
) -> io::Result<Vec<serde_json::Value>> {
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
            true => (NODES_OF_ANOTHER_MAX, Some(Share::new(BYTES_OF_ANOTHER_MAX))),
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
                    let one = Query::new(name, socket, is_asked.then_some(request));
                    asked.push(one.within(together.as_ref()));
                }
                // Left by a process that was killed.
                Ok(None) => drop(room.remove(&name)),
                // Another user's.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(_) => silent.push(name),
            }
        }
    }
    let limits = Limits {
        silence: TIME_LIMIT,
        deadline: begun + ANSWER_LIMIT,
        answer_bytes: ANSWER_BYTES_MAX,
    };
    let mut told = Vec::with_capacity(asked.len());
    // Understood when all have been heard: large answers take a while.
    for (name, heard) in hear(asked, &limits)? {
        match state(heard) {
            Some(state) => told.push(state),
            None => silent.push(name),
        }
    }
    Ok(told)
}

/// How the names of sockets begin that tell no status.
const CLIENTS: &str = "clients-";

/// The state that a node has told, if it has.
fn state(heard: Reply) -> Option<serde_json::Value> {
    let Reply::Whole(document) = heard else {
        return None;
    };
    let mut state = serde_json::from_slice(&document).ok()?;
    // A node says what it likes.
    text::clean(&mut state, usize::MAX, usize::MAX);
    Some(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    #[test]
    fn what_a_node_says_moves_no_cursor() {
        let heard = Reply::Whole(br#"{"command": "\u001b[2J"}"#.to_vec());
        assert_eq!(state(heard), Some(json!({"command": "\u{fffd}[2J"})));
        assert_eq!(state(Reply::Whole(Vec::new())), None);
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
                let mut silent = Vec::new();
                let answers = ask(rooms, &[], &mut silent).unwrap();
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
    fn a_link_to_a_socket_elsewhere_is_not_followed() {
        let elsewhere = tautline_state::TemporaryDirectory::make("taut-status").unwrap();
        let secret = UnixListener::bind(elsewhere.path().join("control")).unwrap();
        secret.set_nonblocking(true).unwrap();
        let made = tautline_state::TemporaryDirectory::make("taut-status").unwrap();
        std::os::unix::fs::symlink(elsewhere.path().join("control"), made.path().join("7"))
            .unwrap();
        let room = Directory::open(made.path()).unwrap();
        let connected = runtime::connect(&room, "7", SocketType::STREAM, Instant::now());
        assert!(connected.unwrap_err().to_string().contains("link"));
        assert!(secret.accept().is_err(), "nothing came");
    }

    #[test]
    fn an_answer_with_a_descriptor_that_lingers_holds_nobody_up() {
        use crate::sys::unix;
        use std::os::fd::AsFd;
        use tautline_testbed::lingering;

        let made = tautline_state::TemporaryDirectory::make("taut-status").unwrap();
        let listen = |name: &str| UnixListener::bind(made.path().join(name)).unwrap();
        let honest = listen("honest");
        for number in 0..40 {
            let hostile = listen(&number.to_string());
            std::thread::spawn(move || {
                let (asker, _) = hostile.accept().unwrap();
                let (stream, other) = lingering();
                if unix::send(asker.as_fd(), b"{", &[stream.as_fd()]).is_err() {
                    // Refused: this process is not to close it either.
                    std::mem::forget(stream);
                }
                std::mem::forget((asker, other));
            });
        }
        std::thread::spawn(move || honest.accept().unwrap().0.write_all(b"7").unwrap());
        let room = AskedRoom {
            directory: Directory::open(made.path()).unwrap(),
            is_asked: true,
            is_of_another: true,
        };
        let mut silent = Vec::new();
        let begun = Instant::now();
        let answers = ask([room].into_iter(), &[], &mut silent).unwrap();
        assert!(begun.elapsed() < ANSWER_LIMIT * 2, "{:?}", begun.elapsed());
        assert_eq!(answers, [json!(7)]);
        assert_eq!(silent.len(), 40);
    }
}
