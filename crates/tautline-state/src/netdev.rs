//! XDP features of an interface according to the kernel, and the threads that poll it: the generic netlink
//! family `netdev` (since Linux 6.3, threads since 6.8).

use std::io;

use crate::netlink::{DUMP, Request, Route, attribute, long, word};

// linux/genetlink.h
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// Bytes of `struct genlmsghdr`, which stands before the attributes.
const GENERIC_HEADER_BYTES: usize = 4;

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
    route: Route,
    family: u16,
}

impl Netdev {
    /// Finds the family; an error of kind `NotFound` means that the kernel has none.
    pub fn open() -> io::Result<Netdev> {
        let mut route = Route::open_generic()?;
        let mut request =
            request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 0).with_text(CTRL_ATTR_FAMILY_NAME, "netdev");
        let mut family = None;
        route.ask_one(&mut request, |reply| {
            let value = value(reply, CTRL_ATTR_FAMILY_ID);
            family = value.and_then(|value| Some(u16::from_ne_bytes(value.try_into().ok()?)));
        })?;
        let family = family.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Netdev { route, family })
    }

    /// The features of one interface of the caller's network namespace.
    pub fn xdp_features(&mut self, interface_index: u32) -> io::Result<XdpFeatures> {
        let mut request = request(self.family, NETDEV_CMD_DEV_GET, 0)
            .with(NETDEV_A_DEV_IFINDEX, &interface_index.to_ne_bytes());
        let mut features = None;
        self.route.ask_one(&mut request, |reply| {
            let value = value(reply, NETDEV_A_DEV_XDP_FEATURES);
            features = value.and_then(|value| long(value, 0)).map(XdpFeatures);
        })?;
        features.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The polls (NAPI instances) of an interface of the caller's network namespace that is up. A veth has none without
    /// an XDP program.
    pub(crate) fn polls(&mut self, interface_index: u32) -> io::Result<Vec<Poll>> {
        let mut request = request(self.family, NETDEV_CMD_NAPI_GET, DUMP)
            .with(NETDEV_A_NAPI_IFINDEX, &interface_index.to_ne_bytes());
        let mut polls = Vec::new();
        self.route.ask(&mut request, |reply| {
            let number = |kind| value(reply, kind).and_then(|value| word(value, 0));
            polls.push(Poll {
                thread: number(NETDEV_A_NAPI_PID),
                interrupt: number(NETDEV_A_NAPI_IRQ),
            });
        })?;
        Ok(polls)
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

fn request(family: u16, command: u8, flags: u16) -> Request {
    let version = 1;
    Request::new(family, flags, &[command, version, 0, 0])
}

/// Value of an attribute of a reply.
fn value(reply: &[u8], kind: u16) -> Option<&[u8]> {
    attribute(reply.get(GENERIC_HEADER_BYTES..)?, kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_native_xdp() {
        match Netdev::open() {
            Err(error) => println!("SKIPPED: the kernel has no netdev family: {error}"),
            // The loopback device is always the first of a namespace.
            Ok(mut netdev) => assert!(!netdev.xdp_features(1).unwrap().native()),
        }
    }
}
