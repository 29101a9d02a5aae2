//! Several senders and one receiver at a switch, whose port towards the receiver has a rate and a queue.
//!
//! Every node is a network namespace with one interface, `taut0`, address 10.78.0.N; the switch is a bridge in another
//! one. A program at the egress of the port decides about each frame as a port of hardware would, by the time at which
//! the frame comes: the frame is lost, or it waits so long. A queueing discipline then keeps it for about as long, and
//! drops nothing. Its timer is late at times, so frames arrive later than they would; losses and counted waits are
//! those of the port.

use std::fs::File;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{process, thread};

use tautline_state::hosts::node_name;

use super::switch_port::SwitchPort;
pub use super::switch_port::{Kind, KindCounts, PortCounts};
use super::{
    HostsError, add_namespace, clear_stale, disable_ipv6, ip_batch, may_create, remove, run,
    text_of,
};
use crate::child;
use crate::interrupt::{self, CleanUp};

/// Most senders: an address has one byte for its number.
pub const SENDERS_MAX: usize = 64;

/// Bytes of a full frame on the wire.
pub const WIRE_BYTES: u64 = 1538;

/// Name of the interface of each node.
pub const INTERFACE: &str = "taut0";

/// Time for which the delay of the port may catch up when its timer was late. Shorter, and a timer that is late for
/// longer makes a queue that the port would not have.
const CATCH_UP_MS: u64 = 3;

/// Frames that the delay may keep: more than ever wait in the port.
const DELAY_FRAMES: u32 = 10_000;

/// The port towards the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Bits a second on the wire.
    pub rate_bps: u64,
    /// Frames that can wait.
    pub queue_frames: u32,
    /// Whether it honours priorities: frames of priority 4 and above, by their tag or type of service, have a queue of
    /// their own, which goes first.
    pub priorities: bool,
}

/// The nodes, and the switch between them. Dropping it removes them; a signal does too.
#[derive(Debug)]
pub struct Cell {
    /// Names of the senders' namespaces, then the receiver's, then the switch's.
    names: Vec<String>,
    namespaces: Vec<Arc<File>>,
    port: Option<SwitchPort>,
    // Withdrawn after `drop` has removed the namespaces.
    _clean_up: CleanUp,
}

impl Cell {
    /// Makes the nodes, up and able to reach each other.
    ///
    /// # Errors
    /// [`HostsError`]. Nothing is left then.
    pub fn create(senders: usize, port: &Port) -> Result<Cell, HostsError> {
        assert!((1..=SENDERS_MAX).contains(&senders), "{senders} senders");
        if !may_create() {
            return Err(HostsError::NotPrivileged);
        }
        interrupt::watch().map_err(HostsError::io("watch for signals"))?;
        clear_stale()?;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let names: Vec<String> = (0..senders + 2)
            .map(|node| node_name(&format!("taut-{}.{number}", process::id()), node))
            .collect();
        let clean_up = {
            let names = names.clone();
            CleanUp::new(move || names.iter().for_each(|name| remove(name)))
        };
        let mut cell = Cell {
            names,
            namespaces: Vec::new(),
            port: None,
            _clean_up: clean_up,
        };
        for name in cell.names.clone() {
            cell.namespaces.push(add_namespace(&name)?);
        }
        cell.connect()?;
        cell.limit(port)?;
        Ok(cell)
    }

    /// Number of senders, which is the receiver's number too.
    #[must_use]
    pub fn senders(&self) -> usize {
        self.names.len() - 2
    }

    /// Number of the receiver.
    #[must_use]
    pub fn receiver(&self) -> usize {
        self.senders()
    }

    fn switch(&self) -> usize {
        self.senders() + 1
    }

    /// MAC address of a node.
    #[must_use]
    pub fn mac(&self, node: usize) -> [u8; 6] {
        [0x02, 0x54, 0x4c, 0x01, 0x00, node as u8 + 1]
    }

    /// IPv4 address of a node.
    #[must_use]
    pub fn address(&self, node: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, 0, node as u8 + 1)
    }

    /// Namespace of a node.
    #[must_use]
    pub fn namespace(&self, node: usize) -> Arc<File> {
        Arc::clone(&self.namespaces[node])
    }

    /// Moves the calling thread, for the rest of its life, to a node.
    ///
    /// # Errors
    /// [`HostsError::Io`].
    pub fn enter(&self, node: usize) -> Result<(), HostsError> {
        child::enter(&self.namespaces[node])
            .map_err(HostsError::io(format!("enter {}", self.names[node])))
    }

    /// Runs `work` on a thread at a node and waits for it.
    ///
    /// # Errors
    /// [`HostsError::Io`].
    pub fn inside<T: Send>(
        &self,
        node: usize,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, HostsError> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter(node)?;
                Ok(work())
            });
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Runs a program at a node to its end, and returns its output.
    ///
    /// # Errors
    /// [`HostsError`].
    pub fn run(
        &self,
        node: usize,
        program: &str,
        arguments: &[&str],
    ) -> Result<String, HostsError> {
        run(self.command(node, program).args(arguments))
    }

    /// A command that will run at a node and die with the calling thread.
    #[must_use]
    pub fn command(&self, node: usize, program: &str) -> Command {
        let mut command = Command::new(program);
        child::tie(&mut command, Some(self.namespace(node)));
        command
    }

    fn connect(&self) -> Result<(), HostsError> {
        let switch = &self.names[self.switch()];
        self.inside(self.switch(), disable_ipv6)??;
        let bridge = ["link add br0 type bridge", "link set br0 up"].map(str::to_owned);
        ip_batch(switch, &bridge)?;
        for node in 0..=self.receiver() {
            self.inside(node, disable_ipv6)??;
            let (port, mac) = (format!("p{node}"), text_of(self.mac(node)));
            let cable = format!(
                "link add {INTERFACE} address {mac} type veth peer name {port} netns {switch}"
            );
            ip_batch(&self.names[node], &[cable])?;
            ip_batch(switch, &[format!("link set {port} master br0 up")])?;
            // Segments of TCP are cut where they leave a node, as by a network card.
            self.run(node, "ethtool", &["-K", INTERFACE, "tso", "off"])?;
            self.set_up(node)?;
        }
        Ok(())
    }

    /// Brings a node's interface up, with its address and its permanent neighbours.
    fn set_up(&self, node: usize) -> Result<(), HostsError> {
        let address = self.address(node);
        let mut lines = vec![
            "link set lo up".to_owned(),
            format!("address add {address}/24 dev {INTERFACE}"),
            format!("link set {INTERFACE} up"),
        ];
        for peer in (0..=self.receiver()).filter(|peer| *peer != node) {
            let (address, mac) = (self.address(peer), text_of(self.mac(peer)));
            lines.push(format!(
                "neighbour replace {address} lladdr {mac} dev {INTERFACE} nud permanent"
            ));
        }
        ip_batch(&self.names[node], &lines)
    }

    /// Gives the port towards the receiver its rate and queue.
    fn limit(&mut self, port: &Port) -> Result<(), HostsError> {
        let device = format!("p{}", self.receiver());
        let rate = format!("{}bit", port.rate_bps);
        let burst = (port.rate_bps * CATCH_UP_MS / 8000).max(2 * WIRE_BYTES);
        for line in [
            format!(
                "qdisc add dev {device} root handle 1: stab overhead 24 linklayer ethernet htb default 20"
            ),
            format!(
                "class add dev {device} parent 1: classid 1:1 htb rate {rate} burst {burst} cburst {burst}"
            ),
            // The program tells the class. Of each class only the ceiling counts.
            format!(
                "class add dev {device} parent 1:1 classid 1:10 htb rate 1kbit ceil {rate} prio 0 burst 1540 cburst {burst} quantum 1540"
            ),
            format!(
                "class add dev {device} parent 1:1 classid 1:20 htb rate 1kbit ceil {rate} prio 1 burst 1540 cburst {burst} quantum 1540"
            ),
            format!("qdisc add dev {device} parent 1:10 handle 10: pfifo limit {DELAY_FRAMES}"),
            format!("qdisc add dev {device} parent 1:20 handle 20: pfifo limit {DELAY_FRAMES}"),
        ] {
            let words: Vec<&str> = line.split_whitespace().collect();
            self.run(self.switch(), "tc", &words)?;
        }
        self.port = Some(self.inside(self.switch(), || SwitchPort::attach(&device, port))??);
        Ok(())
    }

    /// Counts of the port towards the receiver.
    ///
    /// # Errors
    /// The kernel's.
    pub fn port_counts(&self) -> Result<PortCounts, HostsError> {
        let port = self
            .port
            .as_ref()
            .expect("a cell that is made has its port");
        port.counts()
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        for name in &self.names {
            remove(name);
        }
    }
}
