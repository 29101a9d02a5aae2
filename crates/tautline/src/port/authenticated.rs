//! Protection of a port on any link of frames: it seals what is sent, and lets through what is authentic.
//!
//! The demux puts frames into memory before anybody has checked them. So a protected port has two memories. Frames
//! wait in the first, always a queue, which the demux or the link fills. [`Check`] checks them in the caller's thread
//! and delivers the authentic ones into the second, which is the port's own for everybody else: values, losses, places
//! of peers and policing know authentic frames only. A forged frame takes a place in the queue and the time of its
//! check, and nothing else ([decision 0076](../../../../docs/decisions/0076-protected-ports-check-behind-a-queue.md)).

use std::sync::Arc;

use tautline_proto::authentication::{
    Discipline, KeyRing, Protection, Receiver, Refusal, SendKey, Sender, Space, Station,
    TRAILER_BYTES, Way, next_run,
};
use tautline_proto::time::Instant;
use tautline_proto::wire::Header;
use tautline_shm::deliver::PortRef;
use tautline_shm::layout::{CLASS_COUNT, SLOT_PAYLOAD_BYTES};
use tautline_shm::queue::{self, Consumer, Record};
use tautline_shm::region::{PortMemory, Shape};

use crate::address::Address;
use crate::error::{PortError, SendError};
use crate::keys::{Keys, OwnStations, runs};
use crate::limits::BATCH_FRAMES;
use crate::link::Route;
use crate::link::frame::deliver_frame;
use crate::memory::MappedPort;
use crate::message::LentBytes;
use crate::statistics::Counter;
use crate::sys::{clock, random};

/// Values of one priority that may wait for being checked. Lower: a sampling port that is read seldom returns an older
/// value, because newer ones found no room. Higher: each takes 12 KiB.
pub(crate) const VALUES_WAITING_MAX: u32 = 256;

/// Frames that one look checks at most, as a multiple of the places in the queue. Lower: a flood of frames that is as
/// fast as the check keeps honest ones waiting for the next look. Higher: a look takes longer during a flood.
const ROUNDS_MAX: usize = 2;

/// Frames that were checked, by what came of it.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    pub(crate) accepted: Counter,
    pub(crate) refused: [Counter; Refusal::COUNT],
}

pub(crate) struct Protecting<'a> {
    pub(crate) protection: Protection,
    pub(crate) keys: &'a Arc<Keys>,
    pub(crate) own: OwnStations,
    /// Shape of the port, as its user knows it.
    pub(crate) shape: Shape,
    /// Whether arrivals are times of CLOCK_MONOTONIC.
    pub(crate) has_real_time: bool,
}

/// Shape of the queue in which frames for a port of this shape wait.
pub(crate) fn waiting_shape(shape: Shape) -> Shape {
    match shape {
        Shape::Queuing { .. } => shape,
        Shape::Sampling { .. } => Shape::Queuing {
            depth: VALUES_WAITING_MAX,
        },
    }
}

pub(crate) fn protect(
    waiting: Arc<MappedPort>,
    number: u16,
    with: &Protecting<'_>,
) -> Result<(Sealing, Check), PortError> {
    let refused = |error| PortError::refused("taking the port's memory", error);
    let checked = Arc::new(MappedPort::private(with.shape, number).map_err(refused)?);
    let run = runs::first_run().map_err(|source| PortError::RunNotNoted { source })?;
    let Shape::Queuing { depth } = waiting.shape() else {
        return Err(PortError::refused(
            "queueing the port's frames",
            std::io::Error::other("its memory is no queue"),
        ));
    };
    let discipline = match with.shape {
        Shape::Queuing { .. } => Discipline::InWindow,
        Shape::Sampling { .. } => Discipline::NewerOnly,
    };
    let peers = Peers::new(with.keys, with.own);
    let sealing = Sealing {
        peers: peers.clone(),
        sending: with.keys.rings().map(SendKey::new).collect(),
        sender: Sender::new(run, with.protection),
        spaces: (0..BATCH_FRAMES).map(|_| Space::new()).collect(),
    };
    let check = Check {
        consumer: Consumer::new(depth as usize),
        waiting,
        checked,
        receiver: Receiver::new(discipline, clock::realtime_ns(), peers.tolerance_ns),
        peers,
        discipline,
        has_real_time: with.has_real_time,
        space: Space::new(),
        counters: Arc::default(),
    };
    Ok((sealing, check))
}

fn word(station: Station) -> u64 {
    match station {
        Station::Ethernet(mac) => {
            let [a, b, c, d, e, f] = mac.0;
            u64::from_be_bytes([0, 1, a, b, c, d, e, f])
        }
        Station::Udp(ip) => 2 << 48 | u64::from(ip.to_bits()),
    }
}

/// The neighbours' keys, copied so that the way of a message takes no lock.
#[derive(Clone, Debug)]
struct Peers {
    keys: Arc<Keys>,
    generation: u64,
    /// Addresses in the order of their words, each with the place of its ring.
    stations: Box<[(Station, usize)]>,
    rings: Box<[KeyRing]>,
    own: OwnStations,
    tolerance_ns: u64,
}

impl Peers {
    fn new(keys: &Arc<Keys>, own: OwnStations) -> Self {
        let mut stations: Vec<_> = keys.stations().collect();
        stations.sort_unstable_by_key(|(station, _)| word(*station));
        Self {
            generation: keys.generation(),
            keys: Arc::clone(keys),
            stations: stations.into(),
            rings: keys.rings().collect(),
            own,
            tolerance_ns: keys.clock_tolerance_ns(),
        }
    }

    #[inline]
    fn place_of(&self, station: Station) -> Option<usize> {
        let sought = word(station);
        let found = self
            .stations
            .binary_search_by_key(&sought, |(station, _)| word(*station));
        Some(self.stations[found.ok()?].1)
    }

    #[inline]
    fn are_old(&self) -> bool {
        self.keys.generation() != self.generation
    }

    #[cold]
    fn renew(&mut self) {
        self.generation = self.keys.generation();
        for (own, new) in self.rings.iter_mut().zip(self.keys.rings()) {
            *own = new;
        }
    }
}

/// The sending side: seals frames with the keys of their receivers.
#[derive(Debug)]
pub(crate) struct Sealing {
    peers: Peers,
    /// Of each neighbour, in the order of its keys.
    sending: Box<[SendKey]>,
    sender: Sender,
    /// For the frames of a batch.
    spaces: Box<[Space]>,
}

impl Sealing {
    #[inline]
    fn renew(&mut self) {
        if !self.peers.are_old() {
            return;
        }
        self.peers.renew();
        for (sending, ring) in self.sending.iter_mut().zip(&self.peers.rings) {
            *sending = SendKey::new(ring.clone());
        }
    }

    pub(super) fn seal(
        &mut self,
        route: &Route,
        header: &Header,
        payload: &[u8],
    ) -> Result<(Header, &[u8]), SendError> {
        self.renew();
        let parts = (&mut self.sender, &mut self.sending[..], &self.peers);
        seal(parts, route, header, payload, &mut self.spaces[0])
    }

    /// Seals the frames of a batch, at most [`BATCH_FRAMES`], each in its place.
    pub(super) fn seal_all<'s, 'f>(
        &'s mut self,
        frames: impl Iterator<Item = (&'f Route, &'f mut Header, &'f mut &'s [u8])>,
    ) -> Result<(), SendError>
    where
        's: 'f,
    {
        self.renew();
        for ((route, header, payload), space) in frames.zip(self.spaces.iter_mut()) {
            let parts = (&mut self.sender, &mut self.sending[..], &self.peers);
            (*header, *payload) = seal(parts, route, header, payload, space)?;
        }
        Ok(())
    }

    /// Bytes of the largest message in one frame on this way; `None` to a node that shares no keys.
    pub(super) fn whole_bytes_max(&self, route: &Route) -> Option<usize> {
        let destination = route.station();
        self.peers.place_of(destination)?;
        self.peers.own.like(destination)?;
        Some(route.whole_bytes_max() - TRAILER_BYTES)
    }
}

/// Begins another run if the clock was set back by more than the tolerance. Without a random number the run goes on,
/// and the next frame tries again; after the last run of this opening it goes on too.
#[inline]
pub(super) fn follow_clock(sender: &mut Sender, now_ns: u64, tolerance_ns: u64) {
    if sender.is_ahead(now_ns, tolerance_ns)
        && let Ok(random) = random::number()
        && let Some(run) = next_run(sender.run(), random)
    {
        sender.begin_run(run);
    }
}

/// Seals one frame into `space`.
#[inline]
fn seal<'s>(
    (sender, sending, peers): (&mut Sender, &mut [SendKey], &Peers),
    route: &Route,
    header: &Header,
    payload: &[u8],
    space: &'s mut Space,
) -> Result<(Header, &'s [u8]), SendError> {
    let destination = route.station();
    let sealed = peers.place_of(destination).and_then(|place| {
        let way = Way {
            source: peers.own.like(destination)?,
            destination,
        };
        let now = clock::realtime_ns();
        follow_clock(sender, now, peers.tolerance_ns);
        sender.seal(now, &mut sending[place], way, *header, payload, space)
    });
    sealed.ok_or(SendError::Refused {
        errno: libc::ENOKEY,
    })
}

/// The receiving side: from the queue, through the check, into the port's memory.
#[derive(Debug)]
pub(crate) struct Check {
    peers: Peers,
    consumer: Consumer,
    waiting: Arc<MappedPort>,
    checked: Arc<MappedPort>,
    receiver: Receiver,
    discipline: Discipline,
    has_real_time: bool,
    space: Space,
    counters: Arc<Checked>,
}

impl Check {
    pub(super) fn waiting(&self) -> &Arc<MappedPort> {
        &self.waiting
    }

    pub(super) fn checked(&self) -> &Arc<MappedPort> {
        &self.checked
    }

    pub(super) fn counters(&self) -> &Arc<Checked> {
        &self.counters
    }

    /// Whether a frame waits. One look at each class.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.consumer.peek(self.waiting.port().slots).is_some()
    }

    /// Checks what waits, as far as the port's memory has room for it. Bounded by [`ROUNDS_MAX`].
    pub(super) fn run(&mut self) {
        if !self.is_waiting() {
            return;
        }
        if self.peers.are_old() {
            self.peers.renew();
            self.receiver.forget_keys();
        }
        let waiting = Arc::clone(&self.waiting);
        let port = waiting.port();
        let times = Times::now(self.has_real_time);
        for _ in 0..ROUNDS_MAX * port.slots.len() {
            let record = match self.discipline {
                Discipline::InWindow => self.most_urgent(&port),
                Discipline::NewerOnly => self.earliest(&port),
            };
            let Some(record) = record else { return };
            self.one(record, times);
            self.consumer.release(port.control, record);
        }
    }

    /// The most urgent frame whose class has room for it.
    fn most_urgent<'m>(&self, waiting: &PortRef<'m>) -> Option<Record<'m>> {
        let checked = self.checked.port();
        (0..CLASS_COUNT).rev().find_map(|class| {
            let record = self.consumer.oldest(waiting.slots, class)?;
            let room = queue::room(checked.control, checked.slots, class);
            (room > 0).then_some(record)
        })
    }

    /// The frame that arrived first: of a value, the last counts, whatever its priority.
    fn earliest<'m>(&self, waiting: &PortRef<'m>) -> Option<Record<'m>> {
        let records =
            (0..CLASS_COUNT).filter_map(|class| self.consumer.oldest(waiting.slots, class));
        records.min_by_key(|record| record.slot.head().arrival_ns)
    }

    /// Checks one frame, and delivers it if it is authentic.
    fn one(&mut self, record: Record<'_>, times: Times) {
        let peers = &self.peers;
        let head = record.slot.head();
        let parsed = (
            Address::from_word(head.source),
            Header::from_bytes(&head.header),
        );
        let (Some(address), Ok(header)) = parsed else {
            // A slot that the demux claimed and could not fill.
            return;
        };
        let length = usize::from(header.length).min(SLOT_PAYLOAD_BYTES);
        let Some(payload) = LentBytes::of_slot(record.slot, 0, length).slice() else {
            return;
        };
        let source = match address {
            Address::Ethernet(mac) => Station::Ethernet(mac),
            Address::Udp(address) => Station::Udp(*address.ip()),
            Address::Bus(_) => return,
        };
        let found = peers.place_of(source).zip(peers.own.like(source));
        let opened = match found {
            _ if !header.is_authenticated() => Err(Refusal::Unprotected),
            None => Err(Refusal::UnknownSender),
            Some((place, destination)) => {
                let way = Way {
                    source,
                    destination,
                };
                let (ring, space) = (&peers.rings[place], &mut self.space);
                let now = times.since_1970_ns(head.arrival_ns);
                self.receiver.open(now, ring, way, &header, payload, space)
            }
        };
        match opened {
            Ok((header, message)) => {
                self.counters.accepted.add(1);
                let arrival = Instant::from_nanos(head.arrival_ns);
                deliver_frame(&self.checked, arrival, head.source, &header, message);
            }
            Err(refusal) => self.counters.refused[refusal.index()].add(1),
        }
    }
}

/// Turns arrivals into times since 1970, which senders stamp with.
#[derive(Clone, Copy)]
enum Times {
    /// Difference of CLOCK_MONOTONIC to CLOCK_REALTIME, mostly less than zero.
    Offset(i64),
    /// Arrivals are of no clock of this machine: the present counts.
    Present(u64),
}

impl Times {
    fn now(has_real_time: bool) -> Self {
        match has_real_time {
            true => Self::Offset(clock::realtime_to_monotonic_ns()),
            false => Self::Present(clock::realtime_ns()),
        }
    }

    fn since_1970_ns(self, arrival_ns: u64) -> u64 {
        match self {
            Self::Offset(offset) => arrival_ns.saturating_add_signed(offset.saturating_neg()),
            Self::Present(now) => now,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};
    use std::time::Duration;

    use tautline_proto::authentication::{Cipher, Key, SECRET_BYTES, Trailer};
    use tautline_proto::neighbour::NeighbourTable;
    use tautline_proto::wire::{PortNumber, Priority};

    use super::*;
    use crate::keys::{KeySource, NeighbourKeys};

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
    const TOLERANCE: Duration = Duration::from_secs(3_600);

    fn ring() -> KeyRing {
        let secret = std::array::from_fn::<_, SECRET_BYTES, _>(|place| place as u8);
        KeyRing::new([Key::new(1, Cipher::Aes128Gcm, 0, secret)]).unwrap()
    }

    fn peers() -> Peers {
        let mut table = NeighbourTable::new();
        table.add(crate::neighbour("peer", PEER)).unwrap();
        let given = [NeighbourKeys {
            neighbour: "peer".to_owned(),
            source: KeySource::Ring(ring()),
        }];
        let keys = Keys::load(&given, &table, TOLERANCE).unwrap();
        let own = OwnStations {
            mac: None,
            ip: Some(OWN),
        };
        Peers::new(&Arc::new(keys), own)
    }

    /// Trailer of a frame that is sealed after one whose clock was `ahead`, the time of that one, and the answer of a
    /// receiver.
    fn sealed_after(ahead: Duration) -> (Trailer, u64, Result<(), Refusal>) {
        let peers = peers();
        let (mut sender, mut sending) = (
            Sender::new(5, Protection::Encrypted),
            [SendKey::new(ring())],
        );
        let (mut space, mut opening) = (Space::new(), Space::new());
        let way = Way {
            source: Station::Udp(OWN),
            destination: Station::Udp(PEER),
        };
        let port = PortNumber::MIN;
        let header = Header::whole(port, port, Priority::NORMAL, 4, 0);
        let before_ns = clock::realtime_ns() + ahead.as_nanos() as u64;
        let before = sender.seal(before_ns, &mut sending[0], way, header, b"stop", &mut space);
        assert!(before.is_some());
        let route = Route::Socket {
            address: SocketAddrV4::new(PEER, 1),
            header: Default::default(),
        };
        let parts = (&mut sender, &mut sending[..], &peers);
        let (header, payload) = seal(parts, &route, &header, b"stop", &mut space).unwrap();
        let (_, trailer) = Trailer::split(payload).unwrap();
        let mut receiver = Receiver::new(Discipline::NewerOnly, 0, peers.tolerance_ns);
        let now = clock::realtime_ns();
        let opened = receiver.open(now, &ring(), way, &header, payload, &mut opening);
        (trailer, before_ns, opened.map(|_| ()))
    }

    #[test]
    fn after_its_clock_was_set_back_a_sender_is_heard_at_once() {
        let (trailer, before_ns, opened) = sealed_after(TOLERANCE * 24);
        assert_eq!(opened, Ok(()));
        assert!(trailer.time_ns < before_ns);
        assert!(trailer.run > 5, "times of one run are never set back");
        // A small step makes no run: the times of the one under way are tolerated.
        let (trailer, before_ns, opened) = sealed_after(TOLERANCE / 2);
        assert_eq!(opened, Ok(()));
        assert_eq!((trailer.run, trailer.time_ns), (5, before_ns + 1));
    }
}
