//! SS-RTUDP, figure 10 and table 4: several nodes send real-time and other traffic to one more through a switch's port
//! that is too small for all of it.
//!
//! [`cell_run`] runs one case in network namespaces; [`traffic`] sends and receives there. This file has the cases,
//! the tables and the targets.

mod cell_run;
mod credit;
mod traffic;

use std::time::Duration;

use serde_json::{Value, json};
use tautline_report::chart::{Axis, Chart, Line, Mark, Unit};
use tautline_report::plot::latency_text;
use tautline_report::reference::Reference;
use tautline_report::table::{Cell, in_one_unit};
use tautline_testbed::hosts::cell::{Kind, WIRE_BYTES};

use super::parameter::Parameter;
use super::{Check, Experiment, ExperimentError, Figure, Outcome, Progress, Request, go_on};
use cell_run::{Case, Load, Row, Rule};

pub(super) const EXPERIMENT: Experiment = Experiment {
    figures: &FIGURES,
    parameters: &PARAMETERS,
    run,
};

const FIGURES: [Figure; 1] = [Figure {
    name: "ssrtudp-fig10-table4",
    source: "SS-RTUDP, figure 10 and table 4",
    title: "real-time messages lost or late in a switch, without and with a smoother",
    found: "15.8 % of real-time messages lost or late without a smoother, 0.074 % with it; of others 16.9 and 22.6 %",
}];

const PARAMETERS: [Parameter; 6] = [
    Parameter {
        name: "senders",
        meaning: "nodes that send; the load of all together stays (3 unless set)",
        range: (1, 32),
    },
    Parameter {
        name: "port_kbit",
        meaning: "rate of the switch's port in kbit/s; the load keeps its ratio to it (89110)",
        range: (5_000, 1_000_000),
    },
    Parameter {
        name: "queue",
        meaning: "frames that can wait in the port (64)",
        range: (4, 128),
    },
    Parameter {
        name: "told_percent",
        meaning: "rate that the receiver is told, in per cent of the port's (100)",
        range: (50, 150),
    },
    Parameter {
        name: "seconds",
        meaning: "time of each case (60, with --quick 6)",
        range: (1, 3600),
    },
    Parameter {
        name: "case",
        meaning: "one case alone, by its place in the table from 1 on (0: all)",
        range: (0, CASES.len() as u64),
    },
];

/// Share of the load that arrived in the paper without a smoother, of 105.51 Mbit/s.
const PORT_KBIT: u64 = 89_110;

/// The cases, in the order of the table.
const CASES: [(Rule, Load); 12] = [
    (Rule::Nothing, Load::Udp),
    (Rule::Credit, Load::Udp),
    (Rule::Grants, Load::Udp),
    (Rule::GrantsAndPriorities, Load::Udp),
    (Rule::Nothing, Load::Tcp { flows: 1 }),
    (Rule::Grants, Load::Tcp { flows: 1 }),
    (Rule::GrantsAndPriorities, Load::Tcp { flows: 1 }),
    (Rule::Nothing, Load::Tcp { flows: 4 }),
    (Rule::Grants, Load::Tcp { flows: 4 }),
    (Rule::Nothing, Load::TcpOnOff),
    (Rule::Grants, Load::TcpOnOff),
    (Rule::GrantsAndPriorities, Load::TcpOnOff),
];

fn run(request: &Request, progress: &mut Progress<'_>) -> Result<Vec<Outcome>, ExperimentError> {
    let values = &request.values;
    let seconds = values.or("seconds", request.scale.pick(60, 6, 1));
    let rate_bps = values.or("port_kbit", PORT_KBIT) * 1000;
    let case = |(rule, load)| Case {
        senders: values.or("senders", 3) as usize,
        rate_bps,
        queue_frames: values.or("queue", 64) as u32,
        told_bps: rate_bps * values.or("told_percent", 100) / 100,
        rule,
        load,
        warm: Duration::from_millis(request.scale.pick(2000, 2000, 500)),
        time: Duration::from_secs(seconds),
    };
    let cases = match values.or("case", 0) {
        0 => request.scale.pick(&CASES[..], &CASES[..], &CASES[..6]),
        place => &CASES[place as usize - 1..place as usize],
    };
    let mut rows = Vec::new();
    for (index, one) in cases.iter().enumerate() {
        rows.push(cell_run::run(case(*one))?);
        progress(index as u64 + 1, cases.len() as u64);
        go_on()?;
    }
    let mut outcome = Outcome::of(&FIGURES[0]);
    set(&mut outcome, &rows[0].case);
    outcome.active = vec![("real time".to_owned(), rows[0].link.clone())];
    tell(&mut outcome, &rows);
    draw(&mut outcome, &rows);
    judge(&mut outcome, &rows);
    Ok(vec![outcome])
}

fn set(outcome: &mut Outcome, case: &Case) {
    outcome.set("senders", case.senders as u64);
    outcome.set("seconds", case.time.as_secs());
    outcome.set("port_bits_per_s", case.rate_bps);
    outcome.set("port_queue_frames", case.queue_frames);
    outcome.set("told_bits_per_s", case.told_bps);
    outcome.set("real_time_period_ns", case.real_time_period_ns());
    outcome.set("other_period_ns_mean", case.other_period_ns());
    outcome.set("clock", "CLOCK_MONOTONIC");
    outcome.set(
        "link",
        "veth to a bridge, whose port a program decides about",
    );
}

fn percent(share: f64) -> f64 {
    100.0 * share
}

fn tell(outcome: &mut Outcome, rows: &[Row]) {
    outcome.rows = rows.iter().map(json_of).collect();
    let cells = rows.iter().map(|row| {
        let way = row.way.summary();
        vec![
            row.case.rule.name().into(),
            row.case.load.name().into(),
            row.real_time_sent.to_string().into(),
            format!("{:.3}", percent(row.real_time_lost())).into(),
            format!("{:.3}", percent(row.real_time_lost_or_late())).into(),
            format!("{:.1}", row.port.wait_frames(Kind::RealTime, 0.99)).into(),
            format!("{:.1}", row.port.wait_frames(Kind::RealTime, 1.0)).into(),
            Cell::Time(way.p99_ns),
            format!("{:.3}", percent(row.other_lost())).into(),
            format!("{:.3}", percent(row.other_lost_or_late())).into(),
            format!("{:.1}", percent(row.other_of_room())).into(),
            format!("{:.4}", row.jain).into(),
            format!("{:.2}", percent(row.control_cpu)).into(),
        ]
    });
    outcome.table = in_one_unit(
        &[
            "other traffic held by",
            "other traffic",
            "RT sent",
            "RT lost %",
            "lost or late %",
            "wait p99, frames",
            "max",
            "way p99",
            "other lost %",
            "lost or late %",
            "of the room %",
            "Jain",
            "control CPU %",
        ],
        &cells.collect::<Vec<_>>(),
    );
}

fn json_of(row: &Row) -> Value {
    let summary = row.way.summary();
    let mut json: Value = serde_json::to_value(summary).expect("a summary is plain data");
    let [real_time, other] = [Kind::RealTime, Kind::Other].map(|kind| row.port.of(kind));
    json["path"] = row.case.rule.name().into();
    json["other_traffic"] = row.case.load.name().into();
    json["real_time_sent"] = row.real_time_sent.into();
    json["real_time_received"] = row.real_time_received.into();
    json["real_time_lost_share"] = json!(row.real_time_lost());
    json["real_time_lost_or_late_share"] = json!(row.real_time_lost_or_late());
    json["real_time_dropped_in_port"] = real_time.dropped.into();
    json["wait_p99_frames"] = json!(row.port.wait_frames(Kind::RealTime, 0.99));
    json["wait_max_frames"] = json!(row.port.wait_frames(Kind::RealTime, 1.0));
    json["other_frames_at_port"] = other.frames.into();
    json["other_lost_share"] = json!(row.other_lost());
    json["other_lost_or_late_share"] = json!(row.other_lost_or_late());
    json["other_mbit_per_s"] = json!(row.mbit_per_s(Kind::Other));
    json["other_share_of_room"] = json!(row.other_of_room());
    json["other_mbit_per_s_of_senders"] = json!(row.of_senders);
    json["jain"] = json!(row.jain);
    json["control_cpu_share"] = json!(row.control_cpu);
    json["control_mbit_per_s"] = json!(row.mbit_per_s(Kind::Control));
    json["real_time_lost_over_time"] = json!(row.lost_over_time);
    json
}

/// Cases beside the same other traffic.
fn beside(rows: &[Row], load: Load) -> impl Iterator<Item = &Row> {
    rows.iter().filter(move |row| row.case.load == load)
}

/// The paper's measure over time, and how long real-time frames wait.
fn draw(outcome: &mut Outcome, rows: &[Row]) {
    let first = rows[0].case.load;
    let over_time = Chart {
        caption: format!(
            "Real-time messages lost or late in the port, beside {}",
            first.name()
        ),
        across: Axis::linear("time", Unit::Time),
        up: Axis::linear("lost or late, %", Unit::Number),
        lines: beside(rows, first)
            .map(|row| Line::new(row.case.rule.name(), Mark::Line, row.lost_over_time.clone()))
            .collect(),
        // Table 4 of the paper: means of its runs.
        references: vec![
            Reference::paper("the paper without smoothing: 15.8 %", 15.8),
            Reference::paper("the paper with smoothing: 0.074 %", 0.074),
        ],
    };
    outcome.plots.push((&over_time).into());
    let waits = Chart {
        caption: "Share of real-time frames that wait longer in the port".to_owned(),
        across: Axis::linear("wait, times of a full frame", Unit::Number),
        up: Axis::logarithmic("share of frames", Unit::Number),
        lines: rows
            .iter()
            .map(|row| {
                let name = format!("{}, {}", row.case.rule.name(), row.case.load.name());
                Line::new(name, Mark::Line, tail(row))
            })
            .collect(),
        references: Vec::new(),
    };
    outcome.plots.push((&waits).into());
}

/// Shares of frames above each wait.
fn tail(row: &Row) -> Vec<(f64, f64)> {
    let waits = row.port.waits(Kind::RealTime);
    let total: u64 = waits.iter().sum();
    let mut left = total;
    let mut points = Vec::new();
    for (tenth, count) in waits.iter().enumerate() {
        left -= count;
        if *count > 0 {
            points.push(((tenth + 1) as f64 / 10.0, left as f64 / total.max(1) as f64));
        }
    }
    points
}

fn judge(outcome: &mut Outcome, rows: &[Row]) {
    outcome.here = beside(rows, rows[0].case.load)
        .map(|row| {
            format!(
                "{}: {:.3} % of real-time messages lost, {:.3} % lost or late; of others {:.1} %",
                row.case.rule.name(),
                percent(row.real_time_lost()),
                percent(row.real_time_lost_or_late()),
                percent(row.other_lost_or_late()),
            )
        })
        .collect::<Vec<_>>()
        .join("; ");
    for row in rows.iter().filter(|row| row.case.rule.grants()) {
        targets(&mut outcome.checks, row);
    }
    outcome.remarks.extend([
        "Losses, lateness and waits are those of the switch's port, which computes them from the time at which each \
         frame comes. Late is a wait above 300 µs, for others above 1.5 ms. The way is from the sender's call to the \
         receiver's return, on one machine, and contains the waits of both for a processor."
            .to_owned(),
        format!(
            "A full frame takes {} at this port. Without priorities no rule of a sender can make a frame wait for less \
             than those that came before it.",
            latency_text(WIRE_BYTES * 8_000_000_000 / rows[0].case.rate_bps)
        ),
    ]);
}

/// The targets for grants.
fn targets(checks: &mut Vec<Check>, row: &Row) {
    let case = &row.case;
    let name = format!("{}, {}", case.rule.name(), case.load.name());
    let mut check = |target: &str, found: String, met: bool| {
        checks.push(Check {
            target: format!("{name}: {target}"),
            found,
            met,
        });
    };
    let is_wrong = case.told_bps > case.rate_bps;
    let lost = row.real_time_lost();
    let lost_max = if is_wrong { 0.0001 } else { 0.0 };
    check(
        &format!("real-time messages lost at most {} %", percent(lost_max)),
        format!("{:.4} %", percent(lost)),
        lost <= lost_max,
    );
    let share_min = match case.load {
        Load::TcpOnOff => 0.80,
        _ if is_wrong => 0.96,
        _ if case.senders > 3 => 0.95,
        _ => 0.97,
    };
    check(
        &format!("others have {:.0} % of the room", percent(share_min)),
        format!("{:.1} %", percent(row.other_of_room())),
        row.other_of_room() >= share_min,
    );
    if is_wrong {
        return;
    }
    check(
        "no other frame lost in the network",
        row.port.of(Kind::Other).dropped.to_string(),
        row.port.of(Kind::Other).dropped == 0,
    );
    if case.load != Load::TcpOnOff {
        check(
            "fairness (Jain) at least 0.999",
            format!("{:.4}", row.jain),
            row.jain >= 0.999,
        );
    }
    let longest = row.port.wait_frames(Kind::RealTime, 1.0);
    let (frames, text) = match case.rule {
        Rule::GrantsAndPriorities => {
            let frames = 300e-6 * case.rate_bps as f64 / (8 * WIRE_BYTES) as f64;
            (frames, "no wait above 300 µs".to_owned())
        }
        _ => {
            let frames = 2 * case.senders + 3;
            (frames as f64, format!("no wait above {frames} frame times"))
        }
    };
    check(
        &text,
        format!("{longest:.1} frame times"),
        longest <= frames,
    );
}
