//! The configuration file of a gateway. docs/reference/gateway.md lists every key.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tautline::config::{PortConfig, PortOptions};
use tautline::{Neighbour, NodeConfig, Priority};
use tautline_bridge::config::{self, ConfigError, MAPPINGS_MAX, Ports, Thinning, default};
use tautline_bridge::gate::Rules;
use tautline_bridge::port::PeerPort;
use tautline_bridge::standby::{self, Standby};
use tautline_shm::police::Bucket;
use zenoh::key_expr::OwnedKeyExpr;

use crate::fleet;

/// Longest name of a gateway, in bytes.
const NAME_BYTES_MAX: usize = 63;
/// Bytes of the largest message through a gateway. Lower: pictures do not pass. Higher: each mapping takes that much.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Bytes of the largest message that Zenoh puts together from fragments, with room for its attachment and key. Lower:
/// large messages are lost on the way in. Higher: each participant can have the gateway take more memory.
const FRAGMENTED_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

/// A gateway.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) name: String,
    pub(crate) prefix: String,
    pub(crate) node: NodeConfig,
    pub(crate) zenoh: zenoh::Config,
    pub(crate) standby: Option<Standby>,
    pub(crate) fleet: Option<fleet::Settings>,
    pub(crate) publications: Vec<Publication>,
    pub(crate) subscriptions: Vec<Subscription>,
    pub(crate) answers: Vec<Answer>,
    pub(crate) asks: Vec<Ask>,
}

/// A port whose values or messages are published.
#[derive(Debug)]
pub(crate) struct Publication {
    pub(crate) port: PortConfig,
    pub(crate) key: OwnedKeyExpr,
    pub(crate) rules: Rules,
    pub(crate) validity: Option<Duration>,
    pub(crate) express: bool,
    pub(crate) query: bool,
}

/// A key whose values are delivered to ports.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) key: OwnedKeyExpr,
    pub(crate) port: PortConfig,
    pub(crate) to: Vec<PeerPort>,
    pub(crate) validity: Duration,
    pub(crate) bucket: Bucket,
    pub(crate) rate: u32,
    pub(crate) priority_max: Priority,
}

/// A key whose queries a port of the cell answers.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) key: OwnedKeyExpr,
    pub(crate) port: PortConfig,
    pub(crate) to: PeerPort,
    pub(crate) neighbour: Neighbour,
    pub(crate) timeout: Duration,
    pub(crate) bucket: Bucket,
    pub(crate) priority: Priority,
}

/// A port whose messages are requests to programs that answer queries for a key.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) port: PortConfig,
    pub(crate) key: OwnedKeyExpr,
    pub(crate) timeout: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    name: String,
    prefix: String,
    node: PathBuf,
    zenoh: Option<ZenohSection>,
    standby: Option<standby::Section>,
    fleet: Option<fleet::Section>,
    #[serde(default)]
    publish: Vec<PublishEntry>,
    #[serde(default)]
    subscribe: Vec<SubscribeEntry>,
    #[serde(default)]
    answer: Vec<AnswerEntry>,
    #[serde(default)]
    ask: Vec<AskEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ZenohSection {
    config: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishEntry {
    port: String,
    key: Option<String>,
    #[serde(default)]
    on_change: bool,
    repeat_ms: Option<u64>,
    #[serde(default = "default::every")]
    every: u32,
    #[serde(default)]
    period_min_ms: u64,
    validity_ms: Option<u32>,
    #[serde(default = "default::yes")]
    express: bool,
    query: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubscribeEntry {
    key: String,
    port: String,
    #[serde(default)]
    to: Vec<String>,
    #[serde(default = "default::validity_ms")]
    validity_ms: u32,
    #[serde(default = "default::rate")]
    rate: u32,
    #[serde(default = "default::burst")]
    burst: u32,
    #[serde(default)]
    priority_max: u8,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerEntry {
    port: String,
    key: Option<String>,
    to: String,
    #[serde(default = "timeout_ms")]
    timeout_ms: u32,
    #[serde(default = "default::rate")]
    rate: u32,
    #[serde(default = "default::burst")]
    burst: u32,
    #[serde(default)]
    priority: u8,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskEntry {
    port: String,
    key: String,
    #[serde(default = "timeout_ms")]
    timeout_ms: u32,
}

/// Time for a reply: a second.
fn timeout_ms() -> u32 {
    1_000
}

/// Longest time for a reply. Higher: an unanswered request delays later ones for longer.
const TIMEOUT_MS_MAX: u32 = 60_000;

impl Config {
    /// Reads a gateway's file and the two of its node and Zenoh; their paths are relative to the first one's directory.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub(crate) fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let mut document: Document = config::read(path)?;
        if let Some(fleet) = &mut document.fleet {
            fleet.lies_in(path);
        }
        let node = NodeConfig::from_file(config::beside(path, &document.node))?;
        let of_zenoh = document.zenoh.as_ref();
        let of_zenoh = of_zenoh.map(|section| config::beside(path, &section.config));
        let zenoh = read_zenoh(of_zenoh.as_deref())?;
        check(document, node, zenoh).map_err(|message| ConfigError::Entry {
            path: path.to_owned(),
            message,
        })
    }

    /// Beginning of this gateway's own keys. Wildcards do not match a part that begins with `@`.
    pub(crate) fn own_key(&self) -> String {
        format!("{}/@gateway/{}", self.prefix, self.name)
    }
}

/// Zenoh with a bound on the memory for a message that arrives in fragments, unless its file has a smaller one.
fn bounded(mut zenoh: zenoh::Config) -> zenoh::Config {
    const KEY: &str = "transport/link/rx/max_message_size";
    let given = zenoh.get_json(KEY).ok().and_then(|text| text.parse().ok());
    if given.is_none_or(|bytes: usize| bytes > FRAGMENTED_BYTES_MAX) {
        let bound = zenoh.insert_json5(KEY, &FRAGMENTED_BYTES_MAX.to_string());
        bound.expect("Zenoh has the key");
    }
    zenoh
}

/// Zenoh's configuration, or its default, with a bound on the memory for messages that arrive in fragments.
///
/// # Errors
/// [`ConfigError::Beside`].
pub(crate) fn read_zenoh(path: Option<&Path>) -> Result<zenoh::Config, ConfigError> {
    let Some(path) = path else {
        return Ok(bounded(zenoh::Config::default()));
    };
    let read = zenoh::Config::from_file(path).map_err(|error| ConfigError::Beside {
        what: "Zenoh's configuration",
        path: path.to_owned(),
        message: error.to_string(),
    });
    read.map(bounded)
}

fn check(document: Document, node: NodeConfig, zenoh: zenoh::Config) -> Result<Config, String> {
    let is_plain = |one: char| one.is_ascii_alphanumeric() || "-_.".contains(one);
    let name = document.name;
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.chars().all(is_plain) {
        return Err(format!(
            "`{name}` is not a name: 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`"
        ));
    }
    let prefix = key(&document.prefix)?.to_string();
    let fleet = document
        .fleet
        .map(|section| section.check(key))
        .transpose()?;
    let mappings = document.publish.len()
        + document.subscribe.len()
        + document.answer.len()
        + document.ask.len();
    // One that only tells of its cell has none.
    if !(usize::from(fleet.is_none())..=MAPPINGS_MAX).contains(&mappings) {
        return Err(format!(
            "{mappings} entries, expected 1 to {MAPPINGS_MAX} of [[publish]], [[subscribe]], [[answer]] and [[ask]]"
        ));
    }
    let mut ports = Ports::new(&node);
    let standby = document
        .standby
        .map(|section| section.check(&mut ports))
        .transpose()?;
    let publications: Vec<Publication> = document
        .publish
        .into_iter()
        .map(|entry| publication(entry, &prefix, &mut ports))
        .collect::<Result<_, _>>()?;
    let subscriptions: Vec<Subscription> = document
        .subscribe
        .into_iter()
        .map(|entry| subscription(entry, &mut ports))
        .collect::<Result<_, _>>()?;
    let answers: Vec<Answer> = document
        .answer
        .into_iter()
        .map(|entry| answer(entry, &prefix, &node, &mut ports))
        .collect::<Result<_, _>>()?;
    let asks: Vec<Ask> = document
        .ask
        .into_iter()
        .map(|entry| ask(entry, &mut ports))
        .collect::<Result<_, _>>()?;
    config::check_names(
        "key",
        publications.iter().map(|one| one.key.as_str()),
        subscriptions.iter().map(|one| one.key.as_str()),
    )?;
    check_queries(&publications, &answers, &asks)?;
    Ok(Config {
        answers,
        asks,
        name,
        prefix,
        standby,
        fleet,
        publications,
        subscriptions,
        node,
        zenoh,
    })
}

/// Refuses keys whose queries two entries would answer, and those for which the cell would ask itself.
fn check_queries(
    publications: &[Publication],
    answers: &[Answer],
    asks: &[Ask],
) -> Result<(), String> {
    for (place, one) in answers.iter().enumerate() {
        let key = &one.key;
        let is_last_value = |other: &Publication| other.query && other.key == *key;
        if publications.iter().any(is_last_value)
            || answers[..place].iter().any(|other| other.key == *key)
        {
            return Err(format!("two entries answer queries for `{key}`"));
        }
        if asks.iter().any(|other| other.key == *key) {
            return Err(format!(
                "`{key}` is asked for and answered: the cell would ask itself"
            ));
        }
    }
    Ok(())
}

/// Takes a port of the node, if its messages are not too large.
fn take(ports: &mut Ports<'_>, name: &str) -> Result<PortConfig, String> {
    let port = ports.take(name)?;
    match message_bytes(&port) {
        0..=MESSAGE_BYTES_MAX => Ok(port),
        bytes => Err(format!(
            "port `{name}` takes messages of {bytes} bytes, and a gateway passes {MESSAGE_BYTES_MAX} at most"
        )),
    }
}

/// Bytes of the largest message or value of a port.
pub(crate) fn message_bytes(port: &PortConfig) -> usize {
    match &port.kind {
        PortOptions::Queuing(options) => options.message_bytes_max,
        PortOptions::Sampling(options) => options.value_bytes_max,
    }
}

fn key(text: &str) -> Result<OwnedKeyExpr, String> {
    let refused = |why: String| format!("`{text}` is not a key: {why}");
    if text.contains('*') || text.contains('$') {
        return Err(refused(
            "one key is expected, without `*` and `$`".to_owned(),
        ));
    }
    if text.contains('@') {
        return Err(refused("`@` is for the gateway's own keys".to_owned()));
    }
    OwnedKeyExpr::try_from(text.to_owned()).map_err(|error| refused(error.to_string()))
}

fn publication(
    entry: PublishEntry,
    prefix: &str,
    ports: &mut Ports<'_>,
) -> Result<Publication, String> {
    let port = take(ports, &entry.port)?;
    let below = entry.key.as_deref().unwrap_or(&entry.port);
    let wrong = |what: String| format!("[[publish]] of port `{}`: {what}", port.name);
    let thinning = Thinning {
        on_change: entry.on_change,
        repeat_ms: entry.repeat_ms,
        every: entry.every,
        period_min_ms: entry.period_min_ms,
    };
    let rules = thinning.rules(&port).map_err(wrong)?;
    let validity = entry.validity_ms.map(|ms| Duration::from_millis(ms.into()));
    let (validity, query) = match &port.kind {
        PortOptions::Sampling(options) => (
            Some(validity.unwrap_or(options.refresh_period)),
            entry.query.unwrap_or(true),
        ),
        PortOptions::Queuing(_) if entry.query == Some(true) => {
            let why = "`query` is for sampling ports: a queuing port has no last value";
            return Err(wrong(why.to_owned()));
        }
        PortOptions::Queuing(_) => (validity, false),
    };
    Ok(Publication {
        key: key(&format!("{prefix}/{below}"))?,
        rules,
        validity,
        express: entry.express,
        query,
        port,
    })
}

fn subscription(entry: SubscribeEntry, ports: &mut Ports<'_>) -> Result<Subscription, String> {
    let port = take(ports, &entry.port)?;
    let wrong = |what: String| format!("[[subscribe]] to `{}`: {what}", entry.key);
    let to = ports.receivers(&port, &entry.to).map_err(wrong)?;
    let priority_max = config::priority("priority_max", entry.priority_max).map_err(wrong)?;
    let bucket = config::bucket(entry.rate, entry.burst).map_err(wrong)?;
    let validity = config::validity(entry.validity_ms).map_err(wrong)?;
    Ok(Subscription {
        key: key(&entry.key)?,
        port,
        to,
        validity,
        bucket,
        rate: entry.rate,
        priority_max,
    })
}

/// Takes a port of the node that keeps every message.
fn take_queue(ports: &mut Ports<'_>, name: &str) -> Result<PortConfig, String> {
    let port = take(ports, name)?;
    match port.kind {
        PortOptions::Queuing(_) => Ok(port),
        PortOptions::Sampling(_) => Err(format!(
            "port `{name}` must be a queuing port: of requests none may be replaced"
        )),
    }
}

fn timeout(ms: u32) -> Result<Duration, String> {
    match ms {
        1..=TIMEOUT_MS_MAX => Ok(Duration::from_millis(ms.into())),
        ms => Err(format!("timeout_ms is 1 to {TIMEOUT_MS_MAX}, not {ms}")),
    }
}

fn answer(
    entry: AnswerEntry,
    prefix: &str,
    node: &NodeConfig,
    ports: &mut Ports<'_>,
) -> Result<Answer, String> {
    let port = take_queue(ports, &entry.port)?;
    let below = entry.key.as_deref().unwrap_or(&entry.port);
    let wrong = |what: String| format!("[[answer]] by port `{}`: {what}", entry.port);
    let to = ports.peer(&entry.to).map_err(wrong)?;
    let mut known = node.neighbours.iter().map(|(_, neighbour)| neighbour);
    let neighbour = known.find(|known| known.name == to.neighbour);
    let priority = config::priority("priority", entry.priority).map_err(wrong)?;
    Ok(Answer {
        key: key(&format!("{prefix}/{below}"))?,
        neighbour: neighbour.cloned().expect("it was found before"),
        to,
        timeout: timeout(entry.timeout_ms).map_err(wrong)?,
        bucket: config::bucket(entry.rate, entry.burst).map_err(wrong)?,
        priority,
        port,
    })
}

fn ask(entry: AskEntry, ports: &mut Ports<'_>) -> Result<Ask, String> {
    let wrong = |what: String| format!("[[ask]] of port `{}`: {what}", entry.port);
    Ok(Ask {
        port: take_queue(ports, &entry.port)?,
        key: key(&entry.key)?,
        timeout: timeout(entry.timeout_ms).map_err(wrong)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "link = \"vbus\"\nbus = \"cell\"\nnode = \"gateway\"\n[[neighbour]]\nname = \"motor\"\n\
        [[port]]\nname = \"state\"\nnumber = 1\nkind = \"sampling\"\nrefresh_period_us = 50000\n\
        [[port]]\nname = \"events\"\nnumber = 2\nkind = \"queuing\"\n\
        [[port]]\nname = \"set\"\nnumber = 3\nkind = \"sampling\"\n";
    const HEAD: &str = "name = \"a\"\nprefix = \"plant/cell\"\nnode = \"node.toml\"\n";

    fn read(entries: &str) -> Result<Config, String> {
        let document =
            toml::from_str(&format!("{HEAD}{entries}")).map_err(|error| error.to_string())?;
        check(
            document,
            NODE.parse().expect("a node"),
            zenoh::Config::default(),
        )
    }

    #[test]
    fn entries_have_the_defaults_of_their_ports() {
        let config = read(
            "[[publish]]\nport = \"state\"\n[[publish]]\nport = \"events\"\nkey = \"log/events\"\n\
             [[subscribe]]\nkey = \"plant/other/set\"\nport = \"set\"\nto = [\"motor.7\"]\n",
        )
        .unwrap();
        let [state, events] = &config.publications[..] else {
            panic!("two publications");
        };
        assert_eq!(state.key.as_str(), "plant/cell/state");
        assert_eq!(state.validity, Some(Duration::from_millis(50)));
        assert!(state.query && !events.query);
        assert_eq!(events.key.as_str(), "plant/cell/log/events");
        assert_eq!(config.subscriptions[0].priority_max, Priority::LOWEST);
        assert_eq!(config.own_key(), "plant/cell/@gateway/a");
        assert!(config.fleet.is_none());
        let fleet = read("[fleet]\n").unwrap().fleet.unwrap();
        assert_eq!(fleet.prefix.as_str(), fleet::PREFIX);
        assert_eq!(fleet.period, Duration::from_secs(1));
    }

    #[test]
    fn zenoh_takes_memory_for_messages_of_a_gateway() {
        const KEY: &str = "transport/link/rx/max_message_size";
        let bytes = |zenoh| bounded(zenoh).get_json(KEY).unwrap();
        assert_eq!(bytes(zenoh::Config::default()), "2097152");
        let mut smaller = zenoh::Config::default();
        smaller.insert_json5(KEY, "4096").unwrap();
        assert_eq!(bytes(smaller), "4096");
    }

    #[test]
    fn mistakes_say_what_to_do() {
        let publish = "[[publish]]\nport = \"events\"\n";
        for (entries, expected) in [
            ("", "0 entries"),
            (
                "[[publish]]\nport = \"speed\"\n",
                "no [[port]] with name = \"speed\"",
            ),
            (&format!("{publish}{publish}"), "used twice"),
            (&format!("{publish}every = 3\n"), "are for sampling ports"),
            (&format!("{publish}query = true\n"), "no last value"),
            (
                "[[publish]]\nport = \"state\"\nkey = \"a/**\"\n",
                "without `*`",
            ),
            (
                "[[publish]]\nport = \"state\"\nkey = \"a//b\"\n",
                "is not a key",
            ),
            (
                "[[publish]]\nport = \"state\"\nkey = \"@a\"\n",
                "`@` is for",
            ),
            ("[[publish]]\nport = \"state\"\nevery = 0\n", "1 or more"),
            (
                "[[publish]]\nport = \"state\"\n[[subscribe]]\nkey = \"plant/cell/state\"\nport = \"set\"\n\
                 to = [\"motor.7\"]\n",
                "would come back",
            ),
            (
                "[[publish]]\nport = \"state\"\nkey = \"a\"\n[[publish]]\nport = \"events\"\nkey = \"a\"\n",
                "have the key",
            ),
            (
                "[[publish]]\nport = \"state\"\nrepeat_ms = 5\n",
                "needs `on_change`",
            ),
            (
                "[[subscribe]]\nkey = \"a\"\nport = \"set\"\n",
                "nobody would receive it",
            ),
            (
                "[[subscribe]]\nkey = \"a\"\nport = \"set\"\nto = [\"motor\"]\n",
                "such as \"motor.7\"",
            ),
            (
                "[[subscribe]]\nkey = \"a\"\nport = \"set\"\nto = [\"arm.7\"]\n",
                "no [[neighbour]]",
            ),
            (
                "[[subscribe]]\nkey = \"a\"\nport = \"set\"\nto = [\"motor.7\"]\npriority_max = 8\n",
                "0 to 7",
            ),
            (
                "[[subscribe]]\nkey = \"a\"\nport = \"set\"\nto = [\"motor.7\"]\nrate = 0\n",
                "expected a rate",
            ),
            (
                "[standby]\nport = \"events\"\npeers = [\"motor.1\"]\n[[publish]]\nport = \"state\"\n",
                "must be a sampling port",
            ),
            (
                "[[answer]]\nport = \"state\"\nto = \"motor.7\"\n",
                "must be a queuing port",
            ),
            (
                "[[answer]]\nport = \"events\"\nto = \"arm.7\"\n",
                "no [[neighbour]]",
            ),
            (
                "[[answer]]\nport = \"events\"\nto = \"motor.7\"\ntimeout_ms = 0\n",
                "timeout_ms is 1 to 60000",
            ),
            (
                "[[answer]]\nport = \"events\"\nto = \"motor.7\"\npriority = 8\n",
                "priority is 0 to 7",
            ),
            (
                "[[publish]]\nport = \"state\"\n[[answer]]\nport = \"events\"\nkey = \"state\"\nto = \"motor.7\"\n",
                "two entries answer",
            ),
            ("[[ask]]\nport = \"events\"\nkey = \"a/*\"\n", "without `*`"),
            (
                "[[ask]]\nport = \"events\"\nkey = \"a\"\ntimeout_ms = 60001\n",
                "timeout_ms is 1 to 60000",
            ),
            ("[fleet]\nperiod_ms = 10\n", "period_ms is 200 to 60000"),
            ("[fleet]\nprefix = \"a/*\"\n", "without `*`"),
        ] {
            let error = read(entries).unwrap_err();
            assert!(error.contains(expected), "{entries}: {error}");
        }
    }
}
