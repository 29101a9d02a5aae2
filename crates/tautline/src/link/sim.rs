//! The `sim` link: a network in memory on virtual time, seeded. Ports and nodes behave as on any other link; only the
//! frames travel through [`tautline_proto::sim`], and waiting moves the clock instead of the thread.
//!
//! One thread drives a simulated network: waiting on a port delivers to all ports of its node and
//! advances the time for everybody.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tautline_proto::neighbour::Neighbour;
use tautline_proto::sim::{Faults, SimConfig, SimError, SimNetwork, SimNode};
use tautline_proto::time::Instant;
use tautline_proto::wire::ethernet::EthernetForm;
use tautline_proto::wire::{MacAddress, PortKey, PortNumber, Rejected, ethernet};
use tautline_state::lock;

use super::frame::{FRAME_BYTES_MAX, FrameBuffer, deliver_frame, is_udp_form};
use super::socket::Counters;
use super::{
    ArrivalClock, Capabilities, Copies, Link, LinkKind, NodeCounters, OutFrame, PortHalf, PortLink,
    PortRequest, RawFrames, Route,
};
use crate::address::Address;
use crate::error::{PortError, ReceiveError, SendError};
use crate::memory::MappedPort;
use crate::sys::interface::InterfaceWatch;

/// A simulated network, on which nodes can be opened.
#[derive(Clone, Debug)]
pub struct Network {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    network: SimNetwork,
    now: Instant,
}

impl Network {
    /// A network without nodes at virtual time zero.
    #[must_use]
    pub fn new(config: SimConfig) -> Self {
        Self {
            shared: Arc::new(Mutex::new(Shared {
                network: SimNetwork::new(config),
                now: Instant::ZERO,
            })),
        }
    }

    /// Link of a node on this network.
    pub(crate) fn attach(
        &self,
        mac: MacAddress,
        form: EthernetForm,
    ) -> Result<Box<dyn Link>, SimError> {
        let node = self.lock().network.attach(mac)?;
        Ok(Box::new(SimLink {
            network: self.clone(),
            node,
            mac,
            form,
            ports: Arc::default(),
            counters: Arc::default(),
        }))
    }

    /// Virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.lock().now
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        let mut shared = self.lock();
        shared.now = shared.now.checked_add(by).unwrap_or(Instant::FAR_FUTURE);
    }

    /// Sets what the network does to frames from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().network.set_faults(faults);
    }

    /// Access to the network: its counters, and other ways to drive it.
    pub fn with<T>(&self, look: impl FnOnce(&mut SimNetwork) -> T) -> T {
        look(&mut self.lock().network)
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        lock(&self.shared)
    }
}

/// The open ports of one node, for the demux.
type OpenPorts = Arc<Mutex<Vec<(PortNumber, Arc<MappedPort>)>>>;

#[derive(Debug)]
struct SimLink {
    network: Network,
    node: SimNode,
    mac: MacAddress,
    form: EthernetForm,
    ports: OpenPorts,
    counters: Arc<Counters>,
}

impl Link for SimLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Sim
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            arrival_clock: ArrivalClock::Virtual,
            copies: Copies {
                // The simulated network's own.
                send_lent: 2,
                ..Copies::SOCKET
            },
            raw_frames: RawFrames::None,
            descriptor: false,
            batches: false,
            ..Capabilities::SOCKETS.with_address(None)
        }
    }

    fn open_port(&self, request: PortRequest) -> Result<PortHalf, PortError> {
        let PortKey::Message(port) = request.key else {
            return Err(request.not_offered(self.kind().name()));
        };
        let memory = MappedPort::private(request.shape, port.get())
            .map_err(|error| PortError::refused("taking the port's memory", error))?;
        let memory = Arc::new(memory);
        lock(&self.ports).push((port, Arc::clone(&memory)));
        Ok(PortHalf::frames(SimPort {
            number: port,
            memory,
            network: self.network.clone(),
            node: self.node,
            form: self.form,
            mac: self.mac,
            ports: Arc::clone(&self.ports),
            counters: Arc::clone(&self.counters),
            frame: FrameBuffer::new(),
            arriving: Box::new([0; FRAME_BYTES_MAX]),
        }))
    }

    fn route(
        &self,
        neighbour: &Neighbour,
        _to: PortNumber,
        _from: PortNumber,
    ) -> Result<Route, PortError> {
        if is_udp_form(neighbour) {
            return Err(PortError::NeighbourIncomplete {
                name: neighbour.name.clone(),
                lacks: "MAC address",
                link: "sim",
            });
        }
        Ok(Route::ethernet(self.mac, neighbour, self.form))
    }

    fn counters(&self) -> NodeCounters {
        self.counters.read()
    }
}

#[derive(Debug)]
struct SimPort {
    number: PortNumber,
    memory: Arc<MappedPort>,
    network: Network,
    node: SimNode,
    form: EthernetForm,
    mac: MacAddress,
    ports: OpenPorts,
    counters: Arc<Counters>,
    frame: FrameBuffer,
    arriving: Box<[u8; FRAME_BYTES_MAX]>,
}

impl SimPort {
    /// The next frame that has reached the node; its arrival and its length.
    fn next_frame(&mut self) -> Option<(Instant, usize)> {
        let mut shared = self.network.lock();
        let now = shared.now;
        let delivery = shared.network.receive(self.node, now)?;
        let bytes = delivery.bytes.len().min(FRAME_BYTES_MAX);
        self.arriving[..bytes].copy_from_slice(&delivery.bytes[..bytes]);
        Some((delivery.arrival, bytes))
    }

    fn demux(&self, arrival: Instant, frame: &[u8]) {
        let frame = match ethernet::parse_as(frame, self.form) {
            Ok(frame) if frame.destination == self.mac || frame.destination.is_group() => frame,
            Err(Rejected::Malformed(error)) => return self.counters.count(error),
            Ok(_) | Err(Rejected::NotOurs) => return,
        };
        let ports = lock(&self.ports);
        let Some((_, memory)) = ports
            .iter()
            .find(|(port, _)| *port == frame.header.destination)
        else {
            self.counters.no_port.fetch_add(1, Relaxed);
            return;
        };
        let source = Address::Ethernet(frame.source).word();
        deliver_frame(memory, arrival, source, &frame.header, frame.payload);
    }
}

impl PortLink for SimPort {
    fn memory(&self) -> &Arc<MappedPort> {
        &self.memory
    }

    fn now(&self) -> Instant {
        self.network.now()
    }

    fn collect(&mut self) -> Result<(), ReceiveError> {
        while let Some((arrival, bytes)) = self.next_frame() {
            self.demux(arrival, &self.arriving[..bytes]);
        }
        Ok(())
    }

    /// Moves the clock to the next event of the network, or to the end of the wait.
    fn wait(
        &mut self,
        timeout: Option<Duration>,
        _watch: Option<&InterfaceWatch>,
    ) -> Result<(), ReceiveError> {
        let mut shared = self.network.lock();
        let end = timeout.and_then(|timeout| shared.now.checked_add(timeout));
        let next = match (shared.network.next_event(), end) {
            (Some(event), Some(end)) => event.min(end),
            (Some(event), None) => event,
            (None, Some(end)) => end,
            // Nothing is under way and no other thread can send: waiting would never end.
            (None, None) => {
                return Err(ReceiveError::Refused {
                    errno: libc::EDEADLK,
                });
            }
        };
        shared.now = shared.now.max(next);
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn send(&mut self, frame: &OutFrame<'_>) -> Result<(), SendError> {
        let bytes = self.frame.whole(frame);
        let mut shared = self.network.lock();
        let now = shared.now;
        match shared.network.send(now, self.node, bytes) {
            Err(SimError::FrameLength { .. }) => Err(SendError::FrameTooLarge),
            // A network that is full drops and counts, as a switch does.
            _ => Ok(()),
        }
    }
}

impl Drop for SimPort {
    fn drop(&mut self) {
        lock(&self.ports).retain(|(port, _)| *port != self.number);
    }
}
