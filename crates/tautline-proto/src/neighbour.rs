//! The peers of a node, written down beforehand: names, addresses, and which form they speak.
//!
//! Nothing is resolved at run time. A name is looked up when a flow opens, not for each frame: the
//! look-ups here walk the table.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv4Addr;
use core::str::FromStr;

use crate::wire::MacAddress;

/// Most neighbours of a node.
///
/// Lower would not cover a /24 network; higher makes every walk of the table longer, and a list too long to
/// maintain by hand.
pub const NEIGHBOUR_COUNT_MAX: usize = 256;

/// Longest name, in bytes. Lower than 63 would refuse a DNS label; higher spoils every table that shows names.
pub const NAME_BYTES_MAX: usize = 63;

/// Which form of the wire format a neighbour speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Form {
    /// Straight in Ethernet frames: same network only.
    #[default]
    Ethernet,
    /// In UDP datagrams: through routers, or to a node without privileges.
    Udp,
    /// By its name, over a bus on the same machine: no addresses.
    Bus,
}

impl FromStr for Form {
    type Err = NeighbourError;

    /// `ethernet` or `udp`.
    fn from_str(text: &str) -> Result<Self, NeighbourError> {
        match text {
            "ethernet" => Ok(Self::Ethernet),
            "udp" => Ok(Self::Udp),
            _ => Err(NeighbourError::UnknownForm),
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Ethernet => "ethernet",
            Self::Udp => "udp",
            Self::Bus => "bus",
        })
    }
}

/// One peer, or one group of peers.
///
/// A multicast or the broadcast MAC address is allowed: the neighbour is then a group, a
/// destination that several nodes hear. A group is never the source of a frame (the parsers refuse
/// that), so it is never found by [`NeighbourTable::source_of_frame`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Neighbour {
    /// Name for people and configuration files, 1 to [`NAME_BYTES_MAX`] bytes, unique.
    pub name: String,
    /// Its station; with the UDP form through a router, the router's.
    /// [`MacAddress::UNSPECIFIED`] where a socket finds it out (UDP form only).
    pub mac: MacAddress,
    /// Its IPv4 address; needed for the UDP form.
    pub ip: Option<Ipv4Addr>,
    /// The form in which it is sent to.
    pub form: Form,
}

impl Neighbour {
    /// Whether this is a group of nodes.
    pub fn is_group(&self) -> bool {
        self.mac.is_group()
            || self
                .ip
                .is_some_and(|ip| ip.is_multicast() || ip.is_broadcast())
    }
}

/// A neighbour's place in its table: stays the same as long as the table exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NeighbourIndex(u16);

impl NeighbourIndex {
    /// The place, 0 to [`NEIGHBOUR_COUNT_MAX`] - 1.
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

/// Why a neighbour was not entered.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NeighbourError {
    /// The table holds [`NEIGHBOUR_COUNT_MAX`] neighbours.
    TableFull,
    /// The name is empty or longer than [`NAME_BYTES_MAX`]; the bytes that it has.
    NameLength(usize),
    /// The name has a control character in it.
    NameCharacters,
    /// The neighbour at this place has the same name.
    DuplicateName(NeighbourIndex),
    /// The neighbour at this place speaks the Ethernet form with the same MAC address.
    DuplicateMac(NeighbourIndex),
    /// The neighbour at this place has the same IPv4 address.
    DuplicateIp(NeighbourIndex),
    /// The Ethernet form needs a MAC address.
    MissingMac,
    /// The UDP form needs an IPv4 address.
    MissingIp,
    /// The text names no form.
    UnknownForm,
}

impl fmt::Display for NeighbourError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TableFull => write!(
                formatter,
                "the neighbour table is full at {NEIGHBOUR_COUNT_MAX} entries"
            ),
            Self::NameLength(bytes) => write!(
                formatter,
                "name of {bytes} bytes, expected 1 to {NAME_BYTES_MAX}"
            ),
            Self::NameCharacters => formatter.write_str("the name has a control character in it"),
            Self::DuplicateName(other) => {
                write!(formatter, "neighbour {} has the same name", other.0)
            }
            Self::DuplicateMac(other) => {
                write!(formatter, "neighbour {} has the same MAC address", other.0)
            }
            Self::DuplicateIp(other) => {
                write!(formatter, "neighbour {} has the same IP address", other.0)
            }
            Self::MissingMac => formatter.write_str("the ethernet form needs a MAC address"),
            Self::MissingIp => formatter.write_str("the udp form needs an IP address"),
            Self::UnknownForm => formatter.write_str("expected \"ethernet\" or \"udp\""),
        }
    }
}

impl core::error::Error for NeighbourError {}

/// The message: Rust prints an error that `main` returns with `Debug`.
impl fmt::Debug for NeighbourError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// The neighbours of a node, at most [`NEIGHBOUR_COUNT_MAX`].
///
/// Names and IP addresses are unique. MAC addresses are unique among neighbours of the Ethernet form; of the UDP form
/// several may sit behind one router. All memory but the names' is taken by [`new`](Self::new).
///
/// ```
/// use core::net::Ipv4Addr;
/// use tautline_proto::neighbour::{Form, Neighbour, NeighbourError, NeighbourTable};
/// use tautline_proto::wire::MacAddress;
///
/// let mut table = NeighbourTable::new();
/// let arm = table.add(Neighbour {
///     name: "arm".into(),
///     mac: MacAddress([2, 0, 0, 0, 0, 7]),
///     ip: Some(Ipv4Addr::new(10, 0, 0, 7)),
///     form: Form::Ethernet,
/// })?;
/// assert_eq!(table.by_name("arm"), Some(arm));
/// assert_eq!(table.by_ip(Ipv4Addr::new(10, 0, 0, 7)), Some(arm));
/// assert_eq!(table.get(arm).unwrap().form, Form::Ethernet);
/// assert_eq!(
///     table.add(table.get(arm).unwrap().clone()),
///     Err(NeighbourError::DuplicateName(arm))
/// );
/// # Ok::<(), NeighbourError>(())
/// ```
#[derive(Clone, Debug)]
pub struct NeighbourTable {
    entries: Vec<Neighbour>,
}

impl NeighbourTable {
    /// An empty table, its memory taken.
    pub fn new() -> Self {
        Self {
            entries: Vec::with_capacity(NEIGHBOUR_COUNT_MAX),
        }
    }

    /// Enters a neighbour.
    ///
    /// # Errors
    ///
    /// A [`NeighbourError`] that says which rule it breaks; the table is unchanged then.
    pub fn add(&mut self, neighbour: Neighbour) -> Result<NeighbourIndex, NeighbourError> {
        self.check(&neighbour)?;
        let index = self.entries.len();
        if index >= NEIGHBOUR_COUNT_MAX {
            return Err(NeighbourError::TableFull);
        }
        self.entries.push(neighbour);
        Ok(NeighbourIndex(index as u16))
    }

    /// The neighbour at `index`; `None` only for an index of another table.
    pub fn get(&self, index: NeighbourIndex) -> Option<&Neighbour> {
        self.entries.get(index.get())
    }

    /// The neighbour with this name.
    pub fn by_name(&self, name: &str) -> Option<NeighbourIndex> {
        self.position(|neighbour| neighbour.name == name)
    }

    /// The neighbour of the Ethernet form with this MAC address, station or group.
    pub fn by_mac(&self, mac: MacAddress) -> Option<NeighbourIndex> {
        self.position(|neighbour| neighbour.form == Form::Ethernet && neighbour.mac == mac)
    }

    /// The neighbour with this IPv4 address.
    pub fn by_ip(&self, ip: Ipv4Addr) -> Option<NeighbourIndex> {
        self.position(|neighbour| neighbour.ip == Some(ip))
    }

    /// Sender of a frame: by IP address if it came in the UDP form, by MAC address otherwise. Never a group.
    ///
    /// A neighbour is known in both forms, whichever it is sent to in: the same node may answer in the other.
    pub fn source_of_frame(&self, mac: MacAddress, ip: Option<Ipv4Addr>) -> Option<NeighbourIndex> {
        match ip {
            Some(ip) => {
                self.position(|neighbour| neighbour.ip == Some(ip) && !neighbour.is_group())
            }
            None => self.by_mac(mac).filter(|_| !mac.is_group()),
        }
    }

    /// All neighbours in the order in which they were entered.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (NeighbourIndex, &Neighbour)> {
        let entries = self.entries.iter().enumerate();
        entries.map(|(index, neighbour)| (NeighbourIndex(index as u16), neighbour))
    }

    /// Neighbours in the table.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn check(&self, new: &Neighbour) -> Result<(), NeighbourError> {
        let name_bytes = new.name.len();
        if !(1..=NAME_BYTES_MAX).contains(&name_bytes) {
            return Err(NeighbourError::NameLength(name_bytes));
        }
        if new.name.chars().any(char::is_control) {
            return Err(NeighbourError::NameCharacters);
        }
        match new.form {
            Form::Ethernet if new.mac.is_unspecified() => return Err(NeighbourError::MissingMac),
            Form::Udp if new.ip.is_none() => return Err(NeighbourError::MissingIp),
            _ => {}
        }
        if let Some(other) = self.by_name(&new.name) {
            return Err(NeighbourError::DuplicateName(other));
        }
        if let Some(other) = self.by_mac(new.mac).filter(|_| new.form == Form::Ethernet) {
            return Err(NeighbourError::DuplicateMac(other));
        }
        if let Some(other) = new.ip.and_then(|ip| self.by_ip(ip)) {
            return Err(NeighbourError::DuplicateIp(other));
        }
        Ok(())
    }

    fn position(&self, found: impl Fn(&Neighbour) -> bool) -> Option<NeighbourIndex> {
        let index = self.entries.iter().position(found)?;
        Some(NeighbourIndex(index as u16))
    }
}

impl Default for NeighbourTable {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;

    fn neighbour(number: u16, form: Form) -> Neighbour {
        let [high, low] = number.to_be_bytes();
        Neighbour {
            name: format!("node{number}"),
            mac: MacAddress([2, 0, 0, 0, high, low]),
            ip: Some(Ipv4Addr::new(10, 0, high, low)),
            form,
        }
    }

    #[test]
    fn full_at_256() {
        let mut table = NeighbourTable::new();
        let capacity = table.entries.capacity();
        for number in 0..256 {
            let index = table.add(neighbour(number, Form::Ethernet)).unwrap();
            assert_eq!(index.get(), usize::from(number));
        }
        let refused = table.add(neighbour(256, Form::Ethernet));
        assert_eq!(refused, Err(NeighbourError::TableFull));
        assert_eq!((table.len(), table.entries.capacity()), (256, capacity));
        assert_eq!(table.by_name("node255").unwrap().get(), 255);
    }

    #[test]
    fn duplicates_name_the_other() {
        let mut table = NeighbourTable::new();
        let first = table.add(neighbour(1, Form::Ethernet)).unwrap();
        let mut same_mac = neighbour(2, Form::Ethernet);
        same_mac.mac = neighbour(1, Form::Ethernet).mac;
        assert_eq!(
            table.add(same_mac.clone()),
            Err(NeighbourError::DuplicateMac(first))
        );
        let mut same_ip = neighbour(2, Form::Ethernet);
        same_ip.ip = neighbour(1, Form::Ethernet).ip;
        let error = table.add(same_ip).unwrap_err();
        assert_eq!(error, NeighbourError::DuplicateIp(first));
        assert_eq!(error.to_string(), "neighbour 0 has the same IP address");
        same_mac.form = Form::Udp;
        assert!(table.add(same_mac).is_ok(), "behind the same router");
        assert_eq!(table.by_mac(neighbour(1, Form::Ethernet).mac), Some(first));
    }

    #[test]
    fn each_form_needs_its_address() {
        let mut table = NeighbourTable::new();
        let mut nowhere = neighbour(1, Form::Udp);
        nowhere.ip = None;
        assert_eq!(table.add(nowhere), Err(NeighbourError::MissingIp));
        let mut nobody = neighbour(1, Form::Ethernet);
        nobody.mac = MacAddress::UNSPECIFIED;
        assert_eq!(table.add(nobody.clone()), Err(NeighbourError::MissingMac));
        nobody.form = Form::Udp;
        assert!(table.add(nobody).is_ok());
        let mut nameless = neighbour(2, Form::Udp);
        nameless.name.clear();
        assert_eq!(table.add(nameless), Err(NeighbourError::NameLength(0)));
        let mut forged = neighbour(2, Form::Udp);
        forged.name.push_str("\u{1b}[2J");
        assert_eq!(table.add(forged), Err(NeighbourError::NameCharacters));
    }

    #[test]
    fn groups_are_destinations_only() {
        let mut table = NeighbourTable::new();
        let all = Neighbour {
            name: "all".into(),
            mac: MacAddress::BROADCAST,
            ip: None,
            form: Form::Ethernet,
        };
        let group = table.add(all).unwrap();
        assert!(table.get(group).unwrap().is_group());
        assert_eq!(table.by_mac(MacAddress::BROADCAST), Some(group));
        assert_eq!(table.source_of_frame(MacAddress::BROADCAST, None), None);
    }

    #[test]
    fn sources_are_known_in_both_forms() {
        let mut table = NeighbourTable::new();
        let peer = neighbour(1, Form::Ethernet);
        let index = table.add(peer.clone()).unwrap();
        assert_eq!(table.source_of_frame(peer.mac, None), Some(index));
        let router = MacAddress([2, 9, 9, 9, 9, 9]);
        assert_eq!(table.source_of_frame(router, peer.ip), Some(index));
        assert_eq!(
            table.source_of_frame(peer.mac, Some(Ipv4Addr::LOCALHOST)),
            None
        );
    }
}
