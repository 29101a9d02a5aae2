//! The raw port: whole Ethernet frames of one EtherType, for protocols that are not ours.

use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tautline_proto::time::Instant;
use tautline_proto::wire::Priority;
use tautline_proto::wire::ethernet::ETHERNET_HEADER_BYTES;
use tautline_proto::wire::raw::{
    EtherType, RAW_FRAME_BYTES_MAX, RAW_HEAD_BYTES, RawFrame, RawHead,
};
use tautline_shm::layout::{source_form, source_parts};
use tautline_shm::queue::Record;

use super::QueuingOptions;
use super::endpoint::{check_buffer, waiting_port};
use super::inbox::{Decoder, Inbox, Location, Whole};
use super::owner::PortOwner;
use super::receiver::Receiver;
use super::spin::Spin;
use super::waiting::Wait;
use crate::error::{PortError, ReceiveError, SendError};
use crate::link::OutFrame;
use crate::statistics::Statistics;

/// A frame that was received into the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedFrame {
    /// Its bytes from the start of the buffer: Ethernet header without a tag, and payload with its padding.
    pub length: usize,
    /// Priority of the 802.1Q tag that it came with; the lowest without one, and on link `packet`.
    pub priority: Priority,
    /// When it arrived, on the link's arrival clock.
    pub arrival: Instant,
}

/// A frame that was received: it derefs to its bytes, Ethernet header without a tag, and payload with its padding.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'p> {
    bytes: &'p [u8],
    frame: ReceivedFrame,
}

impl Frame<'_> {
    /// Priority of the 802.1Q tag that it came with; the lowest without one, and on link `packet`.
    #[inline]
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.frame.priority
    }

    /// When it arrived, on the link's arrival clock.
    #[inline]
    #[must_use]
    pub fn arrival(&self) -> Instant {
        self.frame.arrival
    }
}

impl Deref for Frame<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

/// A port for the frames of one EtherType that is neither Linux's nor the node's own: EtherCAT, PROFINET, LLDP, a
/// protocol of your own. It sends and receives whole frames, on links `xdp` and `xsk` past the kernel's protocol stack,
/// on `packet` through packet sockets: [`Capabilities::raw_frames`](crate::link::Capabilities::raw_frames).
///
/// Frames are taken if they are for this station or for a group, and are in no VLAN. They are kept as in a
/// [`QueuingPort`](crate::QueuingPort): by the priority of their tag, the most urgent first, first in first out within
/// a priority; frames without a tag have the lowest, and on link `packet` all have, because the kernel takes tags away.
/// On links `xdp` and `xsk` Linux does not see them. A frame is sent as it is given, so that a protocol may write any
/// sender's address, and a tag; through a control process, what the policy gives.
///
/// ```no_run
/// use tautline::{EtherType, LinkKind, Node, NodeConfig, Wait};
///
/// let node = Node::open(NodeConfig::on("eth0").with_link(LinkKind::Xdp))?;
/// let mut port = node.raw(EtherType::ETHERCAT).open()?;
/// let mut question = vec![0xFF; 6]; // to all
/// question.extend([0x02, 0, 0, 0, 0, 1, 0x88, 0xA4]);
/// question.extend([0x0E, 0x10, 7, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
/// question.resize(60, 0);
/// port.send(&question)?;
///
/// let frame = port.receive(Wait::Forever)?.expect("no deadline");
/// println!("{:02x?}", &*frame);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RawPort {
    ethertype: EtherType,
    receiver: Receiver<Frames>,
    /// The frame that was received last.
    copy: Box<[u8]>,
}

impl RawPort {
    pub(crate) fn open(
        node: &Arc<dyn PortOwner>,
        ethertype: EtherType,
        name: Option<&str>,
        options: &QueuingOptions,
    ) -> Result<Self, PortError> {
        if node.ethertype() == ethertype.get() {
            return Err(PortError::NotAllowed {
                key: ethertype.into(),
                why: "it is this node's own, as its `ethertype` says".to_owned(),
            });
        }
        let options = QueuingOptions {
            message_bytes_max: RAW_FRAME_BYTES_MAX,
            ..options.clone()
        };
        Ok(Self {
            ethertype,
            receiver: Receiver::open(node, (ethertype.into(), name), &options, || Ok(Frames))?,
            copy: vec![0; RAW_FRAME_BYTES_MAX].into(),
        })
    }

    /// EtherType of its frames.
    #[must_use]
    pub fn ethertype(&self) -> EtherType {
        self.ethertype
    }

    /// Sends a whole frame, from the destination's address to the end of the payload, with one system call. Never
    /// waits. Its EtherType, behind a tag if it has one, must be the port's. A frame of less than 60 bytes is padded
    /// by network cards, and not on virtual cables.
    ///
    /// # Errors
    /// [`SendError::ForeignFrame`], [`SendError::FrameTooLarge`] beyond 1,500 bytes of payload or the interface's MTU,
    /// through a control process [`SendError::PriorityNotAllowed`] and [`SendError::SourceNotAllowed`], else
    /// [`SendError`]; the frame was not sent.
    #[inline]
    pub fn send(&mut self, frame: &[u8]) -> Result<(), SendError> {
        self.receiver.handle.process.check()?;
        let priority = self.check_frame(frame);
        let link = self.receiver.inbox.link.as_mut();
        let result = priority.and_then(|priority| link.send(&OutFrame::whole(frame, priority)));
        let statistics = &self.receiver.handle.statistics;
        match result {
            Ok(()) => statistics.sent.add(1, frame.len()),
            Err(_) => statistics.send_errors.add(1),
        }
        result
    }

    /// The priority of a frame that may be sent.
    fn check_frame(&self, frame: &[u8]) -> Result<Priority, SendError> {
        match RawFrame::parse(frame) {
            Some(parsed) if parsed.ethertype == self.ethertype.get() => {
                self.receiver.inbox.link.permit().check(&parsed)?;
                Ok(parsed.priority)
            }
            None if frame.len() > RAW_FRAME_BYTES_MAX => Err(SendError::FrameTooLarge),
            _ => Err(SendError::ForeignFrame),
        }
    }

    /// Receives the most urgent frame; `None` if the wait has ended without one. It is put together in the port's
    /// buffer.
    ///
    /// # Errors
    /// [`ReceiveError`].
    #[inline]
    pub fn receive(&mut self, wait: Wait) -> Result<Option<Frame<'_>>, ReceiveError> {
        let frame = self.receiver.receive_into(&mut self.copy, wait)?;
        Ok(frame.map(|frame| Frame {
            bytes: &self.copy[..frame.length],
            frame,
        }))
    }

    /// Receives the most urgent frame like [`receive`](Self::receive), and copies it into `buffer`. The port is not
    /// borrowed: it can send while the frame is read.
    ///
    /// # Errors
    /// [`ReceiveError::BufferTooSmall`] below [`RAW_FRAME_BYTES_MAX`] bytes, else [`ReceiveError`].
    #[inline]
    pub fn receive_into(
        &mut self,
        buffer: &mut [u8],
        wait: Wait,
    ) -> Result<Option<ReceivedFrame>, ReceiveError> {
        check_buffer(buffer, RAW_FRAME_BYTES_MAX)?;
        self.receiver.receive_into(buffer, wait)
    }
}

waiting_port!(RawPort, receiver);

/// Form of whole frames of other protocols.
#[derive(Debug)]
struct Frames;

impl Decoder for Frames {
    type Item = ReceivedFrame;

    #[inline]
    fn length_and_arrival(item: &ReceivedFrame) -> (usize, Instant) {
        (item.length, item.arrival)
    }

    #[inline]
    fn take_whole(
        &mut self,
        _inbox: &Inbox,
        statistics: &Statistics,
        record: &Record<'_>,
        buffer: &mut [u8],
    ) -> Whole<ReceivedFrame> {
        match read(record, buffer) {
            Some(frame) => Whole::Taken(frame),
            None => {
                // A slot that the demux claimed and could not fill, or that another process scribbled on.
                statistics.void.add(1);
                Whole::Dropped
            }
        }
    }

    fn find_in(
        &mut self,
        _inbox: &Inbox,
        statistics: &Statistics,
        record: &Record<'_>,
    ) -> Result<Option<(ReceivedFrame, Location)>, ReceiveError> {
        let frame = facts(record).map(|(frame, _)| (frame, Location::whole(record)));
        if frame.is_none() {
            statistics.void.add(1);
        }
        Ok(frame)
    }

    fn copy(record: &Record<'_>, _offset: usize, bytes: &mut [u8]) {
        let _known_to_fit = read(record, bytes);
    }
}

/// Facts about the frame in a record, and its head; `None` where there is none.
#[inline]
fn facts(record: &Record<'_>) -> Option<(ReceivedFrame, RawHead)> {
    let stored = record.slot.head();
    let head = RawHead::from_bytes(stored.header.first_chunk::<RAW_HEAD_BYTES>()?)?;
    let frame = ReceivedFrame {
        length: ETHERNET_HEADER_BYTES + usize::from(head.length),
        priority: head.priority,
        arrival: Instant::from_nanos(stored.arrival_ns),
    };
    let (_, form) = source_parts(stored.source);
    (form == source_form::RAW).then_some((frame, head))
}

/// Puts a frame together again: addresses, EtherType, payload. `None` if `buffer` has no room for it.
#[inline]
fn read(record: &Record<'_>, buffer: &mut [u8]) -> Option<ReceivedFrame> {
    let (frame, head) = facts(record)?;
    let stored = record.slot.head();
    let (source, _) = source_parts(stored.source);
    let (header, payload) = buffer.split_first_chunk_mut::<ETHERNET_HEADER_BYTES>()?;
    header[..6].copy_from_slice(&head.destination.0);
    header[6..12].copy_from_slice(&source);
    header[12..].copy_from_slice(&head.ethertype.to_be_bytes());
    let payload = payload.get_mut(..usize::from(head.length))?;
    // The payload begins behind the head, in the header's place.
    let first = &stored.header[RAW_HEAD_BYTES..];
    let (begin, rest) = payload.split_at_mut(payload.len().min(first.len()));
    begin.copy_from_slice(&first[..begin.len()]);
    record.slot.read_payload(rest);
    Some(frame)
}
