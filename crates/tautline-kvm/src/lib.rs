//! A small virtual machine monitor on KVM: a machine for a program without an operating system, or an RTOS, on aarch64
//! and x86-64.
//!
//! The machine has memory, one processor of the host's kind with its interrupt controller, a window that it shares with
//! Linux, a doorbell in each direction, and a serial line that only speaks. It has no firmware of its own, no PCI, no
//! disk, no network card: [`layout`] is all of it. Each machine has a process of its own, which confines itself before
//! the guest's first instruction.
//!
//! * [`access`]: `/dev/kvm`, and whether it can do all that a machine needs.
//! * [`packet`]: messages between that process and its parent.
//! * [`serve`]: the process itself; on these two processors alone.

pub mod access;
pub mod layout;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod monitor;
pub mod packet;

pub use access::KvmError;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
pub use monitor::serve;

/// The monitor's process: there is none on this processor.
///
/// # Errors
/// Always.
#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
pub fn serve(_socket: std::os::fd::OwnedFd) -> std::io::Result<()> {
    Err(std::io::Error::other(KvmError::OtherProcessor))
}
