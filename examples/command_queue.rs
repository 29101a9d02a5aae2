//! Eight priorities on one queuing port: the most urgent message comes out first, in whatever order
//! they came in. One process plays both sides.

use std::time::Duration;

use tautline::{Node, NodeConfig, Priority, QueuingOptions, neighbour};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Two nodes on loopback; a configuration file does the same (see motor.toml).
    let (controller, motor) = ([127, 0, 0, 1].into(), [127, 0, 0, 2].into());
    let controller =
        Node::open(NodeConfig::udp(controller).with_neighbour(neighbour("motor", motor))?)?;
    let motor = Node::open(NodeConfig::udp(motor))?;

    let options = QueuingOptions::default();
    let mut sender = controller.queuing(20).options(&options).open()?;
    let mut receiver = motor.queuing(21).options(&options).open()?;
    let to = sender.destination("motor", receiver.number())?;

    sender.send(to, Priority::LOWEST, b"log your temperature")?;
    sender.send(to, Priority::NORMAL, b"turn to 90 degrees")?;
    sender.send(to, Priority::NORMAL, b"turn to 45 degrees")?;
    sender.send(to, Priority::HIGHEST, b"emergency stop")?;
    // Let all four arrive, so that the order is the queue's and not the cable's.
    std::thread::sleep(Duration::from_millis(100));

    let mut buffer = vec![0; receiver.message_bytes_max()];
    while let Some(message) = receiver.receive(&mut buffer)? {
        let text = String::from_utf8_lossy(&buffer[..message.length]);
        println!("priority {}: {text}", message.priority);
    }
    Ok(())
}
