//! The video process: draws 30 pictures a second where the mapping finds them, with the flight data in their margin.

use std::io;

use serde::{Deserialize, Serialize};
use tautline_flight::message::Status;
use tautline_flight::vision::{
    Camera, HEAD_BYTES, PICTURES_PER_SECOND, PictureHead, draw_flight_data,
};
use tautline_testbed::sys::{monotonic_ns, sleep_until};

use super::{SoftLine, say};
use crate::course;
use crate::part::end_of_input;
use crate::wire::{Inbox, Means, Role, Stream, View};

const PERIOD_NS: u64 = 1_000_000_000 / PICTURES_PER_SECOND;

/// Settings of the video process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct VideoSettings {
    pub(crate) means: Means,
    pub(crate) seed: u64,
}

/// Draws pictures until standard input ends.
pub(crate) fn run(settings: &VideoSettings) -> io::Result<()> {
    let ended = end_of_input();
    let wires = settings.means.open(Role::Video)?;
    let mut view: Inbox<View> = wires.inbox(Stream::View)?;
    let mut telemetry: Inbox<Status> = wires.inbox(Stream::Telemetry)?;
    let mut pictures = wires.pictures_out()?;
    let mut camera = Camera::new(Some(course::wall()), &course::WAYPOINTS, settings.seed);
    say(&SoftLine::Ready);
    let (mut drawn, mut skipped) = (0, 0);
    let mut due = monotonic_ns();
    while !ended() {
        let late = monotonic_ns().saturating_sub(due) / PERIOD_NS;
        skipped += late;
        due += (late + 1) * PERIOD_NS;
        sleep_until(due);
        let (view, status) = (*view.newest(), *telemetry.newest());
        if view.time_us == 0 {
            continue;
        }
        let head = PictureHead {
            count: drawn as u32 + 1,
            time_us: view.time_us,
            attitude: status.attitude,
        };
        let is_sent = pictures.send(|message| {
            head.write(message);
            let pixels = &mut message[HEAD_BYTES..];
            camera.take(view.place, view.attitude, pixels);
            draw_flight_data(&head, &status, pixels);
        });
        drawn += u64::from(is_sent);
    }
    say(&SoftLine::Filmed {
        pictures: drawn,
        skipped,
    });
    Ok(())
}
