//! Greets a peer: `hello FILE PEER`.

use tautline::{Instant, Node, NodeConfig, Priority, Wait};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let (file, peer) = (&arguments[1], &arguments[2]);
    let node = Node::open(NodeConfig::from_file(file)?)?;
    let mut port = node.queuing("hello").open()?;
    let peer = port.destination_until(peer, 7, Instant::FAR_FUTURE)?;
    port.send(peer, Priority::NORMAL, b"hello from Rust")?;
    let message = port.receive(Wait::Forever)?.ok_or("no message")?;
    println!("{}", String::from_utf8_lossy(&message));
    Ok(())
}
