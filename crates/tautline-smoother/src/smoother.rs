//! The smoother of an interface: set up, run, and taken away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tautline_proto::smoother::message::{Message, Report};
use tautline_proto::smoother::{
    FRAME_BYTES, INTERVAL, NODES_MAX, NodeCounts, PortCounts, Receiver, ReceiverConfig, Release,
    Sender, SenderConfig,
};
use tautline_proto::time::Instant;
use tautline_proto::wire::MacAddress;
use tautline_state::journal::{Journal, Look};
use tautline_state::netlink::Route;
use tautline_state::{Directory, policy, runtime_directory};

use crate::SmootherError;
use crate::control::{self, Ends, Frame};
use crate::counts::{SendCounts, other_bytes};
use crate::program::Programs;
use crate::queue;
use crate::setting_up::{Holding, OPEN_BPS, flush_routes, set_up};
use crate::status::{NodeStatus, Status};
use crate::sys::{self, ControlSocket};

/// Time for which traffic is held without a renewal. Shorter, and a process that the machine stops for a moment lets
/// everything go at once; longer, and a dead process holds traffic for as long.
const LEASE: Duration = Duration::from_millis(400);

/// Time between two renewals.
const RENEWAL: Duration = Duration::from_millis(100);

/// Intervals between two grants to a node that does not take part: it may begin to.
const SILENT_INTERVALS: u32 = 20;

/// Time between two writings of the status.
const STATUS_TIME: Duration = Duration::from_secs(1);

/// Longest wait at the end for held frames to leave.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(500);

/// Messages taken in one go. More would delay the grants when somebody floods the port.
const MESSAGES_MAX: usize = 64;

/// A rate is changed if it differs by more than this part. Lower, and nearly every grant costs a request to the kernel;
/// higher, and the error eats up the part of the port that is kept free.
const RATE_STEPS: u64 = 400;

/// Real-time priority of the thread: above ordinary work and tuned interfaces. Higher, and applications would wait for
/// it.
const PRIORITY: i32 = 12;

/// Longest wait for another process to end.
const END_TIME_MAX: Duration = Duration::from_secs(3);

/// A node on the same switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name, for the status.
    pub name: String,
    /// Its address.
    pub mac: MacAddress,
    /// Most bits a second of our other traffic to it, whether it grants or not; `None`: as much as it grants.
    pub limit_bps: Option<u64>,
}

/// An interface to be smoothed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Its name.
    pub interface: String,
    /// Bits a second that the switch's port in front of it takes, preamble, check sequence and gap included: what is
    /// written on the port.
    pub capacity_bps: u64,
    /// Nodes that may take part, at most 64.
    pub nodes: Vec<Node>,
}

impl Setup {
    fn check(&self) -> Result<(), SmootherError> {
        let wrong = |text: String| Err(SmootherError::Setup(text));
        if self.nodes.is_empty() {
            return wrong("there is no neighbour to smooth traffic with".to_owned());
        }
        if self.nodes.len() > NODES_MAX {
            let count = self.nodes.len();
            return wrong(format!("{count} neighbours, at most {NODES_MAX} possible"));
        }
        if !(1_000_000..=400_000_000_000).contains(&self.capacity_bps) {
            let capacity = self.capacity_bps;
            return wrong(format!(
                "a capacity of {capacity} bit/s is not that of an Ethernet port"
            ));
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let others = &self.nodes[..index];
            if node.mac.is_group() || others.iter().any(|other| other.mac == node.mac) {
                return wrong(format!(
                    "neighbour `{}` has no address of its own",
                    node.name
                ));
            }
        }
        Ok(())
    }
}

/// Name of the journal of an interface in the calling thread's network namespace.
fn journal_name(interface: &str) -> String {
    format!("{}.json", file_name(interface))
}

/// End of the names of statuses: no journal's.
const STATUS_SUFFIX: &str = ".status";

/// Name of its status.
fn status_name(interface: &str) -> String {
    format!("{}{STATUS_SUFFIX}", file_name(interface))
}

fn file_name(interface: &str) -> String {
    format!("smoother-{}-{interface}", sys::namespace_cookie())
}

/// A smoother that is set up. Dropped, it lets everything go and puts back what it changed.
#[derive(Debug)]
pub struct Smoother {
    setup: Setup,
    directory: Directory,
    journal: Journal,
    recovered: Vec<String>,
    notes: Vec<String>,
    holding: Holding,
    interface: u32,
    mac: MacAddress,
    programs: Programs,
    route: Route,
    socket: ControlSocket,
    counts: SendCounts,
    receiver: Receiver,
    sender: Sender,
    state: State,
}

/// Numbers of a run.
#[derive(Debug)]
struct State {
    epoch: u32,
    begin: Instant,
    sequences: Vec<u32>,
    releases: Vec<Release>,
    applied: Vec<Release>,
    grants_refused: Vec<u64>,
    ticks: u32,
    late_intervals: u64,
    strange_messages: u64,
    renewed: Instant,
    written: Instant,
    real_time: (Instant, u64),
    real_time_bps: u64,
}

impl Smoother {
    /// Sets everything up, first putting back what a killed process left. Nothing is held before [`run`](Self::run).
    ///
    /// # Errors
    /// [`SmootherError`]. Everything is as it was before.
    pub fn begin(setup: Setup) -> Result<Self, SmootherError> {
        setup.check()?;
        let mut route = Route::open().map_err(SmootherError::of("use netlink"))?;
        let interface = queue::interface(&mut route, &setup.interface)
            .map_err(|_| SmootherError::NoInterface(setup.interface.clone()))?;
        let mac = interface
            .mac
            .filter(|mac| !mac.is_unspecified())
            .ok_or_else(|| SmootherError::NoEthernet(setup.interface.clone()))?;
        let macs: Vec<MacAddress> = setup.nodes.iter().map(|node| node.mac).collect();
        let programs = Programs::load(&macs)?;
        let socket = ControlSocket::open(interface.index)
            .map_err(SmootherError::of("open a packet socket"))?;
        let directory = runtime_directory()?;
        let name = journal_name(&setup.interface);
        let (mut journal, recovered) =
            Journal::open_in(directory.try_clone()?, &name, "taut smooth")?;
        let mut notes = Vec::new();
        let made = set_up(&mut route, &mut journal, &setup, interface.index, &programs);
        let (holding, classes) = match made {
            Ok(made) => made,
            Err(error) => {
                journal.put_back();
                return Err(error);
            }
        };
        if !flush_routes() {
            notes.push(
                "routes cannot be flushed: connections that are open keep long segments".to_owned(),
            );
        }
        let count = setup.nodes.len();
        let now = sys::now();
        let epoch = now.as_nanos() as u32 ^ std::process::id();
        Ok(Self {
            directory,
            journal,
            recovered,
            notes,
            holding,
            interface: interface.index,
            mac,
            counts: SendCounts::new(interface.index, classes, &programs),
            programs,
            route,
            socket,
            receiver: Receiver::new(ReceiverConfig {
                capacity_bps: setup.capacity_bps,
                node_count: count,
                epoch,
            }),
            sender: Sender::new(SenderConfig {
                path_bps: setup.capacity_bps,
                receiver_count: count,
            }),
            state: State {
                epoch,
                begin: now,
                sequences: vec![0; count],
                releases: vec![Release::Unshaped; count],
                applied: vec![Release::Unshaped; count],
                grants_refused: vec![0; count],
                ticks: 0,
                late_intervals: 0,
                strange_messages: 0,
                renewed: Instant::ZERO,
                written: Instant::ZERO,
                real_time: (now, 0),
                real_time_bps: 0,
            },
            setup,
        })
    }

    /// Changes of a killed process that were put back at the beginning.
    #[must_use]
    pub fn recovered(&self) -> &[String] {
        &self.recovered
    }

    /// Parts that could not be had.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Smooths until `stop` is true.
    ///
    /// # Errors
    /// [`SmootherError`], for example because the interface is gone.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), SmootherError> {
        if let Err(error) = raise_priority() {
            self.notes.push(format!("ordinary priority: {error}"));
        }
        let slots = self.receiver.slot_count();
        let slot_time = INTERVAL / slots as u32;
        let mut slot = 0;
        let mut due = sys::now();
        while !stop.load(Ordering::Relaxed) {
            if self.wait(due)? {
                self.take_messages()?;
            }
            let now = sys::now();
            if now < due {
                continue;
            }
            if now.saturating_duration_since(due) > INTERVAL {
                self.state.late_intervals += 1;
                due = now;
            }
            if slot == 0 {
                self.tick(now)?;
            }
            self.send_grants(slot)?;
            slot = (slot + 1) % slots;
            due = due + slot_time;
        }
        Ok(())
    }

    /// Waits until a message is there, or it is time; whether one is there.
    fn wait(&self, due: Instant) -> Result<bool, SmootherError> {
        let left = due.saturating_duration_since(sys::now());
        let timeout = Timespec::try_from(left).unwrap_or_default();
        let descriptor = self.socket.descriptor();
        let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(SmootherError::of("wait for messages")(error.into())),
        }
    }

    fn take_messages(&mut self) -> Result<(), SmootherError> {
        let mut bytes = [0; sys::FRAME_BYTES];
        for _ in 0..MESSAGES_MAX {
            let received = match self.socket.receive(&mut bytes) {
                Ok(received) => received,
                // The interface is down; it may come up again.
                Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => None,
                Err(error) => return Err(SmootherError::of("receive a message")(error)),
            };
            let Some((length, arrival)) = received else {
                return Ok(());
            };
            let message = control::parse(&bytes[..length.min(bytes.len())]);
            let node = message.and_then(|(source, message)| {
                let node = self
                    .setup
                    .nodes
                    .iter()
                    .position(|node| node.mac == source)?;
                Some((node, message))
            });
            match node {
                None => self.state.strange_messages += 1,
                Some((node, Message::Grant(grant))) => {
                    match self.sender.take_grant(arrival, node, &grant) {
                        Ok(()) => {
                            self.apply_releases()?;
                            self.send_report(node, arrival, (grant.epoch, grant.number));
                        }
                        Err(_) => self.state.grants_refused[node] += 1,
                    }
                }
                Some((node, Message::Report(report))) => {
                    self.receiver.take_report(arrival, node, &report);
                }
            }
        }
        Ok(())
    }

    fn ends(&self, node: usize) -> Ends {
        Ends {
            from: self.mac,
            to: self.setup.nodes[node].mac,
        }
    }

    fn send(&mut self, frame: &Frame) {
        // A frame that is not sent is one of those that may be lost.
        let _sent = self.socket.send(frame.bytes());
    }

    fn next_sequence(&mut self, node: usize) -> u32 {
        let sequence = &mut self.state.sequences[node];
        *sequence = sequence.wrapping_add(1);
        sequence.wrapping_sub(1)
    }

    fn send_report(&mut self, node: usize, arrival: Instant, (epoch, number): (u32, u32)) {
        // As the last interval left it: looking anew for each report would cost a request to the kernel.
        let class = self.counts.of_class[node];
        let sequence = self.next_sequence(node);
        let report = Report {
            epoch,
            number,
            sender_epoch: self.state.epoch,
            backlog_bytes: class.backlog_bytes,
            held: sys::now().saturating_duration_since(arrival),
            other_bytes: other_bytes(&class),
            real_time_bytes: self.counts.real_time_bytes(),
        };
        let frame = Frame::report(self.ends(node), sequence, &report);
        self.send(&frame);
    }

    fn send_grants(&mut self, slot: usize) -> Result<(), SmootherError> {
        let now = sys::now();
        for node in self.receiver.nodes_of_slot(slot) {
            let takes_part = self.receiver.view(now, node).takes_part;
            if takes_part || self.state.ticks % SILENT_INTERVALS == node as u32 % SILENT_INTERVALS {
                let sequence = self.next_sequence(node);
                let grant = self.receiver.grant(sys::now(), node);
                let frame = Frame::grant(self.ends(node), sequence, &grant);
                self.send(&frame);
            }
        }
        Ok(())
    }

    fn tick(&mut self, now: Instant) -> Result<(), SmootherError> {
        self.state.ticks = self.state.ticks.wrapping_add(1);
        let applied = &self.state.applied;
        self.counts
            .read(&mut self.route, &self.programs, |node| {
                applied[node] != Release::Unshaped
            })
            .map_err(SmootherError::of("read the counts of the interface"))?;
        let port = PortCounts {
            all_bytes: self.counts.interface.received,
            foreign_bytes: self.counts.other.received_from_others(),
        };
        let counts: Vec<NodeCounts> = (0..self.setup.nodes.len())
            .map(|node| NodeCounts {
                other_bytes: self.counts.other.received(node),
                real_time_bytes: self.receiver.reported_real_time_bytes(node),
                lost_frames: 0,
            })
            .collect();
        self.receiver.tick(now, &port, &counts);
        self.measure_real_time(now);
        self.apply_releases()?;
        self.renew_leases(now)?;
        if now.saturating_duration_since(self.state.written) >= STATUS_TIME {
            self.state.written = now;
            // The port of the switch has the speed of the link.
            let speed_bps = sys::link_speed_bps(self.interface).unwrap_or(u64::MAX);
            self.receiver
                .set_capacity(self.setup.capacity_bps.min(speed_bps));
            self.write_status()?;
        }
        Ok(())
    }

    /// Rate of this node's own real-time traffic, over a tenth of a second.
    fn measure_real_time(&mut self, now: Instant) {
        let (then, before) = self.state.real_time;
        let elapsed = now.saturating_duration_since(then);
        if elapsed >= RENEWAL {
            let bytes = self.counts.real_time_bytes();
            let bits = u128::from(bytes.saturating_sub(before)) * 8_000_000_000;
            self.state.real_time_bps = u64::try_from(bits / elapsed.as_nanos()).unwrap_or(u64::MAX);
            self.state.real_time = (now, bytes);
        }
    }

    /// Puts the rates in force that grants, silence and our own path allow now.
    fn apply_releases(&mut self) -> Result<(), SmootherError> {
        let state = &mut self.state;
        self.sender
            .releases(sys::now(), state.real_time_bps, &mut state.releases);
        for node in 0..state.releases.len() {
            let release = limited(state.releases[node], self.setup.nodes[node].limit_bps);
            if is_as_good(release, state.applied[node]) {
                continue;
            }
            let (rate_bps, burst_bytes) = match release {
                Release::Unshaped => (OPEN_BPS, FRAME_BYTES),
                Release::AtMost {
                    rate_bps,
                    burst_bytes,
                } => (rate_bps, burst_bytes),
            };
            self.counts
                .class(node)
                .set(&mut self.route, rate_bps, burst_bytes)
                .map_err(SmootherError::of("change a class"))?;
            let begins_or_ends =
                (release == Release::Unshaped) != (state.applied[node] == Release::Unshaped);
            state.applied[node] = release;
            if begins_or_ends {
                state.renewed = Instant::ZERO;
            }
        }
        Ok(())
    }

    fn renew_leases(&mut self, now: Instant) -> Result<(), SmootherError> {
        if now.saturating_duration_since(self.state.renewed) < RENEWAL {
            return Ok(());
        }
        self.state.renewed = now;
        for (node, applied) in self.state.applied.iter().enumerate() {
            let until = match applied {
                Release::Unshaped => 0,
                Release::AtMost { .. } => (now + LEASE).as_nanos(),
            };
            self.programs
                .hold_until(node, until)
                .map_err(|error| SmootherError::Program(error.to_string()))?;
        }
        Ok(())
    }

    /// State for those who look.
    #[must_use]
    pub fn status(&self) -> Status {
        let now = sys::now();
        let capacity = self.receiver.capacity();
        let nodes = self.setup.nodes.iter().enumerate();
        Status {
            interface: self.setup.interface.clone(),
            pid: std::process::id(),
            holding: self.holding.name().to_owned(),
            seconds: now.saturating_duration_since(self.state.begin).as_secs(),
            capacity_bps: capacity.configured_bps(),
            believed_bps: capacity.bps(),
            corrections: capacity.corrections(),
            arrived_bps: self.receiver.arrived_bps(),
            foreign_bps: self.receiver.foreign_bps(),
            real_time_sent_bps: self.state.real_time_bps,
            late_intervals: self.state.late_intervals,
            strange_messages: self.state.strange_messages,
            nodes: nodes
                .map(|(index, node)| self.node_status(now, index, node))
                .collect(),
        }
    }

    fn node_status(&self, now: Instant, index: usize, node: &Node) -> NodeStatus {
        let view = self.receiver.view(now, index);
        let class = self.counts.of_class[index];
        NodeStatus {
            name: node.name.clone(),
            takes_part: view.takes_part,
            granted_bps: view.granted_bps,
            other_bps: view.other_bps,
            real_time_bps: view.real_time_bps,
            backlog_bytes: view.backlog_bytes,
            wait_us: view.wait.as_micros() as u64,
            refused: view.refused,
            held_to_bps: match self.state.applied[index] {
                Release::Unshaped => None,
                Release::AtMost { rate_bps, .. } => Some(rate_bps),
            },
            own_backlog_bytes: class.backlog_bytes,
            own_drops: class.drops,
            grants_refused: self.state.grants_refused[index],
        }
    }

    fn write_status(&self) -> Result<(), SmootherError> {
        let text = serde_json::to_vec(&self.status()).expect("numbers and names are JSON");
        self.directory
            .write(status_name(&self.setup.interface), &text, 0o644)?;
        Ok(())
    }

    /// Lets everything go: nothing more is held, and what waits leaves.
    fn let_go(&mut self) {
        for node in 0..self.setup.nodes.len() {
            let _no_longer = self.programs.hold_until(node, 0);
            let class = self.counts.class(node);
            let _open = class.set(&mut self.route, OPEN_BPS, FRAME_BYTES);
        }
        let end = sys::now() + DRAIN_TIME_MAX;
        for node in 0..self.setup.nodes.len() {
            while sys::now() < end {
                match self.counts.read_class(&mut self.route, node) {
                    Ok(counts) if counts.backlog_bytes > 0 => {
                        thread::sleep(Duration::from_millis(2));
                    }
                    _ => break,
                }
            }
        }
    }
}

impl Drop for Smoother {
    fn drop(&mut self) {
        self.let_go();
        self.journal.put_back();
        let _ = self.directory.remove(status_name(&self.setup.interface));
    }
}

/// Whether what is in force differs so little that changing the class is not worth a request to the kernel.
fn is_as_good(wanted: Release, applied: Release) -> bool {
    match (wanted, applied) {
        (
            Release::AtMost {
                rate_bps: wanted,
                burst_bytes,
            },
            Release::AtMost {
                rate_bps: applied,
                burst_bytes: applied_burst,
            },
        ) => burst_bytes == applied_burst && wanted.abs_diff(applied) <= applied / RATE_STEPS,
        (wanted, applied) => wanted == applied,
    }
}

/// Treatment of other traffic to a node, within the limit that was set by hand.
fn limited(release: Release, limit_bps: Option<u64>) -> Release {
    match (release, limit_bps) {
        (release, None) => release,
        (Release::Unshaped, Some(rate_bps)) => Release::AtMost {
            rate_bps,
            burst_bytes: FRAME_BYTES,
        },
        (
            Release::AtMost {
                rate_bps,
                burst_bytes,
            },
            Some(limit_bps),
        ) => Release::AtMost {
            rate_bps: rate_bps.min(limit_bps),
            burst_bytes,
        },
    }
}

fn raise_priority() -> std::io::Result<()> {
    policy::set_policy(0, libc::SCHED_FIFO, PRIORITY)
}

/// Process that smooths an interface of the calling thread's network namespace.
///
/// # Errors
/// The journal cannot be read.
pub fn holder(directory: &Directory, interface: &str) -> Result<Option<u32>, SmootherError> {
    let look = Look::at(directory, &journal_name(interface))?;
    Ok(look.and_then(|look| look.holder))
}

impl Status {
    /// The status of an interface; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of(directory: &Directory, interface: &str) -> Result<Option<Status>, SmootherError> {
        Ok(crate::read_status(directory, &status_name(interface))?)
    }

    /// The statuses of all interfaces of the calling thread's network namespace, and of each whether its process lives.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn all(directory: &Directory) -> Result<Vec<(Status, bool)>, SmootherError> {
        let prefix = file_name("");
        let mut found = Vec::new();
        for entry in directory.entries()? {
            let interface = entry.name.to_str().and_then(|name| {
                let name = name.strip_prefix(&prefix)?.strip_suffix(STATUS_SUFFIX)?;
                Some(name.to_owned())
            });
            let Some(interface) = interface else { continue };
            if let Some(status) = Status::of(directory, &interface)? {
                let lives = holder(directory, &interface)? == Some(status.pid);
                found.push((status, lives));
            }
        }
        found.sort_by(|one, other| one.0.interface.cmp(&other.0.interface));
        Ok(found)
    }
}

/// Ends the smoother of an interface and waits for it, or puts back what a killed one left. Returns what was done, as
/// text; nothing if there was nothing.
///
/// # Errors
/// [`SmootherError`].
pub fn end(interface: &str) -> Result<Vec<String>, SmootherError> {
    let directory = runtime_directory()?;
    let mut done = Vec::new();
    if let Some(pid) = holder(&directory, interface)? {
        let number = i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let descriptor = number.map(|number| pidfd_open(number, PidfdFlags::empty()));
        // Asked again with the descriptor open: then it is the process of the descriptor that holds the journal.
        if let Some(Ok(descriptor)) = descriptor
            && holder(&directory, interface)? == Some(pid)
        {
            pidfd_send_signal(&descriptor, Signal::TERM)
                .map_err(|error| SmootherError::of("end the process")(error.into()))?;
            let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
            let timeout = Timespec::try_from(END_TIME_MAX).unwrap_or_default();
            let _ended = poll(&mut polled, Some(&timeout));
        }
        if holder(&directory, interface)?.is_none() {
            done.push(format!("process {pid} ended"));
        } else {
            return Err(SmootherError::Failed {
                action: "end the process that smooths",
                source: std::io::ErrorKind::TimedOut.into(),
            });
        }
    }
    done.extend(Journal::recover_in(&directory, &journal_name(interface))?);
    let _ = directory.remove(status_name(interface));
    Ok(done)
}
