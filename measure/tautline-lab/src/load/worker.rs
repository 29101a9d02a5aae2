//! The built-in loads, each run in a process of its own by [`run_worker`].

use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Load;
use crate::measured::Achieved;
use crate::sys;

const MIB: u64 = 1 << 20;

/// The first file of the disk load, doubled until the largest; IOzone, which the paper used, starts there too.
const FILE_BYTES_MIN: u64 = 64 << 10;

/// One write or read of the disk load.
const RECORD_BYTES: usize = 64 << 10;

/// Space that the disk load leaves free: a full file system harms others.
const FREE_BYTES_MIN: u64 = 256 * MIB;

/// Pairs of processes that wake each other, per CPU.
const PAIRS_PER_CPU: usize = 4;

/// Runs one part until standard input ends, then prints what it achieved, a JSON object a line. Called in a process
/// started for this, with the part's name, the CPU count and the largest size in MiB. Its current directory is for
/// its files alone.
pub fn run_worker(arguments: &[String]) -> io::Result<()> {
    let usage = || io::Error::new(io::ErrorKind::InvalidInput, "PART CPUS SIZE_MIB");
    let [part, cpus, size_mib] = arguments else {
        return Err(usage());
    };
    let part: Load = part.parse().map_err(|_| usage())?;
    let cpus: usize = cpus.parse().map_err(|_| usage())?;
    let size_mib: u64 = size_mib.parse().map_err(|_| usage())?;
    sys::die_with_parent();
    let began = Instant::now();
    let done = match part {
        Load::Cpu => vec![cpu(cpus)],
        Load::Memory => vec![memory(size_mib)],
        Load::Disk => vec![disk(size_mib)],
        Load::Network => vec![network()?],
        Load::Scheduling => scheduling(cpus)?,
        Load::Vision => vec![vision(cpus)],
        Load::Idle | Load::Combined => return Err(usage()),
    };
    let seconds = began.elapsed().as_secs_f64().max(1e-3);
    let mut output = io::stdout().lock();
    for (amount, unit, problem) in done {
        let achieved = Achieved {
            part: part.name().to_owned(),
            tool: "built-in".to_owned(),
            amount: amount / seconds,
            unit: unit.to_owned(),
            problem,
        };
        writeln!(
            output,
            "{}",
            serde_json::to_string(&achieved).expect("only string keys")
        )?;
    }
    output.flush()
}

/// An amount that becomes a rate, its unit as a rate, and what went wrong.
type Done = (f64, &'static str, Option<String>);

/// Runs `work` on `threads` threads until the input ends and adds up what they return.
fn until_stopped(threads: usize, work: impl Fn(&AtomicBool) -> u64 + Sync) -> u64 {
    let (stop, total) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| total.fetch_add(work(&stop), Ordering::Relaxed));
        }
        while !sys::input_has_ended() {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
    });
    total.into_inner()
}

/// Integer and floating point work that stays in registers.
fn cpu(threads: usize) -> Done {
    let rounds = until_stopped(threads, |stop| {
        let (mut rounds, mut state, mut x) = (0u64, 0x9e37_79b9_7f4a_7c15u64, 1.0f64);
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..1000 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                x = (x + (state & 0xff) as f64).sqrt();
            }
            rounds += 1;
        }
        black_box((state, x));
        rounds
    });
    (rounds as f64 / 1000.0, "million rounds/s", None)
}

/// Copies a block that no cache holds, forth and back, and touches fresh pages now and then.
fn memory(size_mib: u64) -> Done {
    let bytes = (size_mib.clamp(2, 256) * MIB / 2) as usize;
    let copied = until_stopped(1, |stop| {
        let (mut one, mut two) = (vec![1u8; bytes], vec![2u8; bytes]);
        let mut copied = 0;
        while !stop.load(Ordering::Relaxed) {
            for (to, from) in two.chunks_mut(MIB as usize).zip(one.chunks(MIB as usize)) {
                to.copy_from_slice(from);
                copied += to.len() as u64;
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            std::mem::swap(&mut one, &mut two);
            // Gives the pages back and takes new ones: the kernel's share of memory load.
            drop(std::mem::take(&mut two));
            two = vec![3u8; bytes];
        }
        black_box((&one, &two));
        copied
    });
    (copied as f64 / MIB as f64, "MiB/s copied", None)
}

/// Takes picture after picture and finds the edges in it (Sobel), as tracking and mapping begin. A picture and its
/// edges are larger than the inner caches.
fn vision(threads: usize) -> Done {
    const WIDTH: usize = 1280;
    const HEIGHT: usize = 720;
    let pictures = until_stopped(threads, |stop| {
        let (mut picture, mut edges) = (vec![0u8; WIDTH * HEIGHT], vec![0u8; WIDTH * HEIGHT]);
        let mut pictures = 0u64;
        while !stop.load(Ordering::Relaxed) {
            for (place, pixel) in picture.iter_mut().enumerate() {
                *pixel = pixel.wrapping_add((place as u64 ^ pictures) as u8);
            }
            for row in 1..HEIGHT - 1 {
                for column in 1..WIDTH - 1 {
                    let at = |down: usize, right: usize| {
                        i32::from(picture[(row + down - 1) * WIDTH + column + right - 1])
                    };
                    let across =
                        at(0, 2) + 2 * at(1, 2) + at(2, 2) - at(0, 0) - 2 * at(1, 0) - at(2, 0);
                    let down =
                        at(2, 0) + 2 * at(2, 1) + at(2, 2) - at(0, 0) - 2 * at(0, 1) - at(0, 2);
                    edges[row * WIDTH + column] = ((across.abs() + down.abs()) / 8) as u8;
                }
            }
            black_box(&edges);
            pictures += 1;
        }
        pictures
    });
    (pictures as f64, "pictures/s of 1280 by 720", None)
}

/// Writes and reads files that double in size, as IOzone did for the paper, removes them, and begins again.
/// Stops by itself, and says so, when the disk is full.
fn disk(size_mib_max: u64) -> Done {
    let unit = "MiB/s written and read";
    let path = Path::new("doubling");
    let record = vec![0x5au8; RECORD_BYTES];
    let (mut moved, mut problem) = (0u64, None);
    'load: while problem.is_none() {
        let mut size = FILE_BYTES_MIN;
        while size <= size_mib_max * MIB {
            let free = sys::free_bytes(Path::new(".")).unwrap_or(u64::MAX);
            if free < size + FREE_BYTES_MIN.min(size_mib_max * MIB / 4) {
                if size == FILE_BYTES_MIN {
                    problem = Some(format!("disk full: {} MiB left, stopped", free / MIB));
                }
                break;
            }
            match write_and_read(path, size, &record, &mut moved) {
                Ok(true) => size *= 2,
                Ok(false) => break 'load,
                Err(error) => {
                    problem = Some(format!("stopped: {error}"));
                    break;
                }
            }
        }
        let _ = fs::remove_file(path);
        if problem.is_some() {
            while !sys::input_has_ended() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    let _ = fs::remove_file(path); // gone already unless the load was told to stop
    (moved as f64 / MIB as f64, unit, problem)
}

/// Writes `size` bytes, makes them durable, reads them back. False if told to stop.
fn write_and_read(path: &Path, size: u64, record: &[u8], moved: &mut u64) -> io::Result<bool> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    for _ in 0..size / record.len() as u64 {
        file.write_all(record)?;
        *moved += record.len() as u64;
        if sys::input_has_ended() {
            return Ok(false);
        }
    }
    file.sync_data()?;
    read_back(&mut file, record.len(), moved)
}

fn read_back(file: &mut File, record_bytes: usize, moved: &mut u64) -> io::Result<bool> {
    file.seek(SeekFrom::Start(0))?;
    let mut buffer = vec![0; record_bytes];
    loop {
        let count = file.read(&mut buffer)?;
        *moved += count as u64;
        if count == 0 || sys::input_has_ended() {
            return Ok(count == 0);
        }
    }
}

/// A TCP stream over the loopback device.
fn network() -> io::Result<Done> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    let (mut receiver, _) = listener.accept()?;
    let reader = std::thread::spawn(move || {
        let (mut buffer, mut received) = (vec![0; RECORD_BYTES], 0u64);
        while let Ok(count @ 1..) = receiver.read(&mut buffer) {
            received += count as u64;
        }
        received
    });
    let block = vec![7u8; RECORD_BYTES];
    while !sys::input_has_ended() {
        sender.write_all(&block)?;
    }
    drop(sender);
    let received = reader.join().unwrap_or(0);
    Ok((
        received as f64 / MIB as f64,
        "MiB/s over loopback TCP",
        None,
    ))
}

/// Processes that wake each other through pipes, and processes that start and end.
fn scheduling(cpus: usize) -> io::Result<Vec<Done>> {
    let switches_before = context_switches();
    let mut players = Vec::new();
    for _ in 0..cpus.max(1) * PAIRS_PER_CPU {
        let (ping_read, ping_write) = io::pipe()?;
        let (pong_read, pong_write) = io::pipe()?;
        let (mut a, mut b) = ((ping_read, pong_write), (pong_read, ping_write));
        players.push(sys::fork(|| {
            sys::die_with_parent();
            while a.0.read_exact(&mut [0; 100]).is_ok() && a.1.write_all(&[1; 100]).is_ok() {}
        })?);
        players.push(sys::fork(|| {
            sys::die_with_parent();
            while b.1.write_all(&[1; 100]).is_ok() && b.0.read_exact(&mut [0; 100]).is_ok() {}
        })?);
    }
    let mut forks = 0u64;
    while !sys::input_has_ended() {
        // The child writes to fresh pages, as a real one does before it ends.
        let child = sys::fork(|| drop(black_box(vec![1u8; 256 << 10])))?;
        sys::wait_for(child);
        forks += 1;
    }
    let switches = context_switches().saturating_sub(switches_before);
    for player in players {
        sys::signal_process(player, rustix::process::Signal::KILL);
        sys::wait_for(player);
    }
    Ok(vec![
        (forks as f64, "processes/s started and ended", None),
        (
            switches as f64,
            "context switches/s on the whole machine",
            None,
        ),
    ])
}

/// The `ctxt` line of /proc/stat; 0 where it is hidden.
fn context_switches() -> u64 {
    fs::read_to_string("/proc/stat")
        .ok()
        .and_then(|text| {
            text.lines()
                .find_map(|line| line.strip_prefix("ctxt ")?.trim().parse().ok())
        })
        .unwrap_or(0)
}
