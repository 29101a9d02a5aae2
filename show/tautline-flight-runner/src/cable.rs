//! The second node of a flight: a network namespace with the pilot, a switch's port of 100 Mbit/s, and the craft's
//! namespace. TCP fills the port while the loads run. With ports come the control process of the craft's interface,
//! which is killed in flight, and the smoother on both nodes. Nodes, control process and smoothers last for several
//! flights, each of which has a pilot and a receiver of its own.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tautline_flight::message::Order;
use tautline_testbed::child::{start_at_nice, tie_by};
use tautline_testbed::hosts::cell::{Cell, INTERFACE, Port};

use crate::child::{Said, Started};
use crate::course::Course;
use crate::part::Part;
use crate::radio::{
    End, FRAME_NS, Heard, PRIORITY, PilotLine, PilotSettings, ReceiverSettings, Reception, Sent,
};
use crate::record::Variant;
use crate::show::Settings;
use crate::wire::Means;

/// The switch's port: bits a second, and frames that wait there.
const PORT_BPS: u64 = 100_000_000;
const PORT_FRAMES: u32 = 64;
/// Node of the pilot in the cell.
const PILOT: usize = 0;
/// Moment at which the control process is killed, seconds from the world's start.
const CONTROL_KILLED_AT: f64 = 6.3;
/// Time from the kill of a control process to the start of its successor.
const SUCCESSOR_AFTER: Duration = Duration::from_secs(1);
/// Nice value of control process and smoothers, that of the systemd unit too. Ordinary: beside a fork storm, a
/// successor needs 15 s to start, and not 1.5, because it waits for its turn behind every process of the load.
const CONTROL_NICE: i32 = -20;
/// Time between two looks for a control process that begins.
const LOOK: Duration = Duration::from_millis(20);
/// Time that a part has to begin, and to report.
const PATIENCE: Duration = Duration::from_secs(10);

/// The remote control's way over the network in one flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemoteRecord {
    /// Link at the receiver.
    pub link: String,
    /// Whether the smoother held TCP.
    pub is_smoothed: bool,
    /// Frames: moment of sending in seconds from the world's start, and age at the receiver in nanoseconds, if it came.
    pub frames: Vec<(f64, Option<u64>)>,
    /// Bytes of TCP that came through beside them.
    pub stream_bytes: u64,
    /// Kill of the control process, and the start of its successor, in seconds from the world's start.
    pub control_killed: Option<(f64, f64)>,
}

/// Counts of a stretch of a flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RemoteCounts {
    /// Frames that were sent.
    pub sent: u64,
    /// Frames that never came.
    pub lost: u64,
    /// Frames that came after the next one was due.
    pub late: u64,
    /// Oldest at its arrival.
    pub age_ns_max: u64,
}

impl RemoteRecord {
    /// Counts between two moments.
    #[must_use]
    pub fn counts(&self, from: f64, until: f64) -> RemoteCounts {
        let mut counts = RemoteCounts::default();
        for (_, age) in self
            .frames
            .iter()
            .filter(|(at, _)| (from..until).contains(at))
        {
            counts.sent += 1;
            counts.lost += u64::from(age.is_none());
            counts.late += u64::from(age.is_some_and(|age| age > FRAME_NS));
            counts.age_ns_max = counts.age_ns_max.max(age.unwrap_or(0));
        }
        counts
    }
}

/// Life of the control process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// It serves clients.
    Serves,
    /// It was killed, and has no successor.
    Dead,
    /// Its successor has been started.
    Begins,
}

/// Both ends of the remote control in one flight.
struct Ends {
    receiver: Started,
    pilot: Started,
    reception: Reception,
}

/// The nodes and their processes.
pub(crate) struct Cable {
    settings: Settings,
    cell: Cell,
    home: PathBuf,
    is_ours: bool,
    control: Option<Started>,
    life: Control,
    /// Moment of the control process's last end.
    ended: Instant,
    smoothers: Vec<Started>,
    ends: Option<Ends>,
    flood: Option<Started>,
    start_ns: u64,
    killed_at: Option<f64>,
    again_at: Option<f64>,
}

impl Cable {
    /// Makes the nodes and starts their processes, with files in a directory; the reason if this machine cannot.
    pub(crate) fn lay(settings: &Settings, variant: Variant, home: &Path) -> Result<Cable, String> {
        let port = Port {
            rate_bps: PORT_BPS,
            queue_frames: PORT_FRAMES,
            priorities: false,
        };
        let cell = Cell::create(1, &port).map_err(|error| error.to_string())?;
        Self::with(settings, variant, home, cell).map_err(|error| error.to_string())
    }

    fn with(settings: &Settings, variant: Variant, home: &Path, cell: Cell) -> io::Result<Cable> {
        let is_ours = variant.is_ours();
        let craft = cell.receiver();
        let mut cable = Cable {
            settings: settings.clone(),
            cell,
            home: home.to_owned(),
            is_ours,
            control: None,
            life: Control::Serves,
            ended: Instant::now(),
            smoothers: Vec::new(),
            ends: None,
            flood: None,
            start_ns: 0,
            killed_at: None,
            again_at: None,
        };
        if is_ours {
            for (name, peer) in [("craft", PILOT), ("pilot", craft)] {
                let text = configuration(&cable.cell, peer);
                fs::write(cable.home.join(format!("{name}.toml")), text)?;
            }
            cable.control = Some(cable.command(craft, &["node", "run"], "craft.toml")?);
            for (node, file) in [(craft, "craft.toml"), (PILOT, "pilot.toml")] {
                let smoother = cable.command(node, &["smooth", "run"], file)?;
                cable.smoothers.push(smoother);
            }
            for one in cable.control.iter().chain(&cable.smoothers) {
                begun(one)?;
            }
        }
        Ok(cable)
    }

    /// Starts a flight's pilot and receiver. `is_told` has the receiver tell of its frames meanwhile.
    pub(crate) fn fly(
        &mut self,
        means: &Means,
        course: Course,
        seed: u64,
        is_told: bool,
    ) -> io::Result<()> {
        let craft = self.cell.receiver();
        let receiver = Part::Receiver(ReceiverSettings {
            end: end(&self.cell, craft, PILOT, self.is_ours),
            means: means.clone(),
            is_told,
        });
        let pilot = Part::Pilot(PilotSettings {
            end: end(&self.cell, PILOT, craft, self.is_ours),
            course,
            seed,
        });
        let start = |part: Part| match self.is_ours {
            true => Started::urgent_part(&self.settings.part_command, &part, PRIORITY),
            // As ordinary programs start.
            false => Started::part(&self.settings.part_command, &part),
        };
        self.ends = Some(Ends {
            receiver: start(receiver)?,
            pilot: start(pilot)?,
            reception: Reception::default(),
        });
        Ok(())
    }

    /// Tells the pilot the start of the world's time.
    pub(crate) fn begin(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
        self.tell(PilotLine::Start(start_ns));
    }

    /// Has the pilot give an order.
    pub(crate) fn order(&mut self, order: Order) {
        self.tell(PilotLine::Order(order));
    }

    fn tell(&mut self, line: PilotLine) {
        if let (Some(ends), Ok(text)) = (&mut self.ends, serde_json::to_string(&line)) {
            // A pilot that has ended sends nothing, which the craft notices.
            ends.pilot.tell(&text);
        }
    }

    /// Frames of this flight so far, as the receiver tells them.
    pub(crate) fn reception(&mut self) -> Reception {
        let Some(ends) = &mut self.ends else {
            return Reception::default();
        };
        while let Said::Line(line) = ends.receiver.said() {
            ends.reception = serde_json::from_str(&line).unwrap_or(ends.reception);
        }
        ends.reception
    }

    /// Ends a flight's pilot and receiver.
    pub(crate) fn land(&mut self) {
        self.ends = None;
    }

    /// Fills the cable, or ends that.
    pub(crate) fn fill(&mut self, is_full: bool) -> io::Result<()> {
        if is_full == self.flood.is_some() {
            return Ok(());
        }
        let end = end(&self.cell, PILOT, self.cell.receiver(), self.is_ours);
        let part = Part::Flood(end);
        let start = || Started::part(&self.settings.part_command, &part);
        self.flood = is_full.then(start).transpose()?;
        Ok(())
    }

    /// Life of the control process.
    pub(crate) fn control(&self) -> Control {
        self.life
    }

    /// Kills the control process; its successor starts after a second.
    pub(crate) fn kill_control(&mut self) {
        if let Some(mut control) = self.control.take() {
            control.kill();
            (self.life, self.ended) = (Control::Dead, Instant::now());
        }
    }

    /// Starts a successor when it is time, and returns what has changed.
    pub(crate) fn tend(&mut self) -> io::Result<Option<Control>> {
        let before = self.life;
        match self.life {
            Control::Dead if self.ended.elapsed() >= SUCCESSOR_AFTER => {
                let craft = self.cell.receiver();
                self.control = Some(self.command(craft, &["node", "run"], "craft.toml")?);
                self.life = Control::Begins;
            }
            Control::Begins => match self.control.as_ref().map(Started::said) {
                Some(Said::Line(_)) => self.life = Control::Serves,
                Some(Said::Ended) => {
                    self.control = None;
                    (self.life, self.ended) = (Control::Dead, Instant::now());
                }
                _ => {}
            },
            _ => {}
        }
        Ok((self.life != before).then_some(self.life))
    }

    /// Waits for a control process that serves, as a receiver that starts needs one.
    pub(crate) fn wait_for_control(&mut self) -> io::Result<()> {
        let end = Instant::now() + PATIENCE;
        while self.life != Control::Serves && Instant::now() < end {
            self.tend()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Kills the control process when it is time, and starts its successor.
    pub(crate) fn advance(&mut self, at: f64) -> io::Result<()> {
        if !self.is_ours {
            return Ok(());
        }
        if self.killed_at.is_none() && at >= CONTROL_KILLED_AT {
            self.kill_control();
            self.killed_at = Some(at);
        }
        if self.tend()? == Some(Control::Begins) {
            self.again_at.get_or_insert(at);
        }
        Ok(())
    }

    /// Ends the traffic and tells how it went. Control process and smoothers end when this is dropped, which takes long
    /// beside loads.
    pub(crate) fn report(&mut self) -> RemoteRecord {
        // First: the last frames are to come beside nothing.
        self.flood = None;
        let (mut sent, mut heard) = (Sent::default(), Heard::default());
        if let Some(mut ends) = self.ends.take() {
            drop(ends.pilot.input());
            sent = report(&ends.pilot);
            drop(ends.receiver.input());
            heard = report(&ends.receiver);
        }
        let ages: std::collections::HashMap<u32, u64> = heard.frames.iter().copied().collect();
        let start = self.start_ns;
        let frames = sent.at_ns.iter().zip(1u32..);
        let frames = frames.filter(|(at, _)| start > 0 && **at >= start);
        RemoteRecord {
            link: heard.link,
            is_smoothed: self.is_ours,
            frames: frames
                .map(|(at, count)| ((at - start) as f64 * 1e-9, ages.get(&count).copied()))
                .collect(),
            stream_bytes: heard.stream_bytes,
            control_killed: self.killed_at.zip(self.again_at),
        }
    }

    /// A command of `taut` at a node, with a configuration.
    fn command(&self, node: usize, words: &[&str], file: &str) -> io::Result<Started> {
        let mut command = Command::new(&self.settings.taut);
        command
            .args(words)
            .arg("--config")
            .arg(self.home.join(file));
        // They put back what they changed should this process be killed.
        tie_by(&mut command, Some(self.cell.namespace(node)), Signal::TERM);
        Started::command(start_at_nice(&mut command, CONTROL_NICE))
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // They put back what they changed.
        for mut one in self.smoothers.drain(..).chain(self.control.take()) {
            one.end(PATIENCE);
        }
    }
}

/// Report of a process that has been told to end; none from one that cannot any more.
fn report<R: Default + serde::de::DeserializeOwned>(process: &Started) -> R {
    while let Said::Line(line) = process.line(PATIENCE) {
        if let Ok(report) = serde_json::from_str(&line) {
            return report;
        }
    }
    R::default()
}

/// Configuration of a node's control process and smoother, whose neighbour is another node.
fn configuration(cell: &Cell, peer: usize) -> String {
    let mac = cell.mac(peer).map(|byte| format!("{byte:02x}")).join(":");
    format!(
        "interface = \"{INTERFACE}\"\n[[neighbour]]\nname = \"peer\"\nmac = \"{mac}\"\n\
         [smoother]\ncapacity_bps = {PORT_BPS}\n"
    )
}

/// Waits until a command says that it has begun.
fn begun(command: &Started) -> io::Result<()> {
    match command.line(PATIENCE) {
        Said::Line(_) => Ok(()),
        _ => Err(io::Error::other(
            "the control process or the smoother has not begun",
        )),
    }
}

fn end(cell: &Cell, node: usize, peer: usize, has_ports: bool) -> End {
    let file = cell.namespace(node);
    End {
        namespace: format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into(),
        peer_mac: cell.mac(peer),
        peer: cell.address(peer),
        has_ports,
    }
}
