//! Decides about packet sockets: which become raw ports. They are decided about when they are bound to an interface,
//! since a socket that is bound to none receives from all.

use std::os::fd::RawFd;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;

use libc::{SOL_SOCKET, c_int, sockaddr_ll, socklen_t};
use tautline::{EtherType, MacAddress};

use super::{Alone, ask, give_back, index, is_non_blocking, leave, memory};
use crate::explain::{Named, explain, warn};
use crate::node::{self, NoRawPort};
use crate::options::{Options, integer};
use crate::policy::{Policy, policy};
use crate::socket::{Cable, StationName, Taken};
use crate::table::{self, Place};
use crate::watched;

/// EtherTypes that several sockets of this process can be known to share. Beyond it, the sockets that are bound later
/// get no frames while the first is open, as those of another process.
const SHARED_MAX: usize = 8;
/// Protocol of a socket that receives all frames (`linux/if_ether.h`).
const ALL: u16 = libc::ETH_P_ALL as u16;
/// Why sockets that share an EtherType are the kernel's.
const SHARED_HERE: &str =
    "several sockets of this program have its EtherType, and each is to get all frames";

static SHARED: [AtomicU16; SHARED_MAX] = [const { AtomicU16::new(0) }; SHARED_MAX];

pub(super) fn is_packet(descriptor: RawFd) -> bool {
    integer(descriptor, SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_PACKET)
}

/// Address that a packet socket is bound to.
fn bound_to(descriptor: RawFd) -> Option<sockaddr_ll> {
    // SAFETY: all bytes zero is a valid sockaddr_ll.
    let mut bound: sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut bytes = size_of::<sockaddr_ll>() as socklen_t;
    // SAFETY: `bound` has room for `bytes`.
    let result = unsafe { libc::getsockname(descriptor, (&raw mut bound).cast(), &raw mut bytes) };
    (result == 0 && c_int::from(bound.sll_family) == libc::AF_PACKET).then_some(bound)
}

/// Protocol of a packet socket: mostly an EtherType.
pub(super) fn protocol_of(descriptor: RawFd) -> Option<u16> {
    bound_to(descriptor).map(|bound| u16::from_be(bound.sll_protocol))
}

/// The program has bound a packet socket. It may do so again, to something else.
pub(super) fn after_bind(policy: &Policy, descriptor: RawFd, taken: Option<&'static Place>) {
    if table::is_left_for_good(descriptor) {
        return;
    }
    let Some(bound) = bound_to(descriptor) else {
        return;
    };
    let protocol = u16::from_be(bound.sll_protocol);
    if let Some(place) = taken {
        let is_same = place.with(|taken| {
            taken.cable().is_some_and(|cable| {
                cable.ethertype.get() == protocol && cable.interface_index == bound.sll_ifindex
            })
        });
        if is_same != Some(false) {
            return;
        }
        give_back(descriptor, "bound to something else");
        table::forget(descriptor);
    }
    let named = Named::packet(descriptor, protocol);
    let taken = wanted(policy, protocol)
        .and_then(|ethertype| cable(policy, ethertype, bound.sll_ifindex))
        .and_then(|cable| take(descriptor, cable));
    match taken {
        Ok(()) => {
            watched::taken(descriptor);
            explain(&named, format_args!("taken, raw port of the node"));
        }
        Err(why) => leave(&named, &why),
    }
}

/// The EtherType of a socket's protocol, if its sockets are to be taken.
fn wanted(policy: &Policy, protocol: u16) -> Result<EtherType, String> {
    match protocol {
        0 => return Err("it receives no frames".to_owned()),
        ALL => return Err("it receives the frames of all EtherTypes".to_owned()),
        _ => {}
    }
    let ethertype = EtherType::new(protocol).map_err(|error| error.to_string())?;
    if !policy.wants_ethertype(ethertype) {
        return Err(format!(
            "its EtherType is not named (--ethertype {ethertype})"
        ));
    }
    if SHARED.iter().any(|one| one.load(Relaxed) == protocol) {
        return Err(SHARED_HERE.to_owned());
    }
    Ok(ethertype)
}

fn cable(policy: &Policy, ethertype: EtherType, bound_to: i32) -> Result<Cable, String> {
    let config = policy.config()?;
    let interface = config.interface.as_deref();
    let interface = interface.ok_or("the configuration names no interface")?;
    if bound_to == 0 {
        return Err("bound to all interfaces".to_owned());
    }
    if u32::try_from(bound_to) != Ok(index(interface)) {
        return Err("bound to another interface than the node's".to_owned());
    }
    let answer = ask(interface, libc::SIOCGIFHWADDR);
    let answer = answer.ok_or_else(|| format!("interface {interface} has no MAC address"))?;
    // SAFETY: the answer is a hardware address in the union, of which every bit pattern is valid.
    let address = unsafe { answer.ifr_ifru.ifru_hwaddr };
    if address.sa_family != libc::ARPHRD_ETHER {
        return Err("the interface is no Ethernet".to_owned());
    }
    let mut own = MacAddress([0; 6]);
    for (to, from) in own.0.iter_mut().zip(address.sa_data) {
        *to = from as u8;
    }
    Ok(Cable {
        ethertype,
        interface_index: bound_to,
        own,
    })
}

fn take(descriptor: RawFd, cable: Cable) -> Result<(), String> {
    let is_cooked = match integer(descriptor, SOL_SOCKET, libc::SO_TYPE) {
        Some(libc::SOCK_RAW) => false,
        Some(libc::SOCK_DGRAM) => true,
        _ => return Err("it is of the old kind SOCK_PACKET".to_owned()),
    };
    let ethertype = cable.ethertype;
    let port = {
        let _changing = table::CHANGING
            .enter()
            .ok_or("a signal handler interrupted the taking of another")?;
        if !table::has_room() {
            return Err(format!("{} sockets are taken already", table::SOCKETS_MAX));
        }
        let options = read_options(descriptor)?;
        match node::open_raw_port(ethertype) {
            Ok(port) => {
                let taken = Box::new(Taken::raw(port, cable, is_cooked, options));
                return table::enter(descriptor, taken, is_non_blocking(descriptor))
                    .map_err(|_| "its number is too high".to_owned());
            }
            Err(refused) => refused,
        }
    };
    match port {
        NoRawPort::Other(why) => {
            warn(&Named::packet(descriptor, ethertype.get()), &why);
            Err(why)
        }
        NoRawPort::OpenHere => {
            share(ethertype);
            Err(SHARED_HERE.to_owned())
        }
    }
}

/// A second socket of this process has an EtherType: the first is given back, and both are the kernel's.
fn share(ethertype: EtherType) {
    let number = ethertype.get();
    let free = SHARED
        .iter()
        .find(|one| one.compare_exchange(0, number, Relaxed, Relaxed).is_ok());
    let has = |taken: &Taken| {
        let cable = taken.cable();
        cable.is_some_and(|cable| cable.ethertype == ethertype)
    };
    if free.is_some()
        && let Some(first) = table::find(has)
    {
        give_back(first, SHARED_HERE);
    }
}

pub(super) fn read_options(descriptor: RawFd) -> Result<Options, String> {
    Options::of_packets(descriptor).map_err(|option| format!("its option {option} is not served"))
}

/// The program shares memory with the kernel for the frames of a packet socket: they pass by no call.
pub(super) fn after_ring(descriptor: RawFd) {
    let Some(_policy) = policy() else { return };
    let _alone = Alone::new();
    if !is_packet(descriptor) {
        return;
    }
    if table::place(descriptor).is_some() {
        give_back(
            descriptor,
            "its option PACKET_RX_RING or PACKET_TX_RING is not served",
        );
    } else if let Some(protocol) = protocol_of(descriptor) {
        let why = "its option PACKET_RX_RING or PACKET_TX_RING is not served";
        leave(&Named::packet(descriptor, protocol), why);
    }
    table::leave_for_good(descriptor);
}

/// The station that the program names in a call. The kernel judges others.
#[inline]
pub(crate) fn station(place: *const libc::sockaddr, bytes: socklen_t) -> Option<StationName> {
    if place.is_null() || (bytes as usize) < size_of::<sockaddr_ll>() {
        return None;
    }
    let given: sockaddr_ll = memory::read(place.cast())?;
    let [first @ .., _, _] = given.sll_addr;
    (usize::from(given.sll_halen) <= given.sll_addr.len()).then_some(StationName {
        protocol: u16::from_be(given.sll_protocol),
        interface_index: given.sll_ifindex,
        address: MacAddress(first),
    })
}
