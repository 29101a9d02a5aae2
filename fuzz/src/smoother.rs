//! The smoother: messages in any order and with any contents, to a receiver and to a sender.

use core::time::Duration;

use tautline_proto::smoother::message::{Message, Report};
use tautline_proto::smoother::{
    EFFICIENCY_PPM, NodeCounts, PortCounts, Receiver, ReceiverConfig, Release, Sender, SenderConfig,
};
use tautline_proto::time::Instant;

const NODES: usize = 3;
const CAPACITY_BPS: u64 = 100_000_000;
/// Bytes of one step of a run.
const STEP_BYTES: usize = 16;

/// The bytes as a message, and as a run of reports, grants, counts and intervals: what is granted never exceeds the
/// port, and no node is held to nothing.
pub fn smoother(data: &[u8]) {
    check_message(data);
    let mut receiver = Receiver::new(ReceiverConfig {
        capacity_bps: CAPACITY_BPS,
        node_count: NODES,
        epoch: 1,
    });
    let mut sender = Sender::new(SenderConfig {
        path_bps: CAPACITY_BPS,
        receiver_count: NODES,
    });
    let mut now = Instant::ZERO;
    let mut port = PortCounts::default();
    let mut counts = [NodeCounts::default(); NODES];
    for step in data.as_chunks::<STEP_BYTES>().0 {
        let node = usize::from(step[0]) % NODES;
        let word =
            |at: usize| u32::from_be_bytes([step[at], step[at + 1], step[at + 2], step[at + 3]]);
        now = now + Duration::from_micros(u64::from(word(1) % 200_000));
        match step[5] % 4 {
            0 => {
                let count = &mut counts[node];
                count.other_bytes = count.other_bytes.wrapping_add(u64::from(word(6)));
                count.real_time_bytes ^= u64::from(word(10)) << (step[14] % 40);
                count.lost_frames += u64::from(step[15] & 1);
                port.all_bytes = port.all_bytes.wrapping_add(u64::from(word(6)));
                port.foreign_bytes ^= u64::from(word(10));
            }
            1 => {
                let grant = receiver.grant(now, node);
                let report = Report {
                    epoch: 1 + u32::from(step[6] >> 7),
                    number: grant.number.wrapping_sub(u32::from(step[6] & 0x3f)),
                    sender_epoch: u32::from(step[7]),
                    backlog_bytes: word(8),
                    held: Duration::from_nanos(u64::from(word(12))),
                    other_bytes: 0,
                    real_time_bytes: u64::from(word(8)),
                };
                receiver.take_report(now, node, &report);
                let _refused = sender.take_grant(now, node, &grant);
            }
            2 => {
                if let Ok(Message::Grant(grant)) =
                    Message::parse(&data[usize::from(step[6]) % data.len()..])
                {
                    let _refused = sender.take_grant(now, node, &grant);
                }
            }
            _ => receiver.tick(now, &port, &counts),
        }
        check_rates(&receiver, &mut sender, now, u64::from(word(6)));
    }
}

fn check_rates(receiver: &Receiver, sender: &mut Sender, now: Instant, real_time_bps: u64) {
    let granted: u64 = (0..NODES)
        .map(|node| receiver.view(now, node).granted_bps)
        .sum();
    let all = CAPACITY_BPS / 1_000_000 * EFFICIENCY_PPM;
    // Silent nodes are granted the least beside what the others share.
    assert!(
        granted <= all + NODES as u64 * CAPACITY_BPS / 100,
        "{granted}"
    );
    assert!(receiver.capacity().bps() <= CAPACITY_BPS && receiver.capacity().bps() > 0);
    let mut releases = [Release::Unshaped; NODES];
    sender.releases(now, real_time_bps, &mut releases);
    for release in releases {
        if let Release::AtMost {
            rate_bps,
            burst_bytes,
        } = release
        {
            assert!(rate_bps > 0 && rate_bps <= CAPACITY_BPS && burst_bytes >= 1538);
        }
    }
}

/// A message that is read says the same when it is written and read again.
fn check_message(data: &[u8]) {
    match Message::parse(data) {
        Ok(Message::Grant(grant)) => {
            assert_eq!(Message::parse(&grant.encode()), Ok(Message::Grant(grant)));
        }
        Ok(Message::Report(report)) => {
            assert_eq!(
                Message::parse(&report.encode()),
                Ok(Message::Report(report))
            );
        }
        Err(_) => {}
    }
}
