//! The ends of the paths of which [`ssrtudp_layers`](super::ssrtudp_layers) measures the layers: the same way with
//! one stamp or another.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use aya::programs::{ProgramInfo, loaded_programs};
use aya::sys::{Stats, enable_stats};
use rustix::net::{SendFlags, send};
use tautline::port::QueuingOptions;
use tautline::{LinkKind, MacAddress, PortNumber, Priority};
use tautline_proto::wire::ethernet::{FRAME_BYTES_MIN, HEADERS_BYTES, emit_header};
use tautline_proto::wire::{ETHERTYPE_DEFAULT, Header};
use tautline_testbed::hosts::{Host, Hosts};
use tautline_testbed::sys::{frame_sender, monotonic_ns};

use super::ExperimentError;
use crate::path::nodes::NodePair;
use crate::path::port::port_number;
use crate::path::sides::{self, Sides};
use crate::path::timestamping::{self, StampPoint};
use crate::path::udp::{self, KernelUdp};
use crate::path::{Arrival, End, PathError, Stamp, Waiting};

/// UDP ports: the kernel's path undisturbed and with each stamp, and that of plain UDP.
const KERNEL: u16 = 7600;
const PLAIN: u16 = 7610;
/// Ports of the raw path, and of frames that a bare socket sends.
const RAW: u16 = 30;
const BARE: u16 = 31;
const BARE_STAMPED: u16 = 32;
/// Of include/linux/socket.h: look for the way, send nothing. libc has no name for it.
const MSG_PROBE: u32 = 0x10;
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

/// The sending end, and the receiving one.
type Pair = [Box<dyn End>; 2];

/// All of them, open between two hosts.
pub(super) struct Ends<'a> {
    pairs: Vec<(Kind, Pair)>,
    /// For calls alone.
    calls: KernelUdp,
    nodes: NodePair<'a>,
    /// The demuxes of both nodes, by the kernel's numbers.
    demuxes: Vec<u32>,
}

impl<'a> Ends<'a> {
    /// Opens them on the cables of [`sides::compared`].
    pub(super) fn open(hosts: &'a Hosts) -> Result<Ends<'a>, ExperimentError> {
        let others: Vec<u32> = demuxes().map(|program| program.id()).collect();
        let nodes = NodePair::on_cable(hosts, sides::DEMUX_CABLE, LinkKind::Xdp, None)?;
        let ours = demuxes().map(|program| program.id());
        let ours = ours.filter(|id| !others.contains(id)).collect();
        let kernel = [
            (Kind::Kernel, None),
            (Kind::ReceivingCall, None),
            (Kind::KernelToQueue, Some(StampPoint::Queue)),
            (Kind::KernelToDriver, Some(StampPoint::Driver)),
            (Kind::KernelToArrival, Some(StampPoint::Arrival)),
        ];
        let mut pairs = Vec::new();
        for ((kind, stamped), port) in kernel.into_iter().zip(KERNEL..) {
            pairs.push((kind, kernel_udp(hosts, port, stamped)?));
        }
        let options = QueuingOptions::default();
        pairs.push((Kind::UdpPort, boxed(nodes.plain_udp(PLAIN, &options)?)));
        pairs.push((Kind::Queuing, boxed(nodes.queuing(RAW, &options)?)));
        pairs.push((Kind::Bare, bare(hosts, &nodes, BARE, None)?));
        let stamped = bare(hosts, &nodes, BARE_STAMPED, Some(StampPoint::Driver))?;
        pairs.push((Kind::BareToDriver, stamped));
        Ok(Ends {
            pairs,
            // Its other end never reads: nothing is ever sent.
            calls: udp::end(kernel_sides(hosts), Host::A, KERNEL + 9, Waiting::Spin)?,
            nodes,
            demuxes: ours,
        })
    }

    /// Both ends of a path.
    ///
    /// # Panics
    /// If the kind is no path but a call.
    pub(super) fn pair(&mut self, kind: Kind) -> (&mut dyn End, &mut dyn End) {
        let mut pairs = self.pairs.iter_mut();
        let found = pairs.find(|(one, _)| *one == kind);
        let (_, [sending, receiving]) = found.expect("every path is open");
        (sending.as_mut(), receiving.as_mut())
    }

    /// A call by itself, which returns how long it took; nanoseconds.
    pub(super) fn call(&self, kind: Kind, bytes: usize) -> impl FnMut() -> io::Result<u64> {
        let socket = self.calls.socket();
        let message = vec![0x5a; bytes];
        let probe = SendFlags::from_bits_retain(MSG_PROBE);
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
        passes: &mut dyn FnMut(&mut Ends<'a>) -> io::Result<()>,
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
        let kernel = "kernel UDP, non-blocking sockets, both sides spin; no demux on its cable";
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

fn boxed<E: End + 'static>([sending, receiving]: [E; 2]) -> Pair {
    [Box::new(sending), Box::new(receiving)]
}

fn kernel_sides(hosts: &Hosts) -> Sides<'_> {
    Sides::Hosts(hosts, sides::KERNEL_CABLE)
}

/// Kernel UDP, of which one end asks for stamps if there are to be any.
fn kernel_udp(hosts: &Hosts, port: u16, stamped: Option<StampPoint>) -> Result<Pair, PathError> {
    let [sending, receiving] = udp::pair(kernel_sides(hosts), port, Waiting::Spin)?;
    Ok(boxed(match stamped {
        None => [sending, receiving],
        Some(point @ StampPoint::Arrival) => [sending, receiving.with_stamps(point)?],
        Some(point) => [sending.with_stamps(point)?, receiving],
    }))
}

/// Frames of a raw port from a packet socket. `stamped`: by the kernel on the way out; else by the demux.
fn bare(
    hosts: &Hosts,
    nodes: &NodePair<'_>,
    port: u16,
    stamped: Option<StampPoint>,
) -> Result<Pair, ExperimentError> {
    let [a, b] = Host::BOTH.map(|host| hosts.end(host, sides::DEMUX_CABLE));
    let open = || -> io::Result<OwnedFd> {
        let index = tautline_state::interface::index(&a.interface())?;
        let socket = frame_sender(index)?;
        stamped.map_or(Ok(()), |place| timestamping::ask(&socket, place))?;
        Ok(socket)
    };
    let number = port_number(port);
    let [_, receiving] = nodes.queuing(port, &QueuingOptions::default())?;
    Ok([
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
        Box::new(receiving),
    ])
}

struct Bare {
    socket: OwnedFd,
    stamped: bool,
    addresses: [MacAddress; 2],
    port: PortNumber,
    sequence: u32,
    frame: [u8; BUFFER_BYTES],
}

/// It sends only: the other end is a port.
impl End for Bare {
    fn send(&mut self, message: &[u8]) -> io::Result<bool> {
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
        send(&self.socket, frame, SendFlags::empty())?;
        Ok(true)
    }

    fn send_back(&mut self) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn take(&mut self, _bytes: usize) -> io::Result<Option<Arrival>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn message(&self) -> &[u8] {
        &[]
    }

    fn sent_stamp(&mut self) -> io::Result<Option<Stamp>> {
        match self.stamped {
            true => timestamping::of_sent(&self.socket),
            false => Ok(None),
        }
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
}
