//! The four ways over which the demo's loop runs. Each end is a [`Channel`]; nothing else of the loop
//! knows which way it is on.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, recv};
use serde::Serialize;
use tautline::{
    Destination, Form, MacAddress, Neighbour, Node, NodeConfig, PortNumber, Priority,
    QueuingOptions, QueuingPort, SamplingOptions, SamplingPort,
};
use tautline_testbed::hosts::{Host, Hosts};

use crate::kernel::{self, Sides, is_nothing_yet};

use super::motor::{COMMAND_BYTES, STATE_BYTES};
use super::{DemoError, PERIOD};

/// A way, by the name that tables and result files use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Tautline: sampling port for the state, queuing port for the commands, best link.
    Tautline,
    /// Kernel UDP, non-blocking sockets that both sides spin on.
    UdpPoll,
    /// Kernel UDP, blocking sockets.
    UdpBlock,
    /// Kernel TCP without delay, non-blocking sockets that both sides spin on.
    Tcp,
}

impl Way {
    /// All, in the order of the table.
    pub const ALL: [Way; 4] = [Way::Tautline, Way::UdpPoll, Way::UdpBlock, Way::Tcp];

    /// The name in tables and result files.
    pub fn name(self) -> &'static str {
        match self {
            Way::Tautline => "tautline",
            Way::UdpPoll => "udp-poll",
            Way::UdpBlock => "udp-block",
            Way::Tcp => "tcp",
        }
    }

    /// Name for people: the UDP and TCP are the kernel's.
    pub fn text(self) -> &'static str {
        match self {
            Way::Tautline => "Tautline",
            Way::UdpPoll => "UDP polled",
            Way::UdpBlock => "UDP blocking",
            Way::Tcp => "TCP polled",
        }
    }

    /// Whether a receiver looks again and again rather than being woken.
    pub fn spins(self) -> bool {
        self != Way::UdpBlock
    }
}

/// One end of a way. Nothing here waits longer than the deadline that it is given, apart from what
/// the scheduler adds.
pub(super) trait Channel: Send {
    /// Sends a message. One that the kernel has no room for is lost, as on any of these ways but TCP.
    fn send(&mut self, message: &[u8]) -> io::Result<()>;

    /// The next message (a command) or the newest (a state) into `buffer`, whose length is that of the
    /// message; whether one came before the deadline.
    fn receive(&mut self, deadline: Instant, buffer: &mut [u8]) -> io::Result<bool>;
}

/// Both ends of a way: the motor's and the controller's.
pub(super) struct Ends {
    pub(super) motor: Box<dyn Channel>,
    pub(super) controller: Box<dyn Channel>,
}

/// Where the two sides are.
#[derive(Clone, Copy)]
pub(super) enum Scene<'a> {
    /// In two hosts, the motor in A.
    Hosts(&'a Hosts),
    /// In one, on two addresses of loopback: needs no privilege.
    Loopback,
}

impl<'a> Scene<'a> {
    fn sides(self) -> Sides<'a> {
        match self {
            Scene::Hosts(hosts) => Sides::Hosts(hosts, 0),
            Scene::Loopback => Sides::Loopback,
        }
    }

    fn address(self, host: Host) -> Ipv4Addr {
        self.sides().address(host)
    }

    /// Sides of the kernel's own paths: on a cable that no demux is attached to.
    fn kernel_sides(self) -> Sides<'a> {
        match self {
            Scene::Hosts(hosts) => Sides::Hosts(hosts, super::KERNEL_CABLE),
            Scene::Loopback => Sides::Loopback,
        }
    }

    /// Does something where a side is.
    pub(super) fn inside<T: Send>(
        self,
        host: Host,
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, DemoError> {
        Ok(self.sides().inside(host, work)?)
    }

    fn config(self, host: Host) -> NodeConfig {
        let peer = host.peer();
        let neighbour = |mac, form| Neighbour {
            name: PEER.to_owned(),
            mac,
            ip: Some(self.address(peer)),
            form,
        };
        let (config, neighbour) = match self {
            Scene::Hosts(hosts) => {
                let mac = MacAddress(hosts.end(peer, 0).mac());
                let config = NodeConfig::on(&hosts.end(host, 0).interface());
                (config, neighbour(mac, Form::Ethernet))
            }
            Scene::Loopback => (
                NodeConfig::udp(self.address(host)),
                neighbour(MacAddress::UNSPECIFIED, Form::Udp),
            ),
        };
        config
            .with_neighbour(neighbour)
            .expect("an empty table has room for an entry")
    }
}

/// Name of the other side in the neighbour table.
const PEER: &str = "peer";
const STATE_PORT: u16 = 4;
const COMMAND_PORT: u16 = 5;
const PRIORITY: Priority = Priority::HIGHEST;

/// The nodes of both sides, on the best link that works. They tell `taut status` about themselves.
pub(super) struct Nodes([Node; 2]);

impl Nodes {
    pub(super) fn open(scene: Scene<'_>) -> Result<Nodes, DemoError> {
        let open = |host| {
            scene.inside(host, || {
                Node::open(scene.config(host)).map_err(DemoError::from)
            })?
        };
        Ok(Nodes([open(Host::A)?, open(Host::B)?]))
    }

    pub(super) fn report(&self) -> &tautline::OpenReport {
        self.0[0].report()
    }

    fn ends(&self, scene: Scene<'_>) -> Result<Ends, DemoError> {
        let number = |number| PortNumber::new(number).expect("the constants above are in range");
        let (state, command) = (number(STATE_PORT), number(COMMAND_PORT));
        let [motor, controller] = &self.0;
        let mut motor = scene.inside(Host::A, || {
            motor.queuing_port(
                command,
                &QueuingOptions {
                    spin: SPIN,
                    ..QueuingOptions::default()
                },
            )
        })??;
        let mut controller = scene.inside(Host::B, || {
            controller.sampling_port(
                state,
                &SamplingOptions {
                    refresh_period: PERIOD,
                    spin: SPIN,
                    ..SamplingOptions::default()
                },
            )
        })??;
        let to_controller = motor.destination(PEER, state)?;
        let to_motor = controller.destination(PEER, command)?;
        Ok(Ends {
            motor: Box::new(MotorPort {
                buffer: vec![0; motor.message_bytes_max()],
                port: motor,
                to: to_controller,
            }),
            controller: Box::new(ControllerPort {
                buffer: vec![0; SamplingPort::VALUE_BYTES_MAX],
                port: controller,
                to: to_motor,
            }),
        })
    }
}

/// Longer than any wait of the loop: ports spin as long as the kernel's polled sockets do.
const SPIN: Duration = Duration::from_secs(1);

/// Opens a way. `nodes` are those that [`Way::Tautline`] uses.
pub(super) fn open(way: Way, scene: Scene<'_>, nodes: &Nodes) -> Result<Ends, DemoError> {
    match way {
        Way::Tautline => nodes.ends(scene),
        Way::UdpPoll => udp(scene, true),
        Way::UdpBlock => udp(scene, false),
        Way::Tcp => tcp(scene),
    }
}

struct MotorPort {
    port: QueuingPort,
    to: Destination,
    buffer: Vec<u8>,
}

impl Channel for MotorPort {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        // Counted by the port, and seen as a missed deadline.
        let _lost = self.port.send(self.to, PRIORITY, message);
        Ok(())
    }

    fn receive(&mut self, deadline: Instant, buffer: &mut [u8]) -> io::Result<bool> {
        let message = self
            .port
            .receive_until(on_clock(deadline), &mut self.buffer)
            .map_err(io::Error::other)?;
        Ok(message.is_some_and(|message| fill(buffer, &self.buffer[..message.length])))
    }
}

struct ControllerPort {
    port: SamplingPort,
    to: Destination,
    buffer: Vec<u8>,
}

impl Channel for ControllerPort {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let _lost = self.port.send(self.to, PRIORITY, message);
        Ok(())
    }

    fn receive(&mut self, deadline: Instant, buffer: &mut [u8]) -> io::Result<bool> {
        let sample = self
            .port
            .read_new_until(on_clock(deadline), &mut self.buffer)
            .map_err(io::Error::other)?;
        Ok(sample.is_some_and(|sample| fill(buffer, &self.buffer[..sample.length])))
    }
}

/// The standard library's clock is CLOCK_MONOTONIC as well, but does not tell its value.
fn on_clock(deadline: Instant) -> tautline::Instant {
    tautline::now() + deadline.saturating_duration_since(Instant::now())
}

fn fill(buffer: &mut [u8], message: &[u8]) -> bool {
    let fits = buffer.len() == message.len();
    if fits {
        buffer.copy_from_slice(message);
    }
    fits
}

/// Empty looks at a socket between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 8;

struct Udp {
    socket: UdpSocket,
    spins: bool,
    /// Whether only the newest message counts.
    newest: bool,
}

fn udp(scene: Scene<'_>, spins: bool) -> Result<Ends, DemoError> {
    let [motor, controller] = kernel::udp_pair(scene.kernel_sides(), 0)?;
    motor.set_nonblocking(spins)?;
    controller.set_nonblocking(spins)?;
    let end = |socket, newest| {
        Box::new(Udp {
            socket,
            spins,
            newest,
        })
    };
    Ok(Ends {
        motor: end(motor, false),
        controller: end(controller, true),
    })
}

impl Udp {
    /// Waits for a message: by looking, or by sleeping in the kernel.
    fn first(&mut self, deadline: Instant, buffer: &mut [u8]) -> io::Result<bool> {
        loop {
            if !self.spins {
                let left = deadline.saturating_duration_since(Instant::now());
                // Zero would mean for ever.
                self.socket
                    .set_read_timeout(Some(left.max(Duration::from_micros(1))))?;
            }
            for _ in 0..LOOKS_PER_CLOCK {
                match self.socket.recv(buffer) {
                    Ok(length) if length == buffer.len() => return Ok(true),
                    Ok(_) => {}
                    Err(error) if is_nothing_yet(&error) => {}
                    Err(error) => return Err(error),
                }
                if !self.spins {
                    break;
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
        }
    }
}

impl Channel for Udp {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match self.socket.send(message) {
            Err(error) if !is_nothing_yet(&error) => Err(error),
            _ => Ok(()),
        }
    }

    fn receive(&mut self, deadline: Instant, buffer: &mut [u8]) -> io::Result<bool> {
        if !self.first(deadline, buffer)? {
            return Ok(false);
        }
        // Bounded by what the socket's buffer holds and what comes meanwhile, one a millisecond.
        while self.newest
            && recv(self.socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) == Ok(buffer.len())
        {
        }
        Ok(true)
    }
}

/// How long a stream may take no byte before it is given up. Lower: a stall of a shared machine ends the
/// demo. Higher: the demo hangs on a dead connection.
const STUCK: Duration = Duration::from_secs(2);

struct Tcp {
    stream: TcpStream,
    partial: Vec<u8>,
    filled: usize,
    newest: bool,
}

fn tcp(scene: Scene<'_>) -> Result<Ends, DemoError> {
    let [asking, answering] = kernel::tcp_pair(scene.kernel_sides(), 0)?;
    let end = |stream: TcpStream, message_bytes, newest| {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok::<_, DemoError>(Box::new(Tcp {
            stream,
            partial: vec![0; message_bytes],
            filled: 0,
            newest,
        }))
    };
    Ok(Ends {
        motor: end(asking, COMMAND_BYTES, false)?,
        controller: end(answering, STATE_BYTES, true)?,
    })
}

impl Tcp {
    /// Reads on; whether a message is whole.
    fn look(&mut self) -> io::Result<bool> {
        match self.stream.read(&mut self.partial[self.filled..]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                self.filled += length;
                Ok(self.filled == self.partial.len())
            }
            Err(error) if is_nothing_yet(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn take(&mut self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.partial);
        self.filled = 0;
    }
}

impl Channel for Tcp {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let mut rest = message;
        let start = Instant::now();
        // A stream cannot drop a message: it waits, which is TCP's way of being late.
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(length) => rest = &rest[length..],
                Err(error) if is_nothing_yet(&error) && start.elapsed() < STUCK => {
                    std::hint::spin_loop();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive(&mut self, deadline: Instant, buffer: &mut [u8]) -> io::Result<bool> {
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.look()? {
                    self.take(buffer);
                    while self.newest && self.look()? {
                        self.take(buffer);
                    }
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
        }
    }
}
