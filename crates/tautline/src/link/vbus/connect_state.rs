//! Outcome of the attempts to reach a peer's port: set by the service thread, awaited by the thread of a port.

use std::sync::atomic::{AtomicU32, Ordering::Release};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use tautline_proto::time::Instant;
use tautline_proto::wire::PortNumber;
use tautline_shm::vbus::shape::Shape;
use tautline_state::lock;

use super::incoming::ReceiverShared;
use super::kind_of;
use super::service::{Command, HANDSHAKE_LIMIT, ServiceHandle};
use super::types::Peer;
use crate::address::NodeName;
use crate::error::PortError;
use crate::sys::clock;

/// Why a peer's port is not connected, as far as that can be mended at this end.
#[derive(Clone, Debug)]
pub(super) enum Obstacle {
    /// The ends declare different types: the first difference.
    Type(String),
    /// The peer publishes messages that do not fit this port.
    Shape(Shape),
}

impl Obstacle {
    pub(super) fn error(self, name: &str, port: PortNumber) -> PortError {
        let name = name.to_owned();
        match self {
            Self::Type(difference) => PortError::PeerOtherType {
                name,
                port,
                difference,
            },
            Self::Shape(shape) => PortError::PeerOtherShape {
                name,
                port,
                kind: kind_of(shape),
                bytes: shape.message_bytes_max as usize,
            },
        }
    }
}

#[derive(Debug, Default)]
struct State {
    /// The first attempt has come to something, or to nothing.
    settled: bool,
    connected: bool,
    obstacle: Option<Obstacle>,
}

#[derive(Debug, Default)]
pub(crate) struct ConnectState {
    /// Changes when there is or is no longer a connection, and with an obstacle. Who reads it with Acquire sees the
    /// outcome.
    pub(super) generation: AtomicU32,
    state: Mutex<State>,
    changed: Condvar,
}

impl ConnectState {
    /// Service: the connection is there, or no longer.
    pub(super) fn set(&self, connected: bool) {
        let mut state = lock(&self.state);
        *state = State {
            settled: true,
            connected,
            obstacle: None,
        };
        // Release: partner is the Acquire of who looks anew.
        self.generation.fetch_add(1, Release);
        drop(state);
        self.changed.notify_all();
    }

    /// Service: the attempt came to nothing.
    pub(super) fn settle(&self) {
        lock(&self.state).settled = true;
        self.changed.notify_all();
    }

    /// Service: the two ends do not fit.
    pub(super) fn refuse(&self, obstacle: Obstacle) {
        let mut state = lock(&self.state);
        state.obstacle = Some(obstacle);
        // Release: as above.
        self.generation.fetch_add(1, Release);
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn obstacle(&self) -> Option<Obstacle> {
        lock(&self.state).obstacle.clone()
    }

    /// Waits until the peer is there: until `deadline` at most, or without one until the first attempt has ended.
    ///
    /// # Errors
    /// The obstacle, if there is one; [`PortError::PeerAbsent`] after `deadline`.
    pub(crate) fn wait(
        &self,
        (node, port): Peer,
        deadline: Option<Instant>,
    ) -> Result<(), PortError> {
        let limit = match deadline {
            Some(deadline) => deadline.saturating_duration_since(clock::monotonic()),
            None => HANDSHAKE_LIMIT,
        };
        let goes_on = |state: &mut State| match deadline {
            Some(_) => !state.connected && state.obstacle.is_none(),
            None => !state.settled,
        };
        let waited = self
            .changed
            .wait_timeout_while(lock(&self.state), limit, goes_on);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &state.obstacle {
            Some(obstacle) => Err(obstacle.clone().error(node.as_str(), port)),
            None if deadline.is_some() && !state.connected => Err(PortError::PeerAbsent {
                name: node.to_string(),
                port,
            }),
            None => Ok(()),
        }
    }
}

/// The way from a port that reads to one that publishes for many. The reader asks for it, and asks again whenever the
/// publisher comes back; the values then come like those of any sender.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) node: NodeName,
    pub(crate) port: PortNumber,
    pub(super) bus_receiver: Arc<ReceiverShared>,
    pub(crate) attempt: ConnectState,
}

impl Subscription {
    pub(crate) fn begin(
        service: &ServiceHandle,
        bus_receiver: &Arc<ReceiverShared>,
        node: NodeName,
        port: PortNumber,
    ) -> Arc<Self> {
        let following = Arc::new(Self {
            node,
            port,
            bus_receiver: Arc::clone(bus_receiver),
            attempt: ConnectState::default(),
        });
        service.command(Command::Follow(Arc::clone(&following)));
        following
    }
}
