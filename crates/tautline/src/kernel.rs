//! The parts of the kernel that a node may lack: each is tried and never told from the release, because distributions
//! leave parts out and bring newer ones into old releases. `docs/reference/kernels.md` shows the same table.

use std::io;
use std::sync::LazyLock;

use aya::programs::{ProgramInfo, ProgramType, SchedClassifier, TcAttachType};
use aya::sys::{BpfHelper, is_helper_supported};

use crate::error::errno_of;
use crate::sys::{shared, xsk};

/// A part of the kernel that not every kernel has.
#[derive(Clone, Copy, Debug)]
pub struct Feature {
    /// Its name, as the kernel's documentation has it.
    pub name: &'static str,
    /// Release of Linux that brought it.
    pub since: &'static str,
    /// User of it in Tautline.
    pub used_by: &'static str,
    /// Replacement where it is missing.
    pub instead: &'static str,
    probe: fn() -> io::Result<bool>,
}

impl Feature {
    /// Tries it. Nothing stays of that.
    ///
    /// # Errors
    /// The kernel's, if that does not tell whether the feature is there: mostly a missing privilege.
    pub fn is_there(&self) -> io::Result<bool> {
        (self.probe)()
    }

    /// Whether link `xdp` cannot do without it.
    #[must_use]
    pub fn is_needed_by_xdp(&self) -> bool {
        self.used_by.starts_with("link `xdp`")
    }
}

const PACKET: &str = "link `packet`";
const TCX: &str = "BPF links at traffic control (tcx)";

/// Whether the driver of virtual cables keeps the packet buffer of a frame where the demux finds it (Linux 6.3): the
/// kernel describes the structure. The kernel's description is of several megabytes, so it is looked into once.
pub(crate) fn tells_buffers_of_veth() -> bool {
    static TELLS: LazyLock<bool> = LazyLock::new(|| {
        let has = |path| {
            let types = std::fs::read(path).unwrap_or_default();
            types
                .split(|byte| *byte == 0)
                .any(|name| name == b"veth_xdp_buff")
        };
        has("/sys/kernel/btf/veth") || has("/sys/kernel/btf/vmlinux")
    });
    *TELLS
}

/// All of them. The first stands for all that link `xdp` needs: the others are older.
pub const FEATURES: [Feature; 6] = [
    Feature {
        name: "`bpf_xdp_load_bytes`",
        since: "5.18",
        used_by: "link `xdp`: the copy into a port's memory",
        instead: PACKET,
        probe: || {
            let helper = BpfHelper::BPF_FUNC_xdp_load_bytes;
            is_helper_supported(ProgramType::Xdp, helper).map_err(io::Error::other)
        },
    },
    Feature {
        name: TCX,
        since: "6.6",
        used_by: "mode `tc` of link `xdp`",
        instead: "native or generic mode",
        probe: || tried_bpf(query_tcx("lo")),
    },
    Feature {
        name: "`AF_XDP` sockets",
        since: "4.18",
        used_by: "link `xsk`",
        instead: "link `xdp` or `packet`",
        probe: || tried(xsk::try_socket()),
    },
    Feature {
        name: "`futex_waitv`",
        since: "5.16",
        used_by: "link `vbus`: sleeping until one of several senders has a message",
        instead: "an event that the sender rings with a system call of its own",
        probe: || tried(shared::try_sleeping()),
    },
    Feature {
        name: "`XDP_MAX_TX_SKB_BUDGET`",
        since: "6.17",
        used_by: "link `xsk` in copy mode: 1,024 frames a call",
        instead: "32 frames a call",
        probe: || tried(xsk::try_send_budget()),
    },
    Feature {
        name: "`SO_PASSRIGHTS`",
        since: "6.16",
        used_by: "connections with strangers: no descriptors from them",
        instead: "a separate thread that closes them",
        probe: || tried(tautline_state::untrusted::try_refusing_descriptors()),
    },
];

/// Part of the kernel that link `xdp` lacks here, if it is one of [`FEATURES`].
pub(crate) fn missing_for_xdp() -> Option<&'static Feature> {
    missing(Feature::is_needed_by_xdp)
}

/// Part of the kernel that mode `tc` of link `xdp` lacks here.
pub(crate) fn missing_for_tc() -> Option<&'static Feature> {
    missing(|feature| feature.name == TCX)
}

fn missing(is_meant: impl Fn(&Feature) -> bool) -> Option<&'static Feature> {
    let is_missing =
        |feature: &&Feature| is_meant(feature) && matches!(feature.is_there(), Ok(false));
    FEATURES.iter().find(is_missing)
}

/// Programs at traffic control on the way in to an interface, the first that sees a frame first. Those of `tc` filters
/// are not among them.
///
/// # Errors
/// The kernel's: EINVAL where it has no such hook (before Linux 6.6).
fn query_tcx(interface: &str) -> io::Result<Vec<ProgramInfo>> {
    match SchedClassifier::query_tcx(interface, TcAttachType::Ingress) {
        Ok((_revision, programs)) => Ok(programs),
        Err(error) => Err(match errno_of(&error) {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::other(error),
        }),
    }
}

/// Programs at traffic control of an interface; none where this kernel has no such hook, or hides programs from this
/// process.
pub(crate) fn programs_at_tc(interface: &str) -> io::Result<Vec<ProgramInfo>> {
    match query_tcx(interface).map_err(|error| (error.kind(), error)) {
        Ok(programs) => Ok(programs),
        Err((io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied, _)) => Ok(Vec::new()),
        Err((_, error)) => Err(error),
    }
}

/// [`tried`] of bpf(2): where that call is missing, or forbidden as if it were, nothing is known of its parts.
fn tried_bpf<T>(result: io::Result<T>) -> io::Result<bool> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Err(error),
        result => tried(result),
    }
}

/// Success, "not here", or an error that says neither.
fn tried<T>(result: io::Result<T>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(
                libc::EINVAL
                | libc::ENOPROTOOPT
                | libc::EAFNOSUPPORT
                | libc::EOPNOTSUPP
                | libc::ENOSYS
                | libc::E2BIG,
            ) => Ok(false),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_table_is_this_one() {
        let page = include_str!("../../../docs/reference/kernels.md");
        let (_, table) = page.split_once("| part of the kernel |").unwrap();
        let rows: Vec<_> = table
            .lines()
            .skip(2)
            .take_while(|line| line.starts_with('|'))
            .collect();
        let expected = FEATURES.map(|feature| {
            let Feature {
                name,
                since,
                used_by,
                instead,
                ..
            } = feature;
            format!("| {name} | {since} | {used_by} | {instead} |")
        });
        assert_eq!(rows, expected);
    }

    #[test]
    fn whatever_the_demux_needs_is_found_where_it_loads() {
        if let Err(error) = crate::link::xdp::try_demux(crate::link::XdpMode::Generic) {
            println!("SKIPPED: {error}");
            return;
        }
        assert_eq!(missing_for_xdp().map(|feature| feature.name), None);
        for feature in FEATURES.iter().filter(|feature| feature.is_needed_by_xdp()) {
            assert!(feature.is_there().unwrap(), "{}", feature.name);
        }
    }

    #[test]
    fn an_invalid_argument_says_that_it_is_missing_and_a_privilege_says_nothing() {
        let answer = |code| tried::<()>(Err(io::Error::from_raw_os_error(code)));
        assert!(!answer(libc::EINVAL).unwrap());
        assert!(answer(libc::EPERM).is_err());
    }
}
