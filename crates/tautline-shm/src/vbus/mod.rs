//! V-Bus: ports between the processes of one machine, through memory that each side writes on its own pages only.
//!
//! A *connection* leads from one sending port (the producer) to one receiving port (the consumer). It has two memories.
//! The producer's holds the messages: eight rings, one for each priority, or the four cells of a value. The consumer's
//! holds how far it has come. Each is written by its owner and mapped read-only by the other, so that no process can
//! corrupt what another relies on, and whatever an owner held or had lent goes with it.
//!
//! * [`layout`] is the byte layout (`docs/reference/vbus.md` has it as tables): offsets, fixed-width
//!   integers, a magic number and a version, no pointers, so that C and a guest can read it too.
//! * [`shape`] computes where everything lies from what a port is to hold, and checks what a peer's
//!   memory says of itself.
//! * [`handshake`] holds the messages by which the two find each other.
//! * [`ring`] passes messages, one ring a priority; to one consumer, or to many readers.
//! * [`cell`] passes the newest value: Simpson's four slots; to one reader, or to many.
//! * [`wait`] is how a consumer sleeps without missing a message, and is woken once.
//! * [`window`] has all of it in one piece of memory, for a guest.
//!
//! # Progress and trust
//! Every operation on either side is wait-free: a fixed number of loads and stores, no retry. What
//! is read from a peer's memory is compared or checked against a limit of the reader's own before
//! it is used; a peer that scribbles over its memory harms its own messages only. Payloads lie in
//! memory that the peer can write at any time, hence no references to them, only copies.
//!
//! The models in `tests/loom_vbus.rs` run these very functions.

pub mod cell;
pub mod handshake;
pub mod layout;
#[cfg(not(loom))]
pub mod region;
pub mod ring;
pub mod shape;
pub mod wait;
#[cfg(not(loom))]
pub mod window;
