//! The fuzz target of the C interface: the kept inputs, then changes of them that a seed determines.
//! `make fuzz` runs it for longer.

#[path = "../../../fuzz/src/c_interface.rs"]
#[allow(unreachable_pub)]
mod c_interface;
#[path = "../../../fuzz/src/inputs.rs"]
#[allow(dead_code, unreachable_pub)]
mod inputs;
#[path = "../../../fuzz/src/kept.rs"]
#[allow(dead_code, unreachable_pub)]
mod kept;

use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// Inputs of one run. More lengthen every run of the tests; `make fuzz` is the long form.
const INPUTS: u64 = 100_000;
/// The variable that repeats a run.
const SEED: &str = "TAUTLINE_FUZZ_SEED";

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = c_interface::seeds();
    seeds.extend(kept::of_target("c_interface"));
    seeds
}

fn chance() -> u64 {
    let seed = match std::env::var(SEED) {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs(),
    };
    println!("{SEED}={seed}");
    seed
}

/// Says which input it was, should the target panic.
struct Said<'a>(&'a [u8]);

impl Drop for Said<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("for fuzz/kept/c_interface.hex: {}", kept::line(self.0));
        }
    }
}

#[test]
fn any_order_of_calls_is_answered() {
    let target = |input: &[u8]| {
        let said = Said(input);
        c_interface::c_interface(said.0);
    };
    seeds().iter().for_each(|seed| target(seed));
    let before = c_interface::received();
    let mut inputs = inputs::Inputs::new(chance(), seeds());
    for _ in 0..INPUTS {
        target(inputs.next_input());
    }
    let received = c_interface::received() - before;
    println!("{received} messages came through");
    assert!(received > INPUTS / 1000, "the calls only failed");
}

#[test]
fn calls_of_two_threads_with_the_same_handles_are_answered() {
    let seed = chance();
    thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                let mut inputs = inputs::Inputs::new(seed + thread, seeds());
                for _ in 0..INPUTS / 4 {
                    let said = Said(inputs.next_input());
                    c_interface::c_interface_shared(said.0);
                }
            });
        }
    });
    assert!(c_interface::received() > 0, "the calls only failed");
}

/// A function that the header has and the target does not call would be left out unnoticed.
#[test]
fn every_function_of_the_header_is_called() {
    let header = include_str!("../include/tautline.h");
    let target = include_str!("../../../fuzz/src/c_interface.rs");
    let lines = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#']));
    // Without arguments, nothing can be wrong with them.
    let lines = lines.filter(|line| !line.contains("(void)"));
    let functions: Vec<&str> = lines
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("tautline_") || name.starts_with("rt_"))
        .collect();
    assert!(functions.len() > 25, "{functions:?}");
    let missing: Vec<_> = functions
        .iter()
        .filter(|name| !target.contains(&format!("{name}(")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
