//! The five calls of SS-RTUDP: `rt_socket`, `rt_mmap`, `rt_sendto`, `rt_recvfrom`, `rt_socket_close`.
//!
//! A socket is a port of plain UDP, so its peers are whoever speaks UDP. All that it needs is taken by
//! `rt_socket`. Which node it belongs to: the one named with
//! `tautline_socket_node`; else the one of the file in the environment variable `TAUTLINE_NODE`; else one
//! on the `udp` link with the socket's own address.
#![allow(unsafe_code)] // Exported functions that take pointers.

use std::ffi::{OsString, c_int, c_void};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use libc::{sockaddr, sockaddr_in, socklen_t};
use tautline::port::QueuingOptions;
use tautline::send_pool::LentBuffer;
use tautline::{Node, NodeConfig, PortError, Priority, UdpPort, Wait};
use tautline_state::fork::OwnerProcess;

use crate::border::{Fault, coded, numbered};
use crate::code::Code;
use crate::datagram::{DatagramPort, Socket};
use crate::pointer::{self, Out, Outgoing};
use crate::port::{self, Kind, Port};
use crate::types::{tautline_node, tautline_port};

/// The variable that names the configuration file of the sockets' node.
const NODE_VARIABLE: &str = "TAUTLINE_NODE";
/// Largest messages that a priority of a socket has room for. Lower: a reader that sleeps while large
/// messages come loses them. Higher: 770 KiB more for each, in a socket of 64 KiB messages.
const LARGE_MESSAGES_QUEUED: usize = 8;
/// Most bytes of a datagram.
const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Payload of one fragment, which a slot holds.
const FRAGMENT_BYTES: usize = 1408;
/// Range for port 0: beyond the ports that the kernel gives to its own sockets.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 61_000..=65_535;

/// The node that new sockets belong to, by its handle; 0 while none was named.
static CHOSEN: AtomicU32 = AtomicU32::new(0);
/// Nodes that sockets of this process opened, and share for as long as one of them is open. In a child of a fork, those
/// of its parent are among them.
static SHARED: Mutex<Vec<(Origin, OwnerProcess, Weak<Node>)>> = Mutex::new(Vec::new());

/// Where a shared node comes from.
#[derive(Clone, PartialEq, Eq)]
enum Origin {
    File(OsString),
    Address(Ipv4Addr),
}

/// Names the node that sockets opened from now on belong to.
#[unsafe(no_mangle)]
pub extern "C" fn tautline_socket_node(node: tautline_node) -> c_int {
    coded(|| {
        // So that a bad handle is told here.
        let _node = crate::node::node(node)?;
        CHOSEN.store(node.id, Relaxed);
        Ok(0)
    })
}

/// The port of a socket, for what sockets do not have.
///
/// # Safety
/// `port` is null or a port can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_socket_port(socket: c_int, port: *mut tautline_port) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new("port", port) }?;
        let id = socket_id(socket)?;
        port::enter(id)?.as_socket()?;
        out.put(tautline_port { id });
        Ok(0)
    })
}

/// Opens a socket, with all that it will need.
///
/// # Safety
/// `local` is null or `local_bytes` bytes can be read there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rt_socket(
    local: *const sockaddr,
    local_bytes: socklen_t,
    message_bytes_max: usize,
) -> c_int {
    numbered(-1, || {
        // SAFETY: the caller's promise.
        let local = unsafe { address(local, local_bytes) }?;
        let options = options(message_bytes_max);
        options.check().map_err(PortError::from)?;
        let (node, shared) = node_of(*local.ip())?;
        let own = node.report().ip;
        if !local.ip().is_unspecified() && own != Some(*local.ip()) {
            return Err(Fault::new(
                Code::NoAddress,
                format!("the sockets' node has not the address {}", local.ip()),
            ));
        }
        let port = open_port(&node, local.port(), &options)?;
        let socket = Socket {
            scratch: vec![0; message_bytes_max].into(),
            lent: Vec::with_capacity(node.send_pool().count()),
            _shared: shared,
        };
        let socket = Some(socket);
        let kind = Kind::Datagram(DatagramPort { port, socket });
        // The table's numbers are positive as an `int`.
        Ok(port::insert(Port::new(kind, node))? as c_int)
    })
}

fn options(message_bytes_max: usize) -> QueuingOptions {
    let default = QueuingOptions::default();
    let slots = message_bytes_max.div_ceil(FRAGMENT_BYTES);
    let depth = match slots {
        0 | 1 => default.depth,
        // A message larger than any is refused by the options' own check.
        _ => u32::try_from(slots.saturating_mul(LARGE_MESSAGES_QUEUED))
            .ok()
            .and_then(u32::checked_next_power_of_two)
            .map_or(tautline::port::DEPTH_MAX, |depth| {
                depth.clamp(default.depth, tautline::port::DEPTH_MAX)
            }),
    };
    QueuingOptions {
        depth,
        message_bytes_max,
        ..default
    }
}

/// The node for a socket, and what keeps it shared.
fn node_of(ip: Ipv4Addr) -> Result<(Node, Option<Arc<Node>>), Fault> {
    let id = CHOSEN.load(Relaxed);
    if id != 0 {
        return Ok((crate::node::node(tautline_node { id })?, None));
    }
    let origin = match std::env::var_os(NODE_VARIABLE) {
        Some(file) => Origin::File(file),
        None => Origin::Address(ip),
    };
    // Held while a node is opened: two sockets of one address get one node.
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.retain(|(_, _, node)| node.strong_count() > 0);
    let process = OwnerProcess::current();
    let is_meant =
        |known: &&(Origin, OwnerProcess, Weak<Node>)| (&known.0, known.1) == (&origin, process);
    let known = shared.iter().find(is_meant);
    if let Some(node) = known.and_then(|(_, _, node)| node.upgrade()) {
        return Ok((Node::clone(&node), Some(node)));
    }
    let config = match &origin {
        Origin::File(file) => NodeConfig::from_file(file)?,
        Origin::Address(ip) => NodeConfig::udp(*ip),
    };
    let node = Arc::new(Node::open(config)?);
    shared.push((origin, process, Arc::downgrade(&node)));
    Ok((Node::clone(&node), Some(node)))
}

fn open_port(node: &Node, number: u16, options: &QueuingOptions) -> Result<UdpPort, Fault> {
    if number != 0 {
        return Ok(node.udp(number).options(options).open()?);
    }
    let mut refused = Fault::from(Code::PortTaken);
    for number in EPHEMERAL.rev() {
        match node.udp(number).options(options).open() {
            Err(error @ (PortError::OpenHere { .. } | PortError::Taken { .. })) => {
                refused = error.into();
            }
            other => return Ok(other?),
        }
    }
    Err(refused)
}

/// A send buffer of the node's pool.
///
/// # Safety
/// None: no pointer is followed. The memory may be used until it is given back or the socket is closed.
#[unsafe(no_mangle)]
pub extern "C" fn rt_mmap(socket: c_int, bytes: usize) -> *mut c_void {
    numbered(libc::MAP_FAILED, || {
        let mut entered = port::enter(socket_id(socket)?)?;
        let (port, socket) = entered.as_socket()?;
        if bytes > DATAGRAM_BYTES_MAX {
            return Err(
                Fault::new(Code::BadArgument, "a send buffer has at most 65,507 bytes")
                    .with_errno(libc::ENOMEM),
            );
        }
        let mut buffer = port.lend_buffer(bytes)?;
        buffer.set_length(buffer.capacity())?;
        let start = buffer.as_mut_ptr();
        // There is room for all that the pool has.
        socket.lent.push(buffer);
        Ok(start.cast())
    })
}

/// Gives a send buffer back.
///
/// # Safety
/// None: no pointer is followed. The memory may not be used any more.
#[unsafe(no_mangle)]
pub extern "C" fn tautline_socket_unmap(socket: c_int, buffer: *mut c_void) -> c_int {
    coded(|| {
        if buffer.is_null() {
            return Err(Fault::null("buffer"));
        }
        let mut entered = port::enter(socket_id(socket)?)?;
        let (_, socket) = entered.as_socket()?;
        let begins = |lent: &LentBuffer| lent.as_ptr().addr() == buffer.addr();
        let Some(place) = socket.lent.iter().position(begins) else {
            let what = "no send buffer of this socket begins there";
            return Err(Fault::new(Code::BadArgument, what));
        };
        drop(socket.lent.swap_remove(place));
        Ok(0)
    })
}

/// Sends a message.
///
/// # Safety
/// `message` is null or `bytes` bytes can be read there; `to` is null or `to_bytes` bytes can.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rt_sendto(
    socket: c_int,
    message: *const c_void,
    bytes: usize,
    flags: c_int,
    to: *const sockaddr,
    to_bytes: socklen_t,
) -> isize {
    numbered(-1, || {
        check_flags(flags, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)?;
        if to.is_null() {
            return Err(Fault::null("to").with_errno(libc::EDESTADDRREQ));
        }
        // SAFETY: the caller's promise.
        let to = unsafe { address(to, to_bytes) }?;
        let message = Outgoing::new("message", message, bytes)?;
        let mut entered = port::enter(socket_id(socket)?)?;
        entered.as_socket()?;
        // SAFETY: the caller's promise.
        unsafe { entered.datagrams()?.reply(to, Priority::NORMAL, message) }?;
        Ok(bytes as isize)
    })
}

/// Receives a message.
///
/// # Safety
/// `buffer` is null or has room for `bytes` bytes; `from` and `from_bytes` are null, or the latter says
/// what room the former has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rt_recvfrom(
    socket: c_int,
    buffer: *mut c_void,
    bytes: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_bytes: *mut socklen_t,
) -> isize {
    numbered(-1, || {
        check_flags(flags, libc::MSG_DONTWAIT | libc::MSG_TRUNC)?;
        // SAFETY: the caller's promise.
        let (buffer, from) = unsafe {
            (
                pointer::buffer("buffer", buffer, bytes)?,
                Sender::new(from, from_bytes)?,
            )
        };
        let mut entered = port::enter(socket_id(socket)?)?;
        let (port, socket) = entered.as_socket()?;
        let is_short = buffer.len() < port.message_bytes_max();
        let place: &mut [u8] = if is_short {
            &mut socket.scratch
        } else {
            &mut *buffer
        };
        let received = if flags & libc::MSG_DONTWAIT != 0 {
            port.receive_into(place, Wait::Poll)
        } else {
            port.receive_into(place, Wait::Forever)
        }?;
        let Some(message) = received else {
            return Err(Fault::new(Code::Refused, "no message is waiting").with_errno(libc::EAGAIN));
        };
        let taken = message.length.min(buffer.len());
        if is_short {
            buffer[..taken].copy_from_slice(&socket.scratch[..taken]);
        }
        if let Some(from) = from {
            from.put(message.source);
        }
        let told = if flags & libc::MSG_TRUNC != 0 {
            message.length
        } else {
            taken
        };
        Ok(told as isize)
    })
}

/// Closes a socket and gives back all that it had.
#[unsafe(no_mangle)]
pub extern "C" fn rt_socket_close(socket: c_int) -> c_int {
    numbered(-1, || {
        let id = socket_id(socket)?;
        // A port that is no socket is not this call's to close.
        let is_socket = match port::enter(id) {
            Ok(mut entered) => entered.as_socket().map(|_| ()),
            // Of no use any more, but to be closed.
            Err(fault) if fault.code() == Code::Internal => Ok(()),
            Err(fault) => Err(fault),
        };
        is_socket?;
        port::close(id)?;
        Ok(0)
    })
}

fn socket_id(socket: c_int) -> Result<u32, Fault> {
    u32::try_from(socket).map_err(|_| Code::BadHandle.into())
}

fn check_flags(flags: c_int, known: c_int) -> Result<(), Fault> {
    if flags & !known == 0 {
        return Ok(());
    }
    Err(Fault::new(Code::BadArgument, "a flag is not known").with_errno(libc::EOPNOTSUPP))
}

/// Reads an address.
///
/// # Safety
/// `place` is null or `bytes` bytes can be read there.
unsafe fn address(place: *const sockaddr, bytes: socklen_t) -> Result<SocketAddrV4, Fault> {
    if (bytes as usize) < size_of::<sockaddr_in>() && !place.is_null() {
        return Err(Fault::new(Code::BadArgument, "an address is too short"));
    }
    // SAFETY: null is refused; otherwise that many bytes can be read, which is the caller's promise.
    let bytes = unsafe { pointer::bytes("local", place.cast(), size_of::<sockaddr_in>()) }?;
    // SAFETY: as many bytes as the struct has, any of which are valid in it; read unaligned.
    let address: sockaddr_in = unsafe { bytes.as_ptr().cast::<sockaddr_in>().read_unaligned() };
    if c_int::from(address.sin_family) != libc::AF_INET {
        return Err(
            Fault::new(Code::BadArgument, "an address is not of AF_INET")
                .with_errno(libc::EAFNOSUPPORT),
        );
    }
    Ok(SocketAddrV4::new(
        Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)),
        u16::from_be(address.sin_port),
    ))
}

/// Where the sender's address goes.
struct Sender<'a> {
    room: &'a mut [u8],
    bytes: Out<socklen_t>,
}

impl Sender<'_> {
    /// # Safety
    /// `place` is null, or `bytes` is null or tells what can be written to `place`.
    unsafe fn new(place: *mut sockaddr, bytes: *mut socklen_t) -> Result<Option<Self>, Fault> {
        if place.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let (room, bytes) = unsafe {
            let room = pointer::value("from_bytes", bytes)? as usize;
            let place = pointer::buffer("from", place.cast(), room)?;
            (place, Out::new("from_bytes", bytes)?)
        };
        Ok(Some(Self { room, bytes }))
    }

    /// Writes as much of the address as there is room for, and how long it is.
    fn put(self, address: SocketAddrV4) {
        let [low, high] = (libc::AF_INET as libc::sa_family_t).to_ne_bytes();
        let [port_high, port_low] = address.port().to_be_bytes();
        let [a, b, c, d] = address.ip().octets();
        let mut whole = [0; size_of::<sockaddr_in>()];
        whole[..8].copy_from_slice(&[low, high, port_high, port_low, a, b, c, d]);
        let bytes = self.room.len().min(whole.len());
        self.room[..bytes].copy_from_slice(&whole[..bytes]);
        self.bytes.put(whole.len() as socklen_t);
    }
}

// `put` writes the first fields where they are.
const _: () = assert!(
    std::mem::offset_of!(sockaddr_in, sin_port) == 2
        && std::mem::offset_of!(sockaddr_in, sin_addr) == 4
);
