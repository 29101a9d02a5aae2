//! The protocol core of Tautline: what goes over the wire and what a node makes of it.
//!
//! No function here reads a clock, a socket or a file; `now` is an argument and frames are slices.
//! So the same code runs over XDP, a packet socket, an ordinary UDP socket and a simulated network,
//! and a failure in simulation repeats from its seed. There is no unsafe code. Memory is taken by
//! constructors only. Whatever arrives from the network can be wrong in any way without a panic.
//!
//! # A tour
//!
//! A frame comes in. [`wire`] takes it apart, or says in one word what is wrong with it:
//!
//! ```
//! use tautline_proto::wire::{ETHERTYPE_DEFAULT, Rejected, ethernet};
//!
//! let mut frame = [0u8; 60];
//! frame[..32].copy_from_slice(&[
//!     0x02, 0x00, 0x00, 0x00, 0x00, 0x0B, // to
//!     0x02, 0x00, 0x00, 0x00, 0x00, 0x0A, // from
//!     0x88, 0xB5, // EtherType
//!     0x00, 0x02, 0x00, 0x02, 0x07, 0x00, // to port 2, 2 bytes, priority 7, no flags
//!     0x01, 0x00, 0x00, 0x01, 0x01, 0x00, // version 1, fragment 0, from port 1, of 1
//!     0x00, 0x00, 0x00, 0x09, // sequence 9
//!     b'h', b'i', // payload; the rest is padding
//! ]);
//! let parsed = ethernet::parse(&frame, ETHERTYPE_DEFAULT).unwrap();
//! assert_eq!((parsed.header.sequence, parsed.payload), (9, &b"hi"[..]));
//!
//! frame[20] = 2; // a version that this crate does not speak
//! assert!(matches!(ethernet::parse(&frame, ETHERTYPE_DEFAULT), Err(Rejected::Malformed(_))));
//! ```
//!
//! [`neighbour`] names the sender; [`loss`] counts what is missing in the flow; [`fragment`] puts a message together
//! that needed several frames, and cuts one up on the way out. [`time`] is the type of `now`. [`authentication`] proves
//! a frame's sender and time. [`smoother`] decides how much other traffic may leave while messages do. [`arrival`]
//! predicts when the next message comes; [`phase_lock`] keeps a cycle in step with a peer's values. [`sim`] is a
//! network in memory that loses, doubles, delays and damages frames, on virtual time.
//!
//! `docs/reference/wire.md` specifies the format for readers in other languages; `docs/vectors/wire` has the vectors.
//!
//! # What it is not
//!
//! It opens nothing and waits for nothing (crate `tautline`), and shares no memory (crate `tautline-shm`).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod arrival;
#[cfg(feature = "authentication")]
pub mod authentication;
pub mod fragment;
pub mod ip;
pub mod loss;
pub mod neighbour;
pub mod phase_lock;
pub mod sim;
pub mod smoother;
pub mod time;
pub mod wire;
