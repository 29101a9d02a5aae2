//! Settings of a guest.
//!
//! ```
//! use tautline_guest::GuestConfig;
//!
//! let text = "bus = \"cell\"\n[[port]]\nnumber = 7\nreceives = \"queuing\"\nsends = \"sampling\"\n";
//! let config = GuestConfig::parse(text, "arm.toml", "arm", "arm.elf")?;
//! assert_eq!(config.ports[0].number, 7);
//! # Ok::<(), tautline_guest::GuestError>(())
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tautline::{NodeName, PortNumber, Priority};
use tautline_shm::vbus::layout::DEPTH_MAX;
use tautline_shm::vbus::shape::{Kind, Shape};
use tautline_shm::vbus::window::{ADDRESS_BYTES, Connection, Direction, PEERS_MAX, Plan};
use tautline_state::{Others, parse_error, units};

use crate::error::GuestError;
use crate::permissions::PeerPort;

/// Longest file. Lower: 32 ports with comments do not fit. Higher: a file that is none is read before it is refused.
const FILE_BYTES_MAX: usize = 256 << 10;
/// Memory of a guest that does not say.
const RAM_BYTES: u64 = 16 << 20;
/// Least memory of a guest. Lower: the image's start address is behind it.
const RAM_BYTES_MIN: u64 = 2 << 20;
/// Most memory of a guest: where devices begin. Higher: the window's address would be in it.
const RAM_BYTES_MAX: u64 = 2 << 30;
/// Depth of a port that does not say.
const DEPTH: u32 = 64;
/// Largest message of a port that does not say: one that every link carries whole.
const MESSAGE_BYTES_MAX: u32 = 1_400;
/// Largest message that a port can have: with its address, the largest that a network carries. Lower: a guest could not
/// get all of those. Higher: the window takes more of the guest's memory.
const PORT_BYTES_MAX: u32 = 65_536 - ADDRESS_BYTES as u32;
/// Most starts after the first within [`RESTART_WINDOW`], unless the file says. Lower: a guest that fails twice in a
/// row is given up. Higher: one that cannot start keeps a CPU busy for longer.
const RESTARTS_MAX: u32 = 5;
/// Time in which restarts are counted.
pub(crate) const RESTART_WINDOW: Duration = Duration::from_secs(60);
/// Shortest silence that can be accepted. Lower: a busy host is taken for a dead guest.
const SILENCE_MIN: Duration = Duration::from_millis(1);
/// Longest silence that can be accepted. Higher: it does not fit into the window's head.
const SILENCE_MAX: Duration = Duration::from_secs(3_600);
/// Port of a guest without a file: the one that `taut ping` asks.
const PORT: u16 = 4095;

/// When a guest that has ended is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// Never.
    #[default]
    Never,
    /// When it crashed, fell silent, or its virtual machine was killed; not when it switched itself off.
    OnFailure,
    /// Always.
    Always,
}

/// Where the process that passes a guest's messages on runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RelayPlace {
    /// Beside other programs of Linux: they can delay messages, and messages cannot delay the guest.
    #[default]
    Linux,
    /// In the guest's partition, under SCHED_FIFO and above the guest: no program of Linux can delay messages, and each
    /// message takes time from the guest if the partition has one CPU.
    Partition,
}

/// Kind of messages that a port carries in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carries {
    /// Every message, the most urgent first.
    Queuing,
    /// The newest value.
    Sampling,
    /// The port does not have this direction.
    Nothing,
}

/// A port of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PortConfig {
    /// Its number on the guest's node, and in the guest.
    pub number: u16,
    /// To the guest.
    #[serde(default = "queuing")]
    pub receives: Carries,
    /// From the guest.
    #[serde(default = "queuing")]
    pub sends: Carries,
    /// Messages of each priority that fit in, in each direction: a power of two.
    #[serde(default = "depth")]
    pub depth: u32,
    /// Bytes of the largest message.
    #[serde(default = "message_bytes_max")]
    pub message_bytes_max: u32,
    /// Ports to which the guest may send from this one; none: all ports of all peers that it knows.
    #[serde(default)]
    pub to: Vec<PeerPort>,
    /// Highest priority with which it may send.
    #[serde(default = "priority_max")]
    pub priority_max: u8,
}

fn priority_max() -> u8 {
    Priority::HIGHEST.get()
}

fn queuing() -> Carries {
    Carries::Queuing
}

fn depth() -> u32 {
    DEPTH
}

fn message_bytes_max() -> u32 {
    MESSAGE_BYTES_MAX
}

impl PortConfig {
    /// A port that receives and sends messages.
    #[must_use]
    pub fn queuing(number: u16) -> PortConfig {
        PortConfig {
            number,
            receives: Carries::Queuing,
            sends: Carries::Queuing,
            depth: DEPTH,
            message_bytes_max: MESSAGE_BYTES_MAX,
            to: Vec::new(),
            priority_max: priority_max(),
        }
    }

    /// Whether the guest may send from this port to a port of a peer.
    pub(crate) fn may_send_to(&self, peer: &str, port: PortNumber) -> bool {
        let is_meant = |one: &PeerPort| one.peer.as_str() == peer && one.port == port;
        self.to.is_empty() || self.to.iter().any(is_meant)
    }
}

/// A guest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GuestConfig {
    /// Name of the guest, and of its node.
    pub name: NodeName,
    /// File of its image.
    pub image: PathBuf,
    /// Its memory.
    pub ram_bytes: u64,
    /// The bus on which its ports are.
    pub bus: Option<String>,
    /// File of the node on which its ports are, in place of a bus.
    pub node: Option<PathBuf>,
    /// Partition in which it runs.
    pub partition: Option<String>,
    /// Silence after which it counts as dead; `None`: any.
    pub silence_max: Option<Duration>,
    /// When it is started again.
    pub restart: Restart,
    /// Most starts after the first within a minute.
    pub restarts_max: u32,
    /// Where the process that passes its messages on runs.
    pub relay: RelayPlace,
    /// Time for which that process spins before it sleeps.
    pub spin: Duration,
    /// Names of peers that the guest may send to before they have sent.
    pub peers: Vec<NodeName>,
    /// Its ports.
    pub ports: Vec<PortConfig>,
}

/// A file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GuestFile {
    name: Option<String>,
    ram: Option<String>,
    bus: Option<String>,
    node: Option<PathBuf>,
    partition: Option<String>,
    silence_max: Option<String>,
    #[serde(default)]
    restart: Restart,
    restarts_max: Option<u32>,
    #[serde(default)]
    relay: RelayPlace,
    spin: Option<String>,
    #[serde(default)]
    peers: Vec<String>,
    #[serde(default, rename = "port")]
    ports: Vec<PortConfig>,
}

impl GuestConfig {
    /// A guest with one port, which answers `taut ping` if the image does.
    #[must_use]
    pub fn new(name: NodeName, image: impl Into<PathBuf>) -> GuestConfig {
        GuestConfig {
            name,
            image: image.into(),
            ram_bytes: RAM_BYTES,
            bus: None,
            node: None,
            partition: None,
            silence_max: None,
            restart: Restart::Never,
            restarts_max: RESTARTS_MAX,
            relay: RelayPlace::Linux,
            spin: Duration::ZERO,
            peers: Vec::new(),
            ports: vec![PortConfig::queuing(PORT)],
        }
    }

    /// A guest as its file says. What the file leaves out may be added before [`GuestConfig::check`], which
    /// [`run`](crate::run::run) calls.
    ///
    /// # Errors
    /// [`GuestError::File`].
    pub fn from_file(path: &Path, name: &str, image: &Path) -> Result<GuestConfig, GuestError> {
        let shown = path.display().to_string();
        let unreadable = |reason: String| GuestError::File {
            path: shown.clone(),
            reason,
        };
        let text = tautline_state::read_text(path, FILE_BYTES_MAX, Others::MayWrite);
        let text = text.map_err(|error| unreadable(error.to_string()))?;
        let mut config = GuestConfig::read(&text, &shown, name, image)?;
        if let (Some(node), Some(directory)) = (&mut config.node, path.parent()) {
            *node = directory.join(&*node);
        }
        Ok(config)
    }

    /// Parses and checks the text of a file.
    ///
    /// # Errors
    /// [`GuestError::File`], [`GuestError::Setting`].
    pub fn parse(
        text: &str,
        file: &str,
        name: &str,
        image: impl Into<PathBuf>,
    ) -> Result<GuestConfig, GuestError> {
        let config = GuestConfig::read(text, file, name, image)?;
        config.check()?;
        Ok(config)
    }

    fn read(
        text: &str,
        file: &str,
        name: &str,
        image: impl Into<PathBuf>,
    ) -> Result<GuestConfig, GuestError> {
        let read: GuestFile = toml::from_str(text).map_err(|error| {
            let (line, column) =
                parse_error::position(text, error.span().unwrap_or_default().start);
            GuestError::File {
                path: format!("{file}:{line}:{column}"),
                reason: parse_error::in_words(error.message()),
            }
        })?;
        let wrong = |reason: String| GuestError::File {
            path: file.to_owned(),
            reason,
        };
        let name = node_name(read.name.as_deref().unwrap_or(name)).map_err(wrong)?;
        let mut config = GuestConfig::new(name, image);
        config.bus = read.bus;
        config.node = read.node;
        config.partition = read.partition;
        config.restart = read.restart;
        config.relay = read.relay;
        if let Some(ram) = read.ram {
            config.ram_bytes = units::bytes(&ram, 1).ok_or_else(|| {
                wrong(format!(
                    "invalid size ram = \"{ram}\"; expected e.g. \"16M\""
                ))
            })?;
        }
        if let Some(text) = read.silence_max {
            config.silence_max = Some(duration(&text, "silence_max").map_err(wrong)?);
        }
        if let Some(text) = read.spin {
            config.spin = duration(&text, "spin").map_err(wrong)?;
        }
        config.restarts_max = read.restarts_max.unwrap_or(RESTARTS_MAX);
        for peer in read.peers {
            config.peers.push(node_name(&peer).map_err(wrong)?);
        }
        if !read.ports.is_empty() {
            config.ports = read.ports;
        }
        Ok(config)
    }

    /// Whether the settings are within their limits.
    ///
    /// # Errors
    /// [`GuestError::Setting`].
    pub fn check(&self) -> Result<(), GuestError> {
        let wrong = |text: String| Err(GuestError::Setting(text));
        if !(RAM_BYTES_MIN..=RAM_BYTES_MAX).contains(&self.ram_bytes)
            || !self.ram_bytes.is_multiple_of(1 << 20)
        {
            return wrong(format!(
                "ram is {} bytes; expected whole MiB, {} MiB to {} MiB",
                self.ram_bytes,
                RAM_BYTES_MIN >> 20,
                RAM_BYTES_MAX >> 20
            ));
        }
        if self.bus.is_some() == self.node.is_some() {
            return wrong(
                "expected either `bus` or `node`: where the guest's ports are".to_owned(),
            );
        }
        if self.relay == RelayPlace::Partition && self.partition.is_none() {
            return wrong("relay = \"partition\" needs a partition".to_owned());
        }
        if let Some(silence) = self.silence_max
            && !(SILENCE_MIN..=SILENCE_MAX).contains(&silence)
        {
            return wrong(format!(
                "silence_max is {silence:?}; expected {SILENCE_MIN:?} to {SILENCE_MAX:?}"
            ));
        }
        // One place is for peers that the file does not name.
        if self.peers.len() >= PEERS_MAX {
            return wrong(format!(
                "{} peers; at most {} can be named",
                self.peers.len(),
                PEERS_MAX - 1
            ));
        }
        for port in &self.ports {
            let number = port.number;
            if PortNumber::new(number).is_none() {
                return wrong(format!("port {number}: ports have numbers from 1 to 4095"));
            }
            if port.receives == Carries::Nothing && port.sends == Carries::Nothing {
                return wrong(format!("port {number} neither receives nor sends"));
            }
            if !(1..=PORT_BYTES_MAX).contains(&port.message_bytes_max) {
                return wrong(format!(
                    "port {number}: message_bytes_max is {}; expected 1 to {PORT_BYTES_MAX}",
                    port.message_bytes_max
                ));
            }
            if port.priority_max > Priority::HIGHEST.get() {
                return wrong(format!(
                    "port {number}: priority_max is {}; expected 0 to 7",
                    port.priority_max
                ));
            }
            if !port.depth.is_power_of_two() || !(2..=DEPTH_MAX).contains(&port.depth) {
                return wrong(format!(
                    "port {number}: depth is {}; expected a power of two from 2 to {DEPTH_MAX}",
                    port.depth
                ));
            }
        }
        self.plan().map(|_| ())
    }

    /// The connections of its window, for each port the one to the guest first.
    pub(crate) fn plan(&self) -> Result<Plan, GuestError> {
        let mut connections = Vec::new();
        for port in &self.ports {
            let directions = [
                (Direction::ToGuest, port.receives),
                (Direction::ToLinux, port.sends),
            ];
            for (direction, carries) in directions {
                let kind = match carries {
                    Carries::Nothing => continue,
                    Carries::Queuing => Kind::Queuing { depth: port.depth },
                    Carries::Sampling => Kind::Sampling,
                };
                connections.push(Connection {
                    port: port.number,
                    direction,
                    shape: Shape {
                        kind,
                        message_bytes_max: port
                            .message_bytes_max
                            .saturating_add(ADDRESS_BYTES as u32),
                    },
                });
            }
        }
        Plan::new(&connections)
            .map_err(|error| GuestError::Setting(format!("the guest's ports: {error}")))
    }
}

fn node_name(text: &str) -> Result<NodeName, String> {
    text.parse()
        .map_err(|error: tautline::address::BadNodeName| error.to_string())
}

/// A time such as `500ms`.
fn duration(text: &str, key: &str) -> Result<Duration, String> {
    let wrong = || format!("invalid time {key} = \"{text}\"; expected e.g. \"500ms\" or \"50us\"");
    units::time(text).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        GuestConfig::parse(text, "arm.toml", "arm", "arm.elf")
            .expect_err("it is refused")
            .to_string()
    }

    #[test]
    fn a_file_says_all_that_can_be_said() {
        let text = r#"
            name = "leg"
            ram = "8M"
            bus = "cell"
            silence_max = "250ms"
            restart = "on-failure"
            restarts_max = 3
            spin = "50us"
            peers = ["brain"]
            [[port]]
            number = 7
            receives = "sampling"
            sends = "nothing"
            message_bytes_max = 64
            [[port]]
            number = 8
        "#;
        let config = GuestConfig::parse(text, "leg.toml", "other", "leg.elf").expect("valid");
        assert_eq!(config.name.as_str(), "leg");
        assert_eq!(config.ram_bytes, 8 << 20);
        assert_eq!(config.silence_max, Some(Duration::from_millis(250)));
        assert_eq!(config.spin, Duration::from_micros(50));
        assert_eq!(config.relay, RelayPlace::Linux);
        assert_eq!(
            (config.restart, config.restarts_max),
            (Restart::OnFailure, 3)
        );
        let plan = config.plan().expect("valid");
        let connections: Vec<_> = plan
            .connections()
            .iter()
            .map(|one| (one.port, one.direction, one.shape.message_bytes_max))
            .collect();
        assert_eq!(
            connections,
            [
                (7, Direction::ToGuest, 72),
                (8, Direction::ToGuest, 1_408),
                (8, Direction::ToLinux, 1_408)
            ]
        );
    }

    #[test]
    fn mistakes_are_named() {
        let port = "bus = \"cell\"\n[[port]]\nnumber = 7\n";
        assert!(refusal("").contains("either `bus` or `node`"));
        assert!(refusal("bus = \"a\"\nnode = \"b\"\n").contains("either `bus` or `node`"));
        assert!(refusal("colour = 1\n").contains("there is no key `colour`"));
        assert!(refusal("bus = \"a\"\nram = \"much\"\n").contains("invalid size"));
        assert!(refusal("bus = \"a\"\nram = \"1M\"\n").contains("2 MiB to 2048 MiB"));
        assert!(refusal("bus = \"a\"\nsilence_max = \"5\"\n").contains("expected e.g. \"500ms\""));
        assert!(refusal("bus = \"a\"\nsilence_max = \"2h\"\n").contains("3600s"));
        assert!(refusal("bus = \"a\"\npeers = [\"a/b\"]\n").contains("`a/b` is not a node's name"));
        assert!(refusal("bus = \"a\"\nrelay = \"partition\"\n").contains("needs a partition"));
        assert!(refusal("bus = \"a\"\nrelay = \"moon\"\n").contains("`linux` or `partition`"));
        assert!(refusal(&format!("{port}depth = 3\n")).contains("power of two"));
        assert!(refusal(&format!("{port}message_bytes_max = 0\n")).contains("expected 1 to 65528"));
        assert!(refusal(&format!("{port}message_bytes_max = 4294967295\n")).contains("message"));
        assert!(
            refusal(&format!(
                "{port}receives = \"nothing\"\nsends = \"nothing\"\n"
            ))
            .contains("neither receives nor sends")
        );
        assert!(refusal(&format!("{port}[[port]]\nnumber = 7\n")).contains("port is 7"));
        assert!(refusal("bus = \"cell\"\n[[port]]\nnumber = 4096\n").contains("1 to 4095"));
        assert!(refusal(&format!("{port}priority_max = 8\n")).contains("expected 0 to 7"));
        assert!(
            refusal(&format!("{port}to = [\"motor\"]\n")).contains("expected e.g. \"motor:8\"")
        );
    }
}
