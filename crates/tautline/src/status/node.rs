//! Status of a node and of a control process.

use std::net::Ipv4Addr;

use serde::Serialize;
use tautline_proto::wire::PortKey;

use super::port::short_key;
use super::{InterfaceStatus, PortStatus};
use crate::error::control_process;
use crate::kind::LinkKind;
use crate::link::{Capabilities, NodeCounters};
use crate::send_pool::SendPoolStatus;

/// Result of opening a node: its link, why not a better one, and the settings that took effect.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct OpenReport {
    /// The link that carries the frames.
    pub link: LinkKind,
    /// The control process of the interface, if the node is open through one.
    pub control_process: Option<i32>,
    /// The interface.
    pub interface: Option<String>,
    /// Its MAC address, which peers send the Ethernet form to.
    pub mac: Option<String>,
    /// VLAN of the Ethernet form, from 1.
    pub vlan: Option<u16>,
    /// This node's IPv4 address, which peers send the UDP form to.
    pub ip: Option<Ipv4Addr>,
    /// The directory of the bus, on link `vbus`.
    pub bus: Option<String>,
    /// This node's name on the bus, which peers send to.
    pub node: Option<String>,
    /// Capabilities of the link here.
    pub capabilities: Capabilities,
    /// Better links that were tried, and why each did not work.
    pub not_better: Vec<NotBetter>,
    /// Settings beyond the link that could not be had.
    pub limits: Vec<String>,
}

/// A better link that did not work.
#[derive(Clone, Debug, Serialize)]
pub struct NotBetter {
    /// The link, with its mode.
    pub link: String,
    /// Why it did not work.
    pub why: String,
}

impl std::fmt::Display for OpenReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "link {}", self.link)?;
        if let Some(mode) = self.capabilities.xdp_mode {
            write!(formatter, " ({}", mode.name())?;
            match self.capabilities.zero_copy {
                Some(true) => write!(formatter, ", zero-copy")?,
                Some(false) => write!(formatter, ", copy mode")?,
                None => {}
            }
            write!(formatter, ")")?;
        }
        if let Some(interface) = &self.interface {
            write!(formatter, " on {interface}")?;
        }
        if let Some(mac) = &self.mac {
            write!(formatter, ", {mac}")?;
        }
        if let Some(vlan) = self.vlan {
            write!(formatter, ", VLAN {vlan}")?;
        }
        if let Some(ip) = self.ip {
            write!(formatter, ", {ip}")?;
        }
        if let Some(pid) = self.control_process {
            write!(formatter, ", through {}", control_process(pid))?;
        }
        if let (Some(bus), Some(node)) = (&self.bus, &self.node) {
            write!(formatter, " at {bus}, node {node}")?;
        }
        for better in &self.not_better {
            write!(formatter, "\n  not {}: {}", better.link, better.why)?;
        }
        for limit in &self.limits {
            write!(formatter, "\n  limited: {limit}")?;
        }
        Ok(())
    }
}

/// A node's state, as `taut status` shows it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The process that the node is in.
    pub process: u32,
    /// Its command's name.
    pub command: Option<String>,
    /// CLOCK_MONOTONIC at this moment, in nanoseconds, which rates between two answers are taken over.
    pub now_ns: u64,
    /// Result of opening it.
    #[serde(flatten)]
    pub report: OpenReport,
    /// Whether its interface is up at the moment; `None` without an interface, and on link `udp` where the asking
    /// thread is in another network namespace.
    pub interface_up: Option<bool>,
    /// Its interface, compared with what it was; `None` without an interface, and on link `udp`, which an interface of
    /// the same IPv4 address serves as well.
    pub interface_now: Option<InterfaceStatus>,
    /// Its neighbours.
    pub neighbours: Vec<NeighbourStatus>,
    /// Frames that were ours and reached no port.
    pub counters: NodeCounters,
    /// Its open ports.
    pub ports: Vec<PortStatus>,
    /// Its send buffers; a control process has none.
    pub send_pool: Option<SendPoolStatus>,
    /// Of a control process: whom it serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<ControlStatus>,
}

/// Clients of a control process, as `taut status` shows them.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ControlStatus {
    /// Its `[[allow]]` entries, in order.
    pub rules: Vec<RuleStatus>,
    /// Processes that are connected, and those that have ports of a control process that ended.
    pub clients: Vec<ClientStatus>,
}

/// An `[[allow]]` entry, as `taut status` shows it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct RuleStatus {
    /// User or group that the rule is for.
    pub who: String,
    /// The ports that it gives.
    pub ports: String,
    /// The UDP ports that it gives for plain UDP.
    pub udp_ports: String,
    /// The EtherTypes that it gives for raw ports.
    pub ethertypes: String,
    /// Whether raw frames may carry any source address.
    pub any_source_address: bool,
    /// The priorities that it gives.
    pub priorities: String,
    /// Bytes that the ports of one user may take.
    pub memory_bytes_max: u64,
    /// Ports that one user may have open at a time.
    pub ports_max: usize,
}

/// A client of a control process, as `taut status` shows it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ClientStatus {
    /// Its number; 0 if it is outside the control process's process namespace.
    pub process: i32,
    /// Its command's name.
    pub command: Option<String>,
    /// Its user.
    pub user: String,
    /// Whether it is connected; otherwise it was a predecessor's.
    pub connected: bool,
    /// Its ports.
    pub ports: Vec<ClientPortStatus>,
}

/// A port of a client, as `taut status` shows it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ClientPortStatus {
    /// Its key: `9`, `udp:4000` or `raw:0x88a4`.
    #[serde(serialize_with = "short_key")]
    pub key: PortKey,
    /// Bytes of its memory, and of the kernel's that it sends through.
    pub memory_bytes: u64,
    /// The entry that gives it, from 1; `None` for root's.
    pub rule: Option<usize>,
    /// Frames that its client tried to send and may not. Not those of a predecessor's time.
    pub frames_refused: u64,
}

/// A neighbour, as `taut status` shows it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct NeighbourStatus {
    /// Its name.
    pub name: String,
    /// Its MAC address.
    pub mac: Option<String>,
    /// Its IPv4 address.
    pub ip: Option<Ipv4Addr>,
    /// The form it is sent.
    pub form: String,
    /// Where the entry comes from.
    pub origin: Origin,
}

/// Where a neighbour comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Origin {
    /// The configuration.
    Configured,
    /// The program added it before its first port.
    Added,
    /// The control process that the node is open through has it in its configuration.
    Shared,
}
