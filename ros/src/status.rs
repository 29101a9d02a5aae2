//! Counters, and the state for whoever asks: `taut ros status`.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// Beginning of the sockets' names.
pub(crate) const FAMILY: &str = "tautline-ros";

macro_rules! counters {
    ($(#[$about:meta])* $name:ident, $told:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        pub(crate) struct $name { $($(#[$doc])* pub(crate) $field: AtomicU64,)* }

        #[doc = concat!("Values of [`", stringify!($name), "`].")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub(crate) struct $told { $(pub(crate) $field: u64,)* }

        impl $name {
            pub(crate) fn told(&self) -> $told {
                $told { $($field: self.$field.load(Relaxed),)* }
            }
        }

        impl $told {
            /// Counters above 0, in their order.
            fn counted(&self) -> Vec<(&'static str, u64)> {
                let all = [$((stringify!($field), self.$field),)*];
                all.into_iter().filter(|(_, count)| *count > 0).collect()
            }
        }
    };
}

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
                list(&one.counters.counted())
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
                list(&one.counters.counted())
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

fn list(counted: &[(&str, u64)]) -> String {
    let mut text = String::new();
    for (name, count) in counted {
        let _ = write!(text, ", {count} {}", name.replace('_', " "));
    }
    text
}

/// States of all programs of this user and of root in this network namespace; root sees everybody's.
pub(crate) fn all() -> Vec<RosStatus> {
    let told = tautline_state::told::all(FAMILY).into_iter();
    told.filter_map(|bytes| serde_json::from_slice(&bytes).ok())
        .collect()
}
