//! The processor while it runs: instructions that KVM does not execute, and the ends of the machine.
#![allow(unsafe_code)] // a union of the kernel's is read

use kvm_ioctls::VcpuExit;

use super::console::Console;
use super::machine::Machine;
use crate::layout::{
    CONSOLE_READY, END_OFF, END_RESET, PORT_CONSOLE, PORT_CONSOLE_STATE, PORT_END, WINDOW,
};
use crate::packet::End;

/// Consequence of an instruction that KVM does not execute.
enum Next {
    Goes,
    Ends(End),
    /// The guest did something that the machine does not do.
    Faults(String),
    /// KVM cannot go on, and says why elsewhere.
    Unknown,
}

/// Lets the guest run until the machine ends.
pub(super) fn run(machine: &mut Machine, console: &Console) -> End {
    let linux = WINDOW..WINDOW + machine.linux_bytes;
    loop {
        let next = match machine.processor.run() {
            Ok(VcpuExit::IoOut(port, data)) => output(port, data, console),
            Ok(VcpuExit::IoIn(port, data)) => {
                data.fill(input(port));
                Next::Goes
            }
            Ok(VcpuExit::MmioWrite(address, _)) if linux.contains(&address) => Next::Faults(
                format!("it wrote to Linux's half of the window, at {address:#x}"),
            ),
            Ok(VcpuExit::MmioWrite(address, _)) => {
                Next::Faults(format!("it wrote to {address:#x}, where nothing is"))
            }
            Ok(VcpuExit::MmioRead(address, _)) => {
                Next::Faults(format!("it read at {address:#x}, where nothing is"))
            }
            Ok(VcpuExit::Shutdown) => Next::Faults("a fault that it does not handle".to_owned()),
            Ok(VcpuExit::InternalError) => Next::Unknown,
            Ok(VcpuExit::FailEntry(reason, _)) => Next::Faults(format!(
                "its state is none, as the processor says ({reason:#x})"
            )),
            Ok(other) => Next::Ends(End::Broken(format!("KVM stopped: {other:?}"))),
            Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => Next::Goes,
            Err(error) => Next::Ends(End::Broken(format!("KVM failed: {error}"))),
        };
        match next {
            Next::Goes => {}
            Next::Ends(end) => return end,
            Next::Faults(what) => return fault(machine, &what),
            Next::Unknown => {
                let what = internal(machine);
                return fault(machine, &what);
            }
        }
    }
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

/// An error inside KVM, in words.
fn internal(machine: &mut Machine) -> String {
    /// KVM_INTERNAL_ERROR_EMULATION of linux/kvm.h.
    const EMULATION: u32 = 1;
    let state = machine.processor.get_kvm_run();
    // SAFETY: the exit was KVM_EXIT_INTERNAL_ERROR, for which the kernel has filled in this part; all bits are valid.
    match unsafe { state.__bindgen_anon_1.internal.suberror } {
        EMULATION => "an instruction that KVM does not execute".to_owned(),
        number => format!("an error inside KVM ({number})"),
    }
}

/// The end of a guest that did something which the machine does not do, with the place.
fn fault(machine: &Machine, what: &str) -> End {
    End::Faulted(match machine.processor.get_regs() {
        Ok(registers) => format!("{what} (rip {:#x})", registers.rip),
        Err(_) => what.to_owned(),
    })
}
