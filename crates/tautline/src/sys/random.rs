//! Random numbers of the kernel.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// An unforeseeable number. Waits once, if the machine has only just started.
pub(crate) fn number() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let count = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if count < bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(u64::from_ne_bytes(bytes))
}
