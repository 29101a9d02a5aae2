//! The fuzz target of the C interface, on the inputs of a seed; `fuzz/` runs it for longer.

#[path = "../../../fuzz/src/c_interface.rs"]
#[allow(unreachable_pub)]
mod c_interface;
#[path = "../../../fuzz/src/inputs.rs"]
#[allow(dead_code, unreachable_pub)]
mod inputs;

use std::time::{SystemTime, UNIX_EPOCH};

/// Inputs of one run. More lengthen every run of the tests; `make fuzz` is the long form.
const INPUTS: u64 = 200_000;
/// The variable that repeats a run.
const SEED: &str = "TAUTLINE_FUZZ_SEED";

#[test]
fn any_order_of_calls_is_answered() {
    for seed in c_interface::seeds() {
        c_interface::c_interface(&seed);
    }
    let seed = match std::env::var(SEED) {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs(),
    };
    println!("{SEED}={seed}");
    let mut inputs = inputs::Inputs::new(seed, c_interface::seeds());
    for _ in 0..INPUTS {
        c_interface::c_interface(inputs.next_input());
    }
    let received = c_interface::received();
    println!("{received} messages came through");
    assert!(received > INPUTS / 100, "the calls only failed");
}
