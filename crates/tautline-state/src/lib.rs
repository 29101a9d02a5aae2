//! The files by which Tautline keeps state on a machine, and the journal of what it changed there.
//!
//! Other users of the machine can make directories, links and files where everybody may write. So nothing here
//! goes by a path twice: a directory is opened once, its owner and mode are checked on the open descriptor, and
//! everything below it is reached through that descriptor without following symbolic links.
//!
//! * [`Directory`]: an open, checked directory; its files are read, written whole and removed through it.
//! * [`runtime_directory`]: directory of this user's sockets, buses and journals.
//! * [`TemporaryDirectory`]: a directory with an unpredictable name, removed at the end.
//! * [`write_whole`], [`create`], [`append`], [`check_place`]: a file at a path that the user named, to be written.
//!   [`read_text`], [`read_bytes`], [`open_regular`]: one to be read. [`parse_error`]: its mistakes.
//!   [`trusted_file`]: one that is code, or names code.
//! * [`journal`] and [`setting`]: changes to the machine's settings, written down before they are made.
//! * [`group`]: groups of processes (cgroups) that the journal makes and removes.
//! * [`network`]: filters and queues of an interface that the journal removes, and [`netlink`], which they need.
//! * [`interface`] and [`netdev`]: interfaces, their polls and XDP features. [`hosts`]: hosts that dead processes left.
//! * `interrupt` (a feature): ^C and termination, with clean-ups that run whatever the program is doing.
//! * [`cpus`]: sets of CPUs. [`child`]: processes that end with the thread that starts them.
//! * [`policy`], [`memory`] and [`privilege`]: scheduling of threads, locked memory, capabilities that are given up;
//!   [`namespace_cookie`]: network namespaces by number.
//! * [`socket`]: packet sockets, their filters, and options of sockets.
//! * [`mapping`]: memory that is mapped, shared or not.
//! * [`fork`]: the process to which a handle belongs, so that its copy in a forked child is known.
//! * [`text`]: text of others, made safe for display. [`units`]: times and sizes as users write them.
//! * [`untrusted`]: connections with processes that are not trusted. [`query`]: state that a running program reports to
//!   queries. [`Event`]: a descriptor that one thread makes readable for another. [`lock`]: mutexes after a panic.
//!
//! This crate does not depend on nodes, ports or the lab. Only [`mapping`] is in the path of messages.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub mod child;
pub mod cpus;
mod directory;
mod error;
mod event;
mod file;
pub mod fork;
pub mod group;
pub mod hosts;
pub mod interface;
#[cfg(feature = "interrupt")]
pub mod interrupt;
pub mod journal;
pub mod mapping;
pub mod memory;
mod namespace;
pub mod netdev;
pub mod netlink;
pub mod network;
pub mod parse_error;
pub mod policy;
pub mod privilege;
pub mod process;
pub mod query;
mod reading;
mod runtime;
pub mod setting;
pub mod socket;
mod temporary;
pub mod text;
mod trusted;
pub mod units;
pub mod untrusted;
mod user_file;

pub use directory::{Directory, Entry, EntryKind, Lock, Owner, SocketEntry};
pub use error::StateError;
pub use event::Event;
pub use namespace::{enter_network_namespace, namespace_cookie, own_network_namespace};
pub use reading::{Others, caller_of_sudo, open_regular, read_bytes, read_text};
pub use runtime::{
    find_runtime_directory, known_runtime_directories, mounted_runtime_directories,
    runtime_directories_of_users, runtime_directory, service_directory,
};
pub use temporary::{TemporaryDirectory, unforeseeable};
pub use trusted::trusted_file;
pub use user_file::{Existing, append, check_place, create, write_whole};

/// Locks what is whole at every step of those who hold the lock, so that a panic of another thread has not spoiled it.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
