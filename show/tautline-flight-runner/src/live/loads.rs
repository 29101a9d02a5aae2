//! Loads of a live flight, by level: a thread that starts and ends them, because an end can take a second.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use tautline_lab::load;

use crate::child::Started;
use crate::part::Part;
use crate::show::{Settings, ShowError, load_everything};

/// Levels of the load; each has those before it.
pub(super) const LEVELS: [&str; 4] = [
    "none",
    "the lab's combined load",
    "and a fork storm",
    "and memory pressure",
];
/// Life of a load's process, which is killed earlier: a day.
const LONG_SECONDS: f64 = 86_400.0;

/// Loads beside live flights. Dropped, all of them end.
pub(super) struct Loads {
    tell: Option<Sender<usize>>,
    thread: Option<JoinHandle<()>>,
    level: Arc<AtomicUsize>,
    complaint: Arc<Mutex<Option<String>>>,
}

impl Loads {
    /// Starts the thread; nothing runs yet. The loads' files lie in a directory.
    pub(super) fn new(settings: &Settings, directory: &Path) -> Loads {
        let (tell, told) = channel();
        let level = Arc::new(AtomicUsize::new(0));
        let complaint = Arc::new(Mutex::new(None));
        let running = Running {
            settings: settings.clone(),
            directory: directory.to_owned(),
            combined: None,
            storm: None,
            pressure: None,
        };
        let (shown, complains) = (Arc::clone(&level), Arc::clone(&complaint));
        let thread = thread::spawn(move || running.follow(&told, &shown, &complains));
        Loads {
            tell: Some(tell),
            thread: Some(thread),
            level,
            complaint,
        }
    }

    /// Wishes for a level.
    pub(super) fn set(&self, level: usize) {
        if let Some(tell) = &self.tell {
            // A thread that has ended has complained.
            let _ = tell.send(level);
        }
    }

    /// The level that runs.
    pub(super) fn level(&self) -> usize {
        self.level.load(Ordering::Relaxed)
    }

    /// Reason why a load could not be started, told once.
    pub(super) fn complaint(&self) -> Option<String> {
        let complaint = self.complaint.lock();
        complaint.unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        self.tell = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Running {
    settings: Settings,
    directory: PathBuf,
    combined: Option<load::Running>,
    storm: Option<Started>,
    pressure: Option<Started>,
}

impl Running {
    fn follow(
        mut self,
        told: &Receiver<usize>,
        shown: &AtomicUsize,
        complaint: &Mutex<Option<String>>,
    ) {
        while let Ok(first) = told.recv() {
            // A slider that moves tells many levels: the last one counts.
            let level = told.try_iter().last().unwrap_or(first);
            if let Err(error) = self.reach(level) {
                let mut complaint = complaint.lock().unwrap_or_else(PoisonError::into_inner);
                *complaint = Some(error.to_string());
            }
            shown.store(self.level(), Ordering::Relaxed);
        }
        self.end_above(0);
    }

    fn level(&self) -> usize {
        let all = [
            self.combined.is_some(),
            self.storm.is_some(),
            self.pressure.is_some(),
        ];
        all.iter().take_while(|runs| **runs).count()
    }

    fn reach(&mut self, level: usize) -> Result<(), ShowError> {
        self.end_above(level);
        let part = |part: Part| Started::part(&self.settings.part_command, &part);
        if level >= 2 && self.storm.is_none() {
            self.storm = Some(part(Part::Storm(LONG_SECONDS))?);
        }
        if level >= 3 && self.pressure.is_none() {
            self.pressure = Some(part(Part::Pressure(LONG_SECONDS))?);
        }
        if level >= 1 && self.combined.is_none() {
            self.combined = Some(load_everything(&self.settings, &self.directory)?);
        }
        Ok(())
    }

    fn end_above(&mut self, level: usize) {
        if level < 3 {
            self.pressure = None;
        }
        if level < 2 {
            self.storm = None;
        }
        if level < 1
            && let Some(combined) = self.combined.take()
        {
            drop(combined.stop());
        }
    }
}
