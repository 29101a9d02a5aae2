//! Ports on a bus of the benchmark's own: two nodes, each with a port, as two processes would have them. The memory
//! that they share is mapped anew by each side.

use std::sync::Arc;
use std::time::Duration;

use tautline::config::BusConfig;
use tautline::port::LentBytes;
use tautline::{
    Destination, Node, NodeConfig, Outgoing, PortNumber, Priority, QueuingOptions, QueuingPort,
    SamplingOptions, SamplingPort, SendError, bus_neighbour,
};
use tautline_state::TemporaryDirectory;

use super::Failure;
use super::ends::End;

/// Messages that are handed over at once where many are to go: half of what a ring of default depth holds, so that one
/// side fills while the other takes.
const BATCH: usize = 32;

/// The node that asks.
const ASKS: &str = "asks";
/// The node that answers.
const ANSWERS: &str = "answers";

/// Priority of the benchmark's messages.
const PRIORITY: Priority = Priority::HIGHEST;

/// A bus, gone when the last port on it is.
pub(super) struct Bus {
    asks: Arc<Node>,
    answers: Arc<Node>,
    ports: u16,
    /// Goes after the nodes, which are in it.
    _directory: TemporaryDirectory,
}

impl Bus {
    /// A bus that nobody else can reach.
    pub(super) fn open() -> Result<Bus, Failure> {
        let directory = TemporaryDirectory::make("taut-bench").map_err(failure)?;
        let path = directory.path().join("bus");
        let node = |name: &str, peer: &str| -> Result<Arc<Node>, Failure> {
            let bus = BusConfig::new(&path.to_string_lossy(), name.parse().map_err(failure)?);
            let peer = bus_neighbour(peer.parse().map_err(failure)?);
            let config = NodeConfig::vbus(bus)
                .with_neighbour(peer)
                .map_err(failure)?;
            Ok(Arc::new(Node::open(config).map_err(failure)?))
        };
        Ok(Bus {
            asks: node(ASKS, ANSWERS)?,
            answers: node(ANSWERS, ASKS)?,
            ports: 0,
            _directory: directory,
        })
    }

    /// Link and mode, in one line.
    pub(super) fn report(&self) -> String {
        self.asks.report().to_string()
    }

    fn number(&mut self) -> Result<PortNumber, Failure> {
        self.ports += 1;
        PortNumber::new(self.ports).ok_or_else(|| Failure::new("too many ports"))
    }

    /// Two queuing ports that send to each other, and sleep at once when they wait.
    pub(super) fn queuing(&mut self, bytes: usize) -> Result<(QueuingEnd, QueuingEnd), Failure> {
        let number = self.number()?;
        let options = QueuingOptions {
            message_bytes_max: bytes,
            spin: Duration::ZERO,
            ..QueuingOptions::default()
        };
        let open = |node: &Arc<Node>| node.queuing_port(number, &options).map_err(failure);
        let (mut asks, mut answers) = (open(&self.asks)?, open(&self.answers)?);
        let there = asks.destination(ANSWERS, number).map_err(failure)?;
        let back = answers.destination(ASKS, number).map_err(failure)?;
        Ok((
            QueuingEnd::new(asks, there, bytes, &self.asks),
            QueuingEnd::new(answers, back, bytes, &self.answers),
        ))
    }

    /// The same, looked at in place.
    pub(super) fn lent(&mut self, bytes: usize) -> Result<(LentEnd, LentEnd), Failure> {
        let (asks, answers) = self.queuing(bytes)?;
        Ok((LentEnd(asks), LentEnd(answers)))
    }

    /// Two sampling ports that send to each other.
    pub(super) fn sampling(&mut self, bytes: usize) -> Result<(SamplingEnd, SamplingEnd), Failure> {
        let number = self.number()?;
        let options = SamplingOptions {
            value_bytes_max: bytes,
            ..SamplingOptions::default()
        };
        let open = |node: &Arc<Node>| node.sampling_port(number, &options).map_err(failure);
        let (mut asks, mut answers) = (open(&self.asks)?, open(&self.answers)?);
        let there = asks.destination(ANSWERS, number).map_err(failure)?;
        let back = answers.destination(ASKS, number).map_err(failure)?;
        let end = |port, to, node: &Arc<Node>| SamplingEnd {
            port,
            to,
            message: vec![0; bytes],
            buffer: vec![0; bytes],
            _node: Arc::clone(node),
        };
        Ok((
            end(asks, there, &self.asks),
            end(answers, back, &self.answers),
        ))
    }

    /// The same, looked at in place.
    pub(super) fn sampling_lent(
        &mut self,
        bytes: usize,
    ) -> Result<(LentSamplingEnd, LentSamplingEnd), Failure> {
        let (asks, answers) = self.sampling(bytes)?;
        Ok((LentSamplingEnd(asks), LentSamplingEnd(answers)))
    }
}

fn failure(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

fn write_tag(message: &mut [u8], tag: u64) {
    message[..8].copy_from_slice(&tag.to_le_bytes());
}

fn read_tag(message: &[u8]) -> u64 {
    message
        .first_chunk()
        .map_or(0, |tag| u64::from_le_bytes(*tag))
}

/// A queuing port; messages are copied in and out.
pub(super) struct QueuingEnd {
    port: QueuingPort,
    to: Destination,
    /// As many as a batch has.
    messages: Vec<Vec<u8>>,
    buffer: Vec<u8>,
    _node: Arc<Node>,
}

impl QueuingEnd {
    fn new(port: QueuingPort, to: Destination, bytes: usize, node: &Arc<Node>) -> QueuingEnd {
        QueuingEnd {
            port,
            to,
            messages: vec![vec![0; bytes]; BATCH],
            buffer: vec![0; bytes],
            _node: Arc::clone(node),
        }
    }
}

/// Whether a message went; a full receiver is no failure.
#[inline]
fn sent<T>(result: Result<T, SendError>) -> Result<Option<T>, Failure> {
    match result {
        Ok(sent) => Ok(Some(sent)),
        Err(SendError::ReceiverFull) => Ok(None),
        Err(error) => Err(failure(error)),
    }
}

impl End for QueuingEnd {
    #[inline]
    fn try_send(&mut self, tag: u64, bytes: usize) -> Result<bool, Failure> {
        let message = &mut self.messages[0][..bytes];
        write_tag(message, tag);
        Ok(sent(self.port.send(self.to, PRIORITY, message))?.is_some())
    }

    fn try_send_many(&mut self, tag: u64, bytes: usize, count: u64) -> Result<u64, Failure> {
        let count = usize::try_from(count).unwrap_or(BATCH).min(BATCH);
        for (tag, message) in (tag..).zip(&mut self.messages[..count]) {
            write_tag(message, tag);
        }
        let mut batch = [Outgoing {
            to: self.to,
            priority: PRIORITY,
            message: &[],
        }; BATCH];
        for (outgoing, message) in batch.iter_mut().zip(&self.messages) {
            outgoing.message = &message[..bytes];
        }
        let went = sent(self.port.send_batch(&batch[..count]))?;
        Ok(went.map_or(0, |count| count as u64))
    }

    #[inline]
    fn try_take(&mut self) -> Result<Option<u64>, Failure> {
        let message = self.port.receive(&mut self.buffer).map_err(failure)?;
        Ok(message.map(|message| read_tag(&self.buffer[..message.length])))
    }

    fn take_waiting(&mut self, limit: Duration) -> Result<Option<u64>, Failure> {
        let deadline = tautline::now() + limit;
        let message = self.port.receive_until(deadline, &mut self.buffer);
        let message = message.map_err(failure)?;
        Ok(message.map(|message| read_tag(&self.buffer[..message.length])))
    }
}

/// A queuing port; messages are filled and looked at in place.
pub(super) struct LentEnd(QueuingEnd);

impl End for LentEnd {
    #[inline]
    fn try_send(&mut self, tag: u64, bytes: usize) -> Result<bool, Failure> {
        let QueuingEnd { port, to, .. } = &mut self.0;
        let Some(mut loan) = sent(port.lend(*to, PRIORITY, bytes))? else {
            return Ok(false);
        };
        write_tag(&mut loan, tag);
        loan.send().map_err(failure)?;
        Ok(true)
    }

    #[inline]
    fn try_take(&mut self) -> Result<Option<u64>, Failure> {
        let message = self.0.port.receive_lent().map_err(failure)?;
        Ok(message.map(|message| lent_tag(message.bytes())))
    }
}

#[inline]
fn lent_tag(bytes: LentBytes<'_>) -> u64 {
    let mut tag = [0; 8];
    bytes.copy_out(0, &mut tag);
    u64::from_le_bytes(tag)
}

/// A sampling port.
pub(super) struct SamplingEnd {
    port: SamplingPort,
    to: Destination,
    message: Vec<u8>,
    buffer: Vec<u8>,
    _node: Arc<Node>,
}

impl End for SamplingEnd {
    #[inline]
    fn try_send(&mut self, tag: u64, bytes: usize) -> Result<bool, Failure> {
        write_tag(&mut self.message, tag);
        self.port
            .send(self.to, PRIORITY, &self.message[..bytes])
            .map_err(failure)?;
        Ok(true)
    }

    #[inline]
    fn try_take(&mut self) -> Result<Option<u64>, Failure> {
        if !self.port.fresh() {
            return Ok(None);
        }
        let sample = self.port.read(&mut self.buffer).map_err(failure)?;
        let new = sample.filter(|sample| sample.new);
        Ok(new.map(|sample| read_tag(&self.buffer[..sample.length])))
    }

    #[inline]
    fn read(&mut self) -> Result<u64, Failure> {
        let sample = self.port.read(&mut self.buffer).map_err(failure)?;
        Ok(sample.map_or(0, |sample| read_tag(&self.buffer[..sample.length])))
    }
}

/// A sampling port; values are filled and looked at in place.
pub(super) struct LentSamplingEnd(SamplingEnd);

impl End for LentSamplingEnd {
    #[inline]
    fn try_send(&mut self, tag: u64, bytes: usize) -> Result<bool, Failure> {
        let SamplingEnd { port, to, .. } = &mut self.0;
        let mut loan = port.lend(*to, PRIORITY, bytes).map_err(failure)?;
        write_tag(&mut loan, tag);
        loan.send().map_err(failure)?;
        Ok(true)
    }

    #[inline]
    fn try_take(&mut self) -> Result<Option<u64>, Failure> {
        if !self.0.port.fresh() {
            return Ok(None);
        }
        let sample = self.0.port.read_lent().map_err(failure)?;
        let new = sample.filter(|sample| sample.new);
        Ok(new.map(|sample| lent_tag(sample.bytes)))
    }

    #[inline]
    fn read(&mut self) -> Result<u64, Failure> {
        let sample = self.0.port.read_lent().map_err(failure)?;
        Ok(sample.map_or(0, |sample| lent_tag(sample.bytes)))
    }
}
