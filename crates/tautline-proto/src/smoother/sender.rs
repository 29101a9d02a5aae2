//! The sending side: keeps the grants of its receivers and says at which rate other traffic may leave for each.

use alloc::boxed::Box;
use alloc::vec;
use core::time::Duration;

use super::average::RATE_BPS_MAX;
use super::message::Grant;
use super::share::max_min;
use super::{FRAME_BYTES, NODES_MAX, SILENCE};
use crate::time::Instant;

/// Time in which the rate doubles once the receiver is silent.
const STAGE: Duration = Duration::from_millis(100);

/// Stages until other traffic is not held any more. With [`SILENCE`] less than a second in all; a lost receiver must
/// not hold anybody's traffic for longer. Fewer stages would be a leap that fills the queue of the switch at once.
const STAGES: u32 = 8;

/// Most bytes that may leave at once, whatever a grant says: a burst of this size fills half of a queue of 32 frames.
const BURST_BYTES_MAX: u64 = 16 * FRAME_BYTES;

/// Lowest rate to which anybody's traffic is held, whatever a grant says: at less, one frame takes longer than a
/// second.
const RATE_BPS_MIN: u64 = 16_000;

/// Numbers that a grant may be behind the newest without being taken for one of the future.
const NUMBERS_HALF: u32 = 1 << 31;

/// Configuration of a [`Sender`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// Bits a second that the sender's own path to the switch takes on the wire.
    pub path_bps: u64,
    /// Receivers, at most [`NODES_MAX`].
    pub receiver_count: usize,
}

/// Reason why a grant does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GrantRefused {
    /// It is the newest one again, or older.
    Old,
    /// It is of another run of the receiver, while grants of this run still come.
    OtherRun,
}

/// Treatment of the other traffic to one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Release {
    /// It is not held: the receiver never granted anything, or has been silent for long.
    Unshaped,
    /// It leaves at this rate.
    AtMost {
        /// Bits a second on the wire.
        rate_bps: u64,
        /// Bytes that may leave at once.
        burst_bytes: u64,
    },
}

/// A node that sends other traffic to receivers that grant.
#[derive(Debug)]
pub struct Sender {
    path_bps: u64,
    receivers: Box<[Option<Granted>]>,
    rates: Box<[u64]>,
    shares: Box<[u64]>,
}

#[derive(Clone, Copy, Debug)]
struct Granted {
    epoch: u32,
    number: u32,
    rate_bps: u64,
    burst_bytes: u64,
    at: Instant,
}

impl Granted {
    /// Rate in force after some silence; `None`: not held any more.
    fn rate_bps(&self, now: Instant) -> Option<u64> {
        let silent = now.saturating_duration_since(self.at);
        let Some(late) = silent.checked_sub(SILENCE) else {
            return Some(self.rate_bps);
        };
        let stage = late.as_nanos() / STAGE.as_nanos();
        let stage = u32::try_from(stage).unwrap_or(u32::MAX);
        if stage >= STAGES {
            return None;
        }
        Some((self.rate_bps << (stage + 1)).min(RATE_BPS_MAX))
    }
}

impl Sender {
    /// A sender that holds nothing yet. Takes all memory that it will use.
    ///
    /// # Panics
    ///
    /// If there are more than [`NODES_MAX`] receivers.
    #[must_use]
    pub fn new(config: SenderConfig) -> Self {
        let count = config.receiver_count;
        assert!(count <= NODES_MAX, "{count} receivers");
        Self {
            path_bps: config.path_bps.min(RATE_BPS_MAX),
            receivers: vec![None; count].into_boxed_slice(),
            rates: vec![0; count].into_boxed_slice(),
            shares: vec![0; count].into_boxed_slice(),
        }
    }

    /// Takes a grant of a receiver.
    ///
    /// # Errors
    ///
    /// [`GrantRefused`]. Nothing has changed then.
    ///
    /// # Panics
    ///
    /// If there is no such receiver.
    pub fn take_grant(
        &mut self,
        now: Instant,
        receiver: usize,
        grant: &Grant,
    ) -> Result<(), GrantRefused> {
        if let Some(last) = &self.receivers[receiver] {
            let is_silent = now.saturating_duration_since(last.at) > SILENCE;
            let is_newer = (1..NUMBERS_HALF).contains(&grant.number.wrapping_sub(last.number));
            match (last.epoch == grant.epoch, is_newer, is_silent) {
                // A receiver that starts again is heard once grants of its last run no longer come, so an old message
                // cannot displace those of a receiver that lives.
                (false, _, false) => return Err(GrantRefused::OtherRun),
                (true, false, _) => return Err(GrantRefused::Old),
                _ => {}
            }
        }
        self.receivers[receiver] = Some(Granted {
            epoch: grant.epoch,
            number: grant.number,
            rate_bps: grant.rate_bps.clamp(RATE_BPS_MIN, RATE_BPS_MAX),
            burst_bytes: u64::from(grant.burst_bytes).clamp(FRAME_BYTES, BURST_BYTES_MAX),
            at: now,
        });
        Ok(())
    }

    /// Writes how other traffic to each receiver is treated now. `real_time_bps`: real-time traffic that this node
    /// sends itself, which has the path first.
    ///
    /// # Panics
    ///
    /// If `releases` has another number of entries than there are receivers.
    pub fn releases(&mut self, now: Instant, real_time_bps: u64, releases: &mut [Release]) {
        assert_eq!(releases.len(), self.receivers.len());
        for (rate, receiver) in self.rates.iter_mut().zip(&self.receivers) {
            *rate = receiver
                .and_then(|granted| granted.rate_bps(now))
                .unwrap_or(0);
        }
        let room_bps = self.path_bps.saturating_sub(real_time_bps);
        max_min(room_bps, &self.rates, &mut self.shares);
        for ((release, receiver), &share) in
            releases.iter_mut().zip(&self.receivers).zip(&self.shares)
        {
            *release = match receiver.filter(|granted| granted.rate_bps(now).is_some()) {
                None => Release::Unshaped,
                Some(granted) => Release::AtMost {
                    rate_bps: share.max(RATE_BPS_MIN),
                    burst_bytes: granted.burst_bytes,
                },
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABIT: u64 = 1_000_000;

    fn sender() -> Sender {
        Sender::new(SenderConfig {
            path_bps: 100 * MEGABIT,
            receiver_count: 2,
        })
    }

    fn grant(epoch: u32, number: u32, megabits: u64) -> Grant {
        Grant {
            burst_bytes: 1538,
            epoch,
            number,
            rate_bps: megabits * MEGABIT,
        }
    }

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn rates(sender: &mut Sender, millis: u64) -> [Option<u64>; 2] {
        let mut releases = [Release::Unshaped; 2];
        sender.releases(at(millis), 0, &mut releases);
        releases.map(|release| match release {
            Release::Unshaped => None,
            Release::AtMost { rate_bps, .. } => Some(rate_bps / MEGABIT),
        })
    }

    #[test]
    fn silence_lets_go_in_stages_within_a_second() {
        let mut sender = sender();
        assert_eq!(rates(&mut sender, 0), [None; 2]);
        sender.take_grant(at(1000), 0, &grant(1, 1, 2)).unwrap();
        let stages: [_; 10] =
            core::array::from_fn(|tenth| rates(&mut sender, 1000 + 100 * tenth as u64)[0]);
        let expected = [2, 4, 8, 16, 32, 64, 100, 100, 100].map(Some);
        assert_eq!(stages[0], expected[0]);
        assert_eq!(stages[1..9], expected[1..]);
        assert_eq!(stages[9], None);
        sender.take_grant(at(3000), 0, &grant(1, 2, 2)).unwrap();
        assert_eq!(rates(&mut sender, 3000), [Some(2), None]);
    }

    #[test]
    fn old_grants_and_those_of_another_run_do_not_count() {
        let mut sender = sender();
        sender.take_grant(at(0), 0, &grant(1, u32::MAX, 5)).unwrap();
        sender.take_grant(at(5), 0, &grant(1, 0, 6)).unwrap();
        for (refused, wrong) in [
            (GrantRefused::Old, grant(1, 0, 9)),
            (GrantRefused::Old, grant(1, u32::MAX, 9)),
            (GrantRefused::OtherRun, grant(2, 1, 9)),
        ] {
            assert_eq!(sender.take_grant(at(10), 0, &wrong), Err(refused));
        }
        assert_eq!(rates(&mut sender, 10)[0], Some(6));
        // The receiver has started again.
        sender.take_grant(at(200), 0, &grant(2, 1, 9)).unwrap();
        assert_eq!(rates(&mut sender, 200)[0], Some(9));
    }

    #[test]
    fn the_path_is_divided_among_the_receivers() {
        let mut sender = sender();
        sender.take_grant(at(0), 0, &grant(1, 1, 90)).unwrap();
        sender.take_grant(at(0), 1, &grant(1, 1, 30)).unwrap();
        assert_eq!(rates(&mut sender, 0), [Some(70), Some(30)]);
        let mut releases = [Release::Unshaped; 2];
        sender.releases(at(0), 60 * MEGABIT, &mut releases);
        let at_most = |rate_bps| Release::AtMost {
            rate_bps,
            burst_bytes: 1538,
        };
        assert_eq!(releases, [at_most(20 * MEGABIT); 2]);
    }

    #[test]
    fn no_grant_stops_traffic_or_makes_long_bursts() {
        let mut sender = sender();
        for (number, burst_bytes, rate_bps) in [(1, 0, 0), (2, u16::MAX, u64::MAX)] {
            let grant = Grant {
                burst_bytes,
                rate_bps,
                ..grant(1, number, 0)
            };
            sender.take_grant(at(0), 0, &grant).unwrap();
            let mut releases = [Release::Unshaped; 2];
            sender.releases(at(950), u64::MAX, &mut releases);
            sender.releases(at(0), u64::MAX, &mut releases);
            let Release::AtMost {
                rate_bps,
                burst_bytes,
            } = releases[0]
            else {
                panic!("{releases:?}");
            };
            assert_eq!(rate_bps, RATE_BPS_MIN);
            assert!((FRAME_BYTES..=BURST_BYTES_MAX).contains(&burst_bytes));
        }
    }
}
