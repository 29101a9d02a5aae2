//! The way from a port that reads to one that publishes for many. The reader asks for it, and asks again whenever the
//! publisher comes back; the values then come like those of any sender.

use std::sync::Arc;

use tautline_proto::wire::PortNumber;

use super::connect_state::ConnectState;
use super::incoming::ReceiverShared;
use super::service::{Command, ServiceHandle};
use crate::address::NodeName;

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
}
