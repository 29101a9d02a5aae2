//! Common parts of both kinds of port: a number, a link, destinations, and how to wait.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tautline_proto::time::Instant;
use tautline_proto::wire::{PortNumber, Priority};

use super::core::{AnyCore, Core, with_core};
use super::opening::{Opening, PortHandle};
use super::owner::PortOwner;
use crate::address::Source;
use crate::error::{PortError, ReceiveError, SendError};
use crate::message::Destination;

/// Functions that queuing and sampling ports share.
macro_rules! message_port {
    ($port:ident) => {
        impl $port {
            /// The port's number.
            #[must_use]
            pub fn number(&self) -> PortNumber {
                self.endpoint.number
            }

            /// Resolves a neighbour's port. Not for the hot path; the same pair gives the same destination.
            ///
            /// # Errors
            /// [`PortError::PeerUnknown`], [`PortError::NeighbourIncomplete`], [`PortError::Value`] beyond ports 1 to
            /// 4095, [`PortError::TooManyDestinations`]; on link `vbus` [`PortError::PeerOtherType`] if the peer
            /// declares another type.
            pub fn destination(
                &mut self,
                name: &str,
                to: impl Into<MessagePort>,
            ) -> Result<Destination, PortError> {
                self.endpoint
                    .destination((name, to.into().number()?), None)
            }

            /// Resolves a peer like [`destination`](Self::destination), and waits on link `vbus` until the peer's port
            /// is there, so that this program may start before its peer. On other links it does not wait.
            ///
            /// # Errors
            /// Those of [`destination`](Self::destination), and on link `vbus` [`PortError::PeerAbsent`] at the
            /// deadline; a later attempt is answered from what is known then.
            pub fn destination_until(
                &mut self,
                name: &str,
                to: impl Into<MessagePort>,
                deadline: Instant,
            ) -> Result<Destination, PortError> {
                self.endpoint
                    .destination((name, to.into().number()?), Some(deadline))
            }

            /// The way to all ports that [follow](Self::follow) this one, on link `vbus`. A message that is sent there
            /// is published once, in one memory that all of them map, up to the largest message that this port takes.
            /// The cost does not depend on how many they are, but for those that sleep and must be woken. A send never
            /// waits and never finds a class full: it replaces the oldest message of its class, or the value, read or
            /// not. So a reader that is slow or dead delays no other; it loses messages, and a queuing port
            /// [counts](crate::QueuingPort::overwritten) them. A send succeeds without readers, too. Not for the hot
            /// path; each call gives the same destination.
            ///
            /// # Errors
            /// [`PortError::NotOnLink`] on other links, [`PortError::Refused`] without memory.
            pub fn readers(&mut self) -> Result<Destination, PortError> {
                self.endpoint.readers()
            }

            /// Takes from now on what another port of this kind publishes for its [readers](Self::readers), on link
            /// `vbus`, in addition to what is sent to this port. Of what was published before, a sampling port gets the
            /// last value and a queuing port nothing. The bus looks for the port again when it has gone. Waits for it
            /// as [`destination`](Self::destination) does.
            ///
            /// # Errors
            /// [`PortError::NotOnLink`] on other links, [`PortError::PeerUnknown`]; [`PortError::PeerOtherShape`] if
            /// this port takes smaller messages, [`PortError::PeerOtherType`]: the port is looked for all the same,
            /// since it may begin anew. [`PortError::TooManyDestinations`] for more than 32.
            pub fn follow(
                &mut self,
                name: &str,
                port: impl Into<MessagePort>,
            ) -> Result<(), PortError> {
                self.endpoint.follow(name, port.into().number()?)
            }

            /// Sends a message: one system call a frame; never waits. A peer's sampling port takes values of one frame
            /// only.
            ///
            /// # Errors
            /// [`SendError`]. Of a message in fragments, some may have been sent; the peer drops them.
            #[inline]
            pub fn send(
                &mut self,
                to: Destination,
                priority: Priority,
                message: &[u8],
            ) -> Result<(), SendError> {
                let Endpoint { core, handle, .. } = &mut self.endpoint;
                handle.process.check()?;
                with_core!(core, core => core.send(&handle.statistics, to, priority, message))
            }

            /// Sends an answer to the sender of a message, in the form that the message came in. The sender does not
            /// become a destination, so a port can answer any number of senders.
            ///
            /// A sender that is a destination of this port is answered as by [`send`](Self::send). Otherwise the answer
            /// has a number of one of 256 sequences, which the sender's address and port select: two senders that share
            /// a sequence count answers to the other as lost. On links `xdp` and `xsk`, each answer in the UDP form
            /// then looks up the MAC address: in the node's neighbour table, or, for a sender that is not in it, in the
            /// kernel's, which takes about 10 µs and allocates. A protected port answers neighbours that share keys,
            /// and no others.
            ///
            /// Never waits, but on link `vbus`: there the first answer to a port connects to it, which takes up to a
            /// second if the sender is stopped. The 32 ports that were answered last stay connected.
            ///
            /// # Errors
            /// [`SendError::NoWay`] if the sender cannot be reached, otherwise as [`send`](Self::send).
            pub fn reply(
                &mut self,
                to: Source,
                priority: Priority,
                message: &[u8],
            ) -> Result<(), SendError> {
                self.endpoint.reply((to, None), priority, message)
            }

            /// Sends an answer like [`reply`](Self::reply), and waits on link `vbus` until `deadline` for the sender's
            /// port to be connected.
            ///
            /// # Errors
            /// Those of [`reply`](Self::reply).
            pub fn reply_until(
                &mut self,
                to: Source,
                priority: Priority,
                message: &[u8],
                deadline: Instant,
            ) -> Result<(), SendError> {
                self.endpoint.reply((to, Some(deadline)), priority, message)
            }

            /// Sends messages in their order, with one system call for each 32 frames where the link can (`sendmmsg`).
            /// How many it took: all, unless the driver's transmit queue is full; the rest may be sent again later.
            /// What was merged before is sent first.
            ///
            /// # Errors
            /// [`SendError`] if it took none.
            pub fn send_batch(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
                let Endpoint { core, handle, .. } = &mut self.endpoint;
                handle.process.check()?;
                with_core!(core, core => core.send_batch(&handle.statistics, batch))
            }

            /// Lends the place of the next message of `length` bytes, to be filled and sent without being copied in
            /// this process: a slot that the receiver looks into on link `vbus`, else a buffer of the node's pool
            /// (`[send_pool]` in the configuration).
            ///
            /// # Errors
            /// [`SendError::PoolExhausted`] if all buffers of that size are lent; otherwise as [`send`](Self::send).
            #[inline]
            pub fn lend(
                &mut self,
                to: Destination,
                priority: Priority,
                length: usize,
            ) -> Result<Loan<'_>, SendError> {
                let Endpoint { core, handle, .. } = &mut self.endpoint;
                handle.process.check()?;
                let (owner, statistics) = (handle.node.as_ref(), &*handle.statistics);
                with_core!(core, core => core.lend_place(owner, statistics, (to, priority), length))
            }
        }

        waiting_port!($port, endpoint);
    };
}
pub(super) use message_port;

/// Functions that all ports share: how they wait.
macro_rules! waiting_port {
    ($port:ident, $state:ident) => {
        impl $port {
            /// How long a wait spins before it sleeps.
            #[must_use]
            pub fn spin(&self) -> Spin {
                self.$state.handle.spinner.setting()
            }

            /// Changes how long a wait spins before it sleeps, for a caller that waits in several steps. Nothing on a
            /// simulated network, where spinning does not move the time.
            pub fn set_spin(&mut self, spin: impl Into<Spin>) {
                self.$state.handle.set_spin(spin.into());
            }

            /// A descriptor for poll, select or epoll; `None` on a link that has none, and in a child of fork.
            ///
            /// It becomes readable when something comes after a receive, a read or a polling `next` that found nothing
            /// new. So: receive until there is nothing, then wait. From the first call on, each receive that finds
            /// nothing arms the descriptor, which costs it a little.
            pub fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
                self.$state.descriptor()
            }
        }
    };
}
pub(super) use waiting_port;

/// Common parts of both kinds of port: a number, a core, destinations. `R` is the receiving state of frames.
#[derive(Debug)]
pub(super) struct Endpoint<R> {
    pub(super) number: PortNumber,
    pub(super) core: AnyCore<R>,
    // Last: it holds the node.
    pub(super) handle: PortHandle,
}

impl<R> Endpoint<R> {
    pub(super) fn open(
        node: &Arc<dyn PortOwner>,
        number: PortNumber,
        opening: &Opening<'_>,
        receiver: impl FnOnce() -> R,
    ) -> Result<Self, PortError> {
        let (opened, handle) = opening.open(node)?;
        let core = AnyCore::new(
            (number, opening.types.sent_byte()),
            opened,
            node.watch(),
            receiver,
        );
        Ok(Self {
            number,
            core,
            handle,
        })
    }

    /// Resolves a neighbour's port. On a bus, waits for it until the deadline, or as the node is configured.
    pub(super) fn destination(
        &mut self,
        peer_port: (&str, PortNumber),
        deadline: Option<Instant>,
    ) -> Result<Destination, PortError> {
        self.handle.process.check()?;
        let (owner, statistics) = (self.handle.node.as_ref(), &self.handle.statistics);
        with_core!(&mut self.core, core => core.destination(owner, statistics, peer_port, deadline))
    }

    pub(super) fn readers(&mut self) -> Result<Destination, PortError> {
        self.handle.process.check()?;
        let readers = with_core!(&mut self.core, core => core.readers());
        readers.unwrap_or_else(|| Err(self.has_no_readers()))
    }

    pub(super) fn follow(&mut self, name: &str, port: PortNumber) -> Result<(), PortError> {
        self.handle.process.check()?;
        let _known = self.handle.node.neighbour_named(name)?;
        let followed = with_core!(&mut self.core, core => core.follow(name, port));
        followed.unwrap_or_else(|| Err(self.has_no_readers()))
    }

    fn has_no_readers(&self) -> PortError {
        PortError::NotOnLink {
            link: self.handle.node.link().kind().name(),
            what: "memory that many read; link vbus has",
        }
    }

    /// Sends an answer; on a bus, waits for its receiver's port until the deadline, or for the first attempt.
    pub(super) fn reply(
        &mut self,
        to: (Source, Option<Instant>),
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        self.handle.process.check()?;
        let (owner, statistics) = (self.handle.node.as_ref(), &self.handle.statistics);
        with_core!(&mut self.core, core => core.reply(owner, statistics, to, priority, message))
    }

    pub(super) fn flush(&mut self) -> Result<(), SendError> {
        self.handle.process.check()?;
        with_core!(&mut self.core, core => core.flush(&self.handle.statistics))
    }

    pub(super) fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        if self.handle.begins_to_notify()? {
            with_core!(&mut self.core, core => core.arm_descriptor());
        }
        with_core!(&self.core, core => core.descriptor())
    }
}

impl<R> Drop for Endpoint<R> {
    fn drop(&mut self) {
        // A merged frame goes out if it can; an application that must know flushes first.
        let _unsent = self.flush();
    }
}

/// Whether `buffer` can hold any message of the port.
#[inline]
pub(super) fn check_buffer(buffer: &[u8], needed: usize) -> Result<(), ReceiveError> {
    if buffer.len() < needed {
        return Err(ReceiveError::BufferTooSmall {
            given: buffer.len(),
            needed,
        });
    }
    Ok(())
}
