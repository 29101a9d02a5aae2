//! The smoother of an interface: set up, run, and taken away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tautline_proto::smoother::{NODES_MAX, ReceiverConfig};
use tautline_proto::wire::MacAddress;
use tautline_state::fork::OwnerProcess;
use tautline_state::journal::{Journal, Look, PutBack};
use tautline_state::netlink::Route;
use tautline_state::{Directory, policy, runtime_directory};

use crate::SmootherError;
use crate::counts::SendCounts;
use crate::interface_counts::InterfaceCounts;
use crate::peers::Peers;
use crate::program::Programs;
use crate::queue;
use crate::receiving::Receiving;
use crate::sending::{Parts, Sending};
use crate::setting_up::{flush_routes, set_up};
use crate::shared::{Part, STATUS, Shared};
use crate::status::{STATUS_SUFFIX, Status, StatusFile, file_name, status_name};
use crate::sys::{self, ControlSocket, Takes};

/// Real-time priorities of the halves: above ordinary work and tuned interfaces. Higher, and applications would wait
/// for them. The sending half is below the other: a thread that waits for a lock of the kernel whose holder runs spins.
const RECEIVING_PRIORITY: i32 = 12;
const SENDING_PRIORITY: i32 = 11;

/// Longest wait for another process to end.
const END_TIME_MAX: Duration = Duration::from_secs(3);

/// A node on the same switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name, for the status.
    pub name: String,
    /// Its address.
    pub mac: MacAddress,
    /// Most bits a second of our other traffic to it, whether it grants or not; `None`: as much as it grants.
    pub limit_bps: Option<u64>,
}

/// An interface to be smoothed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Its name.
    pub interface: String,
    /// Bits a second that the switch's port in front of it takes, preamble, check sequence and gap included: what is
    /// written on the port.
    pub capacity_bps: u64,
    /// Nodes that may take part, at most 64.
    pub nodes: Vec<Node>,
}

impl Setup {
    fn check(&self) -> Result<(), SmootherError> {
        let wrong = |text: String| Err(SmootherError::Setup(text));
        if self.nodes.is_empty() {
            return wrong("there is no neighbour to smooth traffic with".to_owned());
        }
        if self.nodes.len() > NODES_MAX {
            let count = self.nodes.len();
            return wrong(format!("{count} neighbours, at most {NODES_MAX} possible"));
        }
        if !(1_000_000..=400_000_000_000).contains(&self.capacity_bps) {
            let capacity = self.capacity_bps;
            return wrong(format!(
                "a capacity of {capacity} bit/s is not that of an Ethernet port"
            ));
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let others = &self.nodes[..index];
            if node.mac.is_group() || others.iter().any(|other| other.mac == node.mac) {
                return wrong(format!(
                    "neighbour `{}` has no address of its own",
                    node.name
                ));
            }
        }
        Ok(())
    }
}

/// End of the names of journals.
const JOURNAL_SUFFIX: &str = ".json";

/// Name of the journal of an interface in the calling thread's network namespace.
fn journal_name(interface: &str) -> String {
    format!("{}{JOURNAL_SUFFIX}", file_name(interface))
}

/// A smoother that is set up. Dropped, it lets everything go and puts back what it changed.
#[derive(Debug)]
pub struct Smoother {
    journal: Journal,
    recovered: Vec<String>,
    interface: u32,
    file: StatusFile,
    shared: Arc<Shared>,
    receiving: Receiving,
    sending: Sending,
    process: OwnerProcess,
}

impl Smoother {
    /// Sets everything up, first putting back what a killed process left. Nothing is held before [`run`](Self::run).
    ///
    /// # Errors
    /// [`SmootherError`]. Everything is as it was before.
    pub fn begin(setup: Setup) -> Result<Self, SmootherError> {
        setup.check()?;
        let mut route = Route::open().map_err(SmootherError::of("use netlink"))?;
        let interface = queue::interface(&mut route, &setup.interface)
            .map_err(|_| SmootherError::NoInterface(setup.interface.clone()))?;
        let mac = interface
            .mac
            .filter(|mac| !mac.is_unspecified())
            .ok_or_else(|| SmootherError::NoEthernet(setup.interface.clone()))?;
        let macs: Vec<MacAddress> = setup.nodes.iter().map(|node| node.mac).collect();
        let (programs, leases) = Programs::load(&macs)?;
        let programs = Arc::new(programs);
        let socket = |takes| {
            ControlSocket::open(interface.index, takes)
                .map_err(SmootherError::of("open a packet socket"))
        };
        let (reports, grants) = (socket(Takes::Reports)?, socket(Takes::Grants)?);
        let counts = || {
            InterfaceCounts::open(interface.index, &setup.interface).map_err(SmootherError::counts)
        };
        let (counts_in, counts_out) = (counts()?, counts()?);
        let directory = runtime_directory()?;
        let name = journal_name(&setup.interface);
        let (mut journal, mut recovered) =
            Journal::open_in(directory.try_clone()?, &name, "taut smooth")?;
        recovered.extend(journal.refused().iter().cloned());
        let file = StatusFile::new(directory, &setup.interface)?;
        let shared = Arc::new(Shared::new(Peers::new(mac, macs)));
        let made = set_up(&mut route, &mut journal, &setup, interface.index, &programs);
        let classes = match made {
            Ok(made) => made,
            Err(error) => {
                journal.put_back();
                return Err(match journal.refused() {
                    [] => error,
                    refused => {
                        let refused = refused.iter().cloned();
                        let all = std::iter::once(error.to_string()).chain(refused);
                        SmootherError::NotPutBack(all.collect())
                    }
                });
            }
        };
        if !flush_routes() {
            shared.note(
                "routes cannot be flushed: connections that are open keep long segments".to_owned(),
            );
        }
        let epoch = sys::now().as_nanos() as u32 ^ std::process::id();
        let receiving = Receiving::new(
            Arc::clone(&shared),
            reports,
            (Arc::clone(&programs), leases),
            counts_in,
            ReceiverConfig {
                capacity_bps: setup.capacity_bps,
                node_count: setup.nodes.len(),
                epoch,
            },
        );
        let sending = Sending::new(Parts {
            shared: Arc::clone(&shared),
            counts: SendCounts::new(counts_out, classes, &programs),
            setup,
            socket: grants,
            route,
            programs,
            epoch,
        });
        Ok(Self {
            journal,
            recovered,
            interface: interface.index,
            file,
            shared,
            receiving,
            sending,
            process: OwnerProcess::current(),
        })
    }

    /// Changes of a killed process that were put back at the beginning, and those that could not be.
    #[must_use]
    pub fn recovered(&self) -> &[String] {
        &self.recovered
    }

    /// Parts that could not be had.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.shared.notes()
    }

    /// CPU time that it has taken, a little behind while it runs.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        self.shared.cpu_time()
    }

    /// Smooths until `stop` is true. Each half has a thread of its own, with a priority above ordinary work. An
    /// ordinary thread writes the status, and another one asks for the speed of the link: neither half waits for a
    /// disk, nor the speed for the status.
    ///
    /// # Errors
    /// [`SmootherError`], for example because the interface is gone.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), SmootherError> {
        self.check_process()?;
        let (shared, receiving, sending) = (&*self.shared, &mut self.receiving, &mut self.sending);
        let (file, interface) = (&self.file, self.interface);
        let over = &AtomicBool::new(false);
        let stops = || stop.load(Ordering::Relaxed) || over.load(Ordering::Relaxed);
        shared.sending_lives(sys::now());
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        thread::scope(|scope| {
            // One that cannot be started ends those that run.
            let _ends = Ends(over);
            let not_started = |error| SmootherError::of("start a thread")(error);
            let status = named("smooth-status").spawn_scoped(scope, move || {
                let _ends = Ends(over);
                write_status(file, shared, stops);
            });
            let status = status.map_err(not_started)?;
            let speed = named("smooth-speed").spawn_scoped(scope, move || {
                let _ends = Ends(over);
                ask_for_speed(interface, shared, stops);
            });
            let speed = speed.map_err(not_started)?;
            let writer = status.thread().clone();
            let sending = named("smooth-send").spawn_scoped(scope, move || {
                let _ends = Ends(over);
                raise_priority(SENDING_PRIORITY, shared);
                sending.run(stops, &writer)
            });
            let sending = sending.map_err(not_started)?;
            let receiving = named("smooth-receive").spawn_scoped(scope, move || {
                let _ends = Ends(over);
                raise_priority(RECEIVING_PRIORITY, shared);
                receiving.run(stops)
            });
            let halves = [receiving.map_err(not_started)?, sending].map(joined);
            for thread in [status, speed] {
                thread.thread().unpark();
                joined(thread);
            }
            halves.into_iter().fold(Ok(()), Result::and)
        })
    }

    /// Lets everything go and puts back what it changed, as dropping does.
    ///
    /// # Errors
    /// [`SmootherError::NotPutBack`]: changes that are still in force. They stay noted.
    pub fn end(mut self) -> Result<(), SmootherError> {
        self.check_process()?;
        self.put_back();
        match self.journal.refused() {
            [] => Ok(()),
            refused => Err(SmootherError::NotPutBack(refused.to_vec())),
        }
    }

    fn check_process(&self) -> Result<(), SmootherError> {
        let checked = self.process.check();
        checked.map_err(|error| SmootherError::of("use the smoother")(error.into()))
    }

    /// Nothing in a forked process: what is held and changed is the parent's.
    fn put_back(&mut self) {
        if !self.process.is_current() {
            return;
        }
        self.receiving.let_go();
        self.sending.let_go();
        self.file.remove();
        self.journal.put_back();
    }
}

/// Tells all threads of a smoother to end, when one of them ends in whatever way.
struct Ends<'r>(&'r AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Result of a thread, once it has ended.
fn joined<R>(thread: ScopedJoinHandle<'_, R>) -> R {
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

impl Drop for Smoother {
    fn drop(&mut self) {
        self.put_back();
    }
}

/// Writes the statuses that the sending half tells. One that cannot be written is noted, and the next one tried: other
/// traffic is held on a full disk, too.
fn write_status(file: &StatusFile, shared: &Shared, stops: impl Fn() -> bool) {
    let mut has_failed = false;
    while !stops() {
        if let Some(status) = shared.told() {
            shared.write_cpu_time(Part::Status);
            let written = file.write(&status);
            if let Err(error) = &written
                && !has_failed
            {
                shared.note(format!("the status could not be written: {error}"));
            }
            has_failed |= written.is_err();
        }
        thread::park_timeout(STATUS);
    }
}

/// Asks for the speed of the link, as often as there is a status.
fn ask_for_speed(interface: u32, shared: &Shared, stops: impl Fn() -> bool) {
    while !stops() {
        let link_bps = sys::link_speed_bps(interface).unwrap_or(u64::MAX);
        shared.link_bps.store(link_bps, Ordering::Relaxed);
        shared.write_cpu_time(Part::Speed);
        thread::park_timeout(STATUS);
    }
}

/// Raises the calling thread's priority; a note if that is not allowed.
fn raise_priority(priority: i32, shared: &Shared) {
    if let Err(error) = policy::set_policy(0, libc::SCHED_FIFO, priority) {
        shared.note(format!("ordinary priority: {error}"));
    }
}

/// Process that smooths an interface of the calling thread's network namespace, by its number here.
///
/// # Errors
/// The journal cannot be read.
pub fn holder(directory: &Directory, interface: &str) -> Result<Option<u32>, SmootherError> {
    let look = Look::at(directory, &journal_name(interface))?;
    Ok(look.and_then(|look| look.holder))
}

/// Interfaces of the calling thread's network namespace of which a killed smoother left a journal or a status;
/// [`end`] puts them back.
///
/// # Errors
/// The directory cannot be read.
pub fn left(directory: &Directory) -> Result<Vec<String>, SmootherError> {
    let prefix = file_name("");
    let mut interfaces = Vec::new();
    for entry in directory.entries()? {
        let interface = entry.name.to_str().and_then(|name| {
            let name = name.strip_prefix(&prefix)?;
            let interface = name.strip_suffix(JOURNAL_SUFFIX);
            interface.or_else(|| name.strip_suffix(STATUS_SUFFIX))
        });
        // One whose journal cannot be read is named as well: putting it back says why.
        if let Some(interface) = interface
            && !matches!(holder(directory, interface), Ok(Some(_)))
        {
            interfaces.push(interface.to_owned());
        }
    }
    interfaces.sort();
    interfaces.dedup();
    Ok(interfaces)
}

impl Status {
    /// The status of an interface; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of(directory: &Directory, interface: &str) -> Result<Option<Status>, SmootherError> {
        Ok(crate::read_status(directory, &status_name(interface))?)
    }

    /// The statuses of all interfaces of the calling thread's network namespace, and of each whether its process lives.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn all(directory: &Directory) -> Result<Vec<(Status, bool)>, SmootherError> {
        let prefix = file_name("");
        let mut found = Vec::new();
        for entry in directory.entries()? {
            let interface = entry.name.to_str().and_then(|name| {
                let name = name.strip_prefix(&prefix)?.strip_suffix(STATUS_SUFFIX)?;
                Some(name.to_owned())
            });
            let Some(interface) = interface else { continue };
            if let Some(status) = Status::of(directory, &interface)? {
                // One whose journal cannot be read is not known to live, and hides no other.
                let look = Look::at(directory, &journal_name(&interface)).unwrap_or_default();
                let lives = look
                    .is_some_and(|look| look.holder.is_some() && look.process == status.process);
                found.push((status, lives));
            }
        }
        found.sort_by(|one, other| one.0.interface.cmp(&other.0.interface));
        Ok(found)
    }
}

/// Ends the smoother of an interface and waits for it, or puts back what a killed one left. Nothing is done if there is
/// nothing.
///
/// # Errors
/// [`SmootherError`].
pub fn end(interface: &str) -> Result<PutBack, SmootherError> {
    let directory = runtime_directory()?;
    let mut all = PutBack::default();
    if let Some(pid) = holder(&directory, interface)? {
        let number = i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let descriptor = number.map(|number| pidfd_open(number, PidfdFlags::empty()));
        // Asked again with the descriptor open: then it is the process of the descriptor that holds the journal.
        if let Some(Ok(descriptor)) = descriptor
            && holder(&directory, interface)? == Some(pid)
        {
            pidfd_send_signal(&descriptor, Signal::TERM)
                .map_err(|error| SmootherError::of("end the process")(error.into()))?;
            let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
            let timeout = Timespec::try_from(END_TIME_MAX).unwrap_or_default();
            let _ended = poll(&mut polled, Some(&timeout));
        }
        if holder(&directory, interface)?.is_none() {
            all.done.push(format!("process {pid} ended"));
        } else {
            return Err(SmootherError::Failed {
                action: "end the process that smooths",
                source: std::io::ErrorKind::TimedOut.into(),
            });
        }
    }
    all.add(Journal::recover_in(&directory, &journal_name(interface)));
    let _ = directory.remove(status_name(interface));
    let _ = directory.sweep(status_name(interface));
    Ok(all)
}
