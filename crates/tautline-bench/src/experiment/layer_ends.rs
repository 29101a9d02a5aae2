//! The ends of the paths of which [`ssrtudp_layers`](super::ssrtudp_layers) measures the layers: the same way with
//! one stamp or another.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use aya::programs::{ProgramInfo, loaded_programs};
use aya::sys::{Stats, enable_stats};
use nix::sys::socket::{MsgFlags, recv, send};
use tautline::{
    Destination, LinkKind, MacAddress, PortNumber, Priority, QueuingOptions, QueuingPort, UdpPort,
};
use tautline_proto::wire::ethernet::{FRAME_BYTES_MIN, HEADERS_BYTES, emit_header};
use tautline_proto::wire::{ETHERTYPE_DEFAULT, Header};
use tautline_testbed::hosts::{Host, Hosts};
use tautline_testbed::sys::{frame_sender, monotonic_ns};

use super::ExperimentError;
use super::passage::{Arrives, Came, Departs, Stamp};
use super::stamps::{self, Place};
use crate::kernel::{self, Sides, is_nothing_yet};
use crate::nodes::{HostNodes, NodesError, PEER, port_number};

/// UDP ports: the kernel's path undisturbed and with each stamp, and that of plain UDP.
const KERNEL: u16 = 7600;
const PLAIN: u16 = 7610;
/// Ports of the raw path, and of frames that a bare socket sends.
const RAW: u16 = 30;
const BARE: u16 = 31;
const BARE_STAMPED: u16 = 32;
/// Of include/linux/socket.h: look for the way, send nothing. libc has no name for it.
const MSG_PROBE: i32 = 0x10;
const BUFFER_BYTES: usize = 2048;
/// Names of the demux as the kernel has them: the program on all links of a node.
const DEMUXES: [&str; 2] = ["tautline_demux", "tautline_linear"];

/// Quantities that are measured by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Two looks at the clock.
    Clock,
    /// A send over kernel UDP that ends before a packet is made.
    SendingCall,
    /// A receive over kernel UDP of a datagram that waits.
    ReceivingCall,
    /// Kernel UDP undisturbed.
    Kernel,
    KernelToQueue,
    KernelToDriver,
    KernelToArrival,
    UdpPort,
    Queuing,
    /// The frame of a raw port over a packet socket, without Tautline's library.
    Bare,
    BareToDriver,
}

impl Kind {
    pub(super) const ALL: [Kind; 11] = [
        Kind::Clock,
        Kind::SendingCall,
        Kind::ReceivingCall,
        Kind::Kernel,
        Kind::KernelToQueue,
        Kind::KernelToDriver,
        Kind::KernelToArrival,
        Kind::UdpPort,
        Kind::Queuing,
        Kind::Bare,
        Kind::BareToDriver,
    ];
}

type Pair = (Box<dyn Departs>, Box<dyn Arrives>);

/// All of them, open between two hosts.
pub(super) struct Ends {
    pairs: Vec<(Kind, Pair)>,
    /// For calls alone.
    socket: UdpSocket,
    nodes: HostNodes,
    /// The demuxes of both nodes, by the kernel's numbers.
    demuxes: Vec<u32>,
}

impl Ends {
    /// Opens them on the first cable.
    pub(super) fn open(hosts: &Hosts) -> Result<Ends, ExperimentError> {
        let others: Vec<u32> = demuxes().map(|program| program.id()).collect();
        let nodes = HostNodes::open(hosts, 0, LinkKind::Xdp, None)?;
        let ours = demuxes().map(|program| program.id());
        let ours = ours.filter(|id| !others.contains(id)).collect();
        let kernel = [
            (Kind::Kernel, None),
            (Kind::ReceivingCall, None),
            (Kind::KernelToQueue, Some(Place::Queue)),
            (Kind::KernelToDriver, Some(Place::Driver)),
            (Kind::KernelToArrival, Some(Place::Arrival)),
        ];
        let mut pairs = Vec::new();
        for ((kind, stamped), port) in kernel.into_iter().zip(KERNEL..) {
            pairs.push((kind, kernel_udp(hosts, port, stamped)?));
        }
        pairs.push((Kind::UdpPort, plain_udp(hosts, &nodes)?));
        pairs.push((Kind::Queuing, queuing(hosts, &nodes)?));
        pairs.push((Kind::Bare, bare(hosts, &nodes, BARE, None)?));
        let stamped = bare(hosts, &nodes, BARE_STAMPED, Some(Place::Driver))?;
        pairs.push((Kind::BareToDriver, stamped));
        Ok(Ends {
            pairs,
            // Its other end never reads: nothing is ever sent.
            socket: kernel::udp_end(Sides::Hosts(hosts, 0), Host::A, KERNEL + 9)?,
            nodes,
            demuxes: ours,
        })
    }

    /// Both ends of a path.
    ///
    /// # Panics
    /// If the kind is no path but a call.
    pub(super) fn pair(&mut self, kind: Kind) -> (&mut dyn Departs, &mut dyn Arrives) {
        let mut pairs = self.pairs.iter_mut();
        let found = pairs.find(|(one, _)| *one == kind);
        let (_, (sending, receiving)) = found.expect("every path is open");
        (sending.as_mut(), receiving.as_mut())
    }

    /// A call by itself, which returns how long it took; nanoseconds.
    pub(super) fn call(&self, kind: Kind, bytes: usize) -> impl FnMut() -> io::Result<u64> {
        let socket = self.socket.as_raw_fd();
        let message = vec![0x5a; bytes];
        let probe = MsgFlags::from_bits_retain(MSG_PROBE);
        move || {
            let before = monotonic_ns();
            if kind == Kind::SendingCall {
                send(socket, &message, probe)?;
            }
            Ok(monotonic_ns() - before)
        }
    }

    /// The run time of the demux for each message of what `passes` passes, in nanoseconds; `None` where the kernel
    /// does not count it for us.
    pub(super) fn demux_time(
        &mut self,
        passes: &mut dyn FnMut(&mut Ends) -> io::Result<()>,
    ) -> io::Result<Option<f64>> {
        // Counted until the descriptor is closed.
        let Ok(_counting) = enable_stats(Stats::RunTime) else {
            return Ok(None);
        };
        let before = self.run_times();
        passes(self)?;
        let after = self.run_times();
        let runs = after.1.saturating_sub(before.1);
        let time = after.0.saturating_sub(before.0);
        Ok((runs > 0).then(|| time.as_nanos() as f64 / runs as f64))
    }

    /// Time and number of all runs of our demuxes since they were loaded.
    fn run_times(&self) -> (Duration, u64) {
        demuxes()
            .filter(|program| self.demuxes.contains(&program.id()))
            .fold((Duration::ZERO, 0), |(time, runs), program| {
                (time + program.run_time(), runs + program.run_count())
            })
    }

    /// Link and mode of each path.
    pub(super) fn describe(&self) -> Vec<(String, String)> {
        let link = self.nodes.describe();
        let kernel = "kernel UDP, non-blocking sockets, both sides spin; the demux is attached";
        [
            ("udp-poll", kernel.to_owned()),
            (
                "udp-port",
                format!("port of plain UDP, both sides spin; {link}"),
            ),
            ("queuing", format!("queuing port, both sides spin; {link}")),
        ]
        .map(|(name, text)| (name.to_owned(), text))
        .into()
    }
}

fn demuxes() -> impl Iterator<Item = ProgramInfo> {
    loaded_programs()
        .map_while(Result::ok)
        .filter(|program| program.name_as_str().is_some_and(is_demux))
}

/// The kernel keeps the first 15 bytes of a program's name.
fn is_demux(name: &str) -> bool {
    DEMUXES
        .iter()
        .any(|demux| demux[..name.len().min(demux.len())] == *name && name.len() >= 14)
}

/// Two connected sockets that do not block.
fn sockets(hosts: &Hosts, port: u16) -> Result<[UdpSocket; 2], ExperimentError> {
    let sockets = kernel::udp_pair(Sides::Hosts(hosts, 0), port)?;
    for socket in &sockets {
        socket
            .set_nonblocking(true)
            .map_err(ExperimentError::io("configure a UDP socket"))?;
    }
    Ok(sockets)
}

fn kernel_udp(hosts: &Hosts, port: u16, stamped: Option<Place>) -> Result<Pair, ExperimentError> {
    let [sending, receiving] = sockets(hosts, port)?;
    let arrival = stamped == Some(Place::Arrival);
    if let Some(place) = stamped {
        stamps::ask(if arrival { &receiving } else { &sending }, place)
            .map_err(ExperimentError::io("have packets stamped"))?;
    }
    Ok((
        Box::new(Socket {
            socket: sending,
            stamped: stamped.is_some() && !arrival,
        }),
        Box::new(Waits {
            socket: receiving,
            stamped: arrival,
            buffer: [0; BUFFER_BYTES],
        }),
    ))
}

/// The number at the start of a message.
fn number(message: &[u8]) -> u32 {
    message
        .first_chunk()
        .map_or(0, |first| u32::from_le_bytes(*first))
}

struct Socket {
    socket: UdpSocket,
    stamped: bool,
}

impl Departs for Socket {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.socket.send(message).map(drop)
    }

    fn stamp(&mut self) -> io::Result<Option<Stamp>> {
        stamp_of(&self.socket, self.stamped)
    }
}

fn stamp_of(socket: &impl std::os::fd::AsFd, stamped: bool) -> io::Result<Option<Stamp>> {
    if !stamped {
        return Ok(None);
    }
    Ok(stamps::of_sent(socket)?.map(Stamp::Realtime))
}

struct Waits {
    socket: UdpSocket,
    stamped: bool,
    buffer: [u8; BUFFER_BYTES],
}

impl Arrives for Waits {
    fn look(&mut self) -> io::Result<Option<Came>> {
        if self.stamped {
            let taken = stamps::receive(&self.socket, &mut self.buffer)?;
            return Ok(taken.map(|(length, stamp)| {
                (number(&self.buffer[..length]), stamp.map(Stamp::Realtime))
            }));
        }
        match recv(
            self.socket.as_raw_fd(),
            &mut self.buffer,
            MsgFlags::MSG_DONTWAIT,
        ) {
            Ok(length) => Ok(Some((number(&self.buffer[..length]), None))),
            Err(error) => match io::Error::from(error) {
                error if is_nothing_yet(&error) => Ok(None),
                error => Err(error),
            },
        }
    }
}

/// A raw port of a number on a host.
fn raw_port(
    hosts: &Hosts,
    nodes: &HostNodes,
    host: Host,
    number: PortNumber,
) -> Result<QueuingPort, ExperimentError> {
    let options = QueuingOptions::default();
    Ok(nodes.port(hosts, host, |node| node.queuing_port(number, &options))?)
}

fn queuing(hosts: &Hosts, nodes: &HostNodes) -> Result<Pair, ExperimentError> {
    let number = port_number(RAW);
    let mut sending = raw_port(hosts, nodes, Host::A, number)?;
    let to = sending
        .destination(PEER, number)
        .map_err(NodesError::from)?;
    let receiving = raw_port(hosts, nodes, Host::B, number)?;
    Ok((
        Box::new(Raw { port: sending, to }),
        Box::new(RawWaits {
            buffer: vec![0; receiving.message_bytes_max()],
            port: receiving,
        }),
    ))
}

struct Raw {
    port: QueuingPort,
    to: Destination,
}

impl Departs for Raw {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.port
            .send(self.to, Priority::HIGHEST, message)
            .map_err(io::Error::other)
    }
}

struct RawWaits {
    port: QueuingPort,
    buffer: Vec<u8>,
}

impl Arrives for RawWaits {
    fn look(&mut self) -> io::Result<Option<Came>> {
        let message = self
            .port
            .receive(&mut self.buffer)
            .map_err(io::Error::other)?;
        Ok(message.map(|message| {
            let stamp = Stamp::Monotonic(message.arrival.as_nanos());
            (number(&self.buffer[..message.length]), Some(stamp))
        }))
    }
}

fn plain_udp(hosts: &Hosts, nodes: &HostNodes) -> Result<Pair, ExperimentError> {
    let options = QueuingOptions::default();
    let open = |host| nodes.port(hosts, host, |node| node.udp_port(PLAIN, &options));
    let (mut sending, receiving) = (open(Host::A)?, open(Host::B)?);
    let to = sending.destination(PEER, PLAIN).map_err(NodesError::from)?;
    Ok((
        Box::new(Plain { port: sending, to }),
        Box::new(PlainWaits {
            buffer: vec![0; receiving.message_bytes_max()],
            port: receiving,
        }),
    ))
}

struct Plain {
    port: UdpPort,
    to: Destination,
}

impl Departs for Plain {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.port
            .send_to(self.to, Priority::HIGHEST, message)
            .map_err(io::Error::other)
    }
}

struct PlainWaits {
    port: UdpPort,
    buffer: Vec<u8>,
}

impl Arrives for PlainWaits {
    fn look(&mut self) -> io::Result<Option<Came>> {
        let datagram = self
            .port
            .receive(&mut self.buffer)
            .map_err(io::Error::other)?;
        Ok(datagram.map(|datagram| {
            let stamp = Stamp::Monotonic(datagram.arrival.as_nanos());
            (number(&self.buffer[..datagram.length]), Some(stamp))
        }))
    }
}

/// Frames of a raw port from a packet socket. `stamped`: by the kernel on the way out; else by the demux.
fn bare(
    hosts: &Hosts,
    nodes: &HostNodes,
    port: u16,
    stamped: Option<Place>,
) -> Result<Pair, ExperimentError> {
    let [a, b] = Host::BOTH.map(|host| hosts.end(host, 0));
    let open = || -> io::Result<OwnedFd> {
        let index = tautline_testbed::interface::index(&a.interface())?;
        let socket = frame_sender(index)?;
        stamped.map_or(Ok(()), |place| stamps::ask(&socket, place))?;
        Ok(socket)
    };
    let number = port_number(port);
    let receiving = raw_port(hosts, nodes, Host::B, number)?;
    Ok((
        Box::new(Bare {
            socket: hosts
                .inside(Host::A, open)?
                .map_err(ExperimentError::io("open a packet socket"))?,
            stamped: stamped.is_some(),
            addresses: [b.mac(), a.mac()].map(MacAddress),
            port: number,
            sequence: 0,
            frame: [0; BUFFER_BYTES],
        }),
        Box::new(RawWaits {
            buffer: vec![0; receiving.message_bytes_max()],
            port: receiving,
        }),
    ))
}

struct Bare {
    socket: OwnedFd,
    stamped: bool,
    addresses: [MacAddress; 2],
    port: PortNumber,
    sequence: u32,
    frame: [u8; BUFFER_BYTES],
}

impl Departs for Bare {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let length = HEADERS_BYTES + message.len();
        let bytes = message.len() as u16;
        let header = Header::whole(
            self.port,
            self.port,
            Priority::HIGHEST,
            bytes,
            self.sequence,
        );
        self.sequence = self.sequence.wrapping_add(1);
        let [to, own] = self.addresses;
        let headers = self
            .frame
            .first_chunk_mut()
            .expect("the frame has room for headers");
        emit_header(headers, to, own, ETHERTYPE_DEFAULT, &header);
        self.frame[HEADERS_BYTES..length].copy_from_slice(message);
        let frame = &self.frame[..length.max(FRAME_BYTES_MIN)];
        send(self.socket.as_raw_fd(), frame, MsgFlags::empty())?;
        Ok(())
    }

    fn stamp(&mut self) -> io::Result<Option<Stamp>> {
        stamp_of(&self.socket, self.stamped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demuxes_are_known_by_the_name_that_the_kernel_keeps() {
        assert!(is_demux("tautline_demux") && is_demux("tautline_linear"));
        assert!(!is_demux("tautline_floor") && !is_demux("taut") && !is_demux(""));
    }

    #[test]
    fn a_message_begins_with_its_number() {
        assert_eq!(number(&[1, 2, 0, 0, 9]), 513);
        assert_eq!(number(&[1]), 0);
    }
}
