//! The program that a guest runs: read once, checked, and kept as it was.

use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;

use object::LittleEndian as LE;
use object::elf::{EM_AARCH64, EM_X86_64, ET_EXEC, FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use rustix::fs::{Mode, OFlags, SealFlags};
use tautline_kvm::layout;
use tautline_kvm::packet::{SEGMENTS_MAX, Segment};

use crate::error::GuestError;

/// Largest image. Lower: firmware with its data does not fit. Higher: a file that is none, such as a disk's, is read
/// before it is refused.
const IMAGE_BYTES_MAX: u64 = 64 << 20;

/// Where an ELF file says how wide its words are.
const CLASS_BYTE: usize = 4;

/// Address at which an image that is no ELF file is loaded and started, on aarch64.
const FLAT_START: u64 = 0x4008_0000;

/// Processor of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Architecture {
    /// 64-bit ARM.
    Aarch64,
    /// 64-bit x86.
    X86_64,
}

impl Architecture {
    const ALL: [Architecture; 2] = [Architecture::Aarch64, Architecture::X86_64];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Aarch64 => "aarch64",
            Architecture::X86_64 => "x86-64",
        }
    }

    /// That of this machine's processor, if guests can have it.
    #[must_use]
    pub fn host() -> Option<Architecture> {
        match std::env::consts::ARCH {
            "aarch64" => Some(Architecture::Aarch64),
            "x86_64" => Some(Architecture::X86_64),
            _ => None,
        }
    }

    /// Its number in ELF files.
    fn machine(self) -> u16 {
        match self {
            Architecture::Aarch64 => EM_AARCH64,
            Architecture::X86_64 => EM_X86_64,
        }
    }

    /// Addresses that an image can have in so much memory.
    fn memory(self, ram_bytes: u64) -> Range<u64> {
        match self {
            Architecture::Aarch64 => layout::aarch64::image_memory(ram_bytes),
            Architecture::X86_64 => layout::x86_64::image_memory(ram_bytes),
        }
    }
}

/// An image that can be started.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) architecture: Architecture,
    /// Its bytes, sealed against changes.
    pub(crate) file: OwnedFd,
    /// Its parts that lie in memory.
    pub(crate) segments: Vec<Segment>,
    /// Address of its first instruction.
    pub(crate) entry: u64,
}

impl Image {
    /// Reads and checks an image for a guest with this memory.
    pub(crate) fn read(path: &Path, ram_bytes: u64) -> Result<Image, GuestError> {
        let wrong = |reason: String| GuestError::Image {
            path: path.to_owned(),
            reason,
        };
        let bytes = read(path).map_err(wrong)?;
        let program = if bytes.starts_with(&object::elf::ELFMAG) {
            check(&bytes, ram_bytes)
        } else {
            flat(&bytes, ram_bytes)
        };
        let program = program.map_err(wrong)?;
        let file = keep(&bytes).map_err(GuestError::system("keeping the image"))?;
        Ok(Image {
            architecture: program.architecture,
            file,
            segments: program.segments,
            entry: program.entry,
        })
    }
}

/// A program that can be loaded and started.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    architecture: Architecture,
    segments: Vec<Segment>,
    entry: u64,
}

/// Plain code.
fn flat(bytes: &[u8], ram_bytes: u64) -> Result<Program, String> {
    let architecture = Architecture::Aarch64;
    let segment = Segment {
        offset: 0,
        bytes: bytes.len() as u64,
        address: FLAT_START,
    };
    let part = FLAT_START..FLAT_START + segment.bytes;
    check_range(&part, &architecture.memory(ram_bytes))?;
    Ok(Program {
        architecture,
        segments: vec![segment],
        entry: FLAT_START,
    })
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

/// An ELF file that can be loaded into this memory and started there.
fn check(bytes: &[u8], ram_bytes: u64) -> Result<Program, String> {
    let truncated = |_| "it is truncated: its headers point behind its end".to_owned();
    if bytes.get(CLASS_BYTE) != Some(&object::elf::ELFCLASS64) {
        return Err("it is a 32-bit program; guests have 64 bits".to_owned());
    }
    let header =
        FileHeader64::<LE>::parse(bytes).map_err(|error| format!("invalid ELF file: {error}"))?;
    let big = || "it is a big-endian program".to_owned();
    let endian = header.endian().map_err(|_| big())?;
    if !header.is_little_endian() {
        return Err(big());
    }
    let machine = header.e_machine(endian);
    let mut known = Architecture::ALL.into_iter();
    let Some(architecture) = known.find(|known| known.machine() == machine) else {
        let known = Architecture::ALL.map(|one| format!("{} ({})", one.name(), one.machine()));
        return Err(format!(
            "it is for another processor (ELF machine {machine}); guests are {}",
            known.join(" or ")
        ));
    };
    let ram = architecture.memory(ram_bytes);
    let kind = header.e_type(endian);
    if kind != ET_EXEC {
        return Err(format!(
            "it is not linked to fixed addresses: its ELF type is {kind}, expected {ET_EXEC} (EXEC)"
        ));
    }
    let segments = header.program_headers(endian, bytes).map_err(truncated)?;
    let entry = header.e_entry(endian);
    let mut has_entry = false;
    let mut loaded = Vec::new();
    for segment in segments {
        if segment.p_type(endian) != PT_LOAD {
            continue;
        }
        let data = segment
            .data(endian, bytes)
            .map_err(|()| "it is truncated: a segment ends behind the file's end".to_owned())?;
        let start = segment.p_paddr(endian);
        let bytes = data.len() as u64;
        let end = start
            .checked_add(segment.p_memsz(endian).max(bytes))
            .ok_or("a segment wraps around the end of the addresses")?;
        check_range(&(start..end), &ram)?;
        has_entry |= (start..end).contains(&entry);
        if loaded.len() == SEGMENTS_MAX {
            return Err(format!("it has more than {SEGMENTS_MAX} segments to load"));
        }
        loaded.push(Segment {
            offset: segment.p_offset(endian),
            bytes,
            address: start,
        });
    }
    if !has_entry {
        return Err(format!("no segment has its entry point {entry:#x}"));
    }
    Ok(Program {
        architecture,
        segments: loaded,
        entry,
    })
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

    const RAM_BYTES: u64 = 16 << 20;

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
        check(&elf(change), RAM_BYTES).expect_err("it is refused")
    }

    #[test]
    fn images_are_refused_for_what_is_wrong_with_them() {
        let segment = Segment {
            offset: 120,
            bytes: 4,
            address: 0x4008_0000,
        };
        let program = Program {
            architecture: Architecture::Aarch64,
            segments: vec![segment],
            entry: 0x4008_0000,
        };
        assert_eq!(check(&elf(|_| {}), RAM_BYTES), Ok(program));
        assert!(refusal(|bytes| bytes[4] = 1).contains("32-bit"));
        assert!(refusal(|bytes| bytes[5] = 2).contains("big-endian"));
        assert!(refusal(|bytes| bytes[18] = 40).contains("another processor (ELF machine 40)"));
        // Of another processor whose memory lies elsewhere.
        assert!(refusal(|bytes| bytes[18] = 62).contains("0x100000 to 0x1000000"));
        assert!(refusal(|bytes| bytes[16] = 3).contains("its ELF type is 3, expected 2"));
        assert!(refusal(|bytes| bytes.truncate(122)).contains("truncated"));
        assert!(refusal(|bytes| bytes.truncate(100)).contains("truncated"));
        assert!(refusal(|bytes| bytes[107] = 2).contains("needs memory"));
        assert!(refusal(|bytes| bytes[104..112].fill(0xff)).contains("wraps"));
        assert!(refusal(|bytes| bytes[91] = 0).contains("needs memory"));
        assert!(check(&elf(|bytes| bytes[24] = 0xff), RAM_BYTES).is_ok());
        assert!(refusal(|bytes| bytes[27] = 0x80).contains("entry point 0x80080000"));
    }

    #[test]
    fn no_bytes_make_the_check_panic() {
        for machine in [EM_AARCH64, EM_X86_64] {
            no_bytes_panic(|bytes| bytes[18..20].copy_from_slice(&machine.to_le_bytes()));
        }
    }

    fn no_bytes_panic(change: impl Fn(&mut Vec<u8>)) {
        let whole = elf(change);
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let _ = check(&bytes, RAM_BYTES);
            }
            let _ = check(&whole[..at], RAM_BYTES);
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
