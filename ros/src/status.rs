//! Counters, and the state for whoever asks: `taut ros status`.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use tautline_bridge::counters;
use tautline_bridge::status::listed;

/// Beginning of the sockets' names.
pub(crate) const FAMILY: &str = "tautline-ros";

counters! {
    /// Counters of a publication. Each value or message that the port hands out is in one of them.
    Published, PublishedTold {
        /// Given to DDS.
        published,
        /// Not the one in so many (`every`).
        decimated,
        /// As the last published one (`on_change`).
        unchanged,
        /// Replaced by a newer one before its time came (`period_min_ms`).
        thinned,
        /// Older than their validity.
        stale,
        /// Of another size than the port's type.
        other_size,
        /// Numbers or texts that the message cannot hold.
        unfit,
        /// No room, because a reliable participant does not acknowledge.
        refused,
        /// Replaced in the port before they were read.
        overwritten,
    }
}

counters! {
    /// Counters of a subscription. Each message is in one of them.
    Received, ReceivedTold {
        /// Sent to all ports of `to`.
        delivered,
        /// Above the rate.
        policed,
        /// Older than their validity.
        stale,
        /// Of a writer that means another type.
        other_type,
        /// Cut off, too long, or otherwise no message of the type.
        malformed,
        /// With a sequence or a text of another length than the port's.
        other_size,
        /// With another value where a constant is declared.
        other_value,
        /// With a number that is none, or infinite.
        not_finite,
        /// With a number that the port's field cannot hold.
        out_of_range,
        /// A port of `to` did not take them.
        undelivered,
    }
}

/// State of a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RosStatus {
    /// Name of the node, with its namespace.
    pub(crate) name: String,
    pub(crate) domain: u16,
    pub(crate) process: u32,
    pub(crate) publications: Vec<PublicationStatus>,
    pub(crate) subscriptions: Vec<SubscriptionStatus>,
}

/// State of a publication.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PublicationStatus {
    pub(crate) port: String,
    pub(crate) topic: String,
    pub(crate) message: String,
    /// Readers that messages are sent to.
    pub(crate) readers: usize,
    /// Readers whose quality of service asks for more than is offered.
    pub(crate) readers_incompatible: usize,
    /// Readers that mean another type by this topic.
    pub(crate) readers_of_other_type: usize,
    #[serde(flatten)]
    pub(crate) counters: PublishedTold,
}

/// State of a subscription.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SubscriptionStatus {
    pub(crate) topic: String,
    pub(crate) message: String,
    pub(crate) port: String,
    pub(crate) rate: u32,
    /// Writers whose messages are taken.
    pub(crate) writers: usize,
    /// Writers whose quality of service offers less than is asked for.
    pub(crate) writers_incompatible: usize,
    /// Writers that mean another type by this topic.
    pub(crate) writers_of_other_type: usize,
    #[serde(flatten)]
    pub(crate) counters: ReceivedTold,
}

impl RosStatus {
    /// Lines for a terminal.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "node {}: domain {}, process {}\n",
            self.name, self.domain, self.process
        );
        for one in &self.publications {
            let _ = writeln!(
                text,
                "  {} -> {} ({}): {}{}",
                one.port,
                one.topic,
                one.message,
                others(
                    "reader",
                    one.readers,
                    one.readers_incompatible,
                    one.readers_of_other_type
                ),
                listed(", ", &one.counters.counted())
            );
        }
        for one in &self.subscriptions {
            let _ = writeln!(
                text,
                "  {} -> {} ({}): {}{}",
                one.topic,
                one.port,
                one.message,
                others(
                    "writer",
                    one.writers,
                    one.writers_incompatible,
                    one.writers_of_other_type
                ),
                listed(", ", &one.counters.counted())
            );
        }
        text
    }
}

fn others(what: &str, matched: usize, incompatible: usize, other_type: usize) -> String {
    let plural = if matched == 1 { "" } else { "s" };
    let mut text = format!("{matched} {what}{plural}");
    if incompatible > 0 {
        let _ = write!(text, ", {incompatible} of incompatible quality of service");
    }
    if other_type > 0 {
        let _ = write!(text, ", {other_type} of another type");
    }
    text
}

/// States of all programs of this user and of root in this network namespace; root sees everybody's.
pub(crate) fn all() -> Vec<RosStatus> {
    tautline_bridge::status::all(FAMILY)
}
