//! The receiving side: what a port remembers of the frames that it has taken.

use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;

use super::frame::{Space, Station, Trailer, Way, open_with};
use super::key::{KeyRing, RunKey};
use super::window::Window;
use crate::wire::{FLAG_AUTHENTICATED, Header, PortNumber, Priority};

/// Ports of peers that one receiver remembers. Lower: with more peers, frames that were overtaken are refused. Higher:
/// each takes 6 KiB.
pub const FLOWS_MAX: usize = 48;

/// Runs of a flow whose keys are kept: the newest one, and the one before, of which frames may still be in the
/// queue. Lower: keys are derived again at each change. Higher: more memory.
const RUNS_KEPT: usize = 2;

/// Why a frame was refused. In the order of the checks; the tag comes last, because it costs most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// It is not authenticated.
    Unprotected,
    /// It is too short for a trailer.
    Cut,
    /// There is no key for its sender.
    UnknownSender,
    /// Its key's epoch is not known, or over.
    UnknownEpoch,
    /// Its time is too far from ours: it was held up, or a clock is wrong.
    Untimely,
    /// It has been taken before, or is older than what was seen of its sender.
    Replayed,
    /// Its tag is wrong: the frame was forged or changed, or the keys differ.
    Forged,
}

impl Refusal {
    /// How many there are.
    pub const COUNT: usize = 7;
    /// All, by their [`index`](Self::index).
    pub const ALL: [Self; Self::COUNT] = [
        Self::Unprotected,
        Self::Cut,
        Self::UnknownSender,
        Self::UnknownEpoch,
        Self::Untimely,
        Self::Replayed,
        Self::Forged,
    ];

    /// Its place in an array of counters.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Name of the counter.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unprotected => "unprotected",
            Self::Cut => "cut",
            Self::UnknownSender => "unknown_sender",
            Self::UnknownEpoch => "unknown_epoch",
            Self::Untimely => "untimely",
            Self::Replayed => "replayed",
            Self::Forged => "forged",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Frames of a flow that are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Discipline {
    /// Each once. Any number of frames of other priorities may overtake it, and up to 63 of its own: for queuing ports,
    /// whose urgent frames are checked first.
    InWindow,
    /// Only one that is newer than all before, whatever their priority: for sampling ports, where an older value is
    /// worth nothing.
    NewerOnly,
}

/// One port of one peer.
#[derive(Debug)]
struct Flow {
    source: Station,
    port: PortNumber,
    /// Number of the newest run. Its predecessors are over: their frames may have been recorded.
    run: u64,
    /// Time before which frames of a predecessor may have been sent: that of the newest run's first frame. 0 if the
    /// sender's clock was set back between them, because the predecessor's times then say nothing.
    began_ns: u64,
    /// By priority. The tag covers the priority, so a replay of a frame meets the window that knows the frame.
    windows: [Window; Priority::ALL.len()],
    /// Newest time that was taken or noted, of whichever priority, or the floor.
    newest_ns: u64,
    /// The key that was used last comes first.
    keys: [Option<RunKey>; RUNS_KEPT],
}

/// The receiving side of one port.
#[derive(Debug)]
pub struct Receiver {
    flows: Vec<Flow>,
    /// Where the last frame's flow was.
    latest: usize,
    discipline: Discipline,
    /// Nothing up to this time is taken of a flow that is not remembered.
    floor_ns: u64,
    tolerance_ns: u64,
}

impl Receiver {
    /// A receiver that takes nothing that was sent before `opened_ns`, nor more than `tolerance_ns` before or after
    /// it arrived. Takes all memory.
    pub fn new(discipline: Discipline, opened_ns: u64, tolerance_ns: u64) -> Self {
        Self {
            flows: Vec::with_capacity(FLOWS_MAX),
            latest: 0,
            discipline,
            floor_ns: opened_ns,
            tolerance_ns,
        }
    }

    /// Forgets derived keys, because a ring has changed. What was taken stays remembered.
    pub fn forget_keys(&mut self) {
        for flow in &mut self.flows {
            flow.keys = Default::default();
        }
    }

    /// Checks a frame that arrived at `now_ns`, the time since 1970; header and message as they were sealed.
    /// `keys` are those shared with the sender.
    ///
    /// An authentic frame that is not timely is noted: nothing older is taken of its sender any more. Without that, a
    /// frame that was stamped by a clock that was ahead could be recorded, and sent again when its time has come.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then, except by a frame that was noted.
    #[inline]
    pub fn open<'s>(
        &mut self,
        now_ns: u64,
        keys: &KeyRing,
        way: Way,
        header: &Header,
        payload: &[u8],
        space: &'s mut Space,
    ) -> Result<(Header, &'s [u8]), Refusal> {
        if header.flags & FLAG_AUTHENTICATED == 0 {
            return Err(Refusal::Unprotected);
        }
        let (message, trailer) = Trailer::split(payload).ok_or(Refusal::Cut)?;
        let key = keys
            .accepted(trailer.epoch, now_ns)
            .ok_or(Refusal::UnknownEpoch)?;
        let is_timely = trailer.time_ns.abs_diff(now_ns) <= self.tolerance_ns;
        let refused = |why| if is_timely { why } else { Refusal::Untimely };
        let place = self.place_of(way.source, header.source);
        if !self.takes(place, header.priority, &trailer) {
            return Err(refused(Refusal::Replayed));
        }
        let flow = place.map(|place| &mut self.flows[place]);
        let known = flow.and_then(|flow| flow.key(&trailer));
        if let Some(run_key) = known {
            let opened = open_with(run_key, way, header, (message, &trailer), space);
            let opened = opened.ok_or(refused(Refusal::Forged))?;
            if let Some(place) = place {
                self.take(place, header.priority, &trailer, is_timely)?;
            }
            return Ok(opened);
        }
        let run_key = key.derive(trailer.run, way.source, header.source);
        let opened = open_with(&run_key, way, header, (message, &trailer), space);
        let opened = opened.ok_or(refused(Refusal::Forged))?;
        let place = place.unwrap_or_else(|| self.begin_flow(way.source, header.source, &trailer));
        self.flows[place].keep_key(run_key);
        self.take(place, header.priority, &trailer, is_timely)?;
        Ok(opened)
    }

    fn place_of(&self, source: Station, port: PortNumber) -> Option<usize> {
        let is_it = |flow: &Flow| flow.port == port && flow.source == source;
        if self.flows.get(self.latest).is_some_and(is_it) {
            return Some(self.latest);
        }
        self.flows.iter().position(is_it)
    }

    /// Whether a frame is newer than what was seen of its sender, or has only been overtaken.
    #[inline]
    fn takes(&self, place: Option<usize>, priority: Priority, trailer: &Trailer) -> bool {
        let time = trailer.time_ns;
        let Some(flow) = place.map(|place| &self.flows[place]) else {
            return time > self.floor_ns;
        };
        let is_unseen = || match self.discipline {
            Discipline::InWindow => flow.window(priority).takes(time),
            Discipline::NewerOnly => time > flow.newest_ns,
        };
        match trailer.run.cmp(&flow.run) {
            Ordering::Equal => is_unseen(),
            Ordering::Greater => time > self.floor_ns,
            Ordering::Less => time < flow.began_ns && is_unseen(),
        }
    }

    /// Takes an authentic frame, or only notes it if it is not timely.
    #[inline]
    fn take(
        &mut self,
        place: usize,
        priority: Priority,
        trailer: &Trailer,
        is_timely: bool,
    ) -> Result<(), Refusal> {
        let flow = &mut self.flows[place];
        if trailer.run > flow.run {
            flow.begin_run(trailer, self.floor_ns);
        }
        if !is_timely {
            flow.note(trailer);
            return Err(Refusal::Untimely);
        }
        flow.take(priority, trailer.time_ns);
        self.latest = place;
        Ok(())
    }

    /// Place of a flow that begins; the oldest one is forgotten if there is no room.
    #[cold]
    fn begin_flow(&mut self, source: Station, port: PortNumber, first: &Trailer) -> usize {
        if self.flows.len() == FLOWS_MAX {
            self.forget_oldest();
        }
        self.flows.push(Flow {
            source,
            port,
            run: first.run,
            began_ns: first.time_ns,
            windows: core::array::from_fn(|_| Window::new(self.floor_ns)),
            newest_ns: self.floor_ns,
            keys: Default::default(),
        });
        self.flows.len() - 1
    }

    /// Makes room for a flow. What was forgotten cannot be told from a replay, so nothing as old as it is taken of
    /// any flow that is not remembered.
    fn forget_oldest(&mut self) {
        let flows = self.flows.iter().enumerate();
        let oldest = flows.min_by_key(|(_, flow)| flow.newest_ns);
        if let Some((place, flow)) = oldest {
            self.floor_ns = self.floor_ns.max(flow.newest_ns);
            self.flows.swap_remove(place);
        }
    }
}

impl Flow {
    fn window(&self, priority: Priority) -> &Window {
        &self.windows[usize::from(priority.get())]
    }

    fn take(&mut self, priority: Priority, time: u64) {
        self.windows[usize::from(priority.get())].take(time);
        self.newest_ns = self.newest_ns.max(time);
    }

    /// Goes over to a newer run, at its first frame. A run's number is larger than all before it, so none of its
    /// frames was seen, whatever their times.
    #[cold]
    fn begin_run(&mut self, first: &Trailer, floor_ns: u64) {
        self.run = first.run;
        self.began_ns = first.time_ns;
        if first.time_ns <= self.newest_ns {
            self.began_ns = 0;
            self.forget_times(floor_ns);
        }
    }

    /// Notes an authentic frame that is not timely. One that is older than the newest says nothing.
    #[cold]
    fn note(&mut self, trailer: &Trailer) {
        if trailer.run == self.run && trailer.time_ns > self.newest_ns {
            self.forget_times(trailer.time_ns);
        }
    }

    /// From now on, takes all times later than `floor_ns`, and no other.
    fn forget_times(&mut self, floor_ns: u64) {
        self.windows = core::array::from_fn(|_| Window::new(floor_ns));
        self.newest_ns = floor_ns;
    }

    /// Keeps the key of a run whose first frame was just authentic.
    #[cold]
    fn keep_key(&mut self, run_key: RunKey) {
        self.keys.rotate_right(1);
        self.keys[0] = Some(run_key);
    }

    /// The key of a frame, if it is kept; it comes first then.
    fn key(&mut self, trailer: &Trailer) -> Option<&RunKey> {
        let is_it = |key: &Option<RunKey>| {
            key.as_ref()
                .is_some_and(|key| (key.run, key.epoch) == (trailer.run, trailer.epoch))
        };
        let place = self.keys.iter().position(is_it)?;
        self.keys[place].as_ref()
    }
}
