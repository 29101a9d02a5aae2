//! The most important receiver is served first, and which one that is can change at any time with no call to the
//! library: the receive path has no priorities of its own that could be out of date.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::{Give, Pair, Take, XDP, pair, port, queuing_with};
use nix::unistd::gettid;
use tautline::{Destination, Node, Priority, QueuingPort};
use tautline_testbed::sys::{allowed_cpus, pin_to_cpu, set_fifo};

const PORTS: [u16; 2] = [71, 72];

/// A thread that waits for messages on one CPU, and says which port it served.
struct Receiver {
    thread: i32,
    handle: JoinHandle<()>,
}

impl Receiver {
    /// It ends with an empty message.
    fn start(pair: &Pair, number: u16, cpu: u32, served: Sender<u16>) -> Self {
        let mut port = pair.on_b(|node| open(node, number));
        let (started, starts) = channel();
        let handle = std::thread::spawn(move || {
            pin_to_cpu(cpu).unwrap();
            started.send(gettid().as_raw()).unwrap();
            let mut buffer = [0; 1484];
            loop {
                let message = port.take_into(&mut buffer);
                if message.length == 0 {
                    return;
                }
                served.send(number).unwrap();
            }
        });
        let thread = starts.recv().unwrap();
        Self { thread, handle }
    }

    /// As an operator does it.
    fn set_priority(&self, priority: u8) {
        let output = Command::new("chrt")
            .args(["--fifo", "--pid", &priority.to_string()])
            .arg(self.thread.to_string())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

fn open(node: &Node, number: u16) -> QueuingPort {
    // It sleeps at once, so that its thread has to be scheduled.
    let options = queuing_with(|options| options.spin = Duration::ZERO.into());
    node.queuing(port(number)).options(&options).open().unwrap()
}

/// Both receivers get a message while something more urgent has their CPU. Who is served first when it gives the CPU
/// up?
fn first_served(
    pair: &Pair,
    sender: &mut QueuingPort,
    to: [Destination; 2],
    cpu: u32,
    served: &std::sync::mpsc::Receiver<u16>,
) -> u16 {
    let (busy, release) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin_to_cpu(cpu).unwrap();
            set_fifo(60).unwrap();
            busy.store(true, SeqCst);
            // Bounded, so that a test that fails does not hang the CPU too.
            let limit = tautline::now() + Duration::from_millis(500);
            while !release.load(SeqCst) && tautline::now() < limit {
                std::hint::spin_loop();
            }
        });
        while !busy.load(SeqCst) {
            std::thread::yield_now();
        }
        for to in to {
            sender.give(to, Priority::NORMAL, b"work");
        }
        let waiting = || {
            let ports = pair.b.status().ports;
            let queued = ports.iter().map(|port| port.queued.iter().sum::<u64>());
            queued.sum::<u64>() == 2
        };
        crate::common::control::eventually("both messages have arrived", waiting);
        release.store(true, SeqCst);
    });
    let (first, second) = (served.recv().unwrap(), served.recv().unwrap());
    assert_ne!(first, second);
    first
}

#[test]
fn a_change_of_priority_takes_effect_with_no_call_to_the_library() {
    let Some(pair) = pair(XDP, XDP) else { return };
    let cpus = allowed_cpus().unwrap();
    if cpus.len() < 2 || Command::new("chrt").arg("--version").output().is_err() {
        println!("SKIPPED: needs two CPUs and chrt (apt-get install util-linux)");
        return;
    }
    let (served, order) = channel();
    let receivers = PORTS.map(|number| Receiver::start(&pair, number, cpus[1], served.clone()));
    pin_to_cpu(cpus[0]).unwrap();
    let mut sender = pair.on_a(|node| open(node, 70));
    let to = PORTS.map(|number| sender.destination("peer", port(number)).unwrap());
    for (priorities, expected) in [
        ([20, 30], PORTS[1]),
        ([30, 20], PORTS[0]),
        ([5, 30], PORTS[1]),
    ] {
        for (receiver, priority) in receivers.iter().zip(priorities) {
            receiver.set_priority(priority);
        }
        // In either order of sending.
        for to in [to, [to[1], to[0]]] {
            let first = first_served(&pair, &mut sender, to, cpus[1], &order);
            assert_eq!(first, expected, "priorities {priorities:?}");
        }
    }
    for to in to {
        sender.give(to, Priority::NORMAL, b"");
    }
    for receiver in receivers {
        receiver.handle.join().unwrap();
    }
}
