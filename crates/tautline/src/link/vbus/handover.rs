//! Objects that a handshake hands over: memories, an event, and the refusal of those that are not as they must be. The
//! service thread decides who sends which of them when.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tautline_proto::wire::PortNumber;
use tautline_shm::vbus::handshake::{INDEX_CONSUMER, Message, Refusal, Step};
use tautline_shm::vbus::layout::{
    Identity, KIND_QUEUING, KIND_SAMPLING, PRODUCERS_MAX, ROLE_CONSUMER, ROLE_PRODUCER,
    ROLE_PUBLISHER,
};
use tautline_shm::vbus::shape::{self, Kind, Shape, consumer_bytes};
use tautline_state::Event;

use super::entry::PeerSocket;
use super::incoming::{Incoming, ReceiverShared};
use super::publisher::{PublisherShared, Reader};
use super::sender::{Established, SenderShared};
use super::view::{ConsumerView, ProducerView};
use crate::address::NodeName;
use crate::sys::clock;
use crate::sys::shared::SharedMemory;
use crate::sys::unix;

pub(super) fn greeting(step: Step, bus_receiver: &ReceiverShared) -> Message {
    Message::new(
        step,
        bus_receiver.node.bytes(),
        bus_receiver.number.get(),
        std::process::id(),
    )
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Offered {
    pub(super) index: usize,
    epoch: u64,
    /// Memory that is due for it: its role, and its shape.
    due: (u16, Shape),
}

/// Consumer: offers an entry to who wants to connect: a producer, or a publisher that it follows, with the shape of
/// what that publishes.
pub(super) fn offer(
    bus_receiver: &ReceiverShared,
    socket: &PeerSocket,
    message: &Message,
    published: Option<Shape>,
) -> Result<Offered, Refusal> {
    let port =
        PortNumber::new(message.port).filter(|_| message.peer_port == bus_receiver.number.get());
    let (Some(port), Some(node)) = (port, NodeName::from_bytes(message.node)) else {
        return Err(Refusal::NotHere);
    };
    let (index, epoch) = bus_receiver.offer(node, port).ok_or(Refusal::Full)?;
    let offer = Message {
        epoch,
        index: index as u32,
        peer_port: message.port,
        memory_bytes: consumer_bytes() as u64,
        ..greeting(Step::Offer, bus_receiver)
    };
    let descriptors = [bus_receiver.file(), bus_receiver.descriptor()];
    match unix::send(socket.as_fd(), &offer.to_bytes(), &descriptors) {
        Ok(()) => Ok(Offered {
            index,
            epoch,
            due: match published {
                Some(shape) => (ROLE_PUBLISHER, shape),
                None => (ROLE_PRODUCER, bus_receiver.shape),
            },
        }),
        Err(_) => {
            bus_receiver.take_back(index);
            Err(Refusal::NotHere)
        }
    }
}

pub(super) fn refuse(bus_receiver: &ReceiverShared, socket: &PeerSocket, reason: Refusal) {
    let refused = Message {
        reason: reason as u32,
        ..greeting(Step::Refused, bus_receiver)
    };
    // If it is gone, it needs no answer.
    let _sent = unix::send(socket.as_fd(), &refused.to_bytes(), &[]);
}

/// Consumer: maps what the producer has made, and checks what it says of itself.
pub(super) fn admit(
    bus_receiver: &ReceiverShared,
    message: &Message,
    offered: Offered,
    descriptors: Vec<OwnedFd>,
) -> Result<Incoming, Refusal> {
    let Offered {
        index,
        epoch,
        due: (role, shape),
    } = offered;
    let bytes = shape.producer_bytes();
    let node = NodeName::from_bytes(message.node).ok_or(Refusal::NotHere)?;
    let port = PortNumber::new(message.port).ok_or(Refusal::NotHere)?;
    if message.epoch != epoch || message.memory_bytes != bytes as u64 {
        return Err(Refusal::Memory);
    }
    let [file] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| Refusal::Memory)?;
    let memory = SharedMemory::of_peer(file, bytes).map_err(|_| Refusal::Memory)?;
    let memory = ProducerView::producer(memory, shape);
    let identity = memory.memory().head.identity.read();
    // A publisher's memory is not for this consumer alone.
    let is_for_us = match role {
        ROLE_PUBLISHER => identity.epoch != 0 && identity.peer_port == 0,
        _ => identity.epoch == epoch && identity.peer_port == bus_receiver.number.get(),
    };
    let is_ours = shape::check(&identity, role, bytes as u64) == Ok(shape)
        && is_for_us
        && identity.port == message.port
        && identity.node == message.node;
    if !is_ours {
        return Err(Refusal::Memory);
    }
    let sender = (node, port);
    Ok(Incoming::new(memory, shape, index, &identity, sender))
}

/// Where the depth of a queuing port stands in the index of a publisher's answer, above the kind.
const DEPTH_SHIFT: u32 = 16;

/// Shape in a publisher's answer to a reader.
pub(super) fn published_shape(connect: &Message) -> Option<Shape> {
    let depth = connect.index >> DEPTH_SHIFT;
    let shape = Shape {
        kind: match connect.index as u16 {
            KIND_QUEUING => Kind::Queuing { depth },
            KIND_SAMPLING if depth == 0 => Kind::Sampling,
            _ => return None,
        },
        message_bytes_max: u32::try_from(connect.memory_bytes).ok()?,
    };
    shape.check().ok()
}

/// Publisher: answers a reader as a producer that has connected, and tells the shape of what it publishes.
pub(super) fn welcome(
    bus_receiver: &ReceiverShared,
    publisher: &PublisherShared,
    socket: &PeerSocket,
    reader: PortNumber,
) -> io::Result<()> {
    let depth = match publisher.shape.kind {
        Kind::Queuing { depth } => depth,
        Kind::Sampling => 0,
    };
    let connect = Message {
        epoch: bus_receiver.types.sent_hash(),
        index: depth << DEPTH_SHIFT | u32::from(publisher.shape.kind_number()),
        memory_bytes: publisher.shape.message_bytes_max.into(),
        peer_port: reader.get(),
        ..greeting(Step::Connect, bus_receiver)
    };
    unix::send(socket.as_fd(), &connect.to_bytes(), &[])
}

/// Publisher: checks the memory that a reader offers.
pub(super) fn reader(
    (node, port): (NodeName, PortNumber),
    message: &Message,
    descriptors: Vec<OwnedFd>,
) -> io::Result<Reader> {
    let (memory, bell, identity) = offered_memory(descriptors)?;
    let index = message.index as usize;
    if identity.port != port.get() || identity.node != node.bytes() || index >= PRODUCERS_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Reader {
        memory,
        bell,
        index,
        node,
        port,
        process: message.process,
    })
}

/// A consumer's memory and event, checked, and what the memory says of itself.
fn offered_memory(descriptors: Vec<OwnedFd>) -> io::Result<(ConsumerView, Event, Identity)> {
    let [file, event] = <[OwnedFd; 2]>::try_from(descriptors)
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Event::check(event.as_fd())?;
    let memory = ConsumerView::consumer(SharedMemory::of_peer(file, consumer_bytes())?);
    let identity = memory.memory().head.identity.read();
    Ok((memory, event.into(), identity))
}

/// Producer: checks the memory of a port, and makes one for it.
pub(super) fn make(
    node: NodeName,
    bus_sender: &SenderShared,
    message: &Message,
    descriptors: Vec<OwnedFd>,
) -> io::Result<Established> {
    let (peer, bell, identity) = offered_memory(descriptors)?;
    let shape = shape::check(&identity, ROLE_CONSUMER, consumer_bytes() as u64)
        .map_err(io::Error::other)?;
    let index = message.index as usize;
    let is_meant = identity.port == bus_sender.to.get()
        && identity.node == bus_sender.node.bytes()
        && message.epoch != 0
        && index < PRODUCERS_MAX;
    if !is_meant {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let own = ProducerView::producer(SharedMemory::own(shape.producer_bytes())?, shape);
    own.memory().head.identity.announce(&Identity {
        epoch: message.epoch,
        port: bus_sender.from.get(),
        peer_port: bus_sender.to.get(),
        process: std::process::id(),
        made_ns: clock::monotonic().as_nanos(),
        node: node.bytes(),
        peer_node: bus_sender.node.bytes(),
        ..shape.producer_identity()
    });
    Ok(Established {
        own,
        peer,
        bell,
        shape,
        index,
    })
}

/// Consumer: shows its memory, and those of its producers, to a watcher.
pub(super) fn show(bus_receiver: &ReceiverShared, socket: &PeerSocket) -> io::Result<()> {
    let own = Message {
        index: INDEX_CONSUMER,
        memory_bytes: consumer_bytes() as u64,
        ..greeting(Step::View, bus_receiver)
    };
    unix::send(socket.as_fd(), &own.to_bytes(), &[bus_receiver.file()])?;
    for incoming in bus_receiver.live() {
        let (node, port) = (incoming.node.bytes(), incoming.port.get());
        let view = Message {
            epoch: incoming.epoch,
            index: incoming.index as u32,
            peer_port: bus_receiver.number.get(),
            memory_bytes: incoming.shape.producer_bytes() as u64,
            ..Message::new(Step::View, node, port, incoming.process)
        };
        unix::send(socket.as_fd(), &view.to_bytes(), &[incoming.file()])?;
    }
    let end = greeting(Step::End, bus_receiver);
    unix::send(socket.as_fd(), &end.to_bytes(), &[])
}
