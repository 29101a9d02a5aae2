//! A guest beside Linux: an RTOS or a program without an operating system, in a virtual machine of its own, joined to
//! ports of Linux programs by shared memory.
//!
//! [`run::run`] starts an image under a monitor, QEMU or our own on KVM, and keeps it running. Its window
//! (`docs/reference/vbus.md`) has a connection for each port of the guest; a relay passes messages between these and
//! ports of a node that has the guest's name. So Linux programs talk to the guest as to any other node, and only this
//! process and the monitor ever touch memory that the guest can write.
//!
//! * [`config`]: settings of a guest, from a file or from options.
//! * `image`: the program that the guest runs, checked before it starts.
//! * `window`: Linux's side of the shared memory; `relay`: messages between window and node; `peers`: names that the
//!   guest can use.
//! * `permissions`: ports that the guest may send to.
//! * `monitor`: the virtual machine, by QEMU or KVM; `doorbell`: its interrupts to and from Linux.
//! * [`run`]: lives of the guest, one after the other, as its restart policy says.
//! * [`control`]: the guests of a machine, as other processes see them.

pub mod config;
pub mod control;
mod doorbell;
mod error;
mod figures;
mod image;
mod monitor;
mod peers;
mod permissions;
mod relay;
pub mod run;
mod sys;
mod window;

pub use config::{Carries, GuestConfig, PortConfig, RelayPlace, Restart};
pub use error::GuestError;
pub use figures::{GuestStatus, PortFigures, State};
pub use image::Architecture;
pub use permissions::PeerPort;
pub use run::{Occurrence, Summary};
pub use tautline_kvm as kvm;
