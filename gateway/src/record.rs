//! `taut-gateway record`: what is published on keys, in the files that `taut record` writes.
//!
//! A key is a flow. Its port has the number of the gateway's port that is subscribed to the key, or otherwise the next
//! one that is free. Zenoh's threads never wait for the disk: what finds no room in the queue is lost and counted.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tautline_capture::message::{Flow, Message};
use tautline_capture::recording::{Recorder, RecordingError};
use tautline_capture::{FlowFacts, FlowNames};
use tautline_state::Existing;
use zenoh::sample::SampleKind;
use zenoh::{Session, Wait};

use crate::config::{Config, MESSAGE_BYTES_MAX};
use crate::fleet::plain;
use crate::origin::Origin;
use crate::words;

/// Messages that may wait for the disk. Lower: more are lost behind a slow one. Higher: large ones take more memory.
const WAITING_MAX: usize = 256;
/// Keys of one recording: flows have ports, which are 1 to 4095. Lower: more is left out. Higher: ports would not fit.
const KEYS_MAX: usize = 4_095;
/// Longest wait before the recorder looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);
/// Name of the network in the recording.
const ON: &str = "zenoh";

/// A sample on its way to the disk.
struct Item {
    key: String,
    priority: u8,
    sequence: Option<u32>,
    time_ns: u64,
    bytes: Vec<u8>,
}

/// Options of a recording.
pub(crate) struct Wishes<'w> {
    pub(crate) file: &'w Path,
    pub(crate) existing: Existing,
    pub(crate) keys: &'w [String],
    pub(crate) count: Option<u64>,
    pub(crate) length: Option<Duration>,
}

/// Figures of a recording.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) messages: u64,
    /// Found no room in the queue, or missing in the numbers of their gateway.
    pub(crate) lost: u64,
    /// Of one key or flow too many, too large, or deletions.
    pub(crate) left_out: u64,
}

#[derive(Default)]
struct Counts {
    lost: AtomicU64,
    left_out: AtomicU64,
}

/// A key that is recorded.
struct Channel {
    flow: Flow,
    facts: FlowFacts,
    /// Numbers by priority: that of the gateway, otherwise counted.
    sequences: [u32; 8],
}

/// Records until `stop` is set or the wishes are fulfilled.
///
/// # Errors
/// Zenoh's, and those of the file.
pub(crate) fn run(
    session: &Session,
    config: Option<&Config>,
    wishes: &Wishes<'_>,
    stop: &AtomicBool,
) -> Result<Recorded, Box<dyn std::error::Error + Send + Sync>> {
    let mut recorder = Recorder::create(wishes.file, wishes.existing)?;
    let (sender, items) = sync_channel::<Item>(WAITING_MAX);
    let counts = Arc::new(Counts::default());
    let mut subscribers = Vec::new();
    for key in wishes.keys {
        let (sender, counts) = (sender.clone(), Arc::clone(&counts));
        let subscriber = session
            .declare_subscriber(key.clone())
            .callback(move |sample| {
                let is_left_out = sample.kind() == SampleKind::Delete
                    || sample.payload().len() > MESSAGE_BYTES_MAX;
                if is_left_out {
                    counts.left_out.fetch_add(1, Relaxed);
                } else if sender.try_send(item(&sample)).is_err() {
                    counts.lost.fetch_add(1, Relaxed);
                }
            });
        subscribers.push(subscriber.wait()?);
    }
    let began = Instant::now();
    let mut recorded = Recorded::default();
    let mut channels: HashMap<String, Channel> = HashMap::new();
    let is_over = |recorded: &Recorded| {
        stop.load(Relaxed)
            || wishes
                .length
                .is_some_and(|length| began.elapsed() >= length)
            || wishes.count.is_some_and(|count| recorded.messages >= count)
    };
    while !is_over(&recorded) {
        let item = match items.recv_timeout(LOOK) {
            Ok(item) => item,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if !channels.contains_key(&item.key) && channels.len() >= KEYS_MAX {
            recorded.left_out += 1;
            continue;
        }
        let next = channels.len() + 1;
        let channel = channels
            .entry(item.key.clone())
            .or_insert_with(|| channel(&item.key, next, config));
        match channel.write(&mut recorder, &item, &mut recorded) {
            Ok(()) => {}
            // The file stays whole as far as it is.
            Err(RecordingError::Full) => {
                end(recorder, &recorded, &counts)?;
                return Err(RecordingError::Full.into());
            }
            Err(error) => return Err(error.into()),
        }
    }
    drop(subscribers);
    end(recorder, &recorded, &counts)
}

fn end(
    recorder: Recorder,
    recorded: &Recorded,
    counts: &Counts,
) -> Result<Recorded, Box<dyn std::error::Error + Send + Sync>> {
    let recorded = Recorded {
        messages: recorded.messages,
        lost: recorded.lost.saturating_add(counts.lost.load(Relaxed)),
        left_out: recorded
            .left_out
            .saturating_add(counts.left_out.load(Relaxed))
            .saturating_add(recorder.left_out()),
    };
    recorder.finish(&[
        ("messages", recorded.messages),
        ("lost", recorded.lost),
        ("left out", recorded.left_out),
    ])?;
    Ok(recorded)
}

/// A sample as it came. Its time is that of the arrival here: clocks of two sites may differ by hours.
fn item(sample: &zenoh::sample::Sample) -> Item {
    let attached = sample.attachment().map(|bytes| bytes.to_bytes());
    let origin = attached.and_then(|bytes| Origin::parse(&bytes));
    let time = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let priority = origin.as_ref().map_or_else(
        || words::from_zenoh(sample.priority()),
        |origin| origin.priority,
    );
    Item {
        key: sample.key_expr().to_string(),
        priority: priority.get(),
        sequence: origin.map(|origin| origin.sequence),
        time_ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        bytes: sample.payload().to_bytes().into_owned(),
    }
}

/// Flow of a key; the type of its messages is that of the gateway's port that is subscribed to it.
fn channel(key: &str, next: usize, config: Option<&Config>) -> Channel {
    let subscriptions = config.into_iter().flat_map(|config| &config.subscriptions);
    let mut ports = subscriptions.filter(|one| one.key.as_str() == key);
    let port = ports.next().map(|one| &one.port);
    let free = u16::try_from(next).unwrap_or(u16::MAX);
    let number = port.map_or(free, |port| port.key.number());
    let declared = port.and_then(|port| {
        let types = &port.types;
        types.sends.clone().or_else(|| types.receives.clone())
    });
    let names = FlowNames {
        to: config.map(|config| config.name.clone()),
        destination_port: port.map(|port| port.name.clone()),
        ..FlowNames::default()
    };
    Channel {
        flow: Flow {
            on: ON.to_owned(),
            from: plain(key),
            source_port: number,
            to: "recorder".to_owned(),
            destination_port: number,
            priority: 0,
            is_sent: false,
        },
        facts: FlowFacts {
            declared,
            names: Arc::new(names),
        },
        sequences: [0; 8],
    }
}

impl Channel {
    fn write(
        &mut self,
        recorder: &mut Recorder,
        item: &Item,
        recorded: &mut Recorded,
    ) -> Result<(), RecordingError> {
        let last = &mut self.sequences[usize::from(item.priority & 7)];
        let sequence = item.sequence.unwrap_or(last.wrapping_add(1));
        let ahead = sequence.wrapping_sub(*last).cast_signed();
        if *last != 0 && ahead > 1 {
            recorded.lost += u64::from(ahead.unsigned_abs()) - 1;
        }
        *last = sequence;
        self.flow.priority = item.priority;
        let message = Message {
            flow: &self.flow,
            sequence,
            time_ns: item.time_ns,
            bytes: &item.bytes,
        };
        recorder.write(&message, &self.facts)?;
        recorded.messages = recorder.messages();
        Ok(())
    }
}
