//! Guests that the tasks of a set work with: they are looked at while it runs, and the health monitor is told of ends.

use tautline_guest::{GuestError, State, control};
use tautline_tasks::Running;
use tautline_tasks::file::TaskGuest;

/// A life of a guest: the process that runs it, and the starts before.
type Life = (u32, u32);

/// The guests of a set.
pub(super) struct Guests {
    guests: Vec<(TaskGuest, Option<Life>)>,
}

impl Guests {
    /// Looks at them for the first time, and says which do not run.
    pub(super) fn find(guests: &[TaskGuest]) -> Self {
        let guests: Vec<_> = guests
            .iter()
            .map(|guest| (guest.clone(), life(&guest.name).unwrap_or_default()))
            .collect();
        for (guest, life) in &guests {
            if life.is_none() {
                let name = &guest.name;
                say!("guest `{name}` does not run; its end is noticed once it has started");
            }
        }
        Self { guests }
    }

    /// Looks at them again, and tells which lives have ended.
    pub(super) fn look(&mut self, running: &Running) {
        for (guest, before) in &mut self.guests {
            let Some(now) = life(&guest.name) else {
                continue;
            };
            if before.is_some() && *before != now {
                running.guest_ended(guest);
            }
            *before = now;
        }
    }
}

/// The life that a guest has at this moment, if any; nothing if it does not say.
fn life(name: &str) -> Option<Option<Life>> {
    match control::find_own(name) {
        Ok(status) if matches!(status.state, State::Restarting | State::Ended) => Some(None),
        Ok(status) => Some(Some((status.process, status.restarts))),
        Err(GuestError::Absent(_)) => Some(None),
        Err(_) => None,
    }
}
