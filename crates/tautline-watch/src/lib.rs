//! Live view of a machine: its nodes and ports, tasks, partitions, smoother, buses and guests, from counters that they
//! keep anyway.
//!
//! A [`Look`] is everything that a user may see at one moment; [`rows`] makes lines of two looks, with rates between
//! them. [`top`] shows the lines in a terminal, [`serve`] as a page and as metrics. [`web`] answers
//! browsers, for pages of others too. [`Keyboard`] ends the views of others by the same keys.
//!
//! It is not `taut status`, which shows all that one node says, and it keeps nothing: what was before the first look is
//! not known.

mod column;
mod keyboard;
mod look;
mod other_rows;
mod peers;
mod row;
pub mod serve;
pub mod top;
pub mod types;
pub mod web;

pub use keyboard::Keyboard;
pub use look::{Look, Node, NodeFigures, Part, Peer, Port, Run, Wishes};
pub use row::{Key, Kind, Row, Spread, rows};
