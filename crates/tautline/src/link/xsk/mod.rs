//! The `xsk` link: AF_XDP sockets both ways. A BPF program (`bpf/xsk.bpf.c`) hands the frames of open
//! ports to the node's socket of the queue; whichever port looks next brings them into the memory of the
//! port that they are for. With a driver that can, frames are not copied between it and this process.
//!
//! One socket for each queue, because the kernel allows one set of memory for each; so ports of a
//! node share it, under a lock that is held for as long as some frames take. A port that finds
//! the lock held leaves the work to whoever has it: its own frames are brought too.

mod queues;

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Map, XskMap};
use aya::programs::links::FdLink;
use tautline_proto::neighbour::Neighbour;
use tautline_proto::time::Instant;
use tautline_proto::wire::{
    Header, PORT_MAX, PortNumber, Rejected, WHOLE_BYTES_MAX_ETHERNET, ethernet, udp,
};
use tautline_shm::doorbell;
use tautline_shm::region::PortMemory;

use self::queues::Opener;
use super::frame::{HEAD_BYTES_MAX, OutFrame, RawAddress, deliver_frame, learnt_neighbour};
use super::packet::claim;
use super::socket::{Counters, udp_socket};
use super::xdp::demux::{Setup, attach};
use super::{
    ArrivalClock, Capabilities, Inbox, Link, LinkKind, NodeCounters, PlainUdp, PortHalf, PortLink,
    PortRequest, Route,
};
use crate::address::{Address, Source};
use crate::claim::Claim;
use crate::error::{OpenError, PortError, ReceiveError, SendError};
use crate::memory::MappedPort;
use crate::sys::memory::Mapping;
use crate::sys::xsk::{BusyPoll, Copies, XskSocket};
use crate::sys::{event, wait};

const PROGRAM: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/xsk.bpf.o"));
/// Frames that one look takes from one queue: as many as `packet` takes from a socket, and for the same
/// reasons.
const COLLECT_FRAMES_MAX: usize = 64;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The node's half.
#[derive(Debug)]
pub struct XskLink {
    setup: Setup,
    zero_copy: bool,
    shared: Arc<Shared>,
}

/// What the ports of a node share.
#[derive(Debug)]
struct Shared {
    pump: Mutex<Pump>,
    /// Readable when a frame has come on any queue.
    arrivals: OwnedFd,
    counters: Counters,
    /// `open_ports` of the program: a word for each port, and the count of frames for none at 0.
    open_ports: Mapping,
    /// Detaches the program when dropped.
    _attached: FdLink,
    _ebpf: Loaded,
}

/// The program and its maps, kept for as long as they are used.
struct Loaded(#[allow(dead_code)] Mutex<Ebpf>);

impl std::fmt::Debug for Loaded {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Loaded").finish_non_exhaustive()
    }
}

/// The sockets, and where what they bring goes.
#[derive(Debug)]
struct Pump {
    queues: Vec<XskSocket>,
    ports: Box<[Option<Arc<Place>>]>,
    ethertype: u16,
}

/// A port as the pump sees it.
#[derive(Debug)]
struct Place {
    memory: Arc<MappedPort>,
    bell: event::Event,
}

impl XskLink {
    /// Attaches the program and takes all queues of the interface.
    ///
    /// # Errors
    /// [`OpenError::XdpTaken`], [`OpenError::NoXdp`], [`OpenError::NotPermitted`], [`OpenError::Refused`], and
    /// those of [`Opener::open`].
    pub(crate) fn new(
        setup: Setup,
        busy_poll: Option<Duration>,
        zero_copy: Option<bool>,
    ) -> Result<Self, OpenError> {
        let refused = |doing: &str, source: Error| OpenError::Refused {
            doing: format!("{doing} on `{}`", setup.name),
            source,
        };
        let mut ebpf = setup.load_object(PROGRAM)?;
        // Before the sockets: whoever else has a program here is named, which a queue's EBUSY is not.
        let attached = attach(&mut ebpf, "tautline_xsk", &setup)?;
        let busy_poll = busy_poll.map(|time| BusyPoll {
            time_us: i32::try_from(time.as_micros()).unwrap_or(i32::MAX),
            budget: COLLECT_FRAMES_MAX as i32,
        });
        let opener = Opener {
            setup: &setup,
            busy_poll,
            zero_copy,
        };
        let queues = opener.open()?;
        let open_ports = show(&mut ebpf, &queues)
            .map_err(|error| refused("showing the AF_XDP sockets to the program", error))?;
        let members: Vec<_> = queues.iter().map(XskSocket::socket).collect();
        let arrivals = wait::either(&members)
            .map_err(|error| refused("waiting for AF_XDP sockets", error.into()))?;
        Ok(Self {
            zero_copy: queues.iter().all(|queue| queue.copies() == Copies::Zero),
            shared: Arc::new(Shared {
                pump: Mutex::new(Pump {
                    queues,
                    ports: vec![None; usize::from(PORT_MAX) + 1].into(),
                    ethertype: setup.ethertype,
                }),
                arrivals,
                counters: Counters::default(),
                open_ports,
                _attached: attached,
                _ebpf: Loaded(Mutex::new(ebpf)),
            }),
            setup,
        })
    }
}

fn show(ebpf: &mut Ebpf, queues: &[XskSocket]) -> Result<Mapping, Error> {
    let sockets = ebpf
        .map_mut("sockets")
        .ok_or("the program has no sockets")?;
    let mut sockets = XskMap::try_from(sockets)?;
    for (queue, socket) in queues.iter().enumerate() {
        sockets.set(queue as u32, socket.socket(), 0)?;
    }
    let Some(Map::Array(open_ports)) = ebpf.map("open_ports") else {
        return Err("the program has no table of ports".into());
    };
    let bytes = (usize::from(PORT_MAX) + 1) * size_of::<u64>();
    Ok(Mapping::shared(open_ports.fd().as_fd(), bytes, 0)?)
}

impl Link for XskLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Xsk
    }

    fn capabilities(&self) -> Capabilities {
        // In this process one copy each way; in copy mode the kernel makes one more.
        let kernel = u8::from(!self.zero_copy);
        Capabilities {
            arrival_clock: ArrivalClock::Demux,
            xdp_mode: Some(self.setup.mode),
            delivered_by_kernel: false,
            ethernet_form: true,
            udp_form: self.setup.ip.is_some(),
            whole_bytes_max: WHOLE_BYTES_MAX_ETHERNET,
            copies: super::Copies {
                send: 1 + kernel,
                // The node's send buffers are not in the sockets' memory.
                send_lent: 1 + kernel,
                receive: 2 + kernel,
                receive_lent: 1 + kernel,
            },
            udp_copies: None,
            zero_copy: Some(self.zero_copy),
            plain_udp: PlainUdp::None,
            descriptor: true,
            lends: true,
            answers_sender: false,
            polices: true,
            merges: true,
        }
    }

    fn open_port(&self, request: PortRequest) -> Result<PortHalf, PortError> {
        let PortRequest {
            number: port,
            shape,
            ..
        } = request;
        let refused = |error| PortError::refused("preparing the port", error);
        let claim = claim(&self.setup.interface, self.setup.ethertype, port)?;
        let reserved = self.setup.ip.map(|ip| udp_socket(ip, port)).transpose()?;
        let memory = Arc::new(MappedPort::private(shape, port.get()).map_err(refused)?);
        let bell = event::Event::new().map_err(refused)?;
        let descriptor =
            wait::either(&[self.shared.arrivals.as_fd(), bell.as_fd()]).map_err(refused)?;
        let place = Arc::new(Place {
            memory: Arc::clone(&memory),
            bell,
        });
        self.shared.pump().ports[port.index()] = Some(Arc::clone(&place));
        self.shared.open_ports.store(port.index(), 1, Relaxed);
        Ok(PortHalf::frames(XskPort {
            place,
            descriptor,
            _reserved: reserved,
            opened: Opened {
                port,
                shared: Arc::clone(&self.shared),
            },
            _claim: claim,
        }))
    }

    fn route(
        &self,
        neighbour: &Neighbour,
        to: PortNumber,
        from: PortNumber,
    ) -> Result<Route, PortError> {
        let own = RawAddress {
            interface: &self.setup.interface,
            ip: self.setup.ip,
            ethertype: self.setup.ethertype,
        };
        Route::raw(self.kind(), own, neighbour, to, from)
    }

    fn counters(&self) -> NodeCounters {
        let mut counters = self.shared.counters.read();
        counters.no_port += self.shared.open_ports.load(0, Relaxed);
        for queue in &self.shared.pump().queues {
            counters.socket_full += queue.dropped().unwrap_or(0);
        }
        counters
    }
}

impl Shared {
    fn pump(&self) -> MutexGuard<'_, Pump> {
        // The rings are the kernel's, and each step on them is whole.
        self.pump.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings what has arrived into the ports' memories, if nobody else is at it.
    fn collect(&self) {
        let mut pump = match self.pump.try_lock() {
            Ok(pump) => pump,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let Pump {
            queues,
            ports,
            ethertype,
        } = &mut *pump;
        let take = |queue: &mut XskSocket| {
            let mut taken = 0;
            while taken < COLLECT_FRAMES_MAX {
                let looked = queue.receive(|frame| {
                    let arrival = Instant::from_nanos(frame.arrival_ns);
                    deliver(ports, *ethertype, &self.counters, arrival, frame.bytes);
                });
                if looked.is_none() {
                    break;
                }
                taken += 1;
            }
            taken
        };
        for queue in queues {
            if take(queue) == 0 && queue.poll_driver() {
                take(queue);
            }
            queue.wake_receiver();
            queue.transmit_rest();
        }
    }
}

/// Puts a frame into the memory of the port that it is for, and wakes its reader if it sleeps.
fn deliver(
    ports: &[Option<Arc<Place>>],
    ethertype: u16,
    counters: &Counters,
    arrival: Instant,
    frame: &[u8],
) {
    let parsed = ethernet::parse(frame, ethertype)
        .map(|frame| (Address::Ethernet(frame.source), frame.header, frame.payload))
        .or_else(|rejected| match rejected {
            Rejected::NotOurs => udp::parse(frame).map(|frame| {
                let source = SocketAddrV4::new(frame.source_ip, frame.header.source.udp_port());
                (Address::Udp(source), frame.header, frame.payload)
            }),
            malformed => Err(malformed),
        });
    match parsed {
        Ok((source, header, payload)) => {
            let Some(place) = &ports[header.destination.index()] else {
                return;
            };
            deliver_frame(&place.memory, arrival, source.word(), &header, payload);
            if doorbell::wanted(place.memory.port().control) {
                place.bell.ring();
            }
        }
        Err(Rejected::Malformed(error)) => counters.count(error),
        Err(Rejected::NotOurs) => {}
    }
}

/// Closes the port when dropped.
#[derive(Debug)]
struct Opened {
    port: PortNumber,
    shared: Arc<Shared>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.shared.open_ports.store(self.port.index(), 0, Relaxed);
        self.shared.pump().ports[self.port.index()] = None;
    }
}

/// The port's half.
#[derive(Debug)]
struct XskPort {
    place: Arc<Place>,
    descriptor: OwnedFd,
    /// The UDP port of the same number, so that nobody else has it.
    _reserved: Option<OwnedFd>,
    // Closed before the number is given up.
    opened: Opened,
    _claim: Claim,
}

impl Inbox for XskPort {
    fn memory(&self) -> &Arc<MappedPort> {
        &self.place.memory
    }

    fn collect(&mut self) -> Result<(), ReceiveError> {
        self.opened.shared.collect();
        Ok(())
    }

    fn arm(&mut self) {
        self.place.bell.quiet();
        doorbell::arm(self.place.memory.port().control);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), ReceiveError> {
        let waited = wait::readable(self.descriptor.as_fd(), timeout);
        doorbell::disarm(self.place.memory.port().control);
        Ok(waited?)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_fd())
    }
}

impl PortLink for XskPort {
    fn send(
        &mut self,
        route: &mut Route,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), SendError> {
        let frame = OutFrame {
            route,
            header: *header,
            payload,
        };
        self.send_many(&[frame]).map(drop)
    }

    /// All go into the transmit ring, and one call has the kernel send them.
    fn send_many(&mut self, frames: &[OutFrame<'_>]) -> Result<usize, SendError> {
        let mut pump = self.opened.shared.pump();
        // Which queue sends is of no matter, but frames must not pass each other.
        let queue = &mut pump.queues[0];
        let mut queued = 0;
        for frame in frames {
            let mut head = [0; HEAD_BYTES_MAX];
            let bytes = frame.route.head(&frame.header, &mut head);
            match queue.queue([&head[..bytes], frame.payload]) {
                Ok(()) => queued += 1,
                Err(error) if queued == 0 => return Err(error.into()),
                Err(_) => break,
            }
        }
        queue.transmit()?;
        Ok(queued)
    }

    fn neighbour_of(&self, source: Source) -> Option<Neighbour> {
        learnt_neighbour(source)
    }
}
