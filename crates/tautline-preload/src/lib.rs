//! The library that `taut exec` loads into an unmodified program (LD_PRELOAD): the program's IPv4 UDP sockets become
//! ports of plain UDP, and its packet sockets of one EtherType become raw ports, where policy says so.
//! `docs/reference/exec.md` describes what is taken and what differs.
//!
//! The program keeps its own socket. A taken socket has a port beside it: what arrives through the node's interface is
//! in the port's memory, everything else still comes to the socket. Each call looks into the port first. If the port
//! cannot do exactly what the kernel would do, the kernel does it with the arguments as they came: a wrong address, an
//! option, a flag, a full queue. So errors are the kernel's own.
//!
//! Rules of the code in other people's processes:
//! - A call on anything else than a taken socket costs one look into a table (`table`), and is passed on.
//! - `errno` is as the kernel leaves it; a call that succeeds does not change it.
//! - No memory comes from the program's `malloc`: `heap`. Sending and receiving allocate nothing.
//! - A lock that this thread holds already, because a signal handler interrupted it, is not waited for: `lock`.
//! - A forked child has an empty table: its copies of the sockets are the kernel's.
//! - Pointers are checked by the kernel before they are followed for the first time: `memory`.

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("functions with variable arguments are entered as on x86_64 and aarch64 with glibc");

mod buffer;
mod decide;
mod errno;
mod explain;
mod heap;
pub mod hooks;
mod lock;
mod memory;
mod next;
mod node;
mod options;
mod policy;
mod process;
mod socket;
mod spinning;
mod table;
mod waiting;
mod watched;
