//! Counters of a program, and its state for queries on the same machine.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tautline_state::query::StateServer;

use crate::activity::Activity;
use crate::family;
use crate::program::{End, Failed, Failure, output};
use crate::standby::Shown;

/// Declares counters that several threads add to, and a structure of their values, which serde reads and writes.
///
/// ```
/// tautline_bridge::counters! {
///     /// Counters of a door.
///     pub(crate) Door, DoorTold {
///         /// Times that it was opened.
///         opened,
///     }
/// }
///
/// let door = Door::default();
/// door.opened.fetch_add(2, std::sync::atomic::Ordering::Relaxed);
/// assert_eq!(door.told().counted(), [("opened", 2)]);
/// ```
#[macro_export]
macro_rules! counters {
    ($(#[$about:meta])* $vis:vis $name:ident, $told:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        $vis struct $name { $($(#[$doc])* $vis $field: ::std::sync::atomic::AtomicU64,)* }

        #[doc = concat!("Values of [`", stringify!($name), "`].")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize)]
        $vis struct $told { $($(#[$doc])* $vis $field: u64,)* }

        impl $name {
            /// The values of now.
            #[must_use]
            $vis fn told(&self) -> $told {
                $told { $($field: self.$field.load(::std::sync::atomic::Ordering::Relaxed),)* }
            }
        }

        impl $told {
            /// Counters above 0, in their order.
            #[must_use]
            $vis fn counted(&self) -> ::std::vec::Vec<(&'static str, u64)> {
                let all = [$((stringify!($field), self.$field),)*];
                all.into_iter().filter(|(_, count)| *count > 0).collect()
            }
        }
    };
}

/// Counters in words, after `before` if there are any: `: 3 delivered, 1 too old`.
#[must_use]
pub fn listed(before: &str, counted: &[(&str, u64)]) -> String {
    let mut text = String::new();
    for (place, (name, count)) in counted.iter().enumerate() {
        let before = if place == 0 { before } else { ", " };
        let _ = write!(text, "{before}{count} {}", name.replace('_', " "));
    }
    text
}

/// Answers with a program's state, from a thread of its own, until the result is dropped; the end of the thread sets
/// `stop`. `family` is the beginning of the sockets' names, which programs of one sort share.
///
/// # Errors
/// There is no socket, or no thread.
pub fn tell<S: Serialize>(
    family: &str,
    stop: Arc<AtomicBool>,
    state: impl Fn() -> S + Send + 'static,
) -> io::Result<StateServer> {
    let end = End(stop);
    family::tell(family, move || {
        let _dropped_with_this = &end;
        serde_json::to_vec(&state()).unwrap_or_default()
    })
}

/// Ends the thread that tells a state.
///
/// # Errors
/// It has panicked.
pub fn end(teller: StateServer) -> Result<(), Failure> {
    let panicked = |_| "the thread that tells the state has panicked".into();
    teller.end().map_err(panicked)
}

/// State that all programs have, as a part of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Its process.
    pub process: u32,
    /// `active`, `standing by`, `listening`, or what a program without others does.
    pub state: String,
    /// Number of its last takeover.
    pub term: u32,
    /// Values on the heartbeats' port that are no heartbeats of a peer.
    #[serde(default)]
    pub heartbeats_refused: u64,
    /// Heartbeats of more programs than are remembered.
    #[serde(default)]
    pub heartbeats_unplaced: u64,
}

impl Standing {
    /// That of this process.
    #[must_use]
    pub fn now(activity: &Activity, shown: Shown) -> Self {
        Self {
            process: std::process::id(),
            state: shown.state.to_owned(),
            term: activity.term(),
            heartbeats_refused: shown.refused,
            heartbeats_unplaced: shown.unplaced,
        }
    }

    /// Lines for a terminal, of the heartbeats that were not taken.
    #[must_use]
    pub fn heartbeats(&self) -> String {
        let line = |count: u64, why: &str| match count {
            0 => String::new(),
            count => format!("  {count} heartbeats {why}\n"),
        };
        line(self.heartbeats_refused, "refused: not of a peer")
            + &line(
                self.heartbeats_unplaced,
                "of more programs than are remembered",
            )
    }
}

/// Writes the state of all programs of a family: in the list `list` of JSON, or as `text` has each, and as `nobody` if
/// there is none.
///
/// # Errors
/// Those of [`output`].
pub fn show<S: Serialize + DeserializeOwned>(
    family: &str,
    (list, nobody): (&str, &str),
    text: impl Fn(&S) -> String,
    json: Option<&Path>,
) -> Result<(), Failed> {
    let all: Vec<S> = all(family);
    let told = match all.is_empty() {
        true => nobody.to_owned(),
        false => all.iter().map(text).collect(),
    };
    output(json, &serde_json::json!({ list: all }), &told)
}

/// States of all programs of a family, of this user and of root, in this network namespace; root sees everybody's.
fn all<S: DeserializeOwned>(family: &str) -> Vec<S> {
    let texts = family::all(family).into_iter();
    texts
        .filter_map(|text| serde_json::from_slice(&text).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_listed_in_words() {
        assert_eq!(listed(": ", &[]), "");
        let counted = [("delivered", 3), ("other_size", 1)];
        assert_eq!(listed(": ", &counted), ": 3 delivered, 1 other size");
        assert_eq!(listed(", ", &counted), ", 3 delivered, 1 other size");
    }

    #[test]
    fn a_program_ends_when_its_state_cannot_be_told() {
        let stop = Arc::new(AtomicBool::new(false));
        let failing = || -> u32 { panic!("as the test has it") };
        let teller = tell("taut-status-test", Arc::clone(&stop), failing).unwrap();
        assert!(all::<u32>("taut-status-test").is_empty());
        assert!(end(teller).is_err());
        assert!(stop.load(std::sync::atomic::Ordering::Relaxed));
    }
}
