//! Authenticated frames: a trailer behind the message proves the sender and the time of the frame.
//!
//! A [`Sender`] numbers the frames of one port by time, and [`seal`](Sender::seal) makes the payload that travels.
//! A [`Receiver`] is one port's memory of what has come: it [`open`](Receiver::open)s a frame, or says in one word
//! why not. Two nodes share a [`KeyRing`]. The frame's form on the wire is in `docs/reference/wire.md`, section
//! "Authenticated frames"; the reasons are in decision 0075.
//!
//! This module reads no clock, no file and no random numbers: times and the number of a sender's run are arguments.
//! Nothing is allocated after the constructors.
//!
//! ```
//! use tautline_proto::authentication::*;
//! use tautline_proto::wire::{Header, MacAddress, PortNumber, Priority};
//!
//! let key = Key::new(1, Cipher::Aes128Gcm, 0, [7; SECRET_BYTES]);
//! let ring = KeyRing::new([key])?;
//! let way = Way {
//!     source: Station::Ethernet(MacAddress([2, 0, 0, 0, 0, 10])),
//!     destination: Station::Ethernet(MacAddress([2, 0, 0, 0, 0, 11])),
//! };
//! let port = PortNumber::MIN;
//! let header = Header::whole(port, port, Priority::HIGHEST, 4, 0);
//! let mut sending = SendKey::new(ring.clone());
//! let mut space = Space::new();
//! let (sealed, payload) = Sender::new(1, Protection::Encrypted)
//!     .seal(1_000, &mut sending, way, header, b"stop", &mut space)
//!     .expect("the message fits");
//!
//! let mut receiver = Receiver::new(Discipline::InWindow, 0, 1_000_000);
//! let mut space = Space::new();
//! let opened = receiver.open(1_050, &ring, way, &sealed, payload, &mut space);
//! assert_eq!(opened, Ok((header, &b"stop"[..])));
//! let again = receiver.open(1_060, &ring, way, &sealed, payload, &mut space);
//! assert_eq!(again, Err(Refusal::Replayed));
//! # Ok::<(), BadRing>(())
//! ```

mod frame;
mod key;
mod receiver;
mod window;

pub use frame::{
    Protection, SendKey, Sender, Space, Station, TRAILER_BYTES, Trailer, Way, first_run, next_run,
    unchecked,
};
pub use key::{BadRing, Cipher, EPOCHS_MAX, Key, KeyRing, SECRET_BYTES};
pub use receiver::{Discipline, FLOWS_MAX, Receiver, Refusal};
