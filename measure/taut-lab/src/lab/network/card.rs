//! An interface as the kernel describes it: driver, speed, and what went wrong on it meanwhile.

use std::fs;

use serde::Serialize;
use tautline_state::interface::counters_in;
use tautline_state::setting::Setting;

/// Counters of `/proc/net/dev` (proc_pid_net(5)) whose growth is a fault of card, cable or queue, by their column.
const FAULTS: [(&str, usize); 8] = [
    ("rx_errors", 2),
    ("rx_dropped", 3),
    ("rx_fifo_errors", 4),
    ("rx_frame_errors", 5),
    ("tx_errors", 10),
    ("tx_dropped", 11),
    ("tx_fifo_errors", 12),
    ("tx_carrier_errors", 14),
];
/// Column of the bytes received, and of those sent.
const BYTES: [usize; 2] = [0, 8];

/// Description of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Card {
    /// Its name.
    pub interface: String,
    /// Driver; nothing for a virtual interface.
    pub driver: Option<String>,
    /// Identifiers of vendor and device on the PCI bus, such as `8086:15f3`.
    pub pci_id: Option<String>,
    /// Speed of the link.
    pub speed_mbit_s: Option<u64>,
    /// Largest packet.
    pub mtu_bytes: Option<u64>,
}

impl Card {
    /// Reads an interface of this network namespace.
    pub(super) fn read(interface: &str) -> Card {
        // Lines such as DRIVER=igc and PCI_ID=8086:15F3.
        let device = device(interface).unwrap_or_default();
        let line = |key: &str| {
            let mut lines = device.lines();
            lines.find_map(|line| Some(line.strip_prefix(key)?.to_owned()))
        };
        Card {
            interface: interface.to_owned(),
            driver: line("DRIVER="),
            pci_id: line("PCI_ID="),
            speed_mbit_s: number(interface, "speed"),
            mtu_bytes: number(interface, "mtu"),
        }
    }

    /// Whether there is hardware behind it.
    pub(super) fn is_virtual(&self) -> bool {
        self.driver.is_none()
    }

    /// `eth1 (igc, 2500 Mbit/s)`.
    pub(super) fn summary(&self) -> String {
        let driver = self.driver.as_deref().unwrap_or("virtual");
        let speed = self
            .speed_mbit_s
            .map_or(String::new(), |speed| format!(", {speed} Mbit/s"));
        format!("{} ({driver}{speed})", self.interface)
    }
}

/// Counters of an interface.
#[derive(Clone, Debug)]
pub(super) struct Counters {
    faults: [u64; FAULTS.len()],
    sent_bytes: u64,
    received_bytes: u64,
}

/// Traffic and faults of an interface between two looks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Traffic {
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Counters of faults that grew, and by how much.
    pub faults: Vec<(&'static str, u64)>,
}

impl Counters {
    /// Reads those of an interface of this network namespace; zeros if it is gone.
    pub(super) fn read(interface: &str) -> Counters {
        let table = fs::read("/proc/thread-self/net/dev").unwrap_or_default();
        Counters::of(interface, &String::from_utf8_lossy(&table))
    }

    fn of(interface: &str, table: &str) -> Counters {
        let figures = counters_in(table, interface);
        let figure = |column: usize| figures.get(column).copied().unwrap_or(0);
        Counters {
            faults: FAULTS.map(|(_, column)| figure(column)),
            received_bytes: figure(BYTES[0]),
            sent_bytes: figure(BYTES[1]),
        }
    }

    /// Growth since an earlier look.
    pub(super) fn since(&self, before: &Counters) -> Traffic {
        let grown = |index: usize| self.faults[index].saturating_sub(before.faults[index]);
        let faults = FAULTS.iter().enumerate();
        Traffic {
            sent_bytes: self.sent_bytes.saturating_sub(before.sent_bytes),
            received_bytes: self.received_bytes.saturating_sub(before.received_bytes),
            faults: faults
                .map(|(index, (name, _))| (*name, grown(index)))
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }
}

/// Value of the interface, whatever is mounted at `/sys`.
fn read(interface: &str, attribute: &str) -> Option<String> {
    Setting::of_interface(interface, None, attribute)
        .read()
        .ok()
}

/// Description of its device, where `/sys` shows the same interface.
fn device(interface: &str) -> Option<String> {
    let file = |name: &str| fs::read_to_string(format!("/sys/class/net/{interface}/{name}")).ok();
    let is_same = file("ifindex")?.trim() == read(interface, "ifindex")?;
    file("device/uevent").filter(|_| is_same)
}

/// A number that is not known is -1 in some files, and an error in others.
fn number(interface: &str, attribute: &str) -> Option<u64> {
    read(interface, attribute)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
  eth1: 1000 10 1 2 3 4 0 0 2000 20 5 6 7 0 8 0
 eth10:9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9
";

    #[test]
    fn loopback_is_virtual() {
        let card = Card::read("lo");
        assert!(card.is_virtual() && card.mtu_bytes.is_some(), "{card:?}");
        assert_eq!(card.summary(), "lo (virtual)");
    }

    #[test]
    fn counters_are_those_of_the_interface_and_only_growth_is_told() {
        let before = Counters::of("eth1", TABLE);
        assert_eq!((before.received_bytes, before.sent_bytes), (1000, 2000));
        assert_eq!(before.faults, [1, 2, 3, 4, 5, 6, 7, 8]);
        let later = TABLE.replace(" 4 0 0 2000", " 9 0 0 2600");
        let traffic = Counters::of("eth1", &later).since(&before);
        assert_eq!((traffic.sent_bytes, traffic.received_bytes), (600, 0));
        assert_eq!(traffic.faults, [("rx_frame_errors", 5)]);
        let gone = Counters::of("eth2", TABLE).since(&before);
        assert_eq!(gone.faults, []);
    }
}
