//! The program that a guest runs: read once, checked, and kept as it was.

use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;

use object::LittleEndian as LE;
use object::elf::{EM_AARCH64, ET_EXEC, FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use rustix::fs::{Mode, OFlags, SealFlags};

use crate::error::GuestError;

/// Largest image. Lower: firmware with its data does not fit. Higher: a file that is none, such as a disk's, is read
/// before it is refused.
const IMAGE_BYTES_MAX: u64 = 64 << 20;

/// Where an ELF file says how wide its words are.
const CLASS_BYTE: usize = 4;

/// Processor of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Architecture {
    /// 64-bit ARM.
    Aarch64,
}

impl Architecture {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Aarch64 => "aarch64",
        }
    }

    /// Address at which its memory begins.
    pub(crate) fn ram_start(self) -> u64 {
        match self {
            Architecture::Aarch64 => 0x4000_0000,
        }
    }

    /// Address at which an image that is no ELF file is loaded and started.
    pub(crate) fn flat_start(self) -> u64 {
        match self {
            Architecture::Aarch64 => 0x4008_0000,
        }
    }
}

/// An image that can be started.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) architecture: Architecture,
    /// Its bytes, which nobody can change any more.
    pub(crate) file: OwnedFd,
}

impl Image {
    /// Reads and checks an image for a guest with this memory.
    pub(crate) fn read(path: &Path, ram_bytes: u64) -> Result<Image, GuestError> {
        let wrong = |reason: String| GuestError::Image {
            path: path.to_owned(),
            reason,
        };
        let bytes = read(path).map_err(wrong)?;
        let architecture = Architecture::Aarch64;
        let start = architecture.ram_start();
        let ram = start..start + ram_bytes;
        if bytes.starts_with(&object::elf::ELFMAG) {
            check(&bytes, &ram).map_err(wrong)?;
        } else {
            let flat = architecture.flat_start()..architecture.flat_start() + bytes.len() as u64;
            check_range(&flat, &ram).map_err(wrong)?;
        }
        let file = keep(&bytes).map_err(GuestError::system("keeping the image"))?;
        Ok(Image { architecture, file })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    // Not blocking, so that a pipe under this name does not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| error.to_string())?;
    let mut file = File::from(file);
    let found = file.metadata().map_err(|error| error.to_string())?;
    if !found.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    if found.len() > IMAGE_BYTES_MAX {
        return Err(format!(
            "it has {} bytes, more than {IMAGE_BYTES_MAX}",
            found.len()
        ));
    }
    let mut bytes = Vec::new();
    Read::by_ref(&mut file)
        .take(IMAGE_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.is_empty() {
        return Err("it is empty".to_owned());
    }
    Ok(bytes)
}

/// Whether an ELF file can be loaded into this memory and started there.
fn check(bytes: &[u8], ram: &Range<u64>) -> Result<(), String> {
    let truncated = |_| "it is truncated: its headers point behind its end".to_owned();
    if bytes.get(CLASS_BYTE) != Some(&object::elf::ELFCLASS64) {
        return Err("it is a 32-bit program; guests have 64 bits".to_owned());
    }
    let header = FileHeader64::<LE>::parse(bytes)
        .map_err(|error| format!("it is no whole ELF file: {error}"))?;
    let big = || "it is a big-endian program".to_owned();
    let endian = header.endian().map_err(|_| big())?;
    if !header.is_little_endian() {
        return Err(big());
    }
    let machine = header.e_machine(endian);
    if machine != EM_AARCH64 {
        return Err(format!(
            "it is for another processor (ELF machine {machine}); guests are {} (machine {EM_AARCH64})",
            Architecture::Aarch64.name()
        ));
    }
    if header.e_type(endian) != ET_EXEC {
        return Err("it is not linked to fixed addresses (ELF type EXEC)".to_owned());
    }
    let segments = header.program_headers(endian, bytes).map_err(truncated)?;
    let entry = header.e_entry(endian);
    let mut has_entry = false;
    for segment in segments {
        if segment.p_type(endian) != PT_LOAD {
            continue;
        }
        segment
            .data(endian, bytes)
            .map_err(|()| "it is truncated: a segment ends behind the file's end".to_owned())?;
        let start = segment.p_paddr(endian);
        let end = start
            .checked_add(segment.p_memsz(endian))
            .ok_or("a segment wraps around the end of the addresses")?;
        check_range(&(start..end), ram)?;
        has_entry |= (start..end).contains(&entry);
    }
    if !has_entry {
        return Err(format!("no segment has its entry point {entry:#x}"));
    }
    Ok(())
}

fn check_range(part: &Range<u64>, ram: &Range<u64>) -> Result<(), String> {
    if part.start < ram.start || part.end > ram.end {
        return Err(format!(
            "it needs memory from {:#x} to {:#x}, and the guest has {:#x} to {:#x}",
            part.start, part.end, ram.start, ram.end
        ));
    }
    Ok(())
}

/// A memory with these bytes that cannot be changed.
fn keep(bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let file = crate::sys::memory_file("taut-image", bytes.len() as u64)?;
    let mut writer = File::from(file);
    writer.write_all(bytes)?;
    let file = OwnedFd::from(writer);
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAM: Range<u64> = 0x4000_0000..0x4100_0000;

    /// An ELF file with one segment of four bytes.
    fn elf(change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = vec![0; 124];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, b"\x7fELF\x02\x01\x01");
        put(16, &2u16.to_le_bytes()); // type
        put(18, &183u16.to_le_bytes()); // machine
        put(20, &1u32.to_le_bytes());
        put(24, &0x4008_0000u64.to_le_bytes()); // entry
        put(32, &64u64.to_le_bytes()); // program headers
        put(52, &64u16.to_le_bytes());
        put(54, &56u16.to_le_bytes());
        put(56, &1u16.to_le_bytes());
        put(64, &1u32.to_le_bytes()); // load
        put(72, &120u64.to_le_bytes()); // offset
        put(80, &0x4008_0000u64.to_le_bytes());
        put(88, &0x4008_0000u64.to_le_bytes()); // physical
        put(96, &4u64.to_le_bytes());
        put(104, &4096u64.to_le_bytes()); // in memory
        change(&mut bytes);
        bytes
    }

    fn refusal(change: impl Fn(&mut Vec<u8>)) -> String {
        check(&elf(change), &RAM).expect_err("it is refused")
    }

    #[test]
    fn images_are_refused_for_what_is_wrong_with_them() {
        assert_eq!(check(&elf(|_| {}), &RAM), Ok(()));
        assert!(refusal(|bytes| bytes[4] = 1).contains("32-bit"));
        assert!(refusal(|bytes| bytes[5] = 2).contains("big-endian"));
        assert!(refusal(|bytes| bytes[18] = 62).contains("another processor (ELF machine 62)"));
        assert!(refusal(|bytes| bytes[16] = 3).contains("fixed addresses"));
        assert!(refusal(|bytes| bytes.truncate(122)).contains("truncated"));
        assert!(refusal(|bytes| bytes.truncate(100)).contains("truncated"));
        assert!(refusal(|bytes| bytes[107] = 2).contains("needs memory"));
        assert!(refusal(|bytes| bytes[104..112].fill(0xff)).contains("wraps"));
        assert!(refusal(|bytes| bytes[91] = 0).contains("needs memory"));
        assert_eq!(check(&elf(|bytes| bytes[24] = 0xff), &RAM), Ok(()));
        assert!(refusal(|bytes| bytes[27] = 0x80).contains("entry point 0x80080000"));
    }

    #[test]
    fn no_bytes_make_the_check_panic() {
        let whole = elf(|_| {});
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let _ = check(&elf(|bytes| bytes[at] = value), &RAM);
            }
            let _ = check(&whole[..at], &RAM);
        }
    }

    #[test]
    fn files_that_are_no_images_are_refused() {
        let refused = |path: &str| match Image::read(Path::new(path), 1 << 24) {
            Err(GuestError::Image { reason, .. }) => reason,
            other => panic!("{other:?}"),
        };
        assert!(refused("/").contains("not a regular file"));
        assert!(refused("/dev/zero").contains("not a regular file"));
        assert!(refused("/nowhere").contains("No such file"));
    }
}
