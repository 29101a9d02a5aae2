//! How receive processing on an interface is scheduled: shown, changed on request, and put back.
//!
//! Every change goes through a journal of the interface, so that it is undone after a kill too. Nothing here runs
//! while messages do.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tautline::config::TuneConfig;
use tautline::link::XdpMode;
use tautline::{LinkKind, Node, NodeConfig};
use tautline_state::journal::{Change, Journal, JournalError, PutBack};
use tautline_state::process::Stat;
use tautline_state::setting::{Setting, Thread};
use tautline_state::{find_runtime_directory, own_network_namespace};

use tautline_report::table;
use tautline_state::interface::{self, Polls};

/// Real-time priority of the threads that poll, unless another is asked for: above everything ordinary, and below what
/// applications take. Lower is not possible with room below; higher would put it above some application.
pub const PRIORITY_DEFAULT: u8 = 10;

/// Why tuning failed. Whatever had been changed is put back.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// There is no such interface.
    #[error("there is no interface `{0}` here")]
    NoInterface(String),
    /// The interface is not polled at all.
    #[error("`{0}` is not polled: it is down, or a veth without an XDP program")]
    NoPoll(String),
    /// The interface is not polled in threads.
    #[error("`{0}` is not polled in threads, so there is none to schedule")]
    NoThreads(String),
    /// The kernel did not take a value.
    #[error("the kernel refuses `{value}` for {setting}: {source}")]
    Refused {
        /// Setting that was to be changed.
        setting: String,
        /// To what.
        value: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel does not tell about polls.
    #[error("the kernel does not tell who polls `{interface}`: {source}")]
    NotTold {
        /// The interface.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The journal cannot be kept.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl TuneError {
    /// Remedy.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoInterface(_) => "name one of the interfaces of `ip link`",
            Self::NoPoll(_) => {
                "bring it up, and let a node or `taut node run` attach the demux first"
            }
            Self::NoThreads(_) => "add --threaded (threaded = true)",
            Self::Refused { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "run as root"
            }
            Self::Refused { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "leave that setting out: there is none of that name here"
            }
            Self::Refused { .. } => {
                "give a value that exists on this machine; what was set is put back"
            }
            Self::NotTold { .. } => "mount /proc and /sys; the settings of threads need them",
            Self::Journal(JournalError::Busy { .. }) => {
                "end that process: it puts back what it set"
            }
            Self::Journal(error) => error.remedy(),
        }
    }
}

/// An interface whose settings are being changed. Dropped, it puts them back.
#[derive(Debug)]
pub struct Tuned {
    interface: String,
    index: u32,
    journal: Journal,
    recovered: Vec<String>,
    notes: Vec<String>,
}

impl Tuned {
    /// Begins, first putting back what another run left.
    pub fn begin(interface: &str) -> Result<Tuned, TuneError> {
        let index = index(interface)?;
        let (journal, recovered) = Journal::open(&journal_name(interface), "taut node")?;
        Ok(Tuned {
            interface: interface.to_owned(),
            index,
            journal,
            recovered,
            notes: Vec::new(),
        })
    }

    /// Applies what is wanted. On an error everything is as it was before.
    pub fn apply(&mut self, wanted: &TuneConfig) -> Result<(), TuneError> {
        let applied = self.try_apply(wanted);
        if applied.is_err() {
            self.journal.restore();
        }
        applied
    }

    fn try_apply(&mut self, wanted: &TuneConfig) -> Result<(), TuneError> {
        let threads =
            wanted.threaded == Some(true) || wanted.priority.is_some() || wanted.cpu.is_some();
        if threads && polls(&self.interface)?.count == Some(0) {
            return Err(TuneError::NoPoll(self.interface.clone()));
        }
        if let Some(on) = wanted.threaded {
            let setting = Setting::of_interface(&self.interface, Some(self.index), "threaded");
            self.change(&setting, &u8::from(on).to_string())?;
        }
        if threads {
            self.schedule_threads(wanted)?;
        }
        if let Some(cpu) = wanted.interrupt_cpu {
            self.place_interrupts(cpu)?;
        }
        Ok(())
    }

    fn schedule_threads(&mut self, wanted: &TuneConfig) -> Result<(), TuneError> {
        let threads = polls(&self.interface)?.threads;
        if threads.is_empty() {
            return Err(TuneError::NoThreads(self.interface.clone()));
        }
        let policy = format!("fifo {}", wanted.priority.unwrap_or(PRIORITY_DEFAULT));
        let mut seen = 0;
        for number in threads {
            // One that has just ended needs no settings. In a process namespace, the number can be another process's.
            let Ok(thread) = Thread::now(number) else {
                continue;
            };
            if !Stat::of(number).is_some_and(|stat| stat.is_kernel) {
                continue;
            }
            seen += 1;
            self.change(&Setting::ThreadPolicy(thread), &policy)?;
            if let Some(cpu) = wanted.cpu {
                self.change(&Setting::ThreadCpus(thread), &cpu.to_string())?;
            }
        }
        if seen == 0 {
            // As in a container: the numbers are those of the machine's process namespace.
            self.notes.push(format!(
                "the threads that poll `{}` are not to be seen from here: their priority and CPUs stay as they are",
                self.interface
            ));
        }
        Ok(())
    }

    fn place_interrupts(&mut self, cpu: u32) -> Result<(), TuneError> {
        let interrupts = polls(&self.interface)?.interrupts;
        if interrupts.is_empty() {
            let note = format!("`{}` has no interrupts of its own to place", self.interface);
            self.notes.push(note);
        }
        for interrupt in interrupts {
            let path = PathBuf::from(format!("/proc/irq/{interrupt}/smp_affinity_list"));
            self.change(&Setting::File(path), &cpu.to_string())?;
        }
        Ok(())
    }

    fn change(&mut self, setting: &Setting, value: &str) -> Result<(), TuneError> {
        self.journal
            .change(setting, value)
            .map_err(|source| TuneError::Refused {
                setting: setting.to_string(),
                value: value.to_owned(),
                source,
            })
    }

    /// Changes that were made, those that were put back before, and settings that needed none.
    pub fn text(&self) -> String {
        let mut text = lines(&self.recovered);
        text += &changes_text(self.journal.changes());
        text + &lines(&self.notes)
    }

    /// Settings that were changed, with the notes of [`text`](Self::text).
    pub fn json(&self) -> Value {
        let changes = self.journal.changes().iter().map(|change| {
            json!({ "setting": change.what, "before": change.before, "now": change.after })
        });
        json!({
            "interface": self.interface,
            "changes": Value::from_iter(changes),
            "put_back": self.recovered,
            "notes": self.notes,
        })
    }

    /// Leaves the settings in force for `taut node tune --undo`.
    pub fn keep(mut self) -> io::Result<()> {
        Ok(self.journal.keep()?)
    }

    /// Puts everything back.
    pub fn put_back(mut self) -> PutBack {
        put_all_back(&self.interface, &mut self.journal, self.recovered)
    }
}

/// Puts back what is noted of an interface. That may be gone or have another name: its own settings are gone with it,
/// and those of the machine are not.
pub fn put_back_left(interface: &str) -> Result<PutBack, TuneError> {
    let (mut journal, recovered) = Journal::open(&journal_name(interface), "taut node")?;
    Ok(put_all_back(interface, &mut journal, recovered))
}

fn put_all_back(interface: &str, journal: &mut Journal, mut done: Vec<String>) -> PutBack {
    done.extend(journal.put_back());
    if !journal.refused().is_empty() {
        // A veth is polled only while it has an XDP program, and takes no settings of its poll otherwise.
        let mut config = NodeConfig::on(interface).with_link(LinkKind::Xdp);
        config.xdp_mode = Some(XdpMode::Native);
        let _polled = Node::open(config);
        done.extend(journal.put_back());
    }
    let refused = journal.refused().to_vec();
    PutBack { done, refused }
}

/// Interfaces of this network namespace that are tuned, or whose settings were not put back.
pub fn tuned_interfaces() -> Vec<String> {
    let prefix = journal_name("");
    let prefix = prefix.trim_end_matches(".json");
    let directory = find_runtime_directory().ok().flatten();
    let entries = directory.and_then(|directory| directory.entries().ok());
    let mut interfaces: Vec<String> = entries
        .unwrap_or_default()
        .into_iter()
        .filter_map(|entry| entry.name.into_string().ok())
        .filter_map(|name| Some(name.strip_prefix(prefix)?.strip_suffix(".json")?.to_owned()))
        .collect();
    interfaces.sort();
    interfaces
}

/// One journal for each interface of each network namespace.
pub(crate) fn journal_name(interface: &str) -> String {
    // A number that no other namespace gets; an inode's may be that of one that is gone. 0 before Linux 5.14.
    let namespace = own_network_namespace().unwrap_or(0);
    format!("tune-{namespace}-{interface}.json")
}

/// Settings of an interface that are in force: name and value.
pub fn current(interface: &str) -> Result<Vec<(String, String)>, TuneError> {
    let index = index(interface)?;
    let mut settings = vec![Setting::of_interface(interface, Some(index), "threaded")];
    // Where the kernel does not tell, the rest is worth showing.
    if let Ok(polls) = polls(interface) {
        let threads = polls.threads.into_iter();
        for thread in threads.filter_map(|number| Thread::now(number).ok()) {
            settings.extend([Setting::ThreadPolicy(thread), Setting::ThreadCpus(thread)]);
        }
        for interrupt in polls.interrupts {
            let path = format!("/proc/irq/{interrupt}/smp_affinity_list");
            settings.push(Setting::File(Path::new(&path).to_owned()));
        }
    }
    let rows = settings.iter().map(|setting| {
        let value = setting.read().unwrap_or_else(|_| "not here".to_owned());
        (setting.to_string(), value)
    });
    Ok(rows.collect())
}

fn changes_text(changes: &[Change]) -> String {
    if changes.is_empty() {
        return "nothing needed to be changed\n".to_owned();
    }
    let rows = changes.iter().map(|change| {
        vec![
            change.what.clone(),
            change.before.clone(),
            change.after.clone(),
        ]
    });
    table::figures(&["setting", "before", "now"], rows)
}

fn lines(list: &[String]) -> String {
    list.iter().map(|line| format!("{line}\n")).collect()
}

/// Number of an interface, which must exist.
pub fn index(interface: &str) -> Result<u32, TuneError> {
    interface::index(interface).map_err(|_| TuneError::NoInterface(interface.to_owned()))
}

fn polls(interface: &str) -> Result<Polls, TuneError> {
    index(interface)?;
    Polls::of(interface).map_err(|source| TuneError::NotTold {
        interface: interface.to_owned(),
        source,
    })
}
