//! Cells that were heard of: alive, silent, or vanished. It never reads a clock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::report::{Id, Report};

/// Gateways that a table holds. Lower: a large fleet is cut. Higher: a hostile participant takes more memory.
pub(crate) const GATEWAYS_MAX: usize = 1_024;
/// Time for which a vanished cell is remembered. Lower: one that broke over night is not seen in the morning. Higher:
/// those that were taken down stay in view.
const REMEMBERED: Duration = Duration::from_secs(24 * 3_600);
/// Reports that may be missed before a cell counts as silent. Lower: one lost report is a fault. Higher: a gateway that
/// hangs is noticed late.
const PERIODS_MISSED: u32 = 3;
/// Time without reports after which any cell is silent, however slow it says that it is.
const SILENCE_MAX: Duration = Duration::from_secs(180);

/// Presence of a cell's gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Connected, and reports come.
    Alive,
    /// Connected, and reports do not come.
    Silent,
    /// Not connected any more.
    Vanished,
}

impl Presence {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Silent => "silent",
            Self::Vanished => "vanished",
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    is_connected: bool,
    /// When it came or vanished.
    since: Instant,
    heard: Option<Instant>,
    report: Option<Report>,
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line<'t> {
    pub(crate) id: &'t Id,
    pub(crate) presence: Presence,
    /// Of the last report; of one that vanished, since then.
    pub(crate) age: Duration,
    pub(crate) report: Option<&'t Report>,
}

/// Gateways that were heard of.
#[derive(Debug, Default)]
pub(crate) struct Table {
    gateways: BTreeMap<Id, Entry>,
    /// Gateways for which there was no room.
    pub(crate) crowded_out: u64,
    /// Reports of gateways that are not in the table.
    pub(crate) unannounced: u64,
}

impl Table {
    /// A gateway is connected.
    pub(crate) fn appear(&mut self, id: Id, now: Instant) {
        // Its predecessor has been restarted.
        self.gateways.retain(|known, entry| {
            let is_predecessor = known.prefix == id.prefix && known.gateway == id.gateway;
            *known == id || entry.is_connected || !is_predecessor
        });
        if let Some(entry) = self.gateways.get_mut(&id) {
            if !entry.is_connected {
                (entry.is_connected, entry.since) = (true, now);
            }
            return;
        }
        if !self.has_room() {
            self.crowded_out += 1;
            return;
        }
        let entry = Entry {
            is_connected: true,
            since: now,
            heard: None,
            report: None,
        };
        self.gateways.insert(id, entry);
    }

    /// A gateway is not connected any more.
    pub(crate) fn vanish(&mut self, id: &Id, now: Instant) {
        if let Some(entry) = self.gateways.get_mut(id)
            && entry.is_connected
        {
            (entry.is_connected, entry.since) = (false, now);
        }
    }

    /// Another gateway saw a gateway vanish so long ago.
    pub(crate) fn tell_vanished(&mut self, id: Id, age: Duration, now: Instant) {
        let is_succeeded = |known: &Id, entry: &Entry| {
            known.prefix == id.prefix && known.gateway == id.gateway && entry.is_connected
        };
        let mut gateways = self.gateways.iter();
        if gateways.any(|(known, entry)| is_succeeded(known, entry)) || age > REMEMBERED {
            return;
        }
        let since = now.checked_sub(age).unwrap_or(now);
        if let Some(entry) = self.gateways.get_mut(&id) {
            // Last seen by the gateway that saw it vanish last.
            entry.since = entry.since.max(since);
        } else if self.gateways.len() < GATEWAYS_MAX {
            let entry = Entry {
                is_connected: false,
                since,
                heard: None,
                report: None,
            };
            self.gateways.insert(id, entry);
        } else {
            self.crowded_out += 1;
        }
    }

    /// A report of so long ago.
    pub(crate) fn hear(&mut self, id: &Id, report: Report, age: Duration, now: Instant) {
        match self.gateways.get_mut(id) {
            Some(entry) => {
                entry.heard = Some(now.checked_sub(age).unwrap_or(now));
                entry.report = Some(report);
            }
            None => self.unannounced += 1,
        }
    }

    /// All lines: in the order of prefixes and names.
    pub(crate) fn lines(&mut self, now: Instant) -> Vec<Line<'_>> {
        self.gateways.retain(|_, entry| {
            entry.is_connected || now.saturating_duration_since(entry.since) <= REMEMBERED
        });
        let presence_of = |entry: &Entry| {
            let heard = entry.heard.unwrap_or(entry.since);
            let of_report = now.saturating_duration_since(heard);
            let presence = match entry.is_connected {
                false => Presence::Vanished,
                true if of_report > silence(entry.report.as_ref()) => Presence::Silent,
                true => Presence::Alive,
            };
            let since = now.saturating_duration_since(entry.since);
            let age = if entry.is_connected { of_report } else { since };
            (presence, age)
        };
        let lines = self.gateways.iter().map(|(id, entry)| {
            let (presence, age) = presence_of(entry);
            Line {
                id,
                presence,
                age,
                report: entry.report.as_ref(),
            }
        });
        lines.collect()
    }

    /// Makes room, by forgetting the one that vanished first.
    fn has_room(&mut self) -> bool {
        if self.gateways.len() < GATEWAYS_MAX {
            return true;
        }
        let vanished = self.gateways.iter().filter(|(_, one)| !one.is_connected);
        let oldest = vanished.min_by_key(|(_, entry)| entry.since);
        match oldest.map(|(id, _)| id.clone()) {
            Some(id) => {
                self.crowded_out += 1;
                self.gateways.remove(&id).is_some()
            }
            None => false,
        }
    }
}

/// Age of the last report from which a gateway is silent. Its own word counts only so far.
fn silence(report: Option<&Report>) -> Duration {
    let period_ms = report.map_or(1_000, |report| report.period_ms).max(200);
    let looked = Duration::from_micros(report.map_or(0, |report| report.look_us));
    let period = Duration::from_millis(period_ms.into()).max(looked.saturating_mul(2));
    period.saturating_mul(PERIODS_MISSED).min(SILENCE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(gateway: &str, number: u64) -> Id {
        Id {
            prefix: "cell".to_owned(),
            gateway: gateway.to_owned(),
            number,
        }
    }

    fn seen(table: &mut Table, now: Instant) -> Vec<(u64, Presence, u64)> {
        let lines = table.lines(now).into_iter();
        lines
            .map(|line| (line.id.number, line.presence, line.age.as_secs()))
            .collect()
    }

    #[test]
    fn cells_come_fall_silent_and_vanish() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut table = Table::default();
        table.hear(&id("a", 1), Report::new(), Duration::ZERO, at(0));
        assert_eq!(table.unannounced, 1);
        table.appear(id("a", 1), at(0));
        table.hear(&id("a", 1), Report::new(), Duration::ZERO, at(1));
        assert_eq!(seen(&mut table, at(1)), [(1, Presence::Alive, 0)]);
        assert_eq!(seen(&mut table, at(9)), [(1, Presence::Silent, 8)]);
        table.vanish(&id("a", 1), at(10));
        table.vanish(&id("a", 1), at(11));
        assert_eq!(seen(&mut table, at(20)), [(1, Presence::Vanished, 10)]);
        // Connected again: the last report is old.
        table.appear(id("a", 1), at(30));
        assert_eq!(seen(&mut table, at(30)), [(1, Presence::Silent, 29)]);
        table.vanish(&id("a", 1), at(31));
        // A successor takes its line.
        table.appear(id("a", 2), at(32));
        assert_eq!(seen(&mut table, at(32)), [(2, Presence::Alive, 0)]);
        table.vanish(&id("a", 2), at(33));
        assert!(seen(&mut table, at(33 + 24 * 3_600 + 1)).is_empty());
    }

    #[test]
    fn two_that_live_with_one_name_are_two() {
        let now = Instant::now();
        let mut table = Table::default();
        table.appear(id("a", 1), now);
        table.appear(id("a", 2), now);
        assert_eq!(seen(&mut table, now).len(), 2);
    }

    #[test]
    fn hearsay_adds_and_never_replaces() {
        let now = Instant::now() + REMEMBERED;
        let mut table = Table::default();
        table.appear(id("a", 2), now);
        let ago = Duration::from_secs(60);
        table.tell_vanished(id("a", 1), ago, now);
        table.tell_vanished(id("a", 2), ago, now);
        assert_eq!(seen(&mut table, now), [(2, Presence::Alive, 0)]);
        table.tell_vanished(id("b", 3), ago, now);
        table.tell_vanished(id("b", 3), 2 * ago, now);
        table.tell_vanished(id("c", 4), REMEMBERED + ago, now);
        let told = seen(&mut table, now);
        assert_eq!(told[1..], [(3, Presence::Vanished, 60)]);
    }

    #[test]
    fn it_is_bounded_and_those_that_vanished_go_first() {
        let now = Instant::now();
        let mut table = Table::default();
        for number in 0..GATEWAYS_MAX as u64 + 10 {
            table.appear(id(&number.to_string(), number), now);
        }
        assert_eq!(table.gateways.len(), GATEWAYS_MAX);
        assert_eq!(table.crowded_out, 10);
        table.vanish(&id("5", 5), now);
        table.appear(id("new", 9_999), now);
        let ids: Vec<u64> = seen(&mut table, now).iter().map(|line| line.0).collect();
        assert!(ids.contains(&9_999) && !ids.contains(&5));
        table.tell_vanished(id("old", 8_888), Duration::from_secs(1), now);
        assert_eq!(table.gateways.len(), GATEWAYS_MAX);
    }
}
