//! Ends of paths that carry datagrams from host A to host B and back, as streams and volleys have them.

use std::time::Duration;

use tautline::port::QueuingOptions;
use tautline_testbed::hosts::{Host, Hosts};

use crate::path::nodes::NodePair;
use crate::path::sides::{DEMUX_CABLE, Sides};
use crate::path::{End, PathError, Sends, Waiting, udp};

/// Room of a UDP socket: a window of messages of one frame with the kernel's own bytes for each.
const UDP_ROOM_BYTES: usize = 4 << 20;

/// The sending end, and the receiving one.
pub(super) type Ends = [Box<dyn End>; 2];

/// Kernel UDP.
pub(super) fn kernel_udp(
    hosts: &Hosts,
    cable: usize,
    port: u16,
    (sends, waiting): (Sends, Waiting),
) -> Result<Ends, PathError> {
    let [a, b] = udp::pair(Sides::Hosts(hosts, cable), port, waiting)?;
    Ok([
        Box::new(a.with_room(UDP_ROOM_BYTES)?.with_sends(sends)),
        Box::new(b.with_room(UDP_ROOM_BYTES)?.with_sends(sends)),
    ])
}

/// Options of a port for `depth` frames at once, whose receiver looks for `spin` before it sleeps.
pub(super) fn port_options(spin: Duration, depth: u32) -> QueuingOptions {
    QueuingOptions {
        depth: depth.next_power_of_two(),
        spin: spin.into(),
        ..QueuingOptions::default()
    }
}

/// Queuing ports.
pub(super) fn queuing(
    nodes: &NodePair<'_>,
    number: u16,
    options: &QueuingOptions,
    sends: Sends,
) -> Result<Ends, PathError> {
    let [a, b] = nodes.queuing(number, options)?;
    Ok([Box::new(a.streaming(sends)), Box::new(b.streaming(sends))])
}

/// Ports of plain UDP, which merge nothing.
pub(super) fn plain_udp(
    nodes: &NodePair<'_>,
    number: u16,
    options: &QueuingOptions,
    sends: Sends,
) -> Result<Ends, PathError> {
    let [a, b] = nodes.plain_udp(number, options)?;
    Ok([Box::new(a.streaming(sends)), Box::new(b.streaming(sends))])
}

/// From a port of plain UDP to a socket of the kernel, which spins: a datagram above a frame leaves in IP fragments.
pub(super) fn plain_udp_to_kernel(
    hosts: &Hosts,
    nodes: &NodePair<'_>,
    number: u16,
    options: &QueuingOptions,
) -> Result<Ends, PathError> {
    let receiving = udp::end(
        Sides::Hosts(hosts, DEMUX_CABLE),
        Host::B,
        number,
        Waiting::Spin,
    )?;
    let sending = nodes.plain_udp_end(Host::A, number, options)?;
    Ok([
        Box::new(sending.streaming(Sends::OneByOne)),
        Box::new(receiving.with_room(UDP_ROOM_BYTES)?),
    ])
}
