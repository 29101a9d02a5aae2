//! Files that the user named to be read: configurations, tokens, recordings.
//!
//! A regular file, or a pipe that this process was handed, as `/dev/stdin` and a shell's `<(…)` are. Everything else is
//! refused: a pipe with a name would hold the reader up, a device may have no end. All that is asked of a file is asked
//! of the open one.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::directory::Owner;

/// File system of pipes without a name (`PIPEFS_MAGIC` of the kernel's `magic.h`).
const PIPES: u64 = 0x5049_5045;

/// Permissions that other users may have for a file that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// All users: the caller that names the file trusts it.
    MayWrite,
    /// To read it. It must be this user's or root's own; with sudo, the caller's too.
    MayRead,
    /// None; and it must be such a user's, too.
    HaveNone,
}

/// Reads a text of at most `bytes_max` bytes.
///
/// # Errors
/// Without the path: the kernel's, or the file is none that is read here, is longer, is no UTF-8, or others have more
/// permissions for it.
pub fn read_text(path: &Path, bytes_max: usize, others: Others) -> io::Result<String> {
    let bytes = read_bytes(path, bytes_max, others)?;
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Reads bytes that need not be text.
///
/// # Errors
/// Those of [`read_text`], apart from the encoding.
pub fn read_bytes(path: &Path, bytes_max: usize, others: Others) -> io::Result<Vec<u8>> {
    let file = opened(path)?;
    if !file.metadata()?.is_file() {
        // This open pipe is our own, and its reader may wait: it was handed over to be read to its end.
        rustix::io::ioctl_fionbio(&file, false)?;
    }
    check(&file, others)?;
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("it has more than {bytes_max} bytes"),
        ));
    }
    Ok(bytes)
}

/// Opens a regular file for reading, without regard to its writers.
///
/// # Errors
/// The kernel's, or it is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = opened(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(no_file("it is a pipe, and not a file")),
    }
}

/// Opens without waiting.
fn opened(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() || kind.is_fifo() && rustix::fs::fstatfs(&file)?.f_type as u64 == PIPES {
        return Ok(file);
    }
    Err(no_file(if kind.is_dir() {
        "it is a directory"
    } else if kind.is_fifo() {
        "it is a named pipe, and not a file"
    } else {
        "it is a device, and not a file"
    }))
}

fn no_file(said: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, said)
}

fn check(file: &File, others: Others) -> io::Result<()> {
    let refused = |said| Err(io::Error::new(ErrorKind::PermissionDenied, said));
    let (too_much, remedy) = match others {
        Others::MayWrite => return Ok(()),
        Others::MayRead => (0o022, "can write it: chmod go-w"),
        Others::HaveNone => (0o077, "have permissions for it: chmod 600"),
    };
    let found = file.metadata()?;
    let owner = found.uid();
    if !Owner::SelfOrRoot.includes(owner) && caller_of_sudo() != Some(owner) {
        return refused(format!("it belongs to user {owner}, not to you or root"));
    }
    match found.mode() & too_much {
        0 => Ok(()),
        _ => refused(format!(
            "others {remedy} (mode {:04o})",
            found.mode() & 0o7777
        )),
    }
}

/// The user that started this process of root's with sudo.
#[must_use]
pub fn caller_of_sudo() -> Option<u32> {
    let is_root = rustix::process::geteuid().is_root();
    let caller = std::env::var("SUDO_UID").ok().filter(|_| is_root)?;
    caller.parse().ok()
}
