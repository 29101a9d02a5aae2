//! Ports of peers, as a guest's file names those that it may send to.

use serde::Deserialize;
use tautline::{NodeName, PortNumber};

/// Port of a peer, as `motor:8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
#[non_exhaustive]
pub struct PeerPort {
    /// The peer.
    pub peer: NodeName,
    /// Its port.
    pub port: PortNumber,
}

impl TryFrom<String> for PeerPort {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("invalid port of a peer `{text}`; expected e.g. \"motor:8\"");
        let (peer, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().and_then(PortNumber::new);
        Ok(PeerPort {
            peer: peer.parse().map_err(|_| wrong())?,
            port: port.ok_or_else(wrong)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_of_a_peer_is_read() {
        let read = |text: &str| PeerPort::try_from(text.to_owned());
        let found = read("motor:8").expect("valid");
        assert_eq!((found.peer.as_str(), found.port.get()), ("motor", 8));
        for wrong in [
            "motor",
            "motor:",
            ":8",
            "motor:0",
            "motor:4096",
            "a/b:8",
            "motor:8:",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
