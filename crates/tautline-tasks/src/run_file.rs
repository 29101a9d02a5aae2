//! The memory of a run that others may read: a file in the runtime directory, which goes with the run.
//!
//! A header of words, what never changes of the tasks (postcard), and a block of figures for each. The file is mapped
//! by the run alone; others read it as a file, so that no process can harm them by cutting it short. Its lock tells
//! whether the run lives.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use tautline_state::fork::OwnerProcess;
use tautline_state::mapping::Mapping;
use tautline_state::{Directory, EntryKind, Owner, StateError};

use crate::figures::{BLOCK_WORDS, Figures, Interval, TaskState, Time, Times, TracedJob};

/// Directory below the runtime directory.
const DIRECTORY: &str = "tasks";
/// First word of a file.
const MAGIC: u64 = u64::from_le_bytes(*b"TAUTTASK");
/// Version of all that follows.
const VERSION: u64 = 2;
const MODE_WORD: usize = 2;
const DESCRIPTION_BYTES: usize = 3;
const HEADER_WORDS: usize = 4;
/// Longest description. Lower: 64 tasks with long names do not fit. Higher: a reader takes more of a stranger's bytes.
const DESCRIPTION_BYTES_MAX: usize = 64 << 10;
/// Most runs that are listed of one user. Lower: some are not seen. Higher: a user can keep root's `taut` reading.
const RUNS_MAX: usize = 256;

/// Most files that are tried of another user, for root. Lower: live runs are not seen beside what killed ones left.
/// Higher: a user can keep root's `taut` reading.
const FILES_OF_ANOTHER_MAX: usize = 64;
/// Most bytes of figures that are taken of another user, for root: two sets of 64 tasks. Lower: large sets of that user
/// are not seen. Higher: a user can take more memory of root's `taut top` and `taut serve`, which keep two looks.
const BYTES_OF_ANOTHER_MAX: usize = 20 << 20;

/// Properties of a run that never change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Description {
    /// File of the set, or the program's name.
    pub name: String,
    /// Number of the process.
    pub process: u32,
    /// Names of the modes; one empty name if there are none.
    pub modes: Vec<String>,
    /// In the order of the set.
    pub tasks: Vec<TaskDescription>,
}

/// Properties of a task that never change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TaskDescription {
    /// Its name.
    pub name: String,
    /// Its priority under SCHED_FIFO, the same for all tasks of a table; 0 under SCHED_DEADLINE.
    pub priority: u8,
    /// Its period, or the least time between two messages.
    pub period: Duration,
    /// Time from a release by which a job must be done.
    pub deadline: Duration,
    /// Execution time that is declared.
    pub worst_case: Duration,
    /// Longest response time by the analysis, over all modes; `None` without a bound.
    pub bound: Option<Duration>,
    /// Whether messages activate it.
    pub is_by_message: bool,
}

/// Memory of a run.
pub(crate) struct RunFile {
    memory: Mapping,
    first_block: usize,
    /// Name in the directory; none if there is no such directory, and only this process sees the figures.
    entry: Option<(Directory, String)>,
    /// Holds the lock.
    _file: Option<File>,
    process: OwnerProcess,
}

impl RunFile {
    /// Makes the memory, and the reason why others cannot see it, if so.
    pub(crate) fn new(description: &Description) -> io::Result<(RunFile, Option<String>)> {
        let bytes = postcard::to_allocvec(description).map_err(io::Error::other)?;
        let first_block = HEADER_WORDS + bytes.len().div_ceil(size_of::<u64>());
        let length = first_block + description.tasks.len() * BLOCK_WORDS;
        let made = shared_file(&bytes, length);
        let bytes = length * size_of::<u64>();
        let (memory, entry, file, refused) = match made {
            Ok((file, directory, name)) => {
                let memory = Mapping::shared(file.as_fd(), bytes, 0)?;
                (memory, Some((directory, name)), Some(file), None)
            }
            Err(error) => (
                Mapping::anonymous(bytes)?,
                None,
                None,
                Some(format!("`taut task show` does not see this run: {error}")),
            ),
        };
        let run_file = RunFile {
            memory,
            first_block,
            entry,
            _file: file,
            process: OwnerProcess::current(),
        };
        Ok((run_file, refused))
    }

    /// Figures of a task.
    pub(crate) fn figures(&self, task: usize) -> Figures<'_> {
        block(self.memory.words(), self.first_block, task)
    }

    /// Tells which mode runs.
    pub(crate) fn set_mode(&self, mode: usize) {
        self.memory.store(MODE_WORD, mode as u64, Ordering::Relaxed);
    }
}

impl Drop for RunFile {
    fn drop(&mut self) {
        if let Some((directory, name)) = &self.entry
            && self.process.is_current()
        {
            let _ = directory.remove(name); // another process has cleaned up already
        }
    }
}

/// A file of this length with header and description, locked, under its name.
fn shared_file(description: &[u8], words: usize) -> Result<(File, Directory, String), StateError> {
    /// Runs of this process so far.
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let runtime = tautline_state::runtime_directory()?;
    let (directory, _) = runtime.make_below(DIRECTORY, 0o755, Owner::SelfOrRoot)?;
    sweep(&directory);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let name = format!("{}-{run}", std::process::id());
    let beside = format!(".{name}.new");
    let failed = |source| StateError::Io {
        action: "make",
        path: directory.path().join(&name),
        source,
    };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // For others to read once it is locked, so that no other process has the lock first.
    let open = || rustix::fs::openat(&directory, &beside, flags, Mode::from_raw_mode(0o600));
    let mut file = File::from(open().map_err(|error| failed(error.into()))?);
    let mut fill = || {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        // Reserved now: a full file system is found here, and not by a task's first write.
        let bytes = (words * size_of::<u64>()) as u64;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
        let header = [MAGIC, VERSION, 0, description.len() as u64];
        for word in header {
            file.write_all(&word.to_ne_bytes())?;
        }
        file.write_all(description)?;
        Ok(rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?)
    };
    fill().map_err(failed)?;
    directory.rename(&beside, &name)?;
    Ok((file, directory, name))
}

/// Whether this is the name of a file that is not whole yet.
fn is_new(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Whether a process has this number.
fn is_there(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

/// Removes what killed runs have left.
fn sweep(directory: &Directory) {
    for entry in directory.entries().unwrap_or_default() {
        // A live one that begins may not have its lock yet.
        let name = entry.name.to_string_lossy();
        let number = name.trim_start_matches('.').split('-').next();
        let is_there = number.is_some_and(|number| number.parse().is_ok_and(is_there));
        if is_new(&entry.name) && is_there {
            continue;
        }
        // A lock to share shows that the run's own lock is free, even while another reader holds a shared one.
        if let Ok(file) = open(directory, &entry.name)
            && rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok()
        {
            let _ = directory.remove(&entry.name); // another one sweeps as well
        }
    }
}

fn open(directory: &Directory, name: impl AsRef<std::ffi::OsStr>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(
        directory,
        name.as_ref(),
        flags,
        Mode::empty(),
    )?)
}

/// A run of this machine, seen from outside.
#[derive(Debug)]
pub struct View {
    description: Description,
    file: File,
    length: usize,
    first_block: usize,
}

/// The figures of a task at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskView {
    /// Jobs that ended.
    pub jobs: u64,
    /// Jobs that ended after their deadline.
    pub missed: u64,
    /// The state.
    pub state: TaskState,
    /// Release of the job that runs, on `CLOCK_MONOTONIC`.
    pub running_since: Option<Duration>,
    /// From the release of a job, or in a table from the start of its window, until it began to run.
    pub lateness: Times,
    /// From the release of a job until it ended.
    pub response: Times,
    /// Execution time of a job.
    pub execution: Times,
    /// From the arrival of a message until its job ended; zero for a task that time activates.
    pub latency: Times,
}

/// All figures at one moment.
#[derive(Debug)]
pub struct Look {
    words: Vec<AtomicU64>,
    first_block: usize,
    tasks: usize,
}

impl Look {
    /// Index of the mode that runs.
    #[must_use]
    pub fn mode(&self) -> usize {
        self.words[MODE_WORD].load(Ordering::Relaxed) as usize
    }

    /// Figures of the tasks, in the order of the set.
    pub fn tasks(&self) -> impl Iterator<Item = TaskView> + '_ {
        (0..self.tasks).map(|task| view(self.figures(task)))
    }

    /// Jobs of a task that ended since `seen` jobs had, as far as they are kept, the oldest first; and how many had
    /// at this look.
    ///
    /// # Panics
    /// If there is no such task.
    #[must_use]
    pub fn trace(&self, task: usize, seen: u64) -> (Vec<TracedJob>, u64) {
        assert!(task < self.tasks, "a task of the set");
        self.figures(task).trace(seen)
    }

    /// Figures of a task's jobs that ended since an earlier look at the same run.
    ///
    /// # Panics
    /// If there is no such task.
    #[must_use]
    pub fn since(&self, before: &Look, task: usize) -> Interval {
        assert!(
            task < self.tasks && task < before.tasks,
            "a task of the set"
        );
        self.figures(task).since(before.figures(task))
    }

    fn figures(&self, task: usize) -> Figures<'_> {
        block(&self.words, self.first_block, task)
    }
}

fn block(words: &[AtomicU64], first_block: usize, task: usize) -> Figures<'_> {
    let first = first_block + task * BLOCK_WORDS;
    Figures(&words[first..first + BLOCK_WORDS])
}

/// The figures of a task at this moment.
pub(crate) fn view(figures: Figures<'_>) -> TaskView {
    TaskView {
        jobs: figures.jobs(),
        missed: figures.missed(),
        state: figures.state(),
        running_since: figures.running_since(),
        lateness: figures.times(Time::Lateness),
        response: figures.times(Time::Response),
        execution: figures.times(Time::Execution),
        latency: figures.times(Time::Latency),
    }
}

impl View {
    /// Properties that never change. A name is text of another program.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Whether the process still runs its tasks.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        is_there(self.description.process)
            && rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockShared)
                .map(|()| {
                    let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock); // it was had a moment ago
                })
                .is_err()
    }

    /// Reads all figures. Costs the tasks nothing.
    ///
    /// # Errors
    /// The file has become shorter than its run made it.
    pub fn look(&mut self) -> io::Result<Look> {
        let mut bytes = vec![0; self.length];
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_exact(&mut bytes)?;
        let words = bytes.chunks_exact(size_of::<u64>());
        let words = words
            .map(|word| AtomicU64::new(u64::from_ne_bytes(word.try_into().expect("eight bytes"))));
        Ok(Look {
            words: words.collect(),
            first_block: self.first_block,
            tasks: self.description.tasks.len(),
        })
    }

    /// `None` for a file that is no live run's.
    fn open(directory: &Directory, name: &std::ffi::OsStr) -> Option<View> {
        let mut file = File::from(open(directory, name).ok()?);
        let metadata = file.metadata().ok()?;
        // A second name would make a second run of it.
        let length = (metadata.nlink() == 1).then_some(metadata.len())?;
        let length = usize::try_from(length).ok()?;
        let mut header = [0; HEADER_WORDS * size_of::<u64>()];
        file.read_exact(&mut header).ok()?;
        let word = |index: usize| {
            let bytes = header[index * size_of::<u64>()..].first_chunk();
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        let bytes = usize::try_from(word(DESCRIPTION_BYTES)).ok()?;
        let is_ours = word(0) == MAGIC && word(1) == VERSION && bytes <= DESCRIPTION_BYTES_MAX;
        let mut text = vec![0; if is_ours { bytes } else { return None }];
        file.read_exact(&mut text).ok()?;
        let description: Description = postcard::from_bytes(&text).ok()?;
        let first_block = HEADER_WORDS + bytes.div_ceil(size_of::<u64>());
        let words = first_block + description.tasks.len().checked_mul(BLOCK_WORDS)?;
        let is_whole = words * size_of::<u64>() == length
            && description.tasks.len() <= tautline_exec::task::TASKS_MAX;
        let view = View {
            description,
            file,
            length,
            first_block,
        };
        (is_whole && view.is_alive()).then_some(view)
    }
}

/// The runs of this machine that this user may see: root's, the user's own, and for root those of all users who are
/// logged in.
///
/// ```
/// for view in tautline_tasks::runs() {
///     println!("{}: {} tasks", view.description().name, view.description().tasks.len());
/// }
/// ```
#[must_use]
pub fn runs() -> Vec<View> {
    let rooms = |runtimes: Vec<(Directory, Owner)>| {
        let rooms = runtimes.into_iter();
        rooms.filter_map(|(runtime, owner)| runtime.open_below(DIRECTORY, owner).ok())
    };
    let known = tautline_state::known_runtime_directories().into_iter();
    let known = known.map(|runtime| (runtime, Owner::SelfOrRoot)).collect();
    let mut runs: Vec<View> = rooms(known)
        .flat_map(|room| {
            runs_in(&room, usize::MAX)
                .take(RUNS_MAX)
                .collect::<Vec<_>>()
        })
        .collect();
    for room in rooms(tautline_state::runtime_directories_of_users()) {
        runs.extend(runs_of_another(&room));
    }
    runs
}

/// The live runs among so many files of a directory.
fn runs_in(room: &Directory, files_max: usize) -> impl Iterator<Item = View> {
    let entries = room.entries().unwrap_or_default().into_iter();
    let files = entries.filter(|entry| entry.kind == EntryKind::File && !is_new(&entry.name));
    // Files that killed runs have left take no place.
    files
        .take(files_max)
        .filter_map(|entry| View::open(room, &entry.name))
}

/// Those of another user, who decides how many there are, and how long.
fn runs_of_another(room: &Directory) -> Vec<View> {
    let mut left = BYTES_OF_ANOTHER_MAX;
    let fits = |view: &View| match left.checked_sub(view.length) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    };
    runs_in(room, FILES_OF_ANOTHER_MAX).filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::JobTimes;

    fn description() -> Description {
        Description {
            name: "test".to_owned(),
            process: std::process::id(),
            modes: vec![String::new()],
            tasks: vec![TaskDescription {
                name: "a".to_owned(),
                priority: 98,
                period: Duration::from_millis(1),
                deadline: Duration::from_millis(1),
                worst_case: Duration::from_micros(10),
                bound: None,
                is_by_message: false,
            }],
        }
    }

    fn own_runs() -> Vec<View> {
        let mut runs = runs();
        runs.retain(|run| *run.description() == description());
        runs
    }

    #[test]
    fn a_run_is_seen_while_it_lives() {
        let (run_file, refused) = RunFile::new(&description()).unwrap();
        if let Some(refused) = refused {
            println!("SKIPPED: {refused}");
            return;
        }
        let job = TracedJob {
            release: Duration::from_millis(1),
            deadline: Duration::from_millis(2),
            begin: Duration::from_millis(1),
            end: Duration::from_millis(3),
        };
        run_file.figures(0).end(&job, &JobTimes::default());
        run_file.set_mode(3);
        let mut seen = own_runs();
        assert_eq!(seen.len(), 1);
        let look = seen[0].look().unwrap();
        let task = look.tasks().next().unwrap();
        assert_eq!((look.mode(), task.jobs, task.missed), (3, 1, 1));
        assert_eq!(task.response.max, Duration::from_millis(2));
        assert_eq!(look.trace(0, 0), (vec![job], 1));
        assert!(seen[0].is_alive());
        let path = run_file.entry.as_ref().unwrap().1.clone();
        drop(run_file);
        assert!(!seen[0].is_alive());
        assert_eq!(own_runs().len(), 0, "{path} is gone");
    }

    #[test]
    fn what_killed_runs_left_is_swept_whoever_shares_its_lock() {
        let place = tautline_state::TemporaryDirectory::make("tautline-test").unwrap();
        let directory = place.directory();
        let own = std::process::id();
        // One of a run that lives, two that were left: one of them of a process namespace in which its process had the
        // number of one that is here.
        let names = [
            "4000000-0".to_owned(),
            format!("{own}-0"),
            format!("{own}-1"),
        ];
        let files: Vec<_> = names
            .iter()
            .map(|name| directory.create_file(name, 0o644).unwrap())
            .collect();
        let stranger = open(directory, &names[0]).unwrap();
        rustix::fs::flock(&stranger, FlockOperation::LockShared).unwrap();
        rustix::fs::flock(&files[1], FlockOperation::LockExclusive).unwrap();
        sweep(directory);
        let left = directory.entries().unwrap();
        let left: Vec<_> = left
            .iter()
            .map(|entry| entry.name.to_str().unwrap())
            .collect();
        assert_eq!(left, [names[1].as_str()]);
    }

    /// Makes the file of a run of so many tasks, sparse, with a lock that says that it lives.
    fn live(directory: &Directory, name: &str, tasks: usize) -> File {
        let mut description = description();
        let task = description.tasks[0].clone();
        description.tasks = vec![task; tasks];
        let text = postcard::to_allocvec(&description).unwrap();
        let words = HEADER_WORDS + text.len().div_ceil(size_of::<u64>()) + tasks * BLOCK_WORDS;
        let mut file = directory.create_file(name, 0o600).unwrap();
        file.set_len((words * size_of::<u64>()) as u64).unwrap();
        for word in [MAGIC, VERSION, 0, text.len() as u64] {
            file.write_all(&word.to_ne_bytes()).unwrap();
        }
        file.write_all(&text).unwrap();
        rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
        file
    }

    #[test]
    fn another_user_takes_no_more_than_a_share() {
        let place = tautline_state::TemporaryDirectory::make("tautline-test").unwrap();
        let directory = place.directory();
        let large: Vec<File> = (0..8)
            .map(|number| live(directory, &format!("1-{number}"), 64))
            .collect();
        let seen = runs_of_another(directory);
        assert_eq!(seen.len(), 2);
        assert_eq!(
            runs_in(directory, usize::MAX).count(),
            8,
            "one's own are all seen"
        );
        drop(large);
        assert_eq!(runs_of_another(directory).len(), 0, "none lives");
        let small: Vec<File> = (0..80)
            .map(|number| live(directory, &format!("2-{number}"), 1))
            .collect();
        assert!(runs_of_another(directory).len() <= FILES_OF_ANOTHER_MAX);
        drop(small);
    }

    #[test]
    fn one_file_with_many_names_is_no_run() {
        let place = tautline_state::TemporaryDirectory::make("tautline-test").unwrap();
        let _file = live(place.directory(), "1-0", 1);
        assert_eq!(runs_of_another(place.directory()).len(), 1);
        std::fs::hard_link(place.path().join("1-0"), place.path().join("1-1")).unwrap();
        assert_eq!(runs_of_another(place.directory()).len(), 0);
    }

    #[test]
    fn files_that_are_none_are_passed_over() {
        let place = tautline_state::TemporaryDirectory::make("tautline-test").unwrap();
        let directory = place.directory();
        let bytes = postcard::to_allocvec(&description()).unwrap();
        let mut whole = Vec::new();
        for word in [MAGIC, VERSION, 0, bytes.len() as u64] {
            whole.extend_from_slice(&word.to_ne_bytes());
        }
        whole.extend_from_slice(&bytes);
        let mut huge = whole.clone();
        huge[24..32].copy_from_slice(&u64::MAX.to_ne_bytes());
        for (name, content) in [
            ("empty", &[][..]),
            ("short", &whole[..9]),
            ("cut", &whole),
            ("huge", &huge),
        ] {
            let mut file = directory.create_file(name, 0o600).unwrap();
            file.write_all(content).unwrap();
            let locked = open(directory, name).unwrap();
            rustix::fs::flock(&locked, FlockOperation::LockExclusive).unwrap();
            assert!(View::open(directory, name.as_ref()).is_none(), "{name}");
        }
    }
}
