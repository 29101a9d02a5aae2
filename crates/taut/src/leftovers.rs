//! Changes and files of processes that were killed: found, and put back.
//!
//! Each of them notes what it changes before it changes it, in a journal of the runtime directory, or in the name of a
//! network namespace. A process that was killed cannot put them back; the next of its kind does, or
//! `taut doctor --put-back`.

use std::fmt::Display;
use std::time::{Duration, Instant};

use tautline::vbus::Bus;
use tautline_smoother::SmootherError;
use tautline_state::hosts;
use tautline_state::journal::{Journal, JournalError, Left, PutBack};
use tautline_state::{Directory, StateError, find_runtime_directory};

use crate::namespaces::network_namespaces;
use crate::tune;

/// Beginnings of the names of journals that mean interfaces of one network namespace.
const SMOOTHER: &str = "smoother-";
const TUNE: &str = "tune-";
/// Beginning of the names of journals that note the temporary directory of a flight.
const HOME: &str = "flight-";
const SUFFIX: &str = ".json";
/// From here on numbers are inodes of namespaces, which journals of before had in their names.
const INODES: u64 = 0xF000_0000;
/// Time in which processes that die with a flight let its directory and its groups go.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// Reason why something cannot be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeftoversError {
    /// A journal.
    #[error("{0}")]
    Journal(#[from] JournalError),
    /// A smoother.
    #[error("{0}")]
    Smoother(#[from] SmootherError),
    /// The runtime directory.
    #[error("{0}")]
    State(#[from] StateError),
    /// Buses.
    #[error("looking for buses: {0}")]
    Buses(#[from] std::io::Error),
}

/// Says what was put back, and what was not.
pub fn say(put_back: &PutBack) {
    for line in &put_back.done {
        say!("taut: left by a process that was killed: {line}");
    }
    for line in &put_back.refused {
        say!("taut: not put back: {line}");
    }
}

/// Everything that killed processes of this user left, as text, with what cannot be looked at. Nothing is changed.
pub fn found() -> Vec<String> {
    let mut found = Vec::new();
    let untold = |error: &dyn Display| format!("could not be told: {error}");
    match find_runtime_directory() {
        Ok(None) => {}
        Ok(Some(directory)) => match found_in(&directory) {
            Ok(of_directory) => found.extend(of_directory),
            Err(error) => found.push(untold(&error)),
        },
        Err(error) => found.push(untold(&error)),
    }
    match dead_buses() {
        Ok(buses) => found.extend(
            buses
                .iter()
                .map(|bus| format!("bus {} without a living node", bus.name)),
        ),
        Err(error) => found.push(untold(&error)),
    }
    match hosts::stale(None) {
        Ok(names) => found.extend(names.iter().map(|name| format!("network namespace {name}"))),
        Err(error) => found.push(untold(&error)),
    }
    found
}

fn found_in(directory: &Directory) -> Result<Vec<String>, LeftoversError> {
    let mut found = Vec::new();
    for left in journals(directory)? {
        let name = left.name.trim_end_matches(SUFFIX);
        found.push(match left.changes.as_slice() {
            [] => format!("{name}: its journal"),
            [only] => format!("{name}: {only}"),
            [first, others @ ..] => format!("{name}: {first} and {} more", others.len()),
        });
    }
    // Those of smoothers are named below.
    let unreadable = Left::unreadable(directory)?.into_iter();
    let unreadable = unreadable.filter(|(name, _)| !name.starts_with(SMOOTHER));
    found.extend(unreadable.map(|(_, error)| error.to_string()));
    let smoothers = tautline_smoother::left(directory)?.into_iter();
    found.extend(smoothers.map(|interface| format!("smoother of {interface}")));
    found.extend(
        of_gone_namespaces(directory)?
            .iter()
            .map(|name| format!("{name}, of a network namespace that is gone")),
    );
    Ok(found)
}

/// Puts all of that back. Whatever cannot be put back does not keep the rest from it.
pub fn put_back() -> PutBack {
    let mut all = of_flights(None);
    all.add(of_smoothers());
    if let Some(directory) = all.found(find_runtime_directory()) {
        of_tuning_and_others(&directory, &mut all);
        put_gone_namespaces_back(&directory, &mut all);
    }
    let buses = all.found(dead_buses());
    // The others are in use again, or are another user's.
    let cleared = buses.iter().filter(|bus| bus.clear().is_ok());
    let lines = cleared.map(|bus| format!("bus {} removed", bus.name));
    all.done.extend(lines);
    all
}

/// Journals of dead processes but those of partitions, flights and smoothers, which were put back before.
fn of_tuning_and_others(directory: &Directory, all: &mut PutBack) {
    let of_tuning = tune::journal_name("");
    let of_tuning = of_tuning.trim_end_matches(SUFFIX);
    for left in all.found(journals(directory)) {
        let name = left.name.trim_end_matches(SUFFIX);
        match name.strip_prefix(of_tuning) {
            Some(interface) => all.add(tune::put_back_left(interface)),
            None => all.add(Journal::recover_in(directory, &left.name)),
        }
    }
}

/// Puts back what journals of gone namespaces say of the machine, and removes their files.
fn put_gone_namespaces_back(directory: &Directory, all: &mut PutBack) {
    for name in all.found(of_gone_namespaces(directory)) {
        if name.ends_with(SUFFIX) {
            all.add(Journal::recover_of_gone_network(directory, &name));
        } else {
            all.found(directory.remove(&name));
        }
        // A journal of which something could not be put back stays.
        if directory
            .open_file(&name)
            .is_err_and(|error| error.is_absent())
        {
            all.done.push(format!("{name} removed"));
        }
    }
}

/// Files of smoothers and tuned interfaces whose network namespace has gone, and with it all that they changed there.
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

/// Buses without nodes, which this user may clear.
fn dead_buses() -> Result<Vec<Bus>, LeftoversError> {
    let user = rustix::process::geteuid();
    let mut buses = tautline::vbus::buses(None)?;
    buses.retain(|bus| bus.is_dead() && (user.is_root() || bus.user == user.as_raw()));
    Ok(buses)
}

/// Puts back what killed flights left: partitions, network namespaces, directories. Of namespaces and directories only
/// those of one process, if it is named: in a process namespace the processes outside cannot be seen, and seem dead.
pub fn of_flights(process: Option<u32>) -> PutBack {
    let mut all = PutBack::default();
    all.add(tautline_tasks::partition::recover());
    if hosts::may_create() {
        let namespaces = all.found(hosts::stale(process));
        for name in &namespaces {
            // The files of a smoother mean its namespace, and go before it. One that cannot be entered goes as well.
            if let Ok(ended) = hosts::inside(name, of_smoothers) {
                all.add(ended);
            }
        }
        namespaces.iter().for_each(|name| hosts::remove(name));
        let removed = namespaces.iter();
        all.done
            .extend(removed.map(|name| format!("network namespace {name} removed")));
    }
    all.add(of_homes(process));
    all
}

/// Removes the directories of flights whose processes have died, or of one of these.
fn of_homes(process: Option<u32>) -> Result<PutBack, LeftoversError> {
    let mut all = PutBack::default();
    if let Some(runtime) = find_runtime_directory()? {
        let mut left = Left::all(&runtime)?;
        left.retain(|left| process.is_none_or(|process| process == left.process));
        for left in left.iter().filter(|left| left.name.starts_with(HOME)) {
            all.add(Journal::recover_in(&runtime, &left.name));
        }
    }
    Ok(all)
}

/// The same right after the end of a process, when those that die with it may still write into its directory, or
/// be in a group of its partition. Returns what could not be put back.
pub fn of_ended(process: u32) -> Vec<String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let refused = of_flights(Some(process)).refused;
        let directory = find_runtime_directory().ok().flatten();
        let left = directory.and_then(|directory| Left::all(&directory).ok());
        let is_left = left.iter().flatten().any(|left| left.process == process);
        if !is_left || Instant::now() > end {
            return refused;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Puts back what killed smoothers left in this thread's network namespace.
fn of_smoothers() -> Result<PutBack, LeftoversError> {
    let mut all = PutBack::default();
    if let Some(directory) = find_runtime_directory()? {
        for interface in tautline_smoother::left(&directory)? {
            let ended = tautline_smoother::end(&interface);
            if ended.as_ref().is_ok_and(|ended| ended.refused.is_empty()) {
                all.done.push(format!("smoother of {interface} cleared"));
            }
            all.add(ended);
        }
    }
    Ok(all)
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
