//! Publishing to many subscribers: the time of sending one sample, which all of them then take. Subscribers either
//! spin, all in one thread, or sleep, each in a thread of its own with a listener. Each reads the whole sample once, by
//! copying it: without that, the sample would stay in the publisher's cache, as no sample does that is looked at.
#![allow(unsafe_code)] // a lent sample is declared initialised without a write to all of it

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;

use crate::sides::{Failure, pin};

/// How long all subscribers may take for a sample.
const TIME_LIMIT: Duration = Duration::from_secs(2);
/// How long a subscriber sleeps before it looks whether the run has ended.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// More nodes than one service has here: one for each thread.
const NODES_MAX: usize = 80;

/// Request for one slice.
#[derive(Clone, Copy)]
pub(crate) struct Slice {
    /// Whether samples are filled in place, and not copied from elsewhere.
    pub(crate) lent: bool,
    /// Whether subscribers sleep, and not spin.
    pub(crate) sleeping: bool,
    pub(crate) bytes: usize,
    pub(crate) count: u64,
    pub(crate) subscribers: usize,
    /// Pause after each sample, for subscribers that sleep.
    pub(crate) period: Duration,
}

/// State that the publishing thread shares with those of subscribers.
#[derive(Default)]
struct Shared {
    ready: AtomicU64,
    /// Whether subscribers that spin are to look.
    active: AtomicBool,
    ended: AtomicBool,
    /// Samples taken, of all subscribers together.
    taken: AtomicU64,
}

/// All publishers that were asked for so far.
#[derive(Default)]
pub(crate) struct Publishing {
    server_cpu: Option<usize>,
    cells: HashMap<(bool, usize, usize), Cell>,
}

impl Publishing {
    pub(crate) fn new(server_cpu: Option<usize>) -> Publishing {
        Publishing {
            server_cpu,
            ..Publishing::default()
        }
    }

    /// Times in nanoseconds of publishing.
    pub(crate) fn publish(&mut self, slice: Slice) -> Result<Vec<u64>, Failure> {
        let key = (slice.sleeping, slice.bytes, slice.subscribers);
        let cell = match self.cells.entry(key) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => place.insert(Cell::open(slice, self.server_cpu)?),
        };
        cell.slice(slice)
    }
}

/// One publisher and its subscribers.
struct Cell {
    publisher: Publisher<ipc::Service, [u8], ()>,
    notifier: Notifier<ipc::Service>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    published: u64,
    value: Vec<u8>,
}

type Services = (
    iceoryx2::service::port_factory::publish_subscribe::PortFactory<ipc::Service, [u8], ()>,
    iceoryx2::service::port_factory::event::PortFactory<ipc::Service>,
);

/// The services of a cell, with a node of the calling thread's own.
fn services(slice: Slice) -> Result<Services, Failure> {
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let Slice {
        sleeping,
        bytes,
        subscribers,
        ..
    } = slice;
    let process = std::process::id();
    let name = format!("tautline-bench/{process}/publish/{sleeping}/{bytes}/{subscribers}");
    let samples = node
        .service_builder(&ServiceName::new(&name)?)
        .publish_subscribe::<[u8]>()
        .max_publishers(1)
        .max_subscribers(subscribers)
        .max_nodes(NODES_MAX)
        .history_size(0)
        .subscriber_max_buffer_size(1)
        .enable_safe_overflow(true)
        .open_or_create()?;
    let events = node
        .service_builder(&ServiceName::new(&name)?)
        .event()
        .max_notifiers(1)
        .max_listeners(subscribers)
        .max_nodes(NODES_MAX)
        .open_or_create()?;
    Ok((samples, events))
}

impl Cell {
    fn open(slice: Slice, server_cpu: Option<usize>) -> Result<Cell, Failure> {
        let (samples, events) = services(slice)?;
        let publisher = samples
            .publisher_builder()
            .initial_max_slice_len(slice.bytes)
            .create()?;
        let notifier = events.notifier_builder().create()?;
        let shared = Arc::new(Shared::default());
        let begin = |work: fn(Slice, &Shared) -> Result<(), Failure>, cpu: Option<usize>| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                if let Err(error) = pin(cpu).and_then(|()| work(slice, &shared)) {
                    eprintln!("a subscriber: {error}");
                    shared.ended.store(true, Ordering::Release);
                }
            })
        };
        let threads: Vec<_> = match slice.sleeping {
            false => vec![begin(spin, server_cpu)],
            true => (0..slice.subscribers).map(|_| begin(sleep, None)).collect(),
        };
        let cell = Cell {
            publisher,
            notifier,
            shared,
            published: 0,
            threads,
            value: vec![7; slice.bytes],
        };
        cell.wait(&cell.shared.ready, slice.subscribers as u64)?;
        Ok(cell)
    }

    fn slice(&mut self, slice: Slice) -> Result<Vec<u64>, Failure> {
        self.shared.active.store(true, Ordering::Release);
        self.threads
            .iter()
            .for_each(|thread| thread.thread().unpark());
        // The first wakes those that spin.
        self.publish(slice)?;
        let times = (0..slice.count).map(|_| self.publish(slice));
        let times = times.collect();
        self.shared.active.store(false, Ordering::Release);
        times
    }

    fn publish(&mut self, slice: Slice) -> Result<u64, Failure> {
        if slice.sleeping {
            thread::sleep(slice.period);
        }
        self.published += 1;
        let tag = self.published.to_ne_bytes();
        self.value[..8].copy_from_slice(&tag);
        let start = Instant::now();
        let sample = self.publisher.loan_slice_uninit(slice.bytes)?;
        let sent = if slice.lent {
            // SAFETY: the bytes lie in shared memory, which the kernel hands out filled with zeros, and any byte is a
            // valid u8. To write them all would measure the copy that lending is there to avoid.
            let mut sample = unsafe { sample.assume_init() };
            sample.payload_mut()[..8].copy_from_slice(&tag);
            sample.send()?
        } else {
            sample.write_from_slice(&self.value).send()?
        };
        if slice.sleeping {
            self.notifier.notify()?;
        }
        let took = start.elapsed();
        if sent != slice.subscribers {
            return Err(
                format!("{sent} subscribers got a sample for {}", slice.subscribers).into(),
            );
        }
        self.wait(
            &self.shared.taken,
            self.published * slice.subscribers as u64,
        )?;
        Ok(u64::try_from(took.as_nanos())?)
    }

    /// Spins until a count is reached.
    fn wait(&self, count: &AtomicU64, until: u64) -> Result<(), Failure> {
        let start = Instant::now();
        while count.load(Ordering::Acquire) < until {
            if self.shared.ended.load(Ordering::Acquire) || start.elapsed() > TIME_LIMIT {
                return Err("a subscriber got nothing".into());
            }
            hint::spin_loop();
        }
        Ok(())
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ended = thread.join();
        }
    }
}

/// All subscribers of a cell, in one thread that spins while it is to.
fn spin(slice: Slice, shared: &Shared) -> Result<(), Failure> {
    let (samples, _) = services(slice)?;
    let subscribers = (0..slice.subscribers).map(|_| samples.subscriber_builder().create());
    let subscribers = subscribers.collect::<Result<Vec<_>, _>>()?;
    shared
        .ready
        .store(slice.subscribers as u64, Ordering::Release);
    let mut buffer = vec![0; slice.bytes];
    while !shared.ended.load(Ordering::Acquire) {
        if !shared.active.load(Ordering::Acquire) {
            thread::park_timeout(LOOK_PERIOD);
            continue;
        }
        for subscriber in &subscribers {
            take(subscriber, shared, &mut buffer)?;
        }
    }
    Ok(())
}

/// One subscriber, which sleeps.
fn sleep(slice: Slice, shared: &Shared) -> Result<(), Failure> {
    let (samples, events) = services(slice)?;
    let subscriber = samples.subscriber_builder().create()?;
    let listener = events.listener_builder().create()?;
    let mut buffer = vec![0; slice.bytes];
    shared.ready.fetch_add(1, Ordering::Release);
    while !shared.ended.load(Ordering::Acquire) {
        listener.timed_wait(|_| (), LOOK_PERIOD)?;
        take(&subscriber, shared, &mut buffer)?;
    }
    Ok(())
}

fn take(
    subscriber: &Subscriber<ipc::Service, [u8], ()>,
    shared: &Shared,
    buffer: &mut [u8],
) -> Result<(), Failure> {
    while let Some(sample) = subscriber.receive()? {
        buffer.copy_from_slice(sample.payload());
        drop(sample);
        shared.taken.fetch_add(1, Ordering::Release);
    }
    Ok(())
}
