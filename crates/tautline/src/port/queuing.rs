//! The queuing port: keeps every message, hands out the most urgent first.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tautline_proto::authentication::Protection;
use tautline_proto::ip::DATAGRAM_BYTES_MAX;
use tautline_proto::time::Instant;
use tautline_proto::wire::{
    FRAGMENT_BYTES, MESSAGE_BYTES_MAX, PortKey, PortNumber, Priority, WHOLE_BYTES_MAX_ETHERNET,
};
use tautline_shm::region::Shape;
use tautline_shm::vbus::layout::MESSAGE_BYTES_MAX as BUS_MESSAGE_BYTES_MAX;

use super::core::{AnyCore, Core, QueueCore, with_core};
use super::endpoint::{Endpoint, check_buffer, message_port, waiting_port};
use super::frames::queue::Messages;
use super::inbox::Records;
use super::lent::{LentMessage, LentPlace, Loan, Received};
use super::opening::Opening;
use super::owner::PortOwner;
use super::spin::Spin;
use super::waiting::{Wait, wait_for};
use crate::address::Source;
use crate::error::{OptionsError, PortError, ReceiveError, SendError};
use crate::kind::LinkKind;
use crate::limits::{DEPTH_DEFAULT, DEPTH_MAX};
use crate::message::{Destination, Message, MessagePort, Outgoing};
use crate::policing::Policing;
use crate::types::PortTypes;

/// Options of a queuing port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuingOptions {
    /// Slots in each of the eight classes: a power of two, 2 to [`DEPTH_MAX`]. A message takes one
    /// slot, a larger one a slot for each 1,408 bytes.
    pub depth: u32,
    /// Largest message, in bytes, up to 65,536; on link `vbus` up to 16 MiB, and the port's memory must stay within
    /// 257 MiB (`docs/reference/vbus.md`). On other links a port for more than 1,484 takes buffers for reassembly, and
    /// a class must be deep enough for one whole message.
    pub message_bytes_max: usize,
    /// How long a receive until a deadline spins before it sleeps.
    pub spin: Spin,
    /// Limits beyond which frames are dropped on arrival; `None`: no limits.
    pub policing: Option<Policing>,
    /// How what the port sends is protected; it takes authentic frames only, protected in whichever way. `None`: not
    /// at all.
    pub protection: Option<Protection>,
}

impl Default for QueuingOptions {
    fn default() -> Self {
        Self {
            depth: DEPTH_DEFAULT,
            message_bytes_max: WHOLE_BYTES_MAX_ETHERNET,
            spin: Spin::Adaptive,
            policing: None,
            protection: None,
        }
    }
}

impl QueuingOptions {
    /// Checks the options against the limits above, of any link.
    ///
    /// # Errors
    /// [`OptionsError::Depth`], [`OptionsError::MessageSize`], [`OptionsError::Policing`].
    pub fn check(&self) -> Result<(), OptionsError> {
        if let Some(policing) = self.policing {
            policing.check()?;
        }
        if !self.depth.is_power_of_two() || !(2..=DEPTH_MAX).contains(&self.depth) {
            return Err(OptionsError::Depth { depth: self.depth });
        }
        check_bytes(self.message_bytes_max, Some(LinkKind::Vbus))
    }

    /// Checks the options for a key against the limits of a link; of one that sends frames if it is not known.
    pub(crate) fn check_on(
        &self,
        key: PortKey,
        link: Option<LinkKind>,
    ) -> Result<(), OptionsError> {
        self.check()?;
        let bytes = self.message_bytes_max;
        check_bytes(bytes, link)?;
        let refused = |why| Err(OptionsError::MessageSize { bytes, why });
        if matches!(key, PortKey::Udp(_)) && bytes > DATAGRAM_BYTES_MAX {
            return refused("a datagram has at most 65,507");
        }
        if link != Some(LinkKind::Vbus)
            && self.is_fragmenting()
            && bytes.div_ceil(FRAGMENT_BYTES) > self.depth as usize
        {
            return refused("a class must have a slot for each 1,408 bytes; raise the depth");
        }
        Ok(())
    }

    pub(super) fn is_fragmenting(&self) -> bool {
        self.message_bytes_max > WHOLE_BYTES_MAX_ETHERNET
    }
}

/// Checks the size of the largest message, or value, of a port on a link; of one that sends frames if it is not known.
pub(super) fn check_bytes(bytes: usize, link: Option<LinkKind>) -> Result<(), OptionsError> {
    let (most, why) = match link {
        Some(LinkKind::Vbus) => (BUS_MESSAGE_BYTES_MAX, "1 to 16,777,216 bytes"),
        _ => (MESSAGE_BYTES_MAX, "1 to 65,536 bytes"),
    };
    match bytes {
        0 => Err(OptionsError::MessageSize { bytes, why }),
        _ if bytes > most => Err(OptionsError::MessageSize { bytes, why }),
        _ => Ok(()),
    }
}

/// A port that keeps every message, and hands out the most urgent first.
///
/// Eight classes, one for each priority, each of a fixed depth and first in, first out. A full class drops and
/// counts its further messages, and takes no room from the others.
///
/// A server answers senders that are no destinations of its port:
///
/// ```
/// # use tautline::{Node, NodeConfig, Priority, Wait, neighbour};
/// # let here = [127, 0, 0, 1].into();
/// # let node = Node::open(NodeConfig::udp(here).with_neighbour(neighbour("server", here))?)?;
/// # let mut client = node.queuing(2025).open()?;
/// # let mut server = node.queuing(2026).open()?;
/// # let to = client.destination("server", server.number())?;
/// # client.send(to, Priority::NORMAL, b"position?")?;
/// # let mut buffer = [0; 1484];
/// let question = server.receive_into(&mut buffer, Wait::Forever)?.expect("no deadline");
/// server.reply(question.source, question.priority, b"3 mm")?;
/// # let answer = client.receive_into(&mut buffer, Wait::Forever)?.expect("no deadline");
/// # assert_eq!(&buffer[..answer.length], b"3 mm");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A port on a bus publishes once for all that follow it:
///
/// ```
/// use tautline::config::BusConfig;
/// use tautline::{Node, NodeConfig, Priority, Wait, bus_neighbour};
///
/// # let bus = format!("/run/taut-doc-messages-{}", std::process::id());
/// let open = |name: &str, peer: &str| -> Result<Node, Box<dyn std::error::Error>> {
///     let config = NodeConfig::vbus(BusConfig::new(&bus, name.parse()?));
///     Ok(Node::open(config.with_neighbour(bus_neighbour(peer.parse()?))?)?)
/// };
/// let (planner, logger) = (open("planner", "logger")?, open("logger", "planner")?);
/// let mut events = planner.queuing(5).open()?;
/// let readers = events.readers()?;
/// let mut log = logger.queuing(6).open()?;
/// log.follow("planner", events.number())?;
/// events.send(readers, Priority::NORMAL, b"gripper closed")?;
/// let message = log.receive(Wait::Forever)?.expect("no deadline");
/// assert_eq!(&*message, b"gripper closed");
/// drop(message);
/// assert_eq!(log.overwritten(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct QueuingPort {
    endpoint: Endpoint<Records<Messages>>,
    message_bytes_max: usize,
    /// On a bus, room for a message of its own: a peer can write where messages lie. Empty elsewhere.
    copy: Box<[u8]>,
}

message_port!(QueuingPort);

impl QueuingPort {
    pub(crate) fn open(
        node: &Arc<dyn PortOwner>,
        number: PortNumber,
        name: Option<&str>,
        options: &QueuingOptions,
        types: &PortTypes,
    ) -> Result<Self, PortError> {
        options.check_on(number.into(), Some(node.link().kind()))?;
        let opening = Opening {
            key: number.into(),
            name,
            shape: Shape::Queuing {
                depth: options.depth,
            },
            bytes_max: options.message_bytes_max,
            refresh_period: None,
            spin: options.spin,
            policing: options.policing,
            protection: options.protection,
            types,
        };
        let receiver = || Records::new(options.depth, Messages::new(options, types.into()));
        let endpoint = Endpoint::open(node, number, &opening, receiver)?;
        let copied_bytes = match node.link().kind() {
            LinkKind::Vbus => options.message_bytes_max,
            _ => 0,
        };
        Ok(Self {
            endpoint,
            message_bytes_max: options.message_bytes_max,
            copy: vec![0; copied_bytes].into(),
        })
    }

    /// Messages of ports that this one [follows](Self::follow) that were replaced before this port took them, since it
    /// was opened. It is told when a look has found out: after it has returned a later message, or none.
    #[must_use]
    pub fn overwritten(&self) -> u64 {
        with_core!(&self.endpoint.core, core => core.overwritten())
    }

    /// Merges small messages into one frame. The frame leaves when it is full, when a message to another destination or
    /// of another priority comes, or when [`QueuingPort::flush`] is called. There is no timer: the last messages wait
    /// for a flush. A message too large to be merged is sent alone, as by [`QueuingPort::send`]. The receiver gets the
    /// messages one by one; it must be a queuing port that knows bundles (`docs/reference/wire.md`).
    ///
    /// ```
    /// # use tautline::{Node, NodeConfig, Priority, Wait, neighbour};
    /// # let here = [127, 0, 0, 1].into();
    /// # let node = Node::open(NodeConfig::udp(here).with_neighbour(neighbour("there", here))?)?;
    /// # let mut sender = node.queuing(2021).open()?;
    /// # let mut receiver = node.queuing(2022).open()?;
    /// let to = sender.destination("there", receiver.number())?;
    /// for joint in 0..6_u8 {
    ///     sender.merge(to, Priority::NORMAL, &[joint; 16])?;
    /// }
    /// sender.flush()?;                                         // one frame
    /// for joint in 0..6 {
    ///     let message = receiver.receive(Wait::Forever)?.expect("no deadline");
    ///     assert_eq!(*message, [joint; 16]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`SendError`] if a frame had to be sent first and could not: the frame stays, and this message was not
    /// taken. Try again, or drop the merged messages with the port.
    #[inline]
    pub fn merge(
        &mut self,
        to: Destination,
        priority: Priority,
        message: &[u8],
    ) -> Result<(), SendError> {
        let Endpoint { core, handle, .. } = &mut self.endpoint;
        handle.process.check()?;
        with_core!(core, core => core.merge(&handle.statistics, to, priority, message))
    }

    /// Sends what is merged, if there is any.
    ///
    /// # Errors
    /// [`SendError`]; it stays merged.
    pub fn flush(&mut self) -> Result<(), SendError> {
        self.endpoint.flush()
    }

    /// Receives the most urgent message; `None` if the wait has ended without one. The message stays in the port's
    /// memory until it is dropped, and its slot counts as taken in its class. On link `vbus` it is a copy, since the
    /// sender can write where messages lie.
    ///
    /// ```
    /// # use tautline::{Node, NodeConfig, Priority, Wait, neighbour};
    /// # let here = [127, 0, 0, 1].into();
    /// # let node = Node::open(NodeConfig::udp(here).with_neighbour(neighbour("there", here))?)?;
    /// # let mut sender = node.queuing(2023).open()?;
    /// # let mut receiver = node.queuing(2024).open()?;
    /// let to = sender.destination("there", receiver.number())?;
    /// let mut loan = sender.lend(to, Priority::NORMAL, 5)?;
    /// loan.copy_from_slice(b"ready");
    /// loan.send()?;
    /// let message = receiver.receive(Wait::Forever)?.expect("no deadline");
    /// assert_eq!((&*message, message.priority()), (&b"ready"[..], Priority::NORMAL));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn receive(&mut self, wait: Wait) -> Result<Option<Received<'_>>, ReceiveError> {
        if self.copy.is_empty() {
            return Ok(self.receive_in_place(wait)?.map(Received::own));
        }
        let mut copy = std::mem::take(&mut self.copy);
        let received = self.receive_into(&mut copy, wait);
        self.copy = copy;
        let own = |message: Message| {
            let bytes = &self.copy[..message.length];
            Received::own(LentMessage::of(LentPlace::collected(bytes), &message))
        };
        Ok(received?.map(own))
    }

    /// Receives the most urgent message like [`receive`](Self::receive), and copies it into `buffer`, which must hold
    /// [`QueuingPort::message_bytes_max`]. The port is not borrowed: it can answer while the message is read.
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn receive_into(
        &mut self,
        buffer: &mut [u8],
        wait: Wait,
    ) -> Result<Option<Message>, ReceiveError> {
        check_buffer(buffer, self.message_bytes_max)?;
        let endpoint = &mut self.endpoint;
        endpoint.handle.process.check()?;
        let (statistics, notify) = (&endpoint.handle.statistics, endpoint.handle.notify);
        let spinner = &mut endpoint.handle.spinner;
        with_core!(&mut endpoint.core, core => match wait.deadline() {
            None => core.take_next(statistics, notify, buffer),
            Some(deadline) => {
                wait_for(core, spinner, deadline, |core| core.look(statistics, buffer))
            }
        })
    }

    /// Receives the most urgent message like [`receive`](Self::receive), where it lies on every link: on link `vbus`
    /// in the sender's memory, without a copy.
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn receive_in_place(
        &mut self,
        wait: Wait,
    ) -> Result<Option<LentMessage<'_>>, ReceiveError> {
        let endpoint = &mut self.endpoint;
        endpoint.handle.process.check()?;
        let (statistics, notify) = (&endpoint.handle.statistics, endpoint.handle.notify);
        let spinner = &mut endpoint.handle.spinner;
        with_core!(&mut endpoint.core, core => match wait.deadline() {
            None => core.lend_next(statistics, notify),
            Some(deadline) => {
                let found = wait_for(core, spinner, deadline, |core| core.seek(statistics))?;
                Ok(found.and_then(|found| core.lend_found(statistics, found)))
            }
        })
    }

    /// Bytes of the largest message that the port can hold.
    #[must_use]
    pub fn message_bytes_max(&self) -> usize {
        self.message_bytes_max
    }

    /// Makes messages of another type errors of receiving; otherwise they are passed over.
    pub(super) fn make_other_types_errors(&mut self) {
        if let AnyCore::Frames(frames) = &mut self.endpoint.core {
            frames.receiver().decoder.make_other_types_errors();
        }
    }

    /// Counts a message of another size than the port's type.
    pub(super) fn count_other_size(&self) {
        self.endpoint.handle.statistics.other_size.add(1);
    }
}
