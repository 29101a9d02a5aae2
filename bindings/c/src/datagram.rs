//! A port of plain UDP with what the calls of sockets add to it: send buffers that C has, and room for long datagrams.
#![allow(unsafe_code)] // Reads messages of C.

use std::net::SocketAddrV4;
use std::sync::Arc;

use tautline::send_pool::LentBuffer;
use tautline::{Destination, Node, PortError, PortKey, Priority, SendError, UdpPort};

use crate::border::Fault;
use crate::pointer::Outgoing;

/// A port of plain UDP.
#[derive(Debug)]
pub(crate) struct DatagramPort {
    pub(crate) port: UdpPort,
    /// Of a socket only.
    pub(crate) socket: Option<Socket>,
}

/// State of a socket beyond its port.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Where a message goes first whose buffer may be too short for it.
    pub(crate) scratch: Box<[u8]>,
    /// Send buffers that C has, as long as they can be.
    pub(crate) lent: Vec<LentBuffer>,
    /// Keeps a node that sockets share.
    pub(crate) _shared: Option<Arc<Node>>,
}

impl From<UdpPort> for DatagramPort {
    fn from(port: UdpPort) -> Self {
        Self { port, socket: None }
    }
}

impl DatagramPort {
    /// Send buffers that C has.
    pub(crate) fn lent(&self) -> impl Iterator<Item = &LentBuffer> {
        self.socket.iter().flat_map(|socket| &socket.lent)
    }

    /// Sends a datagram, from where it lies if that is in a send buffer that C has.
    ///
    /// # Safety
    /// The message is null, or its bytes can be read.
    pub(crate) unsafe fn send(
        &mut self,
        to: Destination,
        priority: Priority,
        message: Outgoing,
    ) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe {
            self.send_with(
                message,
                |port, bytes| port.send_to(to, priority, bytes),
                |port, buffer| port.send_buffer(to, priority, buffer),
            )
        }
    }

    /// Sends a datagram to an address, as [`DatagramPort::send`].
    ///
    /// # Safety
    /// The message is null, or its bytes can be read.
    pub(crate) unsafe fn reply(
        &mut self,
        to: SocketAddrV4,
        priority: Priority,
        message: Outgoing,
    ) -> Result<(), Fault> {
        PortKey::udp(to.port()).map_err(PortError::from)?;
        // SAFETY: the caller's promise.
        unsafe {
            self.send_with(
                message,
                |port, bytes| port.reply(to, priority, bytes),
                |port, buffer| port.reply_buffer(to, priority, buffer),
            )
        }
    }

    /// # Safety
    /// The message is null, or its bytes can be read.
    unsafe fn send_with(
        &mut self,
        message: Outgoing,
        send: impl FnOnce(&mut UdpPort, &[u8]) -> Result<(), SendError>,
        send_lent: impl FnOnce(&mut UdpPort, &mut LentBuffer) -> Result<(), SendError>,
    ) -> Result<(), Fault> {
        let Self { port, socket } = self;
        let bytes = message.bytes();
        for buffer in socket.iter_mut().flat_map(|socket| &mut socket.lent) {
            let Some(offset) = message.offset_in(buffer)? else {
                continue;
            };
            if offset > 0 {
                buffer.copy_within(offset..offset + bytes, 0);
            }
            buffer.set_length(bytes)?;
            let sent = send_lent(port, buffer);
            buffer.set_length(buffer.capacity())?;
            return Ok(sent?);
        }
        // SAFETY: the caller's promise. It is copied into memory that C never sees.
        send(port, unsafe { message.read() }?)?;
        Ok(())
    }
}
