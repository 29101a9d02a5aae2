//! Publishes a state, a thousand times a second: the sending side of a sampling port.
//!
//! Run it beside `state_reader`:
//!
//! ```sh
//! cargo run --example state_reader &
//! cargo run --example state_publisher
//! ```
//!
//! Arguments: the configuration file, and how many states to publish.

use std::time::Duration;

use tautline::cycle::CycleOptions;
use tautline::{Cycle, Node, NodeConfig, Priority};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or("examples/motor.toml".to_owned());
    let count: u32 = arguments.next().unwrap_or("2000".to_owned()).parse()?;

    let node = Node::open(NodeConfig::from_file(file)?)?;
    // Which link took effect, and why not a better one.
    println!("{}", node.report());

    // A sender needs a port too: it says where the state comes from. This one receives commands.
    let mut port = node.queuing("command").open()?;
    // Port 7 of the neighbour that the file names. Resolved once, used for every message.
    let reader = port.destination("controller", 7)?;

    // A thousand times a second, by the clock: a late wake-up does not move those after it. Without the privilege
    // for SCHED_FIFO and locked memory it runs too, and says so.
    let options = CycleOptions::new(Duration::from_millis(1))
        .with_fifo_priority(80)
        .with_locked_memory();
    let mut cycle = Cycle::start(&options)?;
    println!("{}", cycle.report());

    for number in 0..count {
        cycle.wait();
        let angle = f64::from(number) * 0.001;
        // A state is any bytes, up to one frame; agree on an order of bytes with the reader.
        port.send(reader, Priority::HIGHEST, &angle.to_be_bytes())?;
    }
    println!("published {count} states: {}", cycle.statistics());
    Ok(())
}
