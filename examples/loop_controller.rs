//! The controller's side of a control loop: reads each new state soon after it came, and sends a command back.
//!
//! The other side is `loop_motor`; `docs/start/tutorial.md` runs both.
//!
//! Arguments: the configuration file, and how many cycles to run once the first state has come.

use std::time::Duration;

use tautline::cycle::CycleOptions;
use tautline::{Cycle, Node, NodeConfig, Priority, TypedQueuingPort, TypedSamplingPort, Wait};

/// State of the motor, as it sends it.
#[derive(Clone, Copy, tautline::Typed)]
#[repr(C)]
struct State {
    position: f64,
    speed: f64,
}

/// Command to the motor.
#[derive(Clone, Copy, tautline::Typed)]
#[repr(C)]
struct Command {
    force: f64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or("controller.toml".to_owned());
    let cycles: u32 = arguments.next().unwrap_or("4000".to_owned()).parse()?;

    let node = Node::open(NodeConfig::from_file(file)?)?;
    println!("{}", node.report());
    let mut states: TypedSamplingPort<State> = node.sampling("state").typed().open()?;
    let mut commands: TypedQueuingPort<Command> = node.queuing("command").typed().open()?;
    // Port 8 of the neighbour "motor", which is a queuing port over there.
    let motor = commands.destination("motor", 8)?;

    // The motor may start later.
    let deadline = tautline::now() + Duration::from_secs(60);
    if states.next(Wait::Until(deadline))?.is_none() {
        return Err("no state came for 60 seconds: start loop_motor".into());
    }
    // Each cycle begins 100 µs after the arrival of its state, although the two clocks drift.
    let options = CycleOptions::new(Duration::from_millis(1))
        .locked_to_values(Duration::from_micros(100))
        .with_fifo_priority(80)
        .with_locked_memory();
    let mut cycle = Cycle::start(&options)?;
    println!("{}", cycle.report());

    let (mut stale, mut unsent) = (0, 0);
    for _ in 0..cycles {
        cycle.wait();
        let (state, sample) = states.read()?.expect("there was a state before");
        if sample.new {
            cycle.arrived(sample.arrival);
        }
        if !sample.valid {
            // Older than refresh_period_us: the motor has stopped, or the cable is out.
            stale += 1;
            continue;
        }
        // A spring and a damper, towards position 0.
        let force = -100.0 * state.position - 20.0 * state.speed;
        // A cable that is out for a moment loses commands and does not end the loop.
        let sent = commands.send(motor, Priority::HIGHEST, &Command { force });
        unsent += u64::from(sent.is_err());
    }
    println!("{cycles} cycles, {stale} of them without a valid state, {unsent} commands not sent");
    println!("{}", cycle.statistics());
    Ok(())
}
