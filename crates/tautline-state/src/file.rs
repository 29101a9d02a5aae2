//! Files in a checked directory.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, Mode, OFlags};

use crate::directory::{Owner, check_owner, plain, stat_of};
use crate::temporary::{UNFORESEEABLE_BYTES, unforeseeable};
use crate::{Directory, StateError};

/// Attempts to find a name that is not taken. Each is one of 2^64, so a second is needed only if another process
/// has the same random numbers.
pub(crate) const NAME_ATTEMPTS: u32 = 4;

impl Directory {
    /// Opens a regular file of this user or root for reading, which no other user can write.
    pub fn open_file(&self, name: impl AsRef<OsStr>) -> Result<File, StateError> {
        let name = name.as_ref();
        let path = self.path().join(name);
        let file = self.open_entry(name, OFlags::RDONLY, 0)?;
        let found = stat_of(&file, &path)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(StateError::WrongKind {
                path,
                expected: "regular file",
            });
        }
        check_owner(&found, &path, Owner::SelfOrRoot)?;
        let mode = found.st_mode & 0o7777;
        if mode & 0o022 != 0 {
            return Err(StateError::WritableByOthers { path, mode });
        }
        Ok(file)
    }

    /// Reads such a file of at most `bytes_max` bytes.
    pub fn read(&self, name: impl AsRef<OsStr>, bytes_max: usize) -> Result<Vec<u8>, StateError> {
        let name = name.as_ref();
        let path = self.path().join(name);
        let file = self.open_file(name)?;
        let mut bytes = Vec::new();
        file.take(bytes_max as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(StateError::io("read", &path))?;
        if bytes.len() > bytes_max {
            return Err(StateError::TooLarge { path, bytes_max });
        }
        Ok(bytes)
    }

    /// Makes a file that was not there before, with the permission bits `mode`, for writing.
    pub fn create_file(&self, name: impl AsRef<OsStr>, mode: u32) -> Result<File, StateError> {
        let name = name.as_ref();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let file = self.open_entry(name, flags, mode)?;
        let path = self.path().join(name);
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))
            .map_err(StateError::errno("change the mode of", &path))?;
        Ok(file)
    }

    /// Writes a file so that a reader, and a restart after a crash, finds the old content or the new: under another
    /// name first, then renamed. Waits for the disk.
    pub fn write(
        &self,
        name: impl AsRef<OsStr>,
        bytes: &[u8],
        mode: u32,
    ) -> Result<(), StateError> {
        self.replace(name.as_ref(), bytes, mode, File::sync_data)
    }

    /// Writes a file without waiting until the content is on the disk, for what is true while its writer lives, such as
    /// a status: after a crash of the machine it may be empty. Not for a thread with deadlines: to throw the old
    /// content away, a file system may still wait for its disk.
    pub fn show(&self, name: impl AsRef<OsStr>, bytes: &[u8], mode: u32) -> Result<(), StateError> {
        self.replace(name.as_ref(), bytes, mode, |_| Ok(()))
    }

    fn replace(
        &self,
        name: &OsStr,
        bytes: &[u8],
        mode: u32,
        finish: fn(&File) -> io::Result<()>,
    ) -> Result<(), StateError> {
        let name = plain(name)?;
        let path = self.path().join(name);
        let (mut file, beside) = self.create_beside(name, mode)?;
        let written = file
            .write_all(bytes)
            .and_then(|()| finish(&file))
            .map_err(StateError::io("write", &path))
            .and_then(|()| self.rename(&beside, name));
        if written.is_err() {
            let _ = self.remove(&beside); // the error that matters is already in hand
        }
        written
    }

    /// Removes what killed writers of `name` left under other names. For the only present writer.
    pub fn sweep(&self, name: impl AsRef<OsStr>) -> Result<(), StateError> {
        for entry in self.entries()? {
            if written_beside(&entry.name) == Some(name.as_ref()) {
                let _ = self.remove(entry.name); // its writer lived after all, or it is another user's
            }
        }
        Ok(())
    }

    fn create_beside(&self, name: &OsStr, mode: u32) -> Result<(File, OsString), StateError> {
        let mut attempts = 0;
        loop {
            let mut beside = OsString::from(".");
            beside.push(name);
            beside.push(".");
            beside.push(unforeseeable());
            match self.create_file(&beside, mode) {
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists && attempts < NAME_ATTEMPTS =>
                {
                    attempts += 1;
                }
                made => return Ok((made?, beside)),
            }
        }
    }
}

/// The file that is written under such a name.
fn written_beside(name: &OsStr) -> Option<&OsStr> {
    let name = name.as_bytes().strip_prefix(b".")?;
    let (name, random) = name.split_at_checked(name.len().checked_sub(UNFORESEEABLE_BYTES)?)?;
    let name = name.strip_suffix(b".")?;
    let is_random = random.iter().all(u8::is_ascii_hexdigit);
    is_random.then(|| OsStr::from_bytes(name))
}
