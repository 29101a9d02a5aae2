//! The C interface as a clumsy program calls it: any order of calls, handles that are closed or
//! invented, null and misaligned pointers, buffers too short. Each call answers with a success or a
//! code of the table, writes nothing outside the buffer that it was given, and returns. The same with
//! several threads that use the same handles at once.
//!
//! Left out: pointers to memory that is not the caller's, against which no library can defend itself.
#![allow(unsafe_code)] // Calls functions that take pointers.

use std::ffi::{CString, c_int, c_void};
use std::io::Write;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{OnceLock, PoisonError, RwLock};

use tautline_c::Code;
use tautline_c::awake::*;
use tautline_c::cycle::*;
use tautline_c::node::*;
use tautline_c::open::*;
use tautline_c::port::*;
use tautline_c::socket::*;
use tautline_c::tasks::*;
use tautline_c::types::*;

/// Bytes of one call: which, with which handle, how long, and what else.
const STEP_BYTES: usize = 4;
/// Kinds of calls.
const CALLS: u8 = 28;
/// Calls of one input. More would only take longer: what calls leave behind, they leave to the next
/// input too.
const STEPS_MAX: usize = 16;
/// Largest message of the ports: buffers are shorter and longer.
const MESSAGE_BYTES: usize = 1400;
/// Bytes behind each buffer that must stay as they are.
const GUARD: [u8; 16] = *b"must not change.";
/// Loopback, apart from the addresses of tests.
const CONFIGURATION: &str = "link = 'udp'\naddress = '127.0.0.9'\n";
const NEIGHBOUR: &str = "[[neighbour]]\nname = 'self'\nip = '127.0.0.9'\n";
const ADDRESS: u32 = 0x7f00_0009;
/// A node with raw frames, which needs CAP_NET_RAW: what is sent on loopback comes back.
const RAW_CONFIGURATION: &str = "link = 'packet'\ninterface = 'lo'\npublish_status = false\n";
/// EtherType of the raw port: of experiments, and not the node's.
const ETHERTYPE: u16 = 0x9b04;
/// A set whose task is triggered once an hour at most.
const SET: &str = "[[task]]\nname = 'a'\nperiod = '1h'\nworst_case = '1ms'\nport = 'p'\n";

/// Objects that stay open over all inputs.
struct World {
    node: tautline_node,
    queuing: tautline_port,
    sampling: tautline_port,
    /// Zero where there is no privilege for it.
    raw: tautline_port,
    socket: c_int,
    closed: tautline_port,
    destination: tautline_destination,
    tasks: tautline_tasks,
}

/// Whether other threads make calls at the same time, with the same handles.
#[derive(Clone, Copy, PartialEq)]
enum Threads {
    One,
    Several,
}

static WORLD: OnceLock<World> = OnceLock::new();
/// Held for writing by a thread that must be the only one.
static TURN: RwLock<()> = RwLock::new(());
/// Messages and values that came through.
static RECEIVED: AtomicU64 = AtomicU64::new(0);

/// The bytes as calls of the only thread.
pub fn c_interface(data: &[u8]) {
    let _turn = TURN.write().unwrap_or_else(PoisonError::into_inner);
    calls(data, Threads::One);
}

/// The bytes as calls beside those of other threads: what is in use by one is refused to the others.
pub fn c_interface_shared(data: &[u8]) {
    let _turn = TURN.read().unwrap_or_else(PoisonError::into_inner);
    calls(data, Threads::Several);
}

fn calls(data: &[u8], threads: Threads) {
    let world = WORLD.get_or_init(World::open);
    for step in data.as_chunks::<STEP_BYTES>().0.iter().take(STEPS_MAX) {
        world.call(*step, data, threads);
    }
}

/// Messages and values that came through so far: whether the calls do more than fail.
pub fn received() -> u64 {
    RECEIVED.load(Relaxed)
}

/// Inputs that reach each call.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = (0..CALLS)
        .map(|call| {
            let step = |handle, bytes| [call, handle, bytes, 0];
            [step(0, 200), step(1, 3), step(2, 255), step(3, 0)].concat()
        })
        .collect();
    // A message is sent to each port and received again, short and whole.
    seeds.push([[2, 0, 40, 0], [3, 0, 255, 0], [3, 0, 255, 0]].concat());
    seeds.push(
        [
            [12, 2, 90, 0],
            [13, 2, 10, 0],
            [12, 2, 90, 0],
            [13, 2, 255, 1],
        ]
        .concat(),
    );
    // A frame is sent on loopback and received, by a call that is too long and by one that fits.
    seeds.push(
        [
            [4, 0x84, 255, 0x80],
            [4, 0x84, 90, 0x80],
            [4, 0x84, 95, 0x80],
        ]
        .concat(),
    );
    seeds.push([[22, 0, 10, 0x80], [22, 0, 10, 0x88]].concat());
    // Open, use, close.
    seeds.push([[18, 0, 0, 0], [19, 0, 0, 0], [17, 0, 30, 0]].concat());
    seeds
}

/// A buffer of some bytes with a guard behind them.
struct Guarded {
    bytes: Vec<u8>,
    length: usize,
}

impl Guarded {
    fn new(length: usize) -> Self {
        let mut bytes = vec![0; length];
        bytes.extend(GUARD);
        Self { bytes, length }
    }

    /// Where it starts; null for some.
    fn start(&mut self, what: u8) -> *mut c_void {
        if what & 0x40 != 0 {
            return null_mut();
        }
        self.bytes.as_mut_ptr().cast()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        assert_eq!(
            self.bytes[self.length..],
            GUARD,
            "written past {}",
            self.length
        );
    }
}

/// A place for a result: good, null or misaligned.
fn place<T>(good: &mut T, what: u8) -> *mut T {
    match what & 0x30 {
        0x10 => null_mut(),
        // Never followed: it is refused as misaligned.
        0x20 if align_of::<T>() > 1 => std::ptr::from_mut(good).wrapping_byte_add(1),
        _ => good,
    }
}

fn check(result: c_int) -> c_int {
    assert!(result >= 0 || Code::of(result).is_some(), "{result}");
    assert_ne!(result, Code::Internal as c_int);
    result
}

fn count(came_through: bool) {
    RECEIVED.fetch_add(came_through.into(), Relaxed);
}

/// Whether to make a call that takes as long as a thousand of the others: for one input in 64.
fn rarely(data: &[u8]) -> bool {
    data.iter().map(|byte| u32::from(*byte)).sum::<u32>() % 64 == 0
}

/// The bytes up to the first zero as a text of C.
fn text(data: &[u8]) -> CString {
    let bytes = data.split(|byte| *byte == 0).next().unwrap_or(data);
    CString::new(bytes).expect("cut off at a zero byte")
}

fn address(port: u16, family: libc::sa_family_t) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: family,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr {
            s_addr: ADDRESS.to_be(),
        },
        sin_zero: [0; 8],
    }
}

/// Options of a port with a number, and no others.
fn options(kind: u16, number: u16) -> tautline_port_options {
    tautline_port_options {
        kind,
        number,
        depth: 0,
        name: null(),
        message_bytes_max: 0,
        sources: 0,
        refresh_period_ns: 0,
        spin_ns: 0,
        police_rate: 0,
        police_burst: 0,
    }
}

unsafe extern "C" fn job(_job: *const tautline_job, _context: *mut c_void) {}

impl World {
    fn open() -> Self {
        let text = CString::new([CONFIGURATION, NEIGHBOUR].concat()).expect("no zero byte");
        let none = tautline_port { id: 0 };
        let mut world = Self {
            node: tautline_node { id: 0 },
            queuing: none,
            sampling: none,
            raw: none,
            socket: -1,
            closed: none,
            destination: tautline_destination {
                port_id: 0,
                index: 0,
            },
            tasks: tautline_tasks { id: 0 },
        };
        let queuing = tautline_port_options {
            depth: 16,
            message_bytes_max: MESSAGE_BYTES as u32,
            spin_ns: 1,
            ..options(TAUTLINE_QUEUING, 3001)
        };
        let sampling = options(TAUTLINE_SAMPLING, 3002);
        let closed = options(TAUTLINE_QUEUING, 3004);
        let local = address(15403, libc::AF_INET as libc::sa_family_t);
        let local_bytes = size_of_val(&local) as libc::socklen_t;
        // SAFETY: all pointers are to locals, texts end with a zero byte.
        unsafe {
            assert_eq!(tautline_node_open_text(text.as_ptr(), &mut world.node), 0);
            let node = world.node;
            let opened = tautline_port_open(node, &queuing, &mut world.queuing);
            assert_eq!(opened, 0);
            let opened = tautline_port_open(node, &sampling, &mut world.sampling);
            assert_eq!(opened, 0);
            let opened = tautline_port_open(node, &closed, &mut world.closed);
            assert_eq!(opened, 0);
            let name = c"self".as_ptr();
            let to = &mut world.destination;
            let found = tautline_destination_of(world.queuing, name, 3001, TAUTLINE_FOREVER, to);
            assert_eq!(found, 0);
            world.socket = rt_socket((&raw const local).cast(), local_bytes, MESSAGE_BYTES);
        }
        assert!(world.socket >= 0);
        world.open_raw();
        world.open_tasks();
        assert_eq!(tautline_port_close(world.closed), 0);
        world
    }

    /// Opens the raw port, if this process may.
    fn open_raw(&mut self) {
        let text = CString::new(RAW_CONFIGURATION).expect("no zero byte");
        let mut node = tautline_node { id: 0 };
        let options = tautline_port_options {
            depth: 16,
            spin_ns: 1,
            ..options(TAUTLINE_RAW, ETHERTYPE)
        };
        // SAFETY: all pointers are to locals, texts end with a zero byte.
        unsafe {
            if check(tautline_node_open_text(text.as_ptr(), &mut node)) == 0 {
                check(tautline_port_open(node, &options, &mut self.raw));
                // Its port keeps it.
                check(tautline_node_close(node));
            }
        }
    }

    /// Starts the set, without real time, which has no use here.
    fn open_tasks(&mut self) {
        let path = std::env::temp_dir().join(format!("tautline-calls-{}.toml", std::process::id()));
        let mut file = std::fs::File::create_new(&path).expect("a name that nobody has");
        file.write_all(SET.as_bytes()).expect("room for a line");
        let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("no zero byte");
        // SAFETY: all pointers are to locals, texts end with a zero byte.
        unsafe {
            assert_eq!(tautline_tasks_open(name.as_ptr(), &mut self.tasks), 0);
            let code = tautline_tasks_code(self.tasks, c"a".as_ptr(), Some(job), None, null_mut());
            assert_eq!(code, 0);
        }
        std::fs::remove_file(path).expect("it is ours");
        let started = tautline_tasks_start(self.tasks, -1, TAUTLINE_WITHOUT_REAL_TIME);
        assert_eq!(started, 0);
    }

    /// A handle: one of ours, the closed one, or an invented one.
    fn port(&self, handle: u8, data: &[u8]) -> tautline_port {
        match handle % 6 {
            // So that what the kept inputs reach stays what it was.
            0 if handle & 0x80 != 0 => self.raw,
            0 => self.queuing,
            1 => self.sampling,
            2 => tautline_port {
                id: self.socket as u32,
            },
            3 => self.closed,
            4 => tautline_port { id: 0 },
            _ => tautline_port {
                id: data
                    .first_chunk()
                    .map_or(1, |bytes| u32::from_le_bytes(*bytes)),
            },
        }
    }

    /// Whether a handle is one that must stay open.
    fn keeps(&self, port: tautline_port) -> bool {
        let kept = [self.queuing.id, self.sampling.id, self.raw.id];
        kept.contains(&port.id) || self.socket as u32 == port.id
    }

    fn call(&self, [call, handle, bytes, what]: [u8; STEP_BYTES], data: &[u8], threads: Threads) {
        let port = self.port(handle, data);
        // Up to 4,080 bytes, so that some buffers are large enough.
        let mut buffer = Guarded::new(usize::from(bytes) * 16);
        let (start, length) = (buffer.start(what), buffer.length);
        match call % CALLS {
            call @ 0..=11 => self.port_call(call, port, start, length, what, data),
            // Another thread may map the buffer anew while this one writes into it.
            14 if threads == Threads::Several => {}
            call @ 12..=15 => {
                let socket = port.id as c_int;
                self.socket_call(call, socket, start, length, what, threads);
            }
            call @ 16..=19 => self.node_call(call, port, start, length, what, data),
            26 => {
                loop_call(start, length, what);
                awake_call(port, start, length, what);
            }
            27 => self.tasks_call(port, start, length, what, data),
            call => self.open_call(call, port, length, what, data, threads),
        }
    }

    fn port_call(
        &self,
        call: u8,
        port: tautline_port,
        start: *mut c_void,
        length: usize,
        what: u8,
        data: &[u8],
    ) {
        let mut info = tautline_port_info {
            number: 0,
            kind: 0,
            message_bytes_max: 0,
        };
        let mut source = tautline_source {
            form: what & 3,
            mac: [2, 0, 0, 0, 0, what],
            reserved: 0,
            ip: ADDRESS.to_be(),
            udp_port: u16::from(what).to_be(),
            port: u16::from(what) * 20,
        };
        let mut to = tautline_destination {
            port_id: self.destination.port_id,
            index: u32::from(what),
        };
        if what & 8 != 0 {
            to = self.destination;
        }
        // SAFETY: buffers and places are ours, null or misaligned, which is what is tested; lengths
        // are those of the buffers.
        unsafe {
            match call {
                0 => check(tautline_port_info(port, place(&mut info, what))),
                1 => check(tautline_descriptor(port)),
                2 if what & 0x80 != 0 => {
                    self.send_batch(port, to, start.cast_const(), length, what)
                }
                2 => check(tautline_send(port, to, what, start, length)),
                4 if what & 0x80 != 0 => self.frame_call(port, start, length, what),
                3 | 4 => {
                    let mut message = std::mem::zeroed();
                    let out = place(&mut message, what);
                    let received = check(tautline_receive(port, TAUTLINE_POLL, start, length, out));
                    assert!(received != 1 || message.bytes as usize <= length);
                    count(received == 1);
                    received
                }
                5 | 6 => {
                    let mut sample: tautline_sample = std::mem::zeroed();
                    let out = place(&mut sample, what);
                    let read = match call {
                        5 => tautline_read(port, start, length, out),
                        _ => tautline_next(port, u64::from(what), start, length, out),
                    };
                    assert!(read != 1 || sample.bytes as usize <= length);
                    count(read == 1);
                    check(read)
                }
                7 => check(tautline_reply(
                    port,
                    place(&mut source, what),
                    what,
                    start,
                    length,
                )),
                8 => {
                    let (to, name, number) = (place(&mut to, what), text(data), what.into());
                    check(match length % 4 {
                        0 => tautline_readers_of(port, to),
                        1 => tautline_follow(port, name.as_ptr(), number),
                        // The deadline has passed: nothing waits.
                        even => tautline_destination_of(
                            port,
                            name.as_ptr(),
                            number,
                            (even & 1) as u64,
                            to,
                        ),
                    })
                }
                9 => {
                    let mut counters = std::mem::zeroed();
                    check(tautline_port_counters(port, place(&mut counters, what)))
                }
                10 => check(tautline_last_error(start.cast(), length)),
                _ if self.keeps(port) => 0,
                _ => check(tautline_port_close(port)),
            };
        }
    }

    /// A batch of up to three, or of far too many, whose last priority is invented.
    ///
    /// # Safety
    /// As in `port_call`.
    unsafe fn send_batch(
        &self,
        port: tautline_port,
        destination: tautline_destination,
        message: *const c_void,
        bytes: usize,
        what: u8,
    ) -> c_int {
        let mut batch = [tautline_outgoing {
            message,
            bytes,
            destination,
            priority: 0,
            reserved: [0; 7],
        }; 3];
        batch[2].priority = what & 0xf;
        let count = [0, 1, 3, usize::MAX][usize::from(what & 3)];
        // SAFETY: so many structs are there, or more than a batch can have are named.
        let taken =
            check(unsafe { tautline_send_batch(port, place(&mut batch, what).cast(), count) });
        assert!(taken <= 3);
        taken
    }

    /// Sends a frame, of the port's EtherType or another, and receives one.
    ///
    /// # Safety
    /// As in `port_call`.
    unsafe fn frame_call(
        &self,
        port: tautline_port,
        start: *mut c_void,
        length: usize,
        what: u8,
    ) -> c_int {
        if !start.is_null() && length >= 14 && what & 1 == 0 {
            let mut header = [0; 14];
            header[12..].copy_from_slice(&ETHERTYPE.to_be_bytes());
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), start.cast(), header.len()) };
        }
        // SAFETY: zero is valid in every field.
        let mut frame: tautline_message = unsafe { std::mem::zeroed() };
        let out = place(&mut frame, what);
        // SAFETY: the caller's promise.
        let received = unsafe {
            check(tautline_send_frame(port, start, length));
            check(tautline_receive(port, TAUTLINE_POLL, start, length, out))
        };
        assert!(received != 1 || frame.bytes as usize <= length);
        count(received == 1);
        received
    }

    fn socket_call(
        &self,
        call: u8,
        socket: c_int,
        start: *mut c_void,
        length: usize,
        what: u8,
        threads: Threads,
    ) {
        let family = if what & 4 == 0 {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        let mut peer = address(15400 + u16::from(what & 3), family as libc::sa_family_t);
        let mut peer_bytes = libc::socklen_t::from(what >> 3 | 0x10);
        let mut from = Guarded::new(peer_bytes as usize);
        // SAFETY: as in `port_call`.
        unsafe {
            match call {
                12 => {
                    let to = place(&mut peer, what & 0x10).cast();
                    let bytes = peer_bytes.min(size_of_val(&peer) as libc::socklen_t);
                    let sent = rt_sendto(socket, start, length, c_int::from(what & 1), to, bytes);
                    assert!(sent == -1 || sent == length as isize);
                }
                13 => {
                    let flags = libc::MSG_DONTWAIT | (c_int::from(what & 1) * libc::MSG_TRUNC);
                    let place = from.start(what).cast();
                    let got = rt_recvfrom(socket, start, length, flags, place, &mut peer_bytes);
                    let most = if what & 1 == 0 { length } else { MESSAGE_BYTES };
                    assert!((-1..=most as isize).contains(&got));
                    count(got >= 0);
                }
                14 => {
                    let buffer = rt_mmap(socket, length);
                    if buffer != libc::MAP_FAILED {
                        buffer.cast::<u8>().write_bytes(what, length);
                        if what & 1 == 0 {
                            assert_eq!(tautline_socket_unmap(socket, buffer), 0);
                        }
                    }
                }
                _ if self.keeps(tautline_port { id: socket as u32 }) => {}
                // By chance this can be a handle that another thread has just opened.
                _ => assert!(rt_socket_close(socket) == -1 || threads == Threads::Several),
            }
        }
    }

    fn node_call(
        &self,
        call: u8,
        port: tautline_port,
        start: *mut c_void,
        length: usize,
        what: u8,
        data: &[u8],
    ) {
        let node = match what & 3 {
            0 => self.node,
            _ => tautline_node { id: port.id },
        };
        // SAFETY: as in `port_call`.
        unsafe {
            match call {
                16 => {
                    check(tautline_node_report(node, start.cast(), length));
                    check(tautline_node_status(node, start.cast(), length));
                }
                17 => {
                    // Every text stays on loopback: a key cannot be given twice.
                    let mut text = CONFIGURATION.as_bytes().to_vec();
                    text.extend(data.iter().filter(|byte| **byte != 0));
                    let text = CString::new(text).expect("zero bytes are left out");
                    let mut opened = tautline_node { id: 0 };
                    if check(tautline_node_open_text(
                        text.as_ptr(),
                        place(&mut opened, what),
                    )) == 0
                    {
                        check(tautline_node_close(opened));
                    }
                }
                18 if rarely(data) => {
                    let options = tautline_port_options {
                        depth: 1 << (what & 7),
                        message_bytes_max: length as u32,
                        ..options(TAUTLINE_QUEUING, 3010 + u16::from(what))
                    };
                    let mut opened = tautline_port { id: 0 };
                    let out = place(&mut opened, what);
                    if check(tautline_port_open(node, &options, out)) == 0 {
                        check(tautline_port_close(opened));
                    }
                }
                _ if node.id == self.node.id => {}
                _ => {
                    check(tautline_node_close(node));
                }
            }
        }
    }

    fn tasks_call(
        &self,
        port: tautline_port,
        start: *mut c_void,
        length: usize,
        what: u8,
        data: &[u8],
    ) {
        let tasks = match what & 3 {
            0 => self.tasks,
            _ => tautline_tasks { id: port.id },
        };
        let (name, cpu) = (text(data), c_int::from(what as i8));
        // SAFETY: as in `port_call`.
        unsafe {
            let mut opened = tautline_tasks { id: 0 };
            let file = [b"/nowhere/", name.as_bytes()].concat();
            let file = CString::new(file).expect("cut off at a zero byte");
            assert!(check(tautline_tasks_open(file.as_ptr(), place(&mut opened, what))) < 0);
            let run = (what & 8 == 0).then_some(job as unsafe extern "C" fn(_, _));
            check(tautline_tasks_code(tasks, name.as_ptr(), run, None, start));
            check(tautline_tasks_messages(tasks, name.as_ptr(), port));
            check(tautline_tasks_messages(tasks, c"a".as_ptr(), port));
            check(tautline_tasks_start(tasks, cpu, what.into()));
            check(tautline_tasks_trigger(tasks, name.as_ptr()));
            check(tautline_tasks_trigger(tasks, c"a".as_ptr()));
            check(tautline_tasks_request_mode(tasks, name.as_ptr()));
            let mut figures = std::mem::zeroed();
            let figures = place(&mut figures, what);
            check(tautline_tasks_figures(tasks, c"a".as_ptr(), figures));
            check(tautline_tasks_limits(tasks, start.cast(), length));
        }
        if tasks.id != self.tasks.id {
            check(tautline_tasks_close(tasks, 0));
        }
    }

    /// The other ways to open something, and what takes its handle.
    fn open_call(
        &self,
        call: u8,
        port: tautline_port,
        length: usize,
        what: u8,
        data: &[u8],
        threads: Threads,
    ) {
        let node = match what & 3 {
            0 => self.node,
            _ => tautline_node { id: port.id },
        };
        let mut opened = tautline_port { id: 0 };
        let out = place(&mut opened, what);
        // SAFETY: as in `port_call`.
        unsafe {
            match call {
                20 if rarely(data) => {
                    let family = if what & 4 == 0 { libc::AF_INET } else { 0 };
                    let mut local = address(15410, family as libc::sa_family_t);
                    let local = place(&mut local, what & 0x10).cast();
                    let socket = rt_socket(local, (what >> 4 | 8).into(), length);
                    if socket >= 0 {
                        let closed = rt_socket_close(socket);
                        assert!(closed == 0 || threads == Threads::Several);
                    }
                }
                21 => {
                    let name = text(data);
                    let mut options = tautline_port_options {
                        name: name.as_ptr(),
                        sources: (what >> 6).into(),
                        ..options((what & 7).into(), 0)
                    };
                    check(tautline_port_open(node, place(&mut options, what), out));
                }
                22 if rarely(data) && what & 0x80 != 0 => {
                    let mut options = tautline_port_options {
                        depth: 1 << (what & 7),
                        spin_ns: length as u64,
                        police_rate: what.into(),
                        ..options(TAUTLINE_RAW, u16::from(what) << 8)
                    };
                    if check(tautline_port_open(node, place(&mut options, what), out)) == 0 {
                        check(tautline_port_close(opened));
                    }
                }
                22 if rarely(data) => {
                    let options = options(TAUTLINE_DATAGRAM, 15420 + u16::from(what & 3));
                    if check(tautline_port_open(node, &options, out)) == 0 {
                        check(tautline_port_close(opened));
                    }
                }
                23 => {
                    check(tautline_socket_port(port.id as c_int, out));
                }
                24 => {
                    let file = [b"/nowhere/", text(data).as_bytes()].concat();
                    let file = CString::new(file).expect("cut off at a zero byte");
                    let mut opened = tautline_node { id: 0 };
                    let opened = check(tautline_node_open(file.as_ptr(), place(&mut opened, what)));
                    assert!(opened < 0, "there is nothing");
                }
                // With the node that stays, these would change what the others meet.
                _ if node.id != self.node.id => {
                    check(tautline_node_publish_status(node));
                    check(tautline_socket_node(node));
                }
                _ => assert!(!tautline_code_text(port.id as c_int).is_null()),
            }
        }
    }
}

/// The thread's own cycle, of a period that can be waited for.
fn loop_call(start: *mut c_void, length: usize, what: u8) {
    let mut options = tautline_cycle_options {
        period_ns: [0, 20_000, u64::MAX][usize::from(what % 3)],
        cpu: -1 - i32::from(what & 4),
        fifo_priority: if what & 8 == 0 { 0 } else { 200 },
        lock_memory: 0,
        reserved: [0; 2],
        phase_ns: u64::from(what) * 100,
        values_per_cycle: u32::from(what & 16),
        reserved_too: 0,
    };
    // SAFETY: as in `port_call`.
    unsafe {
        check(tautline_cycle_start(place(&mut options, what)));
        let mut tick = std::mem::zeroed();
        check(tautline_cycle_wait(place(&mut tick, what)));
        check(tautline_cycle_arrived(u64::from(what) << (what & 63)));
        check(tautline_cycle_report(start.cast(), length));
    }
    if what & 0x80 == 0 {
        check(tautline_cycle_stop());
    }
}

/// Waits that find nothing, on standard input or an invented descriptor.
fn awake_call(port: tautline_port, start: *mut c_void, length: usize, what: u8) {
    let mut awake = tautline_awake { id: 0 };
    let descriptor = if what & 1 == 0 { 0 } else { port.id as c_int };
    // SAFETY: as in `port_call`.
    let opened = unsafe { check(tautline_awake_open(descriptor, place(&mut awake, what))) };
    if opened < 0 {
        awake.id = port.id;
    }
    check(tautline_awake_wait(awake, u64::from(what)));
    check(tautline_awake_sent(awake));
    // SAFETY: as in `port_call`.
    unsafe { check(tautline_awake_report(awake, start.cast(), length)) };
    check(tautline_awake_close(awake));
    let mut late_ns = 0;
    // SAFETY: as in `port_call`. The moment has passed: nothing sleeps.
    unsafe { check(tautline_sleep_until(what.into(), place(&mut late_ns, what))) };
}
