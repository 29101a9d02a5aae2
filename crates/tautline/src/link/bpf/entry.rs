//! A neighbour as it lies in the map in which a control process leaves its table to its successor.
//! `docs/control.md` has the bytes.

use std::net::Ipv4Addr;

use tautline_proto::neighbour::{Form, NAME_BYTES_MAX, Neighbour};
use tautline_proto::wire::MacAddress;

use crate::table_state::Origin;

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = 80;

const NAME: usize = 14;
const ORIGINS: [(Origin, u8); 3] = [
    (Origin::Configured, 1),
    (Origin::Added, 2),
    (Origin::Solicited, 3),
];
const FORMS: [(Form, u8); 2] = [(Form::Ethernet, 1), (Form::Udp, 2)];

/// The entry, unless it is one that is not for others: of a bus, or taken from elsewhere.
pub(crate) fn to_bytes(entry: &Neighbour, origin: Origin) -> Option<[u8; ENTRY_BYTES]> {
    let mut bytes = [0; ENTRY_BYTES];
    let name = entry.name.as_bytes();
    bytes[0] = ORIGINS.iter().find(|(known, _)| *known == origin)?.1;
    bytes[1] = FORMS.iter().find(|(known, _)| *known == entry.form)?.1;
    bytes[2] = u8::try_from(name.len()).ok()?;
    bytes[4..8].copy_from_slice(&entry.ip.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
    bytes[8..NAME].copy_from_slice(&entry.mac.0);
    bytes[NAME..].get_mut(..name.len())?.copy_from_slice(name);
    Some(bytes)
}

/// The entry that the bytes are, if they are one.
pub(crate) fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Option<(Neighbour, Origin)> {
    let origin = ORIGINS.iter().find(|(_, code)| *code == bytes[0])?.0;
    let form = FORMS.iter().find(|(_, code)| *code == bytes[1])?.0;
    let length = usize::from(bytes[2]);
    if length > NAME_BYTES_MAX || bytes[3] != 0 {
        return None;
    }
    let (name, rest) = bytes[NAME..].split_at(length);
    if rest.iter().any(|byte| *byte != 0) {
        return None;
    }
    let ip = Ipv4Addr::from([bytes[4], bytes[5], bytes[6], bytes[7]]);
    let entry = Neighbour {
        name: std::str::from_utf8(name).ok()?.to_owned(),
        mac: MacAddress(std::array::from_fn(|index| bytes[8 + index])),
        ip: Some(ip).filter(|ip| !ip.is_unspecified()),
        form,
    };
    Some((entry, origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Neighbour {
        Neighbour {
            name: "n".repeat(NAME_BYTES_MAX),
            mac: MacAddress([2, 0, 0, 0, 0, 7]),
            ip: Some(Ipv4Addr::new(10, 0, 0, 7)),
            form: Form::Ethernet,
        }
    }

    #[test]
    fn entries_survive_the_way() {
        let nameless = Neighbour {
            name: "é".to_owned(),
            ip: None,
            form: Form::Udp,
            ..entry()
        };
        for entry in [entry(), nameless] {
            let bytes = to_bytes(&entry, Origin::Solicited).unwrap();
            assert_eq!(from_bytes(&bytes), Some((entry, Origin::Solicited)));
        }
        assert_eq!(to_bytes(&entry(), Origin::Shared), None);
    }

    #[test]
    fn other_bytes_are_no_entry() {
        let mut short = entry();
        short.name = "short".to_owned();
        let good = to_bytes(&short, Origin::Added).unwrap();
        assert_eq!(from_bytes(&[0; ENTRY_BYTES]), None);
        // No origin, no form, a length beyond the name's room, something where nothing is, no text.
        for (place, value) in [
            (0, 9),
            (1, 0),
            (2, 64),
            (2, 255),
            (2, 3),
            (3, 1),
            (79, 1),
            (14, 0xff),
        ] {
            let mut bad = good;
            bad[place] = value;
            assert_eq!(from_bytes(&bad), None, "{place}");
        }
    }
}
