//! Times of the frames of one class of a flow that were taken, so that none is taken twice.

/// Frames of its class that may overtake one frame. Lower: reordered frames are refused. Higher: each flow takes more
/// memory, for eight classes, and a late frame a longer search.
pub(super) const WINDOW: usize = 64;

/// The newest [`WINDOW`] times of a class, and the time up to which nothing is taken any more.
///
/// Numbers of a sequence would wrap; times do not. Each frame of a run has a time of its own, so a time says which
/// frame it is.
#[derive(Clone, Debug)]
pub(super) struct Window {
    floor: u64,
    /// In ascending order from `first` on, around the end.
    times: [u64; WINDOW],
    first: usize,
    count: usize,
}

impl Window {
    /// A window that takes nothing up to `floor`.
    pub(super) const fn new(floor: u64) -> Self {
        Self {
            floor,
            times: [0; WINDOW],
            first: 0,
            count: 0,
        }
    }

    const fn at(&self, place: usize) -> usize {
        (self.first + place) % WINDOW
    }

    /// Newest time that was taken, or the floor.
    pub(super) fn newest(&self) -> u64 {
        match self.count {
            0 => self.floor,
            count => self.times[self.at(count - 1)],
        }
    }

    /// Whether a frame of this time would be taken.
    pub(super) fn takes(&self, time: u64) -> bool {
        if time > self.newest() {
            return true;
        }
        time > self.floor && (0..self.count).all(|place| self.times[self.at(place)] != time)
    }

    /// Takes a time that [`takes`](Self::takes) allows.
    pub(super) fn take(&mut self, time: u64) {
        // How many of those that were taken are newer. Mostly none.
        let newer = (0..self.count)
            .rev()
            .take_while(|place| self.times[self.at(*place)] > time)
            .count();
        if self.count == WINDOW {
            if newer == WINDOW {
                // Older than all: nothing older may come after it, and nothing else changes.
                self.floor = time;
                return;
            }
            self.floor = self.times[self.first];
            self.first = self.at(1);
            self.count -= 1;
        }
        for place in (self.count - newer..self.count).rev() {
            self.times[self.at(place + 1)] = self.times[self.at(place)];
        }
        self.times[self.at(self.count - newer)] = time;
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_time_is_taken_once_and_order_matters_within_the_window_only() {
        let mut window = Window::new(10);
        assert!(!window.takes(10) && !window.takes(3));
        for time in [20, 18, 19, 11, 30] {
            assert!(window.takes(time), "{time}");
            window.take(time);
            assert!(!window.takes(time), "{time} again");
        }
        assert_eq!(window.newest(), 30);
        for time in 100..100 + WINDOW as u64 {
            window.take(time);
        }
        for old in [11, 12, 30] {
            assert!(!window.takes(old), "{old} is before the window");
        }
    }

    #[test]
    fn whatever_the_order_it_never_takes_a_time_twice_nor_refuses_a_newer_one() {
        let mut state = 1_u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 33
        };
        for _ in 0..200 {
            let mut window = Window::new(5);
            let mut taken = BTreeSet::new();
            for step in 0..400_u64 {
                let time = (step + 100).saturating_sub(random() % 90);
                let newest = taken.last().copied().unwrap_or(5);
                if window.takes(time) {
                    assert!(taken.insert(time) && time > 5);
                    window.take(time);
                } else {
                    let newer = taken.iter().filter(|other| **other > time).count();
                    assert!(taken.contains(&time) || newer >= WINDOW || time <= 5);
                }
                assert!(time <= newest || taken.contains(&time));
            }
        }
    }
}
