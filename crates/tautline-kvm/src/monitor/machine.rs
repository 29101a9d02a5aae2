//! A machine before its first instruction, as far as all processors share it: memories, doorbells, a description.
#![allow(unsafe_code)] // descriptors and memories are handed to kvm-ioctls; each block names its preconditions

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use kvm_bindings::{KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use vmm_sys_util::eventfd::EventFd;

use super::board;
use super::memory::Memory;
use crate::layout::{DESCRIPTION_BYTES, MAGIC, VERSION};
use crate::packet::{Descriptors, Order};

/// A machine that can run. Fields are dropped in their order: memories after the machine that uses them.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) processor: VcpuFd,
    /// Doorbells ring as long as it is open.
    _machine: VmFd,
    _memories: Vec<Memory>,
    /// Bytes of Linux's half of the window.
    pub(super) linux_bytes: u64,
}

impl Machine {
    /// Makes a machine, and closes what it needs no more. Returns settings that could not be had, too.
    pub(super) fn new(
        order: &Order,
        descriptors: Descriptors<OwnedFd>,
    ) -> io::Result<(Machine, Vec<String>)> {
        let mut limits = Vec::new();
        let Descriptors {
            kvm,
            image,
            window_to_read,
            window,
            to_linux,
            to_guest,
        } = descriptors;
        // SAFETY: the number is open and has no other owner; the wrapper closes it.
        let kvm = unsafe { Kvm::from_raw_fd(kvm.into_raw_fd()) };
        let mut ram = Memory::new(order.ram_bytes, order.is_resident)?;
        if order.is_resident
            && let Err(error) = ram.lock()
        {
            limits.push(format!(
                "the guest's memory may be paged out ({error}): raise the limit (ulimit -l)"
            ));
        }
        load(&mut ram, order, &File::from(image))?;
        let linux = Memory::of_file(window_to_read, 0, order.linux_bytes, false)?;
        let guests = Memory::of_file(window, order.linux_bytes, order.guest_bytes, true)?;
        if order.linux_bytes + order.guest_bytes > board::WINDOW_END - board::WINDOW {
            return Err(io::Error::other("the window is too large"));
        }
        let machine = board::new_machine(&kvm)?;
        let (processor, fact) = board::new_processor(&kvm, &machine, order.entry)?;
        let described = board::describe(&mut ram, &description(order, fact))?;
        give(&machine, 0, board::RAM, &ram, 0)?;
        give(&machine, 1, board::WINDOW, &linux, KVM_MEM_READONLY)?;
        give(&machine, 2, board::WINDOW + order.linux_bytes, &guests, 0)?;
        if let Some(memory) = &described {
            give(&machine, 3, board::DESCRIPTION, memory, KVM_MEM_READONLY)?;
        }
        board::connect(&machine, &event(to_linux), &event(to_guest))?;
        let machine = Machine {
            processor,
            _machine: machine,
            _memories: [ram, linux, guests].into_iter().chain(described).collect(),
            linux_bytes: order.linux_bytes,
        };
        Ok((machine, limits))
    }
}

/// Part of a memory that begins at address `base`, from an address on.
fn part(memory: &mut Memory, base: u64, address: u64, bytes: u64) -> io::Result<&mut [u8]> {
    let outside = || io::Error::other("the image is larger than the guest's memory");
    let start = address.checked_sub(base).ok_or_else(outside)?;
    let start = usize::try_from(start).map_err(io::Error::other)?;
    let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
    let end = start.checked_add(bytes).ok_or_else(outside)?;
    memory.bytes_mut().get_mut(start..end).ok_or_else(outside)
}

/// Writes bytes into a memory that begins at address `base`.
pub(super) fn place(memory: &mut Memory, base: u64, address: u64, bytes: &[u8]) -> io::Result<()> {
    part(memory, base, address, bytes.len() as u64)?.copy_from_slice(bytes);
    Ok(())
}

/// Writes the image into memory.
fn load(ram: &mut Memory, order: &Order, image: &File) -> io::Result<()> {
    for segment in &order.segments {
        let room = part(ram, board::RAM, segment.address, segment.bytes)?;
        image.read_exact_at(room, segment.offset)?;
    }
    Ok(())
}

/// The machine's description, for the guest.
fn description(order: &Order, fact: u64) -> [u8; DESCRIPTION_BYTES] {
    let window_bytes = order.linux_bytes + order.guest_bytes;
    let mut bytes = [0; DESCRIPTION_BYTES];
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    let words = [order.ram_bytes, board::WINDOW, window_bytes, fact];
    for (room, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
        room.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Gives memory to the machine.
fn give(machine: &VmFd, slot: u32, address: u64, memory: &Memory, flags: u32) -> io::Result<()> {
    let region = kvm_userspace_memory_region {
        slot,
        flags,
        guest_phys_addr: address,
        memory_size: memory.len(),
        userspace_addr: memory.address(),
    };
    // SAFETY: the memory is mapped, and outlives the machine: `Machine` drops it last. The layout keeps regions apart.
    unsafe { machine.set_user_memory_region(region) }?;
    Ok(())
}

/// An event of the order.
fn event(descriptor: OwnedFd) -> EventFd {
    // SAFETY: open, without another owner, and an event; the wrapper closes it. The kernel keeps the event itself.
    unsafe { EventFd::from_raw_fd(descriptor.into_raw_fd()) }
}
