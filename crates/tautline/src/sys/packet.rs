//! AF_PACKET: frames past the protocol stack.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use tautline_proto::ip::send::HEADERS_BYTES;
use tautline_proto::wire::Priority;
use tautline_state::socket::{self, statement};

use super::socket::{OutFrame, send_many};

/// A socket to send whole frames on one interface, past the queueing discipline (so a frame is
/// with the driver when the call returns, and no backlog is before it). It receives nothing,
/// and cannot be made to: a process that was handed it must not listen to others with it.
pub(crate) fn sender(interface_index: u32) -> io::Result<OwnedFd> {
    sender_with(interface_index, libc::PACKET_QDISC_BYPASS)
}

/// Has a [`sender`] send past the queueing discipline, or through it. Packet sockets that listen to all see what goes
/// through it alone.
pub(crate) fn bypass_queueing(sender: BorrowedFd<'_>, bypasses: bool) -> io::Result<()> {
    let bypasses = libc::c_int::from(bypasses);
    let option = libc::PACKET_QDISC_BYPASS;
    socket::set_option(sender, libc::SOL_PACKET, option, &bypasses)
}

/// A socket to send UDP datagrams as one packet each, up to 64 KiB, which the kernel cuts into IP fragments in front
/// of the driver ([`send_uncut`]). It does not go past the queueing discipline, because the kernel cuts there; nor does
/// it receive anything.
pub(crate) fn cutting_sender(interface_index: u32) -> io::Result<OwnedFd> {
    sender_with(interface_index, libc::PACKET_VNET_HDR)
}

fn sender_with(interface_index: u32, option: libc::c_int) -> io::Result<OwnedFd> {
    socket::packet(interface_index, 0, |sender| {
        let nothing = statement(libc::BPF_RET | libc::BPF_K, 0, 0, 0);
        socket::set_filter(sender, &[nothing])?;
        socket::lock_filter(sender)?;
        socket::set_option(sender, libc::SOL_PACKET, option, &1i32)
    })
}

/// Index of the interface that a packet socket is bound to; `None` for other sockets.
pub(crate) fn interface_of(socket: BorrowedFd<'_>) -> Option<i32> {
    // SAFETY: all bytes zero is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes of an address to `address`, and their count to `bytes`.
    let result = unsafe {
        libc::getsockname(
            socket.as_raw_fd(),
            std::ptr::from_mut(&mut address).cast(),
            &raw mut bytes,
        )
    };
    let is_packet = result == 0 && i32::from(address.sll_family) == libc::AF_PACKET;
    is_packet.then_some(address.sll_ifindex)
}

/// `struct virtio_net_hdr` (`linux/virtio_net.h`), which stands before a packet on a socket that has PACKET_VNET_HDR
/// set. In the machine's byte order there.
#[derive(Clone, Copy)]
struct PacketHead {
    header_bytes: u16,
    segment_bytes: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

const PACKET_HEAD_BYTES: usize = 10;

impl PacketHead {
    /// A UDP datagram of which the checksum is to be finished, to be cut into IP fragments.
    fn to_bytes(self) -> [u8; PACKET_HEAD_BYTES] {
        const VIRTIO_NET_HDR_F_NEEDS_CSUM: u8 = 1;
        const VIRTIO_NET_HDR_GSO_UDP: u8 = 3;
        let fields = [
            self.header_bytes,
            self.segment_bytes,
            self.checksum_start,
            self.checksum_offset,
        ];
        let mut bytes = [0; PACKET_HEAD_BYTES];
        bytes[0] = VIRTIO_NET_HDR_F_NEEDS_CSUM;
        bytes[1] = VIRTIO_NET_HDR_GSO_UDP;
        for (to, field) in bytes[2..].chunks_mut(2).zip(fields) {
            to.copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }
}

/// Sends a UDP datagram on a [`cutting_sender`], with one system call: `headers` of Ethernet, IP and UDP, and the
/// payload. Fragments have `fragment_bytes` after their IP header. Never waits.
pub(crate) fn send_uncut(
    sender: BorrowedFd<'_>,
    headers: &[u8; HEADERS_BYTES],
    payload: &[u8],
    fragment_bytes: usize,
) -> io::Result<()> {
    const UDP_HEADER_BYTES: usize = 8;
    /// Of the checksum in a UDP header.
    const CHECKSUM_AT: u16 = 6;
    let head = PacketHead {
        header_bytes: HEADERS_BYTES as u16,
        segment_bytes: fragment_bytes as u16,
        checksum_start: (HEADERS_BYTES - UDP_HEADER_BYTES) as u16,
        checksum_offset: CHECKSUM_AT,
    };
    let mut all = [0; PACKET_HEAD_BYTES + HEADERS_BYTES];
    all[..PACKET_HEAD_BYTES].copy_from_slice(&head.to_bytes());
    all[PACKET_HEAD_BYTES..].copy_from_slice(headers);
    let packet = OutFrame {
        head: &all,
        ..OutFrame::whole(payload, Priority::LOWEST)
    };
    send_many(sender, &[packet]).map(drop)
}

/// A socket that receives the frames of one EtherType for one Tautline port on one interface.
pub(crate) fn receiver(interface_index: u32, ethertype: u16, port: u16) -> io::Result<OwnedFd> {
    socket::packet(interface_index, ethertype, |socket| {
        socket::set_filter(socket, &port_filter(port))
    })
}

/// A socket that receives the frames of one EtherType that come to this machine on one interface, in no VLAN. The
/// kernel has taken the tag away, and its priority, before the socket sees a frame.
pub(crate) fn raw_receiver(interface_index: u32, ethertype: u16) -> io::Result<OwnedFd> {
    socket::packet(interface_index, ethertype, |socket| {
        socket::set_filter(socket, &arrival_filter())
    })
}

const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
/// More than any frame has.
const WHOLE_FRAME: u32 = 0x4_0000;

/// Keeps a frame if it came to us (not: is leaving, passes by on a promiscuous interface, or is in a VLAN that this
/// machine has no interface for).
fn arrival_filter() -> [libc::sock_filter; 4] {
    let load_type = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    let jump_greater = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
    [
        statement(load_type, 0, 0, PACKET_TYPE),
        // PACKET_HOST, _BROADCAST and _MULTICAST are 0 to 2.
        statement(jump_greater, 1, 0, u32::from(libc::PACKET_MULTICAST)),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, WHOLE_FRAME),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ]
}

/// Keeps a frame if the 16 bits after the Ethernet header, our destination port, are `port`, and if it came to us (not:
/// is leaving, or passes by on a promiscuous interface). The kernel has taken any VLAN tag out before.
fn port_filter(port: u16) -> [libc::sock_filter; 6] {
    const ETHERNET_BYTES: u32 = 14;
    let jump_greater = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
    let jump_equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    [
        statement(
            libc::BPF_LD | libc::BPF_B | libc::BPF_ABS,
            0,
            0,
            PACKET_TYPE,
        ),
        // PACKET_HOST, _BROADCAST and _MULTICAST are 0 to 2.
        statement(jump_greater, 3, 0, u32::from(libc::PACKET_MULTICAST)),
        statement(
            libc::BPF_LD | libc::BPF_H | libc::BPF_ABS,
            0,
            0,
            ETHERNET_BYTES,
        ),
        statement(jump_equal, 0, 1, u32::from(port)),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, WHOLE_FRAME),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ]
}
