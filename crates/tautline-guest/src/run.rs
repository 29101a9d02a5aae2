//! Running a guest: lives one after the other, as its restart policy says.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tautline_state::policy::{policy_of, set_policy};

use crate::config::{GuestConfig, RESTART_WINDOW, RelayPlace, Restart};
use crate::control::Service;
use crate::doorbell::Doorbells;
use crate::error::GuestError;
use crate::figures::{GuestStatus, PortCounters, State};
use crate::image::Image;
use crate::monitor::{self, End, Machine, Recipe};
use crate::relay::Relay;
use crate::window::Window;
use tautline_state::Event;

/// Time between looks at a guest. Lower: more wake-ups. Higher: its end, and its silence, are noticed later.
const LOOK_PERIOD: Duration = Duration::from_millis(10);
/// Wait before a guest is started again. Lower: one that cannot start keeps a CPU busy.
const RESTART_PAUSE: Duration = Duration::from_millis(50);

/// Something that happened to a guest, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Occurrence {
    /// A life has begun, on this monitor.
    Started(String),
    /// A setting could not be had.
    Limit(String),
    /// The guest has joined its window, this long after its start.
    Joined(Duration),
    /// A life has ended.
    Ended(String),
    /// The guest is started again.
    Restarting,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Whether the guest ended otherwise than by switching itself off or by request.
    pub has_failed: bool,
    /// End of its last life, in words.
    pub end: String,
    /// Starts after the first.
    pub restarts: u32,
}

/// Priorities under SCHED_FIFO in the guest's partition. The thread that passes messages on is above all others. These
/// (answers to `taut guest`, connections of the bus) are above the guest's processor: a guest that never halts
/// keeps waiting what is lower.
const RELAY_PRIORITY: i32 = OTHERS_PRIORITY + 1;
const OTHERS_PRIORITY: i32 = crate::monitor::PRIORITY + 1;

const STOP: u8 = 1;
const RESTART: u8 = 2;

/// State that the thread which answers others shares.
pub(crate) struct Shared {
    status: Mutex<GuestStatus>,
    began: Mutex<Instant>,
    counters: Vec<Arc<PortCounters>>,
    asked: AtomicU8,
    wake: Event,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, GuestStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn began(&self) -> MutexGuard<'_, Instant> {
        self.began.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guest at this moment.
    pub(crate) fn status(&self) -> GuestStatus {
        let mut status = self.lock().clone();
        status.age = self.began().elapsed();
        let ports = status.ports.iter().zip(&self.counters);
        status.ports = ports
            .map(|(port, counters)| counters.figures(port.port))
            .collect();
        status
    }

    /// Ends the guest for good.
    pub(crate) fn ask_stop(&self) {
        self.asked.store(STOP, Ordering::Relaxed);
        self.wake.ring();
    }

    /// Ends this life and begins another.
    pub(crate) fn ask_restart(&self) {
        // A request to stop stays one.
        let _ = self
            .asked
            .compare_exchange(0, RESTART, Ordering::Relaxed, Ordering::Relaxed);
        self.wake.ring();
    }
}

/// End of a life.
enum LifeEnd {
    Stopped,
    Asked,
    Silent(Duration),
    Machine(End),
}

impl LifeEnd {
    fn text(&self) -> String {
        match self {
            LifeEnd::Stopped => "it was stopped".to_owned(),
            LifeEnd::Asked => "it was restarted".to_owned(),
            LifeEnd::Silent(silence) => {
                format!("it gave no sign of life for {} ms", silence.as_millis())
            }
            LifeEnd::Machine(end) => end.text(),
        }
    }

    fn is_failure(&self) -> bool {
        match self {
            LifeEnd::Stopped | LifeEnd::Asked => false,
            LifeEnd::Silent(_) => true,
            LifeEnd::Machine(end) => !matches!(end, End::SwitchedOff | End::Reset),
        }
    }

    fn is_followed(&self, restart: Restart) -> bool {
        match (self, restart) {
            (LifeEnd::Stopped, _) => false,
            // A guest that asks for a reset wants to run again.
            (LifeEnd::Asked | LifeEnd::Machine(End::Reset), _) => true,
            (_, Restart::Never) => false,
            (_, Restart::Always) => true,
            (end, Restart::OnFailure) => end.is_failure(),
        }
    }
}

/// Runs a guest until it has ended for good, or until `stop` is set. Its console goes to `console`; `tell` hears what
/// happens. `monitor_command` is a program with its arguments, which calls [`tautline_kvm::serve`] with its standard
/// input: on KVM, its process is the guest's machine.
///
/// # Errors
/// [`GuestError`]: it could not be started, the first time or again.
pub fn run(
    config: &GuestConfig,
    console: Option<OwnedFd>,
    monitor_command: &[OsString],
    stop: &AtomicBool,
    mut tell: impl FnMut(Occurrence),
) -> Result<Summary, GuestError> {
    config.check()?;
    let image = Image::read(&config.image, config.ram_bytes)?;
    let mut urgency = None;
    if let Some(partition) = &config.partition {
        // Before the machine starts, whose monitor would be named in its stead.
        let partition = tautline_tasks::partition::find(partition)?;
        if config.relay == RelayPlace::Partition {
            partition.enter(std::process::id())?;
            urgency = Some(Urgency::rise());
        }
    }
    let own_limit = urgency.as_ref().and_then(|urgency| urgency.limit.clone());
    let counters: Vec<Arc<PortCounters>> = config.ports.iter().map(|_| Arc::default()).collect();
    let shared = Arc::new(Shared {
        status: Mutex::new(first_status(config, &image, &counters)),
        began: Mutex::new(Instant::now()),
        counters: counters.clone(),
        asked: AtomicU8::new(0),
        wake: Event::new().map_err(GuestError::system("making an event"))?,
    });
    // Before the node: of two guests of one name, the second is told so.
    let _service = Service::start(config.name.as_str(), &shared)?;
    let is_urgent = config.relay == RelayPlace::Partition;
    let mut relay = Relay::open(
        config,
        is_urgent.then_some(OTHERS_PRIORITY as u8),
        &counters,
    )?;
    let recipe = Recipe {
        config,
        image: &image,
        console: console.as_ref(),
        monitor_command,
        own_limit: own_limit.as_deref(),
    };
    let mut starts: Vec<Instant> = Vec::new();
    let mut restarts = 0;
    loop {
        starts.push(Instant::now());
        let end = live(&recipe, &mut relay, &shared, stop, &mut tell)?;
        let text = end.text();
        tell(Occurrence::Ended(text.clone()));
        starts.retain(|start| start.elapsed() < RESTART_WINDOW);
        let is_given_up = starts.len() > config.restarts_max as usize;
        let is_over = !end.is_followed(config.restart)
            || (is_given_up && !matches!(end, LifeEnd::Asked))
            || stop.load(Ordering::Relaxed);
        {
            let mut status = shared.lock();
            status.last_end = Some(text.clone());
            status.state = if is_over {
                State::Ended
            } else {
                State::Restarting
            };
        }
        if is_over {
            let has_failed = end.is_failure() || (is_given_up && end.is_followed(config.restart));
            return Ok(Summary {
                has_failed,
                end: text,
                restarts,
            });
        }
        tell(Occurrence::Restarting);
        restarts += 1;
        shared.lock().restarts = restarts;
        std::thread::sleep(RESTART_PAUSE);
    }
}

/// Real-time priority of the calling thread, and of the threads that it starts, until this is dropped.
struct Urgency {
    before: Option<(i32, i32)>,
    /// Reason why it could not be had.
    limit: Option<String>,
}

impl Urgency {
    fn rise() -> Urgency {
        let before = policy_of(0).ok();
        match set_policy(0, libc::SCHED_FIFO, OTHERS_PRIORITY) {
            Ok(()) => Urgency {
                before,
                limit: None,
            },
            Err(error) => Urgency {
                before: None,
                limit: Some(format!(
                    "messages are passed on without a real-time priority ({error}): raise the limit (ulimit -r 50), or grant CAP_SYS_NICE"
                )),
            },
        }
    }
}

impl Drop for Urgency {
    fn drop(&mut self) {
        if let Some((policy, priority)) = self.before {
            // A lower priority is always granted.
            let _ = set_policy(0, policy, priority);
        }
    }
}

fn first_status(
    config: &GuestConfig,
    image: &Image,
    counters: &[Arc<PortCounters>],
) -> GuestStatus {
    let network = match (&config.bus, &config.node) {
        (Some(bus), _) => format!("bus {bus}"),
        (None, Some(node)) => format!("node {}", node.display()),
        (None, None) => String::new(),
    };
    let ports = config.ports.iter().zip(counters);
    GuestStatus {
        name: config.name.to_string(),
        process: std::process::id(),
        image: config.image.display().to_string(),
        architecture: image.architecture.name().to_owned(),
        monitor: String::new(),
        network,
        partition: config.partition.clone(),
        state: State::Starting,
        age: Duration::ZERO,
        restarts: 0,
        last_end: None,
        silence: None,
        doorbells: 0,
        limits: Vec::new(),
        ports: ports
            .map(|(port, counters)| counters.figures(port.number))
            .collect(),
    }
}

/// A generation that no earlier life of a guest had.
fn generation() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
        | 1
}

/// One life, from start to end.
fn live(
    recipe: &Recipe<'_>,
    relay: &mut Relay,
    shared: &Shared,
    stop: &AtomicBool,
    tell: &mut impl FnMut(Occurrence),
) -> Result<LifeEnd, GuestError> {
    let config = recipe.config;
    let silence_max_ms = config.silence_max.map_or(0, |silence| {
        u32::try_from(silence.as_millis()).unwrap_or(u32::MAX)
    });
    let memory = GuestError::system("making the window's memory");
    let window = Window::new(relay.plan(), generation(), silence_max_ms).map_err(&memory)?;
    let doorbells = Doorbells::new().map_err(&memory)?;
    // A request of the life before has been served.
    let _ = shared
        .asked
        .compare_exchange(RESTART, 0, Ordering::Relaxed, Ordering::Relaxed);
    relay.begin(&window);
    let has_lived = shared.lock().restarts > 0;
    let started = monitor::start(recipe, &window, &doorbells);
    let mut machine = match started {
        // It was killed while it began: a life that failed, like any other.
        Err(GuestError::NotStarted { why, .. }) if has_lived => {
            return Ok(LifeEnd::Machine(End::Failed(why)));
        }
        Err(late @ GuestError::Late { .. }) if has_lived => {
            return Ok(LifeEnd::Machine(End::Failed(late.to_string())));
        }
        started => started?,
    };
    *shared.began() = Instant::now();
    let mut limits = machine.limits().to_vec();
    limits.extend(recipe.own_limit.map(str::to_owned));
    {
        let mut status = shared.lock();
        status.state = State::Starting;
        status.monitor = machine.name().to_owned();
        status.limits.clone_from(&limits);
        status.silence = None;
        status.doorbells = 0;
    }
    tell(Occurrence::Started(machine.name().to_owned()));
    for limit in limits {
        tell(Occurrence::Limit(limit));
    }
    let is_over = AtomicBool::new(false);
    let is_urgent = config.relay == RelayPlace::Partition;
    std::thread::scope(|scope| {
        let relaying = std::thread::Builder::new()
            .name("taut-guest".to_owned())
            .spawn_scoped(scope, || {
                if is_urgent {
                    // One that is not allowed is told as a limit already.
                    let _ = set_policy(0, libc::SCHED_FIFO, RELAY_PRIORITY);
                }
                relay.run(&window, &doorbells, &is_over)
            })
            .map_err(GuestError::system("starting a thread"))?;
        let end = {
            let _ends = EndsRelay(&is_over, &doorbells);
            let end = watch(
                config,
                machine.as_mut(),
                (&window, &doorbells),
                shared,
                (stop, &relaying),
                tell,
            );
            machine.kill();
            end
        };
        // A panic there has been reported already, and ended this life.
        if let Ok(relayed) = relaying.join() {
            relayed?;
        }
        Ok(end)
    })
}

/// Ends the relay's thread, also if the thread that watches panics.
struct EndsRelay<'l>(&'l AtomicBool, &'l Doorbells);

impl Drop for EndsRelay<'_> {
    fn drop(&mut self) {
        // Pairs with the load in `Relay::run`.
        self.0.store(true, Ordering::Release);
        self.1.to_linux.ring();
    }
}

/// Looks at a guest until its life has ended or is to end.
fn watch(
    config: &GuestConfig,
    machine: &mut dyn Machine,
    (window, doorbells): (&Window, &Doorbells),
    shared: &Shared,
    (stop, relaying): (&AtomicBool, &ScopedJoinHandle<'_, Result<(), GuestError>>),
    tell: &mut impl FnMut(Occurrence),
) -> LifeEnd {
    let began = Instant::now();
    let life = window.guests().life();
    let mut heartbeat = life.heartbeat.load(Ordering::Relaxed);
    let mut beaten_at = None;
    let mut has_joined = false;
    let period = match config.silence_max {
        Some(silence) => LOOK_PERIOD.min(silence / 4),
        None => LOOK_PERIOD,
    };
    loop {
        if let Some(end) = machine.ended() {
            return LifeEnd::Machine(end);
        }
        if relaying.is_finished() {
            return LifeEnd::Machine(End::Failed("its messages are not passed on".to_owned()));
        }
        match shared.asked.load(Ordering::Relaxed) {
            STOP => return LifeEnd::Stopped,
            RESTART => return LifeEnd::Asked,
            _ if stop.load(Ordering::Relaxed) => return LifeEnd::Stopped,
            _ => {}
        }
        if !has_joined && window.guests().generation() != 0 {
            has_joined = true;
            beaten_at = Some(Instant::now());
            shared.lock().state = State::Running;
            tell(Occurrence::Joined(began.elapsed()));
        }
        let now = life.heartbeat.load(Ordering::Relaxed);
        if now != heartbeat {
            heartbeat = now;
            beaten_at = Some(Instant::now());
        }
        let silence = beaten_at.map(|beaten| beaten.elapsed());
        {
            let mut status = shared.lock();
            status.silence = silence;
            status.doorbells = doorbells.rung();
        }
        if let (Some(silence), Some(longest)) = (silence, config.silence_max)
            && silence > longest
        {
            shared.lock().state = State::Silent;
            return LifeEnd::Silent(silence);
        }
        let limit = Timespec::try_from(period).ok();
        let mut wake = [PollFd::new(&shared.wake, PollFlags::IN)];
        // Interrupted: as if the time were over.
        let _ = poll(&mut wake, limit.as_ref());
        shared.wake.quiet();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_follows_what_the_policy_names() {
        let failed = || LifeEnd::Machine(End::Failed("killed".to_owned()));
        let silent = LifeEnd::Silent(Duration::from_millis(5));
        let off = LifeEnd::Machine(End::SwitchedOff);
        let reset = LifeEnd::Machine(End::Reset);
        for (end, never, on_failure, always) in [
            (&failed(), false, true, true),
            (&silent, false, true, true),
            (&LifeEnd::Machine(End::Faulted(None)), false, true, true),
            (&off, false, false, true),
            (&reset, true, true, true),
            (&LifeEnd::Asked, true, true, true),
            (&LifeEnd::Stopped, false, false, false),
        ] {
            let text = end.text();
            assert_eq!(end.is_followed(Restart::Never), never, "{text}");
            assert_eq!(end.is_followed(Restart::OnFailure), on_failure, "{text}");
            assert_eq!(end.is_followed(Restart::Always), always, "{text}");
        }
    }
}
