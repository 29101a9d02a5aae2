//! The way from a port that reads to one that publishes for many. The reader asks for it, and asks again whenever the
//! publisher comes back; the values then come like those of any sender.

use std::sync::Arc;
use std::time::Duration;

use tautline_proto::time::Instant;
use tautline_proto::wire::PortNumber;

use super::connect_state::ConnectState;
use super::incoming::ReceiverShared;
use super::service::{Command, HANDSHAKE_LIMIT, ServiceHandle};
use crate::address::NodeName;
use crate::error::PortError;
use crate::sys::clock;

/// State that the reading port's thread and the service thread share.
#[derive(Debug)]
pub(crate) struct Subscription {
    /// The publisher.
    pub(super) node: NodeName,
    pub(super) port: PortNumber,
    /// The reading port.
    pub(super) bus_receiver: Arc<ReceiverShared>,
    pub(super) attempt: ConnectState,
}

impl Subscription {
    /// Asks the service thread to follow a port.
    pub(super) fn begin(
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

    /// Waits until the publisher is there, for `wait` at most; without a wait, until the first attempt has ended.
    pub(super) fn wait(&self, wait: Duration) -> Result<(), PortError> {
        let name = self.node.as_str();
        if wait.is_zero() {
            self.attempt.wait_settled(HANDSHAKE_LIMIT);
        } else if !self.wait_until(clock::monotonic() + wait) && self.attempt.obstacle().is_none() {
            return Err(PortError::PeerAbsent {
                name: name.to_owned(),
                port: self.port,
            });
        }
        match self.attempt.obstacle() {
            Some(obstacle) => Err(obstacle.error(name, self.port)),
            None => Ok(()),
        }
    }

    fn wait_until(&self, deadline: Instant) -> bool {
        self.attempt.wait_connected(deadline)
    }
}
