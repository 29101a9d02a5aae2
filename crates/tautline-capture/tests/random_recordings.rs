//! The fuzz target of recordings: its seeds and the kept inputs, then changes of them that a seed determines. `make
//! fuzz` runs it for longer.

#![allow(unsafe_code)] // An allocator that notes sizes.

#[path = "../../../fuzz/src/inputs.rs"]
#[allow(dead_code, unreachable_pub)]
mod inputs;
#[path = "../../../fuzz/src/kept.rs"]
#[allow(dead_code, unreachable_pub)]
mod kept;
#[path = "../../../fuzz/src/recording.rs"]
#[allow(unreachable_pub)]
mod recording;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// Inputs of one run. More lengthen every run of the tests; `make fuzz` is the long form.
const INPUTS: u64 = 40_000;
/// The variable that repeats a run.
const SEED: &str = "TAUTLINE_FUZZ_SEED";

/// Most bytes that a file of `bytes` may ask for at once.
fn memory_bytes_max(bytes: usize) -> usize {
    (64 << 10) + 8 * bytes
}

thread_local! {
    /// The largest request of this thread for memory.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

struct Noting;

#[global_allocator]
static NOTING: Noting = Noting;

// SAFETY: each call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.set(LARGEST.get().max(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Says which input it was, should the target panic.
struct Said<'a>(&'a [u8]);

impl Drop for Said<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("for fuzz/kept/recording.hex: {}", kept::line(self.0));
        }
    }
}

#[test]
fn any_file_is_refused_with_a_sentence_or_played_whole() {
    let chance = match std::env::var(SEED) {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs(),
    };
    println!("{SEED}={chance}");
    let mut seeds = recording::seeds();
    seeds.extend(kept::of_target("recording"));
    let target = |input: &[u8]| {
        let said = Said(input);
        LARGEST.set(0);
        recording::recording(said.0);
        let (largest, max) = (LARGEST.get(), memory_bytes_max(input.len()));
        assert!(
            largest <= max,
            "{largest} bytes for a file of {}",
            input.len()
        );
    };
    seeds.iter().for_each(|seed| target(seed));
    let mut inputs = inputs::Inputs::new(chance, seeds);
    for _ in 0..INPUTS {
        target(inputs.next_input());
    }
}
