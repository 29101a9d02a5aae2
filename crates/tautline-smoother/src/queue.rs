//! Queues and filters of an interface: made, changed and read by netlink.

use std::io;

use tautline_proto::smoother::WIRE_OVERHEAD_BYTES;
use tautline_proto::wire::MacAddress;
use tautline_state::netlink::{CREATE_NEW, ECHO, Request, Route, attribute, long, word};
use tautline_state::network::{QUEUE_HANDLE, TC_H_ROOT, tc_head};

use crate::program::CLASS_FIRST;

// linux/rtnetlink.h
const RTM_GETLINK: u16 = 18;
const RTM_NEWQDISC: u16 = 36;
const RTM_NEWTCLASS: u16 = 40;
const RTM_GETTCLASS: u16 = 42;
const RTM_NEWTFILTER: u16 = 44;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
// linux/if_link.h
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
// linux/gen_stats.h
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
/// Packets in 64 bits, which Linux 5.5 and later add once they do not fit 32.
const TCA_STATS_PKT64: u16 = 8;
// linux/pkt_sched.h
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
const LINKLAYER_ETHERNET: u8 = 1;
/// Nanoseconds in a tick of the packet scheduler are two to this.
const TICK_SHIFT: u32 = 6;
// linux/pkt_cls.h
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const ETH_P_ALL: u16 = 3;

/// Place of our filters among those of an interface. Lower, and they would look before filters of others, which then
/// would not see what is held.
const FILTER_PRIORITY: u32 = 49_000;

/// Bytes that a class may send before another one's turn: a full frame.
const QUANTUM_BYTES: u32 = 1600;

/// Shortest frame on the wire.
const WIRE_BYTES_MIN: u16 = 84;

/// An interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) mac: Option<MacAddress>,
}

/// The interface of this name. `ErrorKind::NotFound` if there is none.
pub(crate) fn interface(route: &mut Route, name: &str) -> io::Result<Interface> {
    let mut found = None;
    let mut request = Request::new(RTM_GETLINK, 0, &[0; 16]).with_text(IFLA_IFNAME, name);
    let answer = route.ask(&mut request, |answer| {
        let address = attribute(answer.get(16..).unwrap_or(&[]), IFLA_ADDRESS);
        found = word(answer, 4).map(|index| Interface {
            index,
            mac: address
                .and_then(|address| address.try_into().ok())
                .map(MacAddress),
        });
    });
    match answer.err().map(|error| (error.raw_os_error(), error)) {
        // A name that is too long is ERANGE.
        Some((Some(libc::ENODEV | libc::EINVAL | libc::ERANGE), _)) => {
            Err(io::ErrorKind::NotFound.into())
        }
        Some((_, error)) => Err(error),
        None => found.ok_or_else(|| io::ErrorKind::NotFound.into()),
    }
}

/// Gives an interface an HTB without classes.
pub(crate) fn make_htb(route: &mut Route, interface: u32) -> io::Result<()> {
    // struct tc_htb_glob: version, rate to quantum, default class, debug, direct packets.
    let words = [3, 10, 0, 0, 0u32];
    let mut request = Request::new(
        RTM_NEWQDISC,
        CREATE_NEW,
        &tc_head(interface, QUEUE_HANDLE, TC_H_ROOT, 0),
    )
    .with_text(TCA_KIND, "htb")
    .nest(TCA_OPTIONS)
    .with(TCA_HTB_INIT, &bytes_of(&words))
    .end();
    route.tell(&mut request)
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// `struct tc_htb_opt`, and the rate of `TCA_HTB_RATE64` and `TCA_HTB_CEIL64`: the kernel takes the larger one, and a
/// rate from 34.4 Gbit/s on fits only these.
fn class_options(rate_bps: u64, burst_bytes: u64) -> ([u8; 44], [u8; 8]) {
    let rate64 = (rate_bps / 8).max(1);
    let rate = u32::try_from(rate64).unwrap_or(u32::MAX);
    let mut spec = [0; 12];
    spec[1] = LINKLAYER_ETHERNET;
    spec[2..4].copy_from_slice(&(WIRE_OVERHEAD_BYTES as u16).to_ne_bytes());
    spec[6..8].copy_from_slice(&WIRE_BYTES_MIN.to_ne_bytes());
    spec[8..12].copy_from_slice(&rate.to_ne_bytes());
    let burst_ns = burst_bytes * 1_000_000_000 / rate64;
    let ticks = u32::try_from(burst_ns >> TICK_SHIFT).unwrap_or(u32::MAX);
    let mut options = [0; 44];
    options[..12].copy_from_slice(&spec);
    options[12..24].copy_from_slice(&spec);
    // Buffers of rate and ceiling, quantum, level, priority.
    for (field, value) in options[24..]
        .chunks_mut(4)
        .zip([ticks, ticks, QUANTUM_BYTES, 0, 0])
    {
        field.copy_from_slice(&value.to_ne_bytes());
    }
    (options, rate64.to_ne_bytes())
}

/// The class of one receiver. Its requests are written once and sent again with other numbers.
#[derive(Debug)]
pub(crate) struct Class {
    change: Request,
    options_at: usize,
    look: Request,
}

/// Places of the rates behind `struct tc_htb_opt` in a class's request, each after the head of its attribute.
const RATE64_AFTER: usize = 44 + 4;
const CEIL64_AFTER: usize = RATE64_AFTER + 8 + 4;

/// Counts of a class.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClassCounts {
    /// Bytes that left, without what each frame takes beside them.
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
    pub(crate) backlog_bytes: u32,
    pub(crate) drops: u64,
}

impl Class {
    /// Makes it.
    pub(crate) fn make(
        route: &mut Route,
        interface: u32,
        node: usize,
        rate_bps: u64,
    ) -> io::Result<Self> {
        let handle = QUEUE_HANDLE | (CLASS_FIRST + node as u32);
        let head = tc_head(interface, handle, QUEUE_HANDLE, 0);
        let begin = |flags| {
            Request::new(RTM_NEWTCLASS, flags, &head)
                .with_text(TCA_KIND, "htb")
                .nest(TCA_OPTIONS)
        };
        let (options, rate) = class_options(rate_bps, tautline_proto::smoother::FRAME_BYTES);
        let with_options = |request: Request| {
            request
                .with(TCA_HTB_PARMS, &options)
                .with(TCA_HTB_RATE64, &rate)
                .with(TCA_HTB_CEIL64, &rate)
                .end()
        };
        route.tell(&mut with_options(begin(CREATE_NEW)))?;
        let change = begin(0);
        let options_at = change.len() + 4;
        Ok(Self {
            change: with_options(change),
            options_at,
            look: Request::new(RTM_GETTCLASS, ECHO, &head),
        })
    }

    pub(crate) fn set(
        &mut self,
        route: &mut Route,
        rate_bps: u64,
        burst_bytes: u64,
    ) -> io::Result<()> {
        let (options, rate) = class_options(rate_bps, burst_bytes);
        let at = self.options_at;
        self.change.overwrite(at, &options);
        self.change.overwrite(at + RATE64_AFTER, &rate);
        self.change.overwrite(at + CEIL64_AFTER, &rate);
        route.tell(&mut self.change)
    }

    pub(crate) fn counts(&mut self, route: &mut Route) -> io::Result<ClassCounts> {
        let mut counts = ClassCounts::default();
        route.ask_one(&mut self.look, |answer| {
            let attributes = answer.get(20..).unwrap_or(&[]);
            if let Some(stats) = attribute(attributes, TCA_STATS2) {
                counts = class_counts(stats);
            }
        })?;
        Ok(counts)
    }
}

fn class_counts(stats: &[u8]) -> ClassCounts {
    let mut counts = ClassCounts::default();
    if let Some(basic) = attribute(stats, TCA_STATS_BASIC) {
        counts.bytes = long(basic, 0).unwrap_or(0);
        counts.packets = u64::from(word(basic, 8).unwrap_or(0));
    }
    if let Some(packets) = attribute(stats, TCA_STATS_PKT64) {
        counts.packets = long(packets, 0).unwrap_or(counts.packets);
    }
    if let Some(queue) = attribute(stats, TCA_STATS_QUEUE) {
        counts.backlog_bytes = word(queue, 4).unwrap_or(0);
        counts.drops = u64::from(word(queue, 8).unwrap_or(0));
    }
    counts
}

/// Makes the place for filters on an interface (`clsact`).
pub(crate) fn make_filter_place(route: &mut Route, interface: u32) -> io::Result<()> {
    let head = tc_head(interface, 0xffff_0000, 0xffff_fff1, 0);
    route.tell(&mut Request::new(RTM_NEWQDISC, CREATE_NEW, &head).with_text(TCA_KIND, "clsact"))
}

/// Adds a BPF filter.
pub(crate) fn add_filter(
    route: &mut Route,
    interface: u32,
    parent: u32,
    (name, program): (&str, i32),
) -> io::Result<()> {
    let info = FILTER_PRIORITY << 16 | u32::from(ETH_P_ALL.to_be());
    let mut request = Request::new(
        RTM_NEWTFILTER,
        CREATE_NEW,
        &tc_head(interface, 0, parent, info),
    )
    .with_text(TCA_KIND, "bpf")
    .nest(TCA_OPTIONS)
    .with(TCA_BPF_FD, &program.to_ne_bytes())
    .with_text(TCA_BPF_NAME, name)
    .end();
    route.tell(&mut request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_written_as_the_kernel_reads_it() {
        let (options, rate) = class_options(8_000_000, 1538);
        let field = |at: usize| word(&options, at).unwrap();
        assert_eq!((field(8), field(20)), (1_000_000, 1_000_000));
        assert_eq!(rate, 1_000_000u64.to_ne_bytes());
        assert_eq!(options[1], LINKLAYER_ETHERNET);
        assert_eq!(options[2..4], 24u16.to_ne_bytes());
        assert_eq!(field(24), 1_538_000 >> TICK_SHIFT);
        assert_eq!((field(32), field(36), field(40)), (1600, 0, 0));
        // Nothing overflows, whatever is asked for.
        class_options(u64::MAX, 1538);
        assert_eq!(word(&class_options(0, 1538).0, 8), Some(1));
    }

    #[test]
    fn more_packets_than_32_bits_hold_are_counted() {
        let attribute = |kind: u16, value: &[u8]| {
            let head = [4 + value.len() as u16, kind].map(u16::to_ne_bytes);
            [head.as_flattened(), value].concat()
        };
        let counts = |packets: u64| {
            // struct gnet_stats_basic, padded to its alignment; struct gnet_stats_queue.
            let basic = [100u64.to_ne_bytes(), (packets & 0xFFFF_FFFF).to_ne_bytes()];
            let queue = bytes_of(&[2, 3000, 5, 0, 0]);
            let mut stats = attribute(TCA_STATS_BASIC, basic.as_flattened());
            if packets > u64::from(u32::MAX) {
                stats.extend(attribute(TCA_STATS_PKT64, &packets.to_ne_bytes()));
            }
            stats.extend(attribute(TCA_STATS_QUEUE, &queue));
            class_counts(&stats)
        };
        for packets in [7, u64::from(u32::MAX), 1 << 32, (1 << 32) + 7] {
            let counts = counts(packets);
            assert_eq!((counts.bytes, counts.packets), (100, packets));
            assert_eq!((counts.backlog_bytes, counts.drops), (3000, 5));
        }
    }

    #[test]
    fn the_kernel_takes_rates_beyond_32_bits() {
        use tautline_testbed::hosts::{Host, Hosts, HostsOptions, may_create};
        if !may_create() {
            println!("SKIPPED: making network namespaces needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
            return;
        }
        let hosts = Hosts::create(&HostsOptions::default()).unwrap();
        hosts
            .inside(Host::A, || {
                let mut route = Route::open().unwrap();
                // The loopback interface.
                make_htb(&mut route, 1).unwrap();
                let mut class = Class::make(&mut route, 1, 0, 1_000_000_000).unwrap();
                for rate_bps in [
                    100_000_000_000u64,
                    34_000_000_000,
                    400_000_000_000,
                    8_000_000,
                ] {
                    class.set(&mut route, rate_bps, 1538).unwrap();
                    let mut rates = None;
                    let look = |answer: &[u8]| {
                        let options = attribute(answer.get(20..)?, TCA_OPTIONS)?;
                        let parms = attribute(options, TCA_HTB_PARMS)?;
                        let rate = |at, kind| match attribute(options, kind) {
                            Some(rate) => long(rate, 0),
                            None => word(parms, at).map(u64::from),
                        };
                        Some([rate(8, TCA_HTB_RATE64)?, rate(20, TCA_HTB_CEIL64)?])
                    };
                    route
                        .ask_one(&mut class.look, |answer| rates = look(answer))
                        .unwrap();
                    assert_eq!(rates, Some([rate_bps / 8; 2]));
                }
            })
            .unwrap();
    }
}
