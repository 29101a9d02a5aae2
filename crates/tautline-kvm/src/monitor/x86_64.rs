//! The part of a machine that only x86-64 has: the processor's first state, its local APIC, and devices behind ports.

use std::io;

use kvm_bindings::{
    CpuId, KVM_CAP_SPLIT_IRQCHIP, KVM_IRQ_ROUTING_MSI, KVM_MAX_CPUID_ENTRIES, KvmIrqRouting,
    kvm_enable_cap, kvm_irq_routing_entry, kvm_irq_routing_entry__bindgen_ty_1,
    kvm_irq_routing_msi, kvm_regs, kvm_segment,
};
use kvm_ioctls::{IoEventAddress, Kvm, NoDatamatch, VcpuExit, VcpuFd, VmFd};
use vmm_sys_util::eventfd::EventFd;

use super::console::Console;
use super::machine::place;
use super::memory::Memory;
use super::processor::Next;
use crate::layout::x86_64::{
    CONSOLE_READY, DOORBELL_VECTOR, END_OFF, END_RESET, IDENTITY_MAP, PAGE_TABLES, PORT_CONSOLE,
    PORT_CONSOLE_STATE, PORT_DOORBELL, PORT_END, TASK_STATE,
};
pub(super) use crate::layout::x86_64::{DESCRIPTION, RAM, WINDOW, WINDOW_END};
use crate::packet::End;

/// Requests to the kernel's device while the guest runs: KVM_RUN and KVM_GET_REGS of linux/kvm.h. No memory is given,
/// no machine made.
pub(super) const REQUESTS: [u64; 2] = [0xae80, 0x8090_ae81];

/// Address at which a processor's local APIC takes messages: that of processor 0.
const APIC_MESSAGES: u32 = 0xfee0_0000;
/// Number of the doorbell among the interrupts that Linux can raise.
const DOORBELL_NUMBER: u32 = 0;
/// Leaf 1 of CPUID, register ecx: the APIC's timer can be set to a moment of the time stamp counter.
const CPUID_TSC_DEADLINE: u32 = 1 << 24;

/// A machine without processor and memory.
pub(super) fn new_machine(kvm: &Kvm) -> io::Result<VmFd> {
    let machine = kvm.create_vm()?;
    machine.set_identity_map_address(IDENTITY_MAP)?;
    machine.set_tss_address(TASK_STATE as usize)?;
    let split = kvm_enable_cap {
        cap: KVM_CAP_SPLIT_IRQCHIP,
        ..kvm_enable_cap::default()
    };
    // The local APIC is the kernel's; there is no other interrupt controller, and no timer but the APIC's.
    machine.enable_cap(&split)?;
    Ok(machine)
}

/// The processor in its first state, and the description's last word: ticks of the time stamp counter in a second.
pub(super) fn new_processor(kvm: &Kvm, machine: &VmFd, entry: u64) -> io::Result<(VcpuFd, u64)> {
    let processor = machine.create_vcpu(0)?;
    set_up(kvm, &processor, entry)?;
    let ticks_per_second = u64::from(processor.get_tsc_khz()?) * 1_000;
    Ok((processor, ticks_per_second))
}

/// Writes the description and the page tables below the image. There is no memory for the description alone.
pub(super) fn describe(ram: &mut Memory, description: &[u8]) -> io::Result<Option<Memory>> {
    const PRESENT_AND_WRITABLE: u64 = 0b11;
    const LARGE: u64 = 1 << 7;
    const PAGE: u64 = 0x1000;
    let (first, second, third) = (PAGE_TABLES, PAGE_TABLES + PAGE, PAGE_TABLES + 2 * PAGE);
    let mut put = |address: u64, entry: u64| place(ram, RAM, address, &entry.to_le_bytes());
    put(first, second | PRESENT_AND_WRITABLE)?;
    for gigabyte in 0..4 {
        let table = third + gigabyte * PAGE;
        put(second + gigabyte * 8, table | PRESENT_AND_WRITABLE)?;
    }
    for page in 0..4 * 512 {
        put(third + page * 8, page << 21 | LARGE | PRESENT_AND_WRITABLE)?;
    }
    place(ram, RAM, DESCRIPTION, description)?;
    Ok(None)
}

/// Connects the doorbells: a write to a port signals Linux's event, and the guest's event is an interrupt.
pub(super) fn connect(machine: &VmFd, to_linux: &EventFd, to_guest: &EventFd) -> io::Result<()> {
    let port = IoEventAddress::Pio(PORT_DOORBELL.into());
    machine.register_ioevent(to_linux, &port, NoDatamatch)?;
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
    machine.register_irqfd(to_guest, DOORBELL_NUMBER)?;
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

/// Devices: what an exit is if they know it.
pub(super) fn device(exit: &mut VcpuExit<'_>, console: &Console) -> Option<Next> {
    Some(match exit {
        VcpuExit::IoOut(port, data) => output(*port, data, console),
        VcpuExit::IoIn(port, data) => {
            data.fill(input(*port));
            Next::Goes
        }
        VcpuExit::Shutdown => Next::Faults("a fault that it does not handle".to_owned()),
        _ => return None,
    })
}

/// A write to a port. Nothing is behind most of them, as on every PC.
fn output(port: u16, data: &[u8], console: &Console) -> Next {
    match (port, data) {
        (PORT_CONSOLE, data) => console.put(data),
        (PORT_END, [END_OFF, ..]) => return Next::Ends(End::SwitchedOff),
        (PORT_END, [END_RESET, ..]) => return Next::Ends(End::Reset),
        (PORT_END, _) => return Next::Ends(End::Failed),
        _ => {}
    }
    Next::Goes
}

/// A byte that is read from a port: all ones where nothing is.
fn input(port: u16) -> u8 {
    match port {
        PORT_CONSOLE_STATE => CONSOLE_READY,
        _ => u8::MAX,
    }
}

/// The instruction's address, for people.
pub(super) fn place_of(processor: &VcpuFd) -> Option<String> {
    let registers = processor.get_regs().ok()?;
    Some(format!("rip {:#x}", registers.rip))
}
