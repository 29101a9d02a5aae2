//! The two threads and what they say to each other through iceoryx2.
//!
//! Each size has services of its own, so that a pool holds samples of that size and no larger. The sample that is
//! sent next is lent ahead, while the reply is on its way, as iceoryx2's own benchmark does it. Payloads are not
//! touched but for their first eight bytes.
#![allow(unsafe_code)] // a lent sample is declared initialised without a write to all of it

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::error::Error;
use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::sample_mut::SampleMut;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Why something could not be measured.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// Samples that may wait in a subscriber while throughput is measured. Lower makes the publisher wait for each turn
/// of the subscriber; higher takes more samples from the pool in turn than the second-level cache holds.
const BUFFERED_SAMPLES: usize = 256;

/// How long an answer may take.
const TIME_LIMIT: Duration = Duration::from_secs(2);

/// Empty looks between two looks at the clock. Lower slows the spin, higher only delays giving up.
const SPINS_PER_LOOK: u32 = 4096;

/// Order to the answering thread.
#[derive(Clone, Copy)]
struct Task {
    work: Work,
    bytes: usize,
    count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Work {
    Echo,
    Drain,
    Sleep,
}

/// State that both threads share, beside iceoryx2's own.
struct Shared {
    /// Zero of the times in paced messages.
    epoch: Instant,
    /// Tasks that the answering thread is ready to work on. Released by it, acquired by the asking thread.
    ready: AtomicU64,
    /// Messages taken of the present task. Released by the answering thread, acquired by the asking thread.
    taken: AtomicU64,
    /// How long the last paced message took; published by `taken`.
    latency_ns: AtomicU64,
    /// Set when the answering thread ends.
    gone: AtomicBool,
}

/// The asking thread's side.
pub(crate) struct Asker {
    channels: Channels,
    tasks: Option<Sender<Task>>,
    answerer: Option<JoinHandle<Result<(), Failure>>>,
    shared: Arc<Shared>,
    tasks_sent: u64,
}

impl Asker {
    /// Pins this thread and starts the other.
    pub(crate) fn new(
        client_cpu: Option<usize>,
        server_cpu: Option<usize>,
    ) -> Result<Asker, Failure> {
        let shared = Arc::new(Shared {
            epoch: Instant::now(),
            ready: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            latency_ns: AtomicU64::new(0),
            gone: AtomicBool::new(false),
        });
        let (tasks, receiver) = mpsc::channel();
        let answerer = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let result = pin(server_cpu).and_then(|()| Answerer::new(&shared)?.run(&receiver));
                shared.gone.store(true, Ordering::Release);
                result
            }
        });
        pin(client_cpu)?;
        Ok(Asker {
            channels: Channels::new(Side::Asks)?,
            tasks: Some(tasks),
            answerer: Some(answerer),
            shared,
            tasks_sent: 0,
        })
    }

    /// Times of round trips in nanoseconds, both sides spinning.
    pub(crate) fn round_trips(&mut self, bytes: usize, count: u64) -> Result<Vec<u64>, Failure> {
        let (channel, shared) = self.begin(Work::Echo, bytes, count)?;
        let mut times = Vec::with_capacity(usize::try_from(count)?);
        let mut sample = channel.lend(bytes)?;
        for sequence in 0..count {
            let start = Instant::now();
            channel.send(sample, sequence)?;
            sample = channel.lend(bytes)?;
            let answer = channel.await_sequence(shared)?;
            times.push(nanoseconds(start.elapsed()));
            if answer != sequence {
                return Err(format!("message {answer} came back in place of {sequence}").into());
            }
        }
        Ok(times)
    }

    /// Nanoseconds until `count` messages have arrived, the subscriber spinning.
    pub(crate) fn throughput(&mut self, bytes: usize, count: u64) -> Result<u64, Failure> {
        let (channel, shared) = self.begin(Work::Drain, bytes, count)?;
        // A subscriber takes its place when it takes its first message: until then a full buffer counts as nobody's.
        channel.send(channel.lend(bytes)?, 0)?;
        await_taken(shared, 1)?;
        let start = Instant::now();
        for sequence in 1..=count {
            channel.send(channel.lend(bytes)?, sequence)?;
        }
        await_taken(shared, count + 1)?;
        Ok(nanoseconds(start.elapsed()))
    }

    /// Times from sending to the waking of a listener that sleeps, one message each `period`.
    pub(crate) fn paced(
        &mut self,
        bytes: usize,
        count: u64,
        period: Duration,
    ) -> Result<Vec<u64>, Failure> {
        let (channel, shared) = self.begin(Work::Sleep, bytes, count)?;
        let mut times = Vec::with_capacity(usize::try_from(count)?);
        let mut next = Instant::now();
        for sequence in 1..=count {
            next += period;
            thread::sleep(next.saturating_duration_since(Instant::now()));
            let sample = channel.lend(bytes)?;
            channel.send(sample, nanoseconds(shared.epoch.elapsed()))?;
            channel.notifier.notify()?;
            // Sleeping: a thread that spins here would keep this CPU awake, which no sender at this rate does.
            thread::sleep(period / 2);
            await_taken(shared, sequence)?;
            times.push(shared.latency_ns.load(Ordering::Relaxed));
        }
        Ok(times)
    }

    /// Opens what a task needs, on both sides, and hands the task over.
    fn begin(
        &mut self,
        work: Work,
        bytes: usize,
        count: u64,
    ) -> Result<(&Channel, &Shared), Failure> {
        let task = Task { work, bytes, count };
        self.channels.open(task)?;
        self.shared.taken.store(0, Ordering::Relaxed);
        self.tasks_sent += 1;
        let sent = self
            .tasks
            .as_ref()
            .is_some_and(|tasks| tasks.send(task).is_ok());
        let ready = || (self.shared.ready.load(Ordering::Acquire) == self.tasks_sent).then_some(());
        if sent && spin(&self.shared, ready).is_ok() {
            return Ok((self.channels.open(task)?, &self.shared));
        }
        Err(self
            .end()
            .err()
            .unwrap_or_else(|| "the answering thread does not answer".into()))
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.tasks = None;
        let end = self.answerer.take().map(JoinHandle::join);
        end.map_or(Ok(()), |end| {
            end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("the answering thread: {error}");
        }
    }
}

/// The answering thread's side.
struct Answerer<'a> {
    channels: Channels,
    shared: &'a Shared,
}

impl<'a> Answerer<'a> {
    fn new(shared: &'a Shared) -> Result<Answerer<'a>, Failure> {
        Ok(Answerer {
            channels: Channels::new(Side::Answers)?,
            shared,
        })
    }

    fn run(mut self, tasks: &Receiver<Task>) -> Result<(), Failure> {
        for task in tasks {
            let channel = self.channels.open(task)?;
            self.shared.ready.fetch_add(1, Ordering::Release);
            match task.work {
                Work::Echo => echo(self.shared, channel, task)?,
                Work::Drain => drain(self.shared, channel, task.count)?,
                Work::Sleep => sleep(self.shared, channel, task.count)?,
            }
        }
        Ok(())
    }
}

fn echo(shared: &Shared, channel: &Channel, task: Task) -> Result<(), Failure> {
    let mut sample = channel.lend(task.bytes)?;
    for _ in 0..task.count {
        let sequence = channel.await_sequence(shared)?;
        channel.send(sample, sequence)?;
        sample = channel.lend(task.bytes)?;
    }
    Ok(())
}

fn drain(shared: &Shared, channel: &Channel, count: u64) -> Result<(), Failure> {
    for expected in 0..=count {
        let sequence = channel.await_sequence(shared)?;
        if sequence != expected {
            return Err(format!("message {sequence} came in place of {expected}").into());
        }
        if expected == 0 || expected == count {
            shared.taken.store(expected + 1, Ordering::Release);
        }
    }
    Ok(())
}

fn sleep(shared: &Shared, channel: &Channel, count: u64) -> Result<(), Failure> {
    let mut taken = 0;
    while taken < count {
        if channel.listener.timed_wait(|_| (), TIME_LIMIT)? == 0 {
            return Err("no notification came in time".into());
        }
        while let Some(sample) = channel.subscriber.receive()? {
            let now = nanoseconds(shared.epoch.elapsed());
            shared
                .latency_ns
                .store(now.saturating_sub(tag(&sample)), Ordering::Relaxed);
            taken += 1;
            shared.taken.store(taken, Ordering::Release);
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Side {
    Asks,
    Answers,
}

/// One side's ports, made when they are first needed.
struct Channels {
    node: Node<ipc::Service>,
    side: Side,
    opened: HashMap<(Work, usize), Channel>,
}

impl Channels {
    fn new(side: Side) -> Result<Channels, Failure> {
        Ok(Channels {
            node: NodeBuilder::new().create()?,
            side,
            opened: HashMap::new(),
        })
    }

    fn open(&mut self, task: Task) -> Result<&Channel, Failure> {
        Ok(match self.opened.entry((task.work, task.bytes)) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => place.insert(Channel::open(&self.node, task, self.side)?),
        })
    }
}

/// One side's ports for one kind of work and one size.
struct Channel {
    publisher: Publisher<ipc::Service, [u8], ()>,
    subscriber: Subscriber<ipc::Service, [u8], ()>,
    notifier: Notifier<ipc::Service>,
    listener: Listener<ipc::Service>,
}

impl Channel {
    fn open(node: &Node<ipc::Service>, task: Task, side: Side) -> Result<Channel, Failure> {
        let Task { work, bytes, .. } = task;
        let place = format!("tautline-bench/{}/{work:?}/{bytes}", std::process::id());
        let name = |direction: &str| ServiceName::new(&format!("{place}/{direction}"));
        // One message at a time needs no more than one place, and least memory passes through the caches.
        let buffered = if work == Work::Drain {
            BUFFERED_SAMPLES
        } else {
            1
        };
        let service = |direction: &str| -> Result<_, Failure> {
            Ok(node
                .service_builder(&name(direction)?)
                .publish_subscribe::<[u8]>()
                .max_publishers(1)
                .max_subscribers(1)
                .history_size(0)
                .subscriber_max_buffer_size(buffered)
                .enable_safe_overflow(work != Work::Drain)
                .open_or_create()?)
        };
        let (outward, inward) = match side {
            Side::Asks => ("there", "back"),
            Side::Answers => ("back", "there"),
        };
        let events = |direction: &str| -> Result<_, Failure> {
            Ok(node
                .service_builder(&name(direction)?)
                .event()
                .open_or_create()?)
        };
        Ok(Channel {
            publisher: service(outward)?
                .publisher_builder()
                .initial_max_slice_len(bytes)
                .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
                .create()?,
            subscriber: service(inward)?.subscriber_builder().create()?,
            notifier: events(outward)?.notifier_builder().create()?,
            listener: events(inward)?.listener_builder().create()?,
        })
    }

    fn lend(&self, bytes: usize) -> Result<SampleMut<ipc::Service, [u8], ()>, Failure> {
        let sample = self.publisher.loan_slice_uninit(bytes)?;
        // SAFETY: the bytes lie in shared memory, which the kernel hands out filled with zeros, and any byte is a
        // valid u8. To write them all would measure the copy that lending is there to avoid.
        Ok(unsafe { sample.assume_init() })
    }

    fn send(&self, mut sample: SampleMut<ipc::Service, [u8], ()>, tag: u64) -> Result<(), Failure> {
        let bytes = sample.payload().len().min(8);
        sample.payload_mut()[..bytes].copy_from_slice(&tag.to_le_bytes()[..bytes]);
        match sample.send()? {
            1 => Ok(()),
            receivers => {
                Err(format!("{receivers} subscribers got a message that was for one").into())
            }
        }
    }

    fn await_sequence(&self, shared: &Shared) -> Result<u64, Failure> {
        let mut looks = 0_u32;
        let mut deadline = None;
        loop {
            if let Some(sample) = self.subscriber.receive()? {
                return Ok(tag(&sample));
            }
            hint::spin_loop();
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(SPINS_PER_LOOK) {
                give_up(shared, &mut deadline)?;
            }
        }
    }
}

fn tag(payload: &[u8]) -> u64 {
    let mut tag = [0; 8];
    let bytes = payload.len().min(8);
    tag[..bytes].copy_from_slice(&payload[..bytes]);
    u64::from_le_bytes(tag)
}

fn await_taken(shared: &Shared, count: u64) -> Result<(), Failure> {
    spin(shared, || {
        (shared.taken.load(Ordering::Acquire) == count).then_some(())
    })
}

/// Looks until something is found, at most [`TIME_LIMIT`].
fn spin<T>(shared: &Shared, mut look: impl FnMut() -> Option<T>) -> Result<T, Failure> {
    let mut deadline = None;
    loop {
        for _ in 0..SPINS_PER_LOOK {
            if let Some(found) = look() {
                return Ok(found);
            }
            hint::spin_loop();
        }
        give_up(shared, &mut deadline)?;
    }
}

fn give_up(shared: &Shared, deadline: &mut Option<Instant>) -> Result<(), Failure> {
    if shared.gone.load(Ordering::Acquire) {
        return Err("the other thread has ended".into());
    }
    let now = Instant::now();
    if now > *deadline.get_or_insert(now + TIME_LIMIT) {
        return Err(format!("nothing came for {} s", TIME_LIMIT.as_secs()).into());
    }
    Ok(())
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Keeps the calling thread on a CPU, if one is given.
pub(crate) fn pin(cpu: Option<usize>) -> Result<(), Failure> {
    if let Some(cpu) = cpu {
        let mut set = CpuSet::new();
        set.set(cpu)?;
        sched_setaffinity(Pid::from_raw(0), &set)?;
    }
    Ok(())
}
