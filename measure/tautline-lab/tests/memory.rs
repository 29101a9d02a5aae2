//! Memory of a measurement: the same for a second as for a week, and nothing more while it runs. One test,
//! because the allocator's count is that of the whole process.
#![allow(unsafe_code)] // A global allocator can be made in no other way.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tautline_lab::episodes::Episodes;
use tautline_lab::probe::{self, Plan, Record, Scheduling, TIMELINE_SLICES};
use tautline_lab::result::ProbeKind;
use tautline_report::LatencyHistogram;

/// Calls that took or gave back memory, and bytes held, of all threads but one. Relaxed: read while no other thread
/// allocates.
static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);
/// The thread that is not counted: the test harness's, which keeps its books while the test runs.
static HARNESS: AtomicI32 = AtomicI32::new(0);

/// The system's allocator, with a count.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn thread_id() -> i32 {
    // SAFETY: it has no argument and always succeeds.
    unsafe { libc::gettid() }
}

/// Leaves the process's first thread out of the count, unless the test itself runs on it.
fn leave_the_harness_out() {
    let first = std::process::id() as i32;
    if thread_id() != first {
        HARNESS.store(first, Ordering::Relaxed);
    }
}

fn count(bytes: i64) {
    if thread_id() == HARNESS.load(Ordering::Relaxed) {
        return;
    }
    CALLS.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(bytes, Ordering::Relaxed);
}

// SAFETY: each call is handed to the system's allocator as it came, whose promises are ours.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller guarantees what `GlobalAlloc::alloc` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller guarantees that `alloc` above, that is the system's, returned it.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes as i64 - layout.size() as i64);
        // SAFETY: as for `dealloc`; the caller guarantees that `bytes` is not zero.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

const WEEK_NS: u64 = 7 * 24 * 3600 * 1_000_000_000;

/// Bytes that a record of this length holds.
fn bytes_of_record(duration_ns: u64) -> (Box<Record>, i64) {
    let before = BYTES.load(Ordering::Relaxed);
    let record = Record::new(duration_ns);
    (record, BYTES.load(Ordering::Relaxed) - before)
}

/// Latencies as a week brings them: mostly some microseconds, some of every size up to a second, in no order.
fn latency_ns(index: u64) -> u64 {
    let mixed = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if index.is_multiple_of(1000) {
        mixed >> (34 + mixed % 20)
    } else {
        2_000 + mixed % 8_192
    }
}

/// `samples` wake-ups spread evenly over a week.
fn fill(record: &mut Record, samples: u64) {
    for index in 0..samples {
        record.add(WEEK_NS / samples * index, latency_ns(index));
    }
}

#[test]
fn a_week_at_ten_kilohertz_takes_the_memory_of_a_second() {
    leave_the_harness_out();
    let (_, bytes_second) = bytes_of_record(1_000_000_000);
    let (mut record, bytes_week) = bytes_of_record(WEEK_NS);
    assert_eq!(bytes_second, bytes_week);
    assert!(bytes_week < 300_000, "{bytes_week}");

    // Neither samples nor time take more: a hundred thousand, a million, and the week's number by count.
    for samples in [100_000, 1_000_000] {
        let before = CALLS.load(Ordering::Relaxed);
        fill(&mut record, samples);
        assert_eq!(CALLS.load(Ordering::Relaxed), before, "{samples}");
    }
    let week_samples = WEEK_NS / 100_000;
    let before = CALLS.load(Ordering::Relaxed);
    record.histogram.record_many(7_000, week_samples);
    assert_eq!(CALLS.load(Ordering::Relaxed), before);
    assert_eq!(record.histogram.count(), 1_100_000 + week_samples);

    // The result file is bounded likewise: the whole week has its slices, and no more than these.
    let slices = record.slices();
    assert_eq!(slices.len(), TIMELINE_SLICES);
    let last = slices.last().expect("there are some").start_ns;
    assert!(last > WEEK_NS / TIMELINE_SLICES as u64 * (TIMELINE_SLICES as u64 - 2));
    assert!(record.histogram.buckets().len() < bytes_week as usize / size_of::<u64>());

    a_running_probe_allocates_nothing();
}

/// The probe itself, at 10 kHz, with its live figures looked at: no thread of the process calls the allocator.
fn a_running_probe_allocates_nothing() {
    let plan = Plan {
        kind: ProbeKind::Nanosleep,
        cpu: None,
        scheduling: Scheduling::Other,
        period_ns: 100_000,
        offset_ns: 0,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let (mut seen, mut live_figures) = (0, LatencyHistogram::new());
    let (mut first, mut last, mut looks) = (None, 0, 0);
    let duration = Duration::from_millis(700);
    let episodes = Arc::new(Episodes::new(&[1_000, 100_000]));
    let measured = probe::measure(
        &[plan],
        duration,
        &episodes,
        &stop,
        None,
        &mut |share, live| {
            // At its very end the probe makes its result, which takes memory.
            if (0.05..0.9).contains(&share) {
                live[0].take_since(&mut seen, &mut live_figures);
                last = CALLS.load(Ordering::Relaxed);
                first.get_or_insert(last);
                looks += 1;
            }
        },
    );
    assert!(measured.refused.is_empty(), "{:?}", measured.refused);
    assert!(looks >= 2 && live_figures.count() > 0, "{looks} looks");
    assert_eq!(first, Some(last), "allocations while it measured");
}
