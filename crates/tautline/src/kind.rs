//! Kinds: of links, of ports, and the modes of a demux, with their names in configuration and reports.

use serde::{Deserialize, Serialize};

/// The links that there are, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LinkKind {
    /// BPF demux in the driver's poll, straight into the port's memory.
    Xdp,
    /// AF_XDP sockets: frames of an interface's queues in this process's own memory.
    Xsk,
    /// Packet sockets: past the protocol stack, without BPF.
    Packet,
    /// Ordinary UDP sockets: no privilege.
    Udp,
    /// Memory shared with other processes of this machine.
    Vbus,
    /// A network in memory, on virtual time. No file can name it.
    #[serde(skip_deserializing)]
    Sim,
}

impl LinkKind {
    /// The name in configuration and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Xsk => "xsk",
            Self::Packet => "packet",
            Self::Udp => "udp",
            Self::Vbus => "vbus",
            Self::Sim => "sim",
        }
    }
}

impl std::fmt::Display for LinkKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Hook that the demux runs at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum XdpMode {
    /// In the driver's poll, before the kernel makes a packet of the frame.
    Native,
    /// After that: works with every driver and kernel, costs the allocation of a packet, and on network cards a copy.
    Generic,
    /// After that, at traffic control (tcx): leaves ordinary traffic its offloads, and programs of others their place.
    /// Needs Linux 6.6.
    Tc,
}

impl XdpMode {
    /// All of them, in the order in which a node tries them on a network card.
    pub const ALL: [Self; 3] = [Self::Native, Self::Tc, Self::Generic];

    /// The name in configuration and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Tc => "tc",
        }
    }
}

/// The kind of a port, as reports name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PortKind {
    /// Keeps every message.
    Queuing,
    /// Keeps the last value.
    Sampling,
}

impl PortKind {
    /// The name in tables and result files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queuing => "queuing",
            Self::Sampling => "sampling",
        }
    }
}
