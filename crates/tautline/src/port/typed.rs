//! Typed ports: values of Rust in place of bytes. The wire is that of an untyped port; a value's memory is its message.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use tautline_proto::wire::{MESSAGE_BYTES_MAX, Priority};
use tautline_types::{Typed, WithRoom};

use super::waiting::Wait;
use super::{QueuingPort, SamplingPort};
use crate::address::Source;
use crate::error::{ReceiveError, SendError};
use crate::limits::VALUE_BYTES_DEFAULT;
use crate::message::{Destination, Message, Sample};

/// A queuing port that receives values of `R` and sends values of `S`.
///
/// Size and type of each message are checked when it is received. On a bus, ends that declare different types do not
/// connect, and [`destination`](QueuingPort::destination) names the field that differs. On a network each message
/// carries 8 bits of its type's fingerprint, and the receiver refuses one of another type.
///
/// ```
/// use tautline::{Node, NodeConfig, Priority, TypedQueuingPort, Wait, neighbour};
///
/// #[derive(Clone, Copy, Debug, PartialEq, tautline::Typed)]
/// #[repr(C)]
/// struct Command {
///     torque: [f32; 3],
///     mode: u32,
/// }
///
/// let here = [127, 0, 0, 1].into();
/// let node = Node::open(NodeConfig::udp(here).with_neighbour(neighbour("motor", here))?)?;
/// let mut motor: TypedQueuingPort<Command> = node.queuing(2031).typed().open()?;
/// let mut controller: TypedQueuingPort<Command> = node.queuing(2032).typed().open()?;
///
/// let to = controller.destination("motor", motor.number())?;
/// let command = Command { torque: [0.0, 0.5, 1.0], mode: 2 };
/// controller.send(to, Priority::HIGHEST, &command)?;
/// let (received, message) = motor.receive(Wait::Forever)?.expect("no deadline");
/// assert_eq!((received, message.priority), (command, Priority::HIGHEST));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TypedQueuingPort<R: Typed, S: Typed = R> {
    port: QueuingPort,
    types: PhantomData<fn(S) -> R>,
}

/// A sampling port that keeps values of `R` and sends values of `S`, checked like those of a [`TypedQueuingPort`].
///
/// ```
/// use tautline::{Node, NodeConfig, Priority, TypedSamplingPort, Wait, neighbour};
///
/// #[derive(Clone, Copy, Debug, PartialEq, tautline::Typed)]
/// #[repr(C)]
/// struct State {
///     position: [f64; 3],
/// }
///
/// let here = [127, 0, 0, 1].into();
/// let node = Node::open(NodeConfig::udp(here).with_neighbour(neighbour("arm", here))?)?;
/// let mut arm: TypedSamplingPort<State> = node.sampling(2033).typed().open()?;
/// let to = arm.destination("arm", 2033)?;
/// arm.send(to, Priority::NORMAL, &State { position: [1.0, 2.0, 3.0] })?;
/// let (state, sample) = arm.next(Wait::Forever)?.expect("no deadline");
/// assert!(sample.valid && state.position[2] == 3.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TypedSamplingPort<R: Typed, S: Typed = R> {
    port: SamplingPort,
    types: PhantomData<fn(S) -> R>,
}

impl<R: Typed, S: Typed> TypedQueuingPort<R, S> {
    /// Bytes of the largest message: it is a value, and a longer one is refused where it arrives.
    pub(crate) const fn bytes_max() -> usize {
        size_of::<R>()
    }

    /// Values over an open port, whose types these are.
    pub(crate) fn over(mut port: QueuingPort) -> Self {
        port.make_other_types_errors();
        Self {
            port,
            types: PhantomData,
        }
    }

    /// Receives the most urgent message; `None` if the wait has ended without one.
    ///
    /// # Errors
    /// [`ReceiveError::OtherType`], [`ReceiveError::OtherSize`]: a message had another type, or was shorter than the
    /// type; it is gone. Else [`ReceiveError`].
    #[inline]
    pub fn receive(&mut self, wait: Wait) -> Result<Option<(R, Message)>, ReceiveError> {
        let mut value = R::zeroed();
        match self.port.receive_into(value.bytes_mut(), wait)? {
            Some(message) if message.length != size_of::<R>() => {
                self.port.count_other_size();
                Err(other_size::<R>(message.length))
            }
            received => Ok(received.map(|message| (value, message))),
        }
    }
}

impl<R: Typed, S: Typed> TypedSamplingPort<R, S> {
    pub(crate) const fn bytes_max() -> usize {
        value_bytes_max(size_of::<R>())
    }

    /// Values over an open port, whose types these are.
    pub(crate) fn over(mut port: SamplingPort) -> Self {
        port.make_other_types_errors();
        Self {
            port,
            types: PhantomData,
        }
    }

    /// The last value, seen before or not; `None` while there has never been one. Never waits, never retries.
    ///
    /// # Errors
    /// [`ReceiveError::OtherType`], [`ReceiveError::OtherSize`]: the last value has another type, or not the type's
    /// size. Else [`ReceiveError`].
    #[inline]
    pub fn read(&mut self) -> Result<Option<(R, Sample)>, ReceiveError> {
        self.read_with(SamplingPort::read_into)
    }

    /// Waits for the next value that this port has not seen; `None` if the wait has ended without one.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    #[inline]
    pub fn next(&mut self, wait: Wait) -> Result<Option<(R, Sample)>, ReceiveError> {
        self.read_with(|port, buffer| port.next_into(buffer, wait))
    }

    /// The last value of one source, as [`SamplingPort::read_from`](super::SamplingPort::read_from).
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn read_from(&mut self, source: Source) -> Result<Option<(R, Sample)>, ReceiveError> {
        self.read_with(|port, buffer| port.read_from_into(source, buffer))
    }

    #[inline]
    fn read_with(
        &mut self,
        read: impl FnOnce(&mut SamplingPort, &mut [u8]) -> Result<Option<Sample>, ReceiveError>,
    ) -> Result<Option<(R, Sample)>, ReceiveError> {
        let mut value = WithRoom::<R>::zeroed();
        let buffer = &mut value.bytes_mut()[..Self::bytes_max()];
        match read(&mut self.port, buffer)? {
            Some(sample) if sample.length != size_of::<R>() => {
                self.port.count_other_size();
                Err(other_size::<R>(sample.length))
            }
            sample => Ok(sample.map(|sample| (value.value(), sample))),
        }
    }
}

macro_rules! common_functions {
    ($typed:ident, $untyped:ident) => {
        impl<R: Typed, S: Typed> $typed<R, S> {
            /// Sends a value, as [`QueuingPort::send`](super::QueuingPort::send) sends its bytes.
            ///
            /// # Errors
            /// [`SendError`].
            #[inline]
            pub fn send(
                &mut self,
                to: Destination,
                priority: Priority,
                value: &S,
            ) -> Result<(), SendError> {
                self.port.send(to, priority, value.bytes())
            }

            /// Sends a value as an answer, as [`QueuingPort::reply`](super::QueuingPort::reply) sends its bytes.
            ///
            /// # Errors
            /// Those of that.
            pub fn reply(
                &mut self,
                to: Source,
                priority: Priority,
                value: &S,
            ) -> Result<(), SendError> {
                self.port.reply(to, priority, value.bytes())
            }
        }

        /// The port without its types: destinations, descriptors, and what is done with bytes.
        impl<R: Typed, S: Typed> Deref for $typed<R, S> {
            type Target = $untyped;

            #[inline]
            fn deref(&self) -> &$untyped {
                &self.port
            }
        }

        impl<R: Typed, S: Typed> DerefMut for $typed<R, S> {
            #[inline]
            fn deref_mut(&mut self) -> &mut $untyped {
                &mut self.port
            }
        }
    };
}

common_functions!(TypedQueuingPort, QueuingPort);
common_functions!(TypedSamplingPort, SamplingPort);

/// Largest value of a sampling port for a type of this size. Sampling ports cut longer values off, so there is room for
/// one more byte, by which a longer value shows; but not beyond one frame, which is the most that can come there.
const fn value_bytes_max(bytes: usize) -> usize {
    debug_assert!(bytes <= MESSAGE_BYTES_MAX);
    if bytes < VALUE_BYTES_DEFAULT {
        bytes + 1
    } else {
        bytes
    }
}

#[cold]
fn other_size<R: Typed>(bytes: usize) -> ReceiveError {
    ReceiveError::OtherSize {
        bytes,
        expected: size_of::<R>(),
    }
}
