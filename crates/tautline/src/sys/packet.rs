//! AF_PACKET: frames past the protocol stack.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::socket;

/// A socket to send whole frames on one interface, past the queueing discipline (so a frame is
/// with the driver when the call returns, and nobody's backlog is before it). It receives nothing,
/// and cannot be made to: a process that was handed it must not listen to others with it.
pub(crate) fn sender(interface_index: u32) -> io::Result<OwnedFd> {
    let sender = socket::open(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
    let nothing = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: 0,
    };
    socket::set_filter(sender.as_fd(), &[nothing])?;
    socket::lock_filter(sender.as_fd())?;
    socket::set_option(
        sender.as_fd(),
        libc::SOL_PACKET,
        libc::PACKET_QDISC_BYPASS,
        &1i32,
    )?;
    socket::bind(sender.as_fd(), &address(interface_index, 0))?;
    Ok(sender)
}

/// A socket that receives the frames of one EtherType for one Tautline port on one interface.
pub(crate) fn receiver(interface_index: u32, ethertype: u16, port: u16) -> io::Result<OwnedFd> {
    // Protocol 0: nothing is queued before the filter is in place.
    let receiver = socket::open(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
    socket::set_filter(receiver.as_fd(), &port_filter(port))?;
    socket::bind(receiver.as_fd(), &address(interface_index, ethertype))?;
    Ok(receiver)
}

/// A socket that sends whole frames on one interface and receives those of one EtherType there.
pub(crate) fn of_ethertype(interface_index: u32, ethertype: u16) -> io::Result<OwnedFd> {
    // Protocol 0: nothing is queued before it is bound to the interface.
    let socket = socket::open(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
    socket::bind(socket.as_fd(), &address(interface_index, ethertype))?;
    Ok(socket)
}

fn address(interface_index: u32, ethertype: u16) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::c_ushort,
        sll_protocol: ethertype.to_be(),
        sll_ifindex: interface_index as libc::c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

/// Keeps a frame if the 16 bits after the Ethernet header, our destination port, are `port`, and
/// if it came to us (not: is leaving, or passes by on a promiscuous interface). The kernel has
/// taken any VLAN tag out before.
fn port_filter(port: u16) -> [libc::sock_filter; 6] {
    const ETHERNET_BYTES: u32 = 14;
    const WHOLE_FRAME: u32 = 0x4_0000;
    const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
    let statement = |code: u32, jump_true: u8, jump_false: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: jump_true,
        jf: jump_false,
        k,
    };
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
