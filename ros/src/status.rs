//! Counters, and the state for queries: `taut ros status`.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use tautline_bridge::counters;
use tautline_bridge::publication::PublishedTold;
use tautline_bridge::status::{Standing, listed};

/// Beginning of the sockets' names.
pub(crate) const FAMILY: &str = "tautline-ros";

counters! {
    /// Counter of a publication beyond those of every program; `refused` values had no room, because a reliable
    /// participant does not acknowledge.
    pub(crate) Unfit, UnfitTold {
        /// Numbers or texts that the message cannot hold.
        unfit,
    }
}

counters! {
    /// Counters of a subscription. Each message is in one of them.
    pub(crate) Received, ReceivedTold {
        /// Sent to all ports of `to`.
        delivered,
        /// Above the rate.
        policed,
        /// Older than their validity.
        stale,
        /// Come while another program was active, or written before this one took over.
        standby,
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
    #[serde(flatten)]
    pub(crate) standing: Standing,
    /// Others of the same cell that the file names, and those that were heard of late.
    pub(crate) peers: usize,
    pub(crate) peers_heard: usize,
    /// Datagrams of DDS that claim more than this program takes.
    #[serde(default)]
    pub(crate) datagrams_refused: u64,
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
    /// Writers of this topic in other programs: those that stand by, and strangers.
    pub(crate) other_writers: usize,
    #[serde(flatten)]
    pub(crate) counters: PublishedTold,
    #[serde(flatten)]
    pub(crate) unfit: UnfitTold,
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
            "node {}: domain {}, process {}",
            self.name, self.domain, self.standing.process
        );
        if self.peers > 0 {
            let (state, term) = (&self.standing.state, self.standing.term);
            let (peers, heard) = (self.peers, self.peers_heard);
            let _ = write!(
                text,
                ", {state}, term {term}, {heard} of {peers} others heard"
            );
        }
        text.push('\n');
        text += &self.standing.heartbeats();
        if self.datagrams_refused > 0 {
            let refused = self.datagrams_refused;
            let _ = writeln!(text, "  {refused} datagrams refused: they claim too much");
        }
        for one in &self.publications {
            let _ = writeln!(
                text,
                "  {} -> {} ({}): {}{}{}",
                one.port,
                one.topic,
                one.message,
                others(
                    "reader",
                    one.readers,
                    one.readers_incompatible,
                    one.readers_of_other_type
                ),
                beside(one.other_writers),
                listed(
                    ", ",
                    &[one.counters.counted(), one.unfit.counted()].concat()
                )
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

/// Writers beside this program's.
fn beside(writers: usize) -> String {
    match writers {
        0 => String::new(),
        1 => ", 1 other writer".to_owned(),
        more => format!(", {more} other writers"),
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
