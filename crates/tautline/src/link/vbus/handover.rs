//! Objects that a handshake hands over: memories, an event, and the refusal of those that are not as they must be. The
//! service thread decides who sends which of them when.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use tautline_proto::wire::PortNumber;
use tautline_shm::vbus::handshake::{INDEX_CONSUMER, Message, Refusal, Step};
use tautline_shm::vbus::layout::{Identity, PRODUCERS_MAX, ROLE_CONSUMER, ROLE_PRODUCER};
use tautline_shm::vbus::shape::{self, consumer_bytes};

use super::access::Share;
use super::closer::{Foreign, PeerSocket};
use super::incoming::{Incoming, ReceiverShared};
use super::sender::{Established, SenderShared};
use super::view::View;
use crate::address::NodeName;
use crate::sys::aio::{PeerEvent, Signaller};
use crate::sys::clock;
use crate::sys::event::Event;
use crate::sys::seqpacket;
use crate::sys::shared::{OwnMemory, PeerMemory};

pub(super) fn greeting(step: Step, bus_receiver: &ReceiverShared) -> Message {
    Message::new(
        step,
        bus_receiver.node.bytes(),
        bus_receiver.number.get(),
        std::process::id(),
    )
}

/// Consumer: offers an entry to who wants to connect.
pub(super) fn offer(
    bus_receiver: &ReceiverShared,
    socket: &PeerSocket,
    message: &Message,
    share: Share,
) -> Result<(usize, u64), Refusal> {
    let port =
        PortNumber::new(message.port).filter(|_| message.peer_port == bus_receiver.number.get());
    let (Some(port), Some(node)) = (port, NodeName::from_bytes(message.node)) else {
        return Err(Refusal::NotHere);
    };
    let (index, epoch, event) = bus_receiver.offer(node, port, share).ok_or(Refusal::Full)?;
    let offer = Message {
        epoch,
        index: index as u32,
        peer_port: message.port,
        memory_bytes: consumer_bytes() as u64,
        ..greeting(Step::Offer, bus_receiver)
    };
    let descriptors = [bus_receiver.file(), event.as_fd()];
    // The producer's memory is due next.
    seqpacket::pass_rights(socket.as_fd(), true);
    match seqpacket::send(socket.as_fd(), &offer.to_bytes(), &descriptors) {
        Ok(()) => Ok((index, epoch)),
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
    let _sent = seqpacket::send(socket.as_fd(), &refused.to_bytes(), &[]);
}

/// Consumer: maps what the producer has made, and checks what it says of itself.
pub(super) fn admit(
    bus_receiver: &ReceiverShared,
    message: &Message,
    (index, epoch): (usize, u64),
    descriptors: Foreign,
) -> Result<Incoming, Refusal> {
    let bytes = bus_receiver.shape.producer_bytes();
    let node = NodeName::from_bytes(message.node).ok_or(Refusal::NotHere)?;
    let port = PortNumber::new(message.port).ok_or(Refusal::NotHere)?;
    if message.epoch != epoch || message.memory_bytes != bytes as u64 {
        return Err(Refusal::Memory);
    }
    match descriptors.all().as_slice() {
        [file] => PeerMemory::check(*file, bytes).map_err(|_| Refusal::Memory)?,
        _ => return Err(Refusal::Memory),
    }
    let [file] = descriptors.take().ok_or(Refusal::Memory)?;
    let memory = PeerMemory::map(file, bytes).map_err(|_| Refusal::Memory)?;
    let memory = View::producer(memory, bus_receiver.shape);
    let identity = memory.memory().head.identity.read();
    let found = shape::check(&identity, ROLE_PRODUCER, bytes as u64);
    let is_ours = found == Ok(bus_receiver.shape)
        && identity.epoch == epoch
        && identity.port == message.port
        && identity.peer_port == bus_receiver.number.get()
        && identity.node == message.node;
    if !is_ours {
        return Err(Refusal::Memory);
    }
    Ok(Incoming::new(memory, index, &identity, node, port))
}

/// Producer: checks the port's memory, and makes one for it. `signaller`: for a port of another user, who may have
/// writes to its event wait.
pub(super) fn make(
    node: NodeName,
    bus_sender: &SenderShared,
    message: &Message,
    descriptors: Foreign,
    signaller: Option<Arc<Signaller>>,
) -> io::Result<Established> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    match descriptors.all().as_slice() {
        [file, event] => {
            PeerMemory::check(*file, consumer_bytes())?;
            Event::check(*event)?;
        }
        _ => return Err(wrong()),
    }
    let [file, event] = descriptors.take().ok_or_else(wrong)?;
    let event = match signaller {
        Some(signaller) => PeerEvent::Stranger(event, signaller),
        None => PeerEvent::Trusted(event.into()),
    };
    let peer = View::consumer(PeerMemory::map(file, consumer_bytes())?);
    let identity = peer.memory().head.identity.read();
    let shape = shape::check(&identity, ROLE_CONSUMER, consumer_bytes() as u64)
        .map_err(io::Error::other)?;
    let index = message.index as usize;
    let is_meant = identity.port == bus_sender.to.get()
        && identity.node == bus_sender.node.bytes()
        && message.epoch != 0
        && index < PRODUCERS_MAX;
    if !is_meant {
        return Err(wrong());
    }
    let own = View::producer(OwnMemory::new(shape.producer_bytes())?, shape);
    let established = Established::new(own, peer, event, shape, index);
    established.memory().head.identity.announce(&Identity {
        epoch: message.epoch,
        port: bus_sender.from.get(),
        peer_port: bus_sender.to.get(),
        process: std::process::id(),
        made_ns: clock::monotonic().as_nanos(),
        node: node.bytes(),
        peer_node: bus_sender.node.bytes(),
        ..shape.producer_identity()
    });
    Ok(established)
}

/// Consumer: shows its memories to a watcher.
pub(super) fn show(bus_receiver: &ReceiverShared, socket: &PeerSocket) -> io::Result<()> {
    let view = Message {
        index: INDEX_CONSUMER,
        memory_bytes: consumer_bytes() as u64,
        ..greeting(Step::View, bus_receiver)
    };
    seqpacket::send(socket.as_fd(), &view.to_bytes(), &[bus_receiver.file()])?;
    for incoming in bus_receiver.live() {
        let view = Message {
            epoch: incoming.epoch,
            index: incoming.index() as u32,
            peer_port: bus_receiver.number.get(),
            memory_bytes: bus_receiver.shape.producer_bytes() as u64,
            ..Message::new(
                Step::View,
                incoming.node.bytes(),
                incoming.port.get(),
                incoming.process,
            )
        };
        seqpacket::send(socket.as_fd(), &view.to_bytes(), &[incoming.file()])?;
    }
    let end = greeting(Step::End, bus_receiver);
    seqpacket::send(socket.as_fd(), &end.to_bytes(), &[])
}
