//! Requests and replies with an echo on another machine, one each period: what `taut lab network` measures.
//!
//! The kernel's socket, the same with its interface tuned, the same with waits that end awake, and a port of plain UDP
//! take turns in blocks. A cycle whose reply is late does not delay the next one: the request leaves when it is due,
//! and a reply that comes in a later cycle is counted with its whole latency.

use std::io;
use std::net::{SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use serde::Serialize;
use tautline::link::PlainUdp;
use tautline::port::QueuingOptions;
use tautline::{MacAddress, Neighbour, Node, NodeConfig};
use tautline_report::LatencyHistogram;
use tautline_report::timeline::Slice;
use tautline_testbed::{interrupt, sys};

use crate::echo::Path;
use crate::path::port::PortEnd;
use crate::path::{Arrival, End, PathError, Stamp, TAG_BYTES, Waiting, udp};
use crate::rtt::Episodes;

/// The paths, in the order of tables.
pub const PATHS: [Path; 4] = [
    Path::UdpBlock,
    Path::UdpTuned,
    Path::UdpAwake,
    Path::UdpPortBlock,
];

/// Name of a path for the reader of a verdict.
pub fn path_name(path: Path) -> &'static str {
    match path {
        Path::UdpTuned => "tuned socket",
        Path::UdpAwake => "socket awake",
        Path::UdpPortBlock => "port",
        _ => "plain socket",
    }
}

/// Bytes of a request: a robot's state.
pub const PAYLOAD_BYTES: usize = 64;

/// Cycles at the start of a block that are not counted: settings have just changed, and a predictor learns the rhythm
/// anew. Lower: they are part of the tail. Higher: less of the time is measured.
const UNCOUNTED: u64 = 100;

/// Time after the end of a block in which replies are still taken. Lower: a reply that is merely late counts as lost.
/// Higher: blocks with losses take longer.
const LATE_REPLIES: Duration = Duration::from_millis(200);

/// Wait for one reply before a block. Lower: a slow peer never seems to answer. Higher: a cable whose link comes up
/// again is noticed later.
const SETTLE_LOOK: Duration = Duration::from_millis(50);

/// Echo to measure, and the cycle.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// The interface.
    pub interface: String,
    /// Address of the echo.
    pub peer: SocketAddrV4,
    /// Time from one request to the next.
    #[serde(rename = "period_ns", serialize_with = "crate::rtt::as_ns")]
    pub period: Duration,
    /// Time after which a reply is late; at most the period.
    #[serde(rename = "deadline_ns", serialize_with = "crate::rtt::as_ns")]
    pub deadline: Duration,
}

/// Result of one path alongside one load.
#[derive(Clone, Debug)]
pub struct Row {
    /// The path.
    pub path: Path,
    /// Link and mode, in one line.
    pub description: String,
    /// Cycles that were counted, those without a request among them.
    pub cycles: u64,
    /// Round trips of all replies, late ones too.
    pub histogram: LatencyHistogram,
    /// Cycles without a reply within the deadline, in rows: one disturbance makes several late.
    pub late: Episodes,
    /// Requests without any reply.
    pub lost: u64,
    /// Cycles that passed before their request could leave: this machine was late.
    pub not_sent: u64,
    /// Late replies that the kernel had in the second half of their time.
    pub late_in_transit: u64,
    /// Late replies that the kernel had in the first half of their time.
    pub late_here: u64,
    /// Time that was counted.
    pub duration: Duration,
    /// The worst round trip of each block.
    pub timeline: Vec<Slice>,
}

impl Row {
    /// An empty one.
    pub fn new(path: Path) -> Row {
        Row {
            path,
            description: String::new(),
            cycles: 0,
            histogram: LatencyHistogram::new(),
            late: Episodes::default(),
            lost: 0,
            not_sent: 0,
            late_in_transit: 0,
            late_here: 0,
            duration: Duration::ZERO,
            timeline: Vec::new(),
        }
    }

    /// The result file's part.
    pub fn json(&self) -> serde_json::Value {
        let mut json = serde_json::to_value(self.histogram.summary()).expect("plain data");
        json["path"] = self.path.name().into();
        json["description"] = self.description.as_str().into();
        json["cycles"] = self.cycles.into();
        json["p9999_ns"] = self.histogram.at_quantile(0.9999).into();
        json["late"] = self.late.count.into();
        json["late_episodes"] = self.late.episodes.into();
        json["lost"] = self.lost.into();
        json["not_sent"] = self.not_sent.into();
        json["late_in_transit"] = self.late_in_transit.into();
        json["late_here"] = self.late_here.into();
        json["duration_ns"] = (self.duration.as_nanos() as u64).into();
        json["buckets"] = serde_json::to_value(self.histogram.buckets()).expect("plain data");
        json["timeline"] = serde_json::to_value(&self.timeline).expect("plain data");
        json
    }
}

/// A reply that came later than the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// When its request was sent, on CLOCK_MONOTONIC.
    pub sent_ns: u64,
    /// Its round trip.
    pub latency_ns: u64,
    /// Part of it for which the kernel or the demux already had the reply, where the path tells.
    pub here_ns: Option<u64>,
    /// CPU of the program.
    pub cpu: u32,
}

impl Late {
    /// Whether the program was late rather than the reply.
    pub fn is_here(&self) -> bool {
        self.here_ns
            .is_some_and(|here_ns| here_ns * 2 >= self.latency_ns)
    }
}

/// An open path: its end, and link and mode in one line.
pub struct Opened {
    /// The end.
    pub end: Box<dyn End>,
    /// Description.
    pub description: String,
}

/// Opens a path of the kernel's.
pub fn open_socket(path: Path, settings: &Settings) -> Result<Opened, PathError> {
    let (interface, peer) = (&settings.interface, settings.peer);
    let end: Box<dyn End> = match path.waiting() {
        Waiting::Awake => Box::new(udp::awake_end_to(interface, peer)?),
        waiting => Box::new(udp::end_to(interface, peer, waiting)?),
    };
    let description = format!("kernel UDP, {}", path.waiting().text());
    Ok(Opened { end, description })
}

/// Opens a port of plain UDP on the interface; its demux stays attached until the end is dropped. Nothing where the
/// port would be a socket of the kernel's, and why.
pub fn open_port(
    settings: &Settings,
    peer_mac: MacAddress,
) -> Result<Result<Opened, String>, PathError> {
    const PEER: &str = "peer";
    let neighbour = Neighbour {
        mac: peer_mac,
        ..tautline::neighbour(PEER, *settings.peer.ip())
    };
    let config = NodeConfig::on(&settings.interface).with_neighbour(neighbour);
    let node = Node::open(config.expect("an empty table has room"))?;
    let report = node.report().to_string().replace('\n', ";");
    if node.report().capabilities.plain_udp != PlainUdp::PastTheStack {
        return Ok(Err(report));
    }
    let options = QueuingOptions::default();
    let mut port = node.udp(free_udp_port()?).options(&options).open()?;
    let to = port.destination(PEER, settings.peer.port())?;
    Ok(Ok(Opened {
        end: Box::new(PortEnd::new(port, to)),
        description: format!("port of plain UDP; {report}"),
    }))
}

/// Number of a UDP port that no socket of the kernel has.
fn free_udp_port() -> Result<u16, PathError> {
    let free = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.local_addr());
    Ok(free.map_err(PathError::io("find a free UDP port"))?.port())
}

/// The measuring thread's state. Requests are numbered over the whole run, so that no reply is taken for another's.
pub struct Cycles<'a> {
    settings: &'a Settings,
    began: Instant,
    number: u64,
    /// When the requests of this block were sent; nothing once one is answered.
    sent: Vec<Option<Instant>>,
}

impl<'a> Cycles<'a> {
    /// Cycles of a run that begins now.
    pub fn new(settings: &'a Settings) -> Cycles<'a> {
        Cycles {
            settings,
            began: Instant::now(),
            number: 0,
            sent: Vec::new(),
        }
    }

    /// Asks until there is a reply: whether one came within the limit. A failure is the network's answer to a request;
    /// the kernel of a peer gives few of these answers in a second.
    pub fn settle(&mut self, end: &mut dyn End, limit: Duration) -> io::Result<bool> {
        let began = Instant::now();
        let mut failure = None;
        while began.elapsed() < limit && interrupt::interrupted().is_none() {
            let payload = self.request();
            match end.round_trip(&payload, SETTLE_LOOK) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => {
                    failure = Some(error);
                    std::thread::sleep(SETTLE_LOOK);
                }
            }
        }
        failure.map_or(Ok(false), Err)
    }

    /// Runs a block of cycles and adds it to a row. `late` is told of each late reply that comes within the block, and
    /// says whether the block goes on.
    pub fn block(
        &mut self,
        end: &mut dyn End,
        count: u64,
        row: &mut Row,
        late: &mut dyn FnMut(&Late) -> bool,
    ) -> io::Result<()> {
        let first = self.number;
        self.sent.clear();
        // Room for the block, taken before it is measured.
        self.sent.reserve(count as usize);
        let mut block = Block {
            first,
            uncounted: UNCOUNTED.min(count / 5),
            deadline: self.settings.deadline,
            max_ns: 0,
            goes_on: true,
            row,
            late,
        };
        let period = self.settings.period;
        let (start, start_ns) = (Instant::now(), self.began.elapsed().as_nanos() as u64);
        let mut due = start;
        while block.goes_on && self.number - first < count && interrupt::interrupted().is_none() {
            due += period;
            let missed =
                Instant::now().saturating_duration_since(due).as_nanos() / period.as_nanos();
            for _ in 0..missed as u64 {
                due += period;
                block.not_sent(self.number - first);
            }
            end.sleep_until(due);
            self.ask(end, due + period, &mut block)?;
        }
        let counted = (self.number - first).saturating_sub(block.uncounted);
        self.take_late_replies(end, &mut block)?;
        let lost = self.sent.iter().skip(block.uncounted as usize).flatten();
        block.row.lost += lost.count() as u64;
        if counted > 0 {
            block.row.duration += period * counted as u32;
            let max_ns = block.max_ns;
            block.row.timeline.push(Slice { start_ns, max_ns });
        }
        Ok(())
    }

    /// Bytes of the next request.
    fn request(&mut self) -> [u8; PAYLOAD_BYTES] {
        let mut payload = [0; PAYLOAD_BYTES];
        payload[..TAG_BYTES].copy_from_slice(&self.number.to_le_bytes());
        self.number += 1;
        payload
    }

    /// One cycle: a request, and replies until its own has come or the next request is due.
    fn ask(&mut self, end: &mut dyn End, until: Instant, block: &mut Block<'_>) -> io::Result<()> {
        let own = self.number - block.first;
        let payload = self.request();
        let now = Instant::now();
        self.sent.push(Some(now));
        // A request that leaves late has its whole deadline all the same.
        let until = until.max(now + self.settings.deadline);
        let _no_room = passed_over(end.send(&payload))?;
        let mut is_in_time = None;
        while is_in_time.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let came = passed_over(end.wait_within(PAYLOAD_BYTES, left))?;
            if let Some(arrival) = came.flatten() {
                is_in_time = self
                    .reply(end, arrival, block)
                    .filter(|(index, _)| *index == own);
            }
        }
        block.cycle(own, is_in_time.is_some_and(|(_, is_in_time)| is_in_time));
        Ok(())
    }

    /// Takes replies that come after the last cycle, while some are missing.
    fn take_late_replies(&mut self, end: &mut dyn End, block: &mut Block<'_>) -> io::Result<()> {
        let until = Instant::now() + LATE_REPLIES;
        while self.sent.iter().any(Option::is_some) && interrupt::interrupted().is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let came = passed_over(end.wait_within(PAYLOAD_BYTES, left))?;
            if let Some(arrival) = came.flatten() {
                self.reply(end, arrival, block);
            }
        }
        Ok(())
    }

    /// Notes a reply: its place in the block, and whether it is in time. Nothing for one of an earlier block, one that
    /// came twice, or another datagram.
    fn reply(
        &mut self,
        end: &dyn End,
        arrival: Arrival,
        block: &mut Block<'_>,
    ) -> Option<(u64, bool)> {
        let now = Instant::now();
        let tag = end.message().get(..TAG_BYTES)?.try_into().ok()?;
        let index = u64::from_le_bytes(tag).checked_sub(block.first)?;
        let sent = self.sent.get_mut(index as usize)?.take()?;
        let latency = now.duration_since(sent);
        Some((index, block.reply(index, latency, arrival)))
    }
}

/// A block that runs.
struct Block<'a> {
    first: u64,
    uncounted: u64,
    deadline: Duration,
    max_ns: u64,
    goes_on: bool,
    row: &'a mut Row,
    late: &'a mut dyn FnMut(&Late) -> bool,
}

impl Block<'_> {
    fn is_counted(&self, index: u64) -> bool {
        index >= self.uncounted
    }

    fn cycle(&mut self, index: u64, is_in_time: bool) {
        if self.is_counted(index) {
            self.row.cycles += 1;
            self.row.late.add(!is_in_time);
        }
    }

    fn not_sent(&mut self, index: u64) {
        self.cycle(index, false);
        self.row.not_sent += u64::from(self.is_counted(index));
    }

    /// Counts a reply: whether it is in time.
    fn reply(&mut self, index: u64, latency: Duration, arrival: Arrival) -> bool {
        let is_in_time = latency <= self.deadline;
        if !self.is_counted(index) {
            return is_in_time;
        }
        let latency_ns = latency.as_nanos() as u64;
        self.row.histogram.record(latency_ns);
        self.max_ns = self.max_ns.max(latency_ns);
        if !is_in_time {
            let now_ns = sys::monotonic_ns();
            let late = Late {
                sent_ns: now_ns.saturating_sub(latency_ns),
                latency_ns,
                here_ns: arrival.stamp.map(|stamp| match stamp {
                    Stamp::Realtime(at_ns) => sys::realtime_ns().saturating_sub(at_ns),
                    Stamp::Monotonic(at_ns) => now_ns.saturating_sub(at_ns),
                }),
                cpu: sys::current_cpu(),
            };
            match late.is_here() {
                true => self.row.late_here += 1,
                false => self.row.late_in_transit += 1,
            }
            self.goes_on &= (self.late)(&late);
        }
        is_in_time
    }
}

/// Passes over errors by which the network reports that a request did not arrive: its reply is missing, and that is
/// counted.
fn passed_over<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable};
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => match error.kind() {
            ConnectionRefused | HostUnreachable | NetworkDown | NetworkUnreachable => Ok(None),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// An end without a network: its replies come in the order of `plan`, or never.
    struct Local {
        plan: fn(u64) -> Fate,
        sent: u64,
        first: Option<u64>,
        waiting: VecDeque<[u8; PAYLOAD_BYTES]>,
        held: VecDeque<[u8; PAYLOAD_BYTES]>,
        message: [u8; PAYLOAD_BYTES],
    }

    enum Fate {
        Answered,
        /// Comes with the next request's reply.
        Held,
        Lost,
    }

    impl End for Local {
        fn send(&mut self, message: &[u8]) -> io::Result<bool> {
            let index = self.sent;
            self.sent += 1;
            self.waiting.extend(self.held.drain(..));
            let message = message.try_into().unwrap();
            match (self.plan)(index) {
                Fate::Answered => self.waiting.push_back(message),
                Fate::Held => self.held.push_back(message),
                Fate::Lost => {}
            }
            self.first.get_or_insert(index);
            Ok(true)
        }

        fn send_back(&mut self) -> io::Result<bool> {
            unreachable!("only asks")
        }

        fn take(&mut self, _bytes: usize) -> io::Result<Option<Arrival>> {
            let Some(message) = self.waiting.pop_front() else {
                return Ok(None);
            };
            self.message = message;
            let stamp = Some(Stamp::Monotonic(sys::monotonic_ns()));
            Ok(Some(Arrival { stamp }))
        }

        fn message(&self) -> &[u8] {
            &self.message
        }

        fn wait(&mut self, bytes: usize, limit: Duration) -> io::Result<Option<Arrival>> {
            let taken = self.take(bytes)?;
            if taken.is_none() {
                std::thread::sleep(limit);
            }
            Ok(taken)
        }
    }

    fn local(plan: fn(u64) -> Fate) -> Local {
        Local {
            plan,
            sent: 0,
            first: None,
            waiting: VecDeque::new(),
            held: VecDeque::new(),
            message: [0; PAYLOAD_BYTES],
        }
    }

    fn settings() -> Settings {
        Settings {
            interface: "none".to_owned(),
            peer: "127.0.0.1:7".parse().unwrap(),
            period: Duration::from_millis(20),
            deadline: Duration::from_millis(20),
        }
    }

    fn measured(plan: fn(u64) -> Fate, count: u64) -> (Row, Vec<Late>) {
        let settings = settings();
        let mut row = Row::new(Path::UdpBlock);
        let mut late = Vec::new();
        let mut note = |one: &Late| {
            late.push(*one);
            true
        };
        let mut cycles = Cycles::new(&settings);
        let block = cycles.block(&mut local(plan), count, &mut row, &mut note);
        block.unwrap();
        (row, late)
    }

    #[test]
    fn a_lost_reply_is_one_late_cycle_and_delays_no_other() {
        let plan = |index| match index {
            7 => Fate::Lost,
            _ => Fate::Answered,
        };
        let (row, late) = measured(plan, 10);
        assert_eq!(row.lost, 1);
        // The first fifth is not counted. A machine that stalls may add late cycles, never replies.
        assert_eq!(row.histogram.count(), 7);
        assert_eq!(row.cycles, 8 + row.not_sent);
        assert_eq!(row.late.count, 1 + row.not_sent + late.len() as u64);
    }

    #[test]
    fn a_reply_of_the_next_cycle_is_late_by_a_period_and_not_lost() {
        let plan = |index| match index {
            5 => Fate::Held,
            _ => Fate::Answered,
        };
        let (row, late) = measured(plan, 10);
        assert_eq!((row.lost, row.histogram.count()), (0, 8));
        assert!(row.late.count >= 1 && !late.is_empty(), "{row:?}");
        assert!(
            late.iter()
                .any(|one| one.latency_ns >= 20_000_000 && !one.is_here())
        );
        assert_eq!(row.late_in_transit + row.late_here, late.len() as u64);
    }

    #[test]
    fn a_row_is_whole_in_its_file() {
        let (row, _) = measured(|_| Fate::Answered, 5);
        let json = row.json();
        assert_eq!(json["path"], "udp-block");
        assert_eq!(json["count"], 4);
        assert_eq!(json["lost"], 0);
        assert!(json["p9999_ns"].as_u64() <= json["max_ns"].as_u64());
    }
}
