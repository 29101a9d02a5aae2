//! The controller's side of a control loop as a real-time task: its deadline is checked before it runs, and
//! `taut task list` watches it.
//!
//! The other side is `loop_motor`; `docs/tutorial.md` runs both.
//!
//! Arguments: the node's configuration, the task set, and for how many milliseconds to run once the first state has
//! come.

use std::time::Duration;

use tautline::{Node, NodeConfig, Priority, SamplingPort};
use tautline_exec::Job;
use tautline_tasks::{Executive, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let node = arguments.next().unwrap_or("controller.toml".to_owned());
    let set = arguments.next().unwrap_or("loop.toml".to_owned());
    let run_ms: u64 = arguments.next().unwrap_or("4000".to_owned()).parse()?;

    let mut executive = Executive::from_file(set)?; // refused if the task could miss its deadline
    let node = Node::open(NodeConfig::from_file(node)?)?;
    println!("{}", node.report());
    let mut state = node.sampling_port_named("state")?;
    let mut commands = node.queuing_port_named("command")?;
    let motor = commands.destination("motor", 8.try_into()?)?;
    let mut buffer = [0; SamplingPort::VALUE_BYTES_MAX];
    let deadline = tautline::now() + Duration::from_secs(60);
    if state.read_new_until(deadline, &mut buffer)?.is_none() {
        return Err("no state came for 60 seconds: start loop_motor".into());
    }

    executive.task("control", move |_: &Job| {
        let sample = state.read(&mut buffer).expect("the node is open");
        if !sample.is_some_and(|sample| sample.valid) {
            return; // the motor has stopped, or the cable is out: no force
        }
        let [position, speed] = [0, 8].map(|at| {
            let bytes = buffer[at..at + 8].try_into().expect("eight bytes");
            f64::from_be_bytes(bytes)
        });
        let force: f64 = -100.0 * position - 20.0 * speed;
        // Counted by the port; the next cycle sends another one.
        let _lost = commands.send(motor, Priority::HIGHEST, &force.to_be_bytes());
    })?;
    let running = executive.start(&Options::default())?;
    for limit in running.limits() {
        println!("limited: {limit}");
    }
    std::thread::sleep(Duration::from_millis(run_ms));
    println!("{}", running.stop(Duration::from_secs(1)));
    Ok(())
}
