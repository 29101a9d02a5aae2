//! A port of plain UDP on link `xsk`: past the kernel's protocol stack both ways, as on `xdp`.

use std::net::SocketAddrV4;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::ip::send::{OutDatagram, Route};
use tautline_proto::ip::{DatagramHead, Reason};
use tautline_proto::wire::{MacAddress, Priority};
use tautline_shm::layout::RecordHead;
use tautline_shm::news::UndeliveredReader;
use tautline_shm::region::PortMemory;

use super::port::PortReceiver;
use crate::address::ipv4_of_word;
use crate::error::{ReceiveError, SendError};
use crate::link::Inbox;
use crate::link::plain_udp::{UdpPortLink, Undelivered, WholeDatagram, next_identification};
use crate::memory::MappedPort;
use crate::sys::interface::{Interface, InterfaceWatch};

/// The port's half.
#[derive(Debug)]
pub(super) struct XskUdpPort {
    local: SocketAddrV4,
    interface: Interface,
    news: UndeliveredReader,
    // Closed before the UDP port is given up.
    receiver: PortReceiver,
    _reserved: OwnedFd,
}

impl XskUdpPort {
    pub(super) fn new(
        local: SocketAddrV4,
        interface: Interface,
        receiver: PortReceiver,
        reserved: OwnedFd,
    ) -> Self {
        Self {
            local,
            interface,
            news: UndeliveredReader::default(),
            receiver,
            _reserved: reserved,
        }
    }
}

impl Inbox for XskUdpPort {
    fn memory(&self) -> &Arc<MappedPort> {
        self.receiver.memory()
    }

    fn collect(&mut self) -> Result<(), ReceiveError> {
        self.receiver.collect()
    }

    fn arm(&mut self) {
        self.receiver.arm();
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        watch: Option<&InterfaceWatch>,
    ) -> Result<(), ReceiveError> {
        self.receiver.wait(timeout, watch)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.receiver.descriptor()
    }
}

impl UdpPortLink for XskUdpPort {
    fn local(&self) -> SocketAddrV4 {
        self.local
    }

    fn needs_station(&self) -> bool {
        true
    }

    fn accepts_partial_checksums(&self) -> bool {
        self.interface.is_virtual
    }

    fn route(&self, to: SocketAddrV4, station: MacAddress) -> Route {
        let Interface { mac, mtu_bytes, .. } = self.interface;
        Route::new(self.local, to, mac, station, mtu_bytes)
    }

    /// Either all fragments go into the transmit ring, and one call has the kernel send them, or none.
    fn send(
        &mut self,
        route: &Route,
        priority: Priority,
        mut datagram: OutDatagram<'_>,
    ) -> Result<(), SendError> {
        let identification = match datagram.payload().len() > route.whole_bytes_max() {
            true => next_identification(),
            false => 0,
        };
        let mut frames = datagram.frames(route, priority, identification);
        let shared = self.receiver.shared();
        let sent = shared.send(|queue| {
            let count = frames.left();
            queue.reserve(count)?;
            while let Some(frame) = frames.next_frame() {
                queue.queue([frame, &[]])?;
                shared.tap().sent(&[frame]);
            }
            Ok(count)
        });
        // Of an interface that went down in between, the rest is lost as in a card's own queue.
        Ok(sent.map(drop)?)
    }

    /// All go into the transmit ring, as the fragments of a long one do.
    fn send_many(&mut self, datagrams: &[WholeDatagram<'_>]) -> Result<usize, SendError> {
        let shared = self.receiver.shared();
        let queued = shared.send(|queue| {
            let mut queued = 0;
            for datagram in datagrams {
                let Ok(headers) = datagram.headers() else {
                    break;
                };
                let parts = [&headers[..], datagram.payload];
                match queue.queue(parts) {
                    Ok(()) => {
                        queued += 1;
                        shared.tap().sent(&parts);
                    }
                    Err(error) if queued == 0 => return Err(error),
                    Err(_) => break,
                }
            }
            Ok(queued)
        });
        Ok(queued?)
    }

    fn out_of_order_fragments(
        &self,
        head: &RecordHead,
        each: &mut dyn FnMut(&RecordHead, &DatagramHead, &[u8]),
    ) {
        self.receiver.shared().out_of_order().of_peer(head, each);
    }

    fn undelivered(&mut self) -> Option<Undelivered> {
        let news = self.news.next(self.receiver.memory().port().control)?;
        Some(Undelivered {
            destination: ipv4_of_word(news.destination),
            reason: Reason::of_code(news.code, news.mtu_bytes),
        })
    }
}
