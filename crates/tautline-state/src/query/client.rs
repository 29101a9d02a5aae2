//! The side that asks: all at the same time, each for a limited time and a limited number of bytes.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::untrusted::UntrustedSocket;

/// Bytes that are read at once. Lower: more system calls. Higher: more of the stack.
const PART_BYTES: usize = 64 << 10;

/// Limits of processes that are queried together.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long one may say nothing.
    pub silence: Duration,
    /// When all must have said all.
    pub deadline: Instant,
    /// Bytes of one answer.
    pub answer_bytes: u64,
}

/// Bytes that several queried processes have sent, and may send, together.
#[derive(Clone, Debug)]
pub struct Share {
    said: Rc<Cell<u64>>,
    bytes_max: u64,
}

impl Share {
    /// One of so many bytes.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        Self {
            said: Rc::default(),
            bytes_max,
        }
    }

    fn add(&self, bytes: u64) -> bool {
        self.said.set(self.said.get() + bytes);
        self.said.get() <= self.bytes_max
    }
}

/// A queried process, and its answer so far. `T` identifies it.
#[derive(Debug)]
pub struct Query<T> {
    one: T,
    state: State,
    share: Option<Share>,
    said: Vec<u8>,
    /// When it said something last, or was asked.
    heard: Instant,
}

#[derive(Debug)]
enum State {
    Telling(UntrustedSocket),
    Whole,
    Gone,
    Silent,
}

/// Outcome of one query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// All that it said, perhaps nothing.
    Whole(Vec<u8>),
    /// It hung up before it had read the question.
    Gone,
    /// It has said nothing for too long, or too much, or has sent descriptors.
    Silent,
}

impl<T> Query<T> {
    /// Starts a query. Processes that answer at once get no question.
    pub fn new(one: T, socket: UntrustedSocket, question: Option<&[u8]>) -> Self {
        if let Some(question) = question {
            // A fresh connection has room for so little. One that has gone away shows when its answer is read.
            let _gone = socket.send(question);
            socket.end_sending();
        }
        Self {
            one,
            state: State::Telling(socket),
            share: None,
            said: Vec::new(),
            heard: Instant::now(),
        }
    }

    /// Has its bytes count towards a share.
    #[must_use]
    pub fn within(mut self, share: Option<&Share>) -> Self {
        self.share = share.cloned();
        self
    }

    /// When it is given up if it says no more.
    fn end(&self, limits: &Limits) -> Instant {
        (self.heard + limits.silence).min(limits.deadline)
    }

    /// Reads all that there is. The connection ends with the answer, and where something is wrong.
    fn read(&mut self, bytes_max: u64) {
        let State::Telling(socket) = &self.state else {
            return;
        };
        self.heard = Instant::now();
        let mut part = [0; PART_BYTES];
        let state = loop {
            match socket.receive(&mut part) {
                Ok(0) => break State::Whole,
                Ok(bytes) => {
                    self.said.extend_from_slice(&part[..bytes]);
                    let has_room = self.share.as_ref().is_none_or(|one| one.add(bytes as u64));
                    if !has_room || self.said.len() as u64 > bytes_max {
                        break State::Silent;
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset => break State::Gone,
                    _ => break State::Silent,
                },
            }
        };
        self.end_with(state);
    }

    fn end_with(&mut self, state: State) {
        if !matches!(state, State::Whole) {
            self.said = Vec::new();
        }
        self.state = state;
    }
}

/// Receives all answers, until each is complete or its time is over; in the order of the queries.
///
/// # Errors
/// They cannot be waited for: they are more than the process may have descriptors.
pub fn hear<T>(mut asked: Vec<Query<T>>, limits: &Limits) -> io::Result<Vec<(T, Reply)>> {
    loop {
        let now = Instant::now();
        let mut telling = Vec::new();
        for one in &mut asked {
            match one.state {
                State::Telling(_) if one.end(limits) <= now => one.end_with(State::Silent),
                State::Telling(_) => telling.push(one),
                _ => {}
            }
        }
        let Some(end) = telling.iter().map(|one| one.end(limits)).min() else {
            break;
        };
        let sockets = telling.iter().filter_map(|one| match &one.state {
            State::Telling(socket) => Some(PollFd::new(socket, PollFlags::IN)),
            _ => None,
        });
        let mut polled: Vec<PollFd<'_>> = sockets.collect();
        // Some seconds at most, so it fits.
        let timeout = Timespec::try_from(end.saturating_duration_since(now)).unwrap_or_default();
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
        for (one, _) in telling.into_iter().zip(ready).filter(|(_, ready)| *ready) {
            one.read(limits.answer_bytes);
        }
    }
    let heard = asked.into_iter().map(|asked| {
        let heard = match asked.state {
            State::Whole => Reply::Whole(asked.said),
            State::Gone => Reply::Gone,
            State::Telling(_) | State::Silent => Reply::Silent,
        };
        (asked.one, heard)
    });
    Ok(heard.collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use rustix::net::{SendFlags, SocketType};

    use super::*;
    use crate::untrusted::testing::{attack, pair};

    const SILENCE: Duration = Duration::from_secs(1);

    fn limits(time: Duration) -> Limits {
        Limits {
            silence: SILENCE,
            deadline: Instant::now() + time,
            answer_bytes: 1 << 20,
        }
    }

    /// A query, and the other end of the connection.
    fn asked(name: &str) -> (Query<&str>, UnixStream) {
        let (socket, telling) = pair(SocketType::STREAM);
        (Query::new(name, socket, None), telling.into())
    }

    fn whole(said: &[u8]) -> Reply {
        Reply::Whole(said.to_vec())
    }

    #[test]
    fn one_that_says_something_is_heard_out() {
        let (slow, mut telling) = asked("slow");
        let told = std::thread::spawn(move || {
            // Longer in all than one may be silent.
            for part in [&b"["[..], b"1", b",", b"2", b"]"] {
                std::thread::sleep(SILENCE / 4);
                telling.write_all(part).unwrap();
            }
        });
        let (stopped, _telling) = asked("stopped");
        let heard = hear(vec![slow, stopped], &limits(5 * SILENCE)).unwrap();
        assert_eq!(
            heard,
            [("slow", whole(b"[1,2]")), ("stopped", Reply::Silent)]
        );
        told.join().unwrap();
    }

    #[test]
    fn an_answer_that_trickles_is_given_up_as_a_whole() {
        let (trickles, mut telling) = asked("trickles");
        let told = std::thread::spawn(move || {
            // A byte every fifth of the limit would go on for ever.
            while telling.write_all(b" ").is_ok() {
                std::thread::sleep(SILENCE / 5);
            }
        });
        let (prompt, mut telling) = asked("prompt");
        telling.write_all(b"7").unwrap();
        drop(telling);
        let heard = hear(vec![trickles, prompt], &limits(SILENCE)).unwrap();
        let expected = [("trickles", Reply::Silent), ("prompt", whole(b"7"))];
        assert_eq!(heard, expected, "the one is not held up by the other");
        told.join().unwrap();
    }

    #[test]
    fn too_long_an_answer_and_more_than_a_share_are_not_kept() {
        let share = Share::new(1 << 20);
        let mut tellings = Vec::new();
        let mut all = Vec::new();
        let lengths = [300_000, 2 << 20, 600_000, 200_000];
        for (number, length) in lengths.into_iter().enumerate() {
            let (socket, telling) = pair(SocketType::STREAM);
            let mut telling = UnixStream::from(telling);
            tellings.push(std::thread::spawn(move || {
                telling.write_all(&vec![b'x'; length])
            }));
            // The second has no share.
            let within = (number != 1).then_some(&share);
            all.push(Query::new(number, socket, None).within(within));
        }
        let heard = hear(all, &limits(5 * SILENCE)).unwrap();
        let is_whole: Vec<bool> = heard
            .iter()
            .map(|(_, heard)| matches!(heard, Reply::Whole(_)))
            .collect();
        assert!(!is_whole[1]);
        let of_share = [is_whole[0], is_whole[2], is_whole[3]];
        assert!(
            of_share.contains(&false) && of_share.contains(&true),
            "{of_share:?}"
        );
        for telling in tellings {
            let _hung_up_on = telling.join().unwrap();
        }
    }

    #[test]
    fn an_answer_with_a_descriptor_that_lingers_holds_nobody_up() {
        let mut kept = Vec::new();
        let mut all = Vec::new();
        for number in 0..20 {
            let (asked, telling) = asked("hostile");
            let flags = match number % 2 {
                0 => SendFlags::empty(),
                _ => SendFlags::OOB,
            };
            rustix::net::send(&telling, b"{", SendFlags::empty()).unwrap();
            let (other, sent) = attack(&telling, b"{", flags);
            assert!(sent, "as before Linux 6.16");
            kept.push((other, telling));
            all.push(asked);
        }
        let (honest, mut telling) = asked("honest");
        telling.write_all(b"7").unwrap();
        drop(telling);
        all.push(honest);
        let began = Instant::now();
        let heard = hear(all, &limits(SILENCE)).unwrap();
        assert!(began.elapsed() < 3 * SILENCE, "{:?}", began.elapsed());
        assert_eq!(heard.last(), Some(&("honest", whole(b"7"))));
        let hostile = &heard[..20];
        assert!(hostile.iter().all(|(_, heard)| *heard == Reply::Silent));
    }
}
