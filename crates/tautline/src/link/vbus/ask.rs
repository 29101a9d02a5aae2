//! Asking a port for its memories, as watchers do.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tautline_shm::vbus::handshake::{MESSAGE_BYTES, Message, Step};
use tautline_shm::vbus::layout::PRODUCERS_MAX;
use tautline_state::policy::be_ordinary;
use tautline_state::untrusted::UntrustedSocket;

use super::peer::is_trusted;
use super::publisher::READERS_MAX;
use crate::address::PortName;
use crate::error::ObserveError;
use crate::sys::seqpacket::{self, Received};
use crate::sys::wait as poll;

/// How long a port may take to show itself. Lower: a busy machine's ports seem stopped. Higher: a stopped one holds up
/// a list of all for longer.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// The views that a port shows on this connection.
pub(super) fn ask(
    socket: UntrustedSocket,
    name: PortName,
) -> Result<Vec<(Message, OwnedFd)>, ObserveError> {
    let io = |source| ObserveError::Io { port: name, source };
    if is_trusted(socket.peer().map_err(io)?.uid) {
        let views = views(&socket, name);
        drop(socket.trust());
        views
    } else {
        views_of_stranger(socket, name)
    }
}

/// The views that another user's port shows, by a thread of its own: what such a port hands over may block the thread
/// that closes it, and a descriptor that is not memory is closed there.
fn views_of_stranger(
    socket: UntrustedSocket,
    name: PortName,
) -> Result<Vec<(Message, OwnedFd)>, ObserveError> {
    let (done, wait) = std::sync::mpsc::channel();
    let work = move || {
        be_ordinary();
        let result = views(&socket, name).and_then(|views| {
            let are_memories = views
                .iter()
                .all(|(_, file)| rustix::fs::fcntl_get_seals(file).is_ok());
            if are_memories {
                Ok(views)
            } else {
                // Before anything is closed.
                let _waits = done.send(Err(ObserveError::Nonsense { port: name }));
                Err(ObserveError::Nonsense { port: name })
            }
        });
        // The caller does not wait any more.
        let _waits = done.send(result);
    };
    std::thread::Builder::new()
        .name("taut-vbus-watch".to_owned())
        .spawn(work)
        .map_err(|source| ObserveError::Io { port: name, source })?;
    // A little longer than the port has to answer.
    match wait.recv_timeout(ANSWER_LIMIT * 2) {
        Ok(result) => result,
        Err(_) => Err(ObserveError::Silent { port: name }),
    }
}

fn views(
    socket: &UntrustedSocket,
    name: PortName,
) -> Result<Vec<(Message, OwnedFd)>, ObserveError> {
    let nonsense = || ObserveError::Nonsense { port: name };
    let io = |source| ObserveError::Io { port: name, source };
    let deadline = std::time::Instant::now() + ANSWER_LIMIT;
    let mut views = Vec::new();
    let mut buffer = [0; MESSAGE_BYTES + 1];
    // The port itself, each producer, what it publishes, each reader, and the end.
    for _ in 0..PRODUCERS_MAX + READERS_MAX + 3 {
        let (bytes, descriptors) = loop {
            match seqpacket::receive(socket.as_fd(), &mut buffer).map_err(io)? {
                Received::Message(bytes, descriptors) => break (bytes, descriptors),
                Received::HungUp => return Err(nonsense()),
                Received::Nothing => {
                    let left = deadline.saturating_duration_since(std::time::Instant::now());
                    if left.is_zero() {
                        return Err(ObserveError::Silent { port: name });
                    }
                    poll::readable(socket.as_fd(), Some(left)).map_err(io)?;
                }
            }
        };
        let message = Message::from_bytes(&buffer[..bytes]).map_err(|_| nonsense())?;
        match (message.step, <[OwnedFd; 1]>::try_from(descriptors)) {
            (Step::View, Ok([file])) => views.push((message, file)),
            (Step::End, _) => return Ok(views),
            _ => return Err(nonsense()),
        }
    }
    Err(nonsense())
}
