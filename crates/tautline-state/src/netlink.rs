//! Requests to the kernel about interfaces and traffic control (rtnetlink(7)) and about sockets (sock_diag(7)), in the
//! calling thread's network namespace.
//!
//! The crate `netlink-packet-route` has neither HTB nor statistics of one interface, and builds each message anew from
//! several vectors. Requests here are made 200 times a second, so a request is a buffer that is written once and may be
//! sent again.
//!
//! Data from the kernel is parsed with bounds all the same.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::{GENERIC, NETFILTER, SOCK_DIAG, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send,
    socket_with,
};

// linux/netlink.h
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
/// The request is for all objects of a kind.
pub const DUMP: u16 = 0x300;
/// An object is made, and it is an error if there is one.
pub const CREATE_NEW: u16 = 0x600;
/// The object that is asked for comes as an answer, where the kernel would send none.
pub const ECHO: u16 = 0x8;

/// Bytes of `struct nlmsghdr`, and of the head of an attribute.
const HEADER_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 4;
/// The upper two bits of an attribute's type are flags.
const ATTRIBUTE_TYPE_MASK: u16 = 0x3fff;

/// Bytes that one answer of the kernel may have. Shorter than a page would cut what tells of an interface with many
/// attributes.
const ANSWER_BYTES_MAX: usize = 32 << 10;

/// Longest wait for the kernel. It answers at once; a socket that was set up wrongly must not stop the caller.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// A request, being written or ready to be sent.
#[derive(Clone, Debug)]
pub struct Request {
    bytes: Vec<u8>,
    open: Vec<usize>,
}

impl Request {
    /// A request of a kind (`RTM_…`), with flags beside the usual ones, and the structure that such messages begin
    /// with.
    #[must_use]
    pub fn new(kind: u16, flags: u16, head: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(512);
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(head);
        Self {
            bytes,
            open: Vec::new(),
        }
    }

    /// Appends an attribute.
    #[must_use]
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        self.begin(kind);
        self.bytes.extend(value);
        self.end()
    }

    /// Appends an attribute that is a text with a zero at its end.
    #[must_use]
    pub fn with_text(self, kind: u16, text: &str) -> Self {
        self.with(kind, &[text.as_bytes(), b"\0"].concat())
    }

    /// Begins an attribute that holds those up to [`end`](Self::end).
    #[must_use]
    pub fn nest(mut self, kind: u16) -> Self {
        self.begin(kind);
        self
    }

    fn begin(&mut self, kind: u16) {
        self.open.push(self.bytes.len());
        self.bytes.extend(0u16.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
    }

    /// Ends the attribute that was begun last.
    ///
    /// # Panics
    /// If none is open, or it is longer than an attribute may be.
    #[must_use]
    pub fn end(mut self) -> Self {
        let begin = self.open.pop().expect("an attribute was begun");
        let length = u16::try_from(self.bytes.len() - begin).expect("attributes are short");
        self.bytes[begin..begin + 2].copy_from_slice(&length.to_ne_bytes());
        self.bytes
            .resize(self.bytes.len().next_multiple_of(ATTRIBUTE_BYTES), 0);
        self
    }

    /// Writes over bytes of a request that was made before, counted from its beginning.
    ///
    /// # Panics
    /// If there are no such bytes.
    pub fn overwrite(&mut self, offset: usize, value: &[u8]) {
        self.bytes[offset..offset + value.len()].copy_from_slice(value);
    }

    fn clear_flag(&mut self, flag: u16) {
        let flags = half(&self.bytes, 6).unwrap_or(0) & !flag;
        self.overwrite(6, &flags.to_ne_bytes());
    }

    /// Bytes so far: the place of what is appended next, after the four bytes of its attribute's head.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written, which cannot be: a request has a head.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// A connection to the kernel.
#[derive(Debug)]
pub struct Route {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Route {
    /// Opens one in the calling thread's network namespace.
    pub fn open() -> io::Result<Self> {
        Self::open_for(None) // NETLINK_ROUTE, which is 0
    }

    /// Opens one for questions about sockets in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel's; some are built without it.
    pub fn open_for_sockets() -> io::Result<Self> {
        Self::open_for(Some(SOCK_DIAG))
    }

    /// Opens one for questions about the firewall of the calling thread's network namespace (nftables).
    ///
    /// # Errors
    /// The kernel's; some are built without it.
    pub fn open_for_firewall() -> io::Result<Self> {
        Self::open_for(Some(NETFILTER))
    }

    /// Opens one for families that have no protocol of their own (generic netlink).
    pub(crate) fn open_generic() -> io::Result<Self> {
        Self::open_for(Some(GENERIC))
    }

    fn open_for(protocol: Option<Protocol>) -> io::Result<Self> {
        let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::RAW, flags, protocol)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIME_MAX))?;
        Ok(Self {
            socket,
            sequence: 0,
            buffer: vec![0; ANSWER_BYTES_MAX],
        })
    }

    /// Sends a request and hands each answer, without its head, to `each`, until the kernel says that it is done.
    ///
    /// # Errors
    /// The kernel's answer, with its number.
    ///
    /// # Panics
    /// If an attribute of the request is open.
    pub fn ask(&mut self, request: &mut Request, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(request)?;
        self.receive(|kind, message| match kind {
            NLMSG_ERROR => Some(result(message)),
            NLMSG_DONE => Some(Ok(())),
            _ => {
                each(message);
                None
            }
        })
    }

    fn send(&mut self, request: &mut Request) -> io::Result<()> {
        assert!(request.open.is_empty(), "an attribute is open");
        self.sequence = self.sequence.wrapping_add(1);
        let length = u32::try_from(request.bytes.len()).map_err(io::Error::other)?;
        request.overwrite(0, &length.to_ne_bytes());
        request.overwrite(8, &self.sequence.to_ne_bytes());
        send(&self.socket, &request.bytes, SendFlags::empty())?;
        Ok(())
    }

    /// Hands the kind and body of each answer to `each`, until it returns a result.
    fn receive(
        &mut self,
        mut each: impl FnMut(u16, &[u8]) -> Option<io::Result<()>>,
    ) -> io::Result<()> {
        loop {
            let (length, _) = recv(&self.socket, &mut self.buffer[..], RecvFlags::empty())?;
            let mut rest = &self.buffer[..length];
            while let Some(message_bytes) = word(rest, 0) {
                let Some(message) = rest.get(HEADER_BYTES..message_bytes as usize) else {
                    break;
                };
                // Late answers to an earlier request are passed over.
                if word(rest, 8) == Some(self.sequence)
                    && let Some(kind) = half(rest, 4)
                    && let Some(result) = each(kind, message)
                {
                    return result;
                }
                let next = (message_bytes as usize).next_multiple_of(ATTRIBUTE_BYTES);
                rest = rest.get(next..).unwrap_or(&[]);
            }
        }
    }

    /// Sends a request that has one answer, and hands it to `each`. The kernel is not asked to say that it is done,
    /// which saves a system call.
    ///
    /// # Errors
    /// The kernel's answer, with its number.
    ///
    /// # Panics
    /// If an attribute of the request is open.
    pub fn ask_one(&mut self, request: &mut Request, each: impl FnOnce(&[u8])) -> io::Result<()> {
        request.clear_flag(NLM_F_ACK);
        let mut each = Some(each);
        self.send(request)?;
        self.receive(|kind, message| {
            if kind == NLMSG_ERROR {
                return Some(result(message));
            }
            if let Some(each) = each.take() {
                each(message);
            }
            Some(Ok(()))
        })
    }

    /// Sends a request whose answers do not matter.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn tell(&mut self, request: &mut Request) -> io::Result<()> {
        self.ask(request, |_| {})
    }
}

/// The kernel's answer to a request as a whole.
fn result(message: &[u8]) -> io::Result<()> {
    match word(message, 0).unwrap_or(0).cast_signed() {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(-code)),
    }
}

/// A number of four bytes in the machine's order at an offset.
#[must_use]
pub fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    let field = bytes.get(offset..offset + 4)?;
    Some(u32::from_ne_bytes(field.try_into().ok()?))
}

fn half(bytes: &[u8], offset: usize) -> Option<u16> {
    let field = bytes.get(offset..offset + 2)?;
    Some(u16::from_ne_bytes(field.try_into().ok()?))
}

/// Value of the first attribute of a kind.
#[must_use]
pub fn attribute(mut bytes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(half(bytes, 0)?);
        let value = bytes.get(ATTRIBUTE_BYTES..length)?;
        if half(bytes, 2)? & ATTRIBUTE_TYPE_MASK == kind {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(ATTRIBUTE_BYTES)..)?;
    }
}

/// A number of eight bytes in the machine's order at an offset.
#[must_use]
pub fn long(bytes: &[u8], offset: usize) -> Option<u64> {
    let field = bytes.get(offset..offset + 8)?;
    Some(u64::from_ne_bytes(field.try_into().ok()?))
}

/// Text up to its zero.
#[must_use]
pub fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes.split(|byte| *byte == 0).next()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_as_they_were_written() {
        let request = Request::new(1, 0, &[])
            .with_text(3, "taut")
            .nest(18)
            .with(1, &[7])
            .end()
            .with(5, &9u32.to_ne_bytes());
        let attributes = &request.bytes[HEADER_BYTES..];
        assert_eq!(text(attribute(attributes, 3).unwrap()), Some("taut"));
        assert_eq!(word(attribute(attributes, 5).unwrap(), 0), Some(9));
        let nested = attribute(attributes, 18).unwrap();
        assert_eq!(attribute(nested, 1), Some(&[7][..]));
        assert_eq!(attribute(nested, 2), None);
    }

    #[test]
    fn whatever_comes_is_read_within_its_bounds() {
        for bytes in [
            &[][..],
            &[4],
            &[0, 0, 1, 0],
            &[3, 0, 1, 0],
            &[255, 255, 1, 0, 9],
            &[4, 0, 2, 0, 8, 0, 1, 0],
        ] {
            assert_eq!(attribute(bytes, 1), None, "{bytes:?}");
        }
        assert_eq!(word(&[1, 2, 3], 0), None);
        assert_eq!(long(&[0; 8], 1), None);
    }

    #[test]
    fn the_kernel_answers() {
        const GETLINK: u16 = 18;
        let mut route = Route::open().unwrap();
        let mut head = [0; 16];
        head[4..8].copy_from_slice(&1i32.to_ne_bytes()); // loopback
        let mut name = String::new();
        let mut request = Request::new(GETLINK, 0, &head);
        route
            .ask(&mut request, |answer| {
                let found = attribute(&answer[16..], 3).and_then(text);
                name = found.unwrap_or_default().to_owned();
            })
            .unwrap();
        assert_eq!(name, "lo");
        head[4..8].copy_from_slice(&i32::MAX.to_ne_bytes());
        let mut absent = Request::new(GETLINK, 0, &head);
        for error in [route.tell(&mut absent), route.ask_one(&mut absent, |_| {})] {
            assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::ENODEV));
        }
        name.clear();
        route
            .ask_one(&mut request, |answer| {
                let found = attribute(&answer[16..], 3).and_then(text);
                name = found.unwrap_or_default().to_owned();
            })
            .unwrap();
        assert_eq!(name, "lo");
    }
}
