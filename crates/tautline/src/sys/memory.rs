//! Memory of this process: its mappings, its pages, and what may be locked.

use std::io;

use nix::sys::resource::Resource;
pub(crate) use tautline_state::mapping::Mapping;

/// How much memory this process may lock, in bytes (`RLIMIT_MEMLOCK`, the soft limit).
pub(crate) fn lock_limit_bytes() -> io::Result<u64> {
    let (limit, _most) = nix::sys::resource::getrlimit(Resource::RLIMIT_MEMLOCK)?;
    #[allow(clippy::useless_conversion)] // of 32 bits on processors of 32
    Ok(limit.into())
}

/// Bytes of a page.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: a query without arguments in memory.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// Keeps existing memory, such as a reassembly buffer, from being paged out.
pub(crate) fn lock_slice(memory: &[u8]) -> io::Result<()> {
    // SAFETY: mlock reads no memory; an address range that is not ours makes it fail.
    super::check(unsafe { libc::mlock(memory.as_ptr().cast(), memory.len()) }).map(drop)
}
