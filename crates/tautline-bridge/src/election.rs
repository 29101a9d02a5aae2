//! Decision which of a cell's programs is active. Never reads a clock, and knows no port: it is told the heartbeats of
//! the others and says whether this program is active, and since when.
//!
//! A program that is active stays so. Of several that could be, one with a connection to its network goes before one
//! without, then the lower rank, then the lower number of the process. Each takeover has a term, one more than all that
//! were heard of: of two active programs that hear each other, the one with the lower term gives way, and receivers at
//! a distance that know terms prefer the higher one too.

use std::time::Duration;

use tautline::Instant;

use crate::activity::Activity;
use crate::clocks::Moment;

/// Bytes of a heartbeat.
pub const HEARTBEAT_BYTES: usize = 40;
const MAGIC: [u8; 4] = *b"TLE1";
/// Time between two decisions of a program; a heartbeat follows each. Lower: more wake-ups and traffic. Higher: a
/// takeover takes longer.
pub const BEAT: Duration = Duration::from_millis(50);
/// Silence after which a program counts as dead. Lower: a busy machine's program is replaced for nothing. Higher: a
/// takeover takes longer.
pub const SILENCE_MAX: Duration = Duration::from_millis(350);
/// Time for which a program listens before it may be active. Lower: it may miss the heartbeat of the active one.
/// Higher: a cell with one program waits for longer.
pub const LISTENING: Duration = Duration::from_millis(500);
/// Time for which a program may be active after the heartbeat before its last one. The others have heard one of the two
/// and wait for [`SILENCE_MAX`] after that, so one heartbeat may be lost, and decisions may be late. Lower: a busy
/// machine interrupts itself. Above `SILENCE_MAX`: two are active.
pub const LEASE: Duration = Duration::from_millis(300);
/// Programs of one cell that are remembered. Lower: fewer may stand by. Higher: a sender of false heartbeats takes more
/// memory.
const OTHERS_MAX: usize = 16;

const _: () = assert!(LEASE.as_millis() + BEAT.as_millis() <= SILENCE_MAX.as_millis());
const _: () = assert!(SILENCE_MAX.as_millis() < LISTENING.as_millis());

/// State that a program tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Number of the process.
    pub process: u64,
    /// Number of the cell.
    pub cell: u64,
    /// Term in which it was active last.
    pub term: u32,
    /// Rank; the lowest goes first.
    pub rank: u32,
    /// Whether it is active.
    pub active: bool,
    /// Whether it is connected to anybody on the other network.
    pub connected: bool,
}

impl Heartbeat {
    /// The message: little-endian.
    #[must_use]
    pub fn bytes(&self) -> [u8; HEARTBEAT_BYTES] {
        let mut bytes = [0; HEARTBEAT_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = u8::from(self.active) | u8::from(self.connected) << 1;
        bytes[8..16].copy_from_slice(&self.process.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.cell.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.term.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.rank.to_le_bytes());
        bytes
    }

    /// A heartbeat; `None` for any other bytes.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEARTBEAT_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        (bytes[..4] == MAGIC).then(|| Self {
            active: bytes[4] & 1 != 0,
            connected: bytes[4] & 2 != 0,
            process: long(8),
            cell: long(16),
            term: word(24),
            rank: word(28),
        })
    }

    /// Order of candidates: the least goes first.
    fn claim(&self) -> (bool, u32, u64) {
        (!self.connected, self.rank, self.process)
    }

    /// Order of active programs: the greatest stays.
    fn standing(&self) -> (u32, std::cmp::Reverse<(u32, u64)>) {
        (self.term, std::cmp::Reverse((self.rank, self.process)))
    }
}

/// State of a program in its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It listens for others, until then.
    Listening(Instant),
    /// Another one is active.
    StandingBy,
    /// It is active, since then.
    Active(Instant),
}

/// One program's view of its cell.
#[derive(Debug)]
pub struct Election {
    own: Heartbeat,
    state: State,
    /// Times of the last two decisions on CLOCK_BOOTTIME, the earlier one first.
    decided: [Instant; 2],
    /// The highest term that was heard of.
    term_max: u32,
    grace: Duration,
    /// Since when another program is connected and this one is not.
    outdone: Option<Instant>,
    /// Since when this program is connected.
    connected_since: Option<Instant>,
    others: Vec<(Instant, Heartbeat)>,
    /// Heartbeats of more programs than are remembered.
    unplaced: u64,
}

impl Election {
    /// Begins to listen. It gives way to a program that is connected after it has not been so itself for `grace`.
    #[must_use]
    pub fn new(process: u64, rank: u32, grace: Duration, now: Moment) -> Self {
        Self {
            own: Heartbeat {
                process,
                cell: process,
                term: 0,
                rank,
                active: false,
                connected: false,
            },
            state: State::Listening(now.monotonic + LISTENING),
            decided: [now.boottime; 2],
            term_max: 0,
            grace,
            outdone: None,
            connected_since: None,
            others: Vec::with_capacity(OTHERS_MAX),
            unplaced: 0,
        }
    }

    /// Notes a heartbeat that arrived at `at`.
    pub fn hear(&mut self, at: Instant, heartbeat: Heartbeat) {
        if heartbeat.process == self.own.process {
            return;
        }
        self.term_max = self.term_max.max(heartbeat.term);
        match self.state {
            State::Active(_) => {}
            // The cell is that of the active one, or of the first.
            _ if heartbeat.active => self.own.cell = heartbeat.cell,
            State::Listening(_) => self.own.cell = self.own.cell.min(heartbeat.cell),
            State::StandingBy => {}
        }
        let others = &mut self.others;
        let known = others
            .iter()
            .position(|(_, other)| other.process == heartbeat.process);
        match known {
            Some(place) => others[place] = (at, heartbeat),
            None if others.len() < OTHERS_MAX => others.push((at, heartbeat)),
            None => self.unplaced = self.unplaced.saturating_add(1),
        }
    }

    /// Decides every [`BEAT`], tells the others by `send`, and then takes the right or gives it up in `activity`. `now`
    /// is a time before the last look for heartbeats.
    pub fn decide(
        &mut self,
        now: Moment,
        connected: bool,
        activity: &Activity,
        send: impl FnOnce(&Heartbeat),
    ) -> State {
        let state = self.tick(now, connected);
        let Heartbeat { cell, term, .. } = self.own;
        if !self.own.active {
            // Before another one hears of it.
            activity.end(cell);
        }
        send(&self.own);
        if let State::Active(since) = state {
            activity.grant(cell, term, since, self.lease_end());
        }
        state
    }

    /// End of the time for which the others are known to wait, on CLOCK_BOOTTIME.
    fn lease_end(&self) -> Instant {
        self.decided[0] + LEASE
    }

    fn tick(&mut self, now: Moment, connected: bool) -> State {
        let lapsed = now.boottime >= self.lease_end();
        self.decided = [self.decided[1], now.boottime];
        let now = now.monotonic;
        self.own.connected = connected;
        self.connected_since = connected.then(|| self.connected_since.unwrap_or(now));
        self.others
            .retain(|(at, _)| now.saturating_duration_since(*at) <= SILENCE_MAX);
        let gives_way = matches!(self.state, State::Active(_)) && self.gives_way(now);
        self.state = match self.state {
            // Another one may be active by now.
            _ if lapsed => State::Listening(now + LISTENING),
            State::Listening(until) if now < until => self.state,
            State::Active(_) if gives_way => State::StandingBy,
            State::Active(since) => State::Active(since),
            State::Listening(_) | State::StandingBy if self.takes_over(now) => {
                self.own.term = self.term_max.max(self.own.term).saturating_add(1);
                State::Active(now)
            }
            State::Listening(_) | State::StandingBy => State::StandingBy,
        };
        self.own.active = matches!(self.state, State::Active(_));
        self.state
    }

    /// Gives the right up and tells the others.
    pub fn resign(&mut self, activity: &Activity, send: impl FnOnce(&Heartbeat)) {
        activity.end(self.own.cell);
        (self.own.active, self.own.connected) = (false, false);
        send(&self.own);
    }

    /// Programs of the cell that were heard of late, without this one.
    #[must_use]
    pub fn others(&self) -> usize {
        self.others.len()
    }

    /// Heartbeats that were not counted in, because they came from more programs than are remembered.
    #[must_use]
    pub fn unplaced(&self) -> u64 {
        self.unplaced
    }

    /// Whether this program, which is active, leaves that to another one.
    fn gives_way(&mut self, now: Instant) -> bool {
        let mut others = self.others.iter().map(|(_, other)| other);
        let is_outdone = !self.own.connected && others.clone().any(|other| other.connected);
        self.outdone = is_outdone.then(|| self.outdone.unwrap_or(now));
        let may_return = |since| now.saturating_duration_since(since) < self.grace;
        let outranks = |other: &Heartbeat| other.active && other.standing() > self.own.standing();
        others.any(outranks) || self.outdone.is_some_and(|since| !may_return(since))
    }

    /// Whether no other program precedes this one, which is not active. Its connection counts once all the others
    /// that it knows have heard of it: of two that connect in the same moment, each would precede the other.
    fn takes_over(&self, now: Instant) -> bool {
        let was_told = |since| now.saturating_duration_since(since) > SILENCE_MAX;
        let own = Heartbeat {
            connected: self.connected_since.is_some_and(was_told),
            ..self.own
        };
        let goes_before = |other: &Heartbeat| other.active || other.claim() < own.claim();
        !self.others.iter().any(|(_, other)| goes_before(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::cast_possible_truncation)] // 50
    const STEP_MS: u64 = BEAT.as_millis() as u64;

    fn ms(number: u64) -> Instant {
        Instant::from_nanos(number * 1_000_000)
    }

    /// A moment of a machine that was suspended for so long before.
    fn moment(number_ms: u64, suspended_ms: u64) -> Moment {
        Moment {
            monotonic: ms(number_ms - suspended_ms),
            boottime: ms(number_ms),
        }
    }

    /// Programs of a cell in virtual time, each heard by the others, unless cut off, stopped or dead.
    struct Cell {
        now_ms: u64,
        programs: Vec<Election>,
        activities: Vec<Activity>,
        connected: Vec<bool>,
        running: Vec<bool>,
        /// Time for which each one's machine was suspended.
        suspended_ms: Vec<u64>,
        cut: bool,
        was_cut: bool,
    }

    impl Cell {
        fn new(count: u64) -> Self {
            let each = |number| Election::new(number + 1, 0, Duration::ZERO, moment(0, 0));
            Self {
                now_ms: 0,
                programs: (0..count).map(each).collect(),
                activities: (0..count).map(Activity::new).collect(),
                connected: vec![true; count as usize],
                running: vec![true; count as usize],
                suspended_ms: vec![0; count as usize],
                cut: false,
                was_cut: false,
            }
        }

        fn run(&mut self, duration_ms: u64) {
            for _ in 0..duration_ms / STEP_MS {
                self.now_ms += STEP_MS;
                self.was_cut |= self.cut;
                let now_ms = self.now_ms;
                let holds = |one: &&Activity| one.at(|| ms(now_ms)).is_some();
                let holders = self.activities.iter().filter(holds).count();
                assert!(self.was_cut || holders <= 1, "at {} ms", self.now_ms);
                // All decide before any of them hears another.
                let running = (0..self.programs.len()).filter(|one| self.running[*one]);
                let mut told = Vec::new();
                for index in running.clone() {
                    let now = moment(now_ms, self.suspended_ms[index]);
                    let (connected, activity) = (self.connected[index], &self.activities[index]);
                    let tell = |one: &Heartbeat| told.push((index, one.bytes()));
                    self.programs[index].decide(now, connected, activity, tell);
                }
                for (sender, bytes) in told.iter().filter(|_| !self.cut) {
                    for index in running.clone().filter(|index| index != sender) {
                        let heard = Heartbeat::parse(bytes).expect("a heartbeat");
                        let at = ms(now_ms - self.suspended_ms[index]);
                        self.programs[index].hear(at, heard);
                    }
                }
            }
        }

        fn active(&self) -> Vec<usize> {
            let is_active = |one: &usize| self.programs[*one].own.active;
            (0..self.programs.len())
                .filter(|one| self.running[*one] && is_active(one))
                .collect()
        }
    }

    #[test]
    fn one_becomes_active_and_all_know_one_cell() {
        let mut cell = Cell::new(3);
        cell.run(400);
        assert_eq!(cell.active(), [0; 0]);
        cell.run(600);
        assert_eq!(cell.active(), [0]);
    }

    #[test]
    fn another_takes_over_within_half_a_second_and_the_first_stays_behind_when_it_is_back() {
        let mut cell = Cell::new(3);
        cell.run(1_000);
        let number = cell.programs[1].own.cell;
        cell.running[0] = false;
        cell.run(500);
        assert_eq!(cell.active(), [1]);
        assert_eq!(cell.programs[1].own.term, 2);
        assert_eq!(cell.programs[1].own.cell, number);
        cell.programs[0] = Election::new(9, 0, Duration::ZERO, moment(cell.now_ms, 0));
        cell.running[0] = true;
        cell.run(2_000);
        assert_eq!(cell.active(), [1]);
        assert_eq!(cell.programs[0].own.cell, number);
    }

    #[test]
    fn one_that_was_stopped_is_not_active_when_it_goes_on() {
        let mut cell = Cell::new(2);
        cell.run(1_000);
        cell.running[0] = false;
        cell.run(600);
        cell.running[0] = true;
        let now = moment(cell.now_ms + STEP_MS, 0);
        assert!(matches!(
            cell.programs[0].tick(now, true),
            State::Listening(_)
        ));
        cell.run(2_000);
        assert_eq!(cell.active(), [1]);
    }

    #[test]
    fn one_whose_machine_was_suspended_has_no_right_when_it_goes_on() {
        let mut cell = Cell::new(2);
        cell.run(1_000);
        assert_eq!(cell.active(), [0]);
        cell.running[0] = false;
        cell.run(3_600_000);
        cell.suspended_ms[0] = 3_600_000;
        cell.running[0] = true;
        // Before it decides anything; `run` looks again and again.
        assert!(cell.activities[0].at(|| ms(cell.now_ms)).is_none());
        cell.run(2_000);
        assert_eq!(cell.active(), [1]);
        // The same with both of them: they listen, and the right is a new one.
        let term = cell.programs[1].own.term;
        cell.now_ms += 3_600_000;
        cell.suspended_ms = vec![7_200_000, 3_600_000];
        cell.run(400);
        assert_eq!(cell.active(), [0; 0]);
        cell.run(600);
        assert_eq!(cell.active(), [0]);
        assert_eq!(cell.programs[0].own.term, term + 1);
    }

    #[test]
    fn the_connected_one_is_active() {
        let mut cell = Cell::new(2);
        cell.run(1_000);
        cell.connected[0] = false;
        cell.run(200);
        assert_eq!(cell.active(), [1]);
        cell.connected[0] = true;
        cell.run(1_000);
        assert_eq!(cell.active(), [1]);
    }

    #[test]
    fn of_two_that_are_connected_in_the_moment_of_a_takeover_one_is_active() {
        let mut cell = Cell::new(3);
        cell.connected = vec![true, false, false];
        cell.run(1_000);
        cell.running[0] = false;
        // Until the last beat at which they still know it.
        cell.run(350);
        assert_eq!(cell.active(), [0; 0]);
        cell.connected = vec![false, true, true];
        cell.run(50);
        assert_eq!(cell.active(), [1]);
        cell.run(1_000);
        assert_eq!(cell.active(), [1]);
    }

    #[test]
    fn a_connection_that_comes_back_within_its_grace_changes_nothing() {
        let mut cell = Cell::new(2);
        cell.programs = (1..3)
            .map(|number| Election::new(number, 0, Duration::from_secs(2), moment(0, 0)))
            .collect();
        cell.run(1_000);
        cell.connected[0] = false;
        cell.run(1_900);
        cell.connected[0] = true;
        cell.run(1_000);
        assert_eq!(cell.active(), [0]);
        cell.connected[0] = false;
        cell.run(2_200);
        assert_eq!(cell.active(), [1]);
    }

    #[test]
    fn two_that_did_not_hear_each_other_are_one_again_when_they_do() {
        let mut cell = Cell::new(2);
        cell.run(1_000);
        cell.cut = true;
        cell.run(1_000);
        assert_eq!(cell.active(), [0, 1]);
        cell.cut = false;
        cell.run(100);
        assert_eq!(cell.active(), [1], "the higher term stays");
    }

    #[test]
    fn heartbeats_that_are_none_are_refused_and_many_are_bounded() {
        assert_eq!(Heartbeat::parse(&[0; HEARTBEAT_BYTES]), None);
        assert_eq!(Heartbeat::parse(b"TLE1"), None);
        let mut election = Election::new(1, 0, Duration::ZERO, moment(0, 0));
        for process in 2..1_000 {
            let heartbeat = Heartbeat {
                process,
                ..election.own
            };
            election.hear(ms(1), heartbeat);
        }
        assert_eq!(election.others(), OTHERS_MAX);
        assert_eq!(election.unplaced(), 998 - OTHERS_MAX as u64);
    }

    /// A program on a busy machine.
    struct Busy {
        election: Election,
        activity: Activity,
        next_ms: u64,
        heard: Vec<(Instant, Heartbeat)>,
        /// Whether the last heartbeat to each of the others was lost.
        lost: [bool; 3],
    }

    impl Busy {
        fn new(number: u64) -> Self {
            Self {
                election: Election::new(number, 0, Duration::ZERO, moment(0, 0)),
                activity: Activity::new(number),
                next_ms: 0,
                heard: Vec::new(),
                lost: [false; 3],
            }
        }

        fn decide(&mut self, now: Moment, connected: bool) -> Heartbeat {
            for (at, heartbeat) in self.heard.drain(..) {
                self.election.hear(at, heartbeat);
            }
            let mut told = None;
            let send = |one: &Heartbeat| told = Some(*one);
            self.election.decide(now, connected, &self.activity, send);
            told.expect("one after each decision")
        }
    }

    #[test]
    fn no_two_hold_the_right_at_once_though_decisions_are_late_and_heartbeats_are_lost() {
        for seed in 1..=100 {
            let mut random: u64 = seed;
            let mut below = |bound: u64| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (random >> 33) % bound
            };
            let mut programs = [1, 2, 3].map(Busy::new);
            let mut held_ms = 0;
            for now_ms in 0..20_000 {
                for index in 0..programs.len() {
                    let program = &mut programs[index];
                    if program.next_ms > now_ms {
                        continue;
                    }
                    let late = [3, 3, 3, 3, 3, 60, 60, 200, 350, 600][below(10) as usize];
                    program.next_ms = now_ms + STEP_MS + below(late);
                    let heartbeat = program.decide(moment(now_ms, 0), below(10) > 0);
                    for other in (0..3).filter(|other| *other != index) {
                        let lost = &mut programs[index].lost[other];
                        // Never two in a row.
                        *lost = !*lost && below(5) == 0;
                        if !*lost {
                            programs[other].heard.push((ms(now_ms), heartbeat));
                        }
                    }
                }
                let holds = |one: &&Busy| one.activity.at(|| ms(now_ms)).is_some();
                let holders = programs.iter().filter(holds).count();
                assert!(holders <= 1, "seed {seed}, at {now_ms} ms");
                held_ms += holders;
            }
            assert!(held_ms > 1_000, "seed {seed}: {held_ms} of 20000 ms");
        }
    }
}
