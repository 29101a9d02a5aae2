//! A control process as the systemd unit runs it: as another user than root, with the unit's capabilities, and without
//! the calls that the unit refuses.
#![allow(unsafe_code)] // bpf() takes addresses.

use std::process::Command;

use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use tautline_testbed::hosts::{Host, Hosts};

use super::child::{self, Helper};
use super::unprivileged::refuse_calls;

/// The user whom root has set up for control processes.
pub const SERVICE: u32 = 65_531;

/// Begin of the role of a child that is a control process of that user.
const ROLE: &str = "service\n";
/// Role of the test itself, where root's runtime directory is its own.
const INSIDE: &str = "inside";

/// The directories that root makes for the service, with a file system for BPF objects as the unit has it, over a
/// runtime directory that this test has for itself.
const SET_UP: &str = "
    set -e
    mkdir -p /run/tautline
    mount -t tmpfs -o mode=755 tmpfs /run/tautline
    mkdir -p /run/tautline/service/bpf
    mount -t bpf -o mode=0700 bpf /run/tautline/service/bpf
    chown \"$0\" /run/tautline/service /run/tautline/service/bpf
    # As udev has it: everybody may open it.
    [ ! -e /dev/net/tun ] || {
        mknod -m 666 /run/tautline/tun c 10 200
        mount --bind /run/tautline/tun /dev/net/tun
    }
    exec \"$@\"";

/// Runs the test again where `/run/tautline` is its own and has a directory for the service. Whether this process is
/// that one, in the role of the test; the other has nothing left to do.
pub fn with_runtime_of_its_own(test: &str) -> bool {
    if child::role().as_deref() == Some(INSIDE) {
        return true;
    }
    if !Uid::effective().is_root() {
        println!("SKIPPED: another user for control processes needs root");
        return false;
    }
    let again = child::again(test, INSIDE);
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", SET_UP]);
    command
        .arg(SERVICE.to_string())
        .arg(again.get_program())
        .args(again.get_args())
        .envs(
            again
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    if complained.contains("mount: ") || complained.contains("unshare: ") {
        println!("SKIPPED: no BPF file system can be mounted here");
        return false;
    }
    for line in said.lines().filter(|line| line.starts_with("SKIPPED: ")) {
        println!("{line}");
    }
    assert!(output.status.success(), "{said}{complained}");
    assert!(said.contains("1 passed"), "there is no test `{test}`");
    false
}

/// Role of a child that is to be the service, and in which it goes on.
pub fn role_of_service() -> Option<String> {
    let role = child::role()?;
    Some(role.strip_prefix(ROLE)?.to_owned())
}

/// Starts a control process of the service for the second host's first cable.
pub fn start_service(hosts: &Hosts, test: &str, allow: &str) -> Helper {
    let role = format!("control\ninterface = \"taut0\"\n{allow}");
    start_as_service(hosts, test, &role)
}

/// Starts something else as the service, in the second host.
pub fn start_as_service(hosts: &Hosts, test: &str, role: &str) -> Helper {
    let role = format!("{ROLE}{role}");
    hosts
        .inside(Host::B, || Helper::start(test, &role))
        .unwrap()
}

/// Becomes the user of the service, with the capabilities that the unit grants, and refuses calls that the unit
/// refuses.
pub fn become_service() {
    let capabilities = capabilities_of_unit();
    for other in CapabilitySet::all().difference(capabilities).iter() {
        let _unknown_here = rustix::thread::remove_capability_from_bounding_set(other);
    }
    rustix::thread::set_keep_capabilities(true).unwrap();
    let (user, group) = (Uid::from_raw(SERVICE), Gid::from_raw(SERVICE));
    setgroups(&[]).unwrap();
    setresgid(group, group, group).unwrap();
    setresuid(user, user, user).unwrap();
    let sets = CapabilitySets {
        effective: capabilities,
        permitted: capabilities,
        inheritable: capabilities,
    };
    rustix::thread::set_capabilities(None, sets).unwrap();
    // As after the start of a program.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable).unwrap();
    refuse_calls(&[
        libc::SYS_fsopen,
        libc::SYS_fsconfig,
        libc::SYS_fsmount,
        libc::SYS_mount,
    ]);
}

/// The ambient capabilities of the unit, which are its bounding set too.
fn capabilities_of_unit() -> CapabilitySet {
    let unit = include_str!("../../../../contrib/systemd/taut-node@.service");
    let setting = |name: &str| {
        let mut lines = unit.lines();
        lines.find_map(|line| line.strip_prefix(name)).unwrap()
    };
    let ambient = setting("AmbientCapabilities=");
    assert_eq!(ambient, setting("CapabilityBoundingSet="));
    let one = |name: &str| match name {
        "CAP_BPF" => CapabilitySet::BPF,
        "CAP_PERFMON" => CapabilitySet::PERFMON,
        "CAP_NET_ADMIN" => CapabilitySet::NET_ADMIN,
        "CAP_NET_RAW" => CapabilitySet::NET_RAW,
        "CAP_NET_BIND_SERVICE" => CapabilitySet::NET_BIND_SERVICE,
        "CAP_SYS_ADMIN" => CapabilitySet::SYS_ADMIN,
        other => panic!("the unit has {other}, which no control process needs"),
    };
    ambient.split_whitespace().map(one).collect()
}

/// Pins what is kept in a file without a name, under a name.
pub fn pin_again(file: &str, pin: &str) {
    /// `BPF_OBJ_PIN` and `BPF_OBJ_GET` of linux/bpf.h; each takes a path and a descriptor.
    const PIN: libc::c_long = 6;
    const GET: libc::c_long = 7;
    let call = |command: libc::c_long, path: &str, descriptor: u64| {
        let path = std::ffi::CString::new(path).unwrap();
        let mut attributes = [path.as_ptr() as u64, descriptor];
        let size = size_of_val(&attributes);
        // SAFETY: the attributes are as the command has them; the path lives through the call.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size) };
        assert!(result >= 0, "{}", std::io::Error::last_os_error());
        result as u64
    };
    let link = call(GET, file, 0);
    call(PIN, pin, link);
    // SAFETY: just opened, and not used elsewhere.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(link as i32) });
}
