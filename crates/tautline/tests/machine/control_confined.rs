//! A control process that has been taken over: what its code could still do once it serves. Each attempt is made by the
//! confined process itself, as root, from the thread that serves and from a new one.
#![allow(unsafe_code)] // System calls that a control process has no wrapper for.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::common::control::{NOBODY, allow, answers, client_node, echo_for_ever};
use crate::common::{XDP, begin, child, open};
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
    let (own, namespace) = (std::process::id() as usize, namespace.as_raw_fd() as usize);
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
    let bpf =
        |command, attributes: usize, bytes| call(libc::SYS_bpf, [command, attributes, bytes, 0]);
    let socket =
        |family: i32, kind: i32| call(libc::SYS_socket, [family as usize, kind as usize, 0, 0]);
    let one = |number, argument: usize| call(number, [argument, 0, 0, 0]);
    let (load, by_number) = (load.as_ptr() as usize, by_number.as_ptr() as usize);
    let by_tcp = TcpStream::connect("127.0.0.1:1")
        .map(drop)
        .inspect_err(|error| {
            // Without a listener the kernel would report it.
            assert_ne!(error.kind(), io::ErrorKind::ConnectionRefused)
        });
    vec![
        ("start a program", Err(Command::new("/bin/true").exec())),
        ("load a BPF program", bpf(5, load, 128)),
        ("find a BPF map by its number", bpf(14, by_number, 16)),
        ("enter a namespace", one(libc::SYS_setns, namespace)),
        (
            "make a namespace",
            one(libc::SYS_unshare, libc::CLONE_NEWNET as usize),
        ),
        ("mount", call(libc::SYS_mount, [system, root, system, 0])),
        ("open a file system", one(libc::SYS_fsopen, system)),
        ("change the root", one(libc::SYS_chroot, root)),
        (
            "trace a process",
            one(libc::SYS_ptrace, libc::PTRACE_TRACEME as usize),
        ),
        (
            "read a process's memory",
            one(libc::SYS_process_vm_readv, own),
        ),
        ("become another user", one(libc::SYS_setuid, 1)),
        ("take capabilities back", one(libc::SYS_capset, 0)),
        ("kill a process", one(libc::SYS_kill, own)),
        (
            "open a socket of another family",
            socket(libc::AF_INET6, libc::SOCK_DGRAM),
        ),
        (
            "listen to all frames",
            socket(libc::AF_PACKET, libc::SOCK_RAW),
        ),
        // By the type that such sockets had before there was a family for them.
        (
            "listen to all frames in the old way",
            socket(libc::AF_INET, 10),
        ),
        ("connect by TCP", by_tcp),
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
    let client = |_: &str| {
        attack();
    };
    let Some(hosts) = begin(client) else {
        return;
    };
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
    let client = |_: &str| {
        echo_for_ever(&client_node(NOBODY).unwrap(), 60);
    };
    let Some(hosts) = begin(client) else {
        return;
    };
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
