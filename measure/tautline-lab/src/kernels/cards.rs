//! Network cards of a guest: models that QEMU emulates and that Linux drives with the drivers of real cards. The
//! driver's instructions are the real ones, the card's times are not: no coalescing, no bus, no idle states.

use std::fmt;
use std::str::FromStr;

/// A model of network cards, by the name of its driver in Linux.
#[derive(Debug, PartialEq, Eq)]
pub struct Driver {
    /// Name of the driver.
    pub name: &'static str,
    /// Whether it runs XDP programs itself.
    pub native: bool,
    model: &'static str,
    /// Properties of the device for every use.
    properties: &'static str,
    /// Further ones where time is measured.
    measured: &'static str,
    /// Kernel modules that it needs, its own last.
    pub modules: &'static [&'static str],
}

/// All of them. Behind the IOMMU's rules virtio_net has zero-copy; otherwise the driver gives its ring physical
/// addresses of its own making. e1000e and rtl8139 have no native XDP in Linux.
/// QEMU's rtl8139 is a card of driver 8139cp, with descriptors like those of Realtek's later cards, for which there is
/// no model.
///
/// Measured, a virtio card transmits by a timer of the virtual clock, after 1 µs: QEMU's own threads would otherwise
/// carry frames at moments that differ from run to run.
pub const DRIVERS: [Driver; 4] = [
    Driver {
        name: "igb",
        native: true,
        model: "igb",
        properties: "",
        measured: "",
        modules: &["igb"],
    },
    Driver {
        name: "e1000e",
        native: false,
        model: "e1000e",
        properties: "",
        measured: "",
        modules: &["e1000e"],
    },
    Driver {
        name: "virtio_net",
        native: true,
        model: "virtio-net-pci",
        properties: ",iommu_platform=on,disable-legacy=on",
        measured: ",ioeventfd=off,tx=timer,x-txtimer=1000",
        modules: &["virtio_pci", "virtio_net"],
    },
    Driver {
        name: "rtl8139",
        native: false,
        model: "rtl8139",
        properties: "",
        measured: "",
        modules: &["8139cp"],
    },
];

impl Driver {
    /// The device's name in QEMU.
    pub fn model(&self) -> &'static str {
        self.model
    }

    /// Two cards that a hub joins, as arguments of QEMU; `number` is that of their cable.
    pub fn cards(&self, number: usize) -> Vec<String> {
        self.joined(number, "")
    }

    /// Options for cards, with those that make frames travel in equal times.
    pub fn measured_cards(&self, number: usize) -> Vec<String> {
        self.joined(number, self.measured)
    }

    fn joined(&self, number: usize, further: &str) -> Vec<String> {
        ["a", "b"]
            .iter()
            .enumerate()
            .flat_map(|(side, letter)| {
                let (id, slot) = (format!("{letter}{number}"), 2 * number + side + 1);
                [
                    "-netdev".to_owned(),
                    // Hub 0 is that of short turns.
                    format!("hubport,id=n{id},hubid={}", number + 1),
                    "-device".to_owned(),
                    format!("pcie-root-port,id=p{id},chassis={slot},slot={slot}"),
                    "-device".to_owned(),
                    format!(
                        "{}{}{further},netdev=n{id},bus=p{id},romfile=,mac=52:54:00:00:0{number}:0{side}",
                        self.model, self.properties
                    ),
                ]
            })
            .collect()
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl FromStr for &'static Driver {
    type Err = String;

    fn from_str(name: &str) -> Result<&'static Driver, String> {
        DRIVERS
            .iter()
            .find(|driver| driver.name == name)
            .ok_or_else(|| {
                let names = DRIVERS.each_ref().map(|driver| driver.name).join(", ");
                format!("the lab has no cards of driver '{name}': use {names}")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_card_has_a_place_of_its_own() {
        let all: Vec<String> = DRIVERS
            .iter()
            .enumerate()
            .flat_map(|(number, driver)| driver.cards(number))
            .collect();
        let mut devices: Vec<&String> = all.iter().filter(|word| word.contains(',')).collect();
        let count = devices.len();
        devices.sort();
        devices.dedup();
        assert_eq!((devices.len(), count), (24, 24));
    }

    #[test]
    fn drivers_are_named() {
        let driver: &Driver = "virtio_net".parse().unwrap();
        assert_eq!(driver.modules, ["virtio_pci", "virtio_net"]);
        let error = <&Driver>::from_str("ne2000").unwrap_err();
        assert!(error.contains("igb, e1000e"), "{error}");
    }
}
