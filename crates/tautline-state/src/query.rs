//! State that a running program reports to queries on the same machine, over a Unix socket.
//!
//! * [`StateServer`]: the side that is asked. A thread of its own, without a real-time priority, answers one client
//!   after the other ([`Clients`], [`Client`]).
//! * [`Query`] and [`hear`]: the side that asks. All are asked at the same time, so that none holds up another.
//!
//! Neither side believes the other. No descriptor is taken ([`crate::untrusted`]), and all that one side waits for or
//! keeps of the other has a limit.

mod client;
mod server;

pub use client::{Limits, Query, Reply, Share, hear};
pub use server::{Admission, Answer, Client, Clients, Next, StateServer};
