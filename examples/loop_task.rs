//! The controller's side of a control loop as a real-time task: its deadline is checked before it runs, and
//! `taut task show` watches it.
//!
//! The other side is `loop_motor`; `docs/start/tutorial.md` runs both.
//!
//! Arguments: the node's configuration, the task set, and for how many milliseconds to run once the first state has
//! come.

use std::time::Duration;

use tautline::{Node, NodeConfig, Priority, TypedQueuingPort, TypedSamplingPort, Wait};
use tautline_exec::Job;
use tautline_tasks::{Executive, Options};

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
    let node = arguments.next().unwrap_or("controller.toml".to_owned());
    let set = arguments.next().unwrap_or("loop.toml".to_owned());
    let run_ms: u64 = arguments.next().unwrap_or("4000".to_owned()).parse()?;

    let mut executive = Executive::from_file(set)?; // refused if the task could miss its deadline
    let node = Node::open(NodeConfig::from_file(node)?)?;
    println!("{}", node.report());
    let mut states: TypedSamplingPort<State> = node.sampling("state").typed().open()?;
    let mut commands: TypedQueuingPort<Command> = node.queuing("command").typed().open()?;
    let motor = commands.destination("motor", 8)?;
    let deadline = tautline::now() + Duration::from_secs(60);
    if states.next(Wait::Until(deadline))?.is_none() {
        return Err("no state came for 60 seconds: start loop_motor".into());
    }

    executive.task("control", move |_: &Job| {
        let read = states.read().expect("the node is open");
        let Some((state, _)) = read.filter(|(_, sample)| sample.valid) else {
            return; // the motor has stopped, or the cable is out: no force
        };
        let force = -100.0 * state.position - 20.0 * state.speed;
        // Counted by the port; the next cycle sends another one.
        let _lost = commands.send(motor, Priority::HIGHEST, &Command { force });
    })?;
    let running = executive.start(&Options::default())?;
    for limit in running.limits() {
        println!("limited: {limit}");
    }
    std::thread::sleep(Duration::from_millis(run_ms));
    println!("{}", running.stop(Duration::from_secs(1)));
    Ok(())
}
