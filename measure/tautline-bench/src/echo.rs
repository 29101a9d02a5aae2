//! Round trips from one host to the other and back: the paths of `taut bench rtt`, by name.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tautline::link::XdpMode;
use tautline::port::{QueuingOptions, SamplingOptions};
use tautline::{LinkKind, OpenError, Protection, SamplingPort, Spin};
use tautline_proto::wire::TRAILER_BYTES;
use tautline_testbed::hosts::{Host, Hosts, HostsOptions};

use crate::path::nodes::NodePair;
use crate::path::sides::{self, Sides};
use crate::path::{
    BLOCKED_LOOK, End, PAYLOAD_BYTES_MAX, PathError, Waiting, floor, poll, short_path, tcp, udp,
};
use crate::sides::Placement;

/// A path, by the name that `--paths` and result files use.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// Tautline sampling port on an xdp link.
    Sampling,
    /// Tautline queuing port on an xdp link.
    Queuing,
    /// Tautline sampling port on an xdp link whose demux is at traffic control.
    SamplingTc,
    /// Tautline queuing port on an xdp link whose demux is at traffic control.
    QueuingTc,
    /// Tautline sampling port on an xdp link whose demux is in generic mode.
    SamplingGeneric,
    /// Tautline queuing port on an xdp link whose demux is in generic mode.
    QueuingGeneric,
    /// Tautline queuing port on a packet link.
    Packet,
    /// Tautline queuing port on an xsk link (AF_XDP).
    Xsk,
    /// Tautline port of plain UDP on an xdp link.
    UdpPort,
    /// Tautline sampling port on an xdp link, with its default: who waits spins where that pays, and sleeps.
    SamplingBlock,
    /// Tautline queuing port on an xdp link, with its default: who waits spins where that pays, and sleeps.
    QueuingBlock,
    /// Tautline port of plain UDP on an xdp link, with its default: who waits spins where that pays, and sleeps.
    UdpPortBlock,
    /// Tautline queuing port on an xdp link; who waits for a message sleeps at once.
    QueuingSleep,
    /// Tautline sampling port on an xdp link, its values authenticated.
    SamplingAuthenticated,
    /// Tautline queuing port on an xdp link, its messages authenticated.
    QueuingAuthenticated,
    /// Tautline queuing port on an xdp link, its messages encrypted.
    QueuingEncrypted,
    /// Kernel UDP, non-blocking sockets that both sides spin on.
    UdpPoll,
    /// Kernel UDP, the same with SO_BUSY_POLL: a receive looks into the network card's queue.
    UdpBusy,
    /// Kernel UDP, blocking sockets.
    UdpBlock,
    /// Kernel UDP, blocking sockets once more: by how much the kernel differs from itself.
    UdpBlockAgain,
    /// Kernel UDP, sockets that are looked at for 50 µs before they block.
    UdpLinger,
    /// Kernel UDP, blocking sockets on a cable whose polls run in threads of the kernel: under SCHED_FIFO above both
    /// sides, each on the CPU of the side that receives.
    UdpTuned,
    /// Kernel UDP, blocking sockets whose waits and sleeps end awake, as those of a program under `taut exec`.
    UdpAwake,
    /// Kernel UDP, sockets that are awake and take their datagrams past the kernel's stack meanwhile, as those of a
    /// program under `taut exec --interface`.
    UdpShortPath,
    /// Kernel TCP without delay, non-blocking sockets that both sides spin on.
    TcpPoll,
    /// Kernel TCP without delay, blocking sockets.
    TcpBlock,
    /// The barest demux-to-memory echo, without port logic.
    Floor,
    /// The same at traffic control.
    FloorTc,
}

impl Path {
    /// All of them, in the order of tables.
    pub const ALL: [Path; 28] = [
        Path::Sampling,
        Path::Queuing,
        Path::SamplingTc,
        Path::QueuingTc,
        Path::SamplingGeneric,
        Path::QueuingGeneric,
        Path::Packet,
        Path::Xsk,
        Path::UdpPort,
        Path::SamplingBlock,
        Path::QueuingBlock,
        Path::UdpPortBlock,
        Path::QueuingSleep,
        Path::SamplingAuthenticated,
        Path::QueuingAuthenticated,
        Path::QueuingEncrypted,
        Path::UdpPoll,
        Path::UdpBusy,
        Path::UdpBlock,
        Path::UdpBlockAgain,
        Path::UdpLinger,
        Path::UdpTuned,
        Path::UdpAwake,
        Path::UdpShortPath,
        Path::TcpPoll,
        Path::TcpBlock,
        Path::Floor,
        Path::FloorTc,
    ];

    /// The name on the command line and in result files.
    pub fn name(self) -> &'static str {
        match self {
            Path::Sampling => "sampling",
            Path::Queuing => "queuing",
            Path::SamplingTc => "sampling-tc",
            Path::QueuingTc => "queuing-tc",
            Path::SamplingGeneric => "sampling-generic",
            Path::QueuingGeneric => "queuing-generic",
            Path::Packet => "packet",
            Path::Xsk => "xsk",
            Path::UdpPort => "udp-port",
            Path::SamplingBlock => "sampling-block",
            Path::QueuingBlock => "queuing-block",
            Path::UdpPortBlock => "udp-port-block",
            Path::QueuingSleep => "queuing-sleep",
            Path::SamplingAuthenticated => "sampling-authenticated",
            Path::QueuingAuthenticated => "queuing-authenticated",
            Path::QueuingEncrypted => "queuing-encrypted",
            Path::UdpPoll => "udp-poll",
            Path::UdpBusy => "udp-busy",
            Path::UdpBlock => "udp-block",
            Path::UdpBlockAgain => "udp-block-again",
            Path::UdpLinger => "udp-linger",
            Path::UdpTuned => "udp-tuned",
            Path::UdpAwake => "udp-awake",
            Path::UdpShortPath => "udp-short-path",
            Path::TcpPoll => "tcp-poll",
            Path::TcpBlock => "tcp-block",
            Path::Floor => "floor",
            Path::FloorTc => "floor-tc",
        }
    }

    /// Number of its port: paths share a node, and sockets of the kernel are open side by side.
    fn port(self) -> u16 {
        match self {
            Path::Queuing | Path::QueuingTc | Path::QueuingGeneric | Path::Xsk => 1,
            Path::Sampling | Path::SamplingTc | Path::SamplingGeneric => 2,
            Path::Packet => 3,
            Path::QueuingBlock => 4,
            Path::SamplingBlock => 5,
            Path::QueuingSleep => 6,
            Path::SamplingAuthenticated => 7,
            Path::QueuingAuthenticated => 8,
            Path::QueuingEncrypted => 9,
            Path::UdpPoll => 7100,
            Path::UdpBusy => 7104,
            Path::UdpBlock => 7101,
            Path::UdpBlockAgain => 7105,
            Path::UdpLinger => 7106,
            Path::UdpAwake => 7107,
            Path::UdpTuned => 7108,
            Path::UdpShortPath => 7109,
            Path::UdpPort => 7102,
            Path::UdpPortBlock => 7103,
            Path::TcpPoll => 7200,
            Path::TcpBlock => 7201,
            Path::Floor | Path::FloorTc => 0, // they have none
        }
    }

    /// How both sides wait for a message.
    pub fn waiting(self) -> Waiting {
        match self {
            Path::SamplingBlock
            | Path::QueuingBlock
            | Path::UdpPortBlock
            | Path::QueuingSleep
            | Path::UdpBlock
            | Path::UdpBlockAgain
            | Path::UdpTuned
            | Path::TcpBlock => Waiting::Block,
            Path::UdpLinger => Waiting::Linger,
            Path::UdpAwake | Path::UdpShortPath => Waiting::Awake,
            _ => Waiting::Spin,
        }
    }

    /// Whether messages that nobody has taken yet stay when another one arrives.
    pub fn keeps_all_messages(self) -> bool {
        !matches!(
            self,
            Path::Sampling
                | Path::SamplingTc
                | Path::SamplingGeneric
                | Path::SamplingBlock
                | Path::SamplingAuthenticated
                | Path::Floor
                | Path::FloorTc
        )
    }

    /// How its ports are protected.
    fn protection(self) -> Option<Protection> {
        match self {
            Path::SamplingAuthenticated | Path::QueuingAuthenticated => {
                Some(Protection::Authenticated)
            }
            Path::QueuingEncrypted => Some(Protection::Encrypted),
            _ => None,
        }
    }

    /// The floor at the hook of the path's demux, where there is one.
    pub fn floor(self) -> Option<Path> {
        match self {
            Path::SamplingTc | Path::QueuingTc | Path::FloorTc => Some(Path::FloorTc),
            Path::SamplingGeneric | Path::QueuingGeneric => None,
            _ => Some(Path::Floor),
        }
    }

    /// The path to compare with: kernel UDP that waits in the same way.
    pub fn reference(self) -> Path {
        match self.waiting() {
            Waiting::Spin => Path::UdpPoll,
            Waiting::Block | Waiting::Linger | Waiting::Awake => Path::UdpBlock,
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Path {
    type Err = String;

    fn from_str(name: &str) -> Result<Path, String> {
        Path::ALL
            .into_iter()
            .find(|path| path.name() == name)
            .ok_or_else(|| {
                let names = Path::ALL.map(Path::name).join(", ");
                format!("no path is called `{name}`; there are {names}")
            })
    }
}

/// How a path is to be opened.
#[derive(Clone, Copy, Debug)]
pub struct PathOptions {
    /// The largest payload that will be sent.
    pub payload_bytes_max: usize,
    /// How long a round trip may take.
    pub time_limit: Duration,
    /// CPUs of the sides, where a path depends on them.
    pub placement: Placement,
}

/// Both ends of a path.
pub struct Ends {
    /// The asking end, on host A.
    pub asking: Box<dyn End>,
    /// The answering end, on host B.
    pub answering: Box<dyn End>,
    /// Link and mode of the path, in one line for the user.
    pub description: String,
}

impl Ends {
    fn new<E: End + 'static>([asking, answering]: [E; 2], description: String) -> Ends {
        Ends {
            asking: Box::new(asking),
            answering: Box::new(answering),
            description,
        }
    }
}

/// Paths with a cable of their own, where one of them is measured: a demux at another hook, the programs of the floor
/// and of xsk cannot share an interface with the demux, a node on link packet has none, and the short path and tuning
/// are of a whole one. Tuning is the last: where there is one cable, it stays tuned until the end.
const OWN_CABLES: [&[Path]; 8] = [
    &[Path::SamplingTc, Path::QueuingTc],
    &[Path::SamplingGeneric, Path::QueuingGeneric],
    &[Path::Packet],
    &[Path::Floor],
    &[Path::FloorTc],
    &[Path::Xsk],
    &[Path::UdpShortPath],
    &[Path::UdpTuned],
];

/// Those of the groups of which one is measured.
fn own_cables(paths: &[Path]) -> impl Iterator<Item = &'static [Path]> {
    let is_used = |group: &&[Path]| group.iter().any(|path| paths.contains(path));
    OWN_CABLES.into_iter().filter(is_used)
}

/// Cables that the paths need.
fn cable_count(paths: &[Path]) -> usize {
    sides::CABLES + own_cables(paths).count()
}

/// Options of the hosts for the paths.
pub fn hosts_for(paths: &[Path]) -> HostsOptions {
    HostsOptions {
        cable_count: cable_count(paths),
        ..HostsOptions::default()
    }
}

/// The cable that a path of these uses.
pub fn cable_of(path: Path, paths: &[Path]) -> usize {
    match path {
        Path::Sampling
        | Path::Queuing
        | Path::UdpPort
        | Path::SamplingBlock
        | Path::QueuingBlock
        | Path::UdpPortBlock
        | Path::QueuingSleep
        | Path::SamplingAuthenticated
        | Path::QueuingAuthenticated
        | Path::QueuingEncrypted => sides::DEMUX_CABLE,
        Path::UdpPoll
        | Path::UdpBusy
        | Path::UdpBlock
        | Path::UdpBlockAgain
        | Path::UdpLinger
        | Path::UdpAwake
        | Path::TcpPoll
        | Path::TcpBlock => sides::KERNEL_CABLE,
        Path::SamplingTc
        | Path::QueuingTc
        | Path::SamplingGeneric
        | Path::QueuingGeneric
        | Path::Packet
        | Path::Floor
        | Path::FloorTc
        | Path::Xsk
        | Path::UdpTuned
        | Path::UdpShortPath => {
            let before = own_cables(paths).take_while(|group| !group.contains(&path));
            sides::CABLES + before.count()
        }
    }
}

/// Opens paths between the hosts, made with [`hosts_for`]. The ends may be used from any thread.
pub fn open_paths(
    paths: &[Path],
    hosts: &Hosts,
    options: &PathOptions,
) -> Result<Vec<Ends>, (Path, PathError)> {
    let mut opening = Opening::new(Cables::Own(paths), hosts, options);
    let open = |path: &Path| opening.open(*path).map_err(|error| (*path, error));
    paths.iter().map(open).collect()
}

/// Opens paths that can share an interface on the hosts' first cable, where there is only one. One that this cable,
/// kernel or driver does not have leaves the others open.
pub fn open_on_one_cable(
    paths: &[Path],
    hosts: &Hosts,
    options: &PathOptions,
) -> Vec<(Path, Result<Ends, PathError>)> {
    let mut opening = Opening::new(Cables::One, hosts, options);
    let open = |path: &Path| (*path, opening.open(*path));
    paths.iter().map(open).collect()
}

/// The paths in groups that can share an interface, those of the kernel first: then nothing has been attached to it.
pub fn sharing_groups(paths: &[Path]) -> Vec<Vec<Path>> {
    let mut groups = BTreeMap::<_, Vec<Path>>::new();
    for path in paths {
        let cable = cable_of(*path, &Path::ALL);
        let place = (cable != sides::KERNEL_CABLE, cable);
        groups.entry(place).or_default().push(*path);
    }
    groups.into_values().collect()
}

/// Cables of paths.
#[derive(Clone, Copy)]
enum Cables<'a> {
    /// Paths that cannot share an interface have cables of their own. These are all of them.
    Own(&'a [Path]),
    /// The first one is that of all.
    One,
}

/// Opens paths one after the other, and keeps what several of them use. Ports keep their node open.
struct Opening<'a> {
    cables: Cables<'a>,
    hosts: &'a Hosts,
    options: &'a PathOptions,
    /// Nodes on link xdp, by their cable.
    nodes: BTreeMap<usize, NodePair<'a>>,
}

impl<'a> Opening<'a> {
    fn new(cables: Cables<'a>, hosts: &'a Hosts, options: &'a PathOptions) -> Opening<'a> {
        Opening {
            cables,
            hosts,
            options,
            nodes: BTreeMap::new(),
        }
    }

    fn open(&mut self, path: Path) -> Result<Ends, PathError> {
        let cable = match self.cables {
            Cables::Own(paths) => cable_of(path, paths),
            Cables::One => 0,
        };
        let mode = match path {
            Path::SamplingTc | Path::QueuingTc => Some(XdpMode::Tc),
            Path::SamplingGeneric | Path::QueuingGeneric => Some(XdpMode::Generic),
            _ => None,
        };
        let largest = match path {
            Path::Floor | Path::FloorTc => floor::PAYLOAD_BYTES_MAX,
            Path::Sampling | Path::SamplingTc | Path::SamplingGeneric | Path::SamplingBlock => {
                SamplingPort::VALUE_BYTES_MAX
            }
            Path::SamplingAuthenticated => SamplingPort::VALUE_BYTES_MAX - TRAILER_BYTES,
            _ => PAYLOAD_BYTES_MAX,
        };
        let bytes = self.options.payload_bytes_max;
        if !(1..=largest).contains(&bytes) {
            return Err(PathError::PayloadSize {
                bytes,
                bytes_max: largest,
            });
        }
        let (number, waiting) = (path.port(), path.waiting());
        match path {
            Path::UdpPoll | Path::UdpBlock | Path::UdpBlockAgain | Path::UdpLinger => {
                udp_ends(self.sides(cable), number, waiting)
            }
            Path::UdpTuned => {
                let above = self.poll_threads(cable)?;
                let ends = udp::pair(self.sides(cable), number, waiting)?;
                let description = format!("kernel UDP, {}; {above}", waiting.text());
                Ok(Ends::new(ends, description))
            }
            Path::UdpAwake => {
                let ends = udp::awake_pair(self.sides(cable), number)?;
                let description = format!("kernel UDP, {}; no demux on its cable", waiting.text());
                Ok(Ends::new(ends, description))
            }
            Path::UdpShortPath => {
                let ends = short_path::pair(self.hosts, cable, number)?;
                let description = format!(
                    "kernel UDP, {}; datagrams past the kernel's stack meanwhile",
                    waiting.text()
                );
                Ok(Ends::new(ends, description))
            }
            Path::UdpBusy => {
                let ends = udp::pair(self.sides(cable), number, waiting)?;
                let [a, b] = ends.map(|end| end.with_busy_poll(BUSY_POLL));
                let description = format!(
                    "kernel UDP, SO_BUSY_POLL, {}; no demux on its cable",
                    waiting.text()
                );
                Ok(Ends::new([a?, b?], description))
            }
            Path::TcpPoll | Path::TcpBlock => tcp_ends(self.sides(cable), number, waiting),
            Path::Sampling
            | Path::SamplingTc
            | Path::SamplingGeneric
            | Path::SamplingBlock
            | Path::SamplingAuthenticated => {
                let options = SamplingOptions {
                    spin: self.spin(path),
                    protection: path.protection(),
                    ..SamplingOptions::default()
                };
                let nodes = self.nodes(cable, mode)?;
                let ends = nodes.sampling(number, &options)?;
                Ok(Ends::new(ends, describe("sampling port", path, nodes)))
            }
            Path::Queuing
            | Path::QueuingTc
            | Path::QueuingGeneric
            | Path::QueuingBlock
            | Path::QueuingSleep
            | Path::QueuingAuthenticated
            | Path::QueuingEncrypted => {
                let options = self.queuing_options(path);
                queuing(self.nodes(cable, mode)?, number, path, &options)
            }
            Path::UdpPort | Path::UdpPortBlock => {
                let options = self.queuing_options(path);
                let nodes = self.nodes(cable, mode)?;
                let ends = nodes.plain_udp(number, &options)?;
                Ok(Ends::new(ends, describe("port of plain UDP", path, nodes)))
            }
            Path::Packet => {
                let nodes = NodePair::on_cable(self.hosts, cable, LinkKind::Packet, None)?;
                queuing(&nodes, number, path, &self.queuing_options(path))
            }
            Path::Xsk => {
                let nodes = NodePair::on_cable(self.hosts, cable, LinkKind::Xsk, None)?;
                queuing(&nodes, number, path, &self.queuing_options(path))
            }
            Path::Floor => self.floor(cable, floor::Hook::Driver),
            Path::FloorTc => self.floor(cable, floor::Hook::TrafficControl),
        }
    }

    fn floor(&self, cable: usize, hook: floor::Hook) -> Result<Ends, PathError> {
        let description = format!(
            "BPF at {} copies the frame to mapped memory, packet socket back; no ports, both sides spin",
            hook.text()
        );
        Ok(Ends::new(
            floor::pair(self.hosts, cable, hook)?,
            description,
        ))
    }

    /// Puts the polls of a cable into threads above both sides. A network card has polls; a veth is given them first.
    fn poll_threads(&self, cable: usize) -> Result<String, PathError> {
        let placement = self.options.placement;
        let mut text = String::new();
        let sides = [
            (Host::A, placement.client_cpu.unwrap_or(0)),
            (Host::B, placement.server_cpu.unwrap_or(0)),
        ];
        for (host, cpu) in sides {
            if !self.hosts.is_hardware() {
                poll::with_poll(self.hosts, host, cable)?;
            }
            text = poll::in_thread(self.hosts, host, cable, cpu, Some(POLL_PRIORITY))?;
        }
        Ok(text)
    }

    fn sides(&self, cable: usize) -> Sides<'a> {
        Sides::Hosts(self.hosts, cable)
    }

    /// The nodes that paths on this cable share. Unless a mode is asked for, the demux is in native mode where the
    /// driver has it, also on a veth, for which a node would choose traffic control: that is a path of its own.
    fn nodes(&mut self, cable: usize, mode: Option<XdpMode>) -> Result<&NodePair<'a>, PathError> {
        Ok(match self.nodes.entry(cable) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(place) => {
                let open = |mode| NodePair::on_cable(self.hosts, cable, LinkKind::Xdp, mode);
                let opened = open(mode.or(Some(XdpMode::Native)));
                place.insert(match opened {
                    Err(PathError::Open(OpenError::NoXdp { .. })) if mode.is_none() => open(None)?,
                    opened => opened?,
                })
            }
        })
    }

    fn queuing_options(&self, path: Path) -> QueuingOptions {
        QueuingOptions {
            message_bytes_max: self.options.payload_bytes_max.max(1484),
            spin: self.spin(path),
            protection: path.protection(),
            ..QueuingOptions::default()
        }
    }

    /// A port that spins does so all the time, like the kernel's polled sockets.
    fn spin(&self, path: Path) -> Spin {
        match path.waiting() {
            Waiting::Spin => self.options.time_limit.max(BLOCKED_LOOK).into(),
            _ if path == Path::QueuingSleep => Duration::ZERO.into(),
            _ => Spin::Adaptive,
        }
    }
}

/// Priority of poll threads: above that of any side, below the kernel's own (99).
const POLL_PRIORITY: u8 = 98;

/// Time that a receive with SO_BUSY_POLL may look into the card's queue; a non-blocking one looks once.
const BUSY_POLL: Duration = Duration::from_micros(50);

fn udp_ends(sides: Sides<'_>, port: u16, waiting: Waiting) -> Result<Ends, PathError> {
    let ends = udp::pair(sides, port, waiting)?;
    let description = format!("kernel UDP, {}; no demux on its cable", waiting.text());
    Ok(Ends::new(ends, description))
}

fn tcp_ends(sides: Sides<'_>, port: u16, waiting: Waiting) -> Result<Ends, PathError> {
    let ends = tcp::pair(sides, port, waiting)?;
    let description = format!(
        "kernel TCP without delay, {}; no demux on its cable",
        waiting.text()
    );
    Ok(Ends::new(ends, description))
}

fn queuing(
    nodes: &NodePair<'_>,
    number: u16,
    path: Path,
    options: &QueuingOptions,
) -> Result<Ends, PathError> {
    let ends = nodes.queuing(number, options)?;
    Ok(Ends::new(ends, describe("queuing port", path, nodes)))
}

fn describe(port: &str, path: Path, nodes: &NodePair<'_>) -> String {
    let sides = match path.waiting() {
        Waiting::Spin => "both sides spin",
        _ if path == Path::QueuingSleep => "who waits sleeps at once",
        _ => "who waits spins where that pays, then sleeps",
    };
    format!("{port}, {sides}; {}", nodes.describe())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_whose_programs_would_meet_have_cables_of_their_own() {
        let all = Path::ALL;
        let cables = all.map(|path| cable_of(path, &all));
        assert_eq!(
            cables,
            [
                0, 0, 2, 2, 3, 3, 4, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 9, 1, 8, 1, 1, 5, 6
            ]
        );
        assert_eq!(cable_count(&all), 10);
        let few = [Path::Xsk, Path::Queuing];
        assert_eq!(few.map(|path| cable_of(path, &few)), [2, 0]);
        assert_eq!(cable_count(&few), 3);
    }

    #[test]
    fn one_cable_is_shared_in_turns() {
        let groups = sharing_groups(&[Path::Queuing, Path::Floor, Path::UdpPoll, Path::Sampling]);
        let expected: [&[Path]; 3] = [
            &[Path::UdpPoll],
            &[Path::Queuing, Path::Sampling],
            &[Path::Floor],
        ];
        assert_eq!(groups, expected);
    }

    #[test]
    fn names_are_read_back_and_agree_with_json() {
        for path in Path::ALL {
            assert_eq!(path.name().parse(), Ok(path));
            assert_eq!(serde_json::to_value(path).unwrap(), path.name());
            let clap = clap::ValueEnum::to_possible_value(&path).unwrap();
            assert_eq!(clap.get_name(), path.name());
        }
        let error = "udp".parse::<Path>().unwrap_err();
        assert!(error.contains("udp-poll"), "{error}");
    }
}
