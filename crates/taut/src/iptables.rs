//! Tables of the kernel's older packet filter (`iptables-legacy`) in the calling thread's network namespace. Those of
//! `iptables-nft` are tables of nftables.
#![allow(unsafe_code)] // socket options that rustix does not have

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, ipproto, socket_with};

// linux/netfilter_ipv4/ip_tables.h
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;
const NAME_BYTES: usize = 32;
/// Bytes of `struct ipt_getinfo`: name, valid hooks, first entry and policy of five hooks, entries, size.
const INFO_BYTES: usize = NAME_BYTES + 13 * 4;
/// Bytes of `struct ipt_get_entries` before the entries.
const ENTRIES_AT: usize = NAME_BYTES + 8;
/// Offset of a target's offset in `struct ipt_entry`.
const TARGET_OFFSET_AT: usize = 88;
/// Offset of the verdict in a standard target (linux/netfilter/x_tables.h).
const VERDICT_AT: usize = 32;
/// The verdict of a policy that drops: -NF_DROP - 1.
const DROP: i32 = -1;
/// Bytes of the largest table that is read. Lower: a policy of a large table is not seen. Higher: memory.
const TABLE_BYTES_MAX: usize = 64 << 20;
/// Chains for what arrives, by their hook.
const CHAINS: [&str; 2] = ["PREROUTING", "INPUT"];
/// Tables that filter.
const TABLES: [&str; 3] = ["filter", "mangle", "raw"];

/// Chains that filter what arrives by IPv4, as (table, chain): those with rules, and those that drop all. Asks only
/// about tables that are there, since asking would make others. Needs CAP_NET_ADMIN and CAP_NET_RAW.
///
/// # Errors
/// Those of the socket and of asking.
pub(crate) fn input_chains() -> io::Result<Vec<(&'static str, &'static str)>> {
    let there = fs::read_to_string("/proc/thread-self/net/ip_tables_names").unwrap_or_default();
    let is_there = |table: &&str| there.lines().any(|line| line == *table);
    let mut chains = Vec::new();
    for table in TABLES.into_iter().filter(is_there) {
        let kind = SocketType::RAW;
        let protocol = Some(Protocol::from_raw(ipproto::RAW.as_raw()));
        let socket = socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, protocol)?;
        let info = ask(&socket, GET_INFO, table, vec![0; INFO_BYTES])?;
        let size = word(&info, NAME_BYTES + 12 * 4)?;
        let mut request = vec![0; ENTRIES_AT + size.min(TABLE_BYTES_MAX as u32) as usize];
        request[NAME_BYTES..NAME_BYTES + 4].copy_from_slice(&size.to_ne_bytes());
        let entries = ask(&socket, GET_ENTRIES, table, request)?;
        let filters = (0..CHAINS.len()).filter(|hook| filters(&info, &entries, *hook));
        chains.extend(filters.map(|hook| (table, CHAINS[hook])));
    }
    Ok(chains)
}

/// Whether the chain at a hook has rules, or a policy that drops.
fn filters(info: &[u8], entries: &[u8], hook: usize) -> bool {
    let found = || {
        let is_valid = word(info, NAME_BYTES)? & (1 << hook) != 0;
        let first = word(info, NAME_BYTES + 4 * (1 + hook))?;
        let policy = word(info, NAME_BYTES + 4 * (6 + hook))?;
        let at = ENTRIES_AT.saturating_add(policy as usize);
        let target = u16::from_ne_bytes(part(entries, at.saturating_add(TARGET_OFFSET_AT))?);
        let verdict_at = at.saturating_add(usize::from(target) + VERDICT_AT);
        let verdict = i32::from_ne_bytes(part(entries, verdict_at)?);
        io::Result::Ok(is_valid && (first != policy || verdict == DROP))
    };
    found().unwrap_or(false)
}

/// The kernel's answer about a table, in the buffer whose first bytes name it.
fn ask(
    socket: &OwnedFd,
    option: libc::c_int,
    table: &str,
    mut buffer: Vec<u8>,
) -> io::Result<Vec<u8>> {
    buffer[..table.len()].copy_from_slice(table.as_bytes());
    let mut bytes = buffer.len() as libc::socklen_t;
    // SAFETY: the buffer has as many bytes as it says, and the kernel writes no more of them.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            option,
            buffer.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    match asked {
        0 => Ok(buffer),
        _ => Err(io::Error::last_os_error()),
    }
}

fn word(bytes: &[u8], at: usize) -> io::Result<u32> {
    part(bytes, at).map(u32::from_ne_bytes)
}

fn part<const BYTES: usize>(bytes: &[u8], at: usize) -> io::Result<[u8; BYTES]> {
    let there = bytes.get(at..).and_then(|rest| rest.first_chunk());
    Ok(*there.ok_or(io::ErrorKind::InvalidData)?)
}
