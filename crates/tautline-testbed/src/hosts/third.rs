//! A third host, on the segment that the first cable makes: for traffic that the other two did not
//! ask for.

use std::fs::File;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread;

use super::{CableEnd, Host, Hosts, HostsError, add_namespace, disable_ipv6, ip, ip_batch, remove};
use crate::child;
use crate::interrupt::CleanUp;

/// A network namespace whose one interface shares the first cable's end at host A (a macvlan), with
/// a MAC address of its own. Dropping it removes it; a signal does too.
#[derive(Debug)]
pub struct ThirdHost {
    name: String,
    namespace: Arc<File>,
    // Withdrawn after `drop` has removed the namespace.
    _clean_up: CleanUp,
}

impl Hosts {
    /// Makes a third host beside these two, up, and able to reach host B over the first cable.
    pub fn third(&self) -> Result<ThirdHost, HostsError> {
        let first = self.name(Host::A);
        let name = format!("{}-c", first.strip_suffix("-a").unwrap_or(first));
        let clean_up = {
            let name = name.clone();
            CleanUp::new(move || remove(&name))
        };
        let third = ThirdHost {
            namespace: add_namespace(&name)?,
            name,
            _clean_up: clean_up,
        };
        third.inside(disable_ipv6)??;
        let (interface, mac) = (
            self.end(Host::A, 0).interface(),
            super::text_of(third.mac()),
        );
        #[rustfmt::skip]
        ip(&[
            "-n", first, "link", "add", "link", &interface, "name", &interface, "address", &mac,
            "mtu", "1500", "netns", &third.name, "type", "macvlan", "mode", "private",
        ])?;
        let set_up = [
            format!("address add {}/24 dev {interface}", third.address()),
            format!("link set {interface} up"),
        ];
        ip_batch(&third.name, &set_up)?;
        Ok(third)
    }
}

impl ThirdHost {
    /// Its interface's name.
    pub fn interface(&self) -> String {
        CableEnd {
            host: Host::A,
            cable: 0,
        }
        .interface()
    }

    /// Its MAC address: that of an end of the first cable, with number 3.
    pub fn mac(&self) -> [u8; 6] {
        [0x02, 0x54, 0x4c, 0x00, 0, 3]
    }

    /// Its IPv4 address.
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, 3)
    }

    /// Like [`Hosts::inside`].
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, HostsError> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                child::enter(&self.namespace).map_err(HostsError::io(format!(
                    "enter the network namespace {}",
                    self.name
                )))?;
                Ok(work())
            });
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

impl Drop for ThirdHost {
    fn drop(&mut self) {
        remove(&self.name);
    }
}
