//! Guests as other processes see them: each has a socket in the runtime directory, for its user and root.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{SocketAddrUnix, SocketType};
use serde::{Deserialize, Serialize};
use tautline_state::query::{Admission, Client, Clients, Limits, Query, Reply, StateServer, hear};
use tautline_state::untrusted::{UntrustedListener, UntrustedSocket, unnamed};
use tautline_state::{Directory, EntryKind, Owner};

use crate::error::GuestError;
use crate::figures::{GuestStatus, State};
use crate::run::Shared;

/// Directory below the runtime directory.
const DIRECTORY: &str = "guests";
/// Time for a question and for its answer; in a list, for those of all guests of a user. Lower: a busy machine's guests
/// seem to be silent. Higher: a stopped one holds up a list of all.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Time for a guest to end, or to begin again. Lower: on a busy machine it is said to have failed.
const CHANGE_MAX: Duration = Duration::from_secs(30);
const CHANGE_LOOK: Duration = Duration::from_millis(20);
/// Longest answer. Lower: 32 ports do not fit. Higher: an endless answer fills our memory.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Longest question.
const QUESTION_BYTES_MAX: usize = 16;
/// Guests of one user that are listed at most. Lower: some are not seen. Higher: a user can keep root's `taut` busy.
const GUESTS_MAX: usize = 64;
/// Sockets of one user that are tried at most, those of killed guests among them. Lower: guests are not seen where many
/// were killed since the last start. Higher: a user can keep root's `taut` busy.
const SOCKETS_MAX: usize = 4096;
/// Time for which the directory may be locked by another process of the user.
const LOCK_MAX: Duration = Duration::from_secs(2);
/// Clients that can wait for a guest to come to them. Lower: some are refused. Higher: a stopped one keeps more of them
/// waiting.
const ASKERS_MAX: i32 = 16;

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
    _teller: StateServer,
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
            listen(&directory.reachable(name)?).map_err(&failed)?
        };
        let shared = Arc::clone(shared);
        let serve = move |askers: &Clients| {
            askers.each(|asker| {
                // The asking process may go away in the middle.
                let _gone = answer(asker, &shared);
            });
        };
        let admission = Admission::ByOwnDirectory;
        let teller = StateServer::start("taut-guest-ask", listener, admission, serve);
        Ok(Service {
            directory,
            name: name.to_owned(),
            _teller: teller.map_err(&failed)?,
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // While this process listens, which ends afterwards, no other has the name; then a successor may.
        let _ = self.directory.remove(&self.name); // it was removed already
    }
}

fn listen(path: &Path) -> io::Result<UntrustedListener> {
    let bound = unnamed(SocketType::STREAM)?;
    rustix::net::bind(&bound, &SocketAddrUnix::new(path)?)?;
    let listener = UntrustedListener::new(bound);
    listener.listen(ASKERS_MAX)?;
    Ok(listener)
}

/// Makes sure that a name can be had. The directory is locked.
fn free(directory: &Directory, name: &str) -> Result<(), GuestError> {
    match connect(&directory.reachable(name)?) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // One where too many wait is there as well.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
            // To connect is refused by what is not a socket, too.
            directory.socket(name)?;
            Ok(directory.remove(name)?)
        }
        _ => Err(GuestError::Exists(name.to_owned())),
    }
}

/// Removes the sockets that killed processes have left. The directory is locked, so no socket is bound and not
/// listening yet.
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

/// Answers one question.
fn answer(asker: &Client<'_>, shared: &Shared) -> io::Result<()> {
    let mut place = [0; QUESTION_BYTES_MAX];
    let is_line = |question: &[u8]| question.ends_with(b"\n");
    let question = asker.question(&mut place, ANSWER_MAX, is_line);
    match serde_json::from_slice(question)? {
        Question::Status => {}
        Question::Stop => shared.ask_stop(),
        Question::Restart => shared.ask_restart(),
    }
    let mut status = serde_json::to_vec(&shared.status())?;
    status.push(b'\n');
    asker.answer().write_all(&status)
}

/// Connects to a guest's socket. Never waits: one where too many wait already is `ErrorKind::WouldBlock`.
fn connect(path: &Path) -> io::Result<UntrustedSocket> {
    UntrustedSocket::connect(&SocketAddrUnix::new(path)?, SocketType::STREAM)
}

/// Whether root or this user listens there.
fn is_answered_by(socket: &UntrustedSocket, user: u32) -> bool {
    let listener = socket.peer();
    listener.is_ok_and(|listener| listener.uid == 0 || listener.uid == user)
}

/// Asks a guest; `None` if there is none.
fn ask(
    directory: &Directory,
    name: &str,
    question: Question,
) -> Result<Option<GuestStatus>, GuestError> {
    match begin(directory, name, question)? {
        Some(asked) => hear_all(vec![asked])?.remove(0).1,
        None => Ok(None),
    }
}

/// Begins to ask a guest; `None` if there is none.
fn begin(
    directory: &Directory,
    name: &str,
    question: Question,
) -> Result<Option<Query<String>>, GuestError> {
    // Root reads the directories of other users, which may contain links that lead to its own sockets.
    let entry = match directory.socket(name) {
        Err(error) if error.is_absent() => return Ok(None),
        found => found?,
    };
    let socket = match connect(&entry.path()) {
        Ok(socket) if is_answered_by(&socket, directory.owner()?) => socket,
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(GuestError::Silent(name.to_owned()));
        }
        // Left by a process that was killed, or gone meanwhile.
        Err(_) => return Ok(None),
    };
    let mut line = serde_json::to_string(&question).expect("a question is a word");
    line.push('\n');
    Ok(Some(Query::new(
        name.to_owned(),
        socket,
        Some(line.as_bytes()),
    )))
}

/// Answer of a guest; `None` if there is none any more.
type Answered = Result<Option<GuestStatus>, GuestError>;

/// Hears guests that were asked, all in the time for one.
fn hear_all(asked: Vec<Query<String>>) -> Result<Vec<(String, Answered)>, GuestError> {
    let limits = Limits {
        silence: ANSWER_MAX,
        deadline: Instant::now() + ANSWER_MAX,
        answer_bytes: ANSWER_BYTES_MAX,
    };
    let heard = hear(asked, &limits).map_err(GuestError::system("waiting for answers"))?;
    let answered = heard.into_iter().map(|(name, heard)| {
        let silent = || GuestError::Silent(name.clone());
        let answered = match heard {
            // It has ended in this moment.
            Reply::Gone => Ok(None),
            Reply::Whole(text) if text.is_empty() => Ok(None),
            Reply::Whole(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|_| silent()),
            Reply::Silent => Err(silent()),
        };
        (name, answered)
    });
    Ok(answered.collect())
}

/// The directory of this user's guests.
fn own_directory() -> Option<Directory> {
    let own = tautline_state::find_runtime_directory().ok().flatten()?;
    own.open_below(DIRECTORY, Owner::SelfOrRoot).ok()
}

/// Directories of the guests of all users, for root.
fn directories_of_users() -> Vec<Directory> {
    tautline_state::runtime_directories_of_users()
        .into_iter()
        .filter_map(|(runtime, owner)| runtime.open_below(DIRECTORY, owner).ok())
        .collect()
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
    for directory in own_directory().into_iter().chain(directories_of_users()) {
        let mut asked = Vec::new();
        let mut left = GUESTS_MAX;
        for name in names(&directory) {
            if left == 0 {
                break;
            }
            match begin(&directory, &name, Question::Status) {
                Ok(Some(one)) => asked.push(one),
                // Left by a process that was killed: it takes no place.
                Ok(None) => continue,
                Err(_) => silent.push(name),
            }
            left -= 1;
        }
        for (name, answered) in hear_all(asked).unwrap_or_default() {
            match answered {
                Ok(status) => found.extend(status),
                Err(_) => silent.push(name),
            }
        }
    }
    (found, silent)
}

/// The guest of this name: this user's, and if there is none, for root that of another user.
///
/// # Errors
/// [`GuestError::Absent`], [`GuestError::Silent`].
pub fn find(name: &str) -> Result<GuestStatus, GuestError> {
    find_with(name, Question::Status).map(|(_, status)| status)
}

/// The guest of this name, if it is this user's. Others can give theirs the same name, and answer as they like.
///
/// # Errors
/// [`GuestError::Absent`], [`GuestError::Silent`].
pub fn find_own(name: &str) -> Result<GuestStatus, GuestError> {
    find_among(own_directory(), Vec::new, name, Question::Status).map(|(_, status)| status)
}

fn find_with(name: &str, question: Question) -> Result<(Directory, GuestStatus), GuestError> {
    find_among(own_directory(), directories_of_users, name, question)
}

fn find_among(
    own: Option<Directory>,
    of_users: impl FnOnce() -> Vec<Directory>,
    name: &str,
    question: Question,
) -> Result<(Directory, GuestStatus), GuestError> {
    let absent = || GuestError::Absent(name.to_owned());
    if name.parse::<tautline::NodeName>().is_err() {
        return Err(absent());
    }
    if let Some(own) = own
        // One that does not answer is not mistaken for another user's.
        && let Some(status) = ask(&own, name, question)?
    {
        return Ok((own, status));
    }
    let mut missed = absent();
    for directory in of_users() {
        match ask(&directory, name, question) {
            Ok(Some(status)) => return Ok((directory, status)),
            Ok(None) => {}
            Err(error) => missed = error,
        }
    }
    Err(missed)
}

/// Stops a guest, and waits until it has ended.
///
/// # Errors
/// Those of [`find`].
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
/// Those of [`find`].
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
    use std::os::unix::net::UnixListener;

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
    fn a_guest_that_does_not_answer_is_not_mistaken_for_another_users() {
        let (own, foreign) = (temporary(), temporary());
        let directory = |of: &TemporaryDirectory| of.directory().try_clone().unwrap();
        let _never_accepts = listener(own.directory(), "arm");
        let _of_a_stranger = listener(foreign.directory(), "arm");
        let asked = || {
            find_among(
                Some(directory(&own)),
                || panic!("asked"),
                "arm",
                Question::Stop,
            )
        };
        assert!(matches!(asked(), Err(GuestError::Silent(of)) if of == "arm"));
        let of_users = || vec![directory(&foreign)];
        let none = find_among(Some(directory(&foreign)), Vec::new, "leg", Question::Status);
        assert!(matches!(none, Err(GuestError::Absent(of)) if of == "leg"));
        let asked = find_among(None, of_users, "arm", Question::Status);
        assert!(matches!(asked, Err(GuestError::Silent(of)) if of == "arm"));
    }

    #[test]
    fn nobody_waits_for_who_accepts_no_connections() {
        let temporary = temporary();
        let directory = temporary.directory();
        let listener = listener(directory, "full");
        rustix::net::listen(&listener, 0).unwrap();
        let path = directory.reachable("full").unwrap();
        let _waiting: Vec<UntrustedSocket> = std::iter::from_fn(|| connect(&path).ok()).collect();
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
        let first = listen(&directory.reachable("arm").unwrap()).unwrap();
        // One that takes its time.
        let work = |askers: &Clients| {
            askers.each(|_| ());
            std::thread::sleep(CHANGE_LOOK);
        };
        let teller = StateServer::start("ask", first, Admission::ByFile, work).unwrap();
        let service = Service {
            directory: directory.try_clone().unwrap(),
            name: "arm".to_owned(),
            _teller: teller,
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
