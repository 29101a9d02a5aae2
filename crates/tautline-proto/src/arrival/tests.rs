//! The predictor in a simulated machine: a thread that waits, wakes late, and looks where it is told to.
extern crate std;

use std::vec::Vec;
use std::{format, println};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::share::Share;
use super::*;

const US: i64 = 1_000;
const MS: i64 = 1_000_000;

/// Arrivals by how they were found.
#[derive(Debug, Default)]
struct Outcome {
    /// Found while looking.
    looked: u64,
    /// The kernel woke the thread.
    slept: u64,
    /// Time spent looking.
    looking_ns: i64,
    span_ns: i64,
}

impl Outcome {
    fn looked_per_cent(&self) -> u64 {
        self.looked * 100 / (self.looked + self.slept).max(1)
    }

    fn awake_per_cent(&self) -> f64 {
        self.looking_ns as f64 * 100.0 / self.span_ns as f64
    }
}

/// A machine: how long wake-ups take, and by how much a look delays its own message.
struct Machine {
    random: Xoshiro256PlusPlus,
    delayed_by_looking_ns: i64,
}

impl Machine {
    fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self {
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            delayed_by_looking_ns: 0,
        }
    }

    fn waking_ns(&mut self) -> i64 {
        25 * US + self.below(20 * US)
    }

    fn below(&mut self, bound: i64) -> i64 {
        (self.random.next_u64() % bound as u64) as i64
    }

    /// A thread that reads each arrival, and sends after it where `sends`.
    fn run(&mut self, predictor: &mut Predictor, arrivals: &[i64]) -> Outcome {
        let mut share = Share::new(10);
        let mut outcome = Outcome {
            span_ns: arrivals.last().unwrap() - arrivals[0],
            ..Outcome::default()
        };
        let mut now = arrivals[0];
        for arrival in arrivals {
            if *arrival <= now {
                predictor.arrived(instant(now), Seen::Before);
                now += US;
                continue;
            }
            now = self.wait(predictor, now, *arrival, &mut share, &mut outcome);
            now += 5 * US;
        }
        outcome
    }

    /// Sleeps and looks until the arrival is there; when that is.
    fn wait(
        &mut self,
        predictor: &mut Predictor,
        mut now: i64,
        arrival: i64,
        share: &mut Share,
        outcome: &mut Outcome,
    ) -> i64 {
        let mut arrival = arrival;
        loop {
            let expected = predictor.expected(instant(now), duration(50 * US));
            let is_paid = |window: &Window| {
                let mut later = *share;
                later.available(window.from) >= duration(3 * US)
            };
            let window = expected
                .filter(is_paid)
                .and_then(|_| predictor.window(instant(now), duration(50 * US)));
            let from = window.map_or(i64::MAX, |window| nanos(window.from));
            if arrival < from {
                let awake_at = arrival.max(now) + self.waking_ns();
                outcome.slept += 1;
                predictor.arrived(instant(awake_at), Seen::Asleep);
                return awake_at;
            }
            let begun = from + if from > now { self.waking_ns() } else { 0 };
            let longest = share.available(instant(begun));
            let until = window.map_or(i64::MAX, |window| nanos(window.until));
            let until = until.min(nanos(instant(begun) + longest));
            arrival += self.delayed_by_looking_ns;
            let found = arrival.max(begun);
            let end = found.min(until).max(begun);
            outcome.looking_ns += end - begun;
            share.spend(duration(end - begun));
            if found <= end {
                outcome.looked += 1;
                predictor.arrived(instant(found), Seen::Looking);
                return found;
            }
            predictor.looked_in_vain(instant(end));
            now = end + US;
        }
    }

    fn periodic(&mut self, start: i64, period: i64, jitter: i64, count: i64) -> Vec<i64> {
        let arrivals = (0..count).map(|k| start + k * period + self.below(jitter.max(1)));
        arrivals.collect()
    }
}

fn merged(mut flows: Vec<i64>, other: &[i64]) -> Vec<i64> {
    flows.extend_from_slice(other);
    flows.sort_unstable();
    flows
}

/// Runs a pattern: at least so many per cent are found by looking, with at most this much of the time.
fn assert_found(name: &str, machine: &mut Machine, arrivals: &[i64], looked_min: u64) -> Predictor {
    let mut predictor = Predictor::new();
    let outcome = machine.run(&mut predictor, arrivals);
    println!(
        "{name}: {outcome:?} {}% {:.1}%",
        outcome.looked_per_cent(),
        outcome.awake_per_cent()
    );
    assert!(
        outcome.looked_per_cent() >= looked_min,
        "{name}: {outcome:?}"
    );
    assert!(outcome.awake_per_cent() <= 10.5, "{name}: {outcome:?}");
    predictor
}

#[test]
fn a_steady_sender_is_awaited() {
    for (period, jitter, looked_min) in [
        (MS, 0, 98),
        (MS, 5 * US, 98),
        (MS, 100 * US, 60),
        (4 * MS, 5 * US, 97),
        (4 * MS, 100 * US, 90),
        (MS / 2, 5 * US, 70),
        (33_333_333, 2 * MS, 20),
        (100 * MS, 50 * US, 90),
    ] {
        let mut machine = Machine::new(7);
        let arrivals = machine.periodic(MS, period, jitter, 4_000);
        assert_found(
            &format!("{period} ± {jitter}"),
            &mut machine,
            &arrivals,
            looked_min,
        );
    }
}

#[test]
fn drift_loss_and_a_doubled_rate_are_followed() {
    let mut machine = Machine::new(8);
    let drifting: Vec<i64> = (0..20_000).map(|k| MS + k * MS + k * 200).collect();
    assert_found("200 ppm", &mut machine, &drifting, 98);

    let mut lossy = machine.periodic(MS, MS, 5 * US, 20_000);
    lossy.retain(|_| machine.below(10) != 0);
    assert_found("one in ten lost", &mut machine, &lossy, 90);

    let slow = machine.periodic(MS, MS, 5 * US, 5_000);
    let fast = machine.periodic(5_001 * MS, MS / 2, 5 * US, 5_000);
    let back = machine.periodic(7_600 * MS, MS, 5 * US, 5_000);
    let changing = merged(merged(slow, &fast), &back);
    assert_found("doubled and back", &mut machine, &changing, 85);
}

#[test]
fn a_sender_that_stops_and_restarts_is_found_again() {
    let mut machine = Machine::new(9);
    let mut arrivals = Vec::new();
    for part in 0..10 {
        let start = part * 5_000 * MS + machine.below(MS);
        arrivals.extend(machine.periodic(start, MS, 5 * US, 3_000));
    }
    assert_found("restarts", &mut machine, &arrivals, 95);
}

/// The kernel keeps a spinning real-time thread off its CPU for 50 ms of each second: sockperf sends what is overdue at
/// once then, and goes on at the same phase.
#[test]
fn a_sender_that_catches_up_after_a_stall_keeps_its_rhythm() {
    for answers in [false, true] {
        let mut machine = Machine::new(10);
        let mut predictor = Predictor::new();
        let mut share = Share::new(10);
        let mut outcome = Outcome::default();
        let (mut now, mut sent) = (MS, 0);
        for k in 0..20_000_i64 {
            let due = k * MS + machine.below(3 * US);
            let stall = (k / 1_000) * 1_000 * MS + 47 * MS;
            let is_late = k >= 1_000 && due < stall;
            sent = (sent + 18 * US).max(if is_late { stall } else { due });
            now = machine.wait(
                &mut predictor,
                now.max(MS),
                sent.max(now),
                &mut share,
                &mut outcome,
            );
            if answers {
                predictor.sent(instant(now + US));
            }
            now += 2 * US;
            outcome.span_ns = now;
        }
        assert!(outcome.looked_per_cent() >= 90, "{outcome:?}");
    }
}

#[test]
fn several_senders_are_followed_each() {
    let mut machine = Machine::new(10);
    let first = machine.periodic(MS, 4 * MS, 5 * US, 3_000);
    let second = machine.periodic(MS + 1_300 * US, 4 * MS, 5 * US, 3_000);
    assert_found("two", &mut machine, &merged(first.clone(), &second), 90);
    let other = machine.periodic(MS + 700 * US, 10 * MS, 5 * US, 1_200);
    assert_found("two rates", &mut machine, &merged(first, &other), 60);
}

#[test]
fn bursts_count_once() {
    let mut machine = Machine::new(11);
    let heads = machine.periodic(MS, 4 * MS, 5 * US, 3_000);
    let bursts: Vec<i64> = heads
        .iter()
        .flat_map(|head| (0..6).map(move |k| head + k * 8 * US))
        .collect();
    // The second packet of a burst is waited for as well, and is not expected.
    let predictor = assert_found("bursts", &mut machine, &bursts, 45);
    let Pattern::Periodic { period, .. } = predictor.pattern() else {
        panic!("{:?}", predictor.pattern());
    };
    assert!((3_999..=4_001).contains(&period.as_micros()), "{period:?}");
}

#[test]
fn without_rhythm_there_is_no_window() {
    for seed in 0..200 {
        let mut machine = Machine::new(seed);
        let mut now = MS;
        let arrivals: Vec<i64> = (0..5_000)
            .map(|_| {
                // Exponential gaps with a mean of a millisecond.
                let uniform = (machine.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
                now += (-(1.0 - uniform).ln() * MS as f64) as i64;
                now
            })
            .collect();
        let mut predictor = Predictor::new();
        let outcome = machine.run(&mut predictor, &arrivals);
        assert!(outcome.awake_per_cent() < 0.2, "{outcome:?}");
    }
}

#[test]
fn looking_that_delays_its_own_message_stops() {
    let mut machine = Machine::new(12);
    machine.delayed_by_looking_ns = 60 * US;
    let arrivals = machine.periodic(MS, MS, 5 * US, 20_000);
    let mut predictor = Predictor::new();
    let outcome = machine.run(&mut predictor, &arrivals);
    println!("{outcome:?}");
    // The trials: sixteen each, and ever further apart.
    assert!(outcome.looked_per_cent() <= 2, "{outcome:?}");
}

/// Others that look on the same CPU leave a thread a few microseconds of each window.
#[test]
fn looks_that_are_cut_short_in_vain_stop() {
    let mut predictor = Predictor::new();
    let mut looks = 0;
    for k in 1..20_000 {
        let (before, arrival) = (instant(k * MS), instant((k + 1) * MS));
        if let Some(window) = predictor.window(before, duration(50 * US)) {
            looks += 1;
            predictor.looked_in_vain(window.from + duration(5 * US));
        }
        predictor.arrived(arrival + duration(30 * US), Seen::Asleep);
    }
    // Sixteen, and ever further apart.
    assert!(looks <= 7 * 16, "{looks}");
}

/// A trial on a machine whose wake-ups are quick does not fix for good what looking gains.
#[test]
fn wake_ups_that_become_slow_are_learned() {
    let mut predictor = Predictor::new();
    let arrival = |k: i64| instant(MS * (k + 1));
    for k in 0..2_000 {
        let waking_ns = if k < 100 { 3 * US } else { 60 * US };
        let mut window = || predictor.window(arrival(k - 1), duration(0));
        // For one in four the share of the CPU is spent.
        match (k % 4 != 0).then(&mut window).flatten() {
            Some(_) => predictor.arrived(arrival(k), Seen::Looking),
            None => predictor.arrived(arrival(k) + duration(waking_ns), Seen::Asleep),
        }
    }
    let gain = predictor.gain().unwrap();
    assert!(gain > Duration::from_micros(40), "{gain:?}");
}

#[test]
fn an_answer_is_awaited_after_the_send() {
    let mut machine = Machine::new(13);
    let mut predictor = Predictor::new();
    let mut share = Share::new(10);
    let mut outcome = Outcome::default();
    let mut now = MS;
    for _ in 0..3_000 {
        // No period of one's own: answers alone are regular.
        now += 500 * US + machine.below(2 * MS);
        predictor.sent(instant(now));
        let arrival = now + 15 * US + machine.below(4 * US);
        now = machine.wait(&mut predictor, now, arrival, &mut share, &mut outcome);
    }
    println!("{outcome:?}");
    assert!(outcome.looked_per_cent() >= 95, "{outcome:?}");
    assert!(
        matches!(predictor.pattern(), Pattern::Answers { delay, .. } if delay < Duration::from_micros(120))
    );
}

#[test]
fn sends_that_nobody_answers_stop_the_looks() {
    let mut machine = Machine::new(14);
    let mut predictor = Predictor::new();
    let mut granted = 0;
    let mut now = MS;
    for round in 0..5_000 {
        now += MS;
        predictor.sent(instant(now));
        let window = predictor.window(instant(now), duration(50 * US));
        match (round, window) {
            (0..500, _) => {
                now += 20 * US;
                predictor.arrived(instant(now), Seen::Asleep);
            }
            (_, window) => granted += u32::from(window.is_some()),
        }
        now += machine.below(US);
    }
    assert!(granted < 60, "{granted}");
}

/// A pattern of `patterns.txt`.
struct Recorded {
    name: &'static str,
    /// Period that is found; none for 0.
    period_us: u64,
    /// Per cent of the arrivals that are found by looking.
    looked: core::ops::RangeInclusive<u64>,
    arrivals: Vec<i64>,
}

fn recorded() -> Vec<Recorded> {
    let lines = include_str!("patterns.txt").lines();
    let mut patterns: Vec<Recorded> = Vec::new();
    for line in lines.filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let mut words = line.split_whitespace().peekable();
        let name = words.next_if(|word| word.starts_with(char::is_alphabetic));
        let mut numbers = words.map(|word| word.parse::<u64>().unwrap());
        if let Some(name) = name {
            let [period_us, least, most] = core::array::from_fn(|_| numbers.next().unwrap());
            patterns.push(Recorded {
                name,
                period_us,
                looked: least..=most,
                arrivals: std::vec![MS],
            });
        }
        let arrivals = &mut patterns.last_mut().unwrap().arrivals;
        for gap_us in numbers {
            arrivals.push(arrivals.last().unwrap() + gap_us as i64 * US);
        }
    }
    patterns
}

#[test]
fn recorded_patterns_have_the_rhythm_that_their_sender_has() {
    let mut wrong = Vec::new();
    for Recorded {
        name,
        period_us,
        looked,
        arrivals,
    } in recorded()
    {
        let mut predictor = Predictor::new();
        let outcome = Machine::new(15).run(&mut predictor, &arrivals);
        let (found, pattern) = (outcome.looked_per_cent(), predictor.pattern());
        println!(
            "{name}: {found} % of {outcome:?}, {:.2} % awake, {pattern:?}",
            outcome.awake_per_cent()
        );
        let period = match pattern {
            Pattern::Periodic { period, .. } => period.as_micros() as u64,
            _ => 0,
        };
        let is_right = looked.contains(&found)
            && outcome.awake_per_cent() <= 10.5
            && period.abs_diff(period_us) <= period_us / 100;
        if !is_right {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn no_stamp_makes_it_panic() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(16);
    for _ in 0..200 {
        let mut predictor = Predictor::new();
        let mut now: u64 = random.next_u64();
        for _ in 0..500 {
            now = match random.next_u64() % 8 {
                0 => random.next_u64(),
                1 => now.wrapping_sub(random.next_u64() >> 20),
                _ => now.wrapping_add(random.next_u64() % 3_000_000),
            };
            let at = Instant::from_nanos(now);
            match random.next_u64() % 4 {
                0 => predictor.sent(at),
                1 => {
                    let waking = Duration::from_nanos(random.next_u64());
                    predictor.window(at, waking);
                }
                2 => predictor.arrived(at, Seen::Asleep),
                _ => predictor.arrived(at, [Seen::Looking, Seen::Before][(now % 2) as usize]),
            }
        }
    }
}
