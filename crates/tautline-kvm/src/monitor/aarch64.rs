//! The part of a machine that only aarch64 has: first state of the processor, the kernel's interrupt controller, and
//! devices behind addresses.

use std::io;

use kvm_bindings::{
    KVM_ARM_VCPU_PSCI_0_2, KVM_CAP_ARM_NISV_TO_USER, KVM_DEV_ARM_VGIC_CTRL_INIT,
    KVM_DEV_ARM_VGIC_GRP_ADDR, KVM_DEV_ARM_VGIC_GRP_CTRL, KVM_REG_ARM_CORE, KVM_REG_ARM64,
    KVM_REG_SIZE_U64, KVM_SYSTEM_EVENT_RESET, KVM_SYSTEM_EVENT_SHUTDOWN, KVM_VGIC_V2_ADDR_TYPE_CPU,
    KVM_VGIC_V2_ADDR_TYPE_DIST, KVM_VGIC_V3_ADDR_TYPE_DIST, KVM_VGIC_V3_ADDR_TYPE_REDIST,
    kvm_create_device, kvm_device_attr, kvm_device_type_KVM_DEV_TYPE_ARM_VGIC_V2,
    kvm_device_type_KVM_DEV_TYPE_ARM_VGIC_V3, kvm_enable_cap, kvm_vcpu_init,
};
use kvm_ioctls::{DeviceFd, IoEventAddress, Kvm, NoDatamatch, VcpuExit, VcpuFd, VmFd};
use vmm_sys_util::eventfd::EventFd;

use super::console::Console;
use super::machine::place;
use super::memory::Memory;
use super::processor::Next;
use crate::layout::aarch64::{
    CONSOLE, CONSOLE_BYTES, CONSOLE_READY, CONSOLE_STATE, DOORBELL, DOORBELL_INTERRUPT, END,
    GIC_CPU, GIC_DISTRIBUTOR, GIC_REDISTRIBUTOR,
};
pub(super) use crate::layout::aarch64::{DESCRIPTION, RAM, WINDOW, WINDOW_END};
use crate::packet::End;

/// Requests to the kernel's device while the guest runs: KVM_RUN and KVM_GET_ONE_REG of linux/kvm.h. No memory is
/// given, no machine made.
pub(super) const REQUESTS: [u64; 2] = [0xae80, 0x4010_aeab];

/// Bits of the machine's addresses, which end below 4 GiB. More: nothing is gained. Fewer: KVM refuses them.
const ADDRESS_BITS: u32 = 32;
/// Bytes of the memory for the description: a page of whatever size the host's have.
const DESCRIPTION_PAGE: u64 = 0x1_0000;
/// Interrupts that belong to one processor, before those that Linux can raise.
const PRIVATE_INTERRUPTS: u32 = 32;
/// Where the kernel has the first register and the program counter, in words of 32 bits (`user_pt_regs`).
const REGISTER_X0: u64 = 0;
const REGISTER_PC: u64 = 2 * 32;

/// A machine without processor and memory.
pub(super) fn new_machine(kvm: &Kvm) -> io::Result<VmFd> {
    let machine = kvm.create_vm_with_ipa_size(ADDRESS_BITS)?;
    let told = kvm_enable_cap {
        cap: KVM_CAP_ARM_NISV_TO_USER,
        ..kvm_enable_cap::default()
    };
    // An access of several registers where nothing is ends the guest by name, too, and not KVM.
    machine.enable_cap(&told)?;
    Ok(machine)
}

/// The processor in its first state, and the description's last word: the version of the interrupt controller.
pub(super) fn new_processor(_kvm: &Kvm, machine: &VmFd, entry: u64) -> io::Result<(VcpuFd, u64)> {
    let processor = machine.create_vcpu(0)?;
    let (controller, version) = new_controller(machine)?;
    let mut kind = kvm_vcpu_init::default();
    machine.get_preferred_target(&mut kind)?;
    kind.features[0] |= 1 << KVM_ARM_VCPU_PSCI_0_2;
    // EL1, the memory management unit off, interrupts masked.
    processor.vcpu_init(&kind)?;
    let start = (KVM_DEV_ARM_VGIC_GRP_CTRL, KVM_DEV_ARM_VGIC_CTRL_INIT);
    set(&controller, start, None)?;
    for (register, value) in [(REGISTER_PC, entry), (REGISTER_X0, DESCRIPTION)] {
        processor.set_one_reg(core_register(register), &value.to_le_bytes())?;
    }
    // The controller stays with the machine; its descriptor is of no more use.
    Ok((processor, version))
}

/// An interrupt controller, the older kind if the host has it: more operating systems know it.
fn new_controller(machine: &VmFd) -> io::Result<(DeviceFd, u64)> {
    let device = |kind| {
        machine.create_device(&mut kvm_create_device {
            type_: kind,
            fd: 0,
            flags: 0,
        })
    };
    let place = |controller: &DeviceFd, part: u32, address: u64| {
        let part = (KVM_DEV_ARM_VGIC_GRP_ADDR, part);
        set(controller, part, Some(&address))
    };
    match device(kvm_device_type_KVM_DEV_TYPE_ARM_VGIC_V2) {
        Ok(controller) => {
            place(&controller, KVM_VGIC_V2_ADDR_TYPE_DIST, GIC_DISTRIBUTOR)?;
            place(&controller, KVM_VGIC_V2_ADDR_TYPE_CPU, GIC_CPU)?;
            Ok((controller, 2))
        }
        Err(error) if error.errno() == libc::ENODEV => {
            let controller = device(kvm_device_type_KVM_DEV_TYPE_ARM_VGIC_V3)?;
            place(&controller, KVM_VGIC_V3_ADDR_TYPE_DIST, GIC_DISTRIBUTOR)?;
            place(&controller, KVM_VGIC_V3_ADDR_TYPE_REDIST, GIC_REDISTRIBUTOR)?;
            Ok((controller, 3))
        }
        Err(error) => Err(error.into()),
    }
}

/// Sets an attribute of the interrupt controller, by its group and its number.
fn set(controller: &DeviceFd, (group, number): (u32, u32), value: Option<&u64>) -> io::Result<()> {
    let address = value.map_or(0, |value| std::ptr::from_ref(value) as u64);
    controller.set_device_attr(&kvm_device_attr {
        flags: 0,
        group,
        attr: number.into(),
        addr: address,
    })?;
    Ok(())
}

fn core_register(place: u64) -> u64 {
    KVM_REG_ARM64 | KVM_REG_SIZE_U64 | u64::from(KVM_REG_ARM_CORE) | place
}

/// The description, in a memory of its own: an image may lie anywhere in the machine's.
pub(super) fn describe(_ram: &mut Memory, description: &[u8]) -> io::Result<Option<Memory>> {
    let mut memory = Memory::new(DESCRIPTION_PAGE, true)?;
    place(&mut memory, DESCRIPTION, DESCRIPTION, description)?;
    Ok(Some(memory))
}

/// Connects the doorbells: a write to an address signals Linux's event, and the guest's event is an interrupt.
pub(super) fn connect(machine: &VmFd, to_linux: &EventFd, to_guest: &EventFd) -> io::Result<()> {
    let address = IoEventAddress::Mmio(DOORBELL);
    machine.register_ioevent(to_linux, &address, NoDatamatch)?;
    machine.register_irqfd(to_guest, DOORBELL_INTERRUPT - PRIVATE_INTERRUPTS)?;
    Ok(())
}

/// Devices: what an exit is if they know it.
pub(super) fn device(exit: &mut VcpuExit<'_>, console: &Console) -> Option<Next> {
    const CONSOLE_END: u64 = CONSOLE + CONSOLE_BYTES;
    match exit {
        VcpuExit::MmioWrite(CONSOLE, data) => console.put(data.get(..1)?),
        VcpuExit::MmioWrite(CONSOLE..CONSOLE_END, _) => {}
        VcpuExit::MmioRead(address @ CONSOLE..CONSOLE_END, data) => {
            let state = match *address - CONSOLE {
                CONSOLE_STATE => CONSOLE_READY,
                _ => 0,
            };
            data.fill(0);
            let bytes = state.to_le_bytes();
            data.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
        }
        VcpuExit::MmioWrite(END, _) => return Some(Next::Ends(End::Failed)),
        VcpuExit::SystemEvent(KVM_SYSTEM_EVENT_SHUTDOWN, _) => {
            return Some(Next::Ends(End::SwitchedOff));
        }
        VcpuExit::SystemEvent(KVM_SYSTEM_EVENT_RESET, _) => return Some(Next::Ends(End::Reset)),
        _ => return None,
    }
    Some(Next::Goes)
}

/// The instruction's address, for people.
pub(super) fn place_of(processor: &VcpuFd) -> Option<String> {
    let mut bytes = [0; 8];
    let register = core_register(REGISTER_PC);
    processor.get_one_reg(register, &mut bytes).ok()?;
    Some(format!("pc {:#x}", u64::from_le_bytes(bytes)))
}
