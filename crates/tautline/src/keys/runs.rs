//! Numbers of the runs of protected ports, larger each time that one is opened, also after a restart of the machine and
//! with a clock that was set back. The last one lies in a file of this user's.
//!
//! The order is the time in seconds, or one more than the last if that is larger. So it goes on growing where the clock
//! is wrong, and where the file is lost the clock alone is enough.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tautline_proto::authentication;
use tautline_state::Directory;

use crate::sys::{clock, random};

/// Directory of root, unless `XDG_STATE_HOME` names one. It outlives restarts.
const OF_ROOT: &str = "/var/lib";
/// Directory of another user, below the home directory.
const OF_USERS: &str = ".local/state";
/// Directory of Tautline in it.
const NAME: &str = "tautline";
/// File in that one.
const FILE: &str = "last-run";
/// Bytes of the largest file: a number of 32 bits and the end of a line.
const FILE_BYTES_MAX: usize = 16;
/// Longest wait for another process that opens a port. Lower: on a slow disk, one of many that start together fails.
/// Higher: a process that hangs with the lock is noticed later.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// Number of the first run of a port that is opened. Waits for the disk.
pub(crate) fn first_run() -> io::Result<u64> {
    let random = random::number()?;
    let order = next_order(&directory()?, clock::realtime_ns())?;
    Ok(authentication::first_run(order, random))
}

fn directory() -> io::Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = match (set("XDG_STATE_HOME"), set("HOME")) {
        (Some(state), _) => PathBuf::from(state),
        (None, _) if rustix::process::geteuid().is_root() => PathBuf::from(OF_ROOT),
        (None, Some(home)) => Path::new(&home).join(OF_USERS),
        (None, None) => return Err(io::Error::other("neither XDG_STATE_HOME nor HOME is set")),
    };
    Ok(base.join(NAME))
}

/// The order after the last one, which takes its place in the file.
fn next_order(path: &Path, now_ns: u64) -> io::Result<u32> {
    let directory = Directory::make(path, 0o700).map_err(io::Error::other)?;
    let _held = directory.lock(LOCK_WAIT).map_err(io::Error::other)?;
    let after = match directory.read(FILE, FILE_BYTES_MAX) {
        Ok(bytes) => order_in(&bytes, &directory)?.saturating_add(1),
        Err(error) if error.is_absent() => 0,
        Err(error) => return Err(io::Error::other(error)),
    };
    let now = u32::try_from(now_ns / 1_000_000_000).unwrap_or(u32::MAX);
    let order = after.max(now);
    directory
        .write(FILE, format!("{order}\n").as_bytes(), 0o600)
        .map_err(io::Error::other)?;
    Ok(order)
}

fn order_in(bytes: &[u8], directory: &Directory) -> io::Result<u32> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    text.trim_end().parse().map_err(|_| {
        let file = directory.path().join(FILE);
        io::Error::other(format!("{} has no number; remove it", file.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that is gone when the test ends.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            let name = format!("taut-runs-{:x}", random::number().unwrap());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0); // nothing to be done about it here
        }
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn orders_grow_with_any_clock_and_after_the_loss_of_the_file_with_a_right_one() {
        let scratch = Scratch::new();
        let path = scratch.0.join("state/tautline");
        let next = |now_s: u64| next_order(&path, now_s * SECOND).unwrap();
        // Ahead, set back, and in 1970, as a board without a battery clock begins.
        let orders = [1_000, 5_000, 1_001, 1_002, 0, 0, 1_003, 6_000].map(next);
        assert_eq!(
            orders,
            [1_000, 5_000, 5_001, 5_002, 5_003, 5_004, 5_005, 6_000]
        );
        std::fs::remove_dir_all(&path).unwrap();
        assert_eq!(next(6_001), 6_001);
        std::fs::write(path.join(FILE), "much\n").unwrap();
        let refused = next_order(&path, 0).unwrap_err().to_string();
        assert!(
            refused.ends_with("last-run has no number; remove it"),
            "{refused}"
        );
    }

    #[test]
    fn of_many_that_open_at_once_each_has_an_order_of_its_own() {
        let scratch = Scratch::new();
        let path = scratch.0.join("tautline");
        let path = path.as_path();
        let mut orders: Vec<_> = std::thread::scope(|scope| {
            let one = || {
                (0..10)
                    .map(|_| next_order(path, SECOND).unwrap())
                    .collect::<Vec<_>>()
            };
            let threads = [(); 4].map(|()| scope.spawn(one));
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        orders.sort_unstable();
        assert_eq!(orders, (1..=40).collect::<Vec<_>>());
    }
}
