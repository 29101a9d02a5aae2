//! A channel of a recording or of a live view: the flow of its messages, its names and their type, as its topic,
//! schema and metadata.

use std::collections::BTreeMap;
use std::sync::Arc;

use tautline::types::{Declaration, Field, Scalar};

use super::RecordingError;
use crate::message::Flow;
use crate::nodes::{FlowFacts, FlowNames};

/// Name of the encoding: bytes that only their sender and receiver understand.
const ENCODING: &str = "application/octet-stream";

/// Names of the encodings of typed messages and of their schemas, from MCAP's registry.
const TYPED_ENCODING: &str = "ros1";
const SCHEMA_ENCODING: &str = "ros1msg";
/// Package of the types, which names of ROS have.
const PACKAGE: &str = "tautline";

/// Description of a channel, in the terms of MCAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Its name: `/ON/FROM.PORT/TO.PORT`.
    pub topic: String,
    /// Encoding of its messages.
    pub encoding: &'static str,
    /// Schema of its messages, if their type is known.
    pub schema: Option<Schema>,
    /// Both ends, the priority, and the type.
    pub metadata: BTreeMap<String, String>,
}

/// Schema of the messages of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// Name of the type, as names of ROS are.
    pub name: String,
    /// Encoding of the text.
    pub encoding: &'static str,
    /// Fields.
    pub text: String,
}

impl Channel {
    /// Channel of a flow's messages: those of the size of their type, or bytes if there is no type in the facts.
    #[must_use]
    pub fn of(flow: &Flow, facts: &FlowFacts) -> Self {
        let declared = facts.declared.as_deref();
        Self {
            topic: topic_of(flow, &facts.names),
            encoding: declared.map_or(ENCODING, |_| TYPED_ENCODING),
            schema: declared.map(Schema::of),
            metadata: metadata_of(flow, facts),
        }
    }
}

impl Schema {
    fn of(declared: &Declaration) -> Self {
        Self {
            name: format!("{PACKAGE}/{}", declared.name()),
            encoding: SCHEMA_ENCODING,
            text: ros_definition(declared),
        }
    }
}

/// A type as a message definition of ROS 1, whose serialisation of such fields is the message itself.
fn ros_definition(declaration: &Declaration) -> String {
    let line = |field: &Field| {
        let number = match field.scalar {
            Scalar::I8 => "int8",
            Scalar::U8 => "uint8",
            Scalar::I16 => "int16",
            Scalar::U16 => "uint16",
            Scalar::I32 => "int32",
            Scalar::U32 => "uint32",
            Scalar::I64 => "int64",
            Scalar::U64 => "uint64",
            Scalar::F32 => "float32",
            Scalar::F64 => "float64",
        };
        let count = field.count.map(|count| format!("[{count}]"));
        format!("{number}{} {}\n", count.unwrap_or_default(), field.name)
    };
    declaration.fields().iter().map(line).collect()
}

/// Name of the channel: both ends by their names, or else by address and number. Several priorities share one.
fn topic_of(flow: &Flow, names: &FlowNames) -> String {
    let end = |node: &Option<String>, address: &str, port: &Option<String>, number: u16| {
        let node = node.as_deref().unwrap_or(address);
        match port {
            Some(port) => format!("{node}.{port}"),
            None => format!("{node}.{number}"),
        }
    };
    format!(
        "/{}/{}/{}",
        flow.on.trim_start_matches('/'),
        end(
            &names.from,
            &flow.from,
            &names.source_port,
            flow.source_port
        ),
        end(
            &names.to,
            &flow.to,
            &names.destination_port,
            flow.destination_port
        ),
    )
}

const ON: &str = "on";
const FROM: &str = "from";
const SOURCE_PORT: &str = "source_port";
const TO: &str = "to";
const DESTINATION_PORT: &str = "destination_port";
const PRIORITY: &str = "priority";
const WAY: &str = "way";
/// Names, each where it is known.
const FROM_NAME: &str = "from_name";
const SOURCE_PORT_NAME: &str = "source_port_name";
const TO_NAME: &str = "to_name";
const DESTINATION_PORT_NAME: &str = "destination_port_name";
/// Declaration of the messages, on channels that have a type.
const TYPE: &str = "type";
const SENT: &str = "sent";
const RECEIVED: &str = "received";

fn metadata_of(flow: &Flow, facts: &FlowFacts) -> BTreeMap<String, String> {
    let way = if flow.is_sent { SENT } else { RECEIVED };
    let of_flow = [
        (ON, flow.on.clone()),
        (FROM, flow.from.clone()),
        (SOURCE_PORT, flow.source_port.to_string()),
        (TO, flow.to.clone()),
        (DESTINATION_PORT, flow.destination_port.to_string()),
        (PRIORITY, flow.priority.to_string()),
        (WAY, way.to_owned()),
    ];
    let names = &facts.names;
    let declared = facts.declared.as_ref();
    let if_known = [
        (FROM_NAME, names.from.clone()),
        (SOURCE_PORT_NAME, names.source_port.clone()),
        (TO_NAME, names.to.clone()),
        (DESTINATION_PORT_NAME, names.destination_port.clone()),
        (TYPE, declared.map(ToString::to_string)),
    ];
    let if_known = if_known.into_iter();
    let known = if_known.filter_map(|(key, value)| Some((key, value?)));
    let entries = of_flow.into_iter().chain(known);
    entries
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

pub(super) fn flow_of(channel: &mcap::Channel<'_>) -> Result<Flow, RecordingError> {
    let missing = |key| RecordingError::NotOurs {
        topic: channel.topic.clone(),
        key,
    };
    let text = |key| {
        channel
            .metadata
            .get(key)
            .cloned()
            .ok_or_else(|| missing(key))
    };
    let port = |key| {
        let port = text(key)?
            .parse()
            .ok()
            .filter(|port| (1..=4095).contains(port));
        port.ok_or_else(|| missing(key))
    };
    let priority = text(PRIORITY)?
        .parse()
        .ok()
        .filter(|priority| *priority <= 7);
    Ok(Flow {
        on: text(ON)?,
        from: text(FROM)?,
        source_port: port(SOURCE_PORT)?,
        to: text(TO)?,
        destination_port: port(DESTINATION_PORT)?,
        priority: priority.ok_or_else(|| missing(PRIORITY))?,
        is_sent: match text(WAY)?.as_str() {
            SENT => true,
            RECEIVED => false,
            _ => return Err(missing(WAY)),
        },
    })
}

pub(super) fn facts_of(channel: &mcap::Channel<'_>) -> Result<FlowFacts, RecordingError> {
    let text = |key: &str| channel.metadata.get(key).cloned();
    let wrong = |_| RecordingError::NotOurs {
        topic: channel.topic.clone(),
        key: TYPE,
    };
    let declared = text(TYPE).map(|text| text.parse().map(Arc::new));
    Ok(FlowFacts {
        declared: declared.transpose().map_err(wrong)?,
        names: Arc::new(FlowNames {
            from: text(FROM_NAME),
            source_port: text(SOURCE_PORT_NAME),
            to: text(TO_NAME),
            destination_port: text(DESTINATION_PORT_NAME),
        }),
    })
}
