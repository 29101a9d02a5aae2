//! The motor's side of a control loop: sends its state each millisecond, and takes the commands that come back.
//!
//! The other side is `loop_controller`; `docs/start/tutorial.md` runs both. The motor is a mass on a line that starts 1
//! m from where it should be; a command is the force on it.
//!
//! Arguments: the configuration file, and how many cycles to run.

use std::time::Duration;

use tautline::cycle::CycleOptions;
use tautline::{Cycle, Node, NodeConfig, Priority, TypedQueuingPort, Wait};

/// Length of a cycle in seconds.
const PERIOD_S: f64 = 0.001;
/// Mass in kilograms.
const MASS_KG: f64 = 1.0;

/// State of the motor.
#[derive(Clone, Copy, tautline::Typed)]
#[repr(C)]
struct State {
    position: f64,
    speed: f64,
}

/// Command of the controller.
#[derive(Clone, Copy, tautline::Typed)]
#[repr(C)]
struct Command {
    force: f64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or("motor.toml".to_owned());
    let cycles: u32 = arguments.next().unwrap_or("5000".to_owned()).parse()?;

    let node = Node::open(NodeConfig::from_file(file)?)?;
    println!("{}", node.report());
    // Receives commands and sends states.
    let mut port: TypedQueuingPort<Command, State> = node.queuing("command").typed().open()?;
    // Port 7 of the neighbour "controller", which is a sampling port over there.
    let controller = port.destination("controller", 7)?;

    let options = CycleOptions::new(Duration::from_secs_f64(PERIOD_S))
        .with_fifo_priority(80)
        .with_locked_memory();
    let mut cycle = Cycle::start(&options)?;
    println!("{}", cycle.report());

    let mut state = State {
        position: 1.0,
        speed: 0.0,
    };
    let mut force = 0.0;
    let mut commands = 0;
    for _ in 0..cycles {
        cycle.wait();
        // Take what has come, the most urgent first. This never waits.
        while let Some((command, _)) = port.receive(Wait::Poll)? {
            force = command.force;
            commands += 1;
        }
        state.speed += force / MASS_KG * PERIOD_S;
        state.position += state.speed * PERIOD_S;
        port.send(controller, Priority::HIGHEST, &state)?;
    }
    let position = state.position;
    println!("{commands} commands received, position {position:.3} m");
    println!("{}", cycle.statistics());
    Ok(())
}
