//! The sending half: holds other traffic to what was granted, and reports.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, Thread};
use std::time::Duration;

use tautline_proto::smoother::message::{Message, Report};
use tautline_proto::smoother::{FRAME_BYTES, INTERVAL, Release, Sender, SenderConfig};
use tautline_proto::time::Instant;
use tautline_state::netlink::Route;

use crate::counts::{SendCounts, other_bytes};
use crate::peers::wait;
use crate::program::Programs;
use crate::setting_up::OPEN_BPS;
use crate::shared::{Part, STATUS, Shared};
use crate::status::{NodeStatus, Status};
use crate::sys::{self, ControlSocket};
use crate::{Setup, SmootherError};

/// Time between two looks at what happens without a grant: receivers that fall silent, limits by hand.
const ROUND: Duration = Duration::from_millis(20);

/// Time over which this node's own real-time traffic is measured.
const REAL_TIME: Duration = Duration::from_millis(100);

/// Longest wait at the end for held frames to leave.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(500);

/// A rate is changed if it differs by more than this part. Lower, and nearly every grant costs a request to the kernel;
/// higher, and the error eats up the part of the port that is kept free.
const RATE_STEPS: u64 = 400;

/// The sending half.
#[derive(Debug)]
pub(crate) struct Sending {
    shared: Arc<Shared>,
    setup: Setup,
    socket: ControlSocket,
    route: Route,
    programs: Arc<Programs>,
    counts: SendCounts,
    sender: Sender,
    epoch: u32,
    begin: Instant,
    releases: Vec<Release>,
    applied: Vec<Release>,
    /// The newest grant of each node that no report has confirmed yet.
    heard: Vec<Option<Heard>>,
    grants_refused: Vec<u64>,
    strange_messages: u64,
    looked: Instant,
    told: Instant,
    real_time: (Instant, u64),
    real_time_bps: u64,
}

/// A grant that is to be confirmed.
#[derive(Clone, Copy, Debug)]
struct Heard {
    epoch: u32,
    number: u32,
    arrival: Instant,
}

/// Parts of a [`Sending`].
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) shared: Arc<Shared>,
    pub(crate) setup: Setup,
    pub(crate) socket: ControlSocket,
    pub(crate) route: Route,
    pub(crate) programs: Arc<Programs>,
    pub(crate) counts: SendCounts,
    pub(crate) epoch: u32,
}

impl Sending {
    pub(crate) fn new(parts: Parts) -> Self {
        let count = parts.setup.nodes.len();
        let now = sys::now();
        Self {
            sender: Sender::new(SenderConfig {
                path_bps: parts.setup.capacity_bps,
                receiver_count: count,
            }),
            shared: parts.shared,
            setup: parts.setup,
            socket: parts.socket,
            route: parts.route,
            programs: parts.programs,
            counts: parts.counts,
            epoch: parts.epoch,
            begin: now,
            releases: vec![Release::Unshaped; count],
            applied: vec![Release::Unshaped; count],
            heard: vec![None; count],
            grants_refused: vec![0; count],
            strange_messages: 0,
            looked: Instant::ZERO,
            told: Instant::ZERO,
            real_time: (now, 0),
            real_time_bps: 0,
        }
    }

    /// Holds and reports until `stops` says so, and tells the thread that writes the status.
    pub(crate) fn run(
        &mut self,
        stops: impl Fn() -> bool,
        writer: &Thread,
    ) -> Result<(), SmootherError> {
        let mut due = sys::now();
        while !stops() {
            if wait(&self.socket, due)? {
                self.take_grants()?;
            }
            let now = sys::now();
            self.shared.sending_lives(now);
            if now >= due {
                due = now + ROUND;
                self.come_round(now, writer)?;
            }
        }
        self.shared.write_cpu_time(Part::Sending);
        Ok(())
    }

    fn take_grants(&mut self) -> Result<(), SmootherError> {
        let (sender, heard, refused) =
            (&mut self.sender, &mut self.heard, &mut self.grants_refused);
        let take = |node: usize, arrival, message| {
            let Message::Grant(grant) = message else {
                return;
            };
            match sender.take_grant(arrival, node, &grant) {
                Ok(()) => {
                    heard[node] = Some(Heard {
                        epoch: grant.epoch,
                        number: grant.number,
                        arrival,
                    });
                }
                Err(_) => refused[node] += 1,
            }
        };
        self.strange_messages += self.shared.peers.receive(&self.socket, take)?;
        if self.heard.iter().all(Option::is_none) {
            return Ok(());
        }
        // Only the newest grant of several that waited is put in force, and confirmed.
        self.apply_releases()?;
        // Several receivers grant at nearly one time: one look is enough for their reports.
        let age = sys::now().saturating_duration_since(self.looked);
        if age >= INTERVAL / 2 {
            self.look()?;
        }
        for node in 0..self.heard.len() {
            if let Some(heard) = self.heard[node].take() {
                self.send_report(node, heard);
            }
        }
        Ok(())
    }

    fn send_report(&self, node: usize, heard: Heard) {
        let class = self.counts.of_class[node];
        let report = Report {
            epoch: heard.epoch,
            number: heard.number,
            sender_epoch: self.epoch,
            backlog_bytes: class.backlog_bytes,
            held: sys::now().saturating_duration_since(heard.arrival),
            other_bytes: other_bytes(&class),
            real_time_bytes: self.counts.real_time_bytes(),
        };
        self.shared.peers.send_report(&self.socket, node, &report);
    }

    fn look(&mut self) -> Result<(), SmootherError> {
        self.counts
            .read(&mut self.route, &self.programs)
            .map_err(SmootherError::counts)?;
        let now = sys::now();
        self.looked = now;
        let (then, before) = self.real_time;
        let elapsed = now.saturating_duration_since(then);
        if elapsed >= REAL_TIME {
            let bytes = self.counts.real_time_bytes();
            let bits = u128::from(bytes.saturating_sub(before)) * 8_000_000_000;
            self.real_time_bps = u64::try_from(bits / elapsed.as_nanos()).unwrap_or(u64::MAX);
            self.real_time = (now, bytes);
        }
        Ok(())
    }

    fn come_round(&mut self, now: Instant, writer: &Thread) -> Result<(), SmootherError> {
        self.apply_releases()?;
        if now.saturating_duration_since(self.looked) >= ROUND {
            self.look()?;
        }
        if now.saturating_duration_since(self.told) >= STATUS {
            self.told = now;
            self.shared.write_cpu_time(Part::Sending);
            self.shared.tell(self.status(now));
            writer.unpark();
        }
        Ok(())
    }

    /// Puts the rates in force that grants, silence and our own path allow now.
    fn apply_releases(&mut self) -> Result<(), SmootherError> {
        self.sender
            .releases(sys::now(), self.real_time_bps, &mut self.releases);
        for node in 0..self.releases.len() {
            let release = limited(self.releases[node], self.setup.nodes[node].limit_bps);
            if is_as_good(release, self.applied[node]) {
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
            self.applied[node] = release;
            self.shared.held[node].store(release != Release::Unshaped, Ordering::Relaxed);
        }
        Ok(())
    }

    fn status(&self, now: Instant) -> Status {
        let view = self.shared.view();
        let nodes = self.setup.nodes.iter().zip(&view.nodes).enumerate();
        Status {
            interface: self.setup.interface.clone(),
            process: std::process::id(),
            seconds: now.saturating_duration_since(self.begin).as_secs(),
            cpu_us: self.shared.cpu_time().as_micros() as u64,
            notes: self.shared.notes(),
            capacity_bps: view.capacity_bps,
            believed_bps: view.believed_bps,
            corrections: view.corrections,
            arrived_bps: view.arrived_bps,
            foreign_bps: view.foreign_bps,
            real_time_sent_bps: self.real_time_bps,
            late_intervals: view.late_intervals,
            strange_messages: view.strange_messages + self.strange_messages,
            nodes: nodes
                .map(|(index, (node, view))| {
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
                        held_to_bps: match self.applied[index] {
                            Release::Unshaped => None,
                            Release::AtMost { rate_bps, .. } => Some(rate_bps),
                        },
                        own_backlog_bytes: class.backlog_bytes,
                        own_drops: class.drops,
                        grants_refused: self.grants_refused[index],
                    }
                })
                .collect(),
        }
    }

    /// Lets everything go that waits.
    pub(crate) fn let_go(&mut self) {
        for node in 0..self.setup.nodes.len() {
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
