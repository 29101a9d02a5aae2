//! Common parts of both kinds of port: a number, a link, destinations, and how to wait.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::authentication::Protection;
use tautline_proto::neighbour::Neighbour;
use tautline_proto::time::Instant;
use tautline_proto::wire::{PortNumber, Priority};
use tautline_shm::region::Shape;
use tautline_state::fork::OwnerProcess;

use super::authenticated::{self, Protecting};
use super::core::{AnyCore, Core, with_core};
use super::lent::Loan;
use super::list::{OpenPort, ProtectedPort};
use super::open_list::Registration;
use super::owner::PortOwner;
use super::spin::{Spin, Spinner};
use crate::address::Source;
use crate::error::{PortError, ReceiveError, SendError};
use crate::kind::LinkKind;
use crate::limits::VALUE_BYTES_DEFAULT;
use crate::link::{ArrivalClock, PortHalf, PortRequest};
use crate::message::{Destination, Outgoing};
use crate::policing::Policing;
use crate::send_pool::SendPool;
use crate::statistics::Statistics;
use crate::sys::clock;
use crate::types::PortTypes;

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
                to: impl Into<PeerPort>,
            ) -> Result<Destination, PortError> {
                self.endpoint.destination(name, to.into().number()?)
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
                to: impl Into<PeerPort>,
                deadline: Instant,
            ) -> Result<Destination, PortError> {
                self.endpoint
                    .destination_until(name, to.into().number()?, deadline)
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
            /// this port takes smaller messages, [`PortError::PeerOtherType`], [`PortError::PeerDenies`]: the port is
            /// looked for all the same, since it may begin anew. [`PortError::TooManyDestinations`] for more than 32.
            pub fn follow(
                &mut self,
                name: &str,
                port: impl Into<PeerPort>,
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
                self.endpoint.send(to, priority, message)
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
            /// As [`reply`](Self::reply).
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
                self.endpoint.send_batch(batch)
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
                self.endpoint.lend(to, priority, length)
            }

            /// How long a wait spins before it sleeps.
            #[must_use]
            pub fn spin(&self) -> Spin {
                self.endpoint.spinner.setting()
            }

            /// Changes how long a wait spins before it sleeps, for a caller that waits in several steps. Nothing on a
            /// simulated network, where spinning does not move the time.
            pub fn set_spin(&mut self, spin: impl Into<Spin>) {
                self.endpoint.set_spin(spin.into());
            }

            /// A descriptor for poll, select or epoll; `None` on a link that has none, and in a child of fork.
            ///
            /// It becomes readable when a message comes after a receive, a read or a polling `next` that found nothing
            /// new. So: receive until there is nothing, then wait. From the first call on, each receive that finds
            /// nothing arms the descriptor, which costs it a little.
            pub fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
                self.endpoint.descriptor()
            }
        }
    };
}
pub(super) use message_port;

/// Common parts of both kinds of port: a number, a core, destinations. `R` is the receiving state of frames.
#[derive(Debug)]
pub(super) struct Endpoint<R> {
    pub(super) number: PortNumber,
    pub(super) core: AnyCore<R>,
    pub(super) statistics: Arc<Statistics>,
    pub(super) spinner: Spinner,
    /// Whether a receive that finds nothing arms the descriptor.
    pub(super) notify: bool,
    _registration: Registration,
    pub(super) process: OwnerProcess,
    send_pool: Arc<SendPool>,
    // Last: the demux must outlive the port's place in it.
    node: Arc<dyn PortOwner>,
}

/// Properties of a port that is opened, common to both kinds.
pub(super) struct Opening<'a> {
    pub(super) number: PortNumber,
    pub(super) name: Option<&'a str>,
    pub(super) shape: Shape,
    pub(super) message_bytes_max: usize,
    /// Age up to which a value is valid (sampling).
    pub(super) refresh_period: Option<Duration>,
    pub(super) spin: Spin,
    pub(super) policing: Option<Policing>,
    pub(super) protection: Option<Protection>,
    pub(super) types: &'a PortTypes,
}

impl<R> Endpoint<R> {
    pub(super) fn open(
        node: &Arc<dyn PortOwner>,
        opening: &Opening<'_>,
        receiver: impl FnOnce() -> R,
    ) -> Result<Self, PortError> {
        let &Opening {
            number,
            shape,
            message_bytes_max,
            policing,
            ..
        } = opening;
        let bucket = policing.map(|policing| policing.bucket()).transpose()?;
        node.check_caller()?;
        let reservation = node
            .ports()
            .reserve(number.into())
            .ok_or(PortError::OpenHere { key: number.into() })?;
        let capabilities = node.link().capabilities();
        let lacking = |what| PortError::NotOnLink {
            link: node.link().kind().name(),
            what,
        };
        if bucket.is_some() && !capabilities.polices {
            return Err(lacking("policing: each sender has a ring of its own"));
        }
        let value_bytes_max = capabilities.whole_bytes_max.max(VALUE_BYTES_DEFAULT);
        if matches!(shape, Shape::Sampling { .. }) && message_bytes_max > value_bytes_max {
            return Err(lacking("values of more than one frame"));
        }
        if opening.protection.is_some() && node.link().kind() == LinkKind::Vbus {
            return Err(lacking("protection: its messages do not leave the machine"));
        }
        let has_real_time = capabilities.arrival_clock != ArrivalClock::Virtual;
        let protecting = opening.protection.map(|protection| Protecting {
            protection,
            keys: node.keys(),
            own: node.own_stations(),
            shape,
            has_real_time,
        });
        if protecting.as_ref().is_some_and(|with| with.keys.is_empty()) {
            return Err(PortError::NoKeys { name: None });
        }
        let opened = node.link().open_port(PortRequest {
            key: number.into(),
            shape: match &protecting {
                None => shape,
                Some(_) => authenticated::waiting_shape(shape),
            },
            message_bytes_max,
            types: opening.types.clone(),
        })?;
        let protection = match (&opened, &protecting) {
            (PortHalf::Frames(port), Some(with)) => {
                let waiting = Arc::clone(&port.memory);
                Some(authenticated::protect(waiting, number.get(), with)?)
            }
            _ => None,
        };
        let protected = opening.protection.zip(protection.as_ref());
        let protected = protected.map(|(protection, (_, check))| ProtectedPort {
            protection,
            waiting: Arc::clone(check.waiting()),
            checked: Arc::clone(check.counters()),
        });
        let core = AnyCore::new(
            (number, opening.types.sent_byte()),
            (opened, protection),
            node.watch(),
            receiver,
        );
        with_core!(&core, core => core.police(bucket));
        let statistics = Arc::new(Statistics::default());
        let spinner = Spinner::new(node.as_ref(), opening.spin, &statistics);
        node.port_opened();
        let memory = with_core!(&core, core => core.open_memory());
        let registration = reservation.fill(OpenPort {
            name: opening.name.map(str::to_owned),
            types: opening.types.clone(),
            refresh_period: opening.refresh_period,
            has_real_time,
            memory,
            protected,
            statistics: Arc::clone(&statistics),
        });
        Ok(Self {
            number,
            core,
            statistics,
            spinner,
            notify: false,
            _registration: registration,
            process: OwnerProcess::current(),
            send_pool: Arc::clone(node.send_pool()),
            node: Arc::clone(node),
        })
    }

    pub(super) fn destination(
        &mut self,
        name: &str,
        to: PortNumber,
    ) -> Result<Destination, PortError> {
        self.process.check()?;
        let wait = with_core!(&self.core, core => core.peer_wait());
        if wait.is_zero() {
            return self.resolve(name, to);
        }
        self.destination_until(name, to, clock::monotonic() + wait)
    }

    pub(super) fn destination_until(
        &mut self,
        name: &str,
        to: PortNumber,
        deadline: Instant,
    ) -> Result<Destination, PortError> {
        self.process.check()?;
        let destination = match self.known(name, to) {
            Some(known) => known,
            None => {
                let neighbour = self.node.neighbour_named(name)?;
                self.add(&neighbour, name, to)?
            }
        };
        with_core!(&self.core, core => core.wait_for_peer(destination, deadline))?;
        Ok(destination)
    }

    pub(super) fn readers(&mut self) -> Result<Destination, PortError> {
        self.process.check()?;
        let readers = with_core!(&mut self.core, core => core.readers());
        readers.unwrap_or_else(|| Err(self.has_no_readers()))
    }

    pub(super) fn follow(&mut self, name: &str, port: PortNumber) -> Result<(), PortError> {
        self.process.check()?;
        let _known = self.node.neighbour_named(name)?;
        let followed = with_core!(&mut self.core, core => core.follow(name, port));
        followed.unwrap_or_else(|| Err(self.has_no_readers()))
    }

    fn has_no_readers(&self) -> PortError {
        PortError::NotOnLink {
            link: self.node.link().kind().name(),
            what: "memory that many read; link vbus has",
        }
    }

    fn resolve(&mut self, name: &str, to: PortNumber) -> Result<Destination, PortError> {
        if let Some(known) = self.known(name, to) {
            with_core!(&self.core, core => core.wait_for_attempt(known))?;
            return Ok(known);
        }
        let neighbour = self.node.neighbour_named(name)?;
        let destination = self.add(&neighbour, name, to)?;
        with_core!(&self.core, core => core.wait_for_attempt(destination))?;
        Ok(destination)
    }

    fn known(&self, name: &str, to: PortNumber) -> Option<Destination> {
        with_core!(&self.core, core => core.known(name, to))
    }

    fn add(
        &mut self,
        neighbour: &Neighbour,
        name: &str,
        to: PortNumber,
    ) -> Result<Destination, PortError> {
        let way = (self.node.link(), self.node.marking());
        with_core!(&mut self.core, core => core.add(way, neighbour, (name, to), &self.statistics))
    }

    #[inline]
    pub(super) fn send(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        self.process.check()?;
        with_core!(&mut self.core, core => core.send(&self.statistics, to, priority, message))
    }

    /// Sends an answer; on a bus, waits for its receiver's port until the deadline, or for the first attempt.
    pub(super) fn reply(
        &mut self,
        to: (Source, Option<Instant>),
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        self.process.check()?;
        let (owner, statistics) = (self.node.as_ref(), &self.statistics);
        with_core!(&mut self.core, core => core.reply(owner, statistics, to, priority, message))
    }

    pub(super) fn send_batch(&mut self, batch: &[Outgoing<'_>]) -> Result<usize, SendError> {
        self.process.check()?;
        with_core!(&mut self.core, core => core.send_batch(&self.statistics, batch))
    }

    /// Lends the place of the next message.
    #[inline(always)]
    pub(super) fn lend(
        &mut self,
        to: Destination,
        priority: Priority,
        length: usize,
    ) -> Result<Loan<'_>, SendError> {
        self.process.check()?;
        let (pool, statistics) = (&self.send_pool, &self.statistics);
        with_core!(&mut self.core, core => core.lend_place(pool, statistics, (to, priority), length))
    }

    pub(super) fn merge(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        self.process.check()?;
        with_core!(&mut self.core, core => core.merge(&self.statistics, to, priority, message))
    }

    pub(super) fn flush(&mut self) -> Result<(), SendError> {
        self.process.check()?;
        with_core!(&mut self.core, core => core.flush(&self.statistics))
    }

    pub(super) fn set_spin(&mut self, spin: Spin) {
        self.spinner = Spinner::new(self.node.as_ref(), spin, &self.statistics);
    }

    /// From the first call on, a look that finds nothing arms the descriptor. Later calls must not:
    /// arming forgets rings that came before it.
    pub(super) fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        self.process.check().ok()?;
        if !self.notify {
            self.notify = true;
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
