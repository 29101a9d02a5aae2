//! A node that sends messages over several flows, frame by frame.

use core::net::Ipv4Addr;
use std::collections::{HashMap, VecDeque};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;
use tautline_proto::fragment::{Fragment, fragments};
use tautline_proto::sim::{SimNetwork, SimNode};
use tautline_proto::wire::udp::{Endpoints, UdpTemplate};
use tautline_proto::wire::{
    ETHERTYPE_DEFAULT, Header, MESSAGE_BYTES_MAX, MacAddress, PortNumber, Priority,
    WHOLE_BYTES_MAX_ETHERNET, WHOLE_BYTES_MAX_UDP, ethernet,
};

use super::{RECEIVER_MAC, below};

pub(crate) const RECEIVER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 255);
/// The most that a source may have under way with the smallest number of collectors: see `receiver.rs`.
pub(crate) const FLOW_COUNT_MAX: u64 = 4;

/// Key that tells one message of a run from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MessageKey {
    pub(crate) sender: usize,
    pub(crate) source_port: PortNumber,
    pub(crate) destination_port: PortNumber,
    pub(crate) message_sequence: u32,
    /// How often the sender had restarted.
    pub(crate) epoch: u32,
}

pub(crate) struct Message {
    pub(crate) priority: Priority,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct Sender {
    pub(crate) number: usize,
    pub(crate) node: SimNode,
    pub(crate) mac: MacAddress,
    pub(crate) ip: Ipv4Addr,
    pub(crate) epoch: u32,
    pub(crate) sent: HashMap<MessageKey, Message>,
    flows: Vec<Flow>,
    counted: Vec<MessageKey>,
}

struct Flow {
    source: PortNumber,
    destination: PortNumber,
    udp: bool,
    sequence: u32,
    /// Messages still to be begun.
    queued: usize,
    /// Frames of the message under way.
    frames: VecDeque<Vec<u8>>,
}

impl Sender {
    pub(crate) fn attach(
        number: usize,
        network: &mut SimNetwork,
        random: &mut Xoshiro256PlusPlus,
    ) -> Self {
        let mac = MacAddress([2, 0, 0, 0, 0, number as u8]);
        let flows = (0..1 + below(random, FLOW_COUNT_MAX))
            .map(|flow| Flow::new(flow as u16, random))
            .collect();
        Self {
            number,
            node: network.attach(mac).unwrap(),
            mac,
            ip: Ipv4Addr::new(10, 0, 0, number as u8 + 1),
            epoch: 0,
            sent: HashMap::new(),
            flows,
            counted: Vec::new(),
        }
    }

    pub(crate) fn queue_messages(&mut self, messages_per_flow: usize) {
        for flow in &mut self.flows {
            flow.queued = messages_per_flow;
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.flows.iter().any(Flow::is_busy)
    }

    /// The next frame of some flow.
    pub(crate) fn next_frame(&mut self, random: &mut Xoshiro256PlusPlus) -> Vec<u8> {
        let busy = self.flows.iter().filter(|flow| flow.is_busy()).count();
        let chosen = below(random, busy as u64) as usize;
        let index = (0..self.flows.len())
            .filter(|&index| self.flows[index].is_busy())
            .nth(chosen)
            .expect("a flow is busy");
        if self.flows[index].frames.is_empty() {
            self.begin_message(index, random);
        }
        self.flows[index]
            .frames
            .pop_front()
            .expect("a message has frames")
    }

    pub(crate) fn begin_count(&mut self) {
        self.counted.clear();
    }

    /// The messages sent since `begin_count`.
    pub(crate) fn counted(&self) -> &[MessageKey] {
        &self.counted
    }

    /// A restart after a crash: all flows count from 0 again.
    pub(crate) fn restart(&mut self) {
        self.epoch += 1;
        for flow in &mut self.flows {
            flow.sequence = 0;
        }
    }

    fn begin_message(&mut self, index: usize, random: &mut Xoshiro256PlusPlus) {
        let (mac, ip) = (self.mac, self.ip);
        let flow = &mut self.flows[index];
        let message = Message {
            priority: Priority::ALL[below(random, 8) as usize],
            bytes: draw_bytes(random),
        };
        let key = MessageKey {
            sender: self.number,
            source_port: flow.source,
            destination_port: flow.destination,
            message_sequence: flow.sequence,
            epoch: self.epoch,
        };
        for part in flow.plan(message.bytes.len()) {
            let header = Header {
                destination: flow.destination,
                source: flow.source,
                priority: message.priority,
                flags: 0,
                fragment_index: part.index,
                fragment_count: part.count,
                length: part.length,
                sequence: flow.sequence,
                type_byte: 0,
            };
            flow.sequence = flow.sequence.wrapping_add(1);
            let frame = flow.frame(mac, ip, &header, &message.bytes[part.range()]);
            flow.frames.push_back(frame);
        }
        flow.queued -= 1;
        self.counted.push(key);
        let replaced = self.sent.insert(key, message);
        assert!(replaced.is_none(), "{key:?} sent twice");
    }
}

impl Flow {
    fn new(number: u16, random: &mut Xoshiro256PlusPlus) -> Self {
        let starts = [0, 1000, u32::MAX - 20];
        Self {
            source: PortNumber::new(1 + number).unwrap(),
            destination: PortNumber::new(100 + number % 2).unwrap(),
            udp: below(random, 2) == 0,
            sequence: starts[below(random, 3) as usize],
            queued: 0,
            frames: VecDeque::new(),
        }
    }

    fn is_busy(&self) -> bool {
        self.queued > 0 || !self.frames.is_empty()
    }

    fn plan(&self, message_bytes: usize) -> impl ExactSizeIterator<Item = Fragment> + use<> {
        let whole_bytes_max = if self.udp {
            WHOLE_BYTES_MAX_UDP
        } else {
            WHOLE_BYTES_MAX_ETHERNET
        };
        fragments(message_bytes, whole_bytes_max).unwrap()
    }

    fn frame(&self, mac: MacAddress, ip: Ipv4Addr, header: &Header, payload: &[u8]) -> Vec<u8> {
        let mut frame = if self.udp {
            let endpoints = Endpoints {
                destination: RECEIVER_MAC,
                source: mac,
                destination_ip: RECEIVER_IP,
                source_ip: ip,
            };
            let mut template = UdpTemplate::new(&endpoints, self.destination, self.source);
            template.set_header(header);
            template.bytes.to_vec()
        } else {
            let mut bytes = [0; ethernet::HEADERS_BYTES];
            ethernet::emit_header(&mut bytes, RECEIVER_MAC, mac, ETHERTYPE_DEFAULT, header);
            bytes.to_vec()
        };
        frame.extend_from_slice(payload);
        frame.resize(frame.len().max(ethernet::FRAME_BYTES_MIN), 0);
        frame
    }
}

/// Mostly messages of a frame or a few, sometimes empty, at a limit, or as large as can be.
fn draw_bytes(random: &mut Xoshiro256PlusPlus) -> Vec<u8> {
    let limits = [0, 1, 1408, 1456, 1457, 1484, 1485, 2816, MESSAGE_BYTES_MAX];
    let length = match below(random, 20) {
        0 => limits[below(random, limits.len() as u64) as usize],
        1..10 => below(random, 200) as usize,
        10..19 => below(random, 8000) as usize,
        _ => below(random, MESSAGE_BYTES_MAX as u64) as usize,
    };
    let mut bytes = vec![0; length];
    random.fill_bytes(&mut bytes);
    bytes
}
