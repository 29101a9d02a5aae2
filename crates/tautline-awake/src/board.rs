//! Figures of processes in memory that outlives them: `taut exec --report` makes a board, each process that it serves
//! writes there, and what is read after its end is complete however it ended.
//!
//! Nothing waits here. A process writes only its own entries, and takes new ones by an exchange. An entry of a process
//! that was killed while it wrote can mix two states of one flow, one arrival apart.
#![allow(unsafe_code)] // Memory that processes share.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::flow::{Counts, Figures};
use crate::thread::Settings;
use crate::{Pattern, cpu};

/// Processes with an entry. Lower: of many programs that a script starts, some are not reported. Higher: memory.
const PROCESSES: usize = 64;
/// Flows with an entry, of all processes. Lower: a server that closes many connections lacks the later ones. Higher:
/// a report without a reader.
const FLOWS: usize = 1024;
/// First word of a board, by which a process knows that it has opened one.
const MAGIC: u64 = u64::from_le_bytes(*b"tautexec");

/// Its size cannot change, so that no access to the memory fails.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Lateness of sleeps: eight buckets for each power of two of nanoseconds, from 64 ns.
const BUCKETS: usize = 8 * 28;
/// Words of a flow's figures.
const WORDS: usize = 11;

#[derive(Debug)]
#[repr(C)]
struct Shared {
    magic: AtomicU64,
    /// Processes and flows for which there was no entry.
    left_out: AtomicU64,
    processes: [ProcessEntry; PROCESSES],
    flows: [FlowEntry; FLOWS],
}

#[derive(Debug)]
#[repr(C)]
struct ProcessEntry {
    /// 0: the entry is free.
    number: AtomicU64,
    settings: AtomicU64,
    looked_ns: AtomicU64,
    late: [AtomicU64; BUCKETS],
}

#[derive(Debug)]
#[repr(C)]
struct FlowEntry {
    /// Index of its process and 1; 0: the entry is free.
    process: AtomicU64,
    descriptor: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The shared memory, as this process has it. It stays mapped until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Board(&'static Shared);

/// Entry of a process, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(pub u8);

/// Entry of a flow, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line(pub u16);

/// Effect that `taut exec` has on a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Its waits end awake, with these settings of a thread.
    Awake(Settings),
    /// None, as the user asked for.
    Watched,
    /// None, since a cgroup limits the CPU time.
    Limited,
}

/// Reason why the datagrams of a socket never come past the kernel's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// Another kind of descriptor.
    NotUdp = 128,
    /// Bound to no port, or to another address.
    OtherAddress,
    /// An option asks for more than the datagram.
    Option,
    /// Another socket has its port.
    SharedPort,
    /// All places are taken.
    NoPlace,
    /// The kernel refused.
    NotPermitted,
}

/// Datagrams that came past the kernel's stack, or why there are none.
pub type PastTheStack = Result<u64, Refusal>;

/// Figures of a process.
#[derive(Clone, Debug)]
pub struct ProcessFigures {
    /// Its number.
    pub number: u32,
    /// Effect on it.
    pub effect: Effect,
    /// Time that it spent awake, waiting.
    pub looked: Duration,
    late: [u64; BUCKETS],
    /// Its flows: descriptor and figures.
    pub flows: Vec<(u64, Figures, Option<PastTheStack>)>,
}

impl Board {
    /// Makes a board, and the file by which others open it. Its size stays as it is.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2) and mmap(2).
    pub fn create() -> io::Result<(Self, File)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a name that ends with a zero byte.
        let number = unsafe { libc::memfd_create(c"taut-exec".as_ptr(), flags) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and has no other owner.
        let file = unsafe { File::from_raw_fd(number) };
        file.set_len(size_of::<Shared>() as u64)?;
        let board = Self::map(&file)?;
        board.0.magic.store(MAGIC, Relaxed);
        // SAFETY: no pointers.
        if unsafe { libc::fcntl(number, libc::F_ADD_SEALS, SEALS) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((board, file))
    }

    /// Opens the board that another process has open under a number. The caller may have more rights than that one
    /// (setuid): anything but sealed memory is left alone.
    ///
    /// # Errors
    /// The file cannot be opened or mapped, or is none.
    pub fn open(process: u32, number: u32) -> io::Result<Self> {
        let path = format!("/proc/{process}/fd/{number}");
        if !fs::read_link(&path)?.starts_with("/memfd:taut-exec (deleted)") {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true);
        let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
        // SAFETY: no pointers. Only memory has seals.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let bytes = file.metadata()?.len();
        if seals < 0 || seals & SEALS != SEALS || bytes != size_of::<Shared>() as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let board = Self::map(&file)?;
        match board.0.magic.load(Relaxed) {
            MAGIC => Ok(board),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn map(file: &File) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (bytes, fd) = (size_of::<Shared>(), file.as_raw_fd());
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping; the kernel checks descriptor and length.
        let at = unsafe { libc::mmap(nowhere, bytes, access, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: mapped until the process ends, aligned to a page, of this length; all fields are atomics, for which
        // any bits are valid.
        Ok(Self(unsafe { &*at.cast::<Shared>() }))
    }

    /// An entry for this process. `None`: all are taken, which is counted.
    pub fn enter(self, number: u32) -> Option<Process> {
        let mut entries = self.0.processes.iter();
        let index = entries.position(|entry| is_taken(&entry.number, number.into()));
        self.counted(index)
            .and_then(|index| u8::try_from(index).ok())
            .map(Process)
    }

    /// An entry for a flow. `None`: all are taken, which is counted.
    pub fn begin(self, process: Process, descriptor: usize) -> Option<Line> {
        let owner = u64::from(process.0) + 1;
        let mut entries = self.0.flows.iter();
        let index = entries.position(|entry| is_taken(&entry.process, owner));
        let index = u16::try_from(self.counted(index)?).ok()?;
        let line = Line(index);
        self.flow(line).descriptor.store(descriptor as u64, Relaxed);
        Some(line)
    }

    fn process(self, process: Process) -> &'static ProcessEntry {
        &self.0.processes[usize::from(process.0) % PROCESSES]
    }

    fn flow(self, line: Line) -> &'static FlowEntry {
        &self.0.flows[usize::from(line.0) % FLOWS]
    }

    fn counted(self, index: Option<usize>) -> Option<usize> {
        if index.is_none() {
            self.0.left_out.fetch_add(1, Relaxed);
        }
        index
    }

    /// Writes the figures of a flow.
    pub fn write(self, line: Line, figures: Figures, past: Option<PastTheStack>) {
        for (word, value) in self.flow(line).words.iter().zip(words_of(figures, past)) {
            word.store(value, Relaxed);
        }
    }

    /// Writes how the calling process and its thread are served, and the time spent awake so far.
    pub fn update(self, process: Process, effect: Effect) {
        let entry = self.process(process);
        entry.settings.store(number_of(effect), Relaxed);
        let looked = cpu::looked().as_nanos() as u64;
        entry.looked_ns.store(looked, Relaxed);
    }

    /// A sleep of the process ended so late.
    pub fn slept(self, process: Process, late: Duration) {
        let ns = (late.as_nanos().min(u64::MAX.into()) as u64).max(64);
        let power = ns.ilog2();
        let eighth = (ns >> (power - 3)) & 7;
        let bucket = ((power as usize - 6) * 8 + eighth as usize).min(BUCKETS - 1);
        let entry = self.process(process);
        entry.late[bucket].fetch_add(1, Relaxed);
    }

    /// Processes and flows for which there was no entry.
    pub fn left_out(self) -> u64 {
        self.0.left_out.load(Relaxed)
    }

    /// Everything on the board, in the order of the first waits.
    pub fn processes(self) -> Vec<ProcessFigures> {
        let entries = self.0.processes.iter().enumerate();
        let taken = entries.filter_map(|(index, entry)| {
            let number = u32::try_from(entry.number.load(Relaxed)).ok()?;
            (number != 0).then(|| self.figures(index as u64 + 1, number, entry))
        });
        taken.collect()
    }

    fn figures(self, owner: u64, number: u32, entry: &ProcessEntry) -> ProcessFigures {
        let flows = self.0.flows.iter();
        let flows = flows.filter(|flow| flow.process.load(Relaxed) == owner);
        ProcessFigures {
            number,
            effect: effect_of(entry.settings.load(Relaxed)),
            looked: Duration::from_nanos(entry.looked_ns.load(Relaxed)),
            late: entry.late.each_ref().map(|count| count.load(Relaxed)),
            flows: flows
                .map(|flow| {
                    let words = flow.words.each_ref().map(|word| word.load(Relaxed));
                    let (figures, past) = figures_of(words);
                    (flow.descriptor.load(Relaxed), figures, past)
                })
                .collect(),
        }
    }
}

/// Numbers above those of a thread's settings.
const WATCHED: u64 = Settings::ALL.len() as u64;
const LIMITED: u64 = WATCHED + 1;

fn number_of(effect: Effect) -> u64 {
    match effect {
        Effect::Awake(settings) => settings as u64,
        Effect::Watched => WATCHED,
        Effect::Limited => LIMITED,
    }
}

fn effect_of(number: u64) -> Effect {
    let settings = Settings::ALL.into_iter().find(|one| *one as u64 == number);
    match (settings, number) {
        (Some(settings), _) => Effect::Awake(settings),
        (None, LIMITED) => Effect::Limited,
        (None, _) => Effect::Watched,
    }
}

impl ProcessFigures {
    /// Bound that so many of thousand sleeps stayed below in their lateness. `None`: there were no sleeps.
    pub fn late(&self, per_mille: u64) -> Option<Duration> {
        let total = self
            .late
            .iter()
            .fold(0u64, |sum, count| sum.saturating_add(*count));
        let wanted = total.saturating_mul(per_mille).div_ceil(1_000);
        let mut seen = 0u64;
        let bucket = self.late.iter().position(|count| {
            seen = seen.saturating_add(*count);
            total > 0 && seen >= wanted
        })?;
        let (power, eighth) = (bucket / 8 + 6, bucket % 8);
        Some(Duration::from_nanos(((9 + eighth) as u64) << (power - 3)))
    }
}

impl Refusal {
    const ALL: [Self; 6] = [
        Self::NotUdp,
        Self::OtherAddress,
        Self::Option,
        Self::SharedPort,
        Self::NoPlace,
        Self::NotPermitted,
    ];

    /// The refusal of a number.
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|one| *one as u8 == number)
    }

    /// Words for a report.
    pub fn why(self) -> &'static str {
        match self {
            Self::NotUdp => "no UDP socket over IPv4",
            Self::OtherAddress => "bound to no port, or to another address",
            Self::Option => "an option asks for more than the datagram",
            Self::SharedPort => "another socket has its port",
            Self::NoPlace => "all places are taken",
            Self::NotPermitted => "the kernel refused",
        }
    }
}

/// Takes a free entry for an owner.
fn is_taken(entry: &AtomicU64, owner: u64) -> bool {
    entry.load(Relaxed) == 0 && entry.compare_exchange(0, owner, Relaxed, Relaxed).is_ok()
}

/// A count above all numbers of refusals.
const COUNTS: u64 = 256;

fn nanos(time: Duration) -> u64 {
    time.as_nanos().min(u64::MAX.into()) as u64
}

fn words_of(figures: Figures, past: Option<PastTheStack>) -> [u64; WORDS] {
    let (kind, time, spread) = match figures.pattern {
        Pattern::None => (0, Duration::ZERO, Duration::ZERO),
        Pattern::Periodic { period, spread } => (1, period, spread),
        Pattern::Answers { delay, spread } => (2, delay, spread),
    };
    let counts = figures.counts;
    [
        kind,
        nanos(time),
        nanos(spread),
        counts.awake,
        counts.asleep,
        counts.before,
        counts.in_vain,
        counts.looked_ns,
        figures.gain.map_or(0, |gain| nanos(gain).saturating_add(1)),
        figures.could_be_met,
        match past {
            None => 0,
            Some(Err(refusal)) => refusal as u64,
            Some(Ok(count)) => COUNTS + count,
        },
    ]
}

fn figures_of(words: [u64; WORDS]) -> (Figures, Option<PastTheStack>) {
    let [
        kind,
        time,
        spread,
        awake,
        asleep,
        before,
        in_vain,
        looked_ns,
        gain,
        could_be_met,
        past,
    ] = words;
    let (time, spread) = (Duration::from_nanos(time), Duration::from_nanos(spread));
    let figures = Figures {
        pattern: match kind {
            1 => Pattern::Periodic {
                period: time,
                spread,
            },
            2 => Pattern::Answers {
                delay: time,
                spread,
            },
            _ => Pattern::None,
        },
        counts: Counts {
            awake,
            asleep,
            before,
            in_vain,
            looked_ns,
        },
        gain: gain.checked_sub(1).map(Duration::from_nanos),
        could_be_met,
    };
    let refusal = u8::try_from(past).ok().and_then(Refusal::of);
    let past = past.checked_sub(COUNTS).map(Ok).or(refusal.map(Err));
    (figures, past)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{Flow, Seen};
    use tautline_proto::time::Instant;

    fn opened(file: &File) -> io::Result<Board> {
        Board::open(std::process::id(), file.as_raw_fd() as u32)
    }

    #[test]
    fn what_one_mapping_writes_another_reads() {
        let (read, file) = Board::create().unwrap();
        let written = opened(&file).unwrap();
        let process = written.enter(77).unwrap();
        written.update(process, Effect::Awake(Settings::ShortSlice));
        let mut flow = Flow::new();
        for k in 0..200 {
            flow.arrived(Instant::from_nanos(k * 1_000_000), Seen::Asleep);
        }
        for (fd, past) in [
            (3, None),
            (4, Some(Ok(9))),
            (5, Some(Err(Refusal::NoPlace))),
        ] {
            let line = written.begin(process, fd).unwrap();
            written.write(line, flow.figures(), past);
        }
        for us in 1..=1_000 {
            written.slept(process, Duration::from_micros(us));
        }
        let found = read.processes();
        let [found] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(found.number, 77);
        assert_eq!(found.effect, Effect::Awake(Settings::ShortSlice));
        let pasts = found.flows.iter().map(|(fd, figures, past)| {
            assert_eq!(*figures, flow.figures());
            (*fd, *past)
        });
        let expected = [
            (3, None),
            (4, Some(Ok(9))),
            (5, Some(Err(Refusal::NoPlace))),
        ];
        assert_eq!(pasts.collect::<Vec<_>>(), expected);
        let median = found.late(500).unwrap();
        let us = Duration::from_micros;
        assert!((us(500)..=us(570)).contains(&median), "{median:?}");
        assert_eq!(read.left_out(), 0);
    }

    #[test]
    fn entries_that_are_lacking_are_counted() {
        let (board, _file) = Board::create().unwrap();
        let processes: Vec<_> = (1..=70).filter_map(|number| board.enter(number)).collect();
        assert_eq!((processes.len(), board.left_out()), (PROCESSES, 6));
        let lines = (0..1_030).filter_map(|fd| board.begin(processes[0], fd));
        assert_eq!((lines.count(), board.left_out()), (FLOWS, 12));
    }

    #[test]
    fn each_effect_has_a_number() {
        let awake = Settings::ALL.map(Effect::Awake);
        for effect in awake.into_iter().chain([Effect::Watched, Effect::Limited]) {
            assert_eq!(effect_of(number_of(effect)), effect);
        }
    }

    #[test]
    fn another_file_is_no_board() {
        let other = File::open(std::env::current_exe().unwrap()).unwrap();
        assert!(opened(&other).is_err());
        let (_board, file) = Board::create().unwrap();
        let board = opened(&file).unwrap();
        board.0.magic.store(1, Relaxed);
        assert!(opened(&file).is_err());
    }
}
