//! The fuzz target of recordings: its seeds and the kept inputs, then changes of them that a seed determines. `make
//! fuzz` runs it for longer.

#[path = "../../../fuzz/src/inputs.rs"]
#[allow(dead_code, unreachable_pub)]
mod inputs;
#[path = "../../../fuzz/src/kept.rs"]
#[allow(dead_code, unreachable_pub)]
mod kept;
#[path = "../../../fuzz/src/recording.rs"]
#[allow(unreachable_pub)]
mod recording;

use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// Inputs of one run. More lengthen every run of the tests; `make fuzz` is the long form.
const INPUTS: u64 = 40_000;
/// The variable that repeats a run.
const SEED: &str = "TAUTLINE_FUZZ_SEED";

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
        recording::recording(said.0);
    };
    seeds.iter().for_each(|seed| target(seed));
    let mut inputs = inputs::Inputs::new(chance, seeds);
    for _ in 0..INPUTS {
        target(inputs.next_input());
    }
}
