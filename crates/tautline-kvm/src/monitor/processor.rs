//! The processor while it runs: instructions that KVM does not execute, and the ends of the machine.
#![allow(unsafe_code)] // a union of the kernel's is read

use kvm_bindings::KVM_EXIT_ARM_NISV;
use kvm_ioctls::VcpuExit;

use super::board;
use super::console::Console;
use super::machine::Machine;
use crate::packet::End;

/// Consequence of an instruction that KVM does not execute.
pub(super) enum Next {
    Goes,
    Ends(End),
    /// The guest did something that the machine does not do.
    Faults(String),
    /// KVM cannot go on, and says why elsewhere.
    Unknown,
}

/// Lets the guest run until the machine ends.
pub(super) fn run(machine: &mut Machine, console: &Console) -> End {
    loop {
        let linux_bytes = machine.linux_bytes;
        let next = match machine.processor.run() {
            Ok(mut exit) => {
                board::device(&mut exit, console).unwrap_or_else(|| consequence(&exit, linux_bytes))
            }
            Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => Next::Goes,
            Err(error) => Next::Ends(End::Broken(format!("KVM failed: {error}"))),
        };
        match next {
            Next::Goes => {}
            Next::Ends(end) => return end,
            Next::Faults(what) => return fault(machine, &what),
            Next::Unknown => {
                let what = said_elsewhere(machine);
                return fault(machine, &what);
            }
        }
    }
}

fn is_linux(address: u64, linux_bytes: u64) -> bool {
    (board::WINDOW..board::WINDOW + linux_bytes).contains(&address)
}

/// Consequence of an exit that no device knows.
fn consequence(exit: &VcpuExit<'_>, linux_bytes: u64) -> Next {
    match exit {
        VcpuExit::MmioWrite(address, _) if is_linux(*address, linux_bytes) => Next::Faults(
            format!("it wrote to Linux's half of the window, at {address:#x}"),
        ),
        VcpuExit::MmioWrite(address, _) => {
            Next::Faults(format!("it wrote to {address:#x}, where nothing is"))
        }
        VcpuExit::MmioRead(address, _) => {
            Next::Faults(format!("it read at {address:#x}, where nothing is"))
        }
        VcpuExit::InternalError | VcpuExit::Unsupported(KVM_EXIT_ARM_NISV) => Next::Unknown,
        VcpuExit::FailEntry(reason, _) => Next::Faults(format!(
            "its state is none, as the processor says ({reason:#x})"
        )),
        other => Next::Ends(End::Broken(format!("KVM stopped: {other:?}"))),
    }
}

/// Words for an exit whose cause lies in KVM's own state.
fn said_elsewhere(machine: &mut Machine) -> String {
    /// KVM_INTERNAL_ERROR_EMULATION of linux/kvm.h.
    const EMULATION: u32 = 1;
    let linux_bytes = machine.linux_bytes;
    let state = machine.processor.get_kvm_run();
    if state.exit_reason == KVM_EXIT_ARM_NISV {
        // SAFETY: for this exit the kernel has filled in this part; all bits are valid.
        let address = unsafe { state.__bindgen_anon_1.arm_nisv.fault_ipa };
        return match is_linux(address, linux_bytes) {
            true => format!("it wrote to Linux's half of the window, at {address:#x}"),
            false => format!(
                "it accessed {address:#x}, where nothing is, or nothing for such an instruction"
            ),
        };
    }
    // SAFETY: the exit was KVM_EXIT_INTERNAL_ERROR, for which the kernel has filled in this part; all bits are valid.
    match unsafe { state.__bindgen_anon_1.internal.suberror } {
        EMULATION => "an instruction that KVM does not execute".to_owned(),
        number => format!("an error inside KVM ({number})"),
    }
}

/// The end of a guest that did something which the machine does not do, with the place.
fn fault(machine: &Machine, what: &str) -> End {
    End::Faulted(match board::place_of(&machine.processor) {
        Some(place) => format!("{what} ({place})"),
        None => what.to_owned(),
    })
}
