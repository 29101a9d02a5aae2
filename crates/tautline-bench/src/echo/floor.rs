//! The floor: the barest way from a frame to this process's memory and back, with no port logic at
//! all (`bpf/floor.bpf.c`). A benchmark runs it beside the links to show what the machine allows.
//! Nothing else has a use for it: one slot, one frame at a time, no checks.
#![allow(unsafe_code)] // Reads the mapped slot.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Acquire};

use aya::maps::Map;
use aya::programs::links::FdLink;
use aya::programs::{Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use tautline::MacAddress;

use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::SendFlags;
use tautline_testbed::sys::frame_sender;

const PROGRAM: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/floor.bpf.o"));
/// IEEE 802 local experimental EtherType 2.
const ETHERTYPE: [u8; 2] = [0x88, 0xb6];
const ETHERNET_BYTES: usize = 14;
/// `struct floor_slot`: a sequence number, then the frame.
const SLOT_BYTES: usize = 1536;
const FRAME_WORDS: usize = SLOT_BYTES / 8 - 1;
/// Largest payload.
pub(super) const PAYLOAD_BYTES_MAX: usize = 1500;

#[repr(C)]
struct Slot {
    sequence: AtomicU64,
    frame: [AtomicU64; FRAME_WORDS],
}

/// One end of the barest echo.
#[derive(Debug)]
pub(super) struct Floor {
    memory: Mapping,
    sender: OwnedFd,
    frame: Box<[u8; ETHERNET_BYTES + PAYLOAD_BYTES_MAX]>,
    seen: u64,
    _attached: FdLink,
    _ebpf: Ebpf,
}

impl Floor {
    /// Attaches to an interface of this thread's network namespace, in native mode.
    pub(super) fn open(
        interface: &str,
        own: MacAddress,
        peer: MacAddress,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let index = tautline_testbed::interface::index(interface)?;
        let mut ebpf = EbpfLoader::new().load(PROGRAM)?;
        let program: &mut Xdp = ebpf
            .program_mut("tautline_floor")
            .ok_or("the floor is not in its object")?
            .try_into()?;
        program.load()?;
        let attached = program.attach_to_if_index(index, XdpMode::Driver)?;
        let attached = FdLink::try_from(program.take_link(attached)?)?;
        let Some(Map::Array(map)) = ebpf.map("floor_memory") else {
            return Err("the floor has no memory".into());
        };
        let memory = Mapping::of(map.fd().as_fd())?;
        let mut frame = Box::new([0; ETHERNET_BYTES + PAYLOAD_BYTES_MAX]);
        frame[..6].copy_from_slice(&peer.0);
        frame[6..12].copy_from_slice(&own.0);
        frame[12..14].copy_from_slice(&ETHERTYPE);
        Ok(Self {
            memory,
            sender: frame_sender(index)?,
            frame,
            seen: 0,
            _attached: attached,
            _ebpf: ebpf,
        })
    }

    /// Sends one frame.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// If the payload is larger than [`PAYLOAD_BYTES_MAX`].
    pub(super) fn send(&mut self, payload: &[u8]) -> std::io::Result<()> {
        let bytes = ETHERNET_BYTES + payload.len();
        self.frame[ETHERNET_BYTES..bytes].copy_from_slice(payload);
        rustix::net::send(&self.sender, &self.frame[..bytes], SendFlags::empty())?;
        Ok(())
    }

    /// Copies the newest frame's payload out, as many bytes as `payload` has, if there is a frame
    /// that was not seen.
    pub(super) fn receive(&mut self, payload: &mut [u8]) -> bool {
        let base = self.memory.0;
        // SAFETY: the mapping is of SLOT_BYTES, page-aligned, and lives as long as `self`; every
        // bit pattern is a valid atomic integer.
        let slot = unsafe { base.as_ref() };
        // Acquire: partner is the program's atomic addition after its copy.
        let sequence = slot.sequence.load(Acquire);
        if sequence == self.seen {
            return false;
        }
        self.seen = sequence;
        let from = slot.frame[0].as_ptr().cast::<u8>();
        let bytes = payload.len().min(PAYLOAD_BYTES_MAX);
        // SAFETY: the payload lies within the slot, after the Ethernet header; in an echo, one frame
        // at a time, the program does not write before we have answered.
        unsafe {
            std::ptr::copy_nonoverlapping(from.add(ETHERNET_BYTES), payload.as_mut_ptr(), bytes);
        }
        true
    }
}

/// The program's slot.
#[derive(Debug)]
struct Mapping(NonNull<Slot>);

// SAFETY: the memory is reached through atomics only, and unmapped once, when its one owner goes.
unsafe impl Send for Mapping {}

impl Mapping {
    fn of(map: impl AsFd) -> std::io::Result<Mapping> {
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
            .ok_or_else(|| std::io::ErrorKind::OutOfMemory.into())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `of` with this size, and nobody else has the address.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), SLOT_BYTES) }; // cannot fail for such a range
    }
}
