//! Publishing for many: at the publisher's end those who read, at a reader's end the publishers that it follows.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use tautline_shm::vbus::handshake::{HandshakeError, Message, Refusal, Step};
use tautline_shm::vbus::shape::Shape;

use super::super::connect_state::{Obstacle, Subscription};
use super::super::entry::{Arriving, Entry, PeerSocket, ReaderEntry};
use super::super::handover::{greeting, published_shape, reader, refuse, welcome};
use super::super::incoming::ReceiverShared;
use super::super::publisher::{PublisherShared, Reader};
use super::super::types::{Peer, UNTOLD};
use super::Worker;
use crate::sys::unix;
use crate::types::Direction;

impl Worker {
    pub(super) fn follow(&mut self, following: Arc<Subscription>) {
        let reached = self.reach(following.node, following.port);
        let reached = reached.inspect(|socket| {
            let follow = Message {
                peer_port: following.port.get(),
                ..greeting(Step::Follow, &following.bus_receiver)
            };
            // One that has no place hangs up before this; its refusal can be read all the same.
            let _sent = unix::send(socket.as_fd(), &follow.to_bytes(), &[]);
        });
        match reached {
            Ok(socket) => self.add(Entry::Arriving(Arriving {
                bus_receiver: Arc::clone(&following.bus_receiver),
                socket,
                since: Instant::now(),
                offered: None,
                following: Some(following),
            })),
            Err(_) => {
                following.attempt.settle();
                self.lost.push(following);
            }
        }
    }

    /// Reader: the shape of what a publisher publishes, if its answer is the one that is due, and fits the port.
    pub(super) fn publisher(
        &self,
        following: &Subscription,
        socket: &PeerSocket,
        connect: &Message,
    ) -> Result<Shape, Refusal> {
        let owner = self.directory.owner(following.node);
        let is_meant = connect.node == following.node.bytes()
            && connect.port == following.port.get()
            && owner.is_ok_and(|owner| owner == socket.user);
        if !is_meant {
            return Err(Refusal::Denied);
        }
        let published = published_shape(connect).ok_or(Refusal::Memory)?;
        if !fits(published, following.bus_receiver.shape) {
            following.attempt.refuse(Obstacle::Shape(published));
            return Err(Refusal::OtherShape);
        }
        Ok(published)
    }

    pub(super) fn refused_by_publisher(
        &self,
        following: &Subscription,
        message: &Message,
        text: &[u8],
    ) {
        let peer = (following.node, following.port);
        if message.reason == Refusal::OtherType as u32 {
            let types = &following.bus_receiver.types;
            let difference = types.explain(peer, Direction::Receives, text);
            let difference = difference.unwrap_or_else(|| UNTOLD.to_owned());
            following.attempt.refuse(Obstacle::Type(difference));
        }
    }

    /// Publisher: a reader asks; the memory, and the reader's name.
    pub(super) fn welcome(
        &self,
        bus_receiver: &ReceiverShared,
        socket: &PeerSocket,
        message: &Message,
    ) -> Result<(Arc<PublisherShared>, Peer), Refusal> {
        let producer = self.producer(socket, message);
        let peer = producer.ok_or(Refusal::Denied)?;
        let publisher = bus_receiver.published().ok_or(Refusal::NotHere)?;
        if message.peer_port != bus_receiver.number.get() {
            return Err(Refusal::NotHere);
        }
        welcome(bus_receiver, publisher, socket, peer.1).map_err(|_| Refusal::NotHere)?;
        Ok((Arc::clone(publisher), peer))
    }

    /// Publisher: a message of a peer that wants to read.
    pub(super) fn hear_reader(
        &self,
        mut entry: ReaderEntry,
        message: Result<(Message, &[u8]), HandshakeError>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Entry, Entry> {
        let types = &entry.bus_receiver.types;
        match (message, entry.reader.is_some()) {
            (Ok((message, _)), false) if message.step == Step::Offer => {
                entry.reader = show_to(&entry, &message, descriptors);
                if entry.reader.is_some() {
                    return Ok(Entry::Reader(entry));
                }
            }
            (Ok((message, text)), false)
                if message.step == Step::Refused && message.reason == Refusal::OtherType as u32 =>
            {
                let greeting = greeting(Step::Refused, &entry.bus_receiver);
                // Named in the status; the reader asks again.
                let _difference = types.refused(&entry.socket, entry.peer, greeting, text);
            }
            (Ok((message, _)), true) if message.step == Step::Accepted => {
                types.agree(entry.peer, Direction::Sends);
                entry.since = None;
                return Ok(Entry::Reader(entry));
            }
            _ => {}
        }
        Err(Entry::Reader(entry))
    }
}

/// Publisher: takes a reader's memory, and hands the published one over.
fn show_to(entry: &ReaderEntry, offer: &Message, descriptors: Vec<OwnedFd>) -> Option<Arc<Reader>> {
    let publisher = &entry.publisher;
    let reader = Arc::new(reader(entry.peer, offer, descriptors).ok()?);
    if !publisher.add(&reader) {
        entry.bus_receiver.count_refused();
        refuse(&entry.bus_receiver, &entry.socket, Refusal::Full);
        return None;
    }
    let here = Message {
        epoch: offer.epoch,
        index: offer.index,
        memory_bytes: publisher.bytes() as u64,
        peer_port: entry.peer.1.get(),
        ..greeting(Step::Here, &entry.bus_receiver)
    };
    // If it is gone, it hangs up too.
    let file = [publisher.file()];
    let _sent = unix::send(entry.socket.as_fd(), &here.to_bytes(), &file);
    Some(reader)
}

/// Whether a port can read what is published in this shape: its kind is the same, and the largest message fits.
fn fits(published: Shape, own: Shape) -> bool {
    published.kind_number() == own.kind_number()
        && published.message_bytes_max <= own.message_bytes_max
}
