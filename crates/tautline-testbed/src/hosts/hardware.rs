//! A cable between two interfaces of this machine, in place of a virtual one: network cards, or what a
//! virtual machine has for them. They are borrowed: what they were called, their addresses, and whether their polls
//! run in threads, they have again when the hosts are removed.

use std::fs;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use super::{CableEnd, Host, Hosts, HostsError, HostsOptions, ip};

/// Time for the two ends to find each other. Lower: cards that negotiate for some seconds are given up. Higher:
/// a cable that is not plugged in is told later.
const LINK_UP_PATIENCE: Duration = Duration::from_secs(15);

/// Distance of looks for a link. Shorter: an emulated machine spends most of the wait starting `ip`.
const LINK_LOOK: Duration = Duration::from_millis(200);

/// An interface of this machine.
#[derive(Clone, Debug)]
pub(super) struct Borrowed {
    interface: String,
    mac: String,
    /// Content of its file `threaded`; none before Linux 5.12.
    threaded: Option<String>,
}

impl Borrowed {
    fn find(interface: &str) -> Result<Self, HostsError> {
        let file = format!("/sys/class/net/{interface}/address");
        let mac = fs::read_to_string(&file).map_err(HostsError::io(format!("read {file}")))?;
        Ok(Self {
            interface: interface.to_owned(),
            mac: mac.trim().to_owned(),
            threaded: fs::read_to_string(threaded(interface)).ok(),
        })
    }

    /// Into the namespace, under the name and with the address that a cable's end has there.
    fn lend(&self, namespace: &str, end: CableEnd) -> Result<(), HostsError> {
        let (name, mac) = (end.interface(), end.mac_text());
        ip(&["link", "set", "dev", &self.interface, "down"])?;
        #[rustfmt::skip]
        ip(&["link", "set", "dev", &self.interface, "netns", namespace, "name", &name])?;
        #[rustfmt::skip]
        ip(&["-n", namespace, "link", "set", "dev", &name, "address", &mac, "mtu", "1500"])?;
        Ok(())
    }

    /// Moves the card back. Errors are not reported, since the caller could not act on them.
    pub(super) fn give_back(&self, namespace: &str) {
        let name = "taut0";
        let own = process::id().to_string();
        let _ = ip(&["-n", namespace, "link", "set", "dev", name, "down"]);
        #[rustfmt::skip]
        let _ = ip(&["-n", namespace, "link", "set", "dev", name, "address", &self.mac]);
        #[rustfmt::skip]
        let _ = ip(&["-n", namespace, "link", "set", "dev", name, "netns", &own, "name", &self.interface]);
        if let Some(before) = &self.threaded {
            let _ = fs::write(threaded(&self.interface), before);
        }
    }
}

/// File that says whether an interface's polls run in threads.
fn threaded(interface: &str) -> String {
    format!("/sys/class/net/{interface}/threaded")
}

impl Hosts {
    /// Two hosts whose one cable is between two interfaces of this machine that can reach each other.
    pub fn join(interfaces: [&str; 2]) -> Result<Hosts, HostsError> {
        let options = HostsOptions::default();
        let [a, b] = interfaces.map(Borrowed::find);
        let borrowed = [a?, b?];
        let hosts = Self::begin(&options, Some(borrowed.clone()))?;
        for (host, interface) in Host::BOTH.into_iter().zip(&borrowed) {
            interface.lend(hosts.name(host), hosts.end(host, 0))?;
        }
        for host in Host::BOTH {
            hosts.configure(hosts.end(host, 0), &[])?;
        }
        hosts.wait_until_up()?;
        Ok(hosts)
    }

    /// Waits until both ends of the first cable have a link. A network card loses it for some seconds when an
    /// XDP program is attached.
    pub fn wait_until_up(&self) -> Result<(), HostsError> {
        let begun = Instant::now();
        for host in Host::BOTH {
            let interface = self.end(host, 0).interface();
            let (namespace, name) = (self.name(host), interface.as_str());
            while !ip(&["-n", namespace, "link", "show", "dev", name])?.contains("LOWER_UP") {
                if begun.elapsed() > LINK_UP_PATIENCE {
                    return Err(HostsError::NoCarrier);
                }
                thread::sleep(LINK_LOOK);
            }
        }
        Ok(())
    }

    /// Whether the cable is between interfaces of this machine.
    pub fn is_hardware(&self) -> bool {
        self.borrowed.is_some()
    }
}
