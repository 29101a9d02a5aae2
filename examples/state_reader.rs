//! Reads the newest state whenever it likes: the receiving side of a sampling port.
//!
//! A reading costs no system call on link `xdp`, and the same small price whether one state came
//! meanwhile or a thousand. Run `state_publisher` beside it.
//!
//! Arguments: the configuration file, and how many readings to take.

use std::time::Duration;

use tautline::cycle::CycleOptions;
use tautline::{Cycle, Node, NodeConfig, Wait};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments
        .next()
        .unwrap_or("examples/controller.toml".to_owned());
    let count: u32 = arguments.next().unwrap_or("5".to_owned()).parse()?;

    let node = Node::open(NodeConfig::from_file(file)?)?;
    println!("{}", node.report());
    let mut port = node.sampling("state").open()?;

    // Wait for the first state; from then on there is always one.
    let deadline = tautline::now() + Duration::from_secs(30);
    if port.next(Wait::Until(deadline))?.is_none() {
        return Err("nobody publishes: start state_publisher within 30 seconds".into());
    }
    let mut cycle = Cycle::start(&CycleOptions::new(Duration::from_millis(50)))?;
    for _ in 0..count {
        cycle.wait();
        // The last value, with all that is known of it. Never waits.
        let state = port.read()?.expect("there was a state before");
        let angle = f64::from_be_bytes(state[..].try_into()?);
        println!(
            "angle {angle:.3}, {} µs old, {}, {} overwritten since the last look",
            state.age().as_micros(),
            // Older than refresh_period_us: the publisher stopped, or the cable is out.
            if state.is_valid() {
                "valid"
            } else {
                "NOT valid"
            },
            state.sample().overwritten,
        );
    }
    Ok(())
}
