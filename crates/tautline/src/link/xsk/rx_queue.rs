//! State that the ports of a node share: the sockets of the queues, and the destinations of their frames. A port that
//! looks takes the frames of all ports, under a lock that no thread waits for.

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, TryLockError};

use aya::Ebpf;
use aya::programs::links::FdLink;
use tautline_proto::ip::DatagramHead;
use tautline_proto::ip::receive::{self, Arrival, Own};
use tautline_proto::time::Instant;
use tautline_proto::wire::ethernet::EthernetForm;
use tautline_proto::wire::raw::RawFrame;
use tautline_proto::wire::{Header, PortKey, Rejected, ethernet, udp};
use tautline_shm::doorbell;
use tautline_shm::region::PortMemory;
use tautline_state::{Event, lock};

use crate::address::Address;
use crate::error::PortError;
use crate::link::bpf::map_indices::{MapIndices, PLACES};
use crate::link::bpf::tap::TapRing;
use crate::link::frame::deliver_frame;
use crate::link::plain_udp::deliver_datagram;
use crate::link::raw::{count_unfit, deliver_raw};
use crate::link::socket::Counters;
use crate::link::{NodeCounters, bpf};
use crate::memory::MappedPort;
use crate::sys::memory::Mapping;
use crate::sys::wait;
use crate::sys::xsk::{NOTE_BYTES, XskSocket};

/// Frames that one look takes from one queue: as many as `packet` takes from a socket, and for the same reasons.
const COLLECT_FRAMES_MAX: usize = 64;

/// Maps that the program shares with this process.
pub(super) struct Maps {
    /// A word for each port.
    pub(super) open_ports: Mapping,
    pub(super) places: MapIndices,
    /// Counters of the program.
    pub(super) counters: bpf::counters::Counters,
    /// Copies for captures.
    pub(super) tap: TapRing,
}

/// State that the ports of a node share.
#[derive(Debug)]
pub(super) struct Shared {
    rx_queues: Mutex<RxQueues>,
    /// Readable when a frame has come on any queue.
    arrivals: OwnedFd,
    counters: Counters,
    program_counters: bpf::counters::Counters,
    open_ports: Mapping,
    places: MapIndices,
    tap: TapRing,
    ethernet: EthernetForm,
    own: Option<Own>,
    /// Detaches the program when dropped, and then lets go of its maps.
    _attached: Attached,
}

/// The program, on the interface for as long as this is there.
struct Attached(#[allow(dead_code)] FdLink, #[allow(dead_code)] Mutex<Ebpf>);

impl std::fmt::Debug for Attached {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Attached").finish_non_exhaustive()
    }
}

/// The sockets, and where what they bring goes.
#[derive(Debug)]
struct RxQueues {
    queues: Vec<XskSocket>,
    slots: Slots,
}

/// Ports by their places.
#[derive(Debug)]
struct Slots(Box<[Option<Arc<PortSlot>>]>);

impl Slots {
    fn at(&self, place: usize) -> Option<&PortSlot> {
        self.0.get(place)?.as_deref()
    }
}

/// A port as the receive queues see it.
#[derive(Debug)]
pub(super) struct PortSlot {
    pub(super) memory: Arc<MappedPort>,
    pub(super) bell: Event,
}

impl PortSlot {
    fn ring_if_wanted(&self) {
        if doorbell::wanted(self.memory.port().control) {
            self.bell.ring();
        }
    }
}

impl Shared {
    pub(super) fn new(
        queues: Vec<XskSocket>,
        maps: Maps,
        ethernet: EthernetForm,
        own: Option<Own>,
        (link, ebpf): (FdLink, Ebpf),
    ) -> std::io::Result<Self> {
        let sockets: Vec<_> = queues.iter().map(XskSocket::socket).collect();
        Ok(Self {
            arrivals: wait::either(&sockets)?,
            rx_queues: Mutex::new(RxQueues {
                queues,
                slots: Slots(vec![None; PLACES].into()),
            }),
            counters: Counters::default(),
            program_counters: maps.counters,
            open_ports: maps.open_ports,
            places: maps.places,
            tap: maps.tap,
            ethernet,
            own,
            _attached: Attached(link, Mutex::new(ebpf)),
        })
    }

    pub(super) fn tap(&self) -> &TapRing {
        &self.tap
    }

    pub(super) fn arrivals(&self) -> BorrowedFd<'_> {
        self.arrivals.as_fd()
    }

    /// From now on frames for this port go to `slot`.
    pub(super) fn open(&self, key: PortKey, slot: &Arc<PortSlot>) -> Result<(), PortError> {
        let place = self.places.take(key)?;
        lock(&self.rx_queues).slots.0[place as usize] = Some(Arc::clone(slot));
        if let PortKey::Message(port) = key {
            self.open_ports.store(port.index(), 1, Relaxed);
        }
        self.places.show(key);
        Ok(())
    }

    pub(super) fn close(&self, key: PortKey) {
        if let PortKey::Message(port) = key {
            self.open_ports.store(port.index(), 0, Relaxed);
        }
        self.places.give_up(key, |place| {
            lock(&self.rx_queues).slots.0[place as usize] = None;
        });
    }

    pub(super) fn counters(&self) -> NodeCounters {
        // Nothing is counted twice: malformed frames the program leaves to this process.
        let mut counters = NodeCounters {
            malformed: self.counters.read().malformed,
            ..self.program_counters.read()
        };
        for queue in &lock(&self.rx_queues).queues {
            counters.socket_full += queue.dropped().unwrap_or(0);
        }
        counters
    }

    /// Puts the frames that `fill` queues on one queue, has the kernel send them with one call, and says how many it
    /// has. Which queue sends is of no matter, but frames must not pass each other.
    pub(super) fn send(
        &self,
        fill: impl FnOnce(&mut XskSocket) -> std::io::Result<usize>,
    ) -> std::io::Result<usize> {
        lock(&self.rx_queues).queues[0].send(fill)
    }

    /// Brings what has arrived into the ports' memories, if no other thread is at it.
    pub(super) fn collect(&self) {
        let mut pump = match self.rx_queues.try_lock() {
            Ok(pump) => pump,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let RxQueues { queues, slots } = &mut *pump;
        for queue in queues {
            self.take(queue, slots);
            queue.wake_receiver();
            queue.transmit_rest();
        }
    }

    /// Takes what has come on one queue.
    fn take(&self, queue: &mut XskSocket, slots: &Slots) {
        for _ in 0..COLLECT_FRAMES_MAX {
            let looked = queue.receive(|frame| {
                self.deliver(slots, Note::read(&frame.note), frame.bytes);
            });
            if looked.is_none() {
                break;
            }
        }
    }

    /// Puts a frame into the memory of the port that it is for, and wakes its reader if it sleeps.
    fn deliver(&self, slots: &Slots, note: Note, frame: &[u8]) {
        let raw_place = RawFrame::ethertype_of(frame).and_then(|raw| self.places.of_raw(raw));
        if let Some(place) = raw_place.and_then(|place| slots.at(place)) {
            match RawFrame::parse(frame) {
                Some(frame) => deliver_raw(&place.memory, note.arrival, &frame),
                None => count_unfit(&place.memory),
            }
            return place.ring_if_wanted();
        }
        let parsed = self.parse(frame, note);
        let index = match &parsed {
            Ok(Parsed::Ours { header, .. }) => header.destination.index(),
            Ok(Parsed::Plain { place, .. }) => *place,
            Err(Rejected::Malformed(error)) => return self.counters.count(*error),
            Err(Rejected::NotOurs) => return,
        };
        // Closed a moment ago.
        let Some(place) = slots.at(index) else {
            return;
        };
        let arrival = note.arrival;
        match parsed {
            Ok(Parsed::Ours {
                source,
                header,
                payload,
            }) => deliver_frame(&place.memory, arrival, source.word(), &header, payload),
            Ok(Parsed::Plain {
                source,
                head,
                payload,
                ..
            }) => deliver_datagram(&place.memory, arrival, source, &head, payload),
            Err(_) => {}
        }
        place.ring_if_wanted();
    }

    fn parse<'f>(&self, frame: &'f [u8], note: Note) -> Result<Parsed<'f>, Rejected> {
        match ethernet::parse_as(frame, self.ethernet) {
            Ok(frame) => {
                return Ok(Parsed::Ours {
                    source: Address::Ethernet(frame.source),
                    header: frame.header,
                    payload: frame.payload,
                });
            }
            Err(Rejected::NotOurs) => {}
            Err(malformed) => return Err(malformed),
        }
        match self.parse_plain(frame) {
            Ok(Arrival::Datagram {
                source,
                head,
                payload,
            }) => Ok(Parsed::Plain {
                place: self.places.of_udp(head.destination_port),
                source,
                head,
                payload,
            }),
            Ok(Arrival::Fragment {
                source,
                head,
                payload,
            }) if note.fragment_place != 0 => Ok(Parsed::Plain {
                place: note.fragment_place,
                source: SocketAddrV4::new(source, 0),
                head,
                payload,
            }),
            Ok(_) | Err(Rejected::NotOurs) => udp::parse(frame).map(|frame| Parsed::Ours {
                source: Address::Udp(SocketAddrV4::new(frame.source_ip, frame.source_udp_port)),
                header: frame.header,
                payload: frame.payload,
            }),
            Err(malformed) => Err(malformed),
        }
    }

    fn parse_plain<'f>(&self, frame: &'f [u8]) -> Result<Arrival<'f>, Rejected> {
        let own = self.own.as_ref().ok_or(Rejected::NotOurs)?;
        receive::parse(frame, own, |port| self.places.of_udp(port) != 0)
    }
}

/// Note of the program about a frame: `struct tl_note` of `bpf/tautline.h`.
#[derive(Clone, Copy)]
struct Note {
    arrival: Instant,
    /// Of a fragment of plain UDP, its port's; otherwise 0.
    fragment_place: usize,
}

impl Note {
    fn read(bytes: &[u8; NOTE_BYTES]) -> Self {
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|place| bytes[at + place]));
        Self {
            arrival: Instant::from_nanos(word(0)),
            fragment_place: word(8) as usize,
        }
    }
}

/// A frame for one of the node's ports.
enum Parsed<'f> {
    /// With our header.
    Ours {
        source: Address,
        header: Header,
        payload: &'f [u8],
    },
    /// A datagram without, or a fragment of one.
    Plain {
        /// The port's, among all places.
        place: usize,
        source: SocketAddrV4,
        head: DatagramHead,
        payload: &'f [u8],
    },
}
