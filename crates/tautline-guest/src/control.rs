//! Guests as other processes see them: each has a socket in the runtime directory, for its user and root.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use tautline_state::{Directory, EntryKind, Owner};

use crate::error::GuestError;
use crate::figures::{GuestStatus, State};
use crate::run::Shared;
use crate::sys::Event;

/// Directory below the runtime directory.
const DIRECTORY: &str = "guests";
/// Time for a question and for its answer; in a list, for those of all guests of a user. Lower: a busy machine's guests
/// seem to be silent. Higher: a stopped one holds up a list of all.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Time for a guest to end, or to begin again. Lower: on a busy machine it is said to have failed.
const CHANGE_MAX: Duration = Duration::from_secs(30);
const CHANGE_LOOK: Duration = Duration::from_millis(20);
/// Longest answer. Lower: 32 ports do not fit. Higher: somebody who answers without end fills our memory.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Longest question.
const QUESTION_BYTES_MAX: usize = 16;
/// Guests of one user that are listed at most. Lower: some are not seen. Higher: a user can keep root's `taut` busy.
const GUESTS_MAX: usize = 64;
/// Sockets of one user that are tried at most, those of killed guests among them. Lower: guests are not seen where many
/// were killed since the last start. Higher: a user can keep root's `taut` busy.
const SOCKETS_MAX: usize = 4096;
/// Time for which the directory may be locked by another process of the user.
const LOCK_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Question {
    Status,
    Stop,
    Restart,
}

/// The thread that answers for a guest. Dropped, it ends, and the guest is no longer listed.
pub(crate) struct Service {
    directory: Directory,
    name: String,
    stop: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    pub(crate) fn start(name: &str, shared: &Arc<Shared>) -> Result<Service, GuestError> {
        let runtime = tautline_state::runtime_directory()?;
        let (directory, _) = runtime.make_below(DIRECTORY, 0o700, Owner::SelfOrRoot)?;
        let failed = GuestError::system("making the guest's socket");
        let listener = {
            let _lock = directory.lock(LOCK_MAX)?;
            sweep(&directory);
            free(&directory, name)?;
            UnixListener::bind(directory.reachable(name)?).map_err(&failed)?
        };
        listener.set_nonblocking(true).map_err(&failed)?;
        let stop = Arc::new(Event::new().map_err(&failed)?);
        let thread = {
            let (shared, stop) = (Arc::clone(shared), Arc::clone(&stop));
            std::thread::Builder::new()
                .name("taut-guest-ask".to_owned())
                .spawn(move || serve(&listener, &shared, &stop))
                .map_err(&failed)?
        };
        Ok(Service {
            directory,
            name: name.to_owned(),
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // While somebody listens, nobody else has the name; afterwards a successor may.
        let _ = self.directory.remove(&self.name); // somebody has cleaned up already
        self.stop.ring();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported already.
            let _ = thread.join();
        }
    }
}

/// Makes sure that a name can be had. The directory is locked.
fn free(directory: &Directory, name: &str) -> Result<(), GuestError> {
    match connect(&directory.reachable(name)?) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // One where too many wait is there as well.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Ok(directory.remove(name)?),
        _ => Err(GuestError::Exists(name.to_owned())),
    }
}

/// Removes the sockets that killed processes have left. The directory is locked, so nobody has bound one and does not
/// listen yet.
fn sweep(directory: &Directory) {
    for name in names(directory) {
        let path = directory.reachable(&name);
        let is_left = path.is_ok_and(|path| {
            connect(&path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        });
        if is_left {
            let _ = directory.remove(&name); // the next start sweeps again
        }
    }
}

fn serve(listener: &UnixListener, shared: &Shared, stop: &Event) {
    loop {
        let mut ready = [
            PollFd::new(stop, PollFlags::IN),
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
        ];
        // Interrupted: as if nobody had come.
        let _ = poll(&mut ready, None);
        if !ready[0].revents().is_empty() {
            return;
        }
        if let Ok((stream, _)) = listener.accept() {
            // The asking process may go away in the middle.
            let _ = answer(&stream, shared);
        }
    }
}

/// Answers one question. The directory is its owner's alone, so nobody else asks.
fn answer(stream: &UnixStream, shared: &Shared) -> io::Result<()> {
    let line = read_line(stream, QUESTION_BYTES_MAX, Instant::now() + ANSWER_MAX)?;
    match serde_json::from_str(&line)? {
        Question::Status => {}
        Question::Stop => shared.ask_stop(),
        Question::Restart => shared.ask_restart(),
    }
    let mut status = serde_json::to_vec(&shared.status())?;
    status.push(b'\n');
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    (&*stream).write_all(&status)
}

/// Connects to a guest's socket. Never waits: one where too many wait already is `ErrorKind::WouldBlock`.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Whether root or this user listens there.
fn is_answered_by(stream: &UnixStream, user: u32) -> bool {
    let listener = rustix::net::sockopt::socket_peercred(stream);
    listener.is_ok_and(|listener| listener.uid.is_root() || listener.uid.as_raw() == user)
}

/// Reads up to the end of a line, or of the stream. The deadline is for the whole line: whoever sends a byte now and
/// then gains no time.
fn read_line(stream: &UnixStream, bytes_max: usize, deadline: Instant) -> io::Result<String> {
    stream.set_nonblocking(false)?;
    let mut line = Vec::new();
    let mut buffer = [0; 4096];
    while !line.ends_with(b"\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || line.len() >= bytes_max {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let room = buffer.len().min(bytes_max - line.len());
        match (&*stream).read(&mut buffer[..room]) {
            Ok(0) => break,
            Ok(count) => line.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    String::from_utf8(line).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn ask(
    directory: &Directory,
    name: &str,
    question: Question,
) -> Result<Option<GuestStatus>, GuestError> {
    ask_until(directory, name, question, Instant::now() + ANSWER_MAX)
}

fn ask_until(
    directory: &Directory,
    name: &str,
    question: Question,
    deadline: Instant,
) -> Result<Option<GuestStatus>, GuestError> {
    let silent = || GuestError::Silent(name.to_owned());
    // Root looks into the directories of others, who may put links there that lead to its own sockets.
    let socket = match directory.socket(name) {
        Err(error) if error.is_absent() => return Ok(None),
        found => found?,
    };
    let stream = match connect(&socket.path()) {
        Ok(stream) if is_answered_by(&stream, directory.owner()?) => stream,
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(silent()),
        // Left by a process that was killed, or gone meanwhile.
        Err(_) => return Ok(None),
    };
    let mut line = serde_json::to_string(&question).expect("a question is a word");
    line.push('\n');
    // A fresh connection has room for so little.
    (&stream).write_all(line.as_bytes()).map_err(|_| silent())?;
    match read_line(&stream, ANSWER_BYTES_MAX, deadline) {
        // It has ended in this moment.
        Ok(text) if text.is_empty() => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(|_| silent()),
        Err(_) => Err(silent()),
    }
}

/// Directories of guests that this process may look into: its user's, and all users' for root.
fn directories() -> Vec<Directory> {
    let own = tautline_state::find_runtime_directory().ok().flatten();
    let own = own.and_then(|runtime| runtime.open_below(DIRECTORY, Owner::SelfOrRoot).ok());
    let users = tautline_state::runtime_directories_of_users()
        .into_iter()
        .filter_map(|(runtime, owner)| runtime.open_below(DIRECTORY, owner).ok());
    own.into_iter().chain(users).collect()
}

fn names(directory: &Directory) -> Vec<String> {
    let entries = directory.entries().unwrap_or_default();
    let sockets = entries
        .into_iter()
        .filter(|entry| entry.kind == EntryKind::Socket);
    let mut names: Vec<String> = sockets
        .filter_map(|entry| entry.name.into_string().ok())
        .take(SOCKETS_MAX)
        .collect();
    names.sort();
    names
}

/// The guests of this user, for root those of all users, by name; and the names of those that did not answer. What they
/// say of themselves is their process's text.
#[must_use]
pub fn list() -> (Vec<GuestStatus>, Vec<String>) {
    let mut found = Vec::new();
    let mut silent = Vec::new();
    for directory in directories() {
        let mut left = GUESTS_MAX;
        let deadline = Instant::now() + ANSWER_MAX;
        for name in names(&directory) {
            if left == 0 {
                break;
            }
            match ask_until(&directory, &name, Question::Status, deadline) {
                Ok(Some(status)) => found.push(status),
                // Left by a process that was killed: it takes nobody's place.
                Ok(None) => continue,
                Err(_) => silent.push(name),
            }
            left -= 1;
        }
    }
    (found, silent)
}

/// The guest of this name.
///
/// # Errors
/// [`GuestError::Absent`], [`GuestError::Silent`].
pub fn find(name: &str) -> Result<GuestStatus, GuestError> {
    find_with(name, Question::Status).map(|(_, status)| status)
}

fn find_with(name: &str, question: Question) -> Result<(Directory, GuestStatus), GuestError> {
    let absent = || GuestError::Absent(name.to_owned());
    if name.parse::<tautline::NodeName>().is_err() {
        return Err(absent());
    }
    let mut missed = absent();
    for directory in directories() {
        match ask(&directory, name, question) {
            Ok(Some(status)) => return Ok((directory, status)),
            Ok(None) => {}
            // Another user may have the guest.
            Err(error) => missed = error,
        }
    }
    Err(missed)
}

/// Stops a guest, and waits until it has ended.
///
/// # Errors
/// As [`find`].
pub fn stop(name: &str) -> Result<(), GuestError> {
    let (directory, _) = find_with(name, Question::Stop)?;
    let deadline = Instant::now() + CHANGE_MAX;
    while Instant::now() < deadline {
        if ask(&directory, name, Question::Status)?.is_none() {
            return Ok(());
        }
        std::thread::sleep(CHANGE_LOOK);
    }
    Err(GuestError::Silent(name.to_owned()))
}

/// Starts a guest again, and waits until its new life has begun.
///
/// # Errors
/// As [`find`].
pub fn restart(name: &str) -> Result<GuestStatus, GuestError> {
    let (directory, before) = find_with(name, Question::Restart)?;
    let deadline = Instant::now() + CHANGE_MAX;
    while Instant::now() < deadline {
        match ask(&directory, name, Question::Status)? {
            None => return Err(GuestError::Absent(name.to_owned())),
            Some(now) if is_anew(&before, &now) => return Ok(now),
            Some(_) => std::thread::sleep(CHANGE_LOOK),
        }
    }
    Err(GuestError::Silent(name.to_owned()))
}

/// Whether a life has begun since `before`. One that was about to begin then counts.
fn is_anew(before: &GuestStatus, now: &GuestStatus) -> bool {
    let has_begun = matches!(now.state, State::Starting | State::Running);
    has_begun && (now.restarts != before.restarts || before.state == State::Restarting)
}

#[cfg(test)]
mod tests {
    use tautline_state::TemporaryDirectory;

    use super::*;

    fn temporary() -> TemporaryDirectory {
        TemporaryDirectory::make("guests-").unwrap()
    }

    fn listener(directory: &Directory, name: &str) -> UnixListener {
        UnixListener::bind(directory.reachable(name).unwrap()).unwrap()
    }

    fn is_silent(directory: &Directory, name: &str) -> bool {
        matches!(ask(directory, name, Question::Status), Err(GuestError::Silent(of)) if of == name)
    }

    #[test]
    fn nobody_waits_for_who_answers_a_byte_now_and_then() {
        let temporary = temporary();
        let directory = temporary.directory();
        let listener = listener(directory, "drip");
        let answers = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Ends when the asker has given up.
            while stream.write_all(b" ").is_ok() {
                std::thread::sleep(ANSWER_MAX / 10);
            }
        });
        let asked = Instant::now();
        assert!(is_silent(directory, "drip"));
        assert!(asked.elapsed() < ANSWER_MAX * 3, "{:?}", asked.elapsed());
        answers.join().unwrap();
    }

    #[test]
    fn nobody_waits_for_who_accepts_no_connections() {
        let temporary = temporary();
        let directory = temporary.directory();
        let listener = listener(directory, "full");
        rustix::net::listen(&listener, 0).unwrap();
        let path = directory.reachable("full").unwrap();
        let _waiting: Vec<UnixStream> = std::iter::from_fn(|| connect(&path).ok()).collect();
        assert!(is_silent(directory, "full"));
        // Nor does anybody take its name.
        let taken = free(directory, "full");
        assert!(matches!(taken, Err(GuestError::Exists(name)) if name == "full"));
        assert!(names(directory).contains(&"full".to_owned()));
    }

    #[test]
    fn a_link_to_a_socket_of_root_is_not_followed() {
        let temporary = temporary();
        let directory = temporary.directory();
        let elsewhere = self::temporary();
        let secret = listener(elsewhere.directory(), "control");
        secret.set_nonblocking(true).unwrap();
        let target = elsewhere.path().join("control");
        std::os::unix::fs::symlink(target, temporary.path().join("arm")).unwrap();
        let refused = ask(directory, "arm", Question::Stop).unwrap_err();
        assert!(refused.to_string().contains("link"), "{refused}");
        assert!(secret.accept().is_err(), "nothing came");
    }

    #[test]
    fn the_name_of_a_guest_that_ends_is_its_successors() {
        let temporary = temporary();
        let directory = temporary.directory();
        let stop = Arc::new(Event::new().unwrap());
        let ends = Arc::clone(&stop);
        let first = listener(directory, "arm");
        // One that takes its time.
        let thread = std::thread::spawn(move || {
            let mut polled = [PollFd::new(&*ends, PollFlags::IN)];
            poll(&mut polled, None).unwrap();
            drop(first);
            std::thread::sleep(CHANGE_LOOK);
        });
        let service = Service {
            directory: directory.try_clone().unwrap(),
            name: "arm".to_owned(),
            stop,
            thread: Some(thread),
        };
        let ending = std::thread::spawn(move || drop(service));
        while free(directory, "arm").is_err() {
            std::thread::yield_now();
        }
        let _second = listener(directory, "arm");
        ending.join().unwrap();
        assert_eq!(names(directory), ["arm"], "the second is still there");
    }

    #[test]
    fn only_sockets_that_nobody_listens_on_are_swept() {
        let temporary = temporary();
        let directory = temporary.directory();
        let _lives = listener(directory, "lives");
        for number in 0..3 {
            drop(listener(directory, &format!("left-{number}")));
        }
        assert_eq!(names(directory).len(), 4);
        sweep(directory);
        assert_eq!(names(directory), ["lives"]);
    }
}
