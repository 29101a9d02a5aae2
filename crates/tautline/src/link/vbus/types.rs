//! Types of messages in the handshake: whether two ends declare the same, and where they differ. Only ends that differ
//! send each other their declarations.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use tautline_proto::wire::PortNumber;
use tautline_shm::vbus::handshake::{MESSAGE_BYTES, Message, Refusal, Step};
use tautline_shm::vbus::layout::PRODUCERS_MAX;
use tautline_state::lock;
use tautline_types::{DECLARATION_BYTES_MAX, Declaration};

use super::entry::PeerSocket;
use crate::address::{Address, NodeName};
use crate::sys::unix;
use crate::types::{Direction, TypeDifference};

/// Bytes of the longest message of a handshake: a refusal with a declaration.
pub(super) const WITH_DECLARATION_BYTES_MAX: usize = MESSAGE_BYTES + DECLARATION_BYTES_MAX;

/// Peers of a port whose differences are kept. Lower: one of many is not named. Higher: who connects under ever new
/// ports fills the status.
const DIFFERENCES_MAX: usize = PRODUCERS_MAX;

/// Difference to a peer that keeps its declaration to itself.
pub(super) const UNTOLD: &str = "the peer does not say which field";

/// Types of a port, and the peers that declare others.
#[derive(Debug)]
pub(crate) struct BusTypes {
    pub(crate) receives: Option<Arc<Declaration>>,
    pub(crate) sends: Option<Arc<Declaration>>,
    differences: Mutex<Vec<TypeDifference>>,
}

pub(super) type Peer = (NodeName, PortNumber);

impl BusTypes {
    pub(super) fn new(types: crate::types::PortTypes) -> Self {
        Self {
            receives: types.receives,
            sends: types.sends,
            differences: Mutex::default(),
        }
    }

    pub(crate) fn differences(&self) -> Vec<TypeDifference> {
        lock(&self.differences).clone()
    }

    /// Number of the type that the port sends, for its first message; 0: it does not say.
    pub(super) fn sent_hash(&self) -> u64 {
        self.sends
            .as_ref()
            .map_or(0, |declared| declared.fingerprint())
    }

    /// The declaration of what the port receives, if the producer of this first message declares another.
    pub(super) fn refuses(&self, connect: &Message) -> Option<&Declaration> {
        let receives = self.receives.as_deref()?;
        let is_other = connect.epoch != 0 && connect.epoch != receives.fingerprint();
        is_other.then_some(receives)
    }

    /// A peer declares another type.
    fn note(&self, (node, port): Peer, direction: Direction) {
        let mut list = lock(&self.differences);
        if let Some(one) = list
            .iter_mut()
            .find(|one| is_about(one, (node, port), direction))
        {
            one.refused += 1;
        } else if list.len() < DIFFERENCES_MAX {
            list.push(TypeDifference {
                address: Address::Bus(node),
                port,
                direction,
                difference: None,
                refused: 1,
            });
        }
    }

    /// A peer that was noted has told its declaration; the first difference.
    pub(super) fn explain(&self, peer: Peer, direction: Direction, text: &[u8]) -> Option<String> {
        let own = match direction {
            Direction::Sends => self.sends.as_ref(),
            Direction::Receives => self.receives.as_ref(),
        };
        let theirs: Declaration = std::str::from_utf8(text).ok()?.parse().ok()?;
        let difference = own?.difference(&theirs)?;
        let mut list = lock(&self.differences);
        if let Some(one) = list.iter_mut().find(|one| is_about(one, peer, direction)) {
            one.difference = Some(difference.clone());
        }
        Some(difference)
    }

    /// A peer has connected: it declares the same by now, or nothing.
    pub(super) fn agree(&self, peer: Peer, direction: Direction) {
        lock(&self.differences).retain(|one| !is_about(one, peer, direction));
    }

    /// Consumer: refuses a producer for its type, and tells its own.
    pub(super) fn refuse(
        &self,
        socket: &PeerSocket,
        peer: Peer,
        greeting: Message,
        own: &Declaration,
    ) {
        self.note(peer, Direction::Receives);
        send(socket, greeting, own);
    }

    /// Producer: it was refused for its type, and told the consumer's; it tells its own in turn. The first difference.
    pub(super) fn refused(
        &self,
        socket: &PeerSocket,
        peer: Peer,
        greeting: Message,
        text: &[u8],
    ) -> String {
        self.note(peer, Direction::Sends);
        if let Some(own) = &self.sends {
            send(socket, greeting, own);
        }
        self.explain(peer, Direction::Sends, text)
            .unwrap_or_else(|| UNTOLD.to_owned())
    }
}

fn is_about(one: &TypeDifference, (node, port): Peer, direction: Direction) -> bool {
    (one.address, one.port, one.direction) == (Address::Bus(node), port, direction)
}

fn send(socket: &PeerSocket, greeting: Message, own: &Declaration) {
    let refused = Message {
        step: Step::Refused,
        reason: Refusal::OtherType as u32,
        ..greeting
    };
    let mut bytes = refused.to_bytes().to_vec();
    bytes.extend_from_slice(own.to_string().as_bytes());
    // If the peer is gone, it needs no answer.
    let _sent = unix::send(socket.as_fd(), &bytes, &[]);
}
