//! Counters of a gateway, and its state for queries: `taut gateway status`, or a query to its own key.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use tautline_bridge::counters;
use tautline_bridge::publication::PublishedTold;
use tautline_bridge::status::{Standing, listed};

/// Beginning of the sockets' names.
pub(crate) const FAMILY: &str = "tautline-gateway";

counters! {
    /// Counters of the queries for a publication's last value.
    pub(crate) Queried, QueriedTold {
        /// Answered.
        answered,
        /// Without a valid value.
        unanswered,
    }
}

counters! {
    /// Counters of a subscription. Each sample is in one of them but `lost`, `unknown_origin`.
    pub(crate) Received, ReceivedTold {
        /// Sent to all ports of `to`.
        delivered,
        /// Above the rate.
        policed,
        /// Older than their validity.
        stale,
        /// Received by a gateway that is not the active one.
        standby,
        /// Of another type than the port's.
        other_type,
        /// Of another size than the port's type, or larger than the port's messages.
        other_size,
        /// From another cell than the one whose values are taken.
        other_source,
        /// From a gateway that another one of its cell has replaced.
        superseded,
        /// Seen before, or older than the last one.
        repeated,
        /// Deletions, which ports have no word for.
        deletions,
        /// A port of `to` did not take them.
        undelivered,
        /// Missing in the numbers of a source: dropped on the way.
        lost,
        /// Without an origin that a gateway wrote: their age is not known.
        unknown_origin,
    }
}

counters! {
    /// Counters of the queries that a port of the cell answers. Each query is in one of them but `late`, `strays`.
    pub(crate) Answered, AnsweredTold {
        /// Answered by the port.
        answered,
        /// Without a reply in time.
        unanswered,
        /// Above the rate.
        policed,
        /// Come while a late reply might still come, or when too many waited.
        busy,
        /// Waited for longer than a reply may take.
        stale,
        /// Come when another gateway was active.
        standby,
        /// Of another type than the port's.
        other_type,
        /// Of another size than the port's type, or larger than the port's messages; replies too.
        other_size,
        /// The port of `to` did not take them.
        undelivered,
        /// Replies that came after their time.
        late,
        /// Messages of others than the port of `to`.
        strays,
    }
}

counters! {
    /// Counters of the requests that programs of the cell send to others. Each request is in one of them.
    pub(crate) Asked, AskedTold {
        /// Answered, and the reply delivered.
        answered,
        /// Without a reply in time.
        unanswered,
        /// Answered with an error, or Zenoh did not take them.
        refused,
        /// Waited in the port for longer than a reply may take.
        stale,
        /// Come when another gateway was active.
        standby,
        /// Their reply has another type than the port's.
        other_type,
        /// They or their reply have another size than the port's type, or are too large.
        other_size,
        /// The asker did not take the reply.
        undelivered,
    }
}

/// State of a gateway.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GatewayStatus {
    pub(crate) name: String,
    pub(crate) prefix: String,
    #[serde(flatten)]
    pub(crate) standing: Standing,
    /// Others of the same cell that were heard of late.
    pub(crate) gateways_standing_by: usize,
    /// Gateways of another cell below the same prefix.
    pub(crate) foreign_gateways: usize,
    /// Routers and peers of Zenoh that the session is connected to.
    pub(crate) connections: usize,
    pub(crate) publications: Vec<PublicationStatus>,
    pub(crate) subscriptions: Vec<SubscriptionStatus>,
    pub(crate) answers: Vec<AnswerStatus>,
    pub(crate) asks: Vec<AskStatus>,
}

/// State of a publication.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PublicationStatus {
    pub(crate) port: String,
    pub(crate) key: String,
    pub(crate) alive: bool,
    #[serde(flatten)]
    pub(crate) counters: PublishedTold,
    #[serde(flatten)]
    pub(crate) queries: QueriedTold,
}

/// State of a subscription.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SubscriptionStatus {
    pub(crate) key: String,
    pub(crate) port: String,
    pub(crate) rate: u32,
    #[serde(flatten)]
    pub(crate) counters: ReceivedTold,
}

/// State of an entry whose queries a port of the cell answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AnswerStatus {
    pub(crate) key: String,
    pub(crate) port: String,
    pub(crate) to: String,
    #[serde(flatten)]
    pub(crate) counters: AnsweredTold,
}

/// State of an entry that asks others for programs of the cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AskStatus {
    pub(crate) port: String,
    pub(crate) key: String,
    #[serde(flatten)]
    pub(crate) counters: AskedTold,
}

impl PublicationStatus {
    /// Values that were lost or could not be published; not those that were left out because the file says so.
    pub(crate) fn dropped(&self) -> u64 {
        let of = &self.counters;
        let all = [of.stale, of.other_size, of.refused, of.overwritten];
        all.into_iter().fold(0, u64::saturating_add)
    }
}

impl ReceivedTold {
    /// Samples that were lost or not delivered; not those that another gateway delivers.
    pub(crate) fn dropped(&self) -> u64 {
        let of_rules = [self.policed, self.stale, self.undelivered, self.lost];
        let of_strangers = [
            self.other_type,
            self.other_size,
            self.other_source,
            self.superseded,
            self.deletions,
        ];
        let all = of_rules.into_iter().chain(of_strangers);
        all.fold(0, u64::saturating_add)
    }
}

impl AnsweredTold {
    /// Queries that were not answered; not those that another gateway answers.
    pub(crate) fn dropped(&self) -> u64 {
        let of_rules = [self.policed, self.busy, self.stale, self.unanswered];
        let of_others = [self.other_type, self.other_size, self.undelivered];
        let all = of_rules.into_iter().chain(of_others);
        all.fold(0, u64::saturating_add)
    }
}

impl AskedTold {
    /// Requests without a reply; not those that another gateway forwards.
    pub(crate) fn dropped(&self) -> u64 {
        let without = [self.unanswered, self.refused, self.stale];
        let unfit = [self.other_type, self.other_size, self.undelivered];
        let all = without.into_iter().chain(unfit);
        all.fold(0, u64::saturating_add)
    }
}

impl GatewayStatus {
    /// Lines for a terminal.
    pub(crate) fn text(&self) -> String {
        let Standing {
            state,
            term,
            process,
            ..
        } = &self.standing;
        let mut text = format!(
            "gateway {}: {state}, term {term}, {} connections, prefix {}, process {process}\n",
            self.name, self.connections, self.prefix
        );
        if self.gateways_standing_by > 0 {
            let _ = writeln!(text, "  {} more of this cell", self.gateways_standing_by);
        }
        text += &self.standing.heartbeats();
        if self.foreign_gateways > 0 {
            let _ = writeln!(
                text,
                "  {} gateways of another cell have the same prefix: give each cell its own",
                self.foreign_gateways
            );
        }
        for one in &self.publications {
            let alive = if one.alive { " (alive)" } else { " (silent)" };
            let counted = [one.counters.counted(), one.queries.counted()].concat();
            text += &mapping(&one.port, &one.key, alive, &counted);
        }
        for one in &self.subscriptions {
            text += &mapping(&one.key, &one.port, "", &one.counters.counted());
        }
        for one in &self.answers {
            text += &mapping(&one.key, &one.to, AND_BACK, &one.counters.counted());
        }
        for one in &self.asks {
            text += &mapping(&one.port, &one.key, AND_BACK, &one.counters.counted());
        }
        text
    }
}

/// Words behind a mapping whose receiver replies.
pub(crate) const AND_BACK: &str = " and back";

/// A line of what goes where, with its counters.
fn mapping(from: &str, to: &str, more: &str, counted: &[(&str, u64)]) -> String {
    format!("  {from} -> {to}{more}{}\n", listed(": ", counted))
}
