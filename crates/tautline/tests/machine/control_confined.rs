//! A control process that has been taken over: what its code could still do once it serves. Each attempt is made by the
//! confined process itself, as root, from the thread that serves and from a new one.
#![allow(unsafe_code)] // System calls that a control process has no wrapper for.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::common::control::{NOBODY, allow, answers, client_node, echo_for_ever, served};
use crate::common::{XDP, child, hosts, open};
use tautline::config::ServiceConfig;
use tautline::control::Server;
use tautline_testbed::hosts::Host;

/// Arguments of a system call by its number.
fn call(number: libc::c_long, arguments: [usize; 4]) -> io::Result<()> {
    let [first, second, third, fourth] = arguments;
    // SAFETY: each call below passes addresses of memory that lives through it, or none.
    match unsafe { libc::syscall(number, first, second, third, fourth) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Uses of a control process's privilege. All of them succeed before it is confined, or would with other arguments.
fn attempts(namespace: &std::fs::File) -> Vec<(&'static str, io::Result<()>)> {
    let (root, system) = (c"/".as_ptr() as usize, c"tmpfs".as_ptr() as usize);
    let own = std::process::id() as usize;
    // Of BPF_PROG_LOAD: the least program, `return 0`.
    let code: [u64; 2] = [0xb7, 0x95];
    let mut load = [0u64; 16];
    load[0] = 1 | 2 << 32;
    load[1] = code.as_ptr() as u64;
    load[2] = c"GPL".as_ptr() as u64;
    let by_number = [1u32, 0, 0, 0];
    let file = |path: &str, write: bool| {
        let mut options = std::fs::OpenOptions::new();
        options.read(!write).write(write).open(path).map(drop)
    };
    vec![
        ("start a program", Err(Command::new("/bin/true").exec())),
        (
            "load a BPF program",
            call(libc::SYS_bpf, [5, load.as_ptr() as usize, 128, 0]),
        ),
        (
            "find a BPF map by its number",
            call(libc::SYS_bpf, [14, by_number.as_ptr() as usize, 16, 0]),
        ),
        (
            "enter a namespace",
            call(libc::SYS_setns, [namespace.as_raw_fd() as usize, 0, 0, 0]),
        ),
        (
            "make a namespace",
            call(libc::SYS_unshare, [libc::CLONE_NEWNET as usize, 0, 0, 0]),
        ),
        ("mount", call(libc::SYS_mount, [system, root, system, 0])),
        (
            "open a file system",
            call(libc::SYS_fsopen, [system, 0, 0, 0]),
        ),
        ("change the root", call(libc::SYS_chroot, [root, 0, 0, 0])),
        (
            "trace a process",
            call(libc::SYS_ptrace, [libc::PTRACE_TRACEME as usize, 0, 0, 0]),
        ),
        (
            "read a process's memory",
            call(libc::SYS_process_vm_readv, [own, 0, 0, 0]),
        ),
        ("become another user", call(libc::SYS_setuid, [1, 0, 0, 0])),
        (
            "take capabilities back",
            call(libc::SYS_capset, [0, 0, 0, 0]),
        ),
        ("kill a process", call(libc::SYS_kill, [own, 0, 0, 0])),
        (
            "open a socket of another family",
            call(
                libc::SYS_socket,
                [libc::AF_INET6 as usize, libc::SOCK_DGRAM as usize, 0, 0],
            ),
        ),
        (
            "listen to all frames",
            call(
                libc::SYS_socket,
                [libc::AF_PACKET as usize, libc::SOCK_RAW as usize, 0, 0],
            ),
        ),
        (
            // By the type that such sockets had before there was a family for them.
            "listen to all frames in the old way",
            call(libc::SYS_socket, [libc::AF_INET as usize, 10, 0, 0]),
        ),
        (
            "connect by TCP",
            TcpStream::connect("127.0.0.1:1")
                .map(drop)
                .inspect_err(|error| {
                    // Without a listener the kernel would report it.
                    assert_ne!(error.kind(), io::ErrorKind::ConnectionRefused)
                }),
        ),
        ("read the users", file("/etc/passwd", false)),
        ("read the passwords", file("/etc/shadow", false)),
        ("write a setting", file("/proc/sys/kernel/hostname", true)),
        ("write a driver", file("/sys/kernel/profiling", true)),
        (
            "make a file",
            std::fs::write("/tmp/taut-confined", "")
                .and_then(|()| std::fs::remove_file("/tmp/taut-confined")),
        ),
        ("open a device", file("/dev/null", true)),
        (
            "make a link out",
            std::os::unix::fs::symlink("/etc", "/run/tautline/taut-confined"),
        ),
    ]
}

/// A control process that attacks instead of serving.
fn attack() {
    let config: ServiceConfig = format!("interface = \"taut0\"\n{}", allow("60", ""))
        .parse()
        .unwrap();
    let mut server = Server::open(config).unwrap();
    let namespace = std::fs::File::open("/proc/self/ns/net").unwrap();
    let confinement = server.confine(false);
    println!("{confinement}");
    let mut tried = attempts(&namespace);
    let thread = std::thread::spawn(move || attempts(&namespace));
    tried.extend(thread.join().unwrap());
    for (what, result) in tried {
        println!(
            "to {what}: {}",
            if result.is_ok() { "DONE" } else { "refused" }
        );
    }
}

#[test]
fn a_control_process_that_is_taken_over_can_do_little() {
    const TEST: &str = "a_control_process_that_is_taken_over_can_do_little";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        return attack();
    }
    let Some(hosts) = hosts() else { return };
    let mut command = child::again(TEST, "attack");
    let output = hosts.inside(Host::B, || command.output().unwrap()).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    if said.contains("not confined: ") {
        return println!("SKIPPED: this kernel cannot confine all: {said}");
    }
    assert!(!said.contains("DONE"), "{said}");
    assert_eq!(said.matches(": refused").count(), 48, "{said}");
}

#[test]
fn every_thread_is_confined_and_clients_are_served() {
    const TEST: &str = "every_thread_is_confined_and_clients_are_served";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        return echo_for_ever(&client_node(NOBODY).unwrap(), 60);
    }
    let Some(hosts) = hosts() else { return };
    let control = crate::common::control::start_control(&hosts, TEST, &allow("60", ""));
    let _client = crate::common::control::start_client(&hosts, TEST, "");
    let node = open(&hosts, Host::A, XDP);
    assert!(answers(&hosts, &node, 60));
    let threads = std::fs::read_dir(format!("/proc/{}/task", control.pid())).unwrap();
    let mut serving = 0;
    for thread in threads {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().to_owned()
        };
        // A filter, and no way to get more privilege.
        assert_eq!(
            (field("Seccomp:"), field("NoNewPrivs:")),
            ("2".into(), "1".into())
        );
        // CAP_NET_BIND_SERVICE, CAP_NET_ADMIN and CAP_BPF.
        serving += usize::from(field("CapPrm:") == "0000008000001400");
    }
    // The one that serves and the one that makes taps; the test's own main thread does nothing.
    assert_eq!(serving, 2);
}
