//! A channel of a recording: the flow and the type of its messages, as its topic and metadata.

use std::collections::BTreeMap;
use std::sync::Arc;

use tautline::types::Declaration;

use super::RecordingError;
use crate::message::Flow;

impl Flow {
    /// Name of the channel. Several priorities share one.
    #[must_use]
    pub fn topic(&self) -> String {
        format!(
            "/{}/{}.{}/{}.{}",
            self.on.trim_start_matches('/'),
            self.from,
            self.source_port,
            self.to,
            self.destination_port
        )
    }
}

const ON: &str = "on";
const FROM: &str = "from";
const SOURCE_PORT: &str = "source_port";
const TO: &str = "to";
const DESTINATION_PORT: &str = "destination_port";
const PRIORITY: &str = "priority";
const WAY: &str = "way";
/// Declaration of the messages, on channels that have a type.
pub(super) const TYPE: &str = "type";
const SENT: &str = "sent";
const RECEIVED: &str = "received";

pub(super) fn metadata_of(flow: &Flow) -> BTreeMap<String, String> {
    let way = if flow.is_sent { SENT } else { RECEIVED };
    [
        (ON, flow.on.clone()),
        (FROM, flow.from.clone()),
        (SOURCE_PORT, flow.source_port.to_string()),
        (TO, flow.to.clone()),
        (DESTINATION_PORT, flow.destination_port.to_string()),
        (PRIORITY, flow.priority.to_string()),
        (WAY, way.to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
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

pub(super) fn type_of(
    channel: &mcap::Channel<'_>,
) -> Result<Option<Arc<Declaration>>, RecordingError> {
    let Some(text) = channel.metadata.get(TYPE) else {
        return Ok(None);
    };
    let wrong = |_| RecordingError::NotOurs {
        topic: channel.topic.clone(),
        key: TYPE,
    };
    text.parse().map(Arc::new).map(Some).map_err(wrong)
}
