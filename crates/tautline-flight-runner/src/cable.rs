//! The second node of a flight: a network namespace with the pilot, a switch's port of 100 Mbit/s, and the craft's
//! namespace. TCP fills the port while the loads run. With ports come the control process of the craft's interface,
//! which is killed in flight, and the smoother on both nodes.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tautline_testbed::child::tie;
use tautline_testbed::hosts::cell::{Cell, INTERFACE, Port};

use crate::child::{Said, Started};
use crate::course::Course;
use crate::part::Part;
use crate::radio::{End, FRAME_NS, Heard, PilotSettings, ReceiverSettings, Sent};
use crate::record::Variant;
use crate::show::Settings;
use crate::wire::Means;

/// The switch's port: bits a second, and frames that wait there.
const PORT_BPS: u64 = 100_000_000;
const PORT_FRAMES: u32 = 64;
/// Node of the pilot in the cell.
const PILOT: usize = 0;
/// Moment at which the control process is killed, and that of its successor, seconds from the world's start.
pub(crate) const CONTROL_KILLED_AT: f64 = 6.3;
pub(crate) const CONTROL_AGAIN_AT: f64 = 7.3;
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

/// The nodes and their processes.
pub(crate) struct Cable {
    settings: Settings,
    cell: Cell,
    home: PathBuf,
    is_ours: bool,
    control: Option<Started>,
    smoothers: Vec<Started>,
    receiver: Started,
    pilot: Started,
    flood: Option<Started>,
    start_ns: u64,
    killed_at: Option<f64>,
    again_at: Option<f64>,
}

impl Cable {
    /// Makes the nodes and starts their processes; the reason if this machine cannot.
    pub(crate) fn lay(
        settings: &Settings,
        variant: Variant,
        means: &Means,
        home: &Path,
    ) -> Result<Cable, String> {
        let port = Port {
            rate_bps: PORT_BPS,
            queue_frames: PORT_FRAMES,
            priorities: false,
        };
        let cell = Cell::create(1, &port).map_err(|error| error.to_string())?;
        Self::with(settings, variant, means, home, cell).map_err(|error| error.to_string())
    }

    fn with(
        settings: &Settings,
        variant: Variant,
        means: &Means,
        home: &Path,
        cell: Cell,
    ) -> io::Result<Cable> {
        let is_ours = variant.is_ours();
        let craft = cell.receiver();
        let (mut control, mut smoothers) = (None, Vec::new());
        if is_ours {
            for (name, peer) in [("craft", PILOT), ("pilot", craft)] {
                fs::write(
                    home.join(format!("{name}.toml")),
                    configuration(&cell, peer),
                )?;
            }
            control = Some(command(
                settings,
                &cell,
                craft,
                &["node", "run"],
                &home.join("craft.toml"),
            )?);
            for (node, file) in [(craft, "craft.toml"), (PILOT, "pilot.toml")] {
                smoothers.push(command(
                    settings,
                    &cell,
                    node,
                    &["smooth", "on"],
                    &home.join(file),
                )?);
            }
            for one in control.iter().chain(&smoothers) {
                begun(one)?;
            }
        }
        let part = |part: Part| Started::part(&settings.part_command, &part);
        let receiver = part(Part::Receiver(ReceiverSettings {
            end: end(&cell, craft, PILOT, is_ours),
            means: means.clone(),
        }))?;
        let pilot = part(Part::Pilot(PilotSettings {
            end: end(&cell, PILOT, craft, is_ours),
            course: Course::Schedule,
            seed: settings.seed,
        }))?;
        Ok(Cable {
            settings: settings.clone(),
            cell,
            home: home.to_owned(),
            is_ours,
            control,
            smoothers,
            receiver,
            pilot,
            flood: None,
            start_ns: 0,
            killed_at: None,
            again_at: None,
        })
    }

    /// Tells the pilot the start of the world's time.
    pub(crate) fn begin(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
        self.pilot.tell(&start_ns.to_string());
    }

    /// Fills the cable.
    pub(crate) fn fill(&mut self) -> io::Result<()> {
        let end = end(&self.cell, PILOT, self.cell.receiver(), self.is_ours);
        self.flood = Some(Started::part(
            &self.settings.part_command,
            &Part::Flood(end),
        )?);
        Ok(())
    }

    /// Kills the control process when it is time, and starts its successor.
    pub(crate) fn advance(&mut self, at: f64) -> io::Result<()> {
        if !self.is_ours {
            return Ok(());
        }
        if self.killed_at.is_none() && at >= CONTROL_KILLED_AT {
            if let Some(mut control) = self.control.take() {
                control.kill();
            }
            self.killed_at = Some(at);
        }
        if self.killed_at.is_some() && self.again_at.is_none() && at >= CONTROL_AGAIN_AT {
            let file = self.home.join("craft.toml");
            let craft = self.cell.receiver();
            self.control = Some(command(
                &self.settings,
                &self.cell,
                craft,
                &["node", "run"],
                &file,
            )?);
            self.again_at = Some(at);
        }
        Ok(())
    }

    /// Ends the traffic and tells how it went. Control process and smoothers end when this is dropped, which takes long
    /// beside loads.
    pub(crate) fn report(&mut self) -> RemoteRecord {
        // First: the last frames are to come beside nothing.
        self.flood = None;
        drop(self.pilot.input());
        let sent: Sent = report(&self.pilot);
        drop(self.receiver.input());
        let heard: Heard = report(&self.receiver);
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

/// A command of this program at a node, with a configuration.
fn command(
    settings: &Settings,
    cell: &Cell,
    node: usize,
    words: &[&str],
    file: &Path,
) -> io::Result<Started> {
    let mut command = Command::new(&settings.part_command[0]);
    command.args(words).arg("--config").arg(file);
    tie(&mut command, Some(cell.namespace(node)));
    Started::command(&mut command)
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
