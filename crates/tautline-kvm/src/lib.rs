//! A small virtual machine monitor on KVM: a machine for a program without an operating system, or an RTOS, on x86-64.
//!
//! The machine has memory, one processor with its local APIC, a window that it shares with Linux, a doorbell in each
//! direction, and a serial line that only speaks. It has no BIOS, no PCI, no disk, no network card: [`layout`] is all
//! of it. Each machine has a process of its own, which confines itself before the guest's first instruction.
//!
//! * [`access`]: `/dev/kvm`, and whether it can do all that a machine needs.
//! * [`packet`]: the words between that process and whoever starts it.
//! * [`serve`]: the process itself; on x86-64 alone.

pub mod access;
pub mod layout;
#[cfg(target_arch = "x86_64")]
mod monitor;
pub mod packet;

pub use access::KvmError;
#[cfg(target_arch = "x86_64")]
pub use monitor::serve;

/// The monitor's process: there is none on this processor.
///
/// # Errors
/// Always.
#[cfg(not(target_arch = "x86_64"))]
pub fn serve(_socket: std::os::fd::OwnedFd) -> std::io::Result<()> {
    Err(std::io::Error::other(KvmError::OtherProcessor))
}
