//! Guests as other processes see them: each has a socket in the runtime directory, for its user and root.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use tautline_state::{Directory, EntryKind, Owner};

use crate::error::GuestError;
use crate::figures::{GuestStatus, State};
use crate::run::Shared;
use crate::sys::Event;

/// Directory below the runtime directory.
const DIRECTORY: &str = "guests";
/// Time for a question and for its answer. Lower: a busy machine's guests seem to be silent. Higher: a stopped one
/// holds up a list of all.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Time for a guest to end, or to begin again. Lower: on a busy machine it is said to have failed.
const CHANGE_MAX: Duration = Duration::from_secs(30);
const CHANGE_LOOK: Duration = Duration::from_millis(20);
/// Longest answer. Lower: 32 ports do not fit. Higher: somebody who answers without end fills our memory.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Longest question.
const QUESTION_BYTES_MAX: u64 = 16;
/// Most guests that are listed of one user. Lower: some are not seen. Higher: a user can keep root's `taut` busy.
const GUESTS_MAX: usize = 64;
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
            let path = directory.reachable(name)?;
            match UnixStream::connect(&path) {
                Ok(_) => return Err(GuestError::Exists(name.to_owned())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // Left by a process that was killed.
                Err(_) => directory.remove(name)?,
            }
            UnixListener::bind(&path).map_err(&failed)?
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
        self.stop.ring();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported already.
            let _ = thread.join();
        }
        let _ = self.directory.remove(&self.name); // somebody has cleaned up already
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
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    let mut line = String::new();
    BufReader::new(stream.take(QUESTION_BYTES_MAX)).read_line(&mut line)?;
    match serde_json::from_str(&line)? {
        Question::Status => {}
        Question::Stop => shared.ask_stop(),
        Question::Restart => shared.ask_restart(),
    }
    let mut status = serde_json::to_vec(&shared.status())?;
    status.push(b'\n');
    (&*stream).write_all(&status)
}

fn ask(
    directory: &Directory,
    name: &str,
    question: Question,
) -> Result<Option<GuestStatus>, GuestError> {
    let path = directory.reachable(name)?;
    let silent = || GuestError::Silent(name.to_owned());
    let stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        // Left by a process that was killed, or gone meanwhile.
        Err(_) => return Ok(None),
    };
    let limited = stream
        .set_read_timeout(Some(ANSWER_MAX))
        .and_then(|()| stream.set_write_timeout(Some(ANSWER_MAX)));
    limited.map_err(|_| silent())?;
    let mut line = serde_json::to_string(&question).expect("a question is a word");
    line.push('\n');
    (&stream).write_all(line.as_bytes()).map_err(|_| silent())?;
    let mut text = String::new();
    let mut reader = BufReader::new((&stream).take(ANSWER_BYTES_MAX));
    // Beside the limit of each read: one who sends a byte now and then.
    let deadline = Instant::now() + 2 * ANSWER_MAX;
    match reader.read_line(&mut text) {
        // It has ended in this moment.
        Ok(0) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
        Ok(_) if Instant::now() < deadline => {}
        _ => return Err(silent()),
    }
    serde_json::from_str(&text).map(Some).map_err(|_| silent())
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
        .take(GUESTS_MAX)
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
        for name in names(&directory) {
            match ask(&directory, &name, Question::Status) {
                Ok(Some(status)) => found.push(status),
                Ok(None) => {}
                Err(_) => silent.push(name),
            }
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
    for directory in directories() {
        if let Some(status) = ask(&directory, name, question)? {
            return Ok((directory, status));
        }
    }
    Err(absent())
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
