//! The craft as a ground station sees it: MAVLink over a port of plain UDP.
//!
//! World and controller fly in this process, in step with the clock or faster. One station is served, at the address
//! that was given; other senders are ignored.

mod vehicle;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread;
use std::time::{Duration, Instant};

use mavlink::dialects::common::MavMessage;
use mavlink::{MavHeader, MavlinkReader, write_v2_msg};
use tautline::{Destination, Node, NodeConfig, Priority, UdpPort, Wait};
use tautline_flight::world::STEP_SECONDS;
use tautline_testbed::interrupt::interrupted;

use vehicle::{COMPONENT, SYSTEM, Vehicle};

/// Distance of looks at the clock and the port. Lower: more wake-ups. Higher: answers take longer.
const LOOK: Duration = Duration::from_millis(2);
/// Steps at once. Higher: after a pause of this process, answers wait for the craft to catch up.
const STEPS_MAX: u64 = 400;
/// Bytes of a datagram: more than any MAVLink message has.
const DATAGRAM_BYTES: usize = 2_048;
/// Messages taken from the port at a look. Higher: a flood keeps the craft from flying.
const MESSAGES_MAX: usize = 64;

/// Settings of a craft that is served to a ground station.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Own address.
    pub own: Ipv4Addr,
    /// Own port.
    pub port: u16,
    /// Ground station.
    pub station: SocketAddrV4,
    /// Seed of wind and noise.
    pub seed: u64,
    /// Seconds of the flight in a second.
    pub speed: f64,
    /// Time to serve; without end if it is zero.
    pub length: Duration,
}

/// The craft as it was at the end.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Seconds that it has flown or stood, in its own time.
    pub seconds: f64,
    /// Whether it crashed.
    pub has_crashed: bool,
    /// Messages that the station sent.
    pub heard: u64,
}

/// Serves a craft until the time is over, or until a signal comes. Calls `ready` when the port is open.
///
/// # Errors
/// An address or port that cannot be had.
pub fn serve(settings: &Settings, ready: impl FnOnce()) -> io::Result<Served> {
    let node = Node::open(NodeConfig::udp(settings.own)).map_err(io::Error::other)?;
    let mut port = node.udp(settings.port).open().map_err(io::Error::other)?;
    let (address, number) = (settings.station.ip().to_string(), settings.station.port());
    let station = port
        .destination(&address, number)
        .map_err(io::Error::other)?;
    let mut link = Link {
        port,
        to: station,
        station: settings.station,
        sequence: 0,
        bytes: Vec::with_capacity(DATAGRAM_BYTES),
    };
    let mut vehicle = Vehicle::new(settings.seed);
    let mut served = Served {
        seconds: 0.0,
        has_crashed: false,
        heard: 0,
    };
    ready();
    let start = Instant::now();
    let is_over = || !settings.length.is_zero() && start.elapsed() > settings.length;
    while interrupted().is_none() && !is_over() {
        let target = (start.elapsed().as_secs_f64() * settings.speed / STEP_SECONDS) as u64;
        let missing = target
            .saturating_sub(vehicle.flight.world.steps())
            .min(STEPS_MAX);
        (0..missing).for_each(|_| vehicle.flight.step());
        served.heard += link.exchange(&mut vehicle);
        if missing < STEPS_MAX {
            thread::sleep(LOOK);
        }
    }
    served.seconds = vehicle.flight.world.seconds();
    served.has_crashed = vehicle.flight.world.crash().is_some();
    Ok(served)
}

/// The port, and the station behind it.
struct Link {
    port: UdpPort,
    to: Destination,
    station: SocketAddrV4,
    sequence: u8,
    bytes: Vec<u8>,
}

impl Link {
    /// Takes what came and sends what is due; returns the number of messages that came.
    fn exchange(&mut self, vehicle: &mut Vehicle) -> u64 {
        let mut heard = 0;
        let mut buffer = [0; DATAGRAM_BYTES];
        for _ in 0..MESSAGES_MAX {
            let Ok(Some(datagram)) = self.port.receive_into(&mut buffer, Wait::Poll) else {
                break;
            };
            if datagram.source != self.station {
                continue;
            }
            let mut reader = MavlinkReader::new(&buffer[..datagram.length]);
            while let Ok((header, message)) = reader.read_any_message::<MavMessage>() {
                heard += 1;
                let from = (header.system_id as u8, header.component_id);
                for reply in vehicle.hear(from, &message) {
                    self.send(&reply);
                }
            }
        }
        for message in vehicle.tell() {
            self.send(&message);
        }
        heard
    }

    /// Sends a message; one that cannot be sent is lost, as on any radio link.
    fn send(&mut self, message: &MavMessage) {
        let header = MavHeader {
            system_id: SYSTEM.into(),
            component_id: COMPONENT,
            sequence: self.sequence,
        };
        self.sequence = self.sequence.wrapping_add(1);
        self.bytes.clear();
        if write_v2_msg(&mut self.bytes, header, message).is_ok() {
            let _ = self.port.send_to(self.to, Priority::NORMAL, &self.bytes);
        }
    }
}
