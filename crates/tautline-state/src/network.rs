//! Objects of the network that are made for a time: queues of our own, filters, and a limit of an interface. The
//! journal removes them when their process has died.
//!
//! An interface is meant by its index, since it may be renamed meanwhile. Whatever a journal says, only BPF filters
//! with a name that begins with [`PREFIX`] are removed; of an interface's root only an HTB with our handle; a limit is
//! put back only while it is the one that was set.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use crate::netlink::{DUMP, Request, Route, attribute, text, word};

/// Beginning of the names of our filters.
pub const PREFIX: &str = "taut";

/// Handle of our queueing discipline, by which it is known as ours.
pub const QUEUE_HANDLE: u32 = 0x7a75_0000;

// linux/rtnetlink.h
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_DELQDISC: u16 = 37;
const RTM_GETQDISC: u16 = 38;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
// linux/if_link.h
const IFLA_GSO_MAX_SEGS: u16 = 40;
// linux/pkt_cls.h
const TCA_BPF_NAME: u16 = 7;
/// Bytes of `struct ifinfomsg` and of `struct tcmsg`.
const LINK_HEAD_BYTES: usize = 16;
const TC_HEAD_BYTES: usize = 20;
/// Parent of an interface's first queueing discipline.
pub const TC_H_ROOT: u32 = 0xffff_ffff;
/// `clsact`: its handle and the parents of its filters.
const CLSACT_PARENT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;

/// Side of an interface on which a filter looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// Frames that arrive.
    Ingress,
    /// Frames that leave.
    Egress,
}

impl Side {
    /// Parent of the filters there.
    #[must_use]
    pub const fn parent(self) -> u32 {
        match self {
            Self::Ingress => 0xffff_fff2,
            Self::Egress => 0xffff_fff3,
        }
    }
}

/// Something that was made and must be gone afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkObject {
    /// Our queueing discipline at the root of an interface, where the kernel's default was.
    Root {
        /// Index of the interface.
        interface: u32,
    },
    /// The place for filters on an interface (`clsact`). It stays if another program has a filter there.
    FilterPlace {
        /// Index of the interface.
        interface: u32,
    },
    /// A BPF filter on an interface.
    Filter {
        /// Index of the interface.
        interface: u32,
        /// Side on which it looks.
        side: Side,
        /// Its name, which begins with [`PREFIX`].
        name: String,
    },
    /// The most segments that the stack hands to an interface at once.
    SegmentLimit {
        /// Index of the interface.
        interface: u32,
        /// Value before.
        before: u32,
        /// Value meanwhile.
        after: u32,
    },
}

impl fmt::Display for NetworkObject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root { interface } => write!(formatter, "root of interface {interface}"),
            Self::FilterPlace { interface } => write!(formatter, "clsact of interface {interface}"),
            Self::Filter {
                interface,
                side,
                name,
            } => write!(
                formatter,
                "filter {name} of interface {interface} ({side:?})"
            ),
            Self::SegmentLimit { interface, .. } => {
                write!(formatter, "segment limit of interface {interface}")
            }
        }
    }
}

impl NetworkObject {
    /// Removes it, in the calling thread's network namespace. `ErrorKind::NotFound` if it is gone, or not ours.
    pub fn remove(&self) -> io::Result<()> {
        let mut route = Route::open()?;
        match self {
            Self::Root { interface } => remove_root(&mut route, *interface),
            Self::FilterPlace { interface } => remove_filter_place(&mut route, *interface),
            Self::Filter {
                interface,
                side,
                name,
            } => remove_filters(&mut route, *interface, *side, name),
            Self::SegmentLimit {
                interface,
                before,
                after,
            } => {
                if segment_limit(&mut route, *interface)? == *after {
                    set_segment_limit(&mut route, *interface, *before)?;
                }
                Ok(())
            }
        }
    }
}

/// `struct ifinfomsg`.
fn link_head(interface: u32) -> [u8; LINK_HEAD_BYTES] {
    let mut head = [0; LINK_HEAD_BYTES];
    head[4..8].copy_from_slice(&interface.to_ne_bytes());
    head
}

/// `struct tcmsg`.
#[must_use]
pub fn tc_head(interface: u32, handle: u32, parent: u32, info: u32) -> [u8; TC_HEAD_BYTES] {
    let mut head = [0; TC_HEAD_BYTES];
    for (field, value) in head[4..]
        .chunks_mut(4)
        .zip([interface, handle, parent, info])
    {
        field.copy_from_slice(&value.to_ne_bytes());
    }
    head
}

/// Kernel's answer where something is absent.
fn absent() -> io::Error {
    io::ErrorKind::NotFound.into()
}

fn as_absent(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENODEV | libc::ENOENT | libc::EINVAL) => absent(),
        _ => error,
    }
}

/// A filter, by all that its removal needs.
struct Filter {
    handle: u32,
    info: u32,
    kind: String,
    name: Option<String>,
}

fn filters(route: &mut Route, interface: u32, side: Side) -> io::Result<Vec<Filter>> {
    let mut found = Vec::new();
    let head = tc_head(interface, 0, side.parent(), 0);
    let mut request = Request::new(RTM_GETTFILTER, DUMP, &head);
    route.ask(&mut request, |answer| {
        let attributes = answer.get(TC_HEAD_BYTES..).unwrap_or(&[]);
        let options = attribute(attributes, TCA_OPTIONS);
        let name = options.and_then(|options| attribute(options, TCA_BPF_NAME));
        if let (Some(handle), Some(info)) = (word(answer, 8), word(answer, 16)) {
            found.push(Filter {
                handle,
                info,
                kind: attribute(attributes, TCA_KIND)
                    .and_then(text)
                    .unwrap_or_default()
                    .to_owned(),
                name: name.and_then(text).map(str::to_owned),
            });
        }
    })?;
    // The kernel lists a place of filters too, with handle 0.
    found.retain(|filter| filter.handle != 0);
    Ok(found)
}

fn remove_filters(route: &mut Route, interface: u32, side: Side, name: &str) -> io::Result<()> {
    if !name.starts_with(PREFIX) {
        return Err(absent());
    }
    let mut answer = Err(absent());
    for filter in filters(route, interface, side).map_err(as_absent)? {
        if filter.kind == "bpf" && filter.name.as_deref() == Some(name) {
            let head = tc_head(interface, filter.handle, side.parent(), filter.info);
            let mut request = Request::new(RTM_DELTFILTER, 0, &head).with_text(TCA_KIND, "bpf");
            answer = route.tell(&mut request).map_err(as_absent);
        }
    }
    answer
}

fn remove_filter_place(route: &mut Route, interface: u32) -> io::Result<()> {
    for side in [Side::Ingress, Side::Egress] {
        let filters = filters(route, interface, side).map_err(as_absent)?;
        let is_ours = |filter: &Filter| {
            let name = filter.name.as_deref();
            name.is_some_and(|name| name.starts_with(PREFIX))
        };
        if filters.iter().any(is_ours) {
            // It could not be removed, and the place goes after it.
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        if !filters.is_empty() {
            return Err(absent());
        }
    }
    if !has_filter_place(route, interface)? {
        return Err(absent());
    }
    let head = tc_head(interface, CLSACT_HANDLE, CLSACT_PARENT, 0);
    route
        .tell(&mut Request::new(RTM_DELQDISC, 0, &head).with_text(TCA_KIND, "clsact"))
        .map_err(as_absent)
}

/// A queueing discipline of an interface.
struct Queue {
    kind: String,
    handle: u32,
    parent: u32,
}

fn queues(route: &mut Route, interface: u32) -> io::Result<Vec<Queue>> {
    let mut found = Vec::new();
    let head = tc_head(interface, 0, 0, 0);
    route.ask(&mut Request::new(RTM_GETQDISC, DUMP, &head), |answer| {
        let attributes = answer.get(TC_HEAD_BYTES..).unwrap_or(&[]);
        let kind = attribute(attributes, TCA_KIND).and_then(text);
        // Those of all interfaces come.
        if let (Some(kind), Some(handle), Some(parent)) = (kind, word(answer, 8), word(answer, 12))
            && word(answer, 4) == Some(interface)
        {
            found.push(Queue {
                kind: kind.to_owned(),
                handle,
                parent,
            });
        }
    })?;
    Ok(found)
}

/// Whether an interface has a place for filters.
pub fn has_filter_place(route: &mut Route, interface: u32) -> io::Result<bool> {
    let queues = queues(route, interface)?;
    Ok(queues.iter().any(|queue| queue.kind == "clsact"))
}

/// Whether an interface queues by the kernel's default, which comes back by itself when another queueing discipline is
/// taken away. The kernel's own have handle 0, and everything that was configured has another one.
pub fn has_default_queues(route: &mut Route, interface: u32) -> io::Result<bool> {
    let queues = queues(route, interface)?;
    let mut set = queues.iter().filter(|queue| queue.handle != 0);
    Ok(set.all(|queue| queue.handle == CLSACT_HANDLE))
}

fn remove_root(route: &mut Route, interface: u32) -> io::Result<()> {
    let queues = queues(route, interface)?;
    let is_ours = |queue: &Queue| {
        queue.parent == TC_H_ROOT && queue.handle == QUEUE_HANDLE && queue.kind == "htb"
    };
    if !queues.iter().any(is_ours) {
        return Err(absent());
    }
    let head = tc_head(interface, QUEUE_HANDLE, TC_H_ROOT, 0);
    route
        .tell(&mut Request::new(RTM_DELQDISC, 0, &head).with_text(TCA_KIND, "htb"))
        .map_err(as_absent)
}

/// The most segments that the stack hands to an interface at once.
///
/// # Errors
/// The kernel's; `ErrorKind::NotFound` without such an interface.
pub fn segment_limit(route: &mut Route, interface: u32) -> io::Result<u32> {
    let mut limit = None;
    let mut request = Request::new(RTM_GETLINK, 0, &link_head(interface));
    route
        .ask(&mut request, |answer| {
            let attributes = answer.get(LINK_HEAD_BYTES..).unwrap_or(&[]);
            limit = attribute(attributes, IFLA_GSO_MAX_SEGS).and_then(|value| word(value, 0));
        })
        .map_err(as_absent)?;
    limit.ok_or_else(absent)
}

/// Sets it.
///
/// # Errors
/// The kernel's; `ErrorKind::NotFound` without such an interface.
pub fn set_segment_limit(route: &mut Route, interface: u32, limit: u32) -> io::Result<()> {
    let mut request = Request::new(RTM_NEWLINK, 0, &link_head(interface))
        .with(IFLA_GSO_MAX_SEGS, &limit.to_ne_bytes());
    route.tell(&mut request).map_err(as_absent)
}
