//! The raw port: whole Ethernet frames of one EtherType, for protocols that are not ours.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tautline_proto::time::Instant;
use tautline_proto::wire::Priority;
use tautline_proto::wire::ethernet::ETHERNET_HEADER_BYTES;
use tautline_proto::wire::raw::{
    EtherType, RAW_FRAME_BYTES_MAX, RAW_HEAD_BYTES, RawFrame, RawHead,
};
use tautline_shm::layout::source_form;
use tautline_shm::layout::source_parts;
use tautline_shm::police;
use tautline_shm::queue::{Consumer, Record};
use tautline_shm::region::{PortMemory, Shape};
use tautline_state::fork::OwnerProcess;

use super::QueuingOptions;
use super::endpoint::check_buffer;
use super::open_list::Registration;
use super::owner::PortOwner;
use super::raw_list::{OpenRawPort, RawStatistics};
use super::spin::{Spin, Spinner};
use super::waiting::{Bell, check_interface, wait_for};
use crate::error::{OptionsError, PortError, ReceiveError, SendError};
use crate::limits::DEPTH_DEFAULT;
use crate::link::RawPortLink;
use crate::policing::Policing;
use crate::sys::interface::InterfaceWatch;

/// Options of a raw port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawOptions {
    /// Slots in each of the eight classes: a power of two, 2 to [`DEPTH_MAX`](crate::port::DEPTH_MAX). A frame takes
    /// one.
    pub depth: u32,
    /// How long a receive until a deadline spins before it sleeps.
    pub spin: Spin,
    /// Limits beyond which frames are dropped on arrival; `None`: no limits.
    pub policing: Option<Policing>,
}

impl Default for RawOptions {
    fn default() -> Self {
        Self {
            depth: DEPTH_DEFAULT,
            spin: Spin::Adaptive,
            policing: None,
        }
    }
}

impl From<&QueuingOptions> for RawOptions {
    fn from(options: &QueuingOptions) -> Self {
        Self {
            depth: options.depth,
            spin: options.spin,
            policing: options.policing,
        }
    }
}

impl RawOptions {
    /// Checks the limits above.
    ///
    /// # Errors
    /// [`OptionsError::Depth`], [`OptionsError::Policing`].
    pub fn check(&self) -> Result<(), OptionsError> {
        QueuingOptions {
            depth: self.depth,
            policing: self.policing,
            ..QueuingOptions::default()
        }
        .check_on(None)
    }
}

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
/// use tautline::{EtherType, Instant, LinkKind, Node, NodeConfig, RAW_FRAME_BYTES_MAX, RawOptions};
///
/// let node = Node::open(NodeConfig::on("eth0").with_link(LinkKind::Xdp))?;
/// let mut port = node.raw_port(EtherType::ETHERCAT, &RawOptions::default())?;
/// let mut question = vec![0xFF; 6]; // to all
/// question.extend([0x02, 0, 0, 0, 0, 1, 0x88, 0xA4]);
/// question.extend([0x0E, 0x10, 7, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
/// question.resize(60, 0);
/// port.send(&question)?;
///
/// let mut buffer = [0; RAW_FRAME_BYTES_MAX];
/// let frame = port.receive_until(Instant::FAR_FUTURE, &mut buffer)?.expect("no deadline");
/// println!("{:02x?}", &buffer[..frame.length]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RawPort {
    ethertype: EtherType,
    receiver: Receiver,
    spinner: Spinner,
    process: OwnerProcess,
    // Last: the demux must outlive the port's place in it.
    node: Arc<dyn PortOwner>,
}

/// The link's half, and what is received with.
#[derive(Debug)]
struct Receiver {
    link: Box<dyn RawPortLink>,
    consumer: Consumer,
    statistics: Arc<RawStatistics>,
    notify: bool,
    watch: Option<Arc<InterfaceWatch>>,
    _registration: Registration<EtherType, OpenRawPort>,
}

impl RawPort {
    pub(crate) fn open(
        node: &Arc<dyn PortOwner>,
        ethertype: EtherType,
        name: Option<&str>,
        options: &RawOptions,
    ) -> Result<Self, PortError> {
        options.check()?;
        let bucket = options
            .policing
            .map(|policing| policing.bucket())
            .transpose()?;
        if node.ethertype() == ethertype.get() {
            return Err(PortError::NotAllowed {
                key: ethertype.into(),
                why: "it is this node's own, as its `ethertype` says".to_owned(),
            });
        }
        node.check_caller()?;
        let reservation = node
            .raw_ports()
            .reserve(ethertype)
            .ok_or(PortError::OpenHere {
                key: ethertype.into(),
            })?;
        let shape = Shape::Queuing {
            depth: options.depth,
        };
        let link = node.link().open_raw_port(ethertype, shape)?;
        police::set(link.memory().port().control, bucket);
        let spinner = Spinner::new(node.as_ref(), options.spin);
        let statistics = Arc::new(RawStatistics::default());
        node.port_opened();
        let registration = reservation.fill(OpenRawPort {
            name: name.map(str::to_owned),
            memory: Arc::clone(link.memory()),
            statistics: Arc::clone(&statistics),
        });
        Ok(Self {
            ethertype,
            receiver: Receiver {
                link,
                consumer: Consumer::new(options.depth as usize),
                statistics,
                notify: false,
                watch: node.watch().map(Arc::clone),
                _registration: registration,
            },
            spinner,
            process: OwnerProcess::current(),
            node: Arc::clone(node),
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
        self.process.check()?;
        let result = self.check_frame(frame);
        let result = result.and_then(|()| self.receiver.link.send(frame));
        let statistics = &self.receiver.statistics;
        match result {
            Ok(()) => statistics.sent.add(1, frame.len()),
            Err(_) => statistics.send_errors.add(1),
        }
        result
    }

    fn check_frame(&self, frame: &[u8]) -> Result<(), SendError> {
        match RawFrame::parse(frame) {
            Some(parsed) if parsed.ethertype == self.ethertype.get() => {
                self.receiver.link.check(&parsed)
            }
            None if frame.len() > RAW_FRAME_BYTES_MAX => Err(SendError::FrameTooLarge),
            _ => Err(SendError::ForeignFrame),
        }
    }

    /// Copies the most urgent frame into `buffer`, if there is one. Never waits.
    ///
    /// # Errors
    /// [`ReceiveError::BufferTooSmall`] below [`RAW_FRAME_BYTES_MAX`] bytes, else [`ReceiveError`].
    #[inline]
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<ReceivedFrame>, ReceiveError> {
        check_buffer(buffer, RAW_FRAME_BYTES_MAX)?;
        self.process.check()?;
        if let Some(frame) = self.receiver.look(buffer)? {
            return Ok(Some(frame));
        }
        if !self.receiver.notify {
            return Ok(None);
        }
        self.receiver.link.arm();
        self.receiver.look(buffer)
    }

    /// As [`RawPort::receive`]; waits for a frame until `deadline`, spinning first and then sleeping. `None` when the
    /// deadline has come. [`Instant::FAR_FUTURE`] waits for ever.
    ///
    /// # Errors
    /// As [`RawPort::receive`].
    pub fn receive_until(
        &mut self,
        deadline: Instant,
        buffer: &mut [u8],
    ) -> Result<Option<ReceivedFrame>, ReceiveError> {
        check_buffer(buffer, RAW_FRAME_BYTES_MAX)?;
        self.process.check()?;
        let (receiver, spinner) = (&mut self.receiver, &mut self.spinner);
        wait_for(receiver, spinner, deadline, |receiver| {
            receiver.look(buffer)
        })
    }

    /// How long a wait spins before it sleeps.
    #[must_use]
    pub fn spin(&self) -> Spin {
        self.spinner.setting()
    }

    /// Changes how long a wait spins before it sleeps, for a caller that waits in several steps.
    pub fn set_spin(&mut self, spin: impl Into<Spin>) {
        self.spinner = Spinner::new(self.node.as_ref(), spin.into());
    }

    /// Makes the [descriptor](Self::descriptor) readable at the next arrival and not before, whatever waits in the port
    /// already. For a caller that looks again before it sleeps.
    pub fn arm(&mut self) {
        if self.process.is_current() {
            self.receiver.notify = true;
            self.receiver.link.arm();
        }
    }

    /// Leaves the [descriptor](Self::descriptor) as it is when something arrives, until [`RawPort::arm`] or the next
    /// call of `descriptor`.
    pub fn disarm(&mut self) {
        if self.process.is_current() {
            self.receiver.notify = false;
            self.receiver.link.disarm();
        }
    }

    /// A descriptor for poll, select or epoll; `None` on a link that has none. As
    /// [`QueuingPort::descriptor`](crate::QueuingPort::descriptor).
    pub fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        self.process.check().ok()?;
        let receiver = &mut self.receiver;
        if !receiver.notify {
            receiver.notify = true;
            receiver.link.arm();
        }
        receiver.link.descriptor()
    }
}

impl Bell for Receiver {
    fn now(&self) -> Instant {
        self.link.now()
    }

    fn arm(&mut self) {
        self.link.arm();
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError> {
        self.link.wait(timeout, self.watch.as_deref())
    }

    fn check_interface(&self) -> Result<(), ReceiveError> {
        check_interface(self.watch.as_deref())
    }

    fn run_due_processing(&mut self) {
        self.link.run_due_processing();
    }
}

impl Receiver {
    /// Brings in what has arrived, and takes the most urgent frame. Bounded by the slots of the port.
    #[inline]
    fn look(&mut self, buffer: &mut [u8]) -> Result<Option<ReceivedFrame>, ReceiveError> {
        self.link.collect()?;
        let port = self.link.memory().port();
        for _ in 0..port.slots.len() {
            let Some(record) = self.consumer.peek(port.slots) else {
                break;
            };
            let read = read(&record, buffer);
            self.consumer.release(port.control, record);
            let Some(frame) = read else {
                // A slot that the demux claimed and could not fill, or that somebody scribbled on.
                self.statistics.void.add(1);
                continue;
            };
            self.statistics.received.add(1, frame.length);
            let latency = &self.statistics.latency;
            if latency.is_measured() {
                latency.record(frame.arrival, self.link.now());
            }
            return Ok(Some(frame));
        }
        Ok(None)
    }
}

/// Puts a frame together again: addresses, EtherType, payload. `buffer` has room for the longest one.
#[inline]
fn read(record: &Record<'_>, buffer: &mut [u8]) -> Option<ReceivedFrame> {
    let stored = record.slot.head();
    let (head, first) = stored.header.split_first_chunk::<RAW_HEAD_BYTES>()?;
    let head = RawHead::from_bytes(head)?;
    let (source, form) = source_parts(stored.source);
    if form != source_form::RAW {
        return None;
    }
    let (header, payload) = buffer.split_first_chunk_mut::<ETHERNET_HEADER_BYTES>()?;
    header[..6].copy_from_slice(&head.destination.0);
    header[6..12].copy_from_slice(&source);
    header[12..].copy_from_slice(&head.ethertype.to_be_bytes());
    let payload = &mut payload[..usize::from(head.length)];
    // The payload begins behind the head, in the header's place.
    let (begin, rest) = payload.split_at_mut(payload.len().min(first.len()));
    begin.copy_from_slice(&first[..begin.len()]);
    record.slot.read_payload(rest);
    Some(ReceivedFrame {
        length: ETHERNET_HEADER_BYTES + usize::from(head.length),
        priority: head.priority,
        arrival: Instant::from_nanos(stored.arrival_ns),
    })
}
