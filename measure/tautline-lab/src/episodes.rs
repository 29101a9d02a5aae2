//! Episodes: stretches of time in which wake-ups were late, counted by all probes together.
//!
//! Late wake-ups are not independent. A stall of the machine delays several wake-ups of one probe, and those of every
//! probe that waits meanwhile. Together they are one episode.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Episodes of one phase for one deadline, as a result keeps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpisodeCount {
    /// The deadline.
    pub deadline_ns: u64,
    /// Stretches of time in which wake-ups were later than that.
    pub count: u64,
}

/// Counters of one phase, which all its probes write. Wait-free, and of fixed size.
#[derive(Debug)]
pub struct Episodes(Vec<Counter>);

#[derive(Debug)]
struct Counter {
    deadline_ns: u64,
    // Relaxed throughout: each decision rests on one atomic operation, and joining the probes publishes the counts.
    late_until_ns: AtomicU64,
    count: AtomicU64,
}

impl Episodes {
    /// Counters for these deadlines.
    pub fn new(deadlines_ns: &[u64]) -> Episodes {
        let counter = |deadline_ns: &u64| Counter {
            deadline_ns: *deadline_ns,
            late_until_ns: AtomicU64::new(0),
            count: AtomicU64::new(0),
        };
        Episodes(deadlines_ns.iter().map(counter).collect())
    }

    /// Takes a wake-up that was due at one time and came at another, on CLOCK_MONOTONIC. A late one begins an episode
    /// if it was due more than a period after the last late one came. Probes may report a stall in any order. A stall
    /// of one probe alone that is reported after shorter ones within it adds nothing, so those count singly.
    pub fn note(&self, due_ns: u64, now_ns: u64, period_ns: u64) {
        for counter in &self.0 {
            if now_ns.saturating_sub(due_ns) > counter.deadline_ns {
                let until_ns = counter.late_until_ns.fetch_max(now_ns, Ordering::Relaxed);
                if until_ns == 0 || due_ns > until_ns + period_ns {
                    counter.count.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Episodes so far.
    pub fn counts(&self) -> Vec<EpisodeCount> {
        let count = |counter: &Counter| EpisodeCount {
            deadline_ns: counter.deadline_ns,
            count: counter.count.load(Ordering::Relaxed),
        };
        self.0.iter().map(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_NS: u64 = 1_000;

    fn counted(wakeups: &[(u64, u64)], deadlines_ns: &[u64]) -> Vec<u64> {
        let episodes = Episodes::new(deadlines_ns);
        for (due_ns, now_ns) in wakeups {
            episodes.note(*due_ns, *now_ns, PERIOD_NS);
        }
        episodes.counts().iter().map(|one| one.count).collect()
    }

    #[test]
    fn a_stall_that_several_probes_see_is_one_episode_in_any_order() {
        let stall = [(10_000, 15_000), (10_500, 15_020), (12_250, 15_010)];
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            assert_eq!(counted(&order.map(|index| stall[index]), &[100]), [1]);
        }
    }

    #[test]
    fn late_ones_in_a_row_are_one_episode_and_a_pause_ends_it() {
        let row = [(1_000, 1_200), (2_000, 2_200), (3_000, 3_200)];
        assert_eq!(counted(&row, &[100]), [1]);
        // On time at 4,000 and 5,000.
        let later = [&row[..], &[(4_000, 4_010), (5_000, 5_010), (6_000, 6_200)]].concat();
        assert_eq!(counted(&later, &[100]), [2]);
    }

    #[test]
    fn each_deadline_has_its_own_episodes_and_the_limit_itself_is_not_late() {
        let wakeups = [(1_000, 1_200), (5_000, 5_100), (9_000, 9_900)];
        assert_eq!(counted(&wakeups, &[99, 100, 500, 900]), [3, 2, 1, 0]);
    }
}
