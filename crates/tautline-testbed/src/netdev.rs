//! XDP features of an interface according to the kernel, and the threads that poll it: the generic netlink
//! family `netdev` (since Linux 6.3, threads since 6.8). Also the little netlink that this needs.
//!
//! Data from the kernel is parsed with bounds all the same, and answers without the expected
//! attribute are no answer.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

// linux/netlink.h and linux/genetlink.h
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// Bytes of `struct nlmsghdr` and of `struct genlmsghdr`.
const HEADER_BYTES: usize = 16;
const GENERIC_HEADER_BYTES: usize = 4;
/// The upper two bits of an attribute's type are flags.
const ATTRIBUTE_TYPE_MASK: u16 = 0x3fff;

// linux/netdev.h
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_CMD_NAPI_GET: u8 = 11;
const NETDEV_A_NAPI_IFINDEX: u16 = 1;
const NETDEV_A_NAPI_IRQ: u16 = 3;
const NETDEV_A_NAPI_PID: u16 = 4;

/// The XDP features of an interface, as the driver declares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpFeatures(u64);

impl XdpFeatures {
    /// Programs run in the driver (native mode).
    pub fn native(self) -> bool {
        self.0 & 1 != 0
    }

    /// AF_XDP without copies.
    pub fn zero_copy(self) -> bool {
        self.0 & 8 != 0
    }

    /// Frames of several buffers (large MTU, segmentation).
    pub fn fragments(self) -> bool {
        self.0 & 32 != 0
    }

    /// The features by name.
    pub fn text(self) -> String {
        let names: Vec<&str> = [
            (1, "basic"),
            (2, "redirect"),
            (4, "transmit"),
            (8, "AF_XDP zero-copy"),
            (16, "offload"),
            (32, "fragments"),
            (64, "transmit of fragments"),
        ]
        .into_iter()
        .filter(|(bit, _)| self.0 & bit != 0)
        .map(|(_, name)| name)
        .collect();
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    }
}

/// A connection to the family.
#[derive(Debug)]
pub struct Netdev {
    socket: OwnedFd,
    family: u16,
}

impl Netdev {
    /// Finds the family; an error of kind `NotFound` means that the kernel has none.
    pub fn open() -> io::Result<Netdev> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(GENERIC),
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(1)))?;
        let request = message(
            GENL_ID_CTRL,
            CTRL_CMD_GETFAMILY,
            CTRL_ATTR_FAMILY_NAME,
            b"netdev\0",
            NLM_F_REQUEST,
        );
        let reply = ask(&socket, &request)?;
        let family = attribute(&reply, CTRL_ATTR_FAMILY_ID)
            .and_then(|value| value.try_into().ok())
            .map(u16::from_ne_bytes)
            .ok_or(io::ErrorKind::InvalidData)?;
        Ok(Netdev { socket, family })
    }

    /// The features of one interface of the caller's network namespace.
    pub fn xdp_features(&self, interface_index: u32) -> io::Result<XdpFeatures> {
        let request = message(
            self.family,
            NETDEV_CMD_DEV_GET,
            NETDEV_A_DEV_IFINDEX,
            &interface_index.to_ne_bytes(),
            NLM_F_REQUEST,
        );
        let reply = ask(&self.socket, &request)?;
        attribute(&reply, NETDEV_A_DEV_XDP_FEATURES)
            .and_then(|value| value.try_into().ok())
            .map(|value| XdpFeatures(u64::from_ne_bytes(value)))
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The polls (NAPI instances) of an interface of the caller's network namespace that is up. A veth has none without
    /// an XDP program.
    pub(crate) fn polls(&self, interface_index: u32) -> io::Result<Vec<Poll>> {
        let request = message(
            self.family,
            NETDEV_CMD_NAPI_GET,
            NETDEV_A_NAPI_IFINDEX,
            &interface_index.to_ne_bytes(),
            NLM_F_REQUEST | NLM_F_DUMP,
        );
        send(&self.socket, &request, SendFlags::empty())?;
        let mut polls = Vec::new();
        let mut buffer = [0; 8192];
        loop {
            let (length, _) = recv(&self.socket, &mut buffer, RecvFlags::empty())?;
            let mut rest = &buffer[..length];
            while !rest.is_empty() {
                if u16_at(rest, 4) == Some(NLMSG_DONE) {
                    return Ok(polls);
                }
                let attributes = attributes_of(rest)?;
                let number = |kind| {
                    attribute(&attributes, kind)
                        .and_then(|value| value.try_into().ok())
                        .map(u32::from_ne_bytes)
                };
                polls.push(Poll {
                    thread: number(NETDEV_A_NAPI_PID),
                    interrupt: number(NETDEV_A_NAPI_IRQ),
                });
                let message_bytes = u32_at(rest, 0).unwrap_or(0).next_multiple_of(4) as usize;
                rest = rest.get(message_bytes.max(HEADER_BYTES)..).unwrap_or(&[]);
            }
        }
    }
}

/// One poll of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Poll {
    /// The kernel thread that it runs in, if it does.
    pub(crate) thread: Option<u32>,
    /// The interrupt that sets it off, if the driver told.
    pub(crate) interrupt: Option<u32>,
}

/// A generic netlink request with one attribute.
fn message(family: u16, command: u8, kind: u16, value: &[u8], flags: u16) -> Vec<u8> {
    let attribute_bytes = 4 + value.len();
    let padded = attribute_bytes.next_multiple_of(4);
    let total = HEADER_BYTES + GENERIC_HEADER_BYTES + padded;
    let mut bytes = Vec::with_capacity(total);
    bytes.extend((total as u32).to_ne_bytes());
    bytes.extend(family.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(1u32.to_ne_bytes()); // sequence
    bytes.extend(0u32.to_ne_bytes()); // to the kernel
    bytes.extend([command, 1, 0, 0]);
    bytes.extend((attribute_bytes as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(total, 0);
    bytes
}

/// Sends a request and returns the attributes of its answer.
fn ask(socket: &OwnedFd, request: &[u8]) -> io::Result<Vec<u8>> {
    send(socket, request, SendFlags::empty())?;
    // A page and a half of attributes is far more than either answer has.
    let mut buffer = [0; 8192];
    let (length, _) = recv(socket, &mut buffer, RecvFlags::empty())?;
    attributes_of(&buffer[..length])
}

fn attributes_of(message: &[u8]) -> io::Result<Vec<u8>> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let length = u32_at(message, 0).ok_or_else(malformed)? as usize;
    let message = message.get(..length).ok_or_else(malformed)?;
    if u16_at(message, 4) == Some(NLMSG_ERROR) {
        let negative = u32_at(message, HEADER_BYTES).ok_or_else(malformed)? as i32;
        return Err(io::Error::from_raw_os_error(negative.wrapping_neg()));
    }
    message
        .get(HEADER_BYTES + GENERIC_HEADER_BYTES..)
        .map(<[u8]>::to_vec)
        .ok_or_else(malformed)
}

/// The value of the first attribute of a kind.
fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16_at(attributes, 0)?);
        let found = u16_at(attributes, 2)? & ATTRIBUTE_TYPE_MASK;
        let value = attributes.get(4..length)?;
        if found == kind {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_and_bounded() {
        let built = message(7, 1, 3, &[1, 2, 3, 4, 5], NLM_F_REQUEST);
        assert_eq!(built.len() % 4, 0);
        let attributes = attributes_of(&built).unwrap();
        assert_eq!(attribute(&attributes, 3), Some(&[1, 2, 3, 4, 5][..]));
        assert_eq!(attribute(&attributes, 4), None);
        for end in 0..built.len() {
            assert!(attributes_of(&built[..end]).is_err());
        }
        for malformed in [&[][..], &[0, 0, 0, 0], &[3, 0, 1, 0], &[255, 255, 1, 0, 9]] {
            assert_eq!(attribute(malformed, 1), None, "{malformed:?}");
        }
    }

    #[test]
    fn errors_of_the_kernel_are_errors() {
        let mut bytes = message(NLMSG_ERROR, 0, 0, &[], NLM_F_REQUEST);
        bytes[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&(-2i32).to_ne_bytes());
        assert_eq!(attributes_of(&bytes).unwrap_err().raw_os_error(), Some(2));
    }

    #[test]
    fn loopback_has_no_native_xdp() {
        match Netdev::open() {
            Err(error) => println!("SKIPPED: the kernel has no netdev family: {error}"),
            // The loopback device is always the first of a namespace.
            Ok(netdev) => assert!(!netdev.xdp_features(1).unwrap().native()),
        }
    }
}
