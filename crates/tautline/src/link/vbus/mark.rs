//! The mark of a bus: a file by which a directory is known to be one. Nothing is made or removed in a directory that
//! has other things in it and no mark.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::directory::names;
use super::place::{denied, kind_of};

const NAME: &str = ".tautline-bus";
/// Content of the mark of a bus that was made for its nodes. Every other mark, such as an empty file of an
/// administrator, is of a directory that stays.
const MADE: &[u8] = b"A bus of Tautline. Its last node removes this directory.\n";
const FOUND: &[u8] = b"A bus of Tautline. This directory stays when its last node leaves.\n";
/// Looks at a directory without a mark. The last node takes the mark away for a moment when it leaves, and puts it
/// back if another has come. Lower: that other's peers are refused. Higher: a wrong directory is refused later.
const LOOKS: u32 = 4;
const LOOK_PAUSE: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Made,
    Found,
}

impl Mark {
    /// Writes the mark. One that is there stays.
    pub(super) fn put(self, bus: BorrowedFd<'_>) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(bus, NAME, flags, Mode::RUSR) {
            Err(Errno::EXIST) => return Ok(()),
            made => made?,
        };
        let text = if self == Mark::Made { MADE } else { FOUND };
        rustix::io::write(&file, text)?;
        // The other users of the bus read it, whatever the process's mask is.
        Ok(rustix::fs::fchmod(&file, Mode::from_raw_mode(0o444))?)
    }
}

/// The mark of a directory; `None` if it has none.
pub(super) fn find(bus: BorrowedFd<'_>) -> io::Result<Option<Mark>> {
    if kind_of(bus, NAME.as_ref())? != Some(FileType::RegularFile) {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut text = [0; MADE.len() + 1];
    let read = rustix::fs::openat(bus, NAME, flags, Mode::empty())
        .and_then(|file| rustix::io::read(&file, &mut text));
    Ok(Some(match read {
        Ok(bytes) if text[..bytes] == *MADE => Mark::Made,
        _ => Mark::Found,
    }))
}

/// The mark of a directory that a node means to join. One that is empty gets a mark.
pub(super) fn require(bus: BorrowedFd<'_>, path: &Path) -> io::Result<Mark> {
    for look in 1.. {
        if let Some(mark) = find(bus)? {
            return Ok(mark);
        }
        match names(bus)?.first() {
            None => Mark::Found.put(bus)?,
            Some(_) if look < LOOKS => std::thread::sleep(LOOK_PAUSE),
            Some(other) => {
                return Err(denied(format!(
                    "{} is not a bus: it contains `{}` and no file {NAME}; name an empty or a new directory",
                    path.display(),
                    Path::new(other).display()
                )));
            }
        }
    }
    unreachable!("the loop has no end")
}

/// Removes the mark where nothing else is left, and says whether the directory goes too.
pub(super) fn remove_last(bus: BorrowedFd<'_>) -> io::Result<bool> {
    if names(bus)? != [NAME] {
        return Ok(false);
    }
    let Some(mark) = find(bus)? else {
        return Ok(false);
    };
    // Another user's mark stays, and the directory with it.
    if rustix::fs::unlinkat(bus, NAME, AtFlags::empty()).is_err() {
        return Ok(false);
    }
    if !names(bus)?.is_empty() {
        mark.put(bus)?;
        return Ok(false);
    }
    Ok(mark == Mark::Made)
}

/// Removes the mark of a directory that no other process has seen yet.
pub(super) fn remove(bus: BorrowedFd<'_>) {
    let _gone = rustix::fs::unlinkat(bus, NAME, AtFlags::empty());
}
