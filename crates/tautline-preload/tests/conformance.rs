//! Calls on UDP sockets against the kernel and against ports: the same program (`cases/`) runs as it is and with the
//! library, in one network namespace, with a peer in another, and each case must write the same results, errors and
//! bytes.

mod common;

use std::net::UdpSocket;
use std::path::Path;
use std::thread;
use std::time::Duration;

use common::{both, by_case, compile, past_the_kernel, run};
use tautline_testbed::hosts::{Host, Hosts, HostsOptions, may_create};

/// Sources of the program.
const SOURCES: [&str; 6] = [
    "cases/main.c",
    "cases/writing.c",
    "cases/basic.c",
    "cases/receive.c",
    "cases/wait.c",
    "cases/lifetime.c",
];
/// Cases that there are, so that none is lost unnoticed.
const CASES: usize = 119;
/// Cases that differ, with the reason. A case that is here and does not differ fails too.
const DIFFERENT: &[(&str, &str)] = &[];
/// Port that the peer is asked at, and another that it sends from.
const ASKED: u16 = 7000;
const OTHER: u16 = 7001;

/// Sends a datagram back, or, asked `?FROM COUNT SIZE MILLISECONDS`, sends others.
fn answer(asked: &UdpSocket, other: &UdpSocket) {
    let mut buffer = vec![0; 70_000];
    loop {
        let (length, from) = asked.recv_from(&mut buffer).unwrap();
        let question = &buffer[..length];
        let Some(text) = question.strip_prefix(b"?") else {
            // A datagram that cannot be sent back is missed by its case.
            let _unsent = asked.send_to(question, from);
            continue;
        };
        let text = std::str::from_utf8(text).unwrap();
        let numbers: Vec<usize> = text.split(' ').map(|one| one.parse().unwrap()).collect();
        let [by_other, count, size, milliseconds] = numbers[..] else {
            panic!("asked {text}");
        };
        thread::sleep(Duration::from_millis(milliseconds as u64));
        let sender = if by_other == 1 { other } else { asked };
        for index in 0..count {
            let bytes: Vec<u8> = (0..size)
                .map(|byte| ((index * 7 + byte) % 251) as u8)
                .collect();
            sender.send_to(&bytes, from).unwrap();
        }
    }
}

/// Runs all cases between hosts of their own.
fn run_cases(program: &Path, with_library: bool) -> (String, String) {
    let hosts = Hosts::create(&HostsOptions::default()).unwrap();
    let address = hosts.end(Host::B, 0).address();
    let sockets = hosts.inside(Host::B, || {
        [ASKED, OTHER].map(|port| UdpSocket::bind((address, port)).unwrap())
    });
    let [asked, other] = sockets.unwrap();
    thread::spawn(move || answer(&asked, &other));
    let addresses = [Host::A, Host::B].map(|host| hosts.end(host, 0).address().to_string());
    let arguments = addresses.each_ref().map(String::as_str);
    run(&hosts, program, &arguments, with_library.then_some(&[]))
}

#[test]
fn calls_answer_as_the_kernel_does() {
    if !may_create() {
        println!("SKIPPED: making network namespaces needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
        return;
    }
    let program = compile("cases", &SOURCES);
    let ((by_kernel, _), (by_port, explained)) = both(|library| run_cases(&program, library));
    let (by_kernel, by_port) = (by_case(&by_kernel), by_case(&by_port));
    let differ: Vec<&str> = by_kernel
        .iter()
        .filter(|(case, result)| by_port.get(**case) != Some(*result))
        .map(|(case, _)| *case)
        .collect();
    let expected: Vec<&str> = DIFFERENT.iter().map(|(case, _)| *case).collect();
    for case in differ.iter().filter(|case| !expected.contains(*case)) {
        let of_port = by_port.get(case).unwrap_or(&"missing");
        println!("{case}: the kernel\n{}the port\n{of_port}", by_kernel[case]);
    }
    assert_eq!(differ, expected);
    assert_eq!(by_kernel.len(), CASES);
    // Ports were at work, not the kernel's sockets under another name.
    let taken = explained
        .lines()
        .filter(|line| line.contains(": taken, port"))
        .count();
    assert!(taken >= CASES, "{explained}");
    let passed: u64 = explained.lines().filter_map(past_the_kernel).sum();
    assert!(
        passed > 2 * CASES as u64,
        "{passed} datagrams past the kernel: {explained}"
    );
    println!(
        "{CASES} cases, {} of them different as expected",
        DIFFERENT.len()
    );
}
