//! The log of a guest: what it sends to one of its ports goes into a file of the user that runs it.
//!
//! The user names the file; the guest sends text and nothing else. Files are made anew, in a directory that is held
//! open, and are their user's alone. A thread writes, so that a slow disk holds no other message up; what it cannot
//! follow is dropped, and the port counts it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use tautline_state::{Directory, StateError, text};

use crate::error::GuestError;

/// Messages that wait for the disk. Lower: a burst is not written. Higher: more memory, of the port's longest message
/// each.
const WAITING_MAX: usize = 256;
/// Bytes of both files that a log has, unless the file of `--window` says.
const BYTES_MAX: u64 = 1 << 20;
/// Fewest bytes of a log. Lower: its halves have no room for a message.
const BYTES_MIN: u64 = 256 << 10;
/// Most bytes of a log. Higher: a mistake in a file fills a disk.
const BYTES_LIMIT: u64 = 1 << 40;

/// Log of a guest, as its file says.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LogConfig {
    /// Port of the guest that it sends lines from, whatever their address.
    pub port: u16,
    /// The file. The one before has `.1` behind its name.
    pub file: PathBuf,
    /// Bytes of both, such as `1M`.
    bytes_max: Option<String>,
}

impl LogConfig {
    /// Most bytes of both files; what is wrong with them, in words.
    pub(crate) fn bytes(&self) -> Result<u64, String> {
        let Some(text) = &self.bytes_max else {
            return Ok(BYTES_MAX);
        };
        tautline_state::units::bytes(text, 1)
            .filter(|bytes| (BYTES_MIN..=BYTES_LIMIT).contains(bytes))
            .ok_or_else(|| format!("log: bytes_max = \"{text}\"; expected 256K to 1024G"))
    }
}

/// A log that is written. Its buffers circulate between the writer and the relay, which fills them.
#[derive(Debug)]
pub(crate) struct Log {
    /// `None` while it is being closed.
    lines: Option<SyncSender<Vec<u8>>>,
    free: Receiver<Vec<u8>>,
    writer: Option<JoinHandle<()>>,
}

impl Log {
    /// Makes the file, and keeps the one of before. All memory for messages of this length is taken now.
    pub(crate) fn open(config: &LogConfig, message_bytes_max: usize) -> Result<Log, GuestError> {
        let bytes_max = config.bytes().map_err(GuestError::Setting)?;
        let mut files = Files::open(&config.file, bytes_max / 2).map_err(GuestError::Log)?;
        let (lines, waiting) = sync_channel(WAITING_MAX);
        let (give, free) = sync_channel(WAITING_MAX);
        for _ in 0..WAITING_MAX {
            // It has room for all.
            let _ = give.try_send(Vec::with_capacity(message_bytes_max));
        }
        let writer = std::thread::Builder::new()
            .name("taut-guest-log".to_owned())
            .spawn(move || files.write_all(&waiting, &give))
            .map_err(GuestError::system("starting a thread"))?;
        Ok(Log {
            lines: Some(lines),
            free,
            writer: Some(writer),
        })
    }

    /// Writes a message soon. `false`: there is no room, or the disk has failed.
    pub(crate) fn take(&self, message: &[u8]) -> bool {
        let (Some(lines), Ok(mut buffer)) = (&self.lines, self.free.try_recv()) else {
            return false;
        };
        buffer.clear();
        buffer.extend_from_slice(message);
        lines.try_send(buffer).is_ok()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        drop(self.lines.take());
        // It writes what waits. A panic there has been reported already.
        let _ = self.writer.take().map(JoinHandle::join);
    }
}

struct Files {
    directory: Directory,
    name: OsString,
    file: File,
    written: u64,
    /// Of one file.
    bytes_max: u64,
}

impl Files {
    fn open(path: &Path, bytes_max: u64) -> Result<Files, StateError> {
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let directory = Directory::open(parent.unwrap_or(Path::new(".")))?;
        let name = path.file_name().unwrap_or_default().to_owned();
        // A directory, a link or a device of that name is not moved out of the way.
        match directory.open_file(&name) {
            Ok(_) => {}
            Err(error) if error.is_absent() => {}
            Err(error) => return Err(error),
        }
        let file = begin(&directory, &name)?;
        Ok(Files {
            directory,
            name,
            file,
            written: 0,
            bytes_max,
        })
    }

    /// Ends when the sender is gone, or when the disk fails.
    fn write_all(&mut self, lines: &Receiver<Vec<u8>>, free: &SyncSender<Vec<u8>>) {
        for message in lines {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let now = now.unwrap_or_default();
            let (seconds, micros) = (now.as_secs(), now.subsec_micros());
            let line = format!("{seconds}.{micros:06} {}\n", plain(&message));
            if self.write(line.as_bytes()).is_err() {
                return;
            }
            // There is room for all that there are.
            let _ = free.try_send(message);
        }
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let bytes = line.len() as u64;
        if self.written > 0 && self.written + bytes > self.bytes_max {
            let begun = begin(&self.directory, &self.name);
            self.file = begun.map_err(io::Error::other)?;
            self.written = 0;
        }
        self.written += bytes;
        self.file.write_all(line)
    }
}

/// A new file; the one of before gets `.1` behind its name.
fn begin(directory: &Directory, name: &OsString) -> Result<File, StateError> {
    let mut before = name.clone();
    before.push(".1");
    match directory.rename(name, &before) {
        Err(error) if !error.is_absent() => Err(error),
        _ => directory.create_file(name, 0o600),
    }
}

/// A line that a terminal takes for nothing else.
fn plain(message: &[u8]) -> String {
    let message = String::from_utf8_lossy(message);
    text::plain(message.strip_suffix('\n').unwrap_or(&message), usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use tautline_state::TemporaryDirectory;

    use super::*;

    fn config(file: &Path) -> LogConfig {
        LogConfig {
            port: 12,
            file: file.to_owned(),
            bytes_max: Some("256K".to_owned()),
        }
    }

    #[test]
    fn a_flood_fills_two_files_and_no_more() {
        let scratch = TemporaryDirectory::make("taut-guest-log").expect("a directory");
        let path = scratch.path().join("arm.log");
        fs::write(&path, "before").expect("written");
        let log = Log::open(&config(&path), 1 << 10).expect("opened");
        let mut taken = 0;
        while taken < 5_000 {
            let message = format!("\x1b]0;line {taken}\x07{}\n", "x".repeat(80));
            match log.take(message.as_bytes()) {
                true => taken += 1,
                // The disk is slower than a flood.
                false => std::thread::yield_now(),
            }
        }
        drop(log);
        let both = [path.clone(), scratch.path().join("arm.log.1")];
        for file in &both {
            let found = fs::metadata(file).expect("there");
            assert!(found.len() <= 128 << 10, "{}", found.len());
            assert_eq!(found.permissions().mode() & 0o777, 0o600);
            let text = fs::read_to_string(file).expect("text");
            assert!(!text.contains(['\x1b', '\x07']), "no control characters");
            assert_eq!(
                text.lines().count(),
                text.matches(" \u{fffd}]0;line ").count()
            );
        }
        assert_eq!(fs::read_dir(scratch.path()).expect("listed").count(), 2);
    }

    #[test]
    fn only_a_file_of_this_user_is_moved_aside() {
        let scratch = TemporaryDirectory::make("taut-guest-log").expect("a directory");
        let path = scratch.path().join("arm.log");
        let target = scratch.path().join("precious");
        fs::write(&target, "kept").expect("written");
        symlink(&target, &path).expect("made");
        assert!(Log::open(&config(&path), 1 << 10).is_err());
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("made");
        assert!(Log::open(&config(&path), 1 << 10).is_err());
        assert!(Log::open(&config(&target.join("log")), 1 << 10).is_err());
        assert_eq!(fs::read_to_string(&target).expect("there"), "kept");
    }
}
