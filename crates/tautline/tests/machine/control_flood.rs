//! Ten unprivileged clients with mixed priorities under a flood, killed at random, the control process too: the
//! survivors lose nothing. `TAUTLINE_FLOOD_SECONDS` is how long (`make flood`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::common::child::{self, Helper};
use crate::common::control::{
    NOBODY, allow, eventually, forbid_and_open, ports_given, start_client, start_control,
};
use crate::common::wire::{Wire, frame};
use crate::common::{Give, PATIENCE, Take, XDP, begin, open, port, queuing_with};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use tautline::port::QueuingOptions;
use tautline::{MacAddress, Node, Priority, QueuingPort, Wait};
use tautline_proto::wire::Header;
use tautline_testbed::hosts::{Host, Hosts};
use tautline_testbed::sys::set_fifo;

const TEST: &str = "survivors_lose_nothing";
const CLIENTS: u16 = 10;
/// Those that are never killed.
const SURVIVORS: u16 = 5;
const FIRST_PORT: u16 = 10;
/// Target of the flood: a client that never reads.
const FLOODED_PORT: u16 = 30;
const SECONDS_DEFAULT: u64 = 5;
/// A message for each client in each of these. With the depth below a client may be kept from its CPU for two seconds.
const PERIOD: Duration = Duration::from_millis(2);
const DEPTH: u32 = 1024;
/// Frames of the flood between two looks at the clock.
const BURST: usize = 32;

/// A client: checks that what it gets is without a gap, until the parent lets it go.
fn client(number: u16) {
    // Every other one has a real-time priority, as an administrator would give it.
    if number % 2 == 1 {
        set_fifo(number as u8).unwrap();
    }
    let (node, mut port) = open_patiently(number, DEPTH);
    static LET_GO: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(|| {
        child::ready();
        LET_GO.store(true, SeqCst);
    });
    let (mut buffer, mut gaps) = ([0; 1484], 0u64);
    let (mut first, mut last) = (None, None);
    loop {
        let deadline = tautline::now() + Duration::from_millis(200);
        let Some(message) = port.look(&mut buffer, Wait::Until(deadline)) else {
            if LET_GO.load(SeqCst) {
                break;
            }
            continue;
        };
        assert_eq!(message.length, 8);
        let count = u64::from_ne_bytes(buffer[..8].try_into().unwrap());
        first.get_or_insert(count);
        gaps += last.map_or(0, |last: u64| count.wrapping_sub(last + 1));
        last = Some(count);
    }
    let full: u64 = node.status().ports[0].dropped_full.iter().sum();
    println!("client {number}: first {first:?} last {last:?} gaps {gaps} full {full}");
}

/// A control process may be on its way out or in.
fn open_patiently(number: u16, depth: u32) -> (Node, QueuingPort) {
    let options = queuing_with(|options| options.depth = depth);
    let started = Instant::now();
    let mut unprivileged = false;
    loop {
        let opened = forbid_and_open(NOBODY, &mut unprivileged)
            .map_err(|error| error.to_string())
            .and_then(
                |node| match node.queuing(port(number)).options(&options).open() {
                    Ok(port) => Ok((node, port)),
                    Err(error) => Err(error.to_string()),
                },
            );
        match opened {
            Ok(opened) => return opened,
            Err(error) => assert!(started.elapsed() < PATIENCE, "port {number}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends each client its numbers, and floods in between.
struct Traffic<'t> {
    node: &'t Node,
    hosts: &'t Hosts,
    /// The next number of all clients.
    next: AtomicU64,
    flooded: AtomicU64,
    over: AtomicBool,
}

impl Traffic<'_> {
    fn run(&self) {
        let options = QueuingOptions::default();
        let mut sender = self
            .node
            .queuing(port(4001))
            .options(&options)
            .open()
            .unwrap();
        let clients = (0..CLIENTS).map(|index| {
            let to = sender.destination("peer", port(FIRST_PORT + index));
            (to.unwrap(), Priority::new((index % 8) as u8).unwrap())
        });
        let clients: Vec<_> = clients.collect();
        let wire = Wire::on(self.hosts, Host::A);
        let to = MacAddress(self.hosts.end(Host::B, 0).mac());
        let (from, lowest) = (MacAddress([2, 0, 0, 0, 0xf1, 0]), Priority::LOWEST);
        let mut sequence = 0;
        let mut due = Instant::now();
        while !self.over.load(SeqCst) {
            if Instant::now() < due {
                for _ in 0..BURST {
                    let header = Header::whole(port(FLOODED_PORT), port(1), lowest, 0, sequence);
                    wire.send(&frame(to, from, &header, &[]));
                    sequence += 1;
                }
                self.flooded.fetch_add(BURST as u64, SeqCst);
                continue;
            }
            due += PERIOD;
            let message = self.next.load(SeqCst).to_ne_bytes();
            for (to, priority) in &clients {
                sender.give(*to, *priority, &message);
            }
            self.next.fetch_add(1, SeqCst);
        }
    }
}

/// A client that runs, and what it must have seen first at the latest.
struct Running {
    helper: Helper,
    sent_before: u64,
}

fn start(hosts: &Hosts, index: u16, traffic: &Traffic<'_>) -> Running {
    let helper = start_client(hosts, TEST, &(FIRST_PORT + index).to_string());
    Running {
        helper,
        sent_before: traffic.next.load(SeqCst),
    }
}

/// Kills clients and control process until the time is over; how many of each.
fn kill_at_random(
    hosts: &Hosts,
    traffic: &Traffic<'_>,
    running: &mut [Option<Running>],
    control: &mut Option<Helper>,
    (rules, limit): (&str, Duration),
) -> (u32, u32) {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    for (index, slot) in (0..CLIENTS).zip(running.iter_mut()) {
        *slot = Some(start(hosts, index, traffic));
    }
    let started = Instant::now();
    let (mut clients, mut controls) = (0, 0);
    while started.elapsed() < limit {
        if random.next_u32() % 8 == 0 {
            if let Some(control) = control.take() {
                control.kill();
            }
            std::thread::sleep(Duration::from_millis(u64::from(random.next_u32() % 100)));
            *control = Some(start_control(hosts, TEST, rules));
            controls += 1;
        } else {
            let index = SURVIVORS + random.next_u32() as u16 % (CLIENTS - SURVIVORS);
            let victim = running[usize::from(index)].take().expect("all run");
            victim.helper.kill();
            running[usize::from(index)] = Some(start(hosts, index, traffic));
            clients += 1;
        }
    }
    (clients, controls)
}

/// The number after a word of what a client said.
fn number(said: &str, word: &str) -> u64 {
    let rest = said.split(word).nth(1).expect("every client says this");
    let digits = rest.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit());
    digits[..end.unwrap_or(digits.len())].parse().unwrap()
}

#[test]
fn survivors_lose_nothing() {
    let client = |role: &str| {
        if role == "flooded" {
            let _never_reads = open_patiently(FLOODED_PORT, 2);
            return child::ready();
        }
        client(role.parse().unwrap());
    };
    let Some(hosts) = begin(client) else {
        return;
    };
    let seconds = std::env::var("TAUTLINE_FLOOD_SECONDS");
    let seconds = seconds.map_or(SECONDS_DEFAULT, |text| text.parse().unwrap());
    let rules = allow("\"10-19\", 30", "memory_bytes_max = 1000000000");
    let node = open(&hosts, Host::A, XDP);
    let traffic = Traffic {
        node: &node,
        hosts: &hosts,
        next: AtomicU64::new(0),
        flooded: AtomicU64::new(0),
        over: AtomicBool::new(false),
    };
    let mut control = Some(start_control(&hosts, TEST, &rules));
    let flooded = start_client(&hosts, TEST, "flooded");
    let mut running: Vec<Option<Running>> = (0..CLIENTS).map(|_| None).collect();
    let (clients, controls) = std::thread::scope(|scope| {
        scope.spawn(|| hosts.inside(Host::A, || traffic.run()).unwrap());
        let killed = kill_at_random(
            &hosts,
            &traffic,
            &mut running,
            &mut control,
            (&rules, Duration::from_secs(seconds)),
        );
        traffic.over.store(true, SeqCst);
        killed
    });
    let sent = traffic.next.load(SeqCst);
    println!(
        "{clients} clients and {controls} control processes killed; {sent} messages to each client, {} of the flood",
        traffic.flooded.load(SeqCst)
    );
    assert!(clients > 0);
    for running in running.into_iter().flatten() {
        let Running {
            mut helper,
            sent_before,
        } = running;
        helper.let_go();
        let said = helper.wait_for("client ");
        println!("{}", said.trim());
        assert_eq!(
            (number(&said, "gaps"), number(&said, "full")),
            (0, 0),
            "{said}"
        );
        assert!(
            number(&said, "first") <= sent_before,
            "{said}, ready at {sent_before}"
        );
        assert_eq!(number(&said, "last"), sent - 1, "{said}");
    }
    flooded.kill();
    eventually("nothing is left", || ports_given(&hosts).is_empty());
}
