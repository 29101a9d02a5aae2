//! Objects that a handshake hands over: memories, an event, and the refusal of those that are not as they must be. The
//! service thread decides who sends which of them when.

use std::io;
use std::os::fd::AsFd;

use tautline_proto::wire::PortNumber;
use tautline_shm::vbus::handshake::{INDEX_CONSUMER, Message, Refusal, Step};
use tautline_shm::vbus::layout::{Identity, PRODUCERS_MAX, ROLE_CONSUMER, ROLE_PRODUCER};
use tautline_shm::vbus::shape::{self, consumer_bytes};

use super::access::Share;
use super::closer::{Foreign, PeerSocket};
use super::incoming::{Incoming, InletShared};
use super::outlet::{Established, OutletShared};
use super::view::View;
use crate::address::NodeName;
use crate::sys::clock;
use crate::sys::event::Event;
use crate::sys::seqpacket;
use crate::sys::shared::{OwnMemory, PeerMemory};

pub(super) fn greeting(step: Step, inlet: &InletShared) -> Message {
    Message::new(
        step,
        inlet.node.bytes(),
        inlet.number.get(),
        std::process::id(),
    )
}

/// Consumer: offers an entry to who wants to connect.
pub(super) fn offer(
    inlet: &InletShared,
    socket: &PeerSocket,
    message: &Message,
    share: Share,
) -> Result<(usize, u64), Refusal> {
    let port = PortNumber::new(message.port).filter(|_| message.peer_port == inlet.number.get());
    let (Some(port), Some(node)) = (port, NodeName::from_bytes(message.node)) else {
        return Err(Refusal::NotHere);
    };
    let (index, epoch, event) = inlet.offer(node, port, share).ok_or(Refusal::Full)?;
    let offer = Message {
        epoch,
        index: index as u32,
        peer_port: message.port,
        memory_bytes: consumer_bytes() as u64,
        ..greeting(Step::Offer, inlet)
    };
    let descriptors = [inlet.file(), event.as_fd()];
    // The producer's memory is due next.
    seqpacket::pass_rights(socket.as_fd(), true);
    match seqpacket::send(socket.as_fd(), &offer.to_bytes(), &descriptors) {
        Ok(()) => Ok((index, epoch)),
        Err(_) => {
            inlet.take_back(index);
            Err(Refusal::NotHere)
        }
    }
}

pub(super) fn refuse(inlet: &InletShared, socket: &PeerSocket, reason: Refusal) {
    let refused = Message {
        reason: reason as u32,
        ..greeting(Step::Refused, inlet)
    };
    // If it is gone, it needs no answer.
    let _sent = seqpacket::send(socket.as_fd(), &refused.to_bytes(), &[]);
}

/// Consumer: maps what the producer has made, and checks what it says of itself.
pub(super) fn admit(
    inlet: &InletShared,
    message: &Message,
    (index, epoch): (usize, u64),
    descriptors: Foreign,
) -> Result<Incoming, Refusal> {
    let bytes = inlet.shape.producer_bytes();
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
    let memory = View::producer(memory, inlet.shape);
    let identity = memory.memory().head.identity.read();
    let found = shape::check(&identity, ROLE_PRODUCER, bytes as u64);
    let is_ours = found == Ok(inlet.shape)
        && identity.epoch == epoch
        && identity.port == message.port
        && identity.peer_port == inlet.number.get()
        && identity.node == message.node;
    if !is_ours {
        return Err(Refusal::Memory);
    }
    Ok(Incoming::new(memory, index, &identity, node, port))
}

/// Producer: checks the port's memory, and makes one for it.
pub(super) fn make(
    node: NodeName,
    outlet: &OutletShared,
    message: &Message,
    descriptors: Foreign,
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
    let peer = View::consumer(PeerMemory::map(file, consumer_bytes())?);
    let identity = peer.memory().head.identity.read();
    let shape = shape::check(&identity, ROLE_CONSUMER, consumer_bytes() as u64)
        .map_err(io::Error::other)?;
    let index = message.index as usize;
    let is_meant = identity.port == outlet.to.get()
        && identity.node == outlet.node.bytes()
        && message.epoch != 0
        && index < PRODUCERS_MAX;
    if !is_meant {
        return Err(wrong());
    }
    let own = View::producer(OwnMemory::new(shape.producer_bytes())?, shape);
    let established = Established::new(own, peer, event, shape, index);
    established.memory().head.identity.announce(&Identity {
        epoch: message.epoch,
        port: outlet.from.get(),
        peer_port: outlet.to.get(),
        process: std::process::id(),
        made_ns: clock::monotonic().as_nanos(),
        node: node.bytes(),
        peer_node: outlet.node.bytes(),
        ..shape.producer_identity()
    });
    Ok(established)
}

/// Consumer: shows its memories to a watcher.
pub(super) fn show(inlet: &InletShared, socket: &PeerSocket) -> io::Result<()> {
    let view = Message {
        index: INDEX_CONSUMER,
        memory_bytes: consumer_bytes() as u64,
        ..greeting(Step::View, inlet)
    };
    seqpacket::send(socket.as_fd(), &view.to_bytes(), &[inlet.file()])?;
    for incoming in inlet.live() {
        let view = Message {
            epoch: incoming.epoch,
            index: incoming.index() as u32,
            peer_port: inlet.number.get(),
            memory_bytes: inlet.shape.producer_bytes() as u64,
            ..Message::new(
                Step::View,
                incoming.node.bytes(),
                incoming.port.get(),
                incoming.process,
            )
        };
        seqpacket::send(socket.as_fd(), &view.to_bytes(), &[incoming.file()])?;
    }
    let end = greeting(Step::End, inlet);
    seqpacket::send(socket.as_fd(), &end.to_bytes(), &[])
}
