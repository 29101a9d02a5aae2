//! A machine before its first instruction: memories, interrupts and doorbells, and the processor's first state.
#![allow(unsafe_code)] // descriptors and memories are handed to kvm-ioctls; each block names its preconditions

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use kvm_bindings::{
    CpuId, KVM_CAP_SPLIT_IRQCHIP, KVM_IRQ_ROUTING_MSI, KVM_MAX_CPUID_ENTRIES, KVM_MEM_READONLY,
    KvmIrqRouting, kvm_enable_cap, kvm_irq_routing_entry, kvm_irq_routing_entry__bindgen_ty_1,
    kvm_irq_routing_msi, kvm_regs, kvm_segment, kvm_userspace_memory_region,
};
use kvm_ioctls::{IoEventAddress, Kvm, NoDatamatch, VcpuFd, VmFd};
use vmm_sys_util::eventfd::EventFd;

use super::memory::Memory;
use crate::layout::{
    DESCRIPTION, DESCRIPTION_BYTES, DOORBELL_VECTOR, IDENTITY_MAP, MAGIC, PAGE_TABLES,
    PORT_DOORBELL, TASK_STATE, VERSION, WINDOW, WINDOW_END,
};
use crate::packet::{Descriptors, Order};

/// Address at which a processor's local APIC takes messages: that of processor 0.
const APIC_MESSAGES: u32 = 0xfee0_0000;
/// Number of the doorbell among the interrupts that Linux can raise.
const DOORBELL_NUMBER: u32 = 0;
/// Leaf 1 of CPUID, register ecx: the APIC's timer can be set to a moment of the time stamp counter.
const CPUID_TSC_DEADLINE: u32 = 1 << 24;

/// A machine that can run. Fields are dropped in their order: memories after the machine that uses them.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) processor: VcpuFd,
    /// Doorbells ring as long as it is open.
    _machine: VmFd,
    _memories: [Memory; 3],
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
        // SAFETY: the number is open and nobody else's; the wrapper closes it.
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
        let machine = kvm.create_vm()?;
        machine.set_identity_map_address(IDENTITY_MAP)?;
        machine.set_tss_address(TASK_STATE as usize)?;
        let split = kvm_enable_cap {
            cap: KVM_CAP_SPLIT_IRQCHIP,
            ..kvm_enable_cap::default()
        };
        // The local APIC is the kernel's; there is no other interrupt controller, and no timer but the APIC's.
        machine.enable_cap(&split)?;
        if order.linux_bytes + order.guest_bytes > WINDOW_END - WINDOW {
            return Err(io::Error::other("the window is too large"));
        }
        give(&machine, 0, 0, &ram, 0)?;
        give(&machine, 1, WINDOW, &linux, KVM_MEM_READONLY)?;
        give(&machine, 2, WINDOW + order.linux_bytes, &guests, 0)?;
        connect(&machine, to_linux, to_guest)?;
        let processor = machine.create_vcpu(0)?;
        set_up(&kvm, &processor, order.entry)?;
        let described = describe(order, u64::from(processor.get_tsc_khz()?) * 1_000);
        place(&mut ram, DESCRIPTION, &described)?;
        let machine = Machine {
            processor,
            _machine: machine,
            _memories: [ram, linux, guests],
            linux_bytes: order.linux_bytes,
        };
        Ok((machine, limits))
    }
}

/// The part of memory from an address on.
fn part(ram: &mut Memory, address: u64, bytes: u64) -> io::Result<&mut [u8]> {
    let outside = || io::Error::other("the image is larger than the guest's memory");
    let start = usize::try_from(address).map_err(io::Error::other)?;
    let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
    let end = start.checked_add(bytes).ok_or_else(outside)?;
    ram.bytes_mut().get_mut(start..end).ok_or_else(outside)
}

fn place(ram: &mut Memory, address: u64, bytes: &[u8]) -> io::Result<()> {
    part(ram, address, bytes.len() as u64)?.copy_from_slice(bytes);
    Ok(())
}

/// Writes the image into memory, and the page tables.
fn load(ram: &mut Memory, order: &Order, image: &File) -> io::Result<()> {
    const PRESENT_AND_WRITABLE: u64 = 0b11;
    const LARGE: u64 = 1 << 7;
    const PAGE: u64 = 0x1000;
    for segment in &order.segments {
        let room = part(ram, segment.address, segment.bytes)?;
        image.read_exact_at(room, segment.offset)?;
    }
    let (first, second, third) = (PAGE_TABLES, PAGE_TABLES + PAGE, PAGE_TABLES + 2 * PAGE);
    let mut put = |address: u64, entry: u64| place(ram, address, &entry.to_le_bytes());
    put(first, second | PRESENT_AND_WRITABLE)?;
    for gigabyte in 0..4 {
        let table = third + gigabyte * PAGE;
        put(second + gigabyte * 8, table | PRESENT_AND_WRITABLE)?;
    }
    for page in 0..4 * 512 {
        put(third + page * 8, page << 21 | LARGE | PRESENT_AND_WRITABLE)?;
    }
    Ok(())
}

/// The machine's description, for the guest.
fn describe(order: &Order, ticks_per_second: u64) -> [u8; DESCRIPTION_BYTES] {
    let window_bytes = order.linux_bytes + order.guest_bytes;
    let mut bytes = [0; DESCRIPTION_BYTES];
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    let words = [order.ram_bytes, WINDOW, window_bytes, ticks_per_second];
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

/// Connects the doorbells: a write to a port signals Linux's event, and the guest's event is an interrupt.
fn connect(machine: &VmFd, to_linux: OwnedFd, to_guest: OwnedFd) -> io::Result<()> {
    // SAFETY: open, nobody else's, and an event; the wrapper closes it. The kernel keeps the event itself.
    let event = |descriptor: OwnedFd| unsafe { EventFd::from_raw_fd(descriptor.into_raw_fd()) };
    let port = IoEventAddress::Pio(PORT_DOORBELL.into());
    machine.register_ioevent(&event(to_linux), &port, NoDatamatch)?;
    let message = kvm_irq_routing_msi {
        address_lo: APIC_MESSAGES,
        data: DOORBELL_VECTOR,
        ..kvm_irq_routing_msi::default()
    };
    let route = kvm_irq_routing_entry {
        gsi: DOORBELL_NUMBER,
        type_: KVM_IRQ_ROUTING_MSI,
        u: kvm_irq_routing_entry__bindgen_ty_1 { msi: message },
        ..kvm_irq_routing_entry::default()
    };
    let routes = KvmIrqRouting::from_entries(&[route]).map_err(io::Error::other)?;
    machine.set_gsi_routing(&routes)?;
    machine.register_irqfd(&event(to_guest), DOORBELL_NUMBER)?;
    Ok(())
}

/// The processor's first state: 64-bit mode, each address mapped to itself, interrupts masked.
fn set_up(kvm: &Kvm, processor: &VcpuFd, entry: u64) -> io::Result<()> {
    let mut cpuid: CpuId = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    for leaf in cpuid.as_mut_slice() {
        if leaf.function == 1 {
            leaf.ecx |= CPUID_TSC_DEADLINE;
        }
    }
    processor.set_cpuid2(&cpuid)?;
    let code = kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector: 8,
        type_: 0b1011, // code: executed, read, accessed
        present: 1,
        s: 1,
        l: 1,
        g: 1,
        ..kvm_segment::default()
    };
    let data = kvm_segment {
        selector: 16,
        type_: 0b0011, // data: read, written, accessed
        db: 1,
        l: 0,
        ..code
    };
    let mut special = processor.get_sregs()?;
    special.cs = code;
    for segment in [
        &mut special.ds,
        &mut special.es,
        &mut special.fs,
        &mut special.gs,
        &mut special.ss,
    ] {
        *segment = data;
    }
    special.cr0 = 0x8005_0033; // paging, write protection, alignment, protected mode, and a floating-point unit
    special.cr3 = PAGE_TABLES;
    special.cr4 = 1 << 5; // page tables with 64-bit entries
    special.efer = 0x500; // 64-bit mode, enabled and active
    processor.set_sregs(&special)?;
    processor.set_regs(&kvm_regs {
        rip: entry,
        rdi: DESCRIPTION,
        // A stack of its own is the guest's first concern.
        rsp: DESCRIPTION,
        rflags: 2, // a bit that is always set
        ..kvm_regs::default()
    })?;
    Ok(())
}
