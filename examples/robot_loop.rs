//! The loop of a robot that sends its state over UDP and wants a command soon: awake when the state comes. The other
//! side is `robot_peer`.
//!
//! Arguments: the address to receive at, and `kernel` to sleep as the kernel does, for comparison.

use std::net::UdpSocket;

use tautline_awake::Awake;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or("127.0.0.1:7000".to_owned());
    let is_awake = arguments.next().is_none_or(|word| word != "kernel");

    let socket = UdpSocket::bind(address)?;
    let mut awake = Awake::new(&socket);
    let mut state = [0; 1500];
    loop {
        if is_awake {
            awake.wait(None)?; // sleeps, and is awake when the state comes
        }
        let (length, robot) = socket.recv_from(&mut state)?;
        if length == 0 {
            break;
        }
        let command = &state[..length]; // compute it here
        socket.send_to(command, robot)?;
    }
    println!("{awake}");
    Ok(())
}
