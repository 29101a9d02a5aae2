//! Cycles that are locked to the values of a peer whose clock runs at another rate.
//!
//! `TAUTLINE_LOCKED_CYCLES=1000000 cargo nextest run -p tautline --no-capture locked` measures for longer.

use std::thread;
use std::time::Duration;

use crate::common::{Pair, XDP_TC, pair, port};
use tautline::cycle::{CycleOptions, LockState};
use tautline::port::SamplingOptions;
use tautline::{Cycle, Priority};

const PERIOD: Duration = Duration::from_millis(1);
const PHASE: Duration = Duration::from_micros(100);

/// Cycles of the reader, after those in which it finds its phase.
fn cycles() -> u64 {
    let asked = std::env::var("TAUTLINE_LOCKED_CYCLES").ok();
    asked.map_or(2_000, |text| text.parse().unwrap())
}

/// A peer that sends the time at which each of its periods began.
fn send(pair: &Pair, period: Duration, values: u64) {
    let options = SamplingOptions::default();
    let mut states = pair
        .on_a(|node| node.sampling(port(21)).options(&options).open())
        .unwrap();
    let to = states.destination("peer", port(22)).unwrap();
    let options = CycleOptions::new(period).with_fifo_priority(50);
    let mut cycle = Cycle::start(&options).unwrap();
    for _ in 0..values {
        let due = cycle.wait().due.as_nanos();
        let sent = states.send(to, Priority::HIGHEST, &due.to_le_bytes());
        sent.unwrap();
    }
}

#[test]
fn each_cycle_has_a_value_of_its_own_although_the_clocks_differ() {
    let Some(pair) = pair(XDP_TC, XDP_TC) else {
        return;
    };
    let options = SamplingOptions::default();
    let mut states = pair
        .on_b(|node| node.sampling(port(22)).options(&options).open())
        .unwrap();
    for ppm in [200, -200] {
        let period_ns = 1_000_000 + ppm;
        let values = cycles() + 1_500;
        thread::scope(|scope| {
            scope.spawn(|| send(&pair, Duration::from_nanos(period_ns as u64), values));
            let mut buffer = [0; 1484];
            assert!(
                states
                    .next_into(&mut buffer, tautline::Wait::Until(pair.soon()))
                    .unwrap()
                    .is_some()
            );
            let options = CycleOptions::new(PERIOD)
                .with_fifo_priority(50)
                .locked_to_values(PHASE);
            let mut cycle = Cycle::start(&options).unwrap();
            let mut offsets = Vec::new();
            let mut locked_after = None;
            let mut at_first = cycle.statistics().lock.unwrap();
            for number in 0..cycles() + 1_000 {
                let tick = cycle.wait();
                let sample = states.read_into(&mut buffer).unwrap().unwrap();
                if sample.new {
                    cycle.arrived(sample.arrival);
                }
                let is_locked = cycle.lock_state() == Some(LockState::Locked);
                if is_locked && locked_after.is_none() {
                    locked_after = Some(number);
                }
                if number == 1_000 {
                    at_first = cycle.statistics().lock.unwrap();
                }
                if number > 1_000 && sample.new {
                    let due = u64::from_le_bytes(*buffer.first_chunk().unwrap());
                    offsets.push(tick.due.as_nanos() as i64 - due as i64);
                }
            }
            let lock = cycle.statistics().lock.unwrap();
            println!(
                "{ppm} ppm: locked after {locked_after:?} cycles; then {}",
                {
                    let (late, missing) =
                        (lock.late - at_first.late, lock.missing - at_first.missing);
                    format!("{late} late, {missing} missing, {}", spread(&mut offsets))
                }
            );
            println!("{}", cycle.statistics());
            assert!(
                locked_after.is_some_and(|cycles| cycles < 1_000),
                "{locked_after:?}"
            );
            assert_eq!(lock.slips, 0, "{lock}");
            let learned_ppm = (lock.period_ns as i64 - 1_000_000) - ppm;
            assert!(learned_ppm.abs() < 100, "{lock}");
        });
        while states.next(tautline::Wait::Poll).unwrap().is_some() {}
    }
}

/// How far the beginnings of cycles are from their median distance to those of the peer.
fn spread(offsets: &mut [i64]) -> String {
    offsets.sort_unstable();
    let median = offsets[offsets.len() / 2];
    let mut errors: Vec<i64> = offsets
        .iter()
        .map(|offset| (offset - median).abs())
        .collect();
    errors.sort_unstable();
    let at = |part: usize| errors[(errors.len() - 1) * part / 1_000] as f64 / 1e3;
    format!(
        "{} µs after the peer, phase error p50 {:.1} p99 {:.1} p99.9 {:.1} µs",
        median / 1_000,
        at(500),
        at(990),
        at(999)
    )
}
