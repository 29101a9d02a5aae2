//! Builds the file system that a guest starts from: a cpio archive in the "newc" form that the kernel unpacks
//! (Documentation/driver-api/early-userspace/buffer-format.rst). The same content gives the same bytes: no
//! times, no owners, names in order.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// S_IFDIR with rwxr-xr-x.
const MODE_DIRECTORY: u32 = 0o040_755;
/// S_IFREG with rwxr-xr-x: there is one user in a guest and it is root.
const MODE_FILE: u32 = 0o100_755;

/// An initramfs in the making.
#[derive(Debug, Default)]
pub struct Initramfs {
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Initramfs {
    /// Adds a file at an absolute path.
    pub fn add(&mut self, path: impl Into<PathBuf>, content: Vec<u8>) {
        self.files.insert(path.into(), content);
    }

    /// Adds a program of this machine at `path`, and the shared libraries that it needs at their own paths.
    pub fn add_program(&mut self, path: impl Into<PathBuf>, program: &Path) -> io::Result<()> {
        self.add(path, fs::read(program)?);
        for library in shared_libraries(program)? {
            self.files.insert(library.clone(), fs::read(&library)?);
        }
        Ok(())
    }

    /// The archive, uncompressed: unpacking is paid for in the guest, one instruction a nanosecond.
    pub fn archive(&self) -> io::Result<Vec<u8>> {
        let mut directories = BTreeSet::new();
        for path in self.files.keys() {
            directories.extend(
                path.ancestors()
                    .skip(1)
                    .filter(|parent| *parent != Path::new("/"))
                    .map(Path::to_owned),
            );
        }
        let mut archive = Vec::new();
        // Rising order puts every directory before what is in it.
        for directory in &directories {
            archive = entry(archive, directory, MODE_DIRECTORY, &[])?;
        }
        for (path, content) in &self.files {
            archive = entry(archive, path, MODE_FILE, content)?;
        }
        cpio::newc::trailer(archive)
    }
}

fn entry(archive: Vec<u8>, path: &Path, mode: u32, content: &[u8]) -> io::Result<Vec<u8>> {
    let name = path.to_string_lossy();
    let length = u32::try_from(content.len()).map_err(|_| {
        io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{name} is larger than 4 GiB"),
        )
    })?;
    let mut writer = cpio::newc::Builder::new(name.trim_start_matches('/'))
        .mode(mode)
        .nlink(1)
        .write(archive, length);
    io::Write::write_all(&mut writer, content)?;
    writer.finish()
}

/// Libraries that a program loads according to `ldd`, the loader itself included; nothing for a static program.
fn shared_libraries(program: &Path) -> io::Result<Vec<PathBuf>> {
    let ldd = crate::load::find_program("ldd").unwrap_or_else(|| "ldd".into());
    let output = Command::new(ldd).arg(program).output().map_err(|error| {
        io::Error::new(
            error.kind(),
            format!(
                "ldd, which lists the libraries of {}, cannot be run: {error}",
                program.display()
            ),
        )
    })?;
    parse_ldd(&String::from_utf8_lossy(&output.stdout)).map_err(|library| {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!(
                "{} needs {library}, which is not installed",
                program.display()
            ),
        )
    })
}

fn parse_ldd(text: &str) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        let target = match line.split_once(" => ") {
            Some((name, "not found")) => return Err(name.to_owned()),
            Some((_, target)) => target,
            None => line,
        };
        let path = target.split_whitespace().next().unwrap_or_default();
        if path.starts_with('/') && !path.ends_with(':') {
            found.push(PathBuf::from(path));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_the_same_twice_and_lists_parents_first() {
        let build = || {
            let mut initramfs = Initramfs::default();
            initramfs.add("/lib/deep/file", b"content".to_vec());
            initramfs.add("/init", vec![0; 5000]);
            initramfs.archive().unwrap()
        };
        let archive = build();
        assert_eq!(archive, build());
        let (mut names, mut input) = (Vec::new(), archive.as_slice());
        loop {
            let reader = cpio::newc::Reader::new(input).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            names.push((
                reader.entry().name().to_owned(),
                reader.entry().mode(),
                reader.entry().file_size(),
            ));
            input = reader.finish().unwrap();
        }
        assert_eq!(
            names,
            [
                ("lib".to_owned(), MODE_DIRECTORY, 0),
                ("lib/deep".to_owned(), MODE_DIRECTORY, 0),
                ("init".to_owned(), MODE_FILE, 5000),
                ("lib/deep/file".to_owned(), MODE_FILE, 7),
            ]
        );
    }

    #[test]
    fn ldd_is_understood() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f)\n\t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        let found = parse_ldd(text).unwrap();
        assert_eq!(
            found,
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/ld-linux-x86-64.so.2"
            ]
            .map(PathBuf::from)
        );
        assert_eq!(parse_ldd("\tstatically linked\n"), Ok(vec![]));
        assert_eq!(
            parse_ldd("\tlibx.so => not found\n"),
            Err("libx.so".to_owned())
        );
    }
}
