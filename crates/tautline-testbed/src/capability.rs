//! Which capabilities this process holds.

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

/// The effective capabilities of the calling thread as a mask; nothing if the kernel does not tell.
pub fn effective() -> Option<u64> {
    let sets = rustix::thread::capabilities(None).ok()?;
    Some(sets.effective.bits())
}
