//! State that a running program tells those who ask on the same machine, over a Unix socket.
//!
//! * [`Teller`]: the side that is asked. A thread of its own, without a real-time priority, answers one asker after the
//!   other ([`Askers`], [`Asker`]).
//! * [`Asked`] and [`hear`]: the side that asks. All are asked at the same time, so that none holds up another.
//! * [`tell`] and [`all`]: programs that find each other by the beginning of a name, such as gateways.
//!
//! Neither side believes the other. No descriptor is taken ([`crate::foreign`]), and all that one side waits for or
//! keeps of the other has a limit.

mod asking;
mod family;
mod telling;

pub use asking::{Asked, Heard, Limits, Share, hear};
pub use family::{all, tell};
pub use telling::{Admission, Answer, Asker, Askers, Next, Teller};
