//! A chain of simulated EtherCAT sub-devices at the end of a cable: it answers the frames of a main device as such
//! devices do, by the registers of the controllers that are made for them (ETG.1000.4), slowly and in software.
//!
//! Each has eight bytes of outputs and eight of inputs. In state OP a device's inputs are the number in its outputs,
//! plus one.

mod chain;
mod device;
mod eeprom;
mod socket;

use std::error::Error;
use std::io::{self, Write};

use clap::Parser;

use crate::chain::Chain;
use crate::socket::Socket;

/// Longest Ethernet frame with a tag.
const FRAME_BYTES_MAX: usize = 1518;

/// Simulated EtherCAT sub-devices on an interface.
#[derive(Parser)]
struct Arguments {
    /// Interface at whose other end the main device is.
    #[arg(long)]
    interface: String,
    /// Sub-devices of the chain.
    #[arg(long, default_value_t = 1)]
    count: usize,
    /// Look for frames without sleeping.
    #[arg(long)]
    spin: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let socket = Socket::open(&arguments.interface)?;
    let mut chain = Chain::of(arguments.count);
    println!("ready");
    io::stdout().flush()?;
    let mut frame = [0; FRAME_BYTES_MAX];
    loop {
        let Some(bytes) = socket.receive(&mut frame, !arguments.spin)? else {
            std::hint::spin_loop();
            continue;
        };
        let frame = &mut frame[..bytes];
        if chain.process(frame) {
            socket.send(frame)?;
        }
    }
}
