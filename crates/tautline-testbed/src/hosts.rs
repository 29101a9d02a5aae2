//! Two hosts on one machine: network namespaces joined by virtual Ethernet cables.
//!
//! Named after this process, `taut-<pid>-a` and `taut-<pid>-b`, so that several runs do not meet and
//! what a killed run left can be told ([`clear_stale`]). Inside there are only loopback and the
//! cables `taut0`, `taut1`, …: IPv4 10.77.0.1 and .2 on the first, 10.77.1.1 and .2 on the second,
//! IPv6 off, one queue each way unless asked for more. A [`ThirdHost`] may share the
//! first cable. The machine's own interfaces are not touched, unless two of them are to be the cable
//! ([`Hosts::join`]).
//!
//! `/sys/class/net` goes on showing the namespace that `/sys` was mounted in: a thread that entered
//! a host must ask netlink or ioctl, not sysfs.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{self, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

pub use tautline_state::hosts::{CABLE_COUNT_MAX, may_create, stale};
use tautline_state::hosts::{path_of, remove};
use thiserror::Error;

use crate::child;
use crate::interrupt::{self, CleanUp};

pub mod cell;
mod hardware;
mod switch_port;
mod third;
mod tool;

pub use third::ThirdHost;

use tool::{ip, ip_batch, run};

/// Why hosts could not be made, entered or removed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostsError {
    /// The process may not make network namespaces.
    #[error(
        "making network namespaces needs CAP_SYS_ADMIN and CAP_NET_ADMIN, which this process has not"
    )]
    NotPrivileged,
    /// A program that does part of the work is not installed.
    #[error("the program {tool} is not installed")]
    ToolMissing {
        /// The program's name.
        tool: String,
    },
    /// A program failed.
    #[error("`{command}` failed: {stderr}")]
    Tool {
        /// The command line as it was run.
        command: String,
        /// Its standard error.
        stderr: String,
    },
    /// A system call or file operation failed.
    #[error("cannot {operation}: {source}")]
    Io {
        /// Operation that failed, with its object.
        operation: String,
        /// Cause.
        source: io::Error,
    },
    /// More cables were asked for than there may be.
    #[error("{asked} cables asked for, 1 to {CABLE_COUNT_MAX} possible")]
    CableCount {
        /// The number asked for.
        asked: usize,
    },
    /// Interfaces of this machine that were to be the cable have no link.
    #[error("the two interfaces have no link: is there a cable between them?")]
    NoCarrier,
}

impl HostsError {
    /// Remedy for the user.
    pub fn remedy(&self) -> String {
        match self {
            HostsError::NotPrivileged => {
                "run it as root (sudo), or use a command that works without hosts of its own".to_owned()
            }
            HostsError::ToolMissing { tool } => format!(
                "install it: apt-get install {}",
                if tool == "ip" { "iproute2" } else { tool }
            ),
            HostsError::Tool { stderr, .. } if stderr.contains("Operation not permitted") => {
                "run it as root (sudo); inside a container it needs the capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN".to_owned()
            }
            HostsError::Tool { stderr, .. } if stderr.contains("Unknown device type") || stderr.contains("not supported") => {
                "the kernel lacks virtual Ethernet: load it with `modprobe veth`, or use a kernel with CONFIG_VETH and CONFIG_NET_NS".to_owned()
            }
            HostsError::Tool { command, .. } => {
                format!("run `{command}` by hand to see more; `taut doctor` shows what is missing")
            }
            HostsError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "run it as root (sudo)".to_owned()
            }
            HostsError::Io { .. } if is_bare_root() => {
                "mount /proc, /sys and /dev in this root directory, or run it outside of the chroot".to_owned()
            }
            HostsError::Io { .. } => "`taut doctor` shows what is missing".to_owned(),
            HostsError::CableCount { .. } => format!("ask for 1 to {CABLE_COUNT_MAX}"),
            HostsError::NoCarrier => "join them by a cable or a switch; `ip link` shows their state".to_owned(),
        }
    }

    fn io(operation: impl Into<String>) -> impl FnOnce(io::Error) -> HostsError {
        move |source| HostsError::Io {
            operation: operation.into(),
            source,
        }
    }
}

/// Whether this is a root directory (chroot) without what every system mounts.
fn is_bare_root() -> bool {
    let files = ["/proc/self", "/dev/null"];
    files.iter().any(|file| !Path::new(file).exists())
}

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// The first: the side that asks in benchmarks.
    A,
    /// The second: the side that answers.
    B,
}

impl Host {
    /// Both.
    pub const BOTH: [Host; 2] = [Host::A, Host::B];

    /// The other one.
    pub fn peer(self) -> Host {
        match self {
            Host::A => Host::B,
            Host::B => Host::A,
        }
    }

    fn letter(self) -> char {
        match self {
            Host::A => 'a',
            Host::B => 'b',
        }
    }

    fn number(self) -> u8 {
        match self {
            Host::A => 1,
            Host::B => 2,
        }
    }
}

/// Whether the cables' ends do part of TCP's and UDP's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offloads {
    /// Defaults of the kernel: checksums are left partial and TCP moves segments of up to 64 KiB.
    #[default]
    Kernel,
    /// Transmit checksums are made in software; segmentation stays.
    ChecksumOff,
    /// No checksum, segmentation or receive merging: frames as on plain hardware.
    AllOff,
}

impl Offloads {
    /// The settings that `ethtool -K` is given.
    fn settings(self) -> &'static [&'static str] {
        match self {
            Offloads::Kernel => &[],
            Offloads::ChecksumOff => &["tx", "off"],
            Offloads::AllOff => &["tx", "off", "tso", "off", "gso", "off", "gro", "off"],
        }
    }

    /// Text for reports.
    pub fn text(self) -> &'static str {
        match self {
            Offloads::Kernel => "kernel default",
            Offloads::ChecksumOff => "tx checksum off",
            Offloads::AllOff => "tx checksum, tso, gso, gro off",
        }
    }
}

/// Kind of the interfaces at the cables' ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndKind {
    /// The virtual cable's own.
    #[default]
    Veth,
    /// A bridge with the virtual cable's end as its one port.
    Bridge,
    /// A macvlan over the virtual cable's end.
    Macvlan,
}

impl EndKind {
    /// All of them.
    pub const ALL: [EndKind; 3] = [EndKind::Veth, EndKind::Bridge, EndKind::Macvlan];

    /// Name of the driver in Linux, for options and reports.
    pub fn name(self) -> &'static str {
        match self {
            EndKind::Veth => "veth",
            EndKind::Bridge => "bridge",
            EndKind::Macvlan => "macvlan",
        }
    }
}

/// Options of the hosts to be made.
#[derive(Clone, Copy, Debug)]
pub struct HostsOptions {
    /// Number of cables between the two, 1 to [`CABLE_COUNT_MAX`].
    pub cable_count: usize,
    /// Offload settings of all ends.
    pub offloads: Offloads,
    /// Queues of each end, each way. With several, the CPU that sends decides which one a frame takes.
    pub queue_count: u8,
    /// Kind of the ends' interfaces.
    pub end_kind: EndKind,
}

impl Default for HostsOptions {
    fn default() -> Self {
        HostsOptions {
            cable_count: 1,
            offloads: Offloads::default(),
            queue_count: 1,
            end_kind: EndKind::default(),
        }
    }
}

/// One end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CableEnd {
    host: Host,
    cable: u8,
}

impl CableEnd {
    /// The interface's name, the same on both hosts.
    pub fn interface(self) -> String {
        format!("taut{}", self.cable)
    }

    /// Name of the virtual cable's end below an interface of another kind.
    fn below(self) -> String {
        format!("taut{}w", self.cable)
    }

    /// Its MAC address: locally administered, fixed.
    pub fn mac(self) -> [u8; 6] {
        [0x02, 0x54, 0x4c, 0x00, self.cable, self.host.number()]
    }

    /// Its IPv4 address, in a network of 24 bits.
    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self.cable, self.host.number())
    }

    fn mac_text(self) -> String {
        text_of(self.mac())
    }
}

fn text_of(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Two network namespaces and the cables between them. Dropping it removes them; a signal does too.
#[derive(Debug)]
pub struct Hosts {
    names: [String; 2],
    namespaces: [Arc<File>; 2],
    cable_count: u8,
    offloads: Offloads,
    queue_count: u8,
    end_kind: EndKind,
    /// Interfaces that the cable is made of, where it is no virtual one.
    borrowed: Option<[hardware::Borrowed; 2]>,
    // Withdrawn after `drop` has removed the namespaces.
    _clean_up: CleanUp,
}

impl Hosts {
    /// Clears what dead processes left, then makes two hosts, up and able to reach each other.
    pub fn create(options: &HostsOptions) -> Result<Hosts, HostsError> {
        let hosts = Self::begin(options, None)?;
        for cable in 0..hosts.cable_count() {
            hosts.lay(cable)?;
        }
        Ok(hosts)
    }

    /// Two hosts without a cable.
    fn begin(
        options: &HostsOptions,
        borrowed: Option<[hardware::Borrowed; 2]>,
    ) -> Result<Hosts, HostsError> {
        let cable_count = u8::try_from(options.cable_count)
            .ok()
            .filter(|count| (1..=CABLE_COUNT_MAX).contains(&usize::from(*count)))
            .ok_or(HostsError::CableCount {
                asked: options.cable_count,
            })?;
        if !may_create() {
            return Err(HostsError::NotPrivileged);
        }
        interrupt::watch().map_err(HostsError::io("watch for signals"))?;
        clear_stale()?;
        let names = own_names();
        // From here on an error, a signal and a panic remove what there is.
        let partial = Partial(names.clone());
        let clean_up = {
            let (names, borrowed) = (names.clone(), borrowed.clone());
            CleanUp::new(move || clear(&names, borrowed.as_ref()))
        };
        let namespaces = [add_namespace(&names[0])?, add_namespace(&names[1])?];
        let hosts = Hosts {
            names,
            namespaces,
            cable_count,
            offloads: options.offloads,
            queue_count: options.queue_count.max(1),
            end_kind: options.end_kind,
            borrowed,
            _clean_up: clean_up,
        };
        partial.keep();
        for host in Host::BOTH {
            hosts.inside(host, disable_ipv6)??;
        }
        Ok(hosts)
    }

    /// The namespace's name, for `ip netns exec`.
    pub fn name(&self, host: Host) -> &str {
        &self.names[host as usize]
    }

    /// The namespace itself, to be kept or handed to another thread.
    pub fn namespace(&self, host: Host) -> Arc<File> {
        Arc::clone(&self.namespaces[host as usize])
    }

    /// One end of cable 0, 1, …
    ///
    /// # Panics
    /// If there is no such cable.
    pub fn end(&self, host: Host, cable: usize) -> CableEnd {
        let cable = u8::try_from(cable).expect("cables are few");
        assert!(cable < self.cable_count, "there is no cable {cable}");
        CableEnd { host, cable }
    }

    /// Number of cables.
    pub fn cable_count(&self) -> usize {
        usize::from(self.cable_count)
    }

    /// The offload settings of all ends.
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Moves the calling thread, for the rest of its life, into a host.
    pub fn enter(&self, host: Host) -> Result<(), HostsError> {
        child::enter(&self.namespaces[host as usize]).map_err(HostsError::io(format!(
            "enter the network namespace {}",
            self.name(host)
        )))
    }

    /// Runs `work` on a thread inside a host and waits for it. Sockets that it opens belong to the
    /// host and can be used from any thread afterwards.
    pub fn inside<T: Send>(
        &self,
        host: Host,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, HostsError> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter(host)?;
                Ok(work())
            });
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// A command that will run inside a host and die with the calling thread.
    pub fn command(&self, host: Host, program: &str) -> Command {
        let mut command = Command::new(program);
        child::tie(&mut command, Some(self.namespace(host)));
        command
    }

    /// Runs a program inside a host to its end; what it writes to standard error is in the error if it fails.
    pub fn run(&self, host: Host, program: &str, arguments: &[&str]) -> Result<(), HostsError> {
        run(self.command(host, program).args(arguments))?;
        Ok(())
    }

    /// Writes a setting of a cable's end: a file below `/sys/class/net/IF`, such as `threaded`. It goes with the cable.
    pub fn set_interface(
        &self,
        host: Host,
        cable: usize,
        file: &str,
        value: &str,
    ) -> Result<(), HostsError> {
        let path = format!(
            "/sys/class/net/{}/{file}",
            self.end(host, cable).interface()
        );
        // `ip netns exec` mounts a `/sys` that shows the namespace.
        let script = "echo \"$0\" > \"$1\"";
        #[rustfmt::skip]
        ip(&["netns", "exec", self.name(host), "sh", "-c", script, value, &path])?;
        Ok(())
    }

    fn lay(&self, cable: usize) -> Result<(), HostsError> {
        let [a, b] = Host::BOTH.map(|host| self.end(host, cable));
        let (queues, other) = (self.queue_count, self.name(Host::B));
        let end = |end: CableEnd| {
            let mac = match self.end_kind {
                EndKind::Veth => format!(" address {}", end.mac_text()),
                // The interface over it has the address.
                EndKind::Bridge | EndKind::Macvlan => String::new(),
            };
            format!("mtu 1500{mac} numtxqueues {queues} numrxqueues {queues}")
        };
        let (first, second) = (end(a), end(b));
        let name = match self.end_kind {
            EndKind::Veth => a.interface(),
            EndKind::Bridge | EndKind::Macvlan => a.below(),
        };
        let cable =
            format!("link add {name} {first} type veth peer name {name} {second} netns {other}");
        self.configure(a, &[&[cable], &self.over(a)[..]].concat())?;
        self.configure(b, &self.over(b))
    }

    /// Commands of `ip` that make an end's interface over that of the virtual cable, where it is another one.
    fn over(&self, end: CableEnd) -> Vec<String> {
        let (interface, below, mac) = (end.interface(), end.below(), end.mac_text());
        match self.end_kind {
            EndKind::Veth => Vec::new(),
            EndKind::Bridge => vec![
                // Without the delay, after which a bridge forwards at first.
                format!("link add {interface} address {mac} type bridge forward_delay 0"),
                format!("link set {below} master {interface} up"),
            ],
            EndKind::Macvlan => vec![
                format!("link set {below} up"),
                format!(
                    "link add link {below} name {interface} address {mac} type macvlan mode private"
                ),
            ],
        }
    }

    /// Sets an end up, after `first`.
    fn configure(&self, end: CableEnd, first: &[String]) -> Result<(), HostsError> {
        let interface = end.interface();
        let peer = CableEnd {
            host: end.host.peer(),
            ..end
        };
        let (own, other, mac) = (end.address(), peer.address(), peer.mac_text());
        let last = [
            "link set lo up".to_owned(),
            format!("address add {own}/24 dev {interface}"),
            format!("link set {interface} up"),
            // A permanent neighbour keeps address resolution out of what is measured.
            format!("neighbour replace {other} lladdr {mac} nud permanent dev {interface}"),
        ];
        ip_batch(self.name(end.host), &[first, &last].concat())?;
        self.offload(end, self.offloads)
    }

    /// Gives both ends of a cable offload settings of their own.
    pub fn set_offloads(&self, cable: usize, offloads: Offloads) -> Result<(), HostsError> {
        Host::BOTH
            .into_iter()
            .try_for_each(|host| self.offload(self.end(host, cable), offloads))
    }

    fn offload(&self, end: CableEnd, offloads: Offloads) -> Result<(), HostsError> {
        let interface = end.interface();
        let settings = offloads.settings();
        if settings.is_empty() {
            return Ok(());
        }
        let arguments: Vec<&str> = ["-K", &interface].iter().chain(settings).copied().collect();
        self.run(end.host, "ethtool", &arguments)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        clear(&self.names, self.borrowed.as_ref());
    }
}

/// Removes both namespaces, after what was borrowed has been given back.
fn clear(names: &[String; 2], borrowed: Option<&[hardware::Borrowed; 2]>) {
    for (name, interface) in names.iter().zip(borrowed.into_iter().flatten()) {
        interface.give_back(name);
    }
    names.iter().for_each(|name| remove(name));
}

/// Removes the hosts of processes that no longer live and returns their names. Those of living
/// processes stay.
pub fn clear_stale() -> Result<Vec<String>, HostsError> {
    let removed = stale(None).map_err(HostsError::io("find hosts"))?;
    removed.iter().for_each(|name| remove(name));
    Ok(removed)
}

/// Names for a new pair: those of the process, with a number after the first pair.
fn own_names() -> [String; 2] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = match NEXT.fetch_add(1, Ordering::Relaxed) {
        0 => String::new(),
        number => format!(".{number}"),
    };
    Host::BOTH.map(|host| format!("taut-{}{number}-{}", process::id(), host.letter()))
}

/// Names that are removed again unless [`Partial::keep`] is called.
struct Partial([String; 2]);

impl Partial {
    fn keep(mut self) {
        self.0 = Default::default();
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        self.0
            .iter()
            .filter(|name| !name.is_empty())
            .for_each(|name| remove(name));
    }
}

fn add_namespace(name: &str) -> Result<Arc<File>, HostsError> {
    let path = path_of(name);
    if path.exists() {
        // Named after our own process number, so an earlier process that had it left this.
        remove(name);
    }
    ip(&["netns", "add", name])?;
    File::open(&path)
        .map(Arc::new)
        .map_err(HostsError::io(format!("open {}", path.display())))
}

/// Written on a thread inside the host, since `/proc/sys/net` shows the writer's namespace.
fn disable_ipv6() -> Result<(), HostsError> {
    for which in ["all", "default"] {
        let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
        match fs::write(&path, "1") {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(HostsError::io(format!("write {path}"))(error));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_have_addresses_of_their_own() {
        let mut seen = std::collections::BTreeSet::new();
        for cable in 0..CABLE_COUNT_MAX as u8 {
            for host in Host::BOTH {
                let end = CableEnd { host, cable };
                assert_eq!(end.mac()[0] & 0b11, 0b10, "local, unicast");
                assert!(seen.insert((end.mac(), end.address())));
            }
        }
        let end = CableEnd {
            host: Host::B,
            cable: 3,
        };
        assert_eq!(end.mac_text(), "02:54:4c:00:03:02");
        assert_eq!(end.address().to_string(), "10.77.3.2");
    }

    #[test]
    fn cables_are_bounded() {
        for asked in [0, CABLE_COUNT_MAX + 1, 300] {
            let options = HostsOptions {
                cable_count: asked,
                ..HostsOptions::default()
            };
            assert!(
                matches!(Hosts::create(&options), Err(HostsError::CableCount { asked: found }) if found == asked)
            );
        }
    }
}
