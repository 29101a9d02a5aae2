//! The four ways over which the demo's loop runs. Nothing else of the loop knows which way it is on.

use std::io;
use std::time::{Duration, Instant};

use serde::Serialize;
use tautline::port::{QueuingOptions, SamplingOptions};
use tautline_testbed::hosts::Host;

use super::PERIOD;
use crate::path::nodes::NodePair;
use crate::path::port::{PortEnd, port_number};
use crate::path::sides::Sides;
use crate::path::{End, PathError, Waiting, tcp, udp};

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

/// One end of a way, and which of its messages the loop takes.
pub(super) struct Channel {
    end: Box<dyn End>,
    /// Whether of several messages only the newest counts: on the kernel's ways, what a sampling port does by itself.
    skips: bool,
}

impl Channel {
    fn new(end: impl End + 'static, skips: bool) -> Channel {
        Channel {
            end: Box::new(end),
            skips,
        }
    }

    /// Sends a message. One without room is lost, as on any of these ways but TCP, and seen as a missed deadline.
    pub(super) fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.end.send(message).map(drop)
    }

    /// The next message (a command) or the newest (a state) into `buffer`, whose length is that of the message; whether
    /// one came before the deadline. Waits no longer, apart from what the scheduler adds.
    pub(super) fn receive(&mut self, deadline: Instant, buffer: &mut [u8]) -> io::Result<bool> {
        let limit = deadline.saturating_duration_since(Instant::now());
        if self.end.wait(buffer.len(), limit)?.is_none() {
            return Ok(false);
        }
        if self.skips {
            // Bounded by what the socket's buffer holds and what comes meanwhile, one a millisecond.
            self.end.update(buffer.len())?;
        }
        let message = self.end.message();
        let fits = message.len() == buffer.len();
        if fits {
            buffer.copy_from_slice(message);
        }
        Ok(fits)
    }
}

/// Both ends of a way: the motor's and the controller's.
pub(super) struct Ends {
    pub(super) motor: Channel,
    pub(super) controller: Channel,
}

impl Ends {
    fn of_kernel<E: End + 'static>([motor, controller]: [E; 2]) -> Ends {
        Ends {
            motor: Channel::new(motor, false),
            controller: Channel::new(controller, true),
        }
    }
}

const STATE_PORT: u16 = 4;
const COMMAND_PORT: u16 = 5;
/// Longer than any wait of the loop: ports spin as long as the kernel's polled sockets do.
const SPIN: Duration = Duration::from_secs(1);

/// Opens a way: Tautline's on `nodes`, the kernel's on `sides`, with the motor in A.
pub(super) fn open(way: Way, nodes: &NodePair<'_>, sides: Sides<'_>) -> Result<Ends, PathError> {
    Ok(match way {
        Way::Tautline => ports(nodes)?,
        Way::UdpPoll => Ends::of_kernel(udp::pair(sides, 0, Waiting::Spin)?),
        Way::UdpBlock => Ends::of_kernel(udp::pair(sides, 0, Waiting::Block)?),
        Way::Tcp => Ends::of_kernel(tcp::pair(sides, 0, Waiting::Spin)?),
    })
}

/// A queuing port for the commands, and a sampling port for the state.
fn ports(nodes: &NodePair<'_>) -> Result<Ends, PathError> {
    let (state, command) = (port_number(STATE_PORT), port_number(COMMAND_PORT));
    let commands = QueuingOptions {
        spin: SPIN.into(),
        ..QueuingOptions::default()
    };
    let states = SamplingOptions {
        refresh_period: PERIOD,
        spin: SPIN.into(),
        ..SamplingOptions::default()
    };
    let mut motor = nodes.port(Host::A, |node| {
        node.queuing(command).options(&commands).open()
    })?;
    let mut controller =
        nodes.port(Host::B, |node| node.sampling(state).options(&states).open())?;
    let to_controller = motor.destination(nodes.peer(Host::A), state)?;
    let to_motor = controller.destination(nodes.peer(Host::B), command)?;
    Ok(Ends {
        motor: Channel::new(PortEnd::new(motor, to_controller), false),
        controller: Channel::new(PortEnd::new(controller, to_motor), false),
    })
}
