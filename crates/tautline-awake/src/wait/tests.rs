//! Waits on a simulated machine: its clock jumps while a thread sleeps, some wake-ups take long, and some messages are
//! late. Whatever is not the machine's is the code that runs on a real one.
#![allow(unsafe_code)] // Keeps the test on its CPU, which has a share of its own.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::*;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Times of which most lie between `from` and `to`, and some parts of a thousand up to `long`, in nanoseconds.
#[derive(Clone, Copy)]
struct Times {
    from: u64,
    to: u64,
    long: u64,
    long_per_mille: u64,
}

/// Messages of one sender, and the machine that waits for them.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    period: u64,
    /// Delay of a message after its due time.
    delay: Times,
    waking: Times,
    /// For how long another thread of the process looks on this CPU before each wait.
    other: u64,
}

struct Machine {
    random: Xoshiro256PlusPlus,
    case: Case,
    now: u64,
    arrival: u64,
}

impl Machine {
    fn time(&mut self, times: Times) -> u64 {
        let mut below = |bound: u64| self.random.next_u64() % bound.max(1);
        match below(1_000) < times.long_per_mille {
            true => times.to + below(times.long - times.to),
            false => times.from + below(times.to - times.from),
        }
    }

    /// Sleeps until then, or until the message is there.
    fn sleep(&mut self, until: u64) {
        self.now = self.arrival.min(until).max(self.now) + self.time(self.case.waking);
    }
}

struct Waiting<'a> {
    machine: &'a mut Machine,
    flow: &'a mut Flow,
}

impl Awaited for Waiting<'_> {
    type Found = ();
    type Stopped = ();

    fn now(&self) -> Instant {
        Instant::from_nanos(self.machine.now)
    }

    fn window(&mut self, now: Instant) -> Option<Window> {
        earliest(&mut [Some(self.flow)], now).map(|(_, window)| window)
    }

    fn sleep(&mut self, until: Instant, now: Instant) -> Result<Option<()>, ()> {
        if until > now {
            self.machine.sleep(until.as_nanos());
        }
        Ok((self.machine.arrival <= self.machine.now).then_some(()))
    }

    fn look(&mut self, looker: &Looker, _now: Instant) -> Result<Option<()>, ()> {
        let machine = &mut *self.machine;
        let found = machine.arrival.max(machine.now) + US;
        let is_found = found <= looker.until().as_nanos();
        machine.now = match is_found {
            true => found,
            false => looker.until().as_nanos().max(machine.now),
        };
        Ok(is_found.then_some(()))
    }

    fn looked(&mut self, began: Instant, ended: Instant, is_found: bool) {
        self.flow.looked(began, ended, is_found);
    }

    fn arrived(&mut self, seen: Seen, at: Instant) {
        self.flow.arrived(at, seen);
    }
}

/// Lateness of the reader after each message.
struct Outcome {
    late_ns: Vec<u64>,
    awake_per_cent: f64,
    counts: crate::flow::Counts,
}

impl Outcome {
    fn late_us(&self, per_mille: usize) -> u64 {
        self.late_ns[(self.late_ns.len() - 1) * per_mille / 1_000] / US
    }
}

/// Has a thread of its own wait for so many messages.
fn run(case: Case, count: u64) -> Outcome {
    run_seed(case, count, 5)
}

fn run_seed(case: Case, count: u64, seed: u64) -> Outcome {
    std::thread::spawn(move || run_here(case, count, seed))
        .join()
        .unwrap()
}

/// Where the next machine's clock begins: the account of the CPU goes on.
static BEGIN: AtomicU64 = AtomicU64::new(0);

fn run_here(case: Case, count: u64, seed: u64) -> Outcome {
    stay_on_cpu();
    let begin = BEGIN.load(Relaxed) + 1_000 * MS;
    let mut machine = Machine {
        random: Xoshiro256PlusPlus::seed_from_u64(seed),
        case,
        now: begin,
        arrival: begin,
    };
    let mut flow = Flow::new();
    let mut late_ns = Vec::new();
    for k in 1..=count {
        machine.arrival =
            (begin + k * case.period + machine.time(case.delay)).max(machine.arrival + 1);
        let began = Instant::from_nanos(machine.now);
        look_as_another_thread(began, Duration::from_nanos(case.other));
        if machine.arrival <= machine.now {
            flow.returned(began, began + Duration::from_nanos(US));
        } else {
            let mut waiting = Waiting {
                machine: &mut machine,
                flow: &mut flow,
            };
            let ended = until_found(&mut waiting, began, Instant::FAR_FUTURE).unwrap();
            if let Ended::Unknown(_) = ended {
                machine.sleep(u64::MAX);
                flow.returned(began, Instant::from_nanos(machine.now));
            }
        }
        if k > count / 5 {
            late_ns.push(machine.now.saturating_sub(machine.arrival));
        }
        machine.now += 5 * US;
    }
    late_ns.sort_unstable();
    BEGIN.store(machine.now, Relaxed);
    let counts = flow.counts();
    let awake_per_cent = counts.looked_ns as f64 * 100.0 / (machine.now - begin) as f64;
    let outcome = Outcome {
        late_ns,
        awake_per_cent,
        counts,
    };
    println!(
        "{:24} seed {seed}: late {:3} {:3} {:3} us (p50, p99, p99.9), {awake_per_cent:4.1} % awake, {counts:?}",
        case.name,
        outcome.late_us(500),
        outcome.late_us(990),
        outcome.late_us(999),
    );
    outcome
}

/// Spends of the CPU's account alone, as far as it lasts.
fn look_as_another_thread(now: Instant, time: Duration) {
    if let Some(looker) = Looker::begin(now, now + time) {
        let end = looker.until();
        looker.end(end);
    }
}

fn stay_on_cpu() {
    // SAFETY: all bytes zero is the empty set; the set is the caller's.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut cpus);
        libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus);
    }
}

const fn times(from: u64, to: u64, long: u64, long_per_mille: u64) -> Times {
    Times {
        from: from * US,
        to: to * US,
        long: long * US,
        long_per_mille,
    }
}

/// A sender whose timer is on time but for some.
const SENDER: Times = times(0, 8, 100, 10);
/// Wake-ups of an idle machine, of one whose CPUs are busy, and of one alongside compilers.
const IDLE: Times = times(20, 45, 120, 15);
const BUSY: Times = times(4, 15, 100, 10);
const COMPILERS: Times = times(20, 60, 1_500, 60);

/// Waits for 20,000 messages: the lateness in microseconds at p99 and p99.9, and the parts of a hundred that were found
/// awake, are within these bounds.
#[track_caller]
fn assert_met(case: Case, [p99, p999]: [u64; 2], awake_min: u64) {
    let outcome = run(case, 20_000);
    assert_eq!(outcome.late_us(500), 1, "{}", case.name);
    assert!(outcome.late_us(990) <= p99, "{}", case.name);
    assert!(outcome.late_us(999) <= p999, "{}", case.name);
    assert!(outcome.counts.awake >= awake_min * 200, "{}", case.name);
    assert!(outcome.awake_per_cent <= 10.1, "{}", case.name);
}

#[test]
fn the_longest_wake_ups_are_learned() {
    let case = |name, period, waking| Case {
        name,
        period,
        delay: SENDER,
        waking,
        other: 0,
    };
    assert_met(case("250 Hz, idle", 4 * MS, IDLE), [2, 45], 98);
    assert_met(case("250 Hz, busy", 4 * MS, BUSY), [2, 15], 98);
    assert_met(case("1 kHz, idle", MS, IDLE), [2, 45], 98);
    assert_met(case("1 kHz, busy", MS, BUSY), [2, 15], 98);
}

#[test]
fn a_share_that_does_not_suffice_is_spent_on_the_arrival() {
    let case = |name, period, waking| Case {
        name,
        period,
        delay: SENDER,
        waking,
        other: 0,
    };
    assert_met(case("2 kHz, idle", MS / 2, IDLE), [20, 45], 97);
    assert_met(case("2 kHz, busy", MS / 2, BUSY), [10, 40], 97);
    assert_met(case("4 kHz, idle", MS / 4, IDLE), [32, 60], 95);
    assert_met(case("4 kHz, busy", MS / 4, BUSY), [10, 65], 97);
    // Every seventeenth wake-up takes up to six periods.
    let case = case("4 kHz, compilers", MS / 4, COMPILERS);
    assert_met(case, [1_200, 1_450], 70);
}

/// A loop that has just begun, whose messages jitter by more than a wake-up takes.
#[test]
fn a_loop_at_250_hz_is_soon_awake() {
    let case = Case {
        name: "250 Hz, from the start",
        period: 4 * MS,
        delay: COMPILERS,
        waking: BUSY,
        other: 0,
    };
    let awake = (0..40).map(|seed| run_seed(case, 1_000, seed).counts.awake);
    let awake: Vec<u64> = awake.collect();
    assert!(awake.iter().all(|count| *count >= 600), "{awake:?}");
    assert!(awake.iter().sum::<u64>() >= 40 * 860, "{awake:?}");
}

/// A client whose thread for the network and main thread share a CPU. What the main thread's sleeps leave of the share
/// in one period does not last until most messages.
#[test]
fn what_other_threads_leave_is_saved_for_whole_looks() {
    let case = Case {
        name: "1 kHz, beside a sleeper",
        period: MS,
        delay: times(0, 150, 200, 10),
        waking: BUSY,
        other: 80 * US,
    };
    let counts = run(case, 20_000).counts;
    assert!(counts.awake >= 1_500, "{counts:?}");
    assert!(counts.in_vain <= 3_000, "{counts:?}");
}
