//! Raw frames of `taut send` and `taut recv`: whole Ethernet frames of a protocol that is not Tautline's.

use serde_json::{Value, json};
use tautline::port::{RAW_FRAME_BYTES_MAX, ReceivedFrame};
use tautline::{EtherType, Instant, MacAddress, Node, Priority, RawPort, Wait};

use crate::cli::CommandError;
use crate::commands::peer::{self, NodeArguments};

/// Bytes of both addresses.
const ADDRESSES_BYTES: usize = 12;
/// Bytes of the Ethernet header.
const HEADER_BYTES: usize = ADDRESSES_BYTES + 2;

/// Reads an EtherType.
pub fn ethertype(text: &str) -> Result<EtherType, String> {
    let number = EtherType::number_of(text).ok_or("expected an EtherType such as 0x88cc")?;
    EtherType::new(number).map_err(|error| error.to_string())
}

/// Reads a payload in hexadecimal; spaces, colons and line ends between the bytes are left out.
pub fn payload(text: &str) -> Result<Vec<u8>, String> {
    let digits: String = text
        .chars()
        .filter(|one| !one.is_whitespace() && *one != ':')
        .collect();
    let wrong = || "expected bytes in hexadecimal, such as 02:07:04".to_owned();
    if !digits.bytes().all(|one| one.is_ascii_hexdigit()) || !digits.len().is_multiple_of(2) {
        return Err(wrong());
    }
    let pairs = (0..digits.len()).step_by(2);
    let bytes = pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16));
    bytes.collect::<Result<_, _>>().map_err(|_| wrong())
}

/// Opens the port, as the configuration describes it if it does.
pub fn open(
    node: &Node,
    ethertype: EtherType,
    name: Option<&str>,
) -> Result<RawPort, CommandError> {
    let port = match name {
        Some(name) => node.raw(name).open(),
        None => node.raw(ethertype).open(),
    };
    port.map_err(peer::port_error)
}

/// Sends a frame from the node's own address: with a tag if it has a priority; the driver may pad it.
pub fn send(
    node: &NodeArguments,
    peer: &str,
    ethertype: EtherType,
    priority: Option<Priority>,
    payload: &[u8],
) -> Result<(), CommandError> {
    let (node, to) = match peer.parse::<MacAddress>() {
        Ok(mac) => (peer::open(node.node_config()?)?, mac),
        Err(_) => with_address(node, peer)?,
    };
    let from = own_address(&node)?;
    let tag = priority.map(|priority| [0x81, 0, priority.get() << 5, 0]);
    let tag = tag.as_ref().map_or(&[][..], |tag| &tag[..]);
    let ethertype_bytes = ethertype.get().to_be_bytes();
    let frame = [&to.0[..], &from.0, tag, &ethertype_bytes, payload].concat();
    let mut port = open(&node, ethertype, None)?;
    port.send(&frame).map_err(peer::send_error)
}

/// The node, and the MAC address of a peer that is named otherwise.
fn with_address(node: &NodeArguments, peer: &str) -> Result<(Node, MacAddress), CommandError> {
    let (node, name) = node.open_with_peer(peer)?;
    let neighbours = node.neighbours();
    let found = neighbours.by_name(&name);
    let mac = found
        .and_then(|index| neighbours.get(index))
        .map(|entry| entry.mac)
        .filter(|mac| *mac != MacAddress::UNSPECIFIED);
    let mac = mac.ok_or_else(|| {
        CommandError::usage(
            format!("neighbour `{name}` has no MAC address"),
            "give its entry one, or name the peer by its MAC address",
        )
    })?;
    Ok((node, mac))
}

fn own_address(node: &Node) -> Result<MacAddress, CommandError> {
    let text = node.report().mac.as_deref();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| {
        CommandError::usage(
            "the node has no MAC address",
            "name an interface with --interface",
        )
    })
}

/// A raw port, and room for what it receives.
pub struct Frames {
    port: Box<RawPort>,
    buffer: Vec<u8>,
}

/// A frame that has come.
pub struct Frame<'a> {
    /// All of it.
    pub bytes: &'a [u8],
    /// All that is known of it.
    pub json: Value,
    /// The same for people, in a line.
    pub line: String,
}

impl Frames {
    /// Frames of a port.
    pub fn of(port: RawPort) -> Self {
        Self {
            port: Box::new(port),
            buffer: vec![0; RAW_FRAME_BYTES_MAX],
        }
    }

    /// The next frame, if one comes until the deadline.
    pub fn next(&mut self, deadline: Instant) -> Result<Option<Frame<'_>>, CommandError> {
        let received = self
            .port
            .receive_into(&mut self.buffer, Wait::Until(deadline));
        let received = received.map_err(peer::receive_error)?;
        Ok(received.map(|received| described(&received, &self.buffer[..received.length])))
    }
}

fn described<'a>(received: &ReceivedFrame, bytes: &'a [u8]) -> Frame<'a> {
    let (header, payload) = bytes.split_at(HEADER_BYTES.min(bytes.len()));
    let address = |at: usize| {
        let mac = header.get(at..at + 6).and_then(|mac| mac.try_into().ok());
        MacAddress(mac.unwrap_or_default()).to_string()
    };
    let (to, from, priority) = (address(0), address(6), received.priority.get());
    let hex: Vec<String> = payload.iter().map(|byte| format!("{byte:02x}")).collect();
    let line = format!(
        "{from} to {to}, priority {priority}, {} bytes: {}",
        payload.len(),
        hex.join(" ")
    );
    let json = json!({
        "source": from,
        "destination": to,
        "priority": priority,
        "arrival_ns": received.arrival.as_nanos(),
        "bytes": received.length,
    });
    Frame { bytes, json, line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethertypes_and_payloads_are_read() {
        assert_eq!(ethertype("0x88cc").unwrap().get(), 0x88CC);
        assert_eq!(ethertype("35020").unwrap().get(), 0x88CC);
        let refused = ethertype("0x0800").unwrap_err();
        assert_eq!(refused, "EtherType 0x0800 is Linux's own (IPv4, ARP, IPv6)");
        for wrong in ["", "LLDP", "0x1ffff", "-1"] {
            assert_eq!(
                ethertype(wrong).unwrap_err(),
                "expected an EtherType such as 0x88cc"
            );
        }
        assert_eq!(payload("02:07 04\nfF").unwrap(), [2, 7, 4, 255]);
        assert!(payload("").unwrap().is_empty());
        for wrong in ["2", "0g", "+1", "0x02"] {
            assert!(payload(wrong).is_err(), "{wrong}");
        }
    }
}
