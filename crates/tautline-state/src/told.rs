//! State that a running program tells whoever asks on the same machine, for commands such as `taut ros status`.
//!
//! A program listens on an abstract Unix socket with a name that nobody can foresee, so nothing of it remains when the
//! program is killed. It answers root and its own user. Whoever asks finds the names in /proc/net/unix, and believes
//! processes of root and of its own user only; root looks at everybody's, after those.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;

/// Bytes of an answer that are read at most. Lower: a program with much to tell is left out. Higher: a hostile one
/// takes more memory.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Programs of root and of this user that are asked at most, and as many of all others. Lower: some are not shown.
/// Higher: hostile ones take more memory.
const PROGRAMS_MAX: usize = 64;
/// Programs of one other user that root asks at most. Lower: some are not shown. Higher: fewer users can hide the
/// programs of all others.
const PROGRAMS_OF_USER_MAX: usize = 16;
/// Names that are tried at most. Lower: a hostile user with so many sockets hides the programs of others. Higher: that
/// user's sockets, each a few microseconds, hold up whoever asks for longer.
const NAMES_MAX: usize = 65_536;
/// Time that all programs together have to answer, and that one who asks has to read.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Pause between two looks for who asks. Lower: more wake-ups. Higher: an answer comes later.
const LOOK: Duration = Duration::from_millis(50);

/// Answers with the bytes that `state` returns, from a thread of its own, until `stop` is set. `family` is the
/// beginning of the socket's name, which programs of one sort share. The state is told to root and to this process's
/// user.
///
/// # Errors
/// There is no socket, or no thread.
pub fn tell(
    family: &str,
    stop: Arc<AtomicBool>,
    state: impl Fn() -> Vec<u8> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let (process, random) = (std::process::id(), u64::from_le_bytes(random));
    let name = format!("{family}/{process}-{random:016x}");
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    let thread = std::thread::Builder::new().name("status".to_owned());
    thread.spawn(move || {
        while !stop.load(Relaxed) {
            match listener.accept() {
                Ok((asker, _)) if is_near(&asker) => {
                    let _gone = write_all(asker, &state());
                }
                Ok(_) => {}
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    })
}

/// Writes an answer. An asker that reads slowly, or nothing, holds up the next one for [`ANSWER_TIME`].
fn write_all(mut asker: UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    asker.set_nonblocking(false)?;
    let until = Instant::now() + ANSWER_TIME;
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        // Of zero time, it is an error.
        asker.set_write_timeout(Some(left))?;
        bytes = &bytes[asker.write(bytes)?..];
    }
    Ok(())
}

/// User of the process on the other end.
fn user_of(socket: &UnixStream) -> Option<u32> {
    let peer = net::sockopt::socket_peercred(socket).ok()?;
    Some(peer.uid.as_raw())
}

/// Whether the process on the other end runs as root or as this process's user.
fn is_near(socket: &UnixStream) -> bool {
    user_of(socket).is_some_and(|user| user == 0 || user == geteuid().as_raw())
}

/// States of all programs of a family in this network namespace, of this user and of root; root sees everybody's,
/// these first. All are asked at the same time: none of them holds up another.
#[must_use]
pub fn all(family: &str) -> Vec<Vec<u8>> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let marker = format!("@{family}/");
    let names = sockets.lines().filter_map(|line| {
        let path = line.split_whitespace().last()?;
        path.starts_with(&marker).then(|| &path[1..])
    });
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    let (mut near, mut far) = (Vec::new(), Vec::new());
    let mut of_user = BTreeMap::new();
    for name in names.into_iter().take(NAMES_MAX) {
        let Ok(socket) = connect(name) else { continue };
        if is_near(&socket) {
            if near.len() < PROGRAMS_MAX {
                near.push(Asked::new(socket));
            }
        } else if geteuid().is_root()
            && far.len() < PROGRAMS_MAX
            && let Some(user) = user_of(&socket)
        {
            let count = of_user.entry(user).or_insert(0);
            if *count < PROGRAMS_OF_USER_MAX {
                *count += 1;
                far.push(Asked::new(socket));
            }
        }
    }
    near.append(&mut far);
    wait_for(&mut near);
    let told = near.into_iter().filter(|one| one.state == State::Told);
    told.map(|one| one.bytes).collect()
}

/// Connects without waiting: a stranger's socket may have no room for another asker, and never make any.
fn connect(name: &str) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    Ok(UnixStream::from(socket))
}

/// A program that was asked, and what it has said.
struct Asked {
    socket: UnixStream,
    bytes: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Telling,
    Told,
    Failed,
}

impl Asked {
    fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            bytes: Vec::new(),
            state: State::Telling,
        }
    }

    /// Reads what has come.
    fn read(&mut self) {
        let mut some = [0; 16_384];
        self.state = match self.socket.read(&mut some) {
            // One that ends without a word tells others only.
            Ok(0) if !self.bytes.is_empty() => State::Told,
            Ok(more) if more > 0 && self.bytes.len() + more <= ANSWER_BYTES_MAX => {
                self.bytes.extend_from_slice(&some[..more]);
                State::Telling
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                State::Telling
            }
            Ok(_) | Err(_) => State::Failed,
        };
    }
}

/// Reads until all have told, or their time is over.
fn wait_for(asked: &mut [Asked]) {
    let until = Instant::now() + ANSWER_TIME;
    loop {
        let mut telling: Vec<&mut Asked> = asked
            .iter_mut()
            .filter(|one| one.state == State::Telling)
            .collect();
        let left = until.saturating_duration_since(Instant::now());
        if telling.is_empty() || left.is_zero() {
            return;
        }
        let mut polled: Vec<PollFd<'_>> = telling
            .iter()
            .map(|one| PollFd::new(&one.socket, PollFlags::IN))
            .collect();
        // A second at most, so it fits.
        let timeout = Timespec::try_from(left).unwrap_or_default();
        let _interrupted = poll(&mut polled, Some(&timeout));
        let ready: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
        for (one, _) in telling.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            one.read();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_told_while_the_program_runs() {
        let family = format!("tautline-told-{}", std::process::id());
        let stop = Arc::new(AtomicBool::new(false));
        let thread = tell(&family, Arc::clone(&stop), || b"state".to_vec()).unwrap();
        assert_eq!(all(&family), [b"state".to_vec()]);
        assert!(all("tautline-told-nobody").is_empty());
        stop.store(true, Relaxed);
        thread.join().unwrap();
        assert!(all(&family).is_empty());
    }

    #[test]
    fn a_stranger_with_such_a_name_that_says_nothing_is_left_out() {
        let family = format!("tautline-told-silent-{}", std::process::id());
        let name = SocketAddr::from_abstract_name(format!("{family}/1-0")).unwrap();
        let silent = UnixListener::bind_addr(&name).unwrap();
        assert!(all(&family).is_empty());
        drop(silent);
    }

    /// Runs a closure as user 65534, on a thread of its own: the kernel's user ids are those of a thread.
    fn as_stranger<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Option<R> {
        if !geteuid().is_root() {
            println!("SKIPPED: needs root, to be two users");
            return None;
        }
        let stranger = std::thread::spawn(|| {
            let user = rustix::fs::Uid::from_raw(65_534);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            work()
        });
        Some(stranger.join().unwrap())
    }

    #[test]
    fn a_stranger_neither_hides_programs_nor_holds_up_who_asks() {
        let family = format!("tautline-told-many-{}", std::process::id());
        let taken = family.clone();
        let bind = move || {
            // Names that come before all that a program has.
            let bind = |number| {
                let name = SocketAddr::from_abstract_name(format!("{taken}/0-{number}")).unwrap();
                UnixListener::bind_addr(&name).unwrap()
            };
            (0..100).map(bind).collect::<Vec<UnixListener>>()
        };
        let Some(sockets) = as_stranger(bind) else {
            return;
        };
        // A byte now and then, for ever, from each.
        std::thread::spawn(move || {
            let mut askers = Vec::new();
            for socket in &sockets {
                socket.set_nonblocking(true).unwrap();
            }
            loop {
                askers.extend(sockets.iter().filter_map(|socket| socket.accept().ok()));
                askers.retain_mut(|(asker, _)| asker.write_all(b" ").is_ok());
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let stop = Arc::new(AtomicBool::new(false));
        let thread = tell(&family, Arc::clone(&stop), || vec![b'x'; 500_000]).unwrap();
        let began = Instant::now();
        let told = all(&family);
        assert!(began.elapsed() < 2 * ANSWER_TIME, "{:?}", began.elapsed());
        assert_eq!(told, [vec![b'x'; 500_000]]);
        stop.store(true, Relaxed);
        thread.join().unwrap();
    }

    #[test]
    fn roots_state_is_not_told_to_a_stranger() {
        let family = format!("tautline-told-private-{}", std::process::id());
        let stop = Arc::new(AtomicBool::new(false));
        let thread = tell(&family, Arc::clone(&stop), || b"state".to_vec()).unwrap();
        let asked = family.clone();
        let heard = as_stranger(move || {
            let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
            let names = sockets
                .lines()
                .filter_map(|line| line.split_whitespace().last());
            let name = names
                .into_iter()
                .find(|name| name.contains(&asked))
                .unwrap();
            let mut bytes = Vec::new();
            let mut socket = connect(&name[1..]).unwrap();
            socket.set_nonblocking(false).unwrap();
            socket.read_to_end(&mut bytes).unwrap();
            (bytes, all(&asked))
        });
        assert!(heard.is_none_or(|heard| heard == (vec![], vec![])));
        stop.store(true, Relaxed);
        thread.join().unwrap();
    }

    #[test]
    fn a_stranger_whose_socket_is_full_holds_nobody_up() {
        let family = format!("tautline-told-full-{}", std::process::id());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = || net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let name = SocketAddrUnix::new_abstract_name(format!("{family}/1-0").as_bytes()).unwrap();
        let full = socket().unwrap();
        net::bind(&full, &name).unwrap();
        net::listen(&full, 0).unwrap();
        let askers: Vec<_> = (0..8).map(|_| socket().unwrap()).collect();
        let refused = askers
            .iter()
            .filter(|asker| net::connect(asker, &name).is_err());
        assert!(refused.count() > 0, "the socket is full");
        assert!(all(&family).is_empty());
    }
}
