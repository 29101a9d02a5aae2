//! The functions of `calls.c`, safe to call.
#![allow(unsafe_code)] // calls of C, whose memory is the caller's

use std::ffi::c_int;

/// Answer of the C parser that is neither acceptance nor an error.
pub const NOT_OURS: i32 = 10;
/// Answer of the C parser to a good frame.
pub const ACCEPTED: i32 = 11;

/// Forms of a frame, numbered as in `calls.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Whole frame of the Ethernet form, with this EtherType.
    Ethernet(u16),
    /// Whole frame of the UDP form.
    Udp,
    /// UDP payload that came to this UDP port.
    Datagram(u16),
    /// Header and payload alone.
    Header,
}

/// `struct tlm_header`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs)] // the fields of docs/reference/wire.md
pub struct Header {
    pub destination: u16,
    pub source: u16,
    pub length: u16,
    pub priority: u8,
    pub flags: u8,
    pub fragment_index: u8,
    pub fragment_count: u8,
    pub type_byte: u8,
    pub sequence: u32,
}

/// `struct call_frame`: a frame taken apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs)] // as above
pub struct Parsed {
    pub header: Header,
    pub payload_offset: u64,
    pub destination_ip: u32,
    pub source_ip: u32,
    pub destination_mac: [u8; 6],
    pub source_mac: [u8; 6],
    pub udp_checksum: u8,
}

/// `struct tlm_loss`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs)] // as in tautline_proto::loss
pub struct Loss {
    pub window: u64,
    pub expected: u64,
    pub received: u64,
    pub duplicates: u64,
    pub highest: u32,
    pub span: u32,
    pub restarts: u32,
}

/// `struct tlm_reassembler`.
#[derive(Debug)]
#[repr(C)]
struct Reassembler {
    collectors: *mut u8,
    bytes: *mut u8,
    collector_count: u32,
    message_bytes_max: u32,
    time_limit_ns: u64,
    counters: Counters,
}

/// Counters of a reassembler, in the order of the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs)] // as in tautline_proto::fragment
pub struct Counters {
    pub completed: u32,
    pub expired: u32,
    pub forgotten: u32,
    pub duplicates: u32,
    pub no_collector: u32,
    pub quota_reached: u32,
    pub inconsistent: u32,
    pub too_large: u32,
}

#[rustfmt::skip]
unsafe extern "C" {
    fn call_parse(form: c_int, bytes: *const u8, count: usize, number: u16, out: *mut Parsed) -> c_int;
    fn call_write_ethernet(at: *mut u8, fields: *const Parsed, ethertype: u16, with_tag: bool) -> usize;
    fn call_write_udp(at: *mut u8, fields: *const Parsed, type_of_service: u8) -> usize;
    fn call_loss(loss: *mut Loss, sequence: u32) -> c_int;
    fn call_bundle_step(payload: *const u8, count: usize, at: *mut usize, offset: *mut usize, bytes: *mut usize) -> c_int;
    fn call_bundle_is_valid(payload: *const u8, count: usize) -> bool;
    fn call_fragment_count(message_bytes: usize, whole_bytes_max: usize) -> u32;
    fn call_fragment_length(message_bytes: usize, index: u32, count: u32) -> u16;
    fn call_collector_bytes() -> usize;
    fn call_collect(
        reassembler: *mut Reassembler, now_ns: u64, source: u32, fields: *const Parsed, payload: *const u8,
        message: *mut *const u8, bytes: *mut u32,
    ) -> c_int;
    fn call_expire(reassembler: *mut Reassembler, now_ns: u64);
    fn call_forget_flow(reassembler: *mut Reassembler, source: u32, from: u16, to: u16);
}

/// Parses; the error or answer as a number of `enum tlm_verdict`.
pub fn parse(form: Form, bytes: &[u8]) -> Result<Parsed, i32> {
    let (form, number) = match form {
        Form::Ethernet(ethertype) => (0, ethertype),
        Form::Udp => (1, 0),
        Form::Datagram(port) => (2, port),
        Form::Header => (3, 0),
    };
    let mut parsed = Parsed::default();
    // SAFETY: the input is readable for its length, which the tests with `guarded` prove to be enough, and `parsed` has
    // the layout of `struct call_frame`.
    let verdict = unsafe { call_parse(form, bytes.as_ptr(), bytes.len(), number, &mut parsed) };
    match verdict {
        ACCEPTED => Ok(parsed),
        other => Err(other),
    }
}

/// Headers of a frame of the Ethernet form.
pub fn write_ethernet(fields: &Parsed, ethertype: u16, with_tag: bool) -> Vec<u8> {
    let mut bytes = vec![0; 34];
    // SAFETY: the longest headers have 34 bytes.
    let count = unsafe { call_write_ethernet(bytes.as_mut_ptr(), fields, ethertype, with_tag) };
    bytes.truncate(count);
    bytes
}

/// Headers of a frame of the UDP form.
pub fn write_udp(fields: &Parsed, type_of_service: u8) -> Vec<u8> {
    let mut bytes = vec![0; 58];
    // SAFETY: the headers have 58 bytes.
    let count = unsafe { call_write_udp(bytes.as_mut_ptr(), fields, type_of_service) };
    bytes.truncate(count);
    bytes
}

impl Loss {
    /// Takes a sequence number; a number of `enum tlm_arrival`.
    pub fn record(&mut self, sequence: u32) -> i32 {
        // SAFETY: `self` has the layout of `struct tlm_loss`.
        unsafe { call_loss(self, sequence) }
    }
}

/// Messages of a bundle, `None` if it is malformed.
pub fn bundle(payload: &[u8]) -> Option<Vec<&[u8]>> {
    let mut messages = Vec::new();
    let (mut at, mut offset, mut bytes) = (0, 0, 0);
    loop {
        // SAFETY: the payload is readable for its length; the rest are places for numbers.
        let step = unsafe {
            let (payload, count) = (payload.as_ptr(), payload.len());
            call_bundle_step(payload, count, &mut at, &mut offset, &mut bytes)
        };
        match step {
            0 => break,
            1 => messages.push(&payload[offset..offset + bytes]),
            _ => return None,
        }
    }
    Some(messages)
}

/// Whether the whole bundle is well-formed, as a port asks before it takes the first message.
pub fn bundle_is_valid(payload: &[u8]) -> bool {
    // SAFETY: the payload is readable for its length.
    unsafe { call_bundle_is_valid(payload.as_ptr(), payload.len()) }
}

/// Payload bytes of each frame of a message, `None` if it is too large.
pub fn fragments(message_bytes: usize, whole_bytes_max: usize) -> Option<Vec<u16>> {
    // SAFETY: numbers only.
    let count = unsafe { call_fragment_count(message_bytes, whole_bytes_max) };
    // SAFETY: likewise.
    let length = |index| unsafe { call_fragment_length(message_bytes, index, count) };
    (count > 0).then(|| (0..count).map(length).collect())
}

/// Collectors in memory of their own, all zeros at first.
#[derive(Debug)]
pub struct Collectors {
    reassembler: Reassembler,
    // Memory that `reassembler` points to; u64 for the alignment.
    _collectors: Vec<u64>,
    _bytes: Vec<u8>,
}

impl Collectors {
    /// Takes the memory that `TLM_COLLECTORS` takes statically.
    pub fn new(collector_count: usize, message_bytes_max: usize, time_limit_ns: u64) -> Self {
        // SAFETY: a number only.
        let one = unsafe { call_collector_bytes() };
        let mut collectors = vec![0_u64; (one * collector_count).div_ceil(8)];
        let mut bytes = vec![0; collector_count * message_bytes_max];
        Self {
            reassembler: Reassembler {
                collectors: collectors.as_mut_ptr().cast(),
                bytes: bytes.as_mut_ptr(),
                collector_count: collector_count as u32,
                message_bytes_max: message_bytes_max as u32,
                time_limit_ns,
                counters: Counters::default(),
            },
            _collectors: collectors,
            _bytes: bytes,
        }
    }

    /// Takes a frame that was accepted; a number of `enum tlm_outcome`, and the message if it is complete.
    ///
    /// # Panics
    /// If the payload is shorter than the header says, which the parser excludes.
    pub fn collect(
        &mut self,
        now_ns: u64,
        source: u32,
        header: &Header,
        payload: &[u8],
    ) -> (i32, Option<&[u8]>) {
        assert_eq!(payload.len(), usize::from(header.length));
        let fields = Parsed {
            header: *header,
            ..Parsed::default()
        };
        let (mut message, mut bytes) = (std::ptr::null(), 0);
        // SAFETY: the reassembler points to memory of its own with the lengths that it says, and the payload is as long
        // as the header says.
        let outcome = unsafe {
            let payload = payload.as_ptr();
            let reassembler = &mut self.reassembler;
            call_collect(
                reassembler,
                now_ns,
                source,
                &fields,
                payload,
                &mut message,
                &mut bytes,
            )
        };
        // SAFETY: a complete message lies in the reassembler's memory, which is borrowed for as long as the slice.
        let message =
            (outcome == 1).then(|| unsafe { std::slice::from_raw_parts(message, bytes as usize) });
        (outcome, message)
    }

    /// Drops messages whose time is over.
    pub fn expire(&mut self, now_ns: u64) {
        // SAFETY: as in `collect`.
        unsafe { call_expire(&mut self.reassembler, now_ns) }
    }

    /// Drops the messages of a flow.
    pub fn forget_flow(&mut self, source: u32, from: u16, to: u16) {
        // SAFETY: as in `collect`.
        unsafe { call_forget_flow(&mut self.reassembler, source, from, to) }
    }

    /// Counters so far.
    pub fn counters(&self) -> Counters {
        self.reassembler.counters
    }
}
