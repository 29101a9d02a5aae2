//! The C interface: what `include/tautline.h` declares.
//!
//! Two layers. The five calls of [`socket`] are for programs written against sockets: an address is a
//! `sockaddr_in`, a failure is -1 and `errno`. Everything else begins with `tautline_`, answers with a
//! negative [`Code`] on failure, and gives what ports have beyond sockets: [`node`], [`open`], [`port`]; and loops and
//! tasks that keep their deadlines: [`cycle`], [`tasks`]. [`awake`] needs no node.
//!
//! Rules of every call, and the file that enforces each:
//! - No panic crosses the border, and `errno` and the text of the last error are set: `border`.
//! - A handle is a number, not a pointer. One that is closed, invented or in use by another thread is
//!   answered with a code: `handle`.
//! - A null pointer, a misaligned one, or a length that no buffer can have is answered with a code:
//!   `pointer`. A pointer to memory that is not the caller's cannot be told from a good one.
//!
//! The header is written by hand, because it is what people read. The tests hold it against this
//! library: functions and their types, structs and their layout, constants, and the table of codes.

pub mod awake;
mod border;
mod code;
pub mod cycle;
mod datagram;
mod handle;
pub mod node;
pub mod open;
mod pointer;
pub mod port;
pub mod socket;
pub mod tasks;
pub mod types;

pub use code::Code;
