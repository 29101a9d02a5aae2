//! The short path of level two (`taut exec --interface`): while a thread looks, the next datagram for its socket comes
//! into a place in mapped memory (`bpf/look.bpf.c`), and not through the kernel's protocol stack. Otherwise, and for
//! everybody who does not look, the socket is the kernel's alone.
//!
//! **Nothing is lost, nothing comes twice.** A place changes hands by one word. The thread sets IDLE to LOOKING; the
//! kernel's side LOOKING to FILLING and to FULL; the thread takes the datagram and sets IDLE. A thread that gives up
//! sets LOOKING back to IDLE, in one exchange: if that succeeds nothing is on its way, and it may sleep on the socket.
//! If it fails there is a datagram, and it waits for the microsecond until that is written. A place holds one
//! datagram. More of them, in a burst, go to the socket, so that every other thread that waits there is woken as ever.
//!
//! **Order.** Let D be the datagram in the place. What the socket has is older than D if it passed the place before D
//! came, and newer if after. The kernel's side notes when a datagram last passed. If none has since D came, the socket
//! goes first, and D once it is empty; it is empty mostly, since a look begins by asking it. Otherwise D goes first. A
//! datagram that passed just before D may still be on its way through the stack: then D waits up to
//! [`ON_THE_WAY`] for it. A pending error of the socket goes first too, as in the kernel.
//!
//! **Who may look.** A socket has a place if the kernel would do nothing to its datagrams but deliver them
//! ([`port_of`]); any other is left to the kernel. In a set a socket is looked at only if the program reads it by calls
//! that this library stands in front of: what poll(2) has announced must be found by them.
//!
//! A forked child forgets all places: they are its parent's. After exec(3) the new program begins anew.
#![allow(unsafe_code)] // Memory that the kernel writes.

use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64};
use std::time::Duration;

use tautline_awake::board::{PastTheStack, Refusal};
use tautline_awake::exec::SHORT_PATH_VARIABLE;
use tautline_awake::raw::{self, Polled};
use tautline_proto::ip::checksum;
use tautline_proto::time::Instant;
use tautline_proto::wire::udp::UdpChecksum;

use crate::socket;

/// Places that there are, `TL_LOOK_PLACES`. Number 0 is none.
const PLACES: usize = 64;
const PORTS: usize = 65_536;

// States of a place, as in `bpf/tautline.h`.
const IDLE: u32 = 0;
const LOOKING: u32 = 1;
const FULL: u32 = 3;
const TAKING: u32 = 4;

/// Time that a datagram may take from traffic control to its socket. Lower: one that is overtaken comes out of order.
/// Higher: a datagram that comes just as a look begins waits longer for one that the kernel has dropped.
const ON_THE_WAY: Duration = Duration::from_micros(50);
/// Looks at a place that is being filled, before the thread lets others run: only under PREEMPT_RT may the kernel's
/// side be preempted there, by this very thread.
const FILLING_LOOKS: u32 = 1_000;
const FILLING_SLEEP: Duration = Duration::from_micros(20);

/// `struct tl_look` of `bpf/tautline.h`.
#[repr(C)]
struct Shared {
    state: AtomicU32,
    owner: AtomicU32,
    passed_ns: AtomicU64,
    arrival_ns: AtomicU64,
    source: AtomicU32,
    destination: AtomicU32,
    source_port: [u8; 2],
    destination_port: [u8; 2],
    checksum: [u8; 2],
    length: u16,
    payload: [u8; 2000],
    key: AtomicU64,
}

const _: () = assert!(size_of::<Shared>() == 2048);
const _: () = assert!(std::mem::offset_of!(Shared, payload) == 40);

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());
static PLACE_OF_PORT: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());
static SOCKETS: AtomicI32 = AtomicI32::new(-1);
static ADDRESS: AtomicU32 = AtomicU32::new(0);
static IS_VIRTUAL: AtomicBool = AtomicBool::new(false);

/// Knowledge of a place that is this process's own.
struct Own {
    /// Descriptors that have it: copies of one socket.
    users: AtomicU8,
    /// Port of its socket.
    port: AtomicU32,
    /// The program has read the socket since poll(2) announced something there.
    is_read: AtomicBool,
    /// Datagrams that came past the stack.
    taken: AtomicU64,
}

static OWN: [Own; PLACES] = [const {
    Own {
        users: AtomicU8::new(0),
        port: AtomicU32::new(0),
        is_read: AtomicBool::new(false),
        taken: AtomicU64::new(0),
    }
}; PLACES];

/// Whether a call on a set has ever announced something that was beside a socket.
static HAS_ANNOUNCED: AtomicBool = AtomicBool::new(false);

/// Keys given so far.
static KEYS: AtomicU32 = AtomicU32::new(0);

/// Counts changes of sockets' options: places are asked for again after one.
static GENERATION: AtomicU8 = AtomicU8::new(1);

/// Result of asking for a place: number of one, or [`Refusal`]; 0 before.
#[derive(Debug)]
pub(crate) struct Judgement {
    result: AtomicU8,
    generation: AtomicU8,
}

impl Judgement {
    pub(crate) const fn new() -> Self {
        Self {
            result: AtomicU8::new(0),
            generation: AtomicU8::new(0),
        }
    }

    /// The place, if the socket has one by now.
    #[inline]
    pub(crate) fn place(&self) -> Option<Place> {
        Place::of(self.result.load(Relaxed))
    }

    /// The place, asked for if that has not been done. Only by the holder of the socket's slot.
    pub(crate) fn ask(&self, fd: c_int) -> Option<Place> {
        if SHARED.load(Relaxed).is_null() {
            return None;
        }
        let generation = GENERATION.load(Relaxed);
        if self.generation.load(Relaxed) != generation {
            // The next receive takes the datagram that is still there.
            if self.place().is_some_and(|place| place.is_full()) {
                return None;
            }
            self.release();
            let result = match claim(fd) {
                Ok(number) => number,
                Err(refusal) => refusal as u8,
            };
            self.result.store(result, Relaxed);
            self.generation.store(generation, Relaxed);
        }
        self.place()
    }

    /// The descriptor is closed.
    pub(crate) fn release(&self) {
        let number = self.result.swap(0, Relaxed);
        self.generation.store(0, Relaxed);
        if let Some(place) = Place::of(number) {
            place.release();
        }
    }

    /// In a forked child.
    pub(crate) fn forget(&self) {
        self.result.store(0, Relaxed);
        self.generation.store(0, Relaxed);
    }

    /// Datagrams past the stack, or why there are none.
    pub(crate) fn told(&self) -> Option<PastTheStack> {
        let result = self.result.load(Relaxed);
        match Place::of(result) {
            Some(place) => Some(Ok(place.own().taken.load(Relaxed))),
            None => Refusal::of(result).map(Err),
        }
    }
}

/// A place that this process has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(u8);

/// A datagram in a place, while the thread has it.
pub(crate) struct Taken {
    place: Place,
    pub(crate) source: SocketAddrV4,
    length: usize,
}

impl Place {
    #[inline]
    fn of(number: u8) -> Option<Self> {
        (1..PLACES as u8).contains(&number).then_some(Self(number))
    }

    #[inline]
    fn own(self) -> &'static Own {
        &OWN[usize::from(self.0)]
    }

    #[inline]
    fn pointer(self) -> *mut Shared {
        // SAFETY: there are that many places; a thread that has a place has mapped them.
        unsafe { SHARED.load(Relaxed).add(usize::from(self.0)) }
    }

    /// The words of the place, which the kernel's side writes too.
    #[inline]
    fn words(self) -> (&'static AtomicU32, &'static AtomicU64, &'static AtomicU64) {
        let at = self.pointer();
        // SAFETY: mapped for as long as the process runs; atomics.
        unsafe { (&(*at).state, &(*at).passed_ns, &(*at).arrival_ns) }
    }

    #[inline]
    fn state(self) -> &'static AtomicU32 {
        self.words().0
    }

    fn key(self) -> &'static AtomicU64 {
        // SAFETY: as in `words`.
        unsafe { &(*self.pointer()).key }
    }

    fn owner(self) -> &'static AtomicU32 {
        // SAFETY: as in `words`.
        unsafe { &(*self.pointer()).owner }
    }

    /// Begins to look: whether this thread does, and has to end it.
    pub(crate) fn begin(self) -> bool {
        // Partner: the compare-and-swap of the kernel's side.
        self.state()
            .compare_exchange(IDLE, LOOKING, SeqCst, Relaxed)
            .is_ok()
    }

    /// Whether a datagram is there.
    #[inline]
    pub(crate) fn is_full(self) -> bool {
        // Acquire: partner is the exchange by which the kernel's side sets FULL.
        self.state().load(Acquire) == FULL
    }

    /// Ends a look: whether a datagram is there. Afterwards none can come.
    pub(crate) fn end(self) -> bool {
        let mut looks = 0;
        loop {
            match self
                .state()
                .compare_exchange(LOOKING, IDLE, SeqCst, Acquire)
            {
                Ok(_) => return false,
                Err(FULL) => return self.is_undamaged(),
                // Another thread of this process, with a copy of the descriptor, was faster.
                Err(IDLE | TAKING) => return false,
                Err(_) => {
                    looks += 1;
                    match looks < FILLING_LOOKS {
                        true => std::hint::spin_loop(),
                        false => raw::sleep_until(raw::now() + FILLING_SLEEP),
                    }
                }
            }
        }
    }

    /// Takes the datagram, if there is one and it is its turn.
    pub(crate) fn take(self, fd: c_int) -> Option<Taken> {
        if !self.is_full() || self.is_the_sockets_turn(fd) {
            return None;
        }
        // Partner as in `is_full`; other threads may take too.
        self.state()
            .compare_exchange(FULL, TAKING, Acquire, Relaxed)
            .ok()?;
        let (source, _, length) = self.head();
        Some(Taken {
            place: self,
            source,
            length,
        })
    }

    /// Whether the socket has something that comes before what is in the place.
    fn is_the_sockets_turn(self, fd: c_int) -> bool {
        let (_, passed, arrival) = self.words();
        let arrival = Instant::from_nanos(arrival.load(Relaxed));
        let passed = Instant::from_nanos(passed.load(Relaxed));
        if passed > arrival {
            return false;
        }
        let has_something = || {
            let (events, now) = (libc::POLLIN, Instant::ZERO);
            let mut entries = [libc::pollfd {
                fd,
                events,
                revents: 0,
            }];
            raw::poll(&mut entries, Some(now), now, std::ptr::null()) == Polled::Ready
        };
        loop {
            if has_something() {
                return true;
            }
            let is_on_the_way = passed + ON_THE_WAY > arrival && raw::now() < passed + ON_THE_WAY;
            if !is_on_the_way {
                return false;
            }
        }
    }

    /// Source, destination and length of the datagram.
    fn head(self) -> (SocketAddrV4, SocketAddrV4, usize) {
        let at = self.pointer();
        // SAFETY: FULL or TAKING: the kernel's side does not write. Fields are read by value.
        let (source, destination, ports, length) = unsafe {
            (
                (*at).source.load(Relaxed),
                (*at).destination.load(Relaxed),
                [(*at).source_port, (*at).destination_port],
                (*at).length,
            )
        };
        let address = |word: u32, port| {
            SocketAddrV4::new(Ipv4Addr::from(word.to_ne_bytes()), u16::from_be_bytes(port))
        };
        (
            address(source, ports[0]),
            address(destination, ports[1]),
            usize::from(length).min(2000),
        )
    }

    /// Judges the checksum. A damaged datagram is dropped, as the kernel drops it when it is read.
    fn is_undamaged(self) -> bool {
        let (source, destination, length) = self.head();
        let at = self.pointer();
        // SAFETY: FULL, so no process writes there; the length is within the payload.
        let (sum, payload) = unsafe {
            let start = (&raw const (*at).payload).cast::<u8>();
            (
                u16::from_be_bytes((*at).checksum),
                std::slice::from_raw_parts(start, length),
            )
        };
        let judged = checksum::judge(sum, source, destination, payload);
        let is_good = match judged {
            Some(UdpChecksum::Partial) => IS_VIRTUAL.load(Relaxed),
            judged => judged.is_some(),
        };
        if !is_good {
            self.state().store(IDLE, Release);
        }
        is_good
    }

    /// Whether poll(2) may announce what comes here.
    pub(crate) fn is_read(self) -> bool {
        self.own().is_read.load(Relaxed)
    }

    /// The program reads the socket.
    pub(crate) fn read(self) {
        if !self.is_read() {
            self.own().is_read.store(true, Relaxed);
        }
    }

    /// The program was told that there is something to read.
    pub(crate) fn announced(self) {
        self.own().is_read.store(false, Relaxed);
        HAS_ANNOUNCED.store(true, Relaxed);
    }

    fn free(self) {
        self.key().store(0, SeqCst);
        self.state().store(IDLE, SeqCst);
        // Release: partner is the exchange in `free_place`.
        self.owner().store(0, Release);
    }

    fn release(self) {
        if self.own().users.fetch_sub(1, Relaxed) != 1 {
            return;
        }
        set_place_of_port(self.own().port.load(Relaxed), 0);
        self.free();
    }
}

impl Taken {
    /// The datagram.
    pub(crate) fn bytes(&self) -> &[u8] {
        let at = self.place.pointer();
        // SAFETY: TAKING: only this thread reaches the payload; `head` has bounded the length.
        unsafe { std::slice::from_raw_parts((&raw const (*at).payload).cast::<u8>(), self.length) }
    }

    /// Leaves it there (MSG_PEEK).
    pub(crate) fn put_back(self) {
        // Release: partner is the acquire of the next one who takes it.
        self.place.state().store(FULL, Release);
        std::mem::forget(self);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.place.own().taken.fetch_add(1, Relaxed);
        // Release: the kernel's side, and other threads, write after this.
        self.place.state().store(IDLE, Release);
    }
}

/// Maps the places, if `taut exec` has handed them over.
pub(crate) fn start() {
    let Ok(text) = std::env::var(SHORT_PATH_VARIABLE) else {
        return;
    };
    let words: Vec<&str> = text.split(',').collect();
    let [places, ports, sockets, address, kind] = words[..] else {
        return;
    };
    let numbers = [places, ports, sockets].map(str::parse::<c_int>);
    let ([Ok(places), Ok(ports), Ok(sockets)], Ok(address)) =
        (numbers, address.parse::<Ipv4Addr>())
    else {
        return;
    };
    IS_VIRTUAL.store(kind == "virtual", Relaxed);
    ADDRESS.store(u32::from_ne_bytes(address.octets()), Relaxed);
    SOCKETS.store(sockets, Relaxed);
    let places = map(places, PLACES * size_of::<Shared>());
    let (Some(ports), Some(places)) = (map(ports, PORTS), places) else {
        return;
    };
    PLACE_OF_PORT.store(ports.cast(), Relaxed);
    SHARED.store(places.cast(), Relaxed);
    // Of this process before exec(3).
    let own = own_process();
    let places = (1..PLACES as u8).map(Place);
    places
        .filter(|place| place.owner().load(Relaxed) == own)
        .for_each(Place::free);
}

fn map(fd: c_int, bytes: usize) -> Option<*mut libc::c_void> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping; the kernel checks descriptor and length.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0) };
    (at != libc::MAP_FAILED).then_some(at)
}

fn own_process() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::getpid() as u32 }
}

/// In a forked child: its parent's places are not its own.
pub(crate) fn forget() {
    for own in &OWN {
        own.users.store(0, Relaxed);
        own.taken.store(0, Relaxed);
    }
}

/// Whether a call on a set has announced something beside a socket: it may still be there.
pub(crate) fn has_announced() -> bool {
    HAS_ANNOUNCED.load(Relaxed)
}

/// An option of a socket has changed.
pub(crate) fn option_changed(level: c_int, name: c_int) {
    let is_harmless = match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_RCVTIMEO
                | libc::SO_SNDTIMEO
                | libc::SO_RCVBUF
                | libc::SO_SNDBUF
                | libc::SO_PRIORITY
                | libc::SO_KEEPALIVE
                | libc::SO_LINGER
                | libc::SO_BROADCAST
        ),
        libc::IPPROTO_TCP | libc::IPPROTO_IPV6 => true,
        _ => false,
    };
    if !is_harmless && !SHARED.load(Relaxed).is_null() {
        let next = GENERATION.load(Relaxed).wrapping_add(1).max(1);
        GENERATION.store(next, Relaxed);
    }
}

/// Options by which a program asks for more than a datagram and its sender, or by which the kernel drops or changes
/// datagrams; each is 0 unless it was set. Numbers that the C library's headers lack: SO_TIMESTAMP_NEW and its
/// siblings, SO_RCVMARK, SO_RCVPRIORITY, IP_RECVFRAGSIZE, UDP_ENCAP, UDP_GRO.
const OPTIONS: [(c_int, c_int); 23] = [
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::SOL_SOCKET, 63),
    (libc::SOL_SOCKET, 64),
    (libc::SOL_SOCKET, 65),
    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
    (libc::SOL_SOCKET, 75),
    (libc::SOL_SOCKET, 82),
    (libc::IPPROTO_IP, libc::IP_PKTINFO),
    (libc::IPPROTO_IP, libc::IP_RECVTTL),
    (libc::IPPROTO_IP, libc::IP_RECVTOS),
    (libc::IPPROTO_IP, libc::IP_RECVOPTS),
    (libc::IPPROTO_IP, libc::IP_RETOPTS),
    (libc::IPPROTO_IP, libc::IP_PASSSEC),
    (libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
    (libc::IPPROTO_IP, libc::IP_CHECKSUM),
    (libc::IPPROTO_IP, 25),
    (libc::IPPROTO_UDP, 100),
    (libc::IPPROTO_UDP, 104),
    (libc::IPPROTO_IP, libc::IP_MINTTL),
];

/// Port of a socket that may have a place, or why it may not.
fn port_of(fd: c_int) -> Result<u16, Refusal> {
    let option = |level, name| raw::socket_option(fd, (level, name), 0);
    let has = |name, wanted| option(libc::SOL_SOCKET, name) == Some(wanted);
    if !has(libc::SO_DOMAIN, libc::AF_INET) || !has(libc::SO_PROTOCOL, libc::IPPROTO_UDP) {
        return Err(Refusal::NotUdp);
    }
    let own = socket::local_address(fd).ok_or(Refusal::NotUdp)?;
    let address = u32::from_ne_bytes(own.ip().octets());
    let is_here = address == 0 || address == ADDRESS.load(Relaxed);
    if !is_here || own.port() == 0 {
        return Err(Refusal::OtherAddress);
    }
    let is_set = |(level, name)| option(level, name).is_some_and(|value| value != 0);
    let peeks = option(libc::SOL_SOCKET, libc::SO_PEEK_OFF).is_some_and(|offset| offset >= 0);
    if OPTIONS.into_iter().any(is_set) || peeks || socket::has_filter(fd) || socket::signals(fd) {
        return Err(Refusal::Option);
    }
    Ok(own.port())
}

/// Gives a socket a place.
fn claim(fd: c_int) -> Result<u8, Refusal> {
    let port = port_of(fd)?;
    let sockets = SOCKETS.load(Relaxed);
    let before = place_of_port(port.into());
    if let Some(place) = Place::of(before) {
        let is_same = socket::stored(sockets, fd) == Some(place.key().load(Relaxed));
        if is_same && place.own().users.load(Relaxed) > 0 {
            place.own().users.fetch_add(1, Relaxed);
            return Ok(before);
        }
        if is_alive(place.owner().load(Relaxed)) {
            return Err(Refusal::SharedPort);
        }
    }
    let place = free_place().ok_or(Refusal::NoPlace)?;
    place.own().users.store(1, Relaxed);
    place.own().port.store(port.into(), Relaxed);
    place.own().is_read.store(false, Relaxed);
    place.own().taken.store(0, Relaxed);
    let key = u64::from(own_process()) << 32 | u64::from(KEYS.fetch_add(1, Relaxed));
    if !socket::store(sockets, fd, key) {
        place.release();
        return Err(Refusal::NotPermitted);
    }
    place.key().store(key, SeqCst);
    set_place_of_port(port.into(), place.0);
    Ok(place.0)
}

/// Takes a free place, or one whose process has ended.
fn free_place() -> Option<Place> {
    let own = own_process();
    (1..PLACES as u8).map(Place).find(|place| {
        let owner = place.owner();
        let before = owner.load(Relaxed);
        let is_free = !is_alive(before)
            // Acquire: partner is the release of its last owner.
            && owner.compare_exchange(before, own, Acquire, Relaxed).is_ok();
        if is_free {
            place.state().store(IDLE, SeqCst);
        }
        is_free
    })
}

fn is_alive(process: u32) -> bool {
    process != 0 && socket::is_running(process as libc::pid_t)
}

fn place_of_port(port: u32) -> u8 {
    let ports = PLACE_OF_PORT.load(Relaxed);
    // SAFETY: mapped before the places; a port is below 65,536.
    unsafe { (*ports.add(port as usize)).load(Relaxed) }
}

fn set_place_of_port(port: u32, number: u8) {
    let ports = PLACE_OF_PORT.load(Relaxed);
    // SAFETY: as in `place_of_port`.
    unsafe { (*ports.add(port as usize)).store(number, SeqCst) };
}
