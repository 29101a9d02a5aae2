//! Eight priorities on one queuing port: the most urgent message comes out first, in whatever order
//! they came in. One process plays both sides.

use std::time::Duration;

use tautline::{Node, NodeConfig, Priority, Wait, neighbour};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Two nodes on loopback; a configuration file does the same (see motor.toml).
    let (controller, motor) = ([127, 0, 0, 1].into(), [127, 0, 0, 2].into());
    let controller =
        Node::open(NodeConfig::udp(controller).with_neighbour(neighbour("motor", motor))?)?;
    let motor = Node::open(NodeConfig::udp(motor))?;

    let mut sender = controller.queuing(20).open()?;
    let mut receiver = motor.queuing(21).open()?;
    let to = sender.destination("motor", receiver.number())?;

    sender.send(to, Priority::LOWEST, b"log your temperature")?;
    sender.send(to, Priority::NORMAL, b"turn to 90 degrees")?;
    sender.send(to, Priority::NORMAL, b"turn to 45 degrees")?;
    sender.send(to, Priority::HIGHEST, b"emergency stop")?;
    // Let all four arrive, so that the order is the queue's and not the cable's.
    std::thread::sleep(Duration::from_millis(100));

    while let Some(message) = receiver.receive(Wait::Poll)? {
        let text = String::from_utf8_lossy(&message);
        println!("priority {}: {text}", message.priority());
    }
    Ok(())
}
