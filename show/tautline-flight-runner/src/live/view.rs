//! Newest values of a live flight, as a watcher of its bus sees them, and as a document for the page.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tautline_capture::message::{Message, Messages};
use tautline_capture::{Batch, BusTap};
use tautline_flight::loops::{Deadlines, Loop, Role, Stream};
use tautline_flight::message::{Phase, Status, decode};
use tautline_flight::vision::PictureHead;
use tautline_tasks::runs;

use crate::wire::View as CameraView;

/// Name of the bus in flows.
const BUS: &str = "flight";
/// Time of the tasks that is shown.
const SHOWN: Duration = Duration::from_millis(40);

/// A watcher of one flight.
pub(super) struct Watcher {
    tap: BusTap,
    messages: Messages,
    batch: Batch,
    pub(super) status: Status,
    place: CameraView,
    deadlines: Deadlines,
}

impl Watcher {
    pub(super) fn new(bus: &Path) -> Watcher {
        Watcher {
            tap: BusTap::open(&bus.display().to_string(), None),
            messages: Messages::new(BUS, true, 0),
            batch: Batch::default(),
            status: Status::default(),
            place: CameraView::default(),
            deadlines: Deadlines::default(),
        }
    }

    /// Takes the newest values; returns the picture if there is a new one, with its count in front.
    pub(super) fn look(&mut self) -> Option<Vec<u8>> {
        let (status, place, deadlines) = (&mut self.status, &mut self.place, &mut self.deadlines);
        let mut picture = None;
        let mut take = |message: &Message<'_>| {
            let is_of = |stream: Stream| {
                let flow = message.flow;
                flow.to == stream.reader().name() && flow.destination_port == stream.number()
            };
            if is_of(Stream::Status) {
                *status = decode(message.bytes).unwrap_or(*status);
            } else if is_of(Stream::View) {
                *place = decode(message.bytes).unwrap_or(*place);
            } else if is_of(Stream::Deadlines) {
                *deadlines = decode(message.bytes).unwrap_or(*deadlines);
            } else if message.flow.to == Role::Mapping.name()
                && let Some((head, pixels)) = PictureHead::read(message.bytes)
            {
                picture = Some([&head.count.to_le_bytes()[..], pixels].concat());
            }
        };
        self.tap.look(0, &mut self.batch);
        let (messages, batch) = (&mut self.messages, &mut self.batch);
        let all = batch.drain(|item, bytes| {
            messages.take(item, bytes, |message| {
                take(&message);
                Ok::<(), std::convert::Infallible>(())
            })
        });
        match all {
            Ok(()) => picture,
        }
    }

    /// The flight as the page shows it.
    pub(super) fn document(&self) -> Value {
        let status = &self.status;
        let (roll, pitch, heading) = status.attitude.euler();
        let vector = |of: tautline_flight::vector::Vector| json!([of.x, of.y, of.z]);
        json!({
            "at": status.time_us as f64 * 1e-6,
            "phase": phase(status.phase),
            "alarms": status.alarms.names().collect::<Vec<_>>(),
            "place": vector(self.place.place),
            "believed": vector(status.position),
            "velocity": vector(status.velocity),
            "target": vector(status.target),
            "roll": roll,
            "pitch": pitch,
            "heading": heading,
            "waypoint": status.waypoint,
            "volts": status.battery_volts,
            "is_by_door": status.is_by_door,
        })
    }

    /// Loops of the controller: their last jobs where it is a process of this machine, their counts where it is a
    /// guest.
    pub(super) fn loops(&self) -> Vec<Value> {
        let told = Loop::ALL.iter().zip(&self.deadlines.loops);
        let of_guest = told.filter(|(_, tally)| tally.releases > 0);
        let of_guest: Vec<Value> = of_guest
            .map(|(which, tally)| {
                json!({
                    "name": which.name(),
                    "period_us": which.period_ns() / 1_000,
                    "jobs": tally.releases,
                    "missed": tally.missed,
                })
            })
            .collect();
        if of_guest.is_empty() {
            of_tasks()
        } else {
            of_guest
        }
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Disarmed => "motors off",
        Phase::Armed => "motors on",
        Phase::TakeOff => "take-off",
        Phase::Hold => "hold",
        Phase::Mission => "way-points",
        Phase::Landing => "landing",
    }
}

/// The controller's tasks, by the memory that the executive keeps of their last jobs.
fn of_tasks() -> Vec<Value> {
    let is_ours = |view: &tautline_tasks::View| {
        let tasks = &view.description().tasks;
        tasks.len() == Loop::ALL.len()
            && tasks
                .iter()
                .zip(Loop::ALL)
                .all(|(task, which)| task.name == which.name())
    };
    let Some(mut view) = runs().into_iter().find(is_ours) else {
        return Vec::new();
    };
    let Ok(look) = view.look() else {
        return Vec::new();
    };
    let traces: Vec<_> = (0..Loop::ALL.len())
        .map(|task| look.trace(task, 0).0)
        .collect();
    let end = traces
        .iter()
        .filter_map(|jobs| Some(jobs.last()?.end))
        .max();
    let from = end.unwrap_or_default().saturating_sub(SHOWN);
    let us = |time: Duration| time.saturating_sub(from).as_secs_f64() * 1e6;
    let tasks = look.tasks().zip(Loop::ALL).zip(&traces);
    tasks
        .map(|((task, which), jobs)| {
            let shown = jobs.iter().filter(|job| job.end >= from);
            let last: Vec<Value> = shown
                .map(|job| {
                    json!([
                        us(job.release),
                        us(job.begin),
                        us(job.end),
                        job.end <= job.deadline
                    ])
                })
                .collect();
            json!({
                "name": which.name(),
                "period_us": which.period_ns() / 1_000,
                "jobs": task.jobs,
                "missed": task.missed,
                "last": last,
            })
        })
        .collect()
}
