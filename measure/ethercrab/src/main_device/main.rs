//! An EtherCAT main device: ethercrab, with frames through its own packet socket or through a raw port.
//!
//! It takes all sub-devices to OP and exchanges process data with them, cycle by cycle, whose times it prints as one
//! line of JSON. The sub-devices are those of `sub_device`, which answer a number with the next one.

mod cycles;
mod port;
mod run;

use std::error::Error;
use std::pin::Pin;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use ethercrab::std::tx_rx_task;
use ethercrab::{MainDevice, MainDeviceConfig, PduStorage, Timeouts};
use tautline::link::XdpMode;
use tautline::{EtherType, LinkKind, Node, NodeConfig};

/// Sub-devices that there may be; a power of two.
const DEVICES_MAX: usize = 8;
/// Bytes of process data.
const PROCESS_BYTES_MAX: usize = 256;
const FRAMES_MAX: usize = 8;
const FRAME_BYTES: usize = PduStorage::element_size(PROCESS_BYTES_MAX + 256);

static STORAGE: PduStorage<FRAMES_MAX, FRAME_BYTES> = PduStorage::new();

/// An EtherCAT main device that measures its cycles.
#[derive(Parser)]
struct Arguments {
    /// Interface at whose other end the sub-devices are.
    #[arg(long)]
    interface: String,
    /// Way of the frames.
    #[arg(long, value_enum, default_value_t = Way::Socket)]
    way: Way,
    /// Look for answers without sleeping.
    #[arg(long)]
    spin: bool,
    /// Mode of the node of `--way port`: native, generic or tc.
    #[arg(long, default_value = "native")]
    xdp_mode: String,
    /// Cycles to measure.
    #[arg(long, default_value_t = 1000)]
    cycles: u32,
    /// Period of a cycle.
    #[arg(long, default_value_t = 1000)]
    period_us: u64,
}

/// Way of the frames.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    /// ethercrab's own packet socket.
    Socket,
    /// A raw port of Tautline's.
    Port,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let (tx, rx, pdus) = STORAGE.try_split().map_err(|()| "the storage is in use")?;
    let timeouts = Timeouts {
        // Far longer than a frame takes: a cycle that waits so long is counted as lost.
        pdu: Duration::from_secs(2),
        state_transition: Duration::from_secs(20),
        eeprom: Duration::from_secs(5),
        ..Timeouts::default()
    };
    let main_device = MainDevice::new(pdus, timeouts, MainDeviceConfig::default());
    let work = cycles::work(&main_device, arguments.cycles, arguments.period_us);
    let line = match arguments.way {
        Way::Socket => run::beside(
            work,
            Box::pin(tx_rx_task(&arguments.interface, tx, rx)?),
            arguments.spin,
        ),
        Way::Port => {
            let mut config = NodeConfig::on(&arguments.interface).with_link(LinkKind::Xdp);
            config.xdp_mode = Some(mode(&arguments.xdp_mode)?);
            let node = Node::open(config)?;
            let port = node.raw(EtherType::ETHERCAT).open()?;
            let frames = port::Frames::new(port, tx, rx, !arguments.spin)?;
            run::beside(work, Pin::from(Box::new(frames)), arguments.spin)
        }
    };
    println!("{}", line?);
    Ok(())
}

fn mode(text: &str) -> Result<XdpMode, String> {
    match text {
        "native" => Ok(XdpMode::Native),
        "generic" => Ok(XdpMode::Generic),
        "tc" => Ok(XdpMode::Tc),
        _ => Err(format!("`{text}` is no mode: native, generic, tc")),
    }
}
