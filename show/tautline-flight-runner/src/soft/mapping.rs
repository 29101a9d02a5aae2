//! The mapping process: looks for the door in each picture, and tells the navigator.

use std::io;

use tautline_flight::scenery::Sighting;
use tautline_flight::vision::{DoorFinder, PictureHead};
use tautline_testbed::sys::{monotonic_ns, sleep_until};

use super::{SoftLine, say};
use crate::part::end_of_input;
use crate::wire::{Means, Outbox, Role, Stream};

/// Distance of looks for a new picture. Lower: the process takes time for nothing. Higher: the door is known later.
const LOOK_NS: u64 = 4_000_000;

/// Looks at pictures until standard input ends.
pub(crate) fn run(means: &Means) -> io::Result<()> {
    let ended = end_of_input();
    let wires = means.open(Role::Mapping)?;
    let mut inbox = wires.pictures_in()?;
    let mut sightings: Outbox<Sighting> = wires.soft_outbox(Stream::Sighting)?;
    say(&SoftLine::Ready);
    let mut finder = DoorFinder::default();
    let (mut pictures, mut missed, mut doors, mut last) = (0, 0, 0, 0u32);
    while !ended() {
        sleep_until(monotonic_ns() + LOOK_NS);
        let Some((head, pixels)) = inbox.new_message().and_then(PictureHead::read) else {
            continue;
        };
        pictures += 1;
        // A video that began anew counts from 1.
        missed += u64::from(head.count.saturating_sub(last).saturating_sub(1));
        last = head.count;
        if let Some(sighting) = finder.find(&head, pixels) {
            doors += 1;
            sightings.send(&sighting);
        }
    }
    say(&SoftLine::Mapped {
        pictures,
        missed,
        doors,
    });
    Ok(())
}
