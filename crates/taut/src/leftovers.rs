//! Changes and files of processes that were killed: found, and put back.
//!
//! Each of them notes what it changes before it changes it, in a journal of the runtime directory, or in the name of a
//! network namespace. Whoever has died cannot put back any more; the next of its kind does, or
//! `taut doctor --put-back`.

use std::time::{Duration, Instant};

use tautline::vbus::Bus;
use tautline_partition::PartitionError;
use tautline_smoother::SmootherError;
use tautline_state::journal::{Journal, JournalError, Left};
use tautline_state::{Directory, StateError, find_runtime_directory, network_namespaces};
use tautline_testbed::hosts::{HostsError, clear_named, inside_named, may_create, stale};

use crate::tune::{self, TuneError, Tuned};

/// Beginnings of the names of journals that mean interfaces of one network namespace.
const SMOOTHER: &str = "smoother-";
const TUNE: &str = "tune-";
const SUFFIX: &str = ".json";
/// From here on numbers are inodes of namespaces, which journals of before had in their names.
const INODES: u64 = 0xF000_0000;
/// Time in which processes that die with a flight let its directory and its groups go.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// Reason why something cannot be found or put back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeftoversError {
    /// A journal.
    #[error("{0}")]
    Journal(#[from] JournalError),
    /// A partition.
    #[error("{0}")]
    Partition(#[from] PartitionError),
    /// A network namespace.
    #[error("{0}")]
    Hosts(#[from] HostsError),
    /// A smoother.
    #[error("{0}")]
    Smoother(#[from] SmootherError),
    /// The tuning of an interface.
    #[error("{0}")]
    Tune(#[from] TuneError),
    /// The runtime directory.
    #[error("{0}")]
    State(#[from] StateError),
    /// Buses.
    #[error("looking for buses: {0}")]
    Buses(#[from] std::io::Error),
}

/// Everything that killed processes of this user left, as text. Nothing is changed.
pub fn found() -> Result<Vec<String>, LeftoversError> {
    let mut found = Vec::new();
    if let Some(directory) = find_runtime_directory()? {
        for left in journals(&directory)? {
            let name = left.name.trim_end_matches(SUFFIX);
            found.push(match left.changes.as_slice() {
                [] => format!("{name}: its journal"),
                [only] => format!("{name}: {only}"),
                [first, others @ ..] => format!("{name}: {first} and {} more", others.len()),
            });
        }
        let smoothers = tautline_smoother::left(&directory)?.into_iter();
        found.extend(smoothers.map(|interface| format!("smoother of {interface}")));
        found.extend(half_written(&directory, false)?);
        found.extend(
            of_gone_namespaces(&directory)?
                .iter()
                .map(|name| format!("{name}, of a network namespace that is gone")),
        );
    }
    let buses = dead_buses()?.into_iter();
    found.extend(buses.map(|bus| format!("bus {} without a living node", bus.name)));
    let namespaces = stale(None)?.into_iter();
    found.extend(namespaces.map(|name| format!("network namespace {name}")));
    Ok(found)
}

/// Puts all of that back, and returns it as text.
pub fn put_back() -> Result<Vec<String>, LeftoversError> {
    let mut done = of_flights(None)?;
    done.extend(of_smoothers()?);
    if let Some(directory) = find_runtime_directory()? {
        let of_tuning = tune::journal_name("");
        let of_tuning = of_tuning.trim_end_matches(SUFFIX);
        for left in journals(&directory)? {
            let name = left.name.trim_end_matches(SUFFIX);
            done.extend(match name.strip_prefix(of_tuning) {
                Some(interface) => Tuned::begin(interface)?.put_back().0,
                None => Journal::recover_in(&directory, &left.name)?,
            });
        }
        done.extend(half_written(&directory, true)?.map(|text| format!("{text} removed")));
        for name in of_gone_namespaces(&directory)? {
            directory.remove(&name)?;
            done.push(format!("{name} removed"));
        }
    }
    for bus in dead_buses()? {
        // Somebody is there again, or it is another user's.
        if bus.clear().is_ok() {
            done.push(format!("bus {} removed", bus.name));
        }
    }
    Ok(done)
}

/// Files of smoothers and tuned interfaces whose network namespace has gone, and with it all that they changed.
fn of_gone_namespaces(directory: &Directory) -> Result<Vec<String>, StateError> {
    let names = directory.entries()?.into_iter();
    let names = names.filter_map(|entry| entry.name.into_string().ok());
    let named = names.filter_map(|name| {
        let kinds = [SMOOTHER, TUNE];
        let rest = kinds.iter().find_map(|kind| name.strip_prefix(kind))?;
        let namespace: u64 = rest.split('-').next()?.parse().ok()?;
        (1..INODES)
            .contains(&namespace)
            .then_some((namespace, name))
    });
    let mut named: Vec<(u64, String)> = named.collect();
    if named.is_empty() {
        return Ok(Vec::new());
    }
    // It looks at all processes.
    let living = network_namespaces();
    let is_gone = |namespace: &u64| living.as_ref().is_some_and(|all| !all.contains(namespace));
    named.retain(|(namespace, _)| is_gone(namespace));
    Ok(named.into_iter().map(|(_, name)| name).collect())
}

/// Files of journals that were being written.
fn half_written(directory: &Directory, remove: bool) -> Result<Option<String>, JournalError> {
    let count = Journal::half_written(directory, remove)?;
    Ok((count > 0).then(|| format!("half-written journals: {count}")))
}

/// Buses on which nobody lives, which this user may clear.
fn dead_buses() -> Result<Vec<Bus>, LeftoversError> {
    let user = rustix::process::geteuid();
    let mut buses = tautline::vbus::buses(None)?;
    buses.retain(|bus| bus.is_dead() && (user.is_root() || bus.user == user.as_raw()));
    Ok(buses)
}

/// Puts back what killed flights left, and returns it as text: partitions, network namespaces, directories. Of
/// namespaces and directories only those of one process, if it is named: in a process namespace the processes outside
/// cannot be seen, and seem dead.
pub fn of_flights(process: Option<u32>) -> Result<Vec<String>, LeftoversError> {
    let mut done = tautline_partition::recover()?;
    if may_create() {
        let namespaces = stale(process)?;
        for name in &namespaces {
            // The files of a smoother mean its namespace, and go before it. One that cannot be entered goes as well.
            if let Ok(ended) = inside_named(name, of_smoothers) {
                done.extend(ended?);
            }
        }
        clear_named(&namespaces);
        done.extend(
            namespaces
                .iter()
                .map(|name| format!("network namespace {name} removed")),
        );
    }
    done.extend(tautline_flight_runner::recover(process)?);
    Ok(done)
}

/// The same right after the end of a process, when those that die with it may still write into its directory, or
/// be in a group of its partition.
pub fn of_ended(process: u32) -> Result<(), LeftoversError> {
    let end = Instant::now() + PATIENCE;
    loop {
        of_flights(Some(process))?;
        let left = match find_runtime_directory()? {
            Some(directory) => Left::all(&directory)?,
            None => Vec::new(),
        };
        let is_left = left.iter().any(|left| left.process == process);
        if !is_left || Instant::now() > end {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Puts back what killed smoothers left in this thread's network namespace.
fn of_smoothers() -> Result<Vec<String>, LeftoversError> {
    let mut done = Vec::new();
    if let Some(directory) = find_runtime_directory()? {
        for interface in tautline_smoother::left(&directory)? {
            done.extend(tautline_smoother::end(&interface)?);
            done.push(format!("smoother of {interface} cleared"));
        }
    }
    Ok(done)
}

/// Journals of dead processes but those of smoothers, and of tuned interfaces of other network namespaces.
fn journals(directory: &Directory) -> Result<Vec<Left>, StateError> {
    let of_tuning = tune::journal_name("");
    let of_tuning = of_tuning.trim_end_matches(SUFFIX);
    let mut journals = Left::all(directory)?;
    journals.retain(|left| {
        let is_elsewhere = left.name.starts_with(TUNE) && !left.name.starts_with(of_tuning);
        !is_elsewhere && !left.name.starts_with(SMOOTHER)
    });
    Ok(journals)
}
