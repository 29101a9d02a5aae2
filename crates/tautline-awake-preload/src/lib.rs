//! The library that `taut exec` loads into an unmodified program (LD_PRELOAD): its waits and sleeps end awake.
//! `docs/how-to/exec.md` is the user's page.
//!
//! Each function here has the name of one of the C library's. It waits first, with `ppoll`, as `tautline_awake` says:
//! asleep until shortly before the expected arrival, then looking. Afterwards it makes the program's own call with the
//! program's own arguments, which then finds its message, or waits as ever. The library receives nothing, keeps no
//! descriptor open and changes no socket, so what a call returns is the kernel's answer.
//!
//! Rules of the code in other people's processes:
//! - Nothing is allocated, and no lock is waited for: a slot that another thread or an interrupted caller holds means
//!   that this call goes straight to the kernel.
//! - `errno` is as the program's own call leaves it.
//! - System calls of this library are made without the C library (`tautline_awake::raw`). So a thread is cancelled in
//!   the program's own call only, where nothing of this library is held.
//! - A forked child forgets what other threads held.
//! - A program that installs a seccomp filter is left alone from then on: its filter may refuse `ppoll`.

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("functions with variable arguments are entered as on x86_64 and aarch64 with glibc");

mod deliver;
mod handlers;
pub mod hooks;
mod look;
mod next;
mod options;
mod report;
mod socket;
mod table;
