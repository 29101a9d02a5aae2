//! The guest's side of a window by `tautline_vbus.h` on processors of 32 bits, against Linux's side in Rust: a program
//! without an operating system on a simulated board (Cortex-M3, RISC-V), whose memory is a file that the test maps.
#![allow(unsafe_code)] // Maps the board's memory.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tautline_shm::vbus::layout::MessageHead;
use tautline_shm::vbus::shape::{Kind, Shape};
use tautline_shm::vbus::window::{
    Address, Connection, Direction, Plan, Receiving, Region, Sending, Side,
};
use tautline_state::child::KilledOnDrop;
use tautline_state::mapping::Mapping;

/// Far longer than anything takes; only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(60);
const MEMORY_BYTES: u64 = 16 << 20;
/// Where the window begins in the board's memory, and its room.
const WINDOW_AT: u64 = 8 << 20;
const WINDOW_BYTES: usize = 1 << 20;
const PORT: u16 = 7;
const MESSAGES: u32 = 500;
const MESSAGE_BYTES_MAX: usize = 256;

struct Board {
    emulator: &'static str,
    machine: &'static str,
    /// For the compiler.
    target: &'static [&'static str],
    /// Address of the memory that is the file's.
    memory: u64,
    /// Address of the first instruction, or of the vectors, and the end of the stack.
    code: u64,
    stack: u64,
    entry: &'static str,
}

const CORTEX_M3: Board = Board {
    emulator: "qemu-system-arm",
    machine: "mps2-an385",
    target: &["--target=thumbv7m-none-eabi", "-mfloat-abi=soft"],
    memory: 0x2100_0000,
    code: 0,
    stack: 0x0040_0000,
    entry: "board_main",
};

const RISC_V: Board = Board {
    emulator: "qemu-system-riscv32",
    machine: "virt",
    target: &[
        "--target=riscv32-none-elf",
        "-march=rv32imac",
        "-mabi=ilp32",
    ],
    memory: 0x8000_0000,
    code: 0x8000_0000,
    stack: 0x8080_0000,
    entry: "board_start",
};

impl Board {
    /// Tool that is missing here, for a test to say why it is skipped.
    fn missing(&self) -> Option<&'static str> {
        let mut tools = ["clang", "ld.lld", self.emulator].into_iter();
        tools.find(|tool| Command::new(tool).arg("--version").output().is_err())
    }

    /// Compiles the program.
    fn program(&self, directory: &Path) -> PathBuf {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/boards");
        let (object, program) = (directory.join("echo.o"), directory.join("echo.elf"));
        let mut compile = Command::new("clang");
        compile
            .args(self.target)
            .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"])
            .args([
                "-ffreestanding",
                "-fno-builtin-memcpy",
                "-fno-builtin-memset",
            ])
            .arg(format!("-DBOARD_WINDOW={:#x}", self.memory + WINDOW_AT))
            .arg(format!("-DBOARD_WINDOW_BYTES={WINDOW_BYTES}"))
            .arg(format!("-DBOARD_STACK={:#x}", self.stack))
            .arg("-I")
            .arg(here.join("../../../../bindings/c"))
            .arg("-c")
            .arg(here.join("echo.c"))
            .arg("-o")
            .arg(&object);
        succeeds(&mut compile);
        let mut link = Command::new("ld.lld");
        link.args(["-static", "--build-id=none", "-e", self.entry, "-T"])
            .arg(here.join("board.ld"))
            .arg(format!("--defsym=board_code={:#x}", self.code))
            .arg(&object)
            .arg("-o")
            .arg(&program);
        succeeds(&mut link);
        program
    }

    fn start(&self, program: &Path, memory: &Path) -> KilledOnDrop {
        let mut emulator = Command::new(self.emulator);
        emulator
            .arg("-machine")
            .arg(format!("{},memory-backend=memory", self.machine))
            .arg("-object")
            .arg(format!(
                "memory-backend-file,id=memory,size={MEMORY_BYTES},share=on,mem-path={}",
                memory.display()
            ))
            .args([
                "-m", "16M", "-display", "none", "-monitor", "none", "-serial", "none",
            ])
            .arg("-kernel")
            .arg(program);
        if self.machine == "virt" {
            emulator.args(["-bios", "none"]);
        }
        emulator.stdin(Stdio::null());
        KilledOnDrop(emulator.spawn().expect("the emulator starts"))
    }
}

fn succeeds(command: &mut Command) {
    let output = command.output().expect("the tool is there");
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {complained}");
}

/// Waits until something is there, or panics with what was waited for.
fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < end, "waited for {what}");
        std::thread::yield_now();
    }
}

fn answers(board: &Board) {
    if let Some(tool) = board.missing() {
        println!("SKIPPED: {tool} is not installed");
        return;
    }
    let directory = tautline_state::TemporaryDirectory::make("taut-board").unwrap();
    let program = board.program(directory.path());
    let path = directory.path().join("memory");
    let options = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path);
    let file = options.unwrap();
    file.set_len(MEMORY_BYTES).unwrap();
    let shape = Shape {
        kind: Kind::Queuing { depth: 4 },
        message_bytes_max: (8 + MESSAGE_BYTES_MAX) as u32,
    };
    let both = [Direction::ToGuest, Direction::ToLinux].map(|direction| Connection {
        port: PORT,
        direction,
        shape,
    });
    let plan = Plan::new(&both).unwrap();
    let mapped = Mapping::shared(file.as_fd(), WINDOW_BYTES, WINDOW_AT as usize).unwrap();
    let base = mapped.base().as_ptr();
    assert!(plan.window_bytes() <= WINDOW_BYTES);
    let linux_bytes = plan.region_bytes(Side::Linux);
    // SAFETY: within the mapping, which outlives the regions; they are accessed by these alone, and by the board.
    let (own, guests) = unsafe {
        let guests = base.add(linux_bytes);
        (
            Region::at(base, linux_bytes).unwrap(),
            Region::at(guests, plan.region_bytes(Side::Guest)).unwrap(),
        )
    };
    own.announce(Side::Linux, &plan, 1, 0, 0);
    let peer = own.set_peer(
        0,
        b"test\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    );
    let peer = Address { port: 20, ..peer };
    let running = board.start(&program, &path);

    let mut sending = Sending::new(plan.connections()[0]);
    let mut receiving = Receiving::new(plan.connections()[1]);
    let (to, from) = (own.producer(&plan, 0), own.consumer(&plan, 1));
    receiving.offer(from, 1 << 63 | 1);
    wait_for("the guest", || (guests.generation() != 0).then_some(()));
    own.acknowledge(guests.generation());
    wait_for("its receiving port", || {
        sending.connect(to, guests.consumer(&plan, 0)).then_some(())
    });
    wait_for("its sending port", || {
        receiving.connect(guests.producer(&plan, 1)).then_some(())
    });
    let mut send = |class, bytes: &[u8]| {
        let head = MessageHead {
            length: 0,
            arrival_ns: 0,
            sequence: 0,
            class,
        };
        assert!(sending.send(to, guests.consumer(&plan, 0), (peer, bytes), head));
    };
    let mut expect = |class, bytes: &[u8]| {
        let found = wait_for("an answer", || {
            receiving.look(from, guests.producer(&plan, 1))
        });
        let mut answer = [0; MESSAGE_BYTES_MAX];
        let copied = found.copy_out(&mut answer);
        assert_eq!(copied, Some((peer, bytes.len())));
        assert_eq!(&answer[..bytes.len()], bytes);
        assert_eq!(u32::from(found.priority()), class);
        receiving.release(from, &found);
    };
    for number in 0..MESSAGES {
        let length = (number as usize * 7) % (MESSAGE_BYTES_MAX + 1);
        let message: Vec<u8> = (0..length)
            .map(|place| (number as usize + place) as u8)
            .collect();
        send(number % 8, &message);
        expect(number % 8, &message);
    }
    // An urgent message passes one whose copy has begun.
    let long = [&b"half"[..], &[7; MESSAGE_BYTES_MAX - 4]].concat();
    send(2, &long);
    expect(3, b"half");
    send(6, b"urgent");
    expect(6, b"urgent");
    expect(2, &long);
    let beat = || {
        guests
            .life()
            .heartbeat
            .load(std::sync::atomic::Ordering::Relaxed)
    };
    let before = beat();
    wait_for("a sign of life", || (beat() != before).then_some(()));
    drop(running);
    println!("{}: {MESSAGES} messages came back", board.machine);
}

#[test]
fn a_cortex_m3_answers_through_a_window() {
    answers(&CORTEX_M3);
}

#[test]
fn a_risc_v_of_32_bits_answers_through_a_window() {
    answers(&RISC_V);
}
