//! A controller of one's own at 1 kHz: `own_loop FILE CYCLES`, against `loop_motor`.

use std::time::Duration;

use tautline::cycle::CycleOptions;
use tautline::{Cycle, Node, NodeConfig, Priority};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let node = Node::open(NodeConfig::from_file(&arguments[1])?)?;
    println!("{}", node.report());
    let mut states = node.sampling("state").open()?;
    let mut commands = node.queuing("command").open()?;
    let motor = commands.destination("motor", 8)?;
    let options = CycleOptions::new(Duration::from_millis(1)).with_fifo_priority(80);
    let mut cycle = Cycle::start(&options)?;
    for _ in 0..arguments[2].parse()? {
        cycle.wait();
        if let Some(state) = states.read()?.filter(|state| state.is_valid()) {
            let number = |at: usize| f64::from_le_bytes(*state[at..].first_chunk().unwrap());
            let force = -100.0 * number(0) - 20.0 * number(8); // position, speed
            commands.send(motor, Priority::HIGHEST, &force.to_le_bytes())?;
        }
    }
    println!("{}", cycle.statistics());
    Ok(())
}
