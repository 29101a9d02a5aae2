//! Counters, and the state for queries: `taut ros status`.

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
        /// Equal to the last published one (`on_change`).
        unchanged,
        /// Replaced by a newer one before its time came (`period_min_ms`).
        thinned,
        /// Older than their validity.
        stale,
        /// Come while another program was active, or before this one took over.
        standby,
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
    pub(crate) process: u32,
    /// `active`, `standing by` or `listening`.
    pub(crate) state: String,
    /// Number of its last takeover.
    pub(crate) term: u32,
    /// Others of the same cell that the file names, and those that were heard of late.
    pub(crate) peers: usize,
    pub(crate) peers_heard: usize,
    /// Values on the heartbeats' port that are no heartbeats of a peer.
    pub(crate) heartbeats_refused: u64,
    /// Heartbeats of more programs than are remembered.
    #[serde(default)]
    pub(crate) heartbeats_unplaced: u64,
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
            self.name, self.domain, self.process
        );
        if self.peers > 0 {
            let (state, term) = (&self.state, self.term);
            let (peers, heard) = (self.peers, self.peers_heard);
            let _ = write!(
                text,
                ", {state}, term {term}, {heard} of {peers} others heard"
            );
        }
        text.push('\n');
        if self.heartbeats_refused > 0 {
            let refused = self.heartbeats_refused;
            let _ = writeln!(text, "  {refused} heartbeats refused: not of a peer");
        }
        if self.heartbeats_unplaced > 0 {
            let unplaced = self.heartbeats_unplaced;
            let _ = writeln!(
                text,
                "  {unplaced} heartbeats of more programs than are remembered"
            );
        }
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

/// States of all programs of this user and of root in this network namespace; root sees everybody's.
pub(crate) fn all() -> Vec<RosStatus> {
    tautline_bridge::status::all(FAMILY)
}
