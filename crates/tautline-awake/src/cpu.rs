//! One looker a CPU, and how much of a CPU all threads of this process may spend looking.
#![allow(unsafe_code)] // An account behind a flag.

use std::cell::UnsafeCell;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use tautline_proto::arrival::share::Share;
use tautline_proto::time::Instant;

use crate::{raw, thread};

/// CPUs that are told apart. Threads on CPUs above share places: fewer of them look at once.
const CPUS_MAX: usize = 256;

/// Part of the time that a thread, and all threads of the process on one CPU, may spend looking. Lower: long waking
/// times leave no look. Higher: others on the CPU notice.
pub const SHARE_PERCENT: u64 = 10;

/// Shortest look. Lower: what it costs to begin one is more than it finds.
pub(crate) const LOOK_MIN: Duration = Duration::from_micros(3);

#[derive(Debug)]
struct Cpu {
    is_taken: AtomicBool,
    /// Only the thread that has taken the place reads and writes it.
    share: UnsafeCell<Share>,
}

// SAFETY: `share` is reached by the holder of `is_taken` only.
unsafe impl Sync for Cpu {}

static CPUS: [Cpu; CPUS_MAX] = [const {
    Cpu {
        is_taken: AtomicBool::new(false),
        share: UnsafeCell::new(Share::new(SHARE_PERCENT)),
    }
}; CPUS_MAX];

/// Time that this process has spent looking, on all CPUs.
static LOOKED_NS: AtomicU64 = AtomicU64::new(0);

/// The CPU on which this thread looks, until dropped.
#[derive(Debug)]
pub struct Looker {
    cpu: &'static Cpu,
    number: usize,
    since: Instant,
    until: Instant,
}

fn current() -> usize {
    // SAFETY: no arguments.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0) % CPUS_MAX
}

/// For how long this thread may look at some time, now or later: the lesser of what it and its CPU have left. Its own
/// account counts alone while another thread looks on the CPU: what that one will leave is not known.
pub(crate) fn available(at: Instant) -> Duration {
    let own = thread::available(at);
    let cpu = &CPUS[current()];
    // Acquire: partner is the release of the last holder.
    if cpu.is_taken.swap(true, Acquire) {
        return own;
    }
    // SAFETY: the place is taken by this thread.
    let mut share = unsafe { *cpu.share.get() };
    // Release: partner is the acquire of the next holder.
    cpu.is_taken.store(false, Release);
    own.min(share.available(at))
}

impl Looker {
    /// The place on this thread's CPU: for at most until `until`. `None` if another thread looks there, or nothing of
    /// the CPU's or the thread's share is left.
    pub fn begin(now: Instant, until: Instant) -> Option<Self> {
        let number = current();
        let cpu = &CPUS[number];
        // Acquire: partner is the release in `drop`.
        if cpu.is_taken.swap(true, Acquire) {
            return None;
        }
        // SAFETY: the place is taken by this thread.
        let of_cpu = unsafe { (*cpu.share.get()).available(now) };
        let available = of_cpu.min(thread::available(now));
        let looker = Self {
            cpu,
            number,
            since: now,
            until: until.min(now + available),
        };
        (looker.until > now && available >= LOOK_MIN).then_some(looker)
    }

    /// When looking ends.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Whether looking goes on at `now`: there is time, and the thread is still on its CPU.
    pub(crate) fn goes_on(&self, now: Instant) -> bool {
        now < self.until && current() == self.number
    }

    /// Looks by system calls for as long as the looker may, and in between gives way to threads of the same priority.
    /// With an ordinary policy the scheduler preempts the thread by itself, and giving way could cost a slice.
    ///
    /// # Errors
    /// Those of a look, which end it.
    pub fn repeat<T, E>(
        &self,
        mut look: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        let yields = thread::yields();
        loop {
            let found = look();
            if !matches!(found, Ok(None)) || !self.goes_on(raw::now()) {
                return found;
            }
            if yields {
                raw::yield_now();
            }
        }
    }

    /// Looking ended at `now`, on the clock of its begin.
    pub(crate) fn end(self, now: Instant) {
        let spent = now.saturating_duration_since(self.since);
        // SAFETY: the place is taken by this thread.
        unsafe { (*self.cpu.share.get()).spend(spent) };
        LOOKED_NS.fetch_add(spent.as_nanos() as u64, Relaxed);
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        // Release: partner is the acquire in `begin`.
        self.cpu.is_taken.store(false, Release);
    }
}

/// In a forked child: the other threads, which may have held places, are not here.
pub fn reset_after_fork() {
    for cpu in &CPUS {
        cpu.is_taken.store(false, Relaxed);
    }
    LOOKED_NS.store(0, Relaxed);
}

/// Time that this process has spent looking, on all CPUs.
pub fn looked() -> Duration {
    Duration::from_nanos(LOOKED_NS.load(Relaxed))
}

/// Whether a cgroup limits the CPU time of this process (`cpu.max`; `cpu.cfs_quota_us` of version 1), as found at the
/// first call: then looking would take from the program's own time. A limit of a group that a container hides is not
/// seen.
pub fn is_limited() -> bool {
    static IS_LIMITED: LazyLock<bool> = LazyLock::new(|| {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        finds_limit(&groups, Path::new("/sys/fs/cgroup"))
    });
    *IS_LIMITED
}

/// Looks at each group from this process's up to the highest that is visible. A container often shows its own group in
/// place of the highest, and names a path that is not there.
fn finds_limit(groups: &str, mounted: &Path) -> bool {
    groups.lines().any(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            return false;
        };
        let (highest, file, unlimited) = match controllers {
            "" => (mounted.to_owned(), "cpu.max", "max"),
            some if some.split(',').any(|one| one == "cpu") => {
                (mounted.join("cpu"), "cpu.cfs_quota_us", "-1")
            }
            _ => return false,
        };
        let own = highest.join(path.trim_start_matches('/'));
        let mut visible = own
            .ancestors()
            .take_while(|group| group.starts_with(&highest));
        visible.any(|group| {
            fs::read_to_string(group.join(file))
                .is_ok_and(|limit| !limit.is_empty() && !limit.starts_with(unlimited))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_cpu_time_is_found_in_each_group_that_is_visible() {
        let base = std::env::temp_dir().join(format!("taut-cgroup-{}", std::process::id()));
        let base = base.as_path();
        let write = |file: &str, text: &str| {
            let file = base.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("robot/loop/cpu.max", "max 100000\n");
        write("robot/cpu.max", "max 100000\n");
        assert!(!finds_limit("0::/robot/loop\n", base));
        write("robot/cpu.max", "50000 100000\n");
        assert!(finds_limit("0::/robot/loop\n", base));
        assert!(!finds_limit("0::/other\n", base));
        // Version 1, and a container whose group lies where it sees the highest.
        write("cpu/cpu.cfs_quota_us", "-1\n");
        write("cpu/robot/cpu.cfs_quota_us", "50000\n");
        let groups = |path| format!("4:memory:/robot\n1:cpu,cpuacct:{path}\n0::/\n");
        assert!(finds_limit(&groups("/robot"), base));
        assert!(!finds_limit(&groups("/other"), base));
        write("cpu/cpu.cfs_quota_us", "50000\n");
        assert!(finds_limit(&groups("/docker/0123"), base));
        fs::remove_dir_all(base).unwrap();
    }
}
