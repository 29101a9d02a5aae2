//! Those who connect to a port: producers, watchers and readers, until they are let in; and publishers that a port
//! follows, which answer as producers do.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use tautline_proto::wire::PortNumber;
use tautline_shm::vbus::handshake::{HandshakeError, Message, Refusal, Step};
use tautline_state::untrusted::UntrustedSocket;

use super::super::connect_state::Subscription;
use super::super::entry::{Arriving, Entry, PeerSocket, ReaderEntry};
use super::super::handover::{Offered, admit, greeting, offer, refuse, show};
use super::super::incoming::ReceiverShared;
use super::super::types::Peer;
use super::Worker;
use crate::address::NodeName;
use crate::sys::unix;
use crate::types::Direction;

impl Worker {
    /// Lets in who may come in; only then is anything kept for it.
    pub(super) fn arrive(&mut self, bus_receiver: Arc<ReceiverShared>, socket: UntrustedSocket) {
        let Ok(socket) = PeerSocket::new(socket) else {
            return;
        };
        self.add(Entry::Arriving(Arriving {
            bus_receiver,
            socket,
            since: Instant::now(),
            offered: None,
            following: None,
        }));
    }

    pub(super) fn hear_arrival(
        &self,
        mut arrival: Arriving,
        message: Result<(Message, &[u8]), HandshakeError>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Entry, Entry> {
        let Arriving {
            bus_receiver,
            socket,
            offered,
            following,
            ..
        } = &arrival;
        let refusal = match (&message, offered) {
            (Ok((message, _)), None) if message.step == Step::Connect => {
                match self.offer(bus_receiver, socket, message, following.as_deref()) {
                    // Nothing is offered to one of another type, which may tell its own now.
                    Ok(offered) => {
                        arrival.offered = offered;
                        return Ok(Entry::Arriving(arrival));
                    }
                    Err(reason) => Some(reason),
                }
            }
            (Ok((message, text)), _) if message.step == Step::Refused => {
                match following {
                    Some(following) => self.refused_by_publisher(following, message, text),
                    None => self.told(bus_receiver, socket, message, text),
                }
                None
            }
            (Ok((message, _)), None) if message.step == Step::Observe && following.is_none() => {
                // Shown, and then let go.
                let _gone = show(bus_receiver, socket);
                None
            }
            (Ok((message, _)), None) if message.step == Step::Follow && following.is_none() => {
                match self.welcome(bus_receiver, socket, message) {
                    Ok((publisher, peer)) => {
                        return Ok(Entry::Reader(ReaderEntry {
                            bus_receiver: arrival.bus_receiver,
                            publisher,
                            socket: arrival.socket,
                            since: Some(arrival.since),
                            peer,
                            reader: None,
                        }));
                    }
                    Err(reason) => Some(reason),
                }
            }
            (Ok((message, _)), Some(offered)) if message.step == Step::Here => {
                match admit(bus_receiver, message, *offered, descriptors) {
                    Ok(incoming) => return Ok(let_in(arrival, Arc::new(incoming))),
                    Err(reason) => Some(reason),
                }
            }
            (Err(HandshakeError::OtherVersion), _) => Some(Refusal::Version),
            _ => Some(Refusal::NotHere),
        };
        if let Some(reason) = refusal {
            refuse(bus_receiver, socket, reason);
        }
        Err(Entry::Arriving(arrival))
    }

    /// Offers an entry to a producer whose name is its own; none to one that declares another type, which is told.
    fn offer(
        &self,
        bus_receiver: &ReceiverShared,
        socket: &PeerSocket,
        message: &Message,
        following: Option<&Subscription>,
    ) -> Result<Option<Offered>, Refusal> {
        let (peer, published) = match following {
            None => {
                let producer = self.producer(socket, message);
                (producer.ok_or(Refusal::Denied)?, None)
            }
            Some(following) => {
                let shape = self.publisher(following, socket, message)?;
                let peer = (following.node, following.port);
                (peer, Some(shape))
            }
        };
        if let Some(own) = bus_receiver.types.refuses(message) {
            let greeting = greeting(Step::Refused, bus_receiver);
            bus_receiver.types.refuse(socket, peer, greeting, own);
            return Ok(None);
        }
        offer(bus_receiver, socket, message, published).map(Some)
    }

    /// A producer that was refused for its type tells its declaration.
    fn told(
        &self,
        bus_receiver: &ReceiverShared,
        socket: &PeerSocket,
        message: &Message,
        text: &[u8],
    ) {
        if let Some(peer) = self.producer(socket, message) {
            let _shown_in_status = bus_receiver.types.explain(peer, Direction::Receives, text);
        }
    }

    /// Name and port of a producer, if the name belongs to its user.
    pub(super) fn producer(&self, socket: &PeerSocket, message: &Message) -> Option<Peer> {
        let node = NodeName::from_bytes(message.node)?;
        let port = PortNumber::new(message.port)?;
        let owner = self.directory.owner(node).ok()?;
        (owner == socket.user).then_some((node, port))
    }
}

/// Consumer: a producer, or a publisher, whose memory is mapped.
fn let_in(arrival: Arriving, incoming: Arc<super::super::incoming::Incoming>) -> Entry {
    let Arriving {
        bus_receiver,
        socket,
        following,
        ..
    } = arrival;
    bus_receiver.connect(&incoming);
    let accepted = Message {
        epoch: incoming.epoch,
        index: incoming.index as u32,
        ..greeting(Step::Accepted, &bus_receiver)
    };
    // If it is gone, it hangs up too.
    let _sent = unix::send(socket.as_fd(), &accepted.to_bytes(), &[]);
    if let Some(following) = &following {
        following.attempt.set(true);
    }
    Entry::Producer {
        bus_receiver,
        socket,
        incoming,
        following,
    }
}
