//! A program on a processor of its own beside Linux: no kernel starts it, and no hypervisor is below it.
//!
//! On QEMU's machine `virt` for arm64 the last CPU is the program's. A few instructions before the kernel's image start
//! it (PSCI `CPU_ON`) and then the kernel, which is told to leave that CPU and the program's memory alone. Both sides
//! talk through a mailbox in that memory: Linux orders, the program works and prints. `bindings/guest/aarch64/board.c`
//! is the program's side.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use object::LittleEndian as LE;
use object::elf::{EM_AARCH64, ET_EXEC, FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use super::KernelsError;
use crate::sys::PhysicalMemory;

/// Memory of the program, behind Linux's. `BESIDE_MEMORY` of `bindings/guest/Makefile` is its start.
const MEMORY: Range<u64> = 0x8000_0000..0x8100_0000;
/// The end of that memory is the mailbox.
const MAILBOX_BYTES: u64 = 0x1_0000;
const MAILBOX: u64 = MEMORY.end - MAILBOX_BYTES;
/// Memory of the machine from here on is Linux's.
const LINUX_MEMORY: u64 = 0x4000_0000;
/// Memory that Linux can have before the program's begins.
const LINUX_MIB_MAX: u32 = ((MEMORY.start - LINUX_MEMORY) >> 20) as u32;

/// First word of the mailbox, by which the program knows where it is; then the version.
const MAGIC: u64 = 0x4247_4c54;
const VERSION: u64 = 1;
/// Places in the mailbox.
const ORDERS: usize = 8;
const STATE: usize = 12;
const DONE: usize = 16;
const PRINTED: usize = 20;
const TEXT: usize = 24;
/// Values of the state.
const RUNS: u32 = 1;
const OFF: u32 = 2;

/// Time for the program to start, after which it is given up. Lower: a program that works long before it is ready is
/// given up. Higher: a run of one that never starts takes longer.
const START_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks at the mailbox. Lower: the looks are a load. Higher: the run takes longer.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// A program that can run beside Linux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) bytes: Vec<u8>,
    entry: u64,
}

impl Program {
    /// Reads and checks an ELF file.
    pub(super) fn read(path: &Path) -> Result<Program, KernelsError> {
        let bytes = fs::read(path).map_err(KernelsError::file(path))?;
        let entry = check(&bytes).map_err(|reason| KernelsError::NotBeside {
            path: path.to_owned(),
            reason,
        })?;
        Ok(Program { bytes, entry })
    }

    /// The kernel, with the instructions before it that start the program on this CPU.
    pub(super) fn before(&self, kernel: &[u8], cpu: u32) -> Option<Vec<u8>> {
        let header = Header::of(kernel)?;
        let mut image = start(self.entry, cpu, header.text_offset).to_vec();
        image[..HEADER_BYTES].copy_from_slice(&header.with_start());
        image.resize(header.kernel_at() as usize, 0);
        image.extend_from_slice(kernel);
        Some(image)
    }
}

/// Linux's share of such a machine.
pub(super) fn linux_mib(wanted: u32) -> u32 {
    wanted.min(LINUX_MIB_MAX)
}

/// Memory of the machine, in MiB.
pub(super) fn machine_mib() -> u32 {
    ((MEMORY.end - LINUX_MEMORY) >> 20) as u32
}

/// Parameters that keep the kernel from the program's CPU and memory.
pub(super) fn parameters(linux_cpus: u32, linux_mib: u32) -> String {
    format!("nr_cpus={linux_cpus} mem={linux_mib}M")
}

/// Argument of QEMU's generic loader that writes the mailbox's first words.
pub(super) fn mailbox_loader() -> String {
    format!(
        "loader,addr={MAILBOX:#x},data={:#x},data-len=8",
        VERSION << 32 | MAGIC
    )
}

/// Checks that a file is a program for the place beside Linux; returns the address of its first instruction.
fn check(bytes: &[u8]) -> Result<u64, String> {
    let header = FileHeader64::<LE>::parse(bytes).map_err(|error| error.to_string())?;
    let endian = header.endian().map_err(|error| error.to_string())?;
    if !header.is_little_endian() || header.e_machine(endian) != EM_AARCH64 {
        return Err("it is for another processor".to_owned());
    }
    if header.e_type(endian) != ET_EXEC {
        return Err("it is not linked to fixed addresses".to_owned());
    }
    let memory = MEMORY.start..MAILBOX;
    let entry = header.e_entry(endian);
    let mut has_entry = false;
    let segments = header.program_headers(endian, bytes);
    for segment in segments.map_err(|error| error.to_string())? {
        if segment.p_type(endian) != PT_LOAD {
            continue;
        }
        if segment.data(endian, bytes).is_err() {
            return Err("it is truncated".to_owned());
        }
        let start = segment.p_paddr(endian);
        let end = start.saturating_add(segment.p_memsz(endian));
        if start < memory.start || end > memory.end {
            return Err(format!(
                "it needs memory from {start:#x} to {end:#x}, and beside Linux there is {:#x} to {:#x}",
                memory.start, memory.end
            ));
        }
        has_entry |= (start..end).contains(&entry);
    }
    if !has_entry {
        return Err(format!("no segment has its entry point {entry:#x}"));
    }
    Ok(entry)
}

/// Bytes of the header of a kernel for arm64 (Documentation/arch/arm64/booting.rst).
const HEADER_BYTES: usize = 64;
/// `ARM\x64`, at byte 56 of the header.
const HEADER_MAGIC: u32 = 0x644d_5241;
/// Bytes before the kernel, which must begin at such a boundary.
const START_BYTES: u64 = 2 << 20;

/// Part of a kernel's header that the start needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    text_offset: u64,
    image_bytes: u64,
    flags: u64,
}

impl Header {
    /// None: this is no such kernel, or a compressed one.
    fn of(kernel: &[u8]) -> Option<Header> {
        let magic = kernel.get(56..60)?;
        let word = |at: usize| u64::from_le_bytes(kernel[at..at + 8].try_into().expect("8 bytes"));
        let header = Header {
            text_offset: word(8),
            image_bytes: word(16),
            flags: word(24),
        };
        let is_known = magic == HEADER_MAGIC.to_le_bytes()
            && header.text_offset < START_BYTES
            && header.image_bytes >= kernel.len() as u64
            && header.image_bytes < u64::from(LINUX_MIB_MAX) << 20;
        is_known.then_some(header)
    }

    /// Place of the kernel in the image with the start.
    fn kernel_at(self) -> u64 {
        START_BYTES + self.text_offset
    }

    /// The header of that image: its first instruction jumps over it.
    fn with_start(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &0x1400_0010u32.to_le_bytes()); // b #64
        put(16, &(self.kernel_at() + self.image_bytes).to_le_bytes());
        put(24, &self.flags.to_le_bytes());
        put(56, &HEADER_MAGIC.to_le_bytes());
        bytes
    }
}

/// Words of the start, of which the first are the header's.
const START_WORDS: usize = HEADER_BYTES / 4 + 20;

/// Header's place, and the instructions that start the program and then the kernel.
fn start(entry: u64, cpu: u32, text_offset: u64) -> [u8; START_WORDS * 4] {
    let at = HEADER_BYTES / 4;
    // A branch counts in words from itself.
    let to_kernel = (START_BYTES + text_offset) / 4 - (at as u64 + 10);
    let [entry, mailbox] = [entry, MAILBOX].map(|value| [value as u32, (value >> 32) as u32]);
    let code = [
        0xaa00_03f4,                    // mov x20, x0: Linux's device tree
        0x5800_0160,                    // ldr x0, function
        0x5800_0181,                    // ldr x1, CPU
        0x5800_01a2,                    // ldr x2, entry
        0x5800_01c3,                    // ldr x3, mailbox: the program finds it in x0
        0xd400_0002,                    // hvc #0
        0xaa14_03e0,                    // mov x0, x20
        0xaa1f_03e1,                    // mov x1, xzr
        0xaa1f_03e2,                    // mov x2, xzr
        0xaa1f_03e3,                    // mov x3, xzr
        0x1400_0000 | to_kernel as u32, // b kernel
        0xd503_201f,                    // nop, for the words below begin at a multiple of 8
        0xc400_0003,                    // function: CPU_ON
        0,
        cpu, // as in MPIDR: below 8, each is in the first group
        0,
        entry[0],
        entry[1],
        mailbox[0],
        mailbox[1],
    ];
    let mut bytes = [0; START_WORDS * 4];
    for (place, word) in bytes[HEADER_BYTES..].chunks_exact_mut(4).zip(code) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Linux's side of the mailbox, as the first process of the machine.
pub(super) struct Mailbox {
    memory: PhysicalMemory,
}

impl Mailbox {
    /// Finds the program.
    pub(super) fn open() -> io::Result<Mailbox> {
        let memory = PhysicalMemory::map(MAILBOX, MAILBOX_BYTES as usize)?;
        let mailbox = Mailbox { memory };
        let mut waited = Duration::ZERO;
        while mailbox.memory.word(STATE) == 0 {
            if waited > START_LIMIT {
                return Err(io::Error::other(
                    "the program on the other CPU has not started",
                ));
            }
            std::thread::sleep(LOOK_INTERVAL);
            waited += LOOK_INTERVAL;
        }
        Ok(mailbox)
    }

    /// Has the program work once. Returns its output, and whether it did what was ordered.
    pub(super) fn order(&self) -> (String, bool) {
        let number = self.memory.word(ORDERS).wrapping_add(1);
        self.memory.set_word(ORDERS, number);
        loop {
            let (state, done) = (self.memory.word(STATE), self.memory.word(DONE));
            if state == RUNS && done != number {
                std::thread::sleep(LOOK_INTERVAL);
                continue;
            }
            let printed = self.memory.word(PRINTED) as usize;
            let text = self
                .memory
                .bytes(TEXT, printed.min(MAILBOX_BYTES as usize - TEXT));
            let is_well = state == OFF || done == number;
            return (String::from_utf8_lossy(&text).into_owned(), is_well);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: u64 = MEMORY.start;

    /// An ELF file with one segment of four bytes.
    fn elf(change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = vec![0; 124];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, b"\x7fELF\x02\x01\x01");
        put(16, &ET_EXEC.to_le_bytes());
        put(18, &EM_AARCH64.to_le_bytes());
        put(20, &1u32.to_le_bytes());
        put(24, &ENTRY.to_le_bytes());
        put(32, &64u64.to_le_bytes()); // program headers
        put(52, &64u16.to_le_bytes());
        put(54, &56u16.to_le_bytes());
        put(56, &1u16.to_le_bytes());
        put(64, &PT_LOAD.to_le_bytes());
        put(72, &120u64.to_le_bytes()); // offset
        put(88, &ENTRY.to_le_bytes()); // physical address
        put(96, &4u64.to_le_bytes());
        put(104, &4096u64.to_le_bytes()); // in memory
        change(&mut bytes);
        bytes
    }

    #[test]
    fn programs_are_refused_for_what_is_wrong_with_them() {
        assert_eq!(check(&elf(|_| {})), Ok(ENTRY));
        let refusal = |change: fn(&mut Vec<u8>)| check(&elf(change)).expect_err("it is refused");
        assert!(refusal(|bytes| bytes[18] = 62).contains("another processor"));
        assert!(refusal(|bytes| bytes[16] = 3).contains("fixed addresses"));
        assert!(refusal(|bytes| bytes.truncate(122)).contains("truncated"));
        // Where guests of `taut guest run` lie.
        assert!(refusal(|bytes| bytes[91] = 0x40).contains("beside Linux there is 0x80000000"));
        assert!(refusal(|bytes| bytes[104..112].fill(0xff)).contains("needs memory"));
        assert!(refusal(|bytes| bytes[107] = 1).contains("needs memory"));
        assert!(refusal(|bytes| bytes[25] = 0x20).contains("entry point 0x80002000"));
        let whole = elf(|_| {});
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let _ = check(&elf(|bytes| bytes[at] = value));
            }
            let _ = check(&whole[..at]);
        }
    }

    /// A kernel of 4,096 bytes that needs 8,192.
    fn kernel() -> Vec<u8> {
        let mut kernel = vec![0xa5; 4096];
        kernel[8..16].copy_from_slice(&0u64.to_le_bytes());
        kernel[16..24].copy_from_slice(&8192u64.to_le_bytes());
        kernel[24..32].copy_from_slice(&10u64.to_le_bytes());
        kernel[56..60].copy_from_slice(b"ARM\x64");
        kernel
    }

    #[test]
    fn the_start_comes_before_the_kernel() {
        let program = Program {
            bytes: Vec::new(),
            entry: 0x8000_1234,
        };
        let image = program.before(&kernel(), 2).unwrap();
        assert_eq!(image[START_BYTES as usize..], kernel()[..]);
        let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        assert_eq!(Header::of(&image).unwrap().image_bytes, START_BYTES + 8192);
        assert_eq!(Header::of(&image).unwrap().flags, 10);
        // The header's first instruction leads behind it, the start's last one to the kernel.
        let target = |at: usize| at as u64 + u64::from(word(at) & 0x03ff_ffff) * 4;
        assert_eq!(target(0), 64);
        assert_eq!(target(64 + 40), START_BYTES);
        // `ldr` of a register: 19 bits of words from the instruction on.
        let loaded = |at: usize| long(at + (word(at) >> 5 & 0x7_ffff) as usize * 4);
        let registers: Vec<u64> = (0..4).map(|number| loaded(68 + 4 * number)).collect();
        assert_eq!(registers, [0xc400_0003, 2, 0x8000_1234, MAILBOX]);
        assert_eq!(
            (0..4).map(|n| word(68 + 4 * n) & 31).collect::<Vec<_>>(),
            [0, 1, 2, 3]
        );
    }

    #[test]
    fn what_is_no_kernel_gets_no_start() {
        let program = Program {
            bytes: Vec::new(),
            entry: ENTRY,
        };
        let mut large = kernel();
        large[20] = 1;
        let gzip = [0x1f, 0x8b, 8, 0].repeat(32);
        for wrong in [&kernel()[..50], &[], &gzip, &large] {
            assert_eq!(program.before(wrong, 1), None);
        }
    }
}
