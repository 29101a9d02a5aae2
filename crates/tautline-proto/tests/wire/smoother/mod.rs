//! The smoother in a simulated cell: several senders, one receiver behind a switch port with a rate and a queue.
//!
//! The load is that of SS-RTUDP's figure 10: each of three nodes sends 4.85 Mbit/s in real time and 30.32 Mbit/s of
//! other traffic, or as much as it can, to a fourth. The port takes 89.11 Mbit/s, which is the share of the load that
//! arrived in the paper without a smoother.
//!
//! A wait is the time in the queue of the port. Shares of other traffic are shares of what real-time frames and reports
//! leave of the port.

mod cell;
mod network;

use std::time::Duration;

use cell::{Cell, Load, Outcome, Rule, Setup};

const SECONDS_20: Duration = Duration::from_secs(20);

fn run(setup: Setup) -> Outcome {
    let outcome = Cell::run(setup.clone());
    println!(
        "{setup:?}: {outcome:?}\nreal time lost {:.4} %, above 300 µs {:.1} %, above 600 µs {:.2} %, at most {:.1} frame times",
        100.0 * outcome.loss(),
        100.0 * outcome.late(outcome.late_300_us),
        100.0 * outcome.late(outcome.late_600_us),
        outcome.wait_frames(setup.port.rate_bps),
    );
    outcome
}

/// No real-time frame is lost, other traffic has at least `share` of the room and loses nothing, and waits are bounded.
fn assert_smooth(setup: Setup, share: f64) -> Outcome {
    let senders = setup.senders as f64;
    let rate_bps = setup.port.rate_bps;
    let outcome = run(setup);
    assert_eq!(outcome.real_time_lost, 0);
    assert_eq!(outcome.other_lost, 0);
    assert!(outcome.other_share >= share, "{}", outcome.other_share);
    assert!(outcome.wait_frames(rate_bps) <= 2.0 * senders + 3.0);
    outcome
}

/// More nodes, with as much real-time traffic in all.
fn with_senders(senders: usize) -> Setup {
    Setup {
        senders,
        real_time_period: Duration::from_micros(2500 * senders as u64 / 3),
        load: Load::Greedy,
        measured: SECONDS_20,
        ..Setup::paper(Rule::Grants)
    }
}

fn greedy() -> Setup {
    Setup {
        load: Load::Greedy,
        ..Setup::paper(Rule::Grants)
    }
}

#[test]
fn without_a_smoother_the_cell_loses_as_in_the_paper() {
    let nothing = run(Setup::paper(Rule::Nothing));
    assert!((0.10..0.20).contains(&nothing.loss()));
}

#[test]
fn grants_lose_nothing_at_a_known_capacity() {
    for queue_frames in [64, 32] {
        for load in [Load::Poisson(2500.0), Load::Greedy] {
            let mut setup = Setup {
                load,
                ..Setup::paper(Rule::Grants)
            };
            setup.port.queue_frames = queue_frames;
            let outcome = assert_smooth(setup, 0.97);
            assert!(outcome.real_time_sent >= 71_900);
            assert!(outcome.jain >= 0.999, "{}", outcome.jain);
        }
    }
}

#[test]
fn with_a_switch_that_honours_priorities_real_time_waits_for_itself_alone() {
    let mut setup = greedy();
    setup.port.priorities = true;
    let rate_bps = setup.port.rate_bps;
    let outcome = assert_smooth(setup, 0.97);
    // The frame that is being sent, and those that the two other nodes happen to send just then.
    assert!(outcome.wait_frames(rate_bps) <= 3.5);
}

#[test]
fn at_a_gigabit_a_second_no_wait_is_long() {
    let mut setup = Setup {
        told_bps: 1_000_000_000,
        real_time_period: Duration::from_micros(250),
        measured: SECONDS_20,
        ..greedy()
    };
    setup.port.rate_bps = 1_000_000_000;
    let outcome = assert_smooth(setup, 0.97);
    assert!(outcome.wait_max <= Duration::from_micros(300));
}

#[test]
fn a_capacity_believed_too_high_is_corrected_from_delay() {
    for load in [Load::Poisson(2500.0), Load::Greedy] {
        let paper = Setup::paper(Rule::Grants);
        let outcome = run(Setup {
            load,
            told_bps: paper.told_bps * 112 / 100,
            ..paper
        });
        assert!(outcome.loss() <= 0.0001);
        assert!(outcome.other_share >= 0.96, "{}", outcome.other_share);
        assert!(outcome.corrections > 0);
    }
}

#[test]
fn a_correct_capacity_stays() {
    for senders in [3, 8] {
        let outcome = run(with_senders(senders));
        assert_eq!(outcome.corrections, 0);
    }
}

#[test]
fn traffic_that_goes_on_and_off_finds_its_room() {
    let setup = Setup {
        load: Load::OnOff(100.0),
        measured: SECONDS_20,
        ..Setup::paper(Rule::Grants)
    };
    assert_smooth(setup, 0.80);
}

#[test]
fn traffic_that_begins_after_a_quiet_time_finds_its_room_within_a_moment() {
    // Two seconds pass before anything is measured.
    let quiet = Setup {
        load_begins: Duration::from_secs(20),
        measured: Duration::from_secs(10),
        ..greedy()
    };
    let outcome = run(quiet.clone());
    assert_eq!(outcome.intervals, 500, "one each 20 ms");
    let begins = Setup {
        load_begins: Duration::from_millis(4500),
        measured: Duration::from_millis(2600),
        ..quiet
    };
    let outcome = run(begins);
    assert_eq!((outcome.real_time_lost, outcome.other_lost), (0, 0));
    // A tenth of a second is all there was for it.
    assert!(outcome.other_share > 0.02, "{}", outcome.other_share);
    assert!(outcome.jain >= 0.99, "{}", outcome.jain);
}

#[test]
fn larger_cells_lose_nothing() {
    for senders in [8, 16, 32, 64] {
        let outcome = assert_smooth(with_senders(senders), 0.95);
        assert!(outcome.jain >= 0.999, "{}", outcome.jain);
    }
}

#[test]
fn senders_behind_several_switches_lose_nothing_where_the_links_between_have_room() {
    for (senders, switches) in [(6, 2), (12, 3), (32, 8)] {
        let setup = Setup {
            uplinks: (switches, 100_000_000),
            ..with_senders(senders)
        };
        let outcome = assert_smooth(setup, 0.95);
        assert!(outcome.jain >= 0.999, "{}", outcome.jain);
    }
}

#[test]
fn a_link_between_switches_that_has_no_room_is_not_divided() {
    // A third of what the port takes: the receiver sees only its own port.
    let setup = Setup {
        uplinks: (1, 30_000_000),
        ..with_senders(6)
    };
    let outcome = run(setup);
    assert!(
        outcome.real_time_lost > 0,
        "docs/explanation/smoother.md says so"
    );
}

#[test]
fn lost_late_forged_and_old_messages_cost_no_real_time_frame() {
    let lossy = Setup {
        control_loss_ppm: 500_000,
        measured: SECONDS_20,
        ..greedy()
    };
    let late = Setup {
        control_late: true,
        ..lossy.clone()
    };
    let forged = Setup {
        interference: true,
        ..late.clone()
    };
    for setup in [lossy, late, forged.clone()] {
        for seed in 1..=2 {
            let outcome = run(Setup {
                seed,
                ..setup.clone()
            });
            assert_eq!((outcome.real_time_lost, outcome.other_lost), (0, 0));
            assert!(outcome.other_share >= 0.92, "{}", outcome.other_share);
            assert!(outcome.jain >= 0.999);
        }
    }
    assert!(run(forged).refused > 1000, "old reports are refused");
}

#[test]
fn a_node_that_lies_about_its_backlog_takes_nothing_from_the_others() {
    let outcome = assert_smooth(
        Setup {
            liar: true,
            measured: SECONDS_20,
            ..greedy()
        },
        0.95,
    );
    assert_eq!(outcome.other_by_node[0], 0);
}

#[test]
fn a_sender_whose_control_stops_counts_as_other_traffic() {
    let setup = Setup {
        sender_stops: Some(Duration::from_secs(10)),
        measured: SECONDS_20,
        ..greedy()
    };
    assert_smooth(setup, 0.95);
}

#[test]
fn a_receiver_that_stops_holds_nobody_after_a_second() {
    let stopped = Setup {
        receiver_stops: Some(Duration::from_secs(1)),
        measured: Duration::from_secs(2),
        ..greedy()
    };
    let outcome = run(stopped);
    assert!(outcome.other_share >= 0.97);
    // As many frames are sent as the senders' own links take.
    assert!(outcome.other_lost > outcome.other_sent / 2);
}
