//! The file of a journal: its entries, and what can be told from them without holding it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::group::Group;
use crate::network::NetworkObject;
use crate::process::{Stat, own_namespace, seen_as, start_ticks};
use crate::setting::{NewValue, Setting};
use crate::{Directory, StateError};

/// Longest journal. Each change takes a hundred bytes or two: lower, and the interrupts and threads of a large machine
/// would not fit; higher, and a damaged file would take more memory.
pub(super) const JOURNAL_BYTES_MAX: usize = 16 << 20;

/// Journals are for their owner alone.
const JOURNAL_MODE: u32 = 0o600;

/// Contents of a journal in the directory, for readers.
#[derive(Debug, Default)]
pub struct Look {
    /// Notes of its holder.
    pub record: Option<Value>,
    /// Process that holds it, if one lives that does, by its number here.
    pub holder: Option<u32>,
    /// The number of that process in its own process namespace.
    pub process: u32,
    /// Whether its changes stay in force without a process.
    pub is_kept: bool,
    /// Settings that are changed, each with the value to put back.
    pub settings: Vec<(Setting, String)>,
}

impl Look {
    /// The journal of this name, if there is one.
    pub fn at(directory: &Directory, name: &str) -> Result<Option<Look>, StateError> {
        let Some(entries) = read(directory, name)? else {
            return Ok(None);
        };
        Ok(Some(Look {
            holder: entries.holder(),
            process: entries.pid,
            is_kept: entries.pid == KEPT,
            settings: entries.values_before(),
            record: entries.record,
        }))
    }
}

/// Journal that a killed process left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Its name in the directory.
    pub name: String,
    /// Number of the process.
    pub process: u32,
    /// Changes that it would undo, each as text.
    pub changes: Vec<String>,
}

impl Left {
    /// Journals in a directory whose processes have died, by name. Kept ones are not among them, nor are those of
    /// processes that live.
    pub fn all(directory: &Directory) -> Result<Vec<Left>, StateError> {
        let mut all = Vec::new();
        for name in names(directory)? {
            // For one that cannot be read, see `unreadable`.
            let entries = read(directory, &name).ok().flatten();
            let is_dead = |entries: &Entries| entries.pid != KEPT && entries.holder().is_none();
            if let Some(entries) = entries.filter(is_dead) {
                all.push(Left {
                    name,
                    process: entries.pid,
                    changes: entries.texts(),
                });
            }
        }
        Ok(all)
    }

    /// Journals in a directory that cannot be read, by name, each with the reason. They are not put back.
    pub fn unreadable(directory: &Directory) -> Result<Vec<(String, StateError)>, StateError> {
        let names = names(directory)?.into_iter();
        let unreadable = names.filter_map(|name| {
            let error = read(directory, &name).err()?;
            Some((name, error))
        });
        Ok(unreadable.collect())
    }
}

/// Names of the journals of a directory, in their order.
pub(super) fn names(directory: &Directory) -> Result<Vec<String>, StateError> {
    let names = directory.entries()?.into_iter();
    let mut names: Vec<String> = names
        .filter_map(|entry| entry.name.into_string().ok())
        .filter(|name| name.ends_with(SUFFIX) && !name.starts_with('.'))
        .collect();
    names.sort();
    Ok(names)
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Entries {
    /// Process that holds it, by its number in its own process namespace.
    pub(super) pid: u32,
    /// Start of that process in clock ticks since boot: tells it from a later one with the same number.
    pub(super) started_ticks: u64,
    /// Number of its process namespace. `None` where `/proc` does not tell: then it is taken for the reader's.
    pub(super) process_namespace: Option<u64>,
    /// Changes of settings, in their order.
    pub(super) settings: Vec<Layer>,
    /// Groups of processes to remove.
    pub(super) groups: Vec<Group>,
    /// Temporary directories to remove with all that is in them.
    pub(super) directories: Vec<PathBuf>,
    /// Trace instances, which the kernel removes with the directory alone.
    pub(super) trace_instances: Vec<PathBuf>,
    /// Filters and queues of interfaces to remove.
    pub(super) network: Vec<NetworkObject>,
    /// Notes of the holder, which mean nothing here.
    pub(super) record: Option<Value>,
}

/// One change of a setting.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Layer {
    pub(super) setting: Setting,
    /// Value below this change: the machine's own, or that of the change below.
    pub(super) before: String,
    pub(super) value: NewValue,
    /// Place among all changes of a directory: a higher number lies above a lower one.
    pub(super) order: u64,
}

/// End of the names of journals.
pub(super) const SUFFIX: &str = ".json";

/// Process number in a journal that is held by none: no process has it.
pub(super) const KEPT: u32 = 0;

impl Entries {
    pub(super) fn is_empty(&self) -> bool {
        self.settings.is_empty()
            && self.groups.is_empty()
            && self.directories.is_empty()
            && self.trace_instances.is_empty()
            && self.network.is_empty()
    }

    /// Forgets the changes of a network namespace.
    pub(super) fn forget_network(&mut self) {
        self.settings
            .retain(|layer| !matches!(layer.setting, Setting::OfInterface { .. }));
        self.network.clear();
    }

    /// Settings that are changed, each with the value to put back.
    pub(super) fn values_before(&self) -> Vec<(Setting, String)> {
        let layers = self.settings.iter();
        layers
            .map(|layer| (layer.setting.clone(), layer.before.clone()))
            .collect()
    }

    /// Everything that would be undone, as text.
    fn texts(&self) -> Vec<String> {
        let settings = self.settings.iter();
        let settings = settings.map(|layer| format!("{} (was {})", layer.setting, layer.before));
        let groups = self.groups.iter().map(|group| &group.path);
        let paths = groups.chain(&self.directories).chain(&self.trace_instances);
        let paths = paths.map(|path| path.display().to_string());
        let network = self.network.iter().map(ToString::to_string);
        settings.chain(paths).chain(network).collect()
    }

    /// Makes this process the holder.
    pub(super) fn hold(&mut self) {
        self.pid = std::process::id();
        self.started_ticks = start_ticks(self.pid).unwrap_or(0);
        self.process_namespace = own_namespace();
    }

    /// Process that lives and holds the journal, by its number here, which is the one that may be signalled.
    pub(super) fn holder(&self) -> Option<u32> {
        if self.pid == KEPT {
            return None;
        }
        match self.process_namespace {
            Some(namespace) if own_namespace() != Some(namespace) => {
                seen_as(self.pid, self.started_ticks, namespace)
            }
            _ => {
                let stat = Stat::of(self.pid)?;
                let lives = stat.start_ticks == self.started_ticks && !stat.is_zombie;
                lives.then_some(self.pid)
            }
        }
    }

    /// Another process that lives and holds the journal.
    pub(super) fn other_holder(&self) -> Option<u32> {
        self.holder().filter(|pid| *pid != std::process::id())
    }

    pub(super) fn has_group(&self, group: &Group) -> bool {
        self.groups.iter().any(|one| one.path == group.path)
    }
}

/// The journal of this name, if there is one.
pub(super) fn read(directory: &Directory, name: &str) -> Result<Option<Entries>, StateError> {
    // It is written whole or not at all, so one that is not understood is of another release. Its changes are in force
    // all the same, so it is neither taken for empty nor removed.
    let not_understood = |reason: String| StateError::NoJournal {
        path: directory.path().join(name),
        reason,
    };
    let text = match directory.read(name, JOURNAL_BYTES_MAX) {
        Err(error) if error.is_absent() => return Ok(None),
        Err(StateError::TooLarge { bytes_max, .. }) => {
            return Err(not_understood(format!(
                "it is longer than {bytes_max} bytes"
            )));
        }
        text => text?,
    };
    let Version { version } =
        serde_json::from_slice(&text).map_err(|error| not_understood(error.to_string()))?;
    if version != VERSION {
        let reason = format!("its format has version {version}, known here is {VERSION}");
        return Err(not_understood(reason));
    }
    let entries = serde_json::from_slice(&text);
    entries
        .map(Some)
        .map_err(|error| not_understood(error.to_string()))
}

/// Version of the format. A release that cannot read it refuses it; so it grows with each change that an older release
/// would misunderstand, and not with those that add what may be ignored.
const VERSION: u32 = 1;

/// Version of a file, whatever else is in it.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// Content of a file.
#[derive(Serialize)]
struct Content<'e> {
    version: u32,
    #[serde(flatten)]
    entries: &'e Entries,
}

/// Writes a journal, whole or not at all.
pub(super) fn write(
    directory: &Directory,
    name: &str,
    entries: &Entries,
) -> Result<(), StateError> {
    let content = Content {
        version: VERSION,
        entries,
    };
    let text = serde_json::to_vec(&content).expect("paths and strings");
    if text.len() > JOURNAL_BYTES_MAX {
        return Err(StateError::JournalFull {
            path: directory.path().join(name),
            bytes_max: JOURNAL_BYTES_MAX,
        });
    }
    directory.write(name, &text, JOURNAL_MODE)
}

/// Takes a change out of the pile: those above it are made to the value below it. Returns the value that results, and
/// the journals in which the value below a change is another now.
pub(super) fn take_out(
    layer: &Layer,
    others: &mut BTreeMap<String, Entries>,
) -> (String, Vec<String>) {
    let mut above = Vec::new();
    for (name, entries) in others.iter_mut() {
        let of_it = entries
            .settings
            .iter_mut()
            .filter(|other| other.setting == layer.setting && other.order > layer.order);
        above.extend(of_it.map(|other| (name.clone(), other)));
    }
    above.sort_by_key(|(_, other)| other.order);
    let mut value = layer.before.clone();
    let mut changed = Vec::new();
    for (name, other) in above {
        other.before = value;
        // A rule that fails on this value leaves the value as it is.
        value = other
            .value
            .over(&other.before)
            .unwrap_or_else(|_| other.before.clone());
        changed.push(name);
    }
    (value, changed)
}
