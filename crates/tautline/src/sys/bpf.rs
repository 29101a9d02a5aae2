//! The one bpf() call that the loader library does not offer.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const BPF_MAP_DELETE_ELEM: libc::c_long = 3;

/// `union bpf_attr` for the element commands (`linux/bpf.h`).
#[repr(C, align(8))]
struct ElementAttributes {
    map_fd: u32,
    _padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Empties one element of a map of maps.
pub(crate) fn delete(map: BorrowedFd<'_>, key: u32) -> io::Result<()> {
    let attributes = ElementAttributes {
        map_fd: map.as_raw_fd() as u32,
        _padding: 0,
        key: std::ptr::from_ref(&key) as u64,
        value: 0,
        flags: 0,
    };
    // SAFETY: `attributes` has the layout of the command and the size given; `key` lives through
    // the call and has the map's key size, four bytes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_MAP_DELETE_ELEM,
            std::ptr::from_ref(&attributes),
            size_of::<ElementAttributes>(),
        )
    };
    super::check(result as libc::c_int).map(drop)
}
