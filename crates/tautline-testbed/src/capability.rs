//! Which capabilities this process holds.

use std::fs;

/// A capability by the name of its kernel constant, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// The constant's name.
    pub name: &'static str,
    /// The bit in the kernel's masks.
    pub bit: u32,
}

/// Those that Tautline's links, locking and scheduling ask for.
pub const WANTED: [Capability; 6] = [
    Capability {
        name: "CAP_NET_ADMIN",
        bit: 12,
    },
    Capability {
        name: "CAP_NET_RAW",
        bit: 13,
    },
    Capability {
        name: "CAP_IPC_LOCK",
        bit: 14,
    },
    Capability {
        name: "CAP_SYS_ADMIN",
        bit: 21,
    },
    Capability {
        name: "CAP_SYS_NICE",
        bit: 23,
    },
    Capability {
        name: "CAP_BPF",
        bit: 39,
    },
];

/// The effective capabilities of the calling thread as a mask; nothing if `/proc` is not there.
pub fn effective() -> Option<u64> {
    mask(&fs::read_to_string("/proc/thread-self/status").ok()?)
}

fn mask(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_read_from_its_line() {
        assert_eq!(
            mask("Name:\tx\nCapPrm:\tff\nCapEff:\t0000000000003000\n"),
            Some(0x3000)
        );
        assert_eq!(mask("CapEff:\tzz\n"), None);
        assert_eq!(mask(""), None);
        assert!(effective().is_some());
    }
}
