//! Programs of one sort that find each other by the beginning of a name, for commands such as `taut ros status`.
//!
//! A program listens on an abstract Unix socket with an unpredictable name, so nothing of it remains when the
//! program is killed. It answers root and its own user. A client finds the names in /proc/net/unix, and trusts
//! processes of root and of its own user only; root also queries those of other users, after these.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use rustix::net::{SocketAddrUnix, SocketType};
use rustix::process::geteuid;
use tautline_state::query::{Admission, Clients, Limits, Query, Reply, StateServer, hear};
use tautline_state::untrusted::{UntrustedListener, UntrustedSocket, unnamed};

/// Bytes of an answer that are read at most. Lower: a program with much to tell is left out. Higher: a hostile one
/// takes more memory.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Programs of root and of this user that are asked at most, and as many of all others. Lower: some are not shown.
/// Higher: hostile ones take more memory.
const PROGRAMS_MAX: usize = 64;
/// Programs of one other user that root asks at most. Lower: some are not shown. Higher: fewer users can hide the
/// programs of all others.
const PROGRAMS_OF_USER_MAX: usize = 16;
/// Names that are tried at most. Lower: a hostile user with so many sockets hides the programs of others. Higher: that
/// user's sockets, each a few microseconds, or tens of them before Linux 6.16, delay a client for longer.
const NAMES_MAX: usize = 65_536;
/// Time that all programs together have to answer. Lower: those of a busy machine are left out. Higher: one that says
/// nothing delays a client for longer.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Connections that wait to be accepted. Lower: strangers that connect endlessly fill the queue, and the program is
/// not shown. Higher: more kernel memory while the program is stopped.
const BACKLOG: i32 = 4096;

/// Answers with the bytes that `state` returns, from a thread of its own, until the result is dropped. `family` is the
/// beginning of the socket's name, which programs of one sort share. The state is told to root and to this process's
/// user.
///
/// # Errors
/// There is no socket, or no thread.
pub(crate) fn tell(
    family: &str,
    state: impl Fn() -> Vec<u8> + Send + 'static,
) -> io::Result<StateServer> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let (process, random) = (std::process::id(), u64::from_le_bytes(random));
    let bound = unnamed(SocketType::STREAM)?;
    rustix::net::bind(
        &bound,
        &address(&format!("{family}/{process}-{random:016x}"))?,
    )?;
    let listener = UntrustedListener::new(bound);
    listener.listen(BACKLOG)?;
    let work = move |askers: &Clients| {
        askers.each(|asker| {
            // One that went away is its own affair.
            let _gone = asker.answer().write_all(&state());
        });
    };
    StateServer::start("status", listener, Admission::RootAndUser, work)
}

fn address(name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// States of all programs of a family in this network namespace, of this user and of root; root sees everybody's,
/// these first. All are asked at the same time: none of them holds up another.
pub(crate) fn all(family: &str) -> Vec<Vec<u8>> {
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
        let Ok(peer) = socket.peer() else { continue };
        if peer.is_near() {
            if near.len() < PROGRAMS_MAX {
                near.push(Query::new((), socket, None));
            }
        } else if geteuid().is_root() && far.len() < PROGRAMS_MAX {
            let count = of_user.entry(peer.uid).or_insert(0);
            if *count < PROGRAMS_OF_USER_MAX {
                *count += 1;
                far.push(Query::new((), socket, None));
            }
        }
    }
    near.append(&mut far);
    let limits = Limits {
        silence: ANSWER_MAX,
        deadline: Instant::now() + ANSWER_MAX,
        answer_bytes: ANSWER_BYTES_MAX,
    };
    let heard = hear(near, &limits).unwrap_or_default().into_iter();
    let told = heard.filter_map(|((), heard)| match heard {
        // One that ends without a word tells others only.
        Reply::Whole(bytes) if !bytes.is_empty() => Some(bytes),
        _ => None,
    });
    told.collect()
}

fn connect(name: &str) -> io::Result<UntrustedSocket> {
    UntrustedSocket::connect(&address(name)?, SocketType::STREAM)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    use tautline_testbed::send_lingering;

    use super::*;

    #[test]
    fn a_state_is_told_while_the_program_runs() {
        let family = format!("tautline-told-{}", std::process::id());
        let teller = tell(&family, || b"state".to_vec()).unwrap();
        assert_eq!(all(&family), [b"state".to_vec()]);
        assert!(all("tautline-told-nobody").is_empty());
        teller.end().unwrap();
        assert!(all(&family).is_empty());
    }

    #[test]
    fn a_stranger_with_such_a_name_that_says_nothing_is_left_out() {
        let family = format!("tautline-told-silent-{}", std::process::id());
        let silent = listener(&format!("{family}/1-0"));
        assert!(all(&family).is_empty());
        drop(silent);
    }

    fn listener(name: &str) -> UnixListener {
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
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
        // Names that come before all that a program has.
        let bind = move || {
            let names = (0..100).map(|number| format!("{taken}/0-{number}"));
            names
                .map(|name| listener(&name))
                .collect::<Vec<UnixListener>>()
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
        let teller = tell(&family, || vec![b'x'; 500_000]).unwrap();
        let began = Instant::now();
        let told = all(&family);
        assert!(began.elapsed() < 2 * ANSWER_MAX, "{:?}", began.elapsed());
        assert_eq!(told, [vec![b'x'; 500_000]]);
        teller.end().unwrap();
    }

    /// Name of the one program of a family.
    fn name_in(family: &str) -> String {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        let names = sockets
            .lines()
            .filter_map(|line| line.split_whitespace().last());
        let name = names
            .into_iter()
            .find(|name| name.contains(family))
            .unwrap();
        name[1..].to_owned()
    }

    fn connect_plainly(name: &str) -> UnixStream {
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
    }

    #[test]
    fn roots_state_is_not_told_to_a_stranger() {
        let family = format!("tautline-told-private-{}", std::process::id());
        let teller = tell(&family, || b"state".to_vec()).unwrap();
        let asked = family.clone();
        let heard = as_stranger(move || {
            let mut bytes = Vec::new();
            let mut socket = connect_plainly(&name_in(&asked));
            socket.read_to_end(&mut bytes).unwrap();
            (bytes, all(&asked))
        });
        assert!(heard.is_none_or(|heard| heard == (vec![], vec![])));
        teller.end().unwrap();
    }

    #[test]
    fn a_stranger_who_hands_over_what_lingers_freezes_no_program() {
        let family = format!("tautline-told-lingers-{}", std::process::id());
        let teller = tell(&family, || b"state".to_vec()).unwrap();
        let asked = family.clone();
        let kept = as_stranger(move || {
            let name = name_in(&asked);
            let attack = |_| {
                let socket = connect_plainly(&name);
                send_lingering(&socket, b"take this")
            };
            (0..20).map(attack).collect::<Vec<_>>()
        });
        if kept.is_none() {
            return;
        }
        let began = Instant::now();
        assert_eq!(all(&family), [b"state".to_vec()]);
        teller.end().unwrap();
        assert!(began.elapsed() < 2 * ANSWER_MAX, "{:?}", began.elapsed());
    }

    #[test]
    fn a_stranger_who_answers_with_what_lingers_holds_up_nobody() {
        let family = format!("tautline-told-answers-{}", std::process::id());
        let taken = family.clone();
        // A name that comes before all that a program has.
        let Some(hostile) = as_stranger(move || listener(&format!("{taken}/0-0"))) else {
            return;
        };
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for asker in hostile.incoming() {
                let asker = asker.unwrap();
                kept.push((send_lingering(&asker, b"{"), asker));
            }
        });
        let teller = tell(&family, || b"state".to_vec()).unwrap();
        let began = Instant::now();
        let told = all(&family);
        assert!(began.elapsed() < 2 * ANSWER_MAX, "{:?}", began.elapsed());
        assert_eq!(told, [b"state".to_vec()]);
        teller.end().unwrap();
    }

    #[test]
    fn a_stranger_whose_socket_is_full_holds_nobody_up() {
        let family = format!("tautline-told-full-{}", std::process::id());
        let name = format!("{family}/1-0");
        let full = unnamed(SocketType::STREAM).unwrap();
        rustix::net::bind(&full, &address(&name).unwrap()).unwrap();
        rustix::net::listen(&full, 0).unwrap();
        let askers: Vec<_> = (0..8).map(|_| connect(&name)).collect();
        assert!(askers.iter().any(Result::is_err), "the socket is full");
        assert!(all(&family).is_empty());
    }
}
