//! State that a running program tells whoever asks on the same machine, for commands such as `taut ros status`.
//!
//! A program listens on an abstract Unix socket with a name that nobody can foresee, so nothing of it remains when the
//! program is killed. Whoever asks finds the names in /proc/net/unix, and believes processes of root and of its own
//! user only.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Bytes of an answer that are read at most. Lower: a program with much to tell is cut off. Higher: a hostile one takes
/// more memory.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Programs that are asked at most. Lower: some are not shown. Higher: a hostile user of this machine, whose sockets
/// have such names, holds up whoever asks for longer.
const PROGRAMS_MAX: usize = 64;
/// Time that a program has to answer, and that one who asks has to read.
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
                Ok((asker, _)) => answer(asker, &state),
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    })
}

fn answer(mut asker: UnixStream, state: &impl Fn() -> Vec<u8>) {
    // An asker that reads nothing holds up the next one for that long, and nothing else.
    let limited = asker
        .set_nonblocking(false)
        .and_then(|()| asker.set_write_timeout(Some(ANSWER_TIME)));
    if limited.is_ok() && is_believed(&asker) {
        let _gone = asker.write_all(&state());
    }
}

/// Whether the process on the other end runs as root or as this process's user; root believes everybody.
fn is_believed(socket: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    net::sockopt::socket_peercred(socket)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == own || own.is_root())
}

/// States of all programs of a family in this network namespace, of this user and of root; root sees everybody's.
#[must_use]
pub fn all(family: &str) -> Vec<Vec<u8>> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let marker = format!("@{family}/");
    let names = sockets.lines().filter_map(|line| {
        let path = line.split_whitespace().last()?;
        path.starts_with(&marker).then(|| path[1..].to_owned())
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names.truncate(PROGRAMS_MAX);
    names.iter().filter_map(|name| ask(name).ok()).collect()
}

fn ask(name: &str) -> io::Result<Vec<u8>> {
    // Not blocking: a stranger's socket may have no room for another asker, and never make any.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(false)?;
    if !is_believed(&socket) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    socket.set_read_timeout(Some(ANSWER_TIME))?;
    let mut bytes = Vec::new();
    socket.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
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
