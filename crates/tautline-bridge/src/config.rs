//! The parts of a program's file that do not depend on its engine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tautline::config::{PortConfig, PortOptions};
use tautline::{NodeConfig, PortNumber, Priority};
use tautline_shm::police::Bucket;
use tautline_state::{Others, parse_error};

use crate::gate::Rules;
use crate::port::PeerPort;

/// Publications and subscriptions of one program. Lower: a large cell needs a second program. Higher: each has a
/// thread, and the machine's other work waits behind them.
pub const MAPPINGS_MAX: usize = 64;

/// Longest file. Lower: one with all mappings and pasted types is refused. Higher: a large file of another kind takes
/// memory before it is refused.
const FILE_BYTES_MAX: usize = 4 << 20;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not as it should be.
    #[error("{}, line {line}, column {column}: {message}", path.display())]
    Mistake {
        /// Its path.
        path: PathBuf,
        /// Where, from 1.
        line: usize,
        /// Where in the line, from 1.
        column: usize,
        /// The mistake, in words.
        message: String,
    },
    /// An entry does not fit the others or the node.
    #[error("{}: {message}", path.display())]
    Entry {
        /// The file's path.
        path: PathBuf,
        /// The mistake, in words.
        message: String,
    },
    /// The node's own file.
    #[error("{0}")]
    Node(#[from] tautline::OpenError),
    /// Another file that the first one names.
    #[error("{what} {}: {message}", path.display())]
    Beside {
        /// Its sort: `Zenoh's configuration`.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// The mistake, in words.
        message: String,
    },
}

/// Reads a file of TOML.
///
/// # Errors
/// [`ConfigError::Unreadable`], [`ConfigError::Mistake`].
pub fn read<D: DeserializeOwned>(path: &Path) -> Result<D, ConfigError> {
    let text = tautline_state::read_text(path, FILE_BYTES_MAX, Others::MayWrite);
    let text = text.map_err(|source| ConfigError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    toml::from_str(&text).map_err(|error| {
        let (line, column) = parse_error::position(&text, error.span().unwrap_or_default().start);
        ConfigError::Mistake {
            path: path.to_owned(),
            line,
            column,
            message: parse_error::in_words(error.message()),
        }
    })
}

/// Path of a file that another one names: relative to that one's directory.
#[must_use]
pub fn beside(path: &Path, other: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).join(other)
}

/// Ports of the node that a program takes; each may be used once.
#[derive(Debug)]
pub struct Ports<'n> {
    node: &'n NodeConfig,
    taken: Vec<String>,
}

impl<'n> Ports<'n> {
    /// None is taken.
    #[must_use]
    pub fn new(node: &'n NodeConfig) -> Self {
        Self {
            node,
            taken: Vec::new(),
        }
    }

    /// Takes a port by its name.
    ///
    /// # Errors
    /// It has been taken, or the node has none of this name; in words.
    pub fn take(&mut self, name: &str) -> Result<PortConfig, String> {
        if self.taken.iter().any(|taken| taken == name) {
            return Err(format!(
                "port `{name}` is used twice; give each entry its own"
            ));
        }
        let port = self.node.ports.iter().find(|port| port.name == name);
        let port =
            port.ok_or_else(|| format!("the node has no [[port]] with name = \"{name}\""))?;
        if port.message_number().is_none() {
            let kind = port.kind_name();
            return Err(format!(
                "port `{name}` is of kind \"{kind}\"; expected \"queuing\" or \"sampling\""
            ));
        }
        self.taken.push(name.to_owned());
        Ok(port.clone())
    }

    /// Reads `neighbour.port`.
    ///
    /// # Errors
    /// It is nothing of the kind, or the node has no such neighbour; in words.
    pub fn peer(&self, text: &str) -> Result<PeerPort, String> {
        let parts = text.rsplit_once('.').and_then(|(neighbour, port)| {
            let port = PortNumber::new(port.parse().ok()?)?;
            (!neighbour.is_empty()).then(|| (neighbour.to_owned(), port))
        });
        let (neighbour, port) = parts.ok_or_else(|| {
            format!("`{text}` is not a neighbour, a dot and a port's number, such as \"motor.7\"")
        })?;
        let mut known = self.node.neighbours.iter();
        if !known.any(|(_, known)| known.name == neighbour) {
            return Err(format!(
                "the node has no [[neighbour]] with name = \"{neighbour}\""
            ));
        }
        Ok(PeerPort { neighbour, port })
    }

    /// Reads several; those of `port`, which needs some unless others follow it.
    ///
    /// # Errors
    /// Those of [`Ports::peer`], or there would be no receiver; in words.
    pub fn receivers(&self, port: &PortConfig, to: &[String]) -> Result<Vec<PeerPort>, String> {
        if to.is_empty() && !port.readers {
            return Err(format!(
                "nobody would receive it: name ports in `to`, or give port `{}` readers = true",
                port.name
            ));
        }
        to.iter().map(|text| self.peer(text)).collect()
    }
}

/// Keys of a publication that thin the values of a sampling port.
#[derive(Clone, Copy, Debug)]
pub struct Thinning {
    /// `on_change`.
    pub on_change: bool,
    /// `repeat_ms`.
    pub repeat_ms: Option<u64>,
    /// `every`.
    pub every: u32,
    /// `period_min_ms`.
    pub period_min_ms: u64,
}

impl Thinning {
    /// Whether some values are left out.
    #[must_use]
    pub fn leaves_out(&self) -> bool {
        self.on_change || self.every != 1 || self.period_min_ms != 0
    }

    /// The rules of a publication of `port`.
    ///
    /// # Errors
    /// They are for sampling ports, or contradict each other; in words.
    pub fn rules(&self, port: &PortConfig) -> Result<Rules, String> {
        let is_queue = matches!(port.kind, PortOptions::Queuing(_));
        let wrong = |what: &str| Err(what.to_owned());
        if is_queue && (self.leaves_out() || self.repeat_ms.is_some()) {
            return wrong(
                "`on_change`, `repeat_ms`, `every` and `period_min_ms` are for sampling ports; a queuing port keeps \
                 every message",
            );
        }
        if self.every == 0 {
            return wrong("`every` is 1 or more");
        }
        if self.repeat_ms.is_some() && !self.on_change {
            return wrong("`repeat_ms` needs `on_change`");
        }
        Ok(Rules {
            on_change: self.on_change,
            repeat: self.repeat_ms.map(Duration::from_millis),
            every: self.every,
            period_min: Duration::from_millis(self.period_min_ms),
        })
    }
}

/// Refuses names of the other network (`what`: key, topic) that are published twice, and those that would bring back to
/// the cell what it publishes.
///
/// # Errors
/// There is one; in words.
pub fn check_names<'n>(
    what: &str,
    published: impl Iterator<Item = &'n str>,
    subscribed: impl Iterator<Item = &'n str>,
) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in published {
        if !seen.insert(name) {
            return Err(format!("two [[publish]] entries have the {what} `{name}`"));
        }
    }
    match subscribed.into_iter().find(|name| seen.contains(name)) {
        None => Ok(()),
        Some(name) => Err(format!(
            "`{name}` is published and subscribed to: what the cell sends would come back to it"
        )),
    }
}

/// Priority that the key `name` has.
///
/// # Errors
/// There is no such priority; in words.
pub fn priority(name: &str, value: u8) -> Result<Priority, String> {
    Priority::new(value).ok_or_else(|| format!("{name} is 0 to 7, not {value}"))
}

/// Limit of a subscription: `rate` messages a second, `burst` of them at once.
///
/// # Errors
/// Out of range; in words.
pub fn bucket(rate: u32, burst: u32) -> Result<Bucket, String> {
    let interval_ns = 1_000_000_000_u64.checked_div(rate.into());
    Bucket::new(interval_ns.unwrap_or(0), burst).ok_or_else(|| {
        "expected a rate of 1 to 10000000 messages a second and a burst of 1 to 1000000".to_owned()
    })
}

/// Time for which what comes may be used.
///
/// # Errors
/// None at all; in words.
pub fn validity(ms: u32) -> Result<Duration, String> {
    match ms {
        0 => Err("validity_ms is 1 or more".to_owned()),
        ms => Ok(Duration::from_millis(ms.into())),
    }
}

/// Values of keys that are not in the file, for serde's `default`.
pub mod default {
    /// `every`: each value.
    #[must_use]
    pub fn every() -> u32 {
        1
    }

    /// `validity_ms` of a subscription: a second.
    #[must_use]
    pub fn validity_ms() -> u32 {
        1_000
    }

    /// `rate`: a thousand messages a second.
    #[must_use]
    pub fn rate() -> u32 {
        1_000
    }

    /// `burst`: sixteen messages.
    #[must_use]
    pub fn burst() -> u32 {
        16
    }

    /// Keys that are true unless the file says otherwise.
    #[must_use]
    pub fn yes() -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "link = \"vbus\"\nbus = \"cell\"\nnode = \"outside\"\n[[neighbour]]\nname = \"motor\"\n\
        [[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\n\
        [[port]]\nname = \"events\"\nnumber = 2\nkind = \"queuing\"\n";
    const NONE: Thinning = Thinning {
        on_change: false,
        repeat_ms: None,
        every: 1,
        period_min_ms: 0,
    };

    fn node() -> NodeConfig {
        NODE.parse().expect("a node")
    }

    #[test]
    fn a_port_is_taken_once_and_by_its_name() {
        let node = node();
        let mut ports = Ports::new(&node);
        assert_eq!(ports.take("state").unwrap().name, "state");
        assert!(ports.take("state").unwrap_err().contains("used twice"));
        assert!(ports.take("speed").unwrap_err().contains("no [[port]]"));
    }

    #[test]
    fn receivers_are_ports_of_neighbours() {
        let node = node();
        let mut ports = Ports::new(&node);
        let events = ports.take("events").unwrap();
        let read = |text: &str| ports.receivers(&events, &[text.to_owned()]);
        let motor = PeerPort {
            neighbour: "motor".to_owned(),
            port: PortNumber::new(7).unwrap(),
        };
        assert_eq!(read("motor.7").unwrap(), [motor]);
        for (text, expected) in [
            ("motor", "such as \"motor.7\""),
            (".7", "such as \"motor.7\""),
            ("motor.0", "such as \"motor.7\""),
            ("arm.7", "no [[neighbour]]"),
        ] {
            assert!(read(text).unwrap_err().contains(expected), "{text}");
        }
        let nobody = ports.receivers(&events, &[]).unwrap_err();
        assert!(nobody.contains("nobody would receive it"));
    }

    #[test]
    fn rules_are_for_sampling_ports() {
        let node = node();
        let mut ports = Ports::new(&node);
        let (state, events) = (ports.take("state").unwrap(), ports.take("events").unwrap());
        assert_eq!(NONE.rules(&events).unwrap().every, 1);
        let thinned = Thinning { every: 3, ..NONE };
        assert_eq!(thinned.rules(&state).unwrap().every, 3);
        let refused = |thinning: Thinning, port, expected: &str| {
            let error = thinning.rules(port).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        refused(thinned, &events, "are for sampling ports");
        refused(Thinning { every: 0, ..NONE }, &state, "1 or more");
        let repeats = Thinning {
            repeat_ms: Some(5),
            ..NONE
        };
        refused(repeats, &state, "needs `on_change`");
        refused(repeats, &events, "are for sampling ports");
    }

    #[test]
    fn limits_are_in_range() {
        assert!(bucket(1_000, 16).is_ok());
        assert!(bucket(0, 16).unwrap_err().contains("expected a rate"));
        assert!(bucket(1_000, 0).unwrap_err().contains("a burst of 1"));
        assert_eq!(validity(5).unwrap(), Duration::from_millis(5));
        assert!(validity(0).is_err());
    }
}
