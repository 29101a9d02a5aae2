//! `tautline_vbus.h` against the Rust side: the same bytes, and messages and values both ways between a C
//! program and this one.
#![allow(unsafe_code)] // memory is mapped and shared with another process

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tautline_state::child::KilledOnDrop;

use tautline_shm::vbus::cell::{Reader, Writer};
use tautline_shm::vbus::layout::{
    self, ConnectionEntry, ConsumerHead, IDENTITY_BYTES, Identity, MessageHead, OfferLine,
    ProducerHead, ROLE_PRODUCER, ReadingLine, Slot, SlotHead, TakenLine,
};
use tautline_shm::vbus::region::{ConsumerMemory, ProducerMemory};
use tautline_shm::vbus::ring::{Consumer, Producer};
use tautline_shm::vbus::shape::{self, Kind, Shape};
use tautline_shm::vbus::wait::{Kicker, Sleeper, WakeMode, kicks};

/// Far longer than anything takes; only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(60);
const EPOCH: u64 = 0x1122_3344_5566_7788;
const COUNT: u32 = 20_000;
const LENGTH_MAX: u32 = 300;
const STRICT: [&str; 5] = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];

fn bindings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn compile(compiler: &str, source: &Path, output: &Path, options: &[&str]) -> Output {
    Command::new(compiler)
        .args(STRICT)
        .args(options)
        .arg("-I")
        .arg(bindings())
        .arg(source)
        .arg("-o")
        .arg(output)
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}"))
}

/// A program of this directory, built once in the tests' own directory.
fn program(compiler: &str, name: &str, options: &[&str]) -> PathBuf {
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{compiler}"));
    let source = bindings().join("tests").join(format!("{name}.c"));
    let built = compile(compiler, &source, &output, options);
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{compiler}: {said}");
    output
}

fn peer() -> &'static Path {
    static PEER: OnceLock<PathBuf> = OnceLock::new();
    PEER.get_or_init(|| program("gcc", "peer", &["-O2"]))
}

/// The same for a processor without accesses of 64 bits.
fn narrow_peer() -> &'static Path {
    static PEER: OnceLock<PathBuf> = OnceLock::new();
    PEER.get_or_init(|| {
        // A name of its own, since both are built in one directory.
        let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("narrow.c");
        let included = bindings().join("tests/peer.c");
        std::fs::write(&source, format!("#include \"{}\"\n", included.display())).unwrap();
        let output = source.with_extension("");
        let built = compile("gcc", &source, &output, &["-O2", "-DTLB_WIDE=0"]);
        let said = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "{said}");
        output
    })
}

#[test]
fn the_header_compiles_hosted_and_freestanding_without_a_warning() {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("header.c");
    let object = source.with_extension("o");
    std::fs::write(&source, "#include \"tautline_vbus.h\"\nint nothing;\n").unwrap();
    for compiler in ["gcc", "clang"] {
        for options in [
            &["-c"] as &[&str],
            &["-c", "-O2", "-ffreestanding"],
            &["-c", "-ffreestanding", "-DTLB_WIDE=0"],
        ] {
            let built = compile(compiler, &source, &object, options);
            let said = String::from_utf8_lossy(&built.stderr);
            assert!(built.status.success(), "{compiler} {options:?}: {said}");
        }
    }
    // Processors of an RTOS: 32 bits, no operating system.
    for target in ["armv7m-none-eabi", "riscv32-none-elf", "aarch64-none-elf"] {
        let target = format!("--target={target}");
        let options = ["-c", "-O2", "-ffreestanding", &target];
        let built = compile("clang", &source, &object, &options);
        let said = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "{target}: {said}");
    }
}

#[test]
fn offsets_limits_and_shapes_are_the_same_in_c() {
    use std::mem::{offset_of, size_of};
    let output = Command::new(program("clang", "layout", &[]))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let in_c: BTreeMap<&str, u64> = said
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, value)| (name, value.parse().unwrap()))
        .collect();
    let mut rust: BTreeMap<String, u64> = [
        ("MAGIC", layout::MAGIC as usize),
        ("VERSION", layout::VERSION.into()),
        ("ROLE_PRODUCER", layout::ROLE_PRODUCER.into()),
        ("ROLE_CONSUMER", layout::ROLE_CONSUMER.into()),
        ("KIND_QUEUING", layout::KIND_QUEUING.into()),
        ("KIND_SAMPLING", layout::KIND_SAMPLING.into()),
        ("CLASS_COUNT", layout::CLASS_COUNT),
        ("CELL_COUNT", layout::CELL_COUNT),
        ("PRODUCERS_MAX", layout::PRODUCERS_MAX),
        ("DEPTH_MAX", layout::DEPTH_MAX as usize),
        ("NAME_BYTES", layout::NAME_BYTES),
        ("MESSAGE_BYTES_MAX", layout::MESSAGE_BYTES_MAX),
        ("MEMORY_BYTES_MAX", shape::MEMORY_BYTES_MAX),
        ("PAGE_BYTES", shape::PAGE_BYTES),
        ("LINE_BYTES", layout::SLOT_ALIGN),
        ("CLASS_STAGGER_BYTES", shape::CLASS_STAGGER_BYTES),
        ("FIRST_SLOT", layout::FIRST_SLOT),
        ("FIRST_CONNECTION", layout::FIRST_CONNECTION),
        ("SLOT_HEAD_BYTES", layout::SLOT_HEAD_BYTES),
        ("CONNECTION_BYTES", size_of::<ConnectionEntry>()),
        ("identity", IDENTITY_BYTES),
        ("producer_head.kick", offset_of!(ProducerHead, kick)),
        ("producer_head.latest", offset_of!(ProducerHead, latest)),
        (
            "producer_head.published",
            offset_of!(ProducerHead, published),
        ),
        (
            "producer_head.dropped_full",
            offset_of!(ProducerHead, dropped_full),
        ),
        ("consumer_head.waiting", offset_of!(ConsumerHead, wait)),
        (
            "connection.epoch",
            offset_of!(ConnectionEntry, offer) + offset_of!(OfferLine, epoch),
        ),
        (
            "connection.taken",
            offset_of!(ConnectionEntry, taken) + offset_of!(TakenLine, taken),
        ),
        (
            "connection.corrupt",
            offset_of!(ConnectionEntry, taken) + offset_of!(TakenLine, corrupt),
        ),
        (
            "connection.overwritten",
            offset_of!(ConnectionEntry, taken) + offset_of!(TakenLine, overwritten),
        ),
        (
            "connection.reading",
            offset_of!(ConnectionEntry, reading) + offset_of!(ReadingLine, reading),
        ),
        ("slot.turn", offset_of!(SlotHead, turn)),
        ("slot.length", offset_of!(SlotHead, length)),
        ("slot.arrival_ns", offset_of!(SlotHead, arrival_ns)),
        ("slot.sequence", offset_of!(SlotHead, sequence)),
        ("slot.priority", offset_of!(SlotHead, class)),
        ("consumer_bytes", shape::consumer_bytes()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value as u64))
    .collect();
    for depth in [0, 1, 2, 3, 64, 4096, 8192] {
        for message_bytes_max in [0, 1, 40, 41, 64, 1000, 65536, 65537, 16_777_216, 16_777_217] {
            for (number, kind) in [(1, Kind::Queuing { depth }), (2, Kind::Sampling)] {
                let name = format!("{number}.{depth}.{message_bytes_max}");
                let shape = Shape {
                    kind,
                    message_bytes_max,
                };
                let bytes = shape.check().map_or(0, Shape::producer_bytes);
                rust.insert(format!("shape.{name}"), bytes as u64);
                if bytes > 0 {
                    rust.insert(format!("slot.{name}"), shape.slot_bytes() as u64);
                    rust.insert(format!("class.{name}"), shape.class_bytes() as u64);
                }
            }
        }
    }
    let mut differences = String::new();
    for (name, value) in &rust {
        if in_c.get(name.as_str()) != Some(value) {
            writeln!(
                differences,
                "{name}: {value}, in C {:?}",
                in_c.get(name.as_str())
            )
            .unwrap();
        }
    }
    assert!(differences.is_empty(), "{differences}");
    assert_eq!(in_c.len(), rust.len(), "{in_c:?}");
}

/// Memory that two processes share.
struct Shared {
    file: File,
    base: *mut u8,
    bytes: usize,
}

impl Shared {
    fn new(bytes: usize) -> Shared {
        // SAFETY: a name that lives during the call; a new descriptor is ours. It is inherited by children.
        let file = unsafe {
            File::from(OwnedFd::from_raw_fd(libc::memfd_create(
                c"taut-test".as_ptr(),
                0,
            )))
        };
        file.set_len(bytes as u64).unwrap();
        // SAFETY: a new mapping of a file that is this long; nothing else is mapped there.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        Shared {
            file,
            base: base.cast(),
            bytes,
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; what was laid over it borrows from the pair that is going.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// Both memories of a connection.
struct Pair {
    shape: Shape,
    producer: Shared,
    consumer: Shared,
}

impl Pair {
    fn new(kind: Kind) -> Pair {
        let shape = Shape {
            kind,
            message_bytes_max: LENGTH_MAX,
        }
        .check()
        .unwrap();
        let pair = Pair {
            shape,
            producer: Shared::new(shape.producer_bytes()),
            consumer: Shared::new(shape::consumer_bytes()),
        };
        let identity = Identity {
            epoch: EPOCH,
            ..shape.consumer_identity()
        };
        pair.consumer().head.identity.announce(&identity);
        pair.consumer().connections[0]
            .offer
            .epoch
            .store(EPOCH, Ordering::Relaxed);
        pair
    }

    fn producer(&self) -> ProducerMemory<'_> {
        // SAFETY: mapped, of this shape's bytes and a page's alignment, until the pair goes.
        unsafe { ProducerMemory::at(self.producer.base, self.shape) }
    }

    fn consumer(&self) -> ConsumerMemory<'_> {
        // SAFETY: as above.
        unsafe { ConsumerMemory::at(self.consumer.base) }
    }

    fn announce_producer(&self) {
        let identity = Identity {
            epoch: EPOCH,
            ..self.shape.producer_identity()
        };
        self.producer().head.identity.announce(&identity);
    }

    /// Starts the C program as one side.
    fn start(&self, role: &str) -> Running {
        let (own, other) = match role {
            "send" | "write" | "wrap" => (&self.producer, &self.consumer),
            _ => (&self.consumer, &self.producer),
        };
        let descriptor = |memory: &Shared| memory.file.as_raw_fd().to_string();
        // Numbers wrap where words have 32 bits.
        let program = match role {
            "wrap" => narrow_peer(),
            _ => peer(),
        };
        let child = Command::new(program)
            .args([
                role,
                &descriptor(own),
                &descriptor(other),
                &COUNT.to_string(),
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Running(KilledOnDrop(child))
    }

    /// Waits until the C program has announced its memory, and judges it.
    fn await_producer(&self) {
        let head = self.producer().head;
        await_that(|| head.identity.epoch() == EPOCH);
        let identity = head.identity.read();
        let shape = shape::check(&identity, ROLE_PRODUCER, self.producer.bytes as u64);
        assert_eq!(shape, Ok(self.shape));
        assert_eq!(identity.node[..2], *b"c\0");
        assert_ne!(identity.process, 0);
    }
}

/// The C program; killed if the test fails before its end.
struct Running(KilledOnDrop);

impl Running {
    /// Its output, once it has succeeded.
    fn end(mut self) -> String {
        let mut said = String::new();
        let mut output = self.0.stdout.take().unwrap();
        output.read_to_string(&mut said).unwrap();
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}: {said}");
        said
    }
}

fn await_that(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(
            Instant::now() < deadline,
            "nothing happened for {PATIENCE:?}"
        );
        std::thread::yield_now();
    }
}

fn length_of(number: u32) -> u32 {
    number.wrapping_mul(37) % (LENGTH_MAX + 1)
}

fn class_of(number: u32) -> u32 {
    number.wrapping_mul(5) % 8
}

fn payload_of(number: u32) -> Vec<u8> {
    (0..length_of(number))
        .map(|place| number.wrapping_mul(31).wrapping_add(place) as u8)
        .collect()
}

fn head_of(number: u32, class: u32) -> MessageHead {
    MessageHead {
        length: length_of(number),
        arrival_ns: 7,
        sequence: number,
        class,
    }
}

fn expect(slot: Slot<'_>) -> MessageHead {
    let head = slot.message();
    assert_eq!(
        head.length,
        length_of(head.sequence),
        "number {}",
        head.sequence
    );
    let mut payload = vec![0; head.length as usize];
    slot.copy_out(&mut payload);
    assert_eq!(
        payload,
        payload_of(head.sequence),
        "number {}",
        head.sequence
    );
    head
}

/// Wakes as the kick asks; the C program sleeps on the kick word only.
fn kick(own: &ProducerHead, wake_mode: Option<WakeMode>) {
    assert_ne!(wake_mode, Some(WakeMode::Descriptor));
    if wake_mode == Some(WakeMode::Futex) {
        let word = (&raw const own.kick.kick).cast::<u32>();
        // SAFETY: an aligned word of a live mapping; the kernel only looks for sleepers on it.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1, 0, 0, 0) };
    }
}

fn sleep_until_kicked(producer: &ProducerHead, kicks: u32) {
    let word = (&raw const producer.kick.kick).cast::<u32>();
    let limit = libc::timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };
    // SAFETY: an aligned word of a live mapping, and a time that lives during the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word,
            libc::FUTEX_WAIT,
            kicks,
            &raw const limit,
            0,
            0,
        )
    };
    let error = std::io::Error::last_os_error();
    assert!(
        result == 0 || error.raw_os_error() != Some(libc::ETIMEDOUT),
        "nobody kicks"
    );
}

#[test]
fn rust_receives_what_c_sends() {
    let pair = Pair::new(Kind::Queuing { depth: 8 });
    let running = pair.start("send");
    pair.await_producer();
    let (producer, own) = (pair.producer(), pair.consumer());
    let taken = &own.connections[0].taken;
    let mut consumer = Consumer::new();
    let mut sleeper = Sleeper::new();
    let mut last = [0; 8];
    let mut sleeps = 0;
    let mut received = 0;
    while received < COUNT {
        let urgent = |consumer: &Consumer| {
            (0..8)
                .rev()
                .find_map(|class| consumer.peek(producer.slots, class))
        };
        if let Some(slot) = urgent(&consumer) {
            let head = expect(slot);
            let class = head.class as usize;
            assert_eq!(head.class, class_of(head.sequence));
            assert!(
                head.sequence > last[class],
                "{} after {}",
                head.sequence,
                last[class]
            );
            last[class] = head.sequence;
            consumer.release(taken, class);
            received += 1;
            continue;
        }
        sleeper.arm(&own.head.wait, WakeMode::Futex);
        let seen = kicks(&producer.head.kick);
        if urgent(&consumer).is_none() {
            sleep_until_kicked(producer.head, seen);
            sleeps += 1;
        }
        sleeper.disarm(&own.head.wait);
    }
    running.end();
    assert!(sleeps > 0, "the way to sleep was never taken");
    let published: u64 = (0..8)
        .map(|class| producer.head.published.count[class].load(Ordering::Relaxed))
        .sum();
    assert_eq!(published, u64::from(COUNT));
}

/// Publishes a message of Rust's as soon as there is a free slot, and wakes the C program.
fn publish(pair: &Pair, producer: &mut Producer, kicker: &mut Kicker, number: u32) {
    let (own, consumer) = (pair.producer(), pair.consumer());
    let (taken, class) = (&consumer.connections[0].taken, class_of(number));
    let mut slot = None;
    await_that(|| {
        slot = producer.next(own.slots, taken, class as usize).ok();
        slot.is_some()
    });
    let slot = slot.unwrap();
    slot.copy_in(&payload_of(number));
    producer.publish(own.head, own.slots, &head_of(number, class));
    kick(own.head, kicker.wanted(&own.head.kick, &consumer.head.wait));
}

#[test]
fn c_receives_what_rust_sends() {
    let pair = Pair::new(Kind::Queuing { depth: 8 });
    pair.announce_producer();
    let running = pair.start("receive");
    let mut producer = Producer::new(8);
    let mut kicker = Kicker::new();
    for number in 1..=COUNT {
        publish(&pair, &mut producer, &mut kicker, number);
        if number % 1000 == 0 {
            // Long enough for the other side to go to sleep.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(running.end(), "corrupt 0\n");
    assert!(
        pair.producer().head.kick.kick.load(Ordering::Relaxed) > 0,
        "nobody slept"
    );
}

#[test]
fn c_skips_and_counts_a_slot_that_makes_no_sense() {
    let pair = Pair::new(Kind::Queuing {
        depth: COUNT.next_power_of_two().min(4096),
    });
    pair.announce_producer();
    let (own, consumer) = (pair.producer(), pair.consumer());
    let taken = &consumer.connections[0].taken;
    let mut producer = Producer::new(pair.shape.depth());
    let mut kicker = Kicker::new();
    let running = pair.start("receive");
    for number in 1..=COUNT {
        let class = class_of(number);
        if number == 100 {
            assert!(producer.next(own.slots, taken, class as usize).is_ok());
            let lie = MessageHead {
                length: u32::MAX,
                ..head_of(number, class)
            };
            producer.publish(own.head, own.slots, &lie);
        }
        publish(&pair, &mut producer, &mut kicker, number);
    }
    assert_eq!(running.end(), "corrupt 1\n");
}

#[test]
fn rust_reads_the_values_that_c_writes() {
    let pair = Pair::new(Kind::Sampling);
    let running = pair.start("write");
    pair.await_producer();
    let (producer, own) = (pair.producer(), pair.consumer());
    let mut reader = Reader::new();
    let mut last = 0;
    let mut counted = 0;
    await_that(|| {
        let value = reader.read(
            producer.slots,
            &producer.head.latest,
            &own.connections[0].reading,
        );
        if let Some(value) = value {
            let number = expect(value.cell).sequence;
            assert_eq!(value.new, number > last, "{number} after {last}");
            if value.new {
                counted += u64::from(value.overwritten) + 1;
            }
            last = number;
        }
        last == COUNT
    });
    assert_eq!(counted, u64::from(COUNT), "read or counted as overwritten");
    running.end();
}

/// Of a writer with words of 32 bits, whose `latest` has 29 bits of a number.
#[test]
fn rust_reads_values_whose_numbers_wrap() {
    // As in `peer.c`.
    const BEFORE: u64 = 0x1FFF_FFF8;
    for copies in [false, true] {
        let pair = Pair::new(Kind::Sampling);
        let running = pair.start("wrap");
        pair.await_producer();
        let (producer, own) = (pair.producer(), pair.consumer());
        let (cells, latest) = (producer.slots, &producer.head.latest);
        let mut reader = Reader::new();
        let mut out = [0; LENGTH_MAX as usize / 8 + 1];
        let (mut last, mut counted) = (0, 0);
        await_that(|| {
            let copied = copies.then(|| {
                let next = reader.copy_next(cells, LENGTH_MAX, &mut out);
                next.or_else(|| reader.copy_latest(cells, latest, LENGTH_MAX, &mut out))
            });
            let seen = match copied.flatten() {
                Some(copied) => Some((copied.message.sequence, copied.overwritten)),
                None => reader
                    .read(cells, latest, &own.connections[0].reading)
                    .filter(|value| value.new)
                    .map(|value| (expect(value.cell).sequence, value.overwritten)),
            };
            if let Some((sequence, overwritten)) = seen {
                assert!(sequence > last, "{sequence} after {last}");
                counted += u64::from(overwritten) + 1;
                last = sequence;
            }
            last == COUNT
        });
        // All were read or counted as overwritten, and one number is left out.
        assert_eq!(counted, BEFORE + u64::from(COUNT) + 1);
        running.end();
    }
}

#[test]
fn one_of_many_readers_counts_across_the_wrap() {
    let pair = Pair::new(Kind::Sampling);
    pair.announce_producer();
    let own = pair.producer();
    let word = |number: u64| number << 3;
    let latest = &own.head.latest;
    let mut out = [0; LENGTH_MAX as usize / 8 + 1];
    latest.latest.store(word(0x1FFF_FFFE), Ordering::Release);
    let mut reader = Reader::of_many(word(0x1FFF_FFFE));
    for (number, overwritten) in [(0x1FFF_FFFE, 0), (0x1FFF_FFFF, 0), (3, 3), (4, 0)] {
        latest.latest.store(word(number), Ordering::Release);
        let copied = reader.follow(own.slots, latest, LENGTH_MAX, &mut out);
        assert_eq!(copied.unwrap().overwritten, overwritten, "{number:#x}");
    }
}

#[test]
fn c_reads_the_values_that_rust_writes() {
    let pair = Pair::new(Kind::Sampling);
    pair.announce_producer();
    let running = pair.start("read");
    let (own, consumer) = (pair.producer(), pair.consumer());
    let mut writer = Writer::new();
    let mut kicker = Kicker::new();
    for number in 1..=COUNT {
        let slot = writer.next(own.slots, &consumer.connections[0].reading);
        slot.copy_in(&payload_of(number));
        writer.publish(&own.head.latest, own.slots, &head_of(number, 0));
        assert_eq!(kicker.wanted(&own.head.kick, &consumer.head.wait), None);
        if number % 16 == 0 {
            std::thread::yield_now();
        }
    }
    let said = running.end();
    let overwritten: u64 = said
        .trim()
        .strip_prefix("overwritten ")
        .unwrap()
        .parse()
        .unwrap();
    assert!(overwritten < u64::from(COUNT));
}
