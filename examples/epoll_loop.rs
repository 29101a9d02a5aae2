//! One thread waits for several ports at once, with epoll, and uses no processor meanwhile.
//!
//! The rule for a port's descriptor: receive until there is nothing, then wait. What comes after a
//! receive that found nothing makes the descriptor readable.

use std::time::Duration;

use rustix::event::{Timespec, epoll};
use tautline::{Node, NodeConfig, Priority, QueuingPort, Wait, neighbour};

/// Takes all that a port has.
fn drain(port: &mut QueuingPort) -> Result<u32, tautline::ReceiveError> {
    let mut count = 0;
    let number = port.number();
    while let Some(message) = port.receive(Wait::Poll)? {
        println!("port {number}: {}", String::from_utf8_lossy(&message));
        count += 1;
    }
    Ok(count)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let here = [127, 0, 0, 1].into();
    let node = Node::open(NodeConfig::udp(here).with_neighbour(neighbour("here", here))?)?;
    let mut ports = [node.queuing(30).open()?, node.queuing(31).open()?];
    let mut sender = node.queuing(32).open()?;
    let to = [
        sender.destination("here", 30)?,
        sender.destination("here", 31)?,
    ];

    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (index, port) in ports.iter_mut().enumerate() {
        let descriptor = port.descriptor().ok_or("this link has no descriptors")?;
        // Edge-triggered: said once, until the port is empty again.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(
            &epoll,
            descriptor,
            epoll::EventData::new_u64(index as u64),
            flags,
        )?;
    }

    // Somebody sends, now and then.
    let sending = std::thread::spawn(move || {
        for number in 0..6 {
            std::thread::sleep(Duration::from_millis(20));
            let text = format!("message {number}");
            sender.send(to[number % 2], Priority::NORMAL, text.as_bytes())?;
        }
        Ok::<(), tautline::SendError>(())
    });

    let mut left = 6;
    // Messages from before the first wait ring no more.
    for port in &mut ports {
        left -= drain(port)?;
    }
    let mut events = Vec::with_capacity(8);
    let patience = Timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };
    while left > 0 {
        epoll::wait(
            &epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&patience),
        )?;
        if events.is_empty() {
            return Err("nothing came for ten seconds".into());
        }
        for event in events.drain(..) {
            let port = &mut ports[event.data.u64() as usize];
            left -= drain(port)?;
        }
    }
    sending.join().expect("the sending thread does not panic")?;
    Ok(())
}
