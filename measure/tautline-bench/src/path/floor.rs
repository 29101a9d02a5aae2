//! The floor: the barest way from a frame to this process's memory and back, with no port logic at
//! all (`floor.bpf.c`). A benchmark runs it beside the links to show what the machine allows.
//! Nothing else has a use for it: one slot, one frame at a time, no checks.
#![allow(unsafe_code)] // Reads the mapped slot.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Acquire};

use aya::maps::Map;
use aya::programs::links::FdLink;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, Program, TcAttachType, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::SendFlags;
use tautline_state::interface;
use tautline_testbed::hosts::{Host, Hosts};
use tautline_testbed::sys::frame_sender;

use super::{Arrival, End, PathError};

/// IEEE 802 local experimental EtherType 2.
const ETHERTYPE: [u8; 2] = [0x88, 0xb6];
const ETHERNET_BYTES: usize = 14;
/// `struct floor_slot`: a sequence number, then the frame.
const SLOT_BYTES: usize = 1536;
const FRAME_WORDS: usize = SLOT_BYTES / 8 - 1;
/// Largest payload.
pub const PAYLOAD_BYTES_MAX: usize = 1500;

#[repr(C)]
struct Slot {
    sequence: AtomicU64,
    frame: [AtomicU64; FRAME_WORDS],
}

/// One end of the barest echo.
#[derive(Debug)]
pub struct Floor {
    memory: Mapping,
    sender: OwnedFd,
    frame: Box<[u8; ETHERNET_BYTES + PAYLOAD_BYTES_MAX]>,
    seen: u64,
    buffer: Box<[u8; PAYLOAD_BYTES_MAX]>,
    length: usize,
    _attached: FdLink,
    _ebpf: Ebpf,
}

/// Hook of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// The driver's poll (native XDP).
    Driver,
    /// Traffic control (tcx).
    TrafficControl,
}

impl Hook {
    /// For a line about a path.
    pub fn text(self) -> &'static str {
        match self {
            Hook::Driver => "the driver's poll",
            Hook::TrafficControl => "traffic control",
        }
    }
}

/// Both ends on a cable of their own: the program cannot share an interface with the demux.
pub fn pair(hosts: &Hosts, cable: usize, hook: Hook) -> Result<[Floor; 2], PathError> {
    let open = |host: Host| {
        let [own, peer] = [host, host.peer()].map(|host| hosts.end(host, cable).mac());
        let interface = hosts.end(host, cable).interface();
        hosts
            .inside(host, || Floor::open(hook, &interface, own, peer))?
            .map_err(PathError::Floor)
    };
    Ok([open(Host::A)?, open(Host::B)?])
}

impl Floor {
    /// Attaches to an interface of this thread's network namespace.
    fn open(
        hook: Hook,
        interface: &str,
        own: [u8; 6],
        peer: [u8; 6],
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let index = interface::index(interface)?;
        let (object, name): (Option<&[u8]>, _) = match hook {
            Hook::Driver => (tautline_bpf::object!("bpf", "floor"), "tautline_floor"),
            Hook::TrafficControl => (
                tautline_bpf::object!("bpf", "floor_tc"),
                "tautline_floor_tc",
            ),
        };
        let object = object.ok_or("this build has no BPF programs (feature `bpf`)")?;
        let mut ebpf = EbpfLoader::new().load(object)?;
        let program = ebpf.program_mut(name);
        let attached = match program.ok_or("the floor is not in its object")? {
            Program::SchedClassifier(program) => {
                program.load()?;
                let first = TcAttachOptions::TcxOrder(LinkOrder::first());
                let attached =
                    program.attach_with_options(interface, TcAttachType::Ingress, first)?;
                FdLink::try_from(program.take_link(attached)?)?
            }
            program => {
                let program: &mut Xdp = program.try_into()?;
                program.load()?;
                let attached = program.attach_to_if_index(index, XdpMode::Driver)?;
                FdLink::try_from(program.take_link(attached)?)?
            }
        };
        let Some(Map::Array(map)) = ebpf.map("floor_memory") else {
            return Err("the floor has no memory".into());
        };
        let memory = Mapping::of(map.fd().as_fd())?;
        let mut frame = Box::new([0; ETHERNET_BYTES + PAYLOAD_BYTES_MAX]);
        frame[..6].copy_from_slice(&peer);
        frame[6..12].copy_from_slice(&own);
        frame[12..14].copy_from_slice(&ETHERTYPE);
        Ok(Self {
            memory,
            sender: frame_sender(index)?,
            frame,
            seen: 0,
            buffer: Box::new([0; PAYLOAD_BYTES_MAX]),
            length: 0,
            _attached: attached,
            _ebpf: ebpf,
        })
    }

    /// Sends the frame with a payload of so many bytes.
    fn send_frame(&mut self, bytes: usize) -> io::Result<bool> {
        let frame = &self.frame[..ETHERNET_BYTES + bytes];
        // A frame that the cable does not take is lost.
        Ok(rustix::net::send(&self.sender, frame, SendFlags::empty()).is_ok())
    }
}

impl End for Floor {
    /// # Panics
    /// If the payload is larger than [`PAYLOAD_BYTES_MAX`].
    fn send(&mut self, message: &[u8]) -> io::Result<bool> {
        self.frame[ETHERNET_BYTES..][..message.len()].copy_from_slice(message);
        self.send_frame(message.len())
    }

    fn send_back(&mut self) -> io::Result<bool> {
        let message = &self.buffer[..self.length];
        self.frame[ETHERNET_BYTES..][..self.length].copy_from_slice(message);
        self.send_frame(self.length)
    }

    /// Copies the newest frame's payload out, if there is a frame that was not seen.
    #[inline]
    fn take(&mut self, bytes: usize) -> io::Result<Option<Arrival>> {
        let base = self.memory.0;
        // SAFETY: the mapping is of SLOT_BYTES, page-aligned, and lives as long as `self`; every
        // bit pattern is a valid atomic integer.
        let slot = unsafe { base.as_ref() };
        // Acquire: partner is the program's atomic addition after its copy.
        let sequence = slot.sequence.load(Acquire);
        if sequence == self.seen {
            return Ok(None);
        }
        self.seen = sequence;
        let from = slot.frame[0].as_ptr().cast::<u8>();
        self.length = bytes.min(PAYLOAD_BYTES_MAX);
        // SAFETY: the payload lies within the slot, after the Ethernet header, and the buffer has room for
        // PAYLOAD_BYTES_MAX; in an echo, one frame at a time, the program does not write before we have answered.
        unsafe {
            std::ptr::copy_nonoverlapping(
                from.add(ETHERNET_BYTES),
                self.buffer.as_mut_ptr(),
                self.length,
            );
        }
        Ok(Some(Arrival { stamp: None }))
    }

    fn message(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

/// The program's slot.
#[derive(Debug)]
struct Mapping(NonNull<Slot>);

// SAFETY: the memory is reached through atomics only, and unmapped once, when its one owner goes.
unsafe impl Send for Mapping {}

impl Mapping {
    fn of(map: impl AsFd) -> io::Result<Mapping> {
        let access = ProtFlags::READ;
        // SAFETY: the kernel chooses the address, so nothing that is in use is replaced.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                SLOT_BYTES,
                access,
                MapFlags::SHARED,
                map,
                0,
            )?
        };
        NonNull::new(base.cast())
            .map(Mapping)
            .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `of` with this size, and nobody else has the address.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), SLOT_BYTES) }; // cannot fail for such a range
    }
}
