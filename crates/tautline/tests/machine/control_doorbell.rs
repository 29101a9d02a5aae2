//! A client that makes its doorbell dear: it watches it with thousands of epolls, all of which the kernel walks over at
//! the expense of whoever sends to it. And a node without clients, which is rung for whatever that costs.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::common::control::{
    NOBODY, allow, answers, client_node, control_status, echo_for_ever, served, start_client,
    start_control,
};
use crate::common::{XDP, child, hosts, open, pair, port};
use rustix::event::epoll;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tautline::{Destination, Priority, QueuingOptions, QueuingPort};
use tautline_testbed::hosts::{Host, Hosts};
use tautline_testbed::sys::{allowed_cpus, pin_to_cpu};

/// Epolls on the doorbell, where the limit of open files lets it have them.
const WATCHES: usize = 15_000;
/// Descriptors for everything else.
const OTHERS: u64 = 100;

/// Frames that came for a port while it slept, for which it was not woken.
fn withheld(hosts: &Hosts, number: u64) -> u64 {
    let status = control_status(hosts);
    let clients = status["control"]["clients"].as_array().cloned();
    let ports = clients.unwrap_or_default().into_iter().flat_map(|client| {
        let ports = client["ports"].as_array().cloned();
        ports.unwrap_or_default()
    });
    let of_port = ports.filter(|port| port["number"] == number);
    of_port
        .filter_map(|port| port["rings_withheld"].as_u64())
        .sum()
}

/// Watches a port's doorbell with as many epolls as the limit of open files allows.
fn watches_of(port: &mut QueuingPort) -> Vec<OwnedFd> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = WATCHES as u64 + OTHERS;
    let _as_many_as_it_may = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(wanted),
            maximum: limit.maximum.map(|maximum| maximum.max(wanted)),
        },
    );
    let doorbell = port.descriptor().unwrap();
    let watch = || {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        let flags = epoll::EventFlags::IN;
        epoll::add(&watch, doorbell, epoll::EventData::new_u64(0), flags).ok()?;
        Some(watch)
    };
    (0..WATCHES).map_while(|_| watch()).collect()
}

/// The number that a client of this test has printed.
fn watches_at(client: &mut child::Helper) -> usize {
    let said = client.wait_for("watches: ");
    let (_, watches) = said.split_once("watches: ").unwrap();
    watches.trim().parse().unwrap()
}

fn watch_a_thousandfold() -> ! {
    let node = client_node(NOBODY).unwrap();
    let mut port = node
        .queuing_port(port(60), &QueuingOptions::default())
        .unwrap();
    let watches = watches_of(&mut port);
    std::thread::spawn(|| {
        let _until_the_parent_is_gone = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    println!("{}", child::READY);
    println!("watches: {}", watches.len());
    // Says that it sleeps, all the time.
    let mut buffer = [0; 1484];
    loop {
        while port.receive(&mut buffer).unwrap().is_some() {}
        let _waits = port.descriptor();
    }
}

#[test]
fn a_doorbell_that_is_watched_a_thousandfold_rings_seldom() {
    const TEST: &str = "a_doorbell_that_is_watched_a_thousandfold_rings_seldom";
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        if role == "watcher" {
            watch_a_thousandfold();
        }
        return echo_for_ever(&client_node(NOBODY).unwrap(), 61);
    }
    let Some(hosts) = hosts() else { return };
    let _control = start_control(&hosts, TEST, &allow("60, 61", ""));
    let mut watcher = start_client(&hosts, TEST, "watcher");
    let watches = watches_at(&mut watcher);
    let _neighbour = start_client(&hosts, TEST, "echo");
    let node = open(&hosts, Host::A, XDP);
    let mut sender = hosts
        .inside(Host::A, || {
            node.queuing_port(port(59), &QueuingOptions::default())
                .unwrap()
        })
        .unwrap();
    let to = sender.destination("peer", port(60)).unwrap();
    let mut send_for = |time: Duration| {
        let (started, mut took) = (Instant::now(), Vec::new());
        while started.elapsed() < time {
            let before = Instant::now();
            sender.send(to, Priority::NORMAL, b"wake up").unwrap();
            took.push(before.elapsed());
            // It needs a moment to say that it sleeps again.
            std::thread::sleep(Duration::from_micros(50));
        }
        took.sort_unstable();
        took[took.len() / 2]
    };
    let first = send_for(Duration::from_millis(20));
    let mut later = first;
    let started = Instant::now();
    while withheld(&hosts, 60) == 0 && started.elapsed() < crate::common::PATIENCE {
        later = send_for(Duration::from_millis(500));
    }
    println!("{watches} watches: {first:?} a send at first (median), {later:?} later");
    if watches < WATCHES {
        println!("SKIPPED: {watches} epolls by the limit of open files are too few to be dear");
    } else {
        assert_ne!(withheld(&hosts, 60), 0, "it is rung however dear it is");
    }
    for _ in 0..200 {
        assert!(answers(&hosts, &node, 61));
    }
    assert_eq!(withheld(&hosts, 61), 0);
}

/// Options of a port that sleeps at once.
fn asleep() -> QueuingOptions {
    QueuingOptions {
        spin: Duration::ZERO.into(),
        ..QueuingOptions::default()
    }
}

/// Answers until a message without bytes comes, or none for long.
fn answer_all(answering: &mut QueuingPort) {
    let mut buffer = [0; 1484];
    while let Some(message) = answering
        .receive_until(tautline::now() + crate::common::PATIENCE, &mut buffer)
        .unwrap()
    {
        if message.length == 0 {
            return;
        }
        let answer = &buffer[..message.length];
        answering
            .reply(message.source, Priority::NORMAL, answer)
            .unwrap();
    }
}

/// Sends a number, and waits for it to come back.
fn ask(asking: &mut QueuingPort, to: Destination, number: u32) {
    let (sent, mut buffer) = (number.to_le_bytes(), [0; 1484]);
    asking.send(to, Priority::NORMAL, &sent).unwrap();
    let limit = tautline::now() + crate::common::PATIENCE;
    let answer = asking.receive_until(limit, &mut buffer).unwrap();
    let answer = answer.unwrap_or_else(|| panic!("round trip {number} has no answer"));
    assert_eq!(buffer[..answer.length], sent);
}

/// Answers on port 62, asleep before each message. Its doorbell is dear.
fn answer_asleep() {
    let node = client_node(NOBODY).unwrap();
    let mut answering = node.queuing_port(port(62), &asleep()).unwrap();
    let watches = watches_of(&mut answering);
    println!("{}", child::READY);
    println!("watches: {}", watches.len());
    answer_all(&mut answering);
}

/// On a virtual machine an honest client's doorbell can be dear as well. Who asks waits for the answer before asking
/// again, so that no later frame wakes it.
#[test]
fn a_client_whose_doorbell_is_dear_is_woken_late_and_not_never() {
    const TEST: &str = "a_client_whose_doorbell_is_dear_is_woken_late_and_not_never";
    /// Late rings that are waited for. The first ten or so come at once.
    const LATE: u64 = 5;
    if let Some(role) = child::role() {
        if served(&role) {
            return;
        }
        return answer_asleep();
    }
    let Some(hosts) = hosts() else { return };
    let _control = start_control(&hosts, TEST, &allow("62", ""));
    let mut client = start_client(&hosts, TEST, "answers");
    let watches = watches_at(&mut client);
    let node = open(&hosts, Host::A, XDP);
    let mut asking = hosts
        .inside(Host::A, || {
            node.queuing_port(port(61), &QueuingOptions::default())
                .unwrap()
        })
        .unwrap();
    let to = asking.destination("peer", port(62)).unwrap();
    let (started, mut round_trips) = (Instant::now(), 0);
    while withheld(&hosts, 62) < LATE && started.elapsed() < 2 * crate::common::PATIENCE {
        ask(&mut asking, to, round_trips);
        round_trips += 1;
    }
    asking.send(to, Priority::NORMAL, b"").unwrap();
    let late = withheld(&hosts, 62);
    println!("{watches} watches: {late} of {round_trips} rings were late");
    if watches < WATCHES {
        println!("SKIPPED: {watches} epolls by the limit of open files are too few to be dear");
    } else {
        assert!(late >= LATE, "{late}");
    }
}

/// Waking another CPU of a virtual machine is dear each time, and nobody but the node pays for it.
#[test]
fn a_receiver_of_a_node_without_clients_is_woken_each_time() {
    /// More than it takes until a client's doorbell is withheld there.
    const ROUND_TRIPS: u32 = 10_000;
    let Some(pair) = pair(XDP, XDP) else { return };
    let cpus = allowed_cpus().unwrap();
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    let mut asking = pair.on_a(|node| node.queuing_port(port(61), &asleep()).unwrap());
    let mut answering = pair.on_b(|node| node.queuing_port(port(62), &asleep()).unwrap());
    let to = asking.destination("peer", port(62)).unwrap();
    let answers = std::thread::spawn(move || {
        pin_to_cpu(first).unwrap();
        answer_all(&mut answering);
    });
    pin_to_cpu(last).unwrap();
    for number in 0..ROUND_TRIPS {
        ask(&mut asking, to, number);
    }
    asking.send(to, Priority::NORMAL, b"").unwrap();
    answers.join().unwrap();
}
