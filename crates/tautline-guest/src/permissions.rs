//! Limits of what a guest sends: to which ports of which peers, and how urgently.

use serde::Deserialize;
use tautline::{NodeName, PortNumber, Priority};

use crate::config::PortConfig;

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

/// Limits of what a port of the guest sends.
#[derive(Debug)]
pub(crate) struct Reach {
    /// Empty: all peers that the guest knows.
    to: Vec<PeerPort>,
    priority_max: u8,
}

impl Reach {
    pub(crate) fn of(config: &PortConfig) -> Reach {
        Reach {
            to: config.to.clone(),
            priority_max: config.priority_max,
        }
    }

    pub(crate) fn has_port(&self, peer: &str, port: PortNumber) -> bool {
        let is_meant = |one: &PeerPort| one.peer.as_str() == peer && one.port == port;
        self.to.is_empty() || self.to.iter().any(is_meant)
    }

    pub(crate) fn has_priority(&self, priority: Priority) -> bool {
        priority.get() <= self.priority_max
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
