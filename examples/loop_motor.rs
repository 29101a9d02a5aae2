//! The motor's side of a control loop: sends its state each millisecond, and takes the commands that come back.
//!
//! The other side is `loop_controller`; `docs/tutorial.md` runs both. The motor is a mass on a line that starts 1 m
//! from where it should be; a command is the force on it.
//!
//! Arguments: the configuration file, and how many cycles to run.

use std::time::Duration;

use tautline::{Cycle, CycleOptions, Node, NodeConfig, Priority};

/// Length of a cycle in seconds.
const PERIOD_S: f64 = 0.001;
/// Mass in kilograms.
const MASS_KG: f64 = 1.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or("motor.toml".to_owned());
    let cycles: u32 = arguments.next().unwrap_or("5000".to_owned()).parse()?;

    let node = Node::open(NodeConfig::from_file(file)?)?;
    println!("{}", node.report());
    let mut port = node.queuing_port_named("command")?;
    // Port 7 of the neighbour "controller", which is a sampling port over there.
    let controller = port.destination("controller", 7.try_into()?)?;
    // As large as the largest message of the port.
    let mut buffer = [0; 1484];

    let options = CycleOptions::new(Duration::from_secs_f64(PERIOD_S))
        .with_fifo_priority(80)
        .with_locked_memory();
    let mut cycle = Cycle::start(&options)?;
    println!("{}", cycle.report());

    let (mut position, mut speed, mut force) = (1.0, 0.0, 0.0);
    let mut commands = 0;
    for _ in 0..cycles {
        cycle.wait();
        // Take what has come, the most urgent first. This never waits.
        while let Some(message) = port.receive(&mut buffer)? {
            force = f64::from_be_bytes(buffer[..message.length].try_into()?);
            commands += 1;
        }
        speed += force / MASS_KG * PERIOD_S;
        position += speed * PERIOD_S;
        let state: [f64; 2] = [position, speed];
        port.send(
            controller,
            Priority::HIGHEST,
            &state.map(f64::to_be_bytes).concat(),
        )?;
    }
    println!("{commands} commands received, position {position:.3} m");
    println!("{}", cycle.statistics());
    Ok(())
}
