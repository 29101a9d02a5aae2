//! A tap of any kind, as a command or a view has it, and how often one looks at it.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use tautline::vbus::PortName;
use tautline_state::policy;

use crate::batch::{Batch, Origin};
use crate::bus::BusTap;
use crate::error::CaptureError;
use crate::network::NetworkTap;

/// Longest pause between two looks at frames. Lower takes processor time from the watched programs; higher loses frames
/// when a flow of more than 256,000 frames a second begins, because the ring has room for 1,024.
const PAUSE_MAX: Duration = Duration::from_millis(4);
/// Pause while many frames pass. Lower would look in vain; higher loses frames above two million a second.
const PAUSE_MIN: Duration = Duration::from_micros(500);
/// Frames of one look from which the next pause is short: an eighth of the ring.
const MANY: usize = 128;
/// Pause where a bus is watched, whose ports keep few messages.
const PAUSE_BUS: Duration = Duration::from_micros(200);

/// Source of copies.
#[derive(Debug)]
pub struct Tap {
    name: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Network(Box<NetworkTap>),
    Bus(BusTap),
}

impl Tap {
    /// Begins to copy the frames of an interface. `ethertype` is that of the nodes.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn network(interface: &OsStr, ethertype: u16) -> Result<Self, CaptureError> {
        let tap = NetworkTap::open(interface, ethertype)?;
        Ok(Self {
            name: tap.name().to_owned(),
            kind: Kind::Network(Box::new(tap)),
        })
    }

    /// Begins to copy the messages of the bus in a directory; of one port, if that is named.
    #[must_use]
    pub fn bus(path: &Path, only: Option<PortName>) -> Self {
        let path = path.to_string_lossy();
        Self {
            name: format!("bus {path}"),
            kind: Kind::Bus(BusTap::open(&path, only)),
        }
    }

    /// Interface or bus.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Copies what has passed since the last look. Sentences say what cannot be seen, each once. Never waits.
    ///
    /// # Errors
    /// The interface has gone.
    pub fn look(&mut self, origin: Origin, batch: &mut Batch) -> Result<Vec<String>, CaptureError> {
        match &mut self.kind {
            Kind::Network(tap) => {
                tap.look(origin, batch)?;
                Ok(tap.take_notes())
            }
            Kind::Bus(tap) => {
                tap.look(origin, batch);
                Ok(tap.take_notes())
            }
        }
    }

    /// Copies what has passed since the last look, at the end.
    pub fn look_last(&mut self, origin: Origin, batch: &mut Batch) {
        match &mut self.kind {
            Kind::Network(tap) => {
                let _gone = tap.look(origin, batch);
            }
            Kind::Bus(tap) => tap.look_last(origin, batch),
        }
    }

    /// Copies that were lost so far.
    pub fn lost(&mut self) -> u64 {
        match &mut self.kind {
            Kind::Network(tap) => tap.lost(),
            Kind::Bus(tap) => tap.lost(),
        }
    }

    /// Whether it copies messages of a bus.
    #[must_use]
    pub fn is_bus(&self) -> bool {
        matches!(self.kind, Kind::Bus(_))
    }
}

/// Time until the next look at these sources, after one that copied so much.
pub fn pause_after<'t>(taps: impl IntoIterator<Item = &'t Tap>, copied: usize) -> Duration {
    match taps.into_iter().any(Tap::is_bus) {
        true => PAUSE_BUS,
        false if copied >= MANY => PAUSE_MIN,
        false => PAUSE_MAX,
    }
}

/// Lets this thread run where it preempts no thread by waking up. Without the right, it does.
pub fn stand_back() {
    let _ = policy::set_policy(0, libc::SCHED_BATCH, 0);
}
