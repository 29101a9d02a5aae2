//! Agreement between the command `taut exec` and the library that it loads into programs.

use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use libc::c_int;

/// File of the library.
pub const LIBRARY: &str = "libtautline_awake_preload.so";

/// Variable of the environment in which the library finds the short path: [`short_path`].
pub const SHORT_PATH_VARIABLE: &str = "TAUTLINE_LOOK";

/// Signals that a thread raises by a fault of its own.
pub const FAULTS: [c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGSYS,
];

/// The library of the programs in a directory: next to them, as `cargo build` leaves it (`cargo test`: in `deps`), or
/// in the library directory next to theirs. Of several the newest, since cargo may have left an older one.
pub fn library_of(programs: &Path) -> Option<PathBuf> {
    let places = ["", "deps", "../lib", "../lib/tautline"];
    let places = places.map(|place| programs.join(place).join(LIBRARY));
    let written = |place: &PathBuf| place.metadata().and_then(|found| found.modified());
    let found = places
        .into_iter()
        .filter_map(|place| Some((written(&place).ok()?, place)));
    found.max().map(|(_, place)| place)
}

/// Value of [`SHORT_PATH_VARIABLE`], separated by commas: descriptors of the places, of the places of ports and of the
/// storage of sockets; address of the interface; whether what arrives there may never have been on a wire.
pub fn short_path(
    [places, ports, sockets]: [RawFd; 3],
    address: Ipv4Addr,
    is_virtual: bool,
) -> String {
    let kind = if is_virtual { "virtual" } else { "real" };
    format!("{places},{ports},{sockets},{address},{kind}")
}
