//! From a port to another network: the work of a publication's thread, whatever the engine.
//!
//! The port's memory is the queue between the cell and the network. Senders write into that memory
//! and continue, full or not. This thread alone waits for the engine.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use tautline::{Instant, Priority, QueuingPort, SamplingPort, Wait, now};

use crate::activity::{Activity, Grant};
use crate::counters;
use crate::gate::{Decision, Gate, Rules};
use crate::port::Port;
use crate::program::Failure;

/// Longest wait for a value before the thread looks whether it is to end. Lower: more wake-ups. Higher: an end takes
/// longer.
const LOOK: Duration = Duration::from_millis(100);

/// A value or message, without its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    /// When it arrived at the port.
    pub arrival: Instant,
    /// Its priority in the cell.
    pub priority: Priority,
}

/// The right to publish one value.
#[derive(Clone, Copy, Debug)]
pub struct Right {
    /// The program's right.
    pub grant: Grant,
    /// Time before the look at the right. A process that is stopped after that look sends an old value, and
    /// receivers notice that by these times.
    pub at: Instant,
    /// That time on the wall clock.
    pub wall: SystemTime,
}

/// End of a value's way. Each value or message that the port hands out has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Given to the engine.
    Published,
    /// Left out by `every`.
    Decimated,
    /// Equal to the last published one.
    Unchanged,
    /// Replaced by a newer one before its time came.
    Thinned,
    /// Older than its validity.
    Stale,
    /// Come while another program was active, or before this one took over.
    Standby,
    /// Of another size than the port's type.
    OtherSize,
    /// The network's message cannot hold it.
    Unfit,
    /// The engine has no room.
    Refused,
    /// Replaced in the port before it was read.
    Overwritten,
}

counters! {
    /// Counters of a publication. Each value or message that the port hands out is in one of them.
    pub Published, PublishedTold {
        /// Given to the engine.
        published,
        /// Not the one in so many (`every`).
        decimated,
        /// Equal to the last published one (`on_change`).
        unchanged,
        /// Replaced by a newer one before its time came (`period_min_ms`).
        thinned,
        /// Older than its validity.
        stale,
        /// Come while another program was active, or before this one took over.
        standby,
        /// Of another size than the port's type.
        other_size,
        /// Refused by the engine.
        refused,
        /// Replaced in the port before they were read.
        overwritten,
    }
}

impl Published {
    /// Counts values. Those that the network's message cannot hold count as refused.
    pub fn count(&self, fate: Fate, more: u64) {
        let counter = match fate {
            Fate::Published => &self.published,
            Fate::Decimated => &self.decimated,
            Fate::Unchanged => &self.unchanged,
            Fate::Thinned => &self.thinned,
            Fate::Stale => &self.stale,
            Fate::Standby => &self.standby,
            Fate::OtherSize => &self.other_size,
            Fate::Unfit | Fate::Refused => &self.refused,
            Fate::Overwritten => &self.overwritten,
        };
        counter.fetch_add(more, Relaxed);
    }
}

/// Limits of a publication.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Choice among the values of a sampling port.
    pub rules: Rules,
    /// Time after its arrival for which a value may be published.
    pub validity: Option<Duration>,
    /// Size of a value, if its type is declared.
    pub bytes: Option<usize>,
}

/// The network's side of a publication.
pub trait Engine {
    /// Whether [`publish`](Self::publish) is told of the next message.
    const LOOKS_AHEAD: bool = false;

    /// Called before each wait for a value, at least every 100 ms.
    ///
    /// # Errors
    /// The publication cannot go on.
    fn prepare(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Notes a value of a sampling port that may be published, chosen or not.
    fn note(&mut self, _value: Value, _bytes: &[u8]) {}

    /// Whether the network's message can hold a value. Asked of a value that has to wait, as it takes the place of an
    /// older one.
    fn fits(&self, _bytes: &[u8]) -> bool {
        true
    }

    /// Publishes a value: [`Fate::Published`], [`Fate::Unfit`] or [`Fate::Refused`]. `next` is the priority of the
    /// message that is published next, if it waits.
    fn publish(
        &mut self,
        right: &Right,
        value: Value,
        bytes: &[u8],
        next: Option<Priority>,
    ) -> Fate;

    /// Counts values.
    fn count(&self, fate: Fate, more: u64);
}

impl Limits {
    /// Whether a value is older than its validity.
    #[must_use]
    pub fn is_stale(&self, value: Value, now: Instant) -> bool {
        let age = now.saturating_duration_since(value.arrival);
        self.validity.is_some_and(|validity| age > validity)
    }

    /// Publishes what comes until `stop` is set.
    ///
    /// # Errors
    /// The port can no longer be read, or the engine cannot go on.
    pub fn publish(
        &self,
        port: Port,
        engine: impl Engine,
        activity: &Activity,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let limits = *self;
        let way = Way {
            engine,
            limits,
            activity,
        };
        match port {
            Port::Queuing(port) => way.publish_all(port, stop),
            Port::Sampling(port) => Sampling::new(way, port.value_bytes_max()).run(port, stop),
        }
    }
}

struct Way<'a, E> {
    engine: E,
    limits: Limits,
    activity: &'a Activity,
}

impl<E: Engine> Way<'_, E> {
    /// The right to publish a value now; counts why there is none.
    fn admit(
        &self,
        value: Value,
        bytes: &[u8],
        at: Instant,
        wall: SystemTime,
    ) -> Result<Right, Fate> {
        let grant = self.activity.now();
        match grant.filter(|grant| value.arrival >= grant.since) {
            None => Err(Fate::Standby),
            Some(_) if self.limits.is_stale(value, at) => Err(Fate::Stale),
            Some(_) if self.limits.bytes.is_some_and(|all| all != bytes.len()) => {
                Err(Fate::OtherSize)
            }
            Some(grant) => Ok(Right { grant, at, wall }),
        }
    }

    /// Publishes a queuing port's messages.
    fn publish_all(mut self, mut port: QueuingPort, stop: &AtomicBool) -> Result<(), Failure> {
        let bytes_max = port.message_bytes_max();
        let mut buffer = vec![0; bytes_max];
        let mut next_buffer = vec![0; if E::LOOKS_AHEAD { bytes_max } else { 0 }];
        let mut waiting = None;
        let mut overwritten = 0;
        loop {
            let is_ending = stop.load(Relaxed);
            // A message that was taken out of the port has an end.
            if is_ending && waiting.is_none() {
                return Ok(());
            }
            self.engine.prepare()?;
            let received = match waiting.take() {
                None => port.receive_into(&mut buffer, Wait::Until(now() + LOOK))?,
                known => known,
            };
            let more = port.overwritten() - overwritten;
            self.engine.count(Fate::Overwritten, more);
            overwritten += more;
            let Some(mut message) = received else {
                continue;
            };
            if E::LOOKS_AHEAD && !is_ending {
                waiting = port.receive_into(&mut next_buffer, Wait::Poll)?;
            }
            // One that has come since is more urgent.
            if let Some(next) = &mut waiting
                && next.priority > message.priority
            {
                mem::swap(next, &mut message);
                mem::swap(&mut next_buffer, &mut buffer);
            }
            let value = Value {
                arrival: message.arrival,
                priority: message.priority,
            };
            let bytes = &buffer[..message.length];
            let next = waiting.as_ref().map(|next| next.priority);
            let (wall, at) = (SystemTime::now(), now());
            let fate = match self.admit(value, bytes, at, wall) {
                Ok(right) => self.engine.publish(&right, value, bytes, next),
                Err(fate) => fate,
            };
            self.engine.count(fate, 1);
            if waiting.is_some() {
                mem::swap(&mut buffer, &mut next_buffer);
            }
        }
    }
}

/// Publication of a sampling port. Reads no clock but in `run`.
struct Sampling<'a, E> {
    way: Way<'a, E>,
    gate: Gate,
    term: u32,
    /// A value whose time has not come: the time, the value, and its bytes.
    held: Option<(Instant, Value)>,
    held_bytes: Vec<u8>,
}

impl<'a, E: Engine> Sampling<'a, E> {
    fn new(way: Way<'a, E>, value_bytes_max: usize) -> Self {
        Self {
            gate: Gate::new(way.limits.rules, value_bytes_max),
            way,
            term: 0,
            held: None,
            held_bytes: Vec::with_capacity(value_bytes_max),
        }
    }

    fn run(mut self, mut port: SamplingPort, stop: &AtomicBool) -> Result<(), Failure> {
        let mut buffer = vec![0; port.value_bytes_max()];
        while !stop.load(Relaxed) {
            self.way.engine.prepare()?;
            let look = now() + LOOK;
            let until = self.held.map_or(look, |(due, _)| due.min(look));
            let came = port.next_into(&mut buffer, Wait::Until(until))?;
            let (wall, at) = (SystemTime::now(), now());
            if let Some(sample) = came {
                self.way.engine.count(Fate::Overwritten, sample.overwritten);
                let value = Value {
                    arrival: sample.arrival,
                    priority: sample.priority,
                };
                self.take(value, &buffer[..sample.length], at, wall);
            }
            self.release(at, wall);
        }
        Ok(())
    }

    /// Takes a value that has come. One that may not be published replaces none.
    fn take(&mut self, value: Value, bytes: &[u8], at: Instant, wall: SystemTime) {
        let right = match self.way.admit(value, bytes, at, wall) {
            Ok(right) => right,
            Err(fate) => return self.way.engine.count(fate, 1),
        };
        if right.grant.term != self.term {
            self.term = right.grant.term;
            self.gate.reset();
        }
        self.way.engine.note(value, bytes);
        let decision = self.gate.offer(at, bytes);
        let fate = match decision {
            Decision::Decimated => Some(Fate::Decimated),
            Decision::Later(_) if !self.way.engine.fits(bytes) => Some(Fate::Unfit),
            _ => None,
        };
        if let Some(fate) = fate {
            return self.way.engine.count(fate, 1);
        }
        if self.held.take().is_some() {
            self.way.engine.count(Fate::Thinned, 1);
        }
        match decision {
            Decision::Publish => self.publish(&right, value, bytes),
            Decision::Later(due) => {
                self.held = Some((due, value));
                self.held_bytes.clear();
                self.held_bytes.extend_from_slice(bytes);
            }
            _ => self.way.engine.count(Fate::Unchanged, 1),
        }
    }

    /// Publishes the value whose time has come.
    fn release(&mut self, at: Instant, wall: SystemTime) {
        let Some((_, value)) = self.held.take_if(|(due, _)| *due <= at) else {
            return;
        };
        let bytes = mem::take(&mut self.held_bytes);
        match self.way.admit(value, &bytes, at, wall) {
            Ok(right) => self.publish(&right, value, &bytes),
            Err(fate) => self.way.engine.count(fate, 1),
        }
        self.held_bytes = bytes;
    }

    fn publish(&mut self, right: &Right, value: Value, bytes: &[u8]) {
        let fate = self.way.engine.publish(right, value, bytes, None);
        if fate == Fate::Published {
            self.gate.published(right.at, bytes);
        }
        self.way.engine.count(fate, 1);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use tautline::config::BusConfig;
    use tautline::{Destination, Node, NodeConfig, bus_neighbour};
    use tautline_state::TemporaryDirectory;

    use super::*;

    /// Says what becomes of values, as it is told or as published.
    #[derive(Default)]
    struct Recorder {
        becomes: VecDeque<Fate>,
        unfit: &'static [u8],
        fates: RefCell<Vec<Fate>>,
        published: Vec<Vec<u8>>,
    }

    impl Engine for &mut Recorder {
        fn fits(&self, bytes: &[u8]) -> bool {
            bytes != self.unfit
        }

        fn publish(&mut self, _: &Right, _: Value, bytes: &[u8], _: Option<Priority>) -> Fate {
            if !self.fits(bytes) {
                return Fate::Unfit;
            }
            let fate = self.becomes.pop_front().unwrap_or(Fate::Published);
            if fate == Fate::Published {
                self.published.push(bytes.to_vec());
            }
            fate
        }

        fn count(&self, fate: Fate, more: u64) {
            let fates = std::iter::repeat_n(fate, more.try_into().unwrap());
            self.fates.borrow_mut().extend(fates);
        }
    }

    fn ms(number: u64) -> Instant {
        Instant::from_nanos(number * 1_000_000)
    }

    /// Steps of a publication: a time, and a value that comes then; none for a look only.
    fn fates(
        recorder: &mut Recorder,
        limits: Limits,
        activity: &Activity,
        steps: &[(u64, Option<&[u8]>)],
    ) -> Vec<Fate> {
        let way = Way {
            engine: &mut *recorder,
            limits,
            activity,
        };
        let mut sampling = Sampling::new(way, 8);
        for (at_ms, came) in steps {
            let (at, wall) = (ms(*at_ms), SystemTime::UNIX_EPOCH);
            let value = Value {
                arrival: at,
                priority: Priority::NORMAL,
            };
            if let Some(bytes) = came {
                sampling.take(value, bytes, at, wall);
            }
            sampling.release(at, wall);
        }
        recorder.fates.take()
    }

    const ON_CHANGE: Limits = Limits {
        rules: Rules {
            on_change: true,
            repeat: None,
            every: 1,
            period_min: Duration::from_secs(3),
        },
        validity: Some(Duration::from_millis(500)),
        bytes: None,
    };

    #[test]
    fn a_changed_value_that_grew_old_before_its_time_is_published_when_it_comes_again() {
        let steps = [(0, "1"), (500, "2"), (7_000, "2"), (10_500, "2")];
        let mut steps = steps
            .map(|(at, value)| (at, Some(value.as_bytes())))
            .to_vec();
        steps.insert(2, (3_000, None));
        let mut recorder = Recorder::default();
        let fates = fates(&mut recorder, ON_CHANGE, &Activity::alone(1), &steps);
        assert_eq!(recorder.published, [b"1", b"2"]);
        let expected = [
            Fate::Published,
            Fate::Stale,
            Fate::Published,
            Fate::Unchanged,
        ];
        assert_eq!(fates, expected);
    }

    #[test]
    fn a_value_that_was_refused_is_published_when_it_comes_again() {
        let mut recorder = Recorder {
            becomes: [Fate::Published, Fate::Refused].into(),
            ..Recorder::default()
        };
        let steps = [(0, "1"), (3_000, "2"), (3_001, "2"), (9_000, "2")];
        let steps = steps.map(|(at, value)| (at, Some(value.as_bytes())));
        let fates = fates(&mut recorder, ON_CHANGE, &Activity::alone(1), &steps);
        assert_eq!(recorder.published, [b"1", b"2"]);
        let expected = [
            Fate::Published,
            Fate::Refused,
            Fate::Published,
            Fate::Unchanged,
        ];
        assert_eq!(fates, expected);
    }

    #[test]
    fn one_that_may_not_be_published_takes_no_place_of_one_that_waits() {
        let mut recorder = Recorder {
            unfit: b"x",
            ..Recorder::default()
        };
        let limits = Limits {
            validity: None,
            bytes: Some(1),
            ..ON_CHANGE
        };
        let steps: [(u64, Option<&[u8]>); 6] = [
            (0, Some(b"1")),
            (500, Some(b"2")),
            (501, Some(b"33")),
            (502, Some(b"x")),
            (3_000, None),
            (3_001, Some(b"x")),
        ];
        let fates = fates(&mut recorder, limits, &Activity::alone(1), &steps);
        assert_eq!(recorder.published, [b"1", b"2"]);
        let expected = [
            Fate::Published,
            Fate::OtherSize,
            Fate::Unfit,
            Fate::Published,
            Fate::Unfit,
        ];
        assert_eq!(fates, expected);
    }

    #[test]
    fn the_newest_waits_for_its_time_while_others_are_left_out() {
        let mut recorder = Recorder::default();
        let limits = Limits {
            rules: Rules {
                every: 2,
                ..ON_CHANGE.rules
            },
            ..Limits::default()
        };
        let steps = [
            (0, "1"),
            (1, "a"),
            (2, "2"),
            (3, "b"),
            (4, "3"),
            (3_000, "c"),
        ];
        let steps = steps.map(|(at, value)| (at, Some(value.as_bytes())));
        let fates = fates(&mut recorder, limits, &Activity::alone(1), &steps);
        assert_eq!(recorder.published, [b"1", b"3"]);
        let expected = [
            Fate::Published,
            Fate::Decimated,
            Fate::Decimated,
            Fate::Thinned,
            Fate::Decimated,
            Fate::Published,
        ];
        assert_eq!(fates, expected);
    }

    #[test]
    fn nothing_of_before_the_takeover_is_published() {
        let activity = Activity::new(1);
        activity.grant(1, 4, ms(100), Instant::FAR_FUTURE);
        let mut recorder = Recorder::default();
        let steps: [(u64, Option<&[u8]>); 2] = [(99, Some(b"1")), (100, Some(b"1"))];
        let fates = fates(&mut recorder, ON_CHANGE, &activity, &steps);
        assert_eq!(fates, [Fate::Standby, Fate::Published]);
    }

    /// Sends an urgent message while it publishes the first one, and has the publication end with the third.
    struct Interrupted<'s> {
        urgent: (QueuingPort, Destination),
        published: &'s RefCell<Vec<(u8, Option<u8>)>>,
        stop: &'s AtomicBool,
    }

    impl Engine for Interrupted<'_> {
        const LOOKS_AHEAD: bool = true;

        fn publish(&mut self, _: &Right, _: Value, bytes: &[u8], next: Option<Priority>) -> Fate {
            let mut published = self.published.borrow_mut();
            published.push((bytes[0], next.map(Priority::get)));
            if published.len() == 1 {
                let (port, to) = &mut self.urgent;
                port.send(*to, Priority::HIGHEST, b"u").unwrap();
            }
            self.stop.store(published.len() >= 3, Relaxed);
            Fate::Published
        }

        fn count(&self, _: Fate, _: u64) {}
    }

    #[test]
    fn a_queue_is_published_in_its_order_with_a_look_at_the_next_one() {
        let bus = TemporaryDirectory::make("taut-publication").unwrap();
        let bus = bus.path().join("bus").display().to_string();
        let config = |name: &str| NodeConfig::vbus(BusConfig::new(&bus, name.parse().unwrap()));
        let open = |node: &Node| {
            let port = node.queuing(7).open();
            port.unwrap()
        };
        let bridge = Node::open(config("bridge")).unwrap();
        let taken = open(&bridge);
        let neighbour = bus_neighbour("bridge".parse().unwrap());
        let motor = Node::open(config("motor").with_neighbour(neighbour).unwrap()).unwrap();
        let mut sender = open(&motor);
        let to = sender.destination("bridge", 7).unwrap();
        for message in [b"a", b"b", b"c", b"d"] {
            sender.send(to, Priority::LOWEST, message).unwrap();
        }
        let (published, stop) = (RefCell::default(), AtomicBool::new(false));
        let engine = Interrupted {
            urgent: (sender, to),
            published: &published,
            stop: &stop,
        };
        let (port, activity) = (Port::Queuing(taken), Activity::alone(1));
        let limits = Limits::default();
        limits.publish(port, engine, &activity, &stop).unwrap();
        // The urgent one overtakes one that was taken before it came, and that one is published before the end.
        let expected = [
            (b'a', Some(0)),
            (b'u', Some(0)),
            (b'b', Some(0)),
            (b'c', None),
        ];
        assert_eq!(*published.borrow(), expected);
    }
}
