//! The configuration file. docs/reference/ros.md lists every key.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tautline::config::{PortConfig, PortOptions};
use tautline::{NodeConfig, Priority};
use tautline_bridge::config::{self, ConfigError, MAPPINGS_MAX, Ports, Thinning, default};
use tautline_bridge::gate::Rules;
use tautline_bridge::port::PeerPort;
use tautline_bridge::standby::{self, Standby};
use tautline_shm::police::Bucket;

use crate::cdr::{self, PAYLOAD_BYTES_MAX};
use crate::definition::{Definitions, dds_name};
use crate::mapping::{self, Declared, Direction, Part};

/// Bytes of the longest name of a node and of a topic: those that ROS announces (string<=256) with their namespace.
const NAME_BYTES_MAX: usize = 127;
/// Highest domain: with a higher one, the ports of DDS are above 65535.
const DOMAIN_MAX: u16 = 232;
/// Most messages that a topic keeps for a participant that is slow. Lower: bursts are lost. Higher: memory.
const DEPTH_MAX: u16 = 1_000;

/// Ports as topics.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) name: String,
    /// `/` or `/a/b`.
    pub(crate) namespace: String,
    pub(crate) domain: u16,
    pub(crate) networks: Vec<IpAddr>,
    pub(crate) node: NodeConfig,
    pub(crate) standby: Option<Standby>,
    pub(crate) publications: Vec<Publication>,
    pub(crate) subscriptions: Vec<Subscription>,
}

/// A topic: its name and its message.
#[derive(Clone, Debug)]
pub(crate) struct Topic {
    /// Name in ROS: `/joint_states`.
    pub(crate) name: String,
    /// `sensor_msgs/msg/JointState`.
    pub(crate) message: String,
    /// Mapping between the fields of the message and those of the port.
    pub(crate) part: Part,
    pub(crate) reliable: bool,
    /// Messages that are kept for a slow participant.
    pub(crate) depth: u16,
}

impl Topic {
    /// Name on DDS.
    pub(crate) fn dds_topic(&self) -> String {
        format!("rt{}", self.name)
    }

    /// Type on DDS.
    pub(crate) fn dds_type(&self) -> String {
        dds_name(&self.message)
    }
}

/// A port whose values or messages are published.
#[derive(Debug)]
pub(crate) struct Publication {
    pub(crate) port: PortConfig,
    pub(crate) topic: Topic,
    pub(crate) rules: Rules,
    /// An older value is not published.
    pub(crate) validity: Option<Duration>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) lifespan: Option<Duration>,
    /// Whether participants that come later get the last messages.
    pub(crate) durable: bool,
}

/// A topic whose messages are delivered to ports.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) topic: Topic,
    pub(crate) port: PortConfig,
    pub(crate) to: Vec<PeerPort>,
    pub(crate) validity: Duration,
    pub(crate) bucket: Bucket,
    pub(crate) rate: u32,
    pub(crate) priority: Priority,
    pub(crate) must_be_finite: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    name: String,
    node: PathBuf,
    #[serde(default = "root")]
    namespace: String,
    #[serde(default)]
    domain: u16,
    #[serde(default)]
    networks: Vec<IpAddr>,
    standby: Option<standby::Section>,
    #[serde(default)]
    message: Vec<MessageEntry>,
    #[serde(default)]
    publish: Vec<PublishEntry>,
    #[serde(default)]
    subscribe: Vec<SubscribeEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageEntry {
    name: String,
    definition: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishEntry {
    port: String,
    topic: Option<String>,
    message: String,
    #[serde(default)]
    fields: BTreeMap<String, String>,
    #[serde(default)]
    constants: BTreeMap<String, toml::Value>,
    reliable: Option<bool>,
    depth: Option<u16>,
    #[serde(default)]
    durable: bool,
    #[serde(default)]
    on_change: bool,
    repeat_ms: Option<u64>,
    #[serde(default = "default::every")]
    every: u32,
    #[serde(default)]
    period_min_ms: u64,
    validity_ms: Option<u32>,
    deadline_ms: Option<u32>,
    lifespan_ms: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubscribeEntry {
    topic: String,
    message: String,
    port: String,
    #[serde(default)]
    to: Vec<String>,
    #[serde(default)]
    fields: BTreeMap<String, String>,
    #[serde(default)]
    constants: BTreeMap<String, toml::Value>,
    #[serde(default)]
    optional: Vec<String>,
    reliable: Option<bool>,
    depth: Option<u16>,
    #[serde(default = "default::validity_ms")]
    validity_ms: u32,
    #[serde(default = "default::rate")]
    rate: u32,
    #[serde(default = "default::burst")]
    burst: u32,
    #[serde(default)]
    priority: u8,
    #[serde(default = "default::yes")]
    finite: bool,
}

fn root() -> String {
    "/".to_owned()
}

impl Config {
    /// Reads a file and the node's file that it names; its path is relative to the first one's directory.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub(crate) fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let document: Document = config::read(path)?;
        let node = NodeConfig::from_file(config::beside(path, &document.node))?;
        check(document, node).map_err(|message| ConfigError::Entry {
            path: path.to_owned(),
            message,
        })
    }

    /// Name of the node as ROS shows it.
    pub(crate) fn full_name(&self) -> String {
        below(&self.namespace, &self.name)
    }
}

fn below(namespace: &str, name: &str) -> String {
    match namespace {
        "/" => format!("/{name}"),
        _ => format!("{namespace}/{name}"),
    }
}

fn check(document: Document, node: NodeConfig) -> Result<Config, String> {
    let namespace = document.namespace;
    if !is_ros_name(&document.name) || document.name.contains('/') {
        return Err(format!(
            "`{}` is not a name of a node: letters, digits and `_`, and no digit first",
            document.name
        ));
    }
    if namespace != "/" && !(namespace.strip_prefix('/').is_some_and(is_ros_name)) {
        return Err(format!(
            "`{namespace}` is not a namespace such as \"/\" or \"/cell/arm\""
        ));
    }
    if document.domain > DOMAIN_MAX {
        return Err(format!(
            "domain is 0 to {DOMAIN_MAX}, not {}",
            document.domain
        ));
    }
    let mappings = document.publish.len() + document.subscribe.len();
    if !(1..=MAPPINGS_MAX).contains(&mappings) {
        return Err(format!(
            "{mappings} entries, expected 1 to {MAPPINGS_MAX} of [[publish]] and [[subscribe]]"
        ));
    }
    let mut definitions = Definitions::known();
    for message in &document.message {
        definitions.declare(&message.name, &message.definition)?;
    }
    let mut entries = Entries {
        ports: Ports::new(&node),
        namespace: &namespace,
        definitions: &definitions,
    };
    let standby = document.standby;
    let standby = standby.map(|section| section.check(&mut entries.ports));
    let standby = standby.transpose()?;
    let publications = document.publish.into_iter();
    let publications: Vec<Publication> = publications
        .map(|entry| entries.publication(entry))
        .collect::<Result<_, _>>()?;
    let subscriptions = document.subscribe.into_iter();
    let subscriptions: Vec<Subscription> = subscriptions
        .map(|entry| entries.subscription(entry))
        .collect::<Result<_, _>>()?;
    config::check_names(
        "topic",
        publications.iter().map(|one| one.topic.name.as_str()),
        subscriptions.iter().map(|one| one.topic.name.as_str()),
    )?;
    Ok(Config {
        name: document.name,
        domain: document.domain,
        networks: document.networks,
        standby,
        publications,
        subscriptions,
        namespace,
        node,
    })
}

/// A name of ROS, relative: parts with `/` between them.
fn is_ros_name(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with(|first: char| first.is_ascii_digit())
            && part
                .chars()
                .all(|one| one.is_ascii_alphanumeric() || one == '_')
    };
    text.len() <= NAME_BYTES_MAX && text.split('/').all(is_part)
}

/// Context of the entries.
struct Entries<'e> {
    ports: Ports<'e>,
    namespace: &'e str,
    definitions: &'e Definitions,
}

/// Mapping of an entry, and how its topic is to be served.
struct Wanted {
    topic: String,
    message: String,
    declared: Declared,
    reliable: Option<bool>,
    depth: Option<u16>,
}

impl Entries<'_> {
    fn topic(
        &self,
        port: &PortConfig,
        wanted: Wanted,
        direction: Direction,
    ) -> Result<Topic, String> {
        let name = match wanted.topic.strip_prefix('/') {
            Some(absolute) if is_ros_name(absolute) => wanted.topic.clone(),
            None if is_ros_name(&wanted.topic) => below(self.namespace, &wanted.topic),
            _ => {
                return Err(
                    "not a name of a topic: letters, digits and `_`, in parts with `/` between them"
                        .to_owned(),
                );
            }
        };
        let declaration = match direction {
            Direction::Publish => port.types.receives.as_ref(),
            Direction::Subscribe => port.types.sends.as_ref(),
        };
        let declaration = declaration.ok_or_else(|| {
            format!(
                "port `{}` has no type; declare one with [[type]], and give the port `type`",
                port.name
            )
        })?;
        let (message, shape) = self.definitions.shape(&wanted.message)?;
        let part = mapping::map(&shape, declaration, wanted.declared, direction)?;
        let is_queue = matches!(port.kind, PortOptions::Queuing(_));
        let depth = wanted.depth.unwrap_or(if is_queue { 64 } else { 1 });
        if !(1..=DEPTH_MAX).contains(&depth) {
            return Err(format!("depth is 1 to {DEPTH_MAX}, not {depth}"));
        }
        Ok(Topic {
            name,
            message,
            part,
            reliable: wanted.reliable.unwrap_or(is_queue),
            depth,
        })
    }

    fn publication(&mut self, entry: PublishEntry) -> Result<Publication, String> {
        let port = self.ports.take(&entry.port)?;
        let wrong = |what: String| format!("[[publish]] of port `{}`: {what}", port.name);
        if entry.durable && entry.reliable == Some(false) {
            return Err(wrong("`durable` needs `reliable`".to_owned()));
        }
        let declared = Declared {
            fields: entry.fields,
            constants: entry.constants,
            optional: Vec::new(),
        };
        let wanted = Wanted {
            topic: entry.topic.unwrap_or_else(|| entry.port.clone()),
            message: entry.message,
            declared,
            reliable: entry.reliable.or(entry.durable.then_some(true)),
            depth: entry.depth,
        };
        let topic = self
            .topic(&port, wanted, Direction::Publish)
            .map_err(wrong)?;
        let bytes = port.types.receives.as_ref().map_or(0, |one| one.bytes());
        // A value of zeros has a message of the usual size; texts are at most as long as their fields.
        let written = cdr::write(&topic.part, &vec![0; bytes], 0);
        if written.map_or(usize::MAX, |message| message.len() + bytes) > PAYLOAD_BYTES_MAX {
            return Err(wrong(format!(
                "a message would have more than {PAYLOAD_BYTES_MAX} bytes"
            )));
        }
        let period = |ms: Option<u32>| ms.map(|ms| Duration::from_millis(ms.into()));
        let thinning = Thinning {
            on_change: entry.on_change,
            repeat_ms: entry.repeat_ms,
            every: entry.every,
            period_min_ms: entry.period_min_ms,
        };
        let rules = thinning.rules(&port).map_err(wrong)?;
        let refresh = match &port.kind {
            PortOptions::Sampling(options) => Some(options.refresh_period),
            PortOptions::Queuing(_) => None,
        };
        let validity = period(entry.validity_ms).or(refresh);
        // A thinned topic cannot promise what its port promises.
        let promised = validity.filter(|_| !thinning.leaves_out());
        let or_none = |period: Duration| (!period.is_zero()).then_some(period);
        Ok(Publication {
            rules,
            deadline: period(entry.deadline_ms).or(promised).and_then(or_none),
            lifespan: period(entry.lifespan_ms).or(validity).and_then(or_none),
            validity: validity.and_then(or_none),
            durable: entry.durable,
            topic,
            port,
        })
    }

    fn subscription(&mut self, entry: SubscribeEntry) -> Result<Subscription, String> {
        let port = self.ports.take(&entry.port)?;
        let wrong = |what: String| format!("[[subscribe]] to `{}`: {what}", entry.topic);
        let to = self.ports.receivers(&port, &entry.to).map_err(wrong)?;
        let wanted = Wanted {
            topic: entry.topic.clone(),
            message: entry.message,
            declared: Declared {
                fields: entry.fields,
                constants: entry.constants,
                optional: entry.optional,
            },
            reliable: entry.reliable,
            depth: entry.depth,
        };
        let topic = self
            .topic(&port, wanted, Direction::Subscribe)
            .map_err(wrong)?;
        let priority = config::priority("priority", entry.priority).map_err(wrong)?;
        let bucket = config::bucket(entry.rate, entry.burst).map_err(wrong)?;
        let validity = config::validity(entry.validity_ms).map_err(wrong)?;
        Ok(Subscription {
            topic,
            port,
            to,
            validity,
            bucket,
            rate: entry.rate,
            priority,
            must_be_finite: entry.finite,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "link = \"vbus\"\nbus = \"cell\"\nnode = \"ros\"\n[[neighbour]]\nname = \"motor\"\n\
        [[type]]\nname = \"State\"\nfields = [\"time_ns: u64\", \"position: f64[2]\", \"text: u8[8]\"]\n\
        [[type]]\nname = \"Command\"\nfields = [\"speed: f64[6]\"]\n\
        [[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\ntype = \"State\"\nrefresh_period_us = 50000\n\
        [[port]]\nname = \"events\"\nnumber = 2\nkind = \"queuing\"\ntype = \"State\"\n\
        [[port]]\nname = \"set\"\nnumber = 3\nkind = \"sampling\"\ntype = \"Command\"\n\
        [[port]]\nname = \"raw\"\nnumber = 4\nkind = \"queuing\"\n";
    const JOINTS: &str = "message = \"sensor_msgs/msg/JointState\"\n";
    const TWIST: &str = "[[subscribe]]\ntopic = \"/cmd_vel\"\nmessage = \"geometry_msgs/msg/Twist\"\nport = \"set\"\n";
    const SPEED: &str = "fields = { linear = \"speed[0:3]\", angular = \"speed[3:6]\" }\n";

    fn read(entries: &str) -> Result<Config, String> {
        let head = "name = \"arm\"\nnode = \"node.toml\"\n";
        let document =
            toml::from_str(&format!("{head}{entries}")).map_err(|error| error.to_string())?;
        check(document, NODE.parse().expect("a node"))
    }

    #[test]
    fn entries_have_the_defaults_of_their_ports() {
        let config = read(&format!(
            "namespace = \"/cell\"\n[[publish]]\nport = \"state\"\ntopic = \"joint_states\"\n{JOINTS}\
             [[publish]]\nport = \"events\"\n{JOINTS}{TWIST}to = [\"motor.7\"]\n{SPEED}"
        ))
        .unwrap();
        let [state, events] = &config.publications[..] else {
            panic!("two publications");
        };
        assert_eq!(config.full_name(), "/cell/arm");
        assert_eq!(state.topic.dds_topic(), "rt/cell/joint_states");
        assert_eq!(
            state.topic.dds_type(),
            "sensor_msgs::msg::dds_::JointState_"
        );
        let period = Some(Duration::from_millis(50));
        assert_eq!(
            (state.validity, state.deadline, state.lifespan),
            (period, period, period)
        );
        assert_eq!((state.topic.reliable, state.topic.depth), (false, 1));
        assert_eq!((events.topic.reliable, events.topic.depth), (true, 64));
        assert_eq!((events.deadline, events.lifespan), (None, None));
        let set = &config.subscriptions[0];
        assert_eq!(
            (set.topic.dds_topic().as_str(), set.priority),
            ("rt/cmd_vel", Priority::LOWEST)
        );
        assert!(set.must_be_finite && !set.topic.reliable);
    }

    #[test]
    fn mistakes_say_what_to_do() {
        let publish = format!("[[publish]]\nport = \"state\"\n{JOINTS}");
        let raw = publish.replace("state", "raw");
        for (entries, expected) in [
            ("", "0 entries"),
            ("domain = 233\n", "domain is 0 to"),
            ("namespace = \"cell\"\n", "not a namespace"),
            (&format!("{publish}{publish}"), "used twice"),
            (&raw, "has no type"),
            (&publish.replace("state", "speed"), "no [[port]] with name"),
            (&publish.replace("Joint", "Point"), "is not known"),
            (
                &format!("{publish}topic = \"a b\"\n"),
                "not a name of a topic",
            ),
            (
                &format!("{publish}topic = \"/1\"\n"),
                "not a name of a topic",
            ),
            (&format!("{publish}depth = 0\n"), "depth is 1 to"),
            (&format!("{publish}every = 0\n"), "1 or more"),
            (&format!("{publish}repeat_ms = 5\n"), "needs `on_change`"),
            (
                &format!("{publish}durable = true\nreliable = false\n"),
                "needs `reliable`",
            ),
            (
                &format!("{}every = 3\n", publish.replace("state", "events")),
                "are for sampling ports",
            ),
            (&format!("{TWIST}{SPEED}"), "nobody would receive it"),
            (
                &format!("{TWIST}to = [\"motor\"]\n{SPEED}"),
                "such as \"motor.7\"",
            ),
            (
                &format!("{TWIST}to = [\"arm.7\"]\n{SPEED}"),
                "no [[neighbour]]",
            ),
            (
                &format!("{TWIST}to = [\"motor.7\"]\npriority = 8\n{SPEED}"),
                "0 to 7",
            ),
            (
                &format!("{TWIST}to = [\"motor.7\"]\nrate = 0\n{SPEED}"),
                "expected a rate",
            ),
            (
                &format!("{TWIST}to = [\"motor.7\"]\nvalidity_ms = 0\n{SPEED}"),
                "1 or more",
            ),
            (
                &format!("{publish}topic = \"/cmd_vel\"\n{TWIST}to = [\"motor.7\"]\n{SPEED}"),
                "would come back",
            ),
            (
                &format!("[standby]\nport = \"events\"\npeers = [\"motor.1\"]\n{publish}"),
                "must be a sampling port",
            ),
            (
                &format!("[standby]\nport = \"raw\"\npeers = []\n{publish}"),
                "0 peers, expected 1 to 7",
            ),
            (
                &format!(
                    "{publish}topic = \"a\"\n{}topic = \"a\"\n",
                    publish.replace("state", "events")
                ),
                "have the topic",
            ),
        ] {
            let error = read(entries).map(|_| entries).unwrap_err();
            assert!(error.contains(expected), "{entries}: {error}");
        }
    }
}
