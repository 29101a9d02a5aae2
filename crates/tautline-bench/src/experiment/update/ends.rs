//! The ends of the three paths: one thread sends each state on all of them, and each has a reader.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use tautline::{Destination, Priority, QueuingOptions, QueuingPort, SamplingOptions, SamplingPort};
use tautline_testbed::hosts::{Host, Hosts};

use crate::experiment::ExperimentError;
use crate::kernel::{self, Sides};
use crate::nodes::{HostNodes, NodesError, PEER, port_number};

/// Bytes of a state, as in the paper.
pub(super) const STATE_BYTES: usize = 1024;
const TCP_PORT: u16 = 7300;
const QUEUING: u16 = 1;
const SAMPLING: u16 = 2;

/// The sending ends of all paths.
pub(super) struct Sender {
    stream: TcpStream,
    queuing: (QueuingPort, Destination),
    sampling: (SamplingPort, Destination),
    state: [u8; STATE_BYTES],
    sequence: u64,
}

/// The receiving end of a path.
pub(super) trait Reader: Send {
    /// Brings the newest state into the application's buffer; the number of states that had come since the last time.
    fn update(&mut self) -> Result<u32, ExperimentError>;
    /// The newest state.
    fn state(&self) -> &[u8];
}

pub(super) type Readers = [Box<dyn Reader>; 3];

pub(super) fn open(hosts: &Hosts, nodes: &HostNodes) -> Result<(Sender, Readers), ExperimentError> {
    let [sending, receiving] = kernel::tcp_pair(Sides::Hosts(hosts, 0), TCP_PORT)?;
    sending
        .set_nodelay(true)
        .and_then(|()| receiving.set_nonblocking(true))
        .map_err(ExperimentError::io("configure a TCP socket"))?;
    let (queuing, sampling) = (QueuingOptions::default(), SamplingOptions::default());
    let (to_queuing, to_sampling) = (port_number(QUEUING), port_number(SAMPLING));
    let mut queuing_a = nodes.port(hosts, Host::A, |node| {
        node.queuing_port(to_queuing, &queuing)
    })?;
    let queuing_b = nodes.port(hosts, Host::B, |node| {
        node.queuing_port(to_queuing, &queuing)
    })?;
    let mut sampling_a = nodes.port(hosts, Host::A, |node| {
        node.sampling_port(to_sampling, &sampling)
    })?;
    let sampling_b = nodes.port(hosts, Host::B, |node| {
        node.sampling_port(to_sampling, &sampling)
    })?;
    let aim = [
        queuing_a.destination(PEER, to_queuing),
        sampling_a.destination(PEER, to_sampling),
    ];
    let [queuing_way, sampling_way] = aim.map(|way| way.map_err(NodesError::from));
    Ok((
        Sender {
            stream: sending,
            queuing: (queuing_a, queuing_way?),
            sampling: (sampling_a, sampling_way?),
            state: [0; STATE_BYTES],
            sequence: 0,
        },
        [
            Box::new(Tcp {
                stream: receiving,
                buffers: [[0; STATE_BYTES]; 2],
                newest: 0,
                filled: 0,
            }),
            Box::new(Queuing {
                buffer: vec![0; queuing_b.message_bytes_max()],
                port: queuing_b,
            }),
            Box::new(Sampling {
                port: sampling_b,
                buffer: vec![0; SamplingPort::VALUE_BYTES_MAX],
            }),
        ],
    ))
}

impl Sender {
    /// Sends the next state on all paths.
    pub(super) fn send(&mut self) -> Result<(), ExperimentError> {
        self.sequence += 1;
        self.state[..8].copy_from_slice(&self.sequence.to_le_bytes());
        self.stream
            .write_all(&self.state)
            .map_err(ExperimentError::io("send a state over TCP"))?;
        let (port, to) = &mut self.queuing;
        let queued = port.send(*to, Priority::HIGHEST, &self.state);
        let (port, to) = &mut self.sampling;
        let sampled = port.send(*to, Priority::HIGHEST, &self.state);
        queued.and(sampled).map_err(|error| ExperimentError::Io {
            operation: "send a state over a port".to_owned(),
            source: std::io::Error::other(error),
        })
    }
}

struct Tcp {
    stream: TcpStream,
    /// One holds the newest state, the other what has come of the next one.
    buffers: [[u8; STATE_BYTES]; 2],
    newest: usize,
    filled: usize,
}

impl Reader for Tcp {
    fn update(&mut self) -> Result<u32, ExperimentError> {
        let mut taken = 0;
        loop {
            match self
                .stream
                .read(&mut self.buffers[1 - self.newest][self.filled..])
            {
                Ok(0) => return Err(crate::echo::EchoError::Closed.into()),
                Ok(length) => self.filled += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(taken),
                Err(error) => return Err(ExperimentError::io("receive over TCP")(error)),
            }
            if self.filled == STATE_BYTES {
                (self.newest, self.filled, taken) = (1 - self.newest, 0, taken + 1);
            }
        }
    }

    fn state(&self) -> &[u8] {
        &self.buffers[self.newest]
    }
}

struct Queuing {
    port: QueuingPort,
    buffer: Vec<u8>,
}

impl Reader for Queuing {
    fn update(&mut self) -> Result<u32, ExperimentError> {
        let mut taken = 0;
        while self
            .port
            .receive(&mut self.buffer)
            .map_err(refused)?
            .is_some()
        {
            taken += 1;
        }
        Ok(taken)
    }

    fn state(&self) -> &[u8] {
        &self.buffer
    }
}

struct Sampling {
    port: SamplingPort,
    buffer: Vec<u8>,
}

impl Reader for Sampling {
    fn update(&mut self) -> Result<u32, ExperimentError> {
        let sample = self.port.read(&mut self.buffer).map_err(refused)?;
        let new = sample.filter(|sample| sample.new);
        Ok(new.map_or(0, |sample| sample.overwritten as u32 + 1))
    }

    fn state(&self) -> &[u8] {
        &self.buffer
    }
}

fn refused(error: tautline::ReceiveError) -> ExperimentError {
    ExperimentError::Io {
        operation: "receive on a port".to_owned(),
        source: std::io::Error::other(error),
    }
}
