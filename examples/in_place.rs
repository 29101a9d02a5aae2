//! Fills a datagram where it is sent from, and looks at the answer where it lies: neither is copied in this
//! process.
//!
//! The buffer comes from the node's pool, which was taken when the node opened; sent, it goes back there.
//! The peer is a socket of the kernel here, and may be whoever speaks UDP.

use std::net::UdpSocket;

use tautline::{Node, NodeConfig, Priority, Wait};

/// Bytes of the picture: more than a frame, so it leaves in fragments on the links that make frames.
const PICTURE_BYTES: usize = 30_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let display = UdpSocket::bind("127.0.0.1:0")?;
    let display_port = display.local_addr()?.port();
    let shown = std::thread::spawn(move || -> std::io::Result<()> {
        let mut picture = vec![0; PICTURE_BYTES];
        let (bytes, camera) = display.recv_from(&mut picture)?;
        let brightest = picture[..bytes].iter().max().unwrap_or(&0);
        display.send_to(format!("brightest {brightest}").as_bytes(), camera)?;
        Ok(())
    });

    let node = Node::open(NodeConfig::udp([127, 0, 0, 1].into()))?;
    let mut port = node.udp(15_600).open()?;
    let display = port.destination("127.0.0.1", display_port)?;

    let mut picture = port.lend(display, Priority::NORMAL, PICTURE_BYTES)?;
    for (place, pixel) in picture.iter_mut().enumerate() {
        *pixel = (place % 200) as u8;
    }
    picture.send()?;
    println!("sent {PICTURE_BYTES} bytes");

    if let Some(answer) = port.receive(Wait::Forever)? {
        println!("answer: {}", std::str::from_utf8(&answer)?);
    }
    let lent: u32 = node.send_pool().sizes.iter().map(|size| size.lent).sum();
    println!("{lent} of {} buffers lent", node.send_pool().count());
    shown.join().expect("the thread ended")?;
    Ok(())
}
