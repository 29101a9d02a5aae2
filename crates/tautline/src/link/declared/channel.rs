//! Sockets on which the declarations of one port come and go. Ordinary ones of the kernel: the demux passes such frames
//! on, and no queue of messages has any part in it.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tautline_proto::authentication::Station;
use tautline_proto::wire::declaration::{
    PAYLOAD_BYTES_MAX, UDP_DECLARATION_BASE, ethertype as ethertype_of_declarations,
};
use tautline_proto::wire::ethernet::{EthernetForm, Vlan};
use tautline_proto::wire::{HEADER_BYTES, Header, MacAddress, PortNumber};

use crate::claim::with_retries;
use crate::link::socket::bound_at_once;
use crate::sys::interface::Interface;
use crate::sys::{packet, socket, unix};

/// Bytes of an Ethernet header.
const ETHERNET_BYTES: usize = 14;
/// Bytes of the longest frame, with all headers, and padding.
pub(crate) const FRAME_BYTES_MAX: usize = ETHERNET_BYTES + HEADER_BYTES + PAYLOAD_BYTES_MAX;
/// Bytes of declarations that the kernel may hold for a port. Lower: a fleet that starts at once is heard in part.
/// Higher: a flood takes more memory.
const SOCKET_BUFFER_BYTES: i32 = 64 << 10;

/// Maker of a socket to a control process, which sends and receives the frames of its clients.
pub(crate) type Relay = Box<dyn Fn() -> io::Result<OwnedFd> + Send + Sync>;

/// EtherType of the messages that a node's ports of the Ethernet form declare.
///
/// # Errors
/// In a VLAN: the kernel takes the tag out before a packet socket can tell whose frame it is.
pub(crate) fn messages_of(form: EthernetForm) -> io::Result<u16> {
    match form.vlan {
        Vlan::NONE => Ok(form.ethertype),
        _ => Err(io::Error::other("nodes in a VLAN tell each other no types")),
    }
}

/// A socket of one form.
pub(crate) struct Channel {
    /// None while the control process is gone.
    socket: Mutex<Option<Arc<OwnedFd>>>,
    form: Form,
}

enum Form {
    Ethernet {
        own: MacAddress,
        /// EtherType of messages.
        messages: u16,
        relay: Option<Relay>,
    },
    Udp,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Channel").finish_non_exhaustive()
    }
}

impl Channel {
    fn new(socket: OwnedFd, form: Form) -> io::Result<Self> {
        socket::set_option(
            socket.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            &SOCKET_BUFFER_BYTES,
        )?;
        Ok(Self {
            socket: Mutex::new(Some(Arc::new(socket))),
            form,
        })
    }

    /// The Ethernet form on an interface.
    pub(crate) fn ethernet(
        interface: &Interface,
        messages: u16,
        port: PortNumber,
    ) -> io::Result<Self> {
        let ethertype = ethertype_of_declarations(messages);
        let socket = packet::receiver(interface.index, ethertype, port.get())?;
        Self::in_ethernet_form(interface, messages, socket, None)
    }

    /// The same through a control process.
    pub(crate) fn relayed(interface: &Interface, messages: u16, relay: Relay) -> io::Result<Self> {
        let socket = relay()?;
        Self::in_ethernet_form(interface, messages, socket, Some(relay))
    }

    fn in_ethernet_form(
        interface: &Interface,
        messages: u16,
        socket: OwnedFd,
        relay: Option<Relay>,
    ) -> io::Result<Self> {
        let form = Form::Ethernet {
            own: interface.mac,
            messages,
            relay,
        };
        Self::new(socket, form)
    }

    /// The UDP form.
    pub(crate) fn udp(ip: Ipv4Addr, port: PortNumber) -> io::Result<Self> {
        let own = SocketAddrV4::new(ip, UDP_DECLARATION_BASE + port.get());
        // The thread may hold the socket of a port of this number that was closed a moment ago.
        let socket = with_retries(io::ErrorKind::AddrInUse, || bound_at_once(own))?;
        Self::new(socket, Form::Udp)
    }

    fn socket(&self) -> MutexGuard<'_, Option<Arc<OwnedFd>>> {
        // A panic elsewhere leaves a socket or none.
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The socket, for those who wait. None while there is no control process.
    pub(super) fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.socket().clone()
    }

    /// EtherType of the messages of this form; 0 in the UDP form.
    pub(super) const fn messages(&self) -> u16 {
        match self.form {
            Form::Ethernet { messages, .. } => messages,
            Form::Udp => 0,
        }
    }

    /// Whether a station is reached in this form.
    pub(super) const fn reaches(&self, station: Station) -> bool {
        matches!(
            (&self.form, station),
            (Form::Ethernet { .. }, Station::Ethernet(_)) | (Form::Udp, Station::Udp(_))
        )
    }

    /// Asks for another socket where the control process has gone.
    pub(super) fn reopen(&self) {
        let Form::Ethernet {
            relay: Some(relay), ..
        } = &self.form
        else {
            return;
        };
        if self.socket().is_none()
            && let Ok(socket) = relay()
        {
            *self.socket() = Some(Arc::new(socket));
        }
    }

    /// The next frame: its sender, and the bytes behind the Ethernet or UDP header. Never waits.
    pub(super) fn receive<'b>(
        &self,
        buffer: &'b mut [u8; FRAME_BYTES_MAX],
    ) -> Option<(Station, &'b [u8])> {
        let socket = self.descriptor()?;
        let received = socket::receive_from(socket.as_fd(), buffer);
        match &self.form {
            Form::Udp => {
                let (bytes, from) = received.ok()??;
                Some((Station::Udp(*from.ip()), buffer.get(..bytes)?))
            }
            Form::Ethernet { relay, .. } => match received {
                Ok(None) => None,
                Ok(Some((bytes, _))) if bytes > 0 => {
                    let frame = buffer.get(..bytes.min(FRAME_BYTES_MAX))?;
                    // A frame that is too short has no sender, and no bytes behind its header.
                    let source = frame.get(6..).and_then(|rest| rest.first_chunk().copied());
                    let source = MacAddress(source.unwrap_or_default());
                    let behind = frame.get(ETHERNET_BYTES..).unwrap_or_default();
                    Some((Station::Ethernet(source), behind))
                }
                _ if relay.is_some() => {
                    *self.socket() = None;
                    None
                }
                _ => None,
            },
        }
    }

    /// Sends a declaration. Never waits; a loss is made good by the next announcement.
    pub(super) fn send(&self, to: Station, header: &Header, payload: &[u8]) {
        let Some(socket) = self.descriptor() else {
            return;
        };
        let mut frame = [0; FRAME_BYTES_MAX];
        let start = match (&self.form, to) {
            (Form::Ethernet { own, messages, .. }, Station::Ethernet(mac)) => {
                frame[..6].copy_from_slice(&mac.0);
                frame[6..12].copy_from_slice(&own.0);
                let ethertype = ethertype_of_declarations(*messages);
                frame[12..ETHERNET_BYTES].copy_from_slice(&ethertype.to_be_bytes());
                ETHERNET_BYTES
            }
            _ => 0,
        };
        let mut ours = [0; HEADER_BYTES];
        header.emit(&mut ours);
        let behind = start + HEADER_BYTES;
        frame[start..behind].copy_from_slice(&ours);
        frame[behind..behind + payload.len()].copy_from_slice(payload);
        let frame = &frame[..behind + payload.len()];
        let _lost = match to {
            // Without a signal where the control process has gone.
            Station::Ethernet(_) => unix::send(socket.as_fd(), frame, &[]),
            Station::Udp(ip) => {
                let to = SocketAddrV4::new(ip, UDP_DECLARATION_BASE + header.destination.get());
                socket::send_to(socket.as_fd(), frame, to)
            }
        };
    }
}
