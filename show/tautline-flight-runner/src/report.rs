//! Table, verdict and page of a show.

use std::path::PathBuf;

use serde_json::{Value, json};
use tautline_flight::vision::WIDTH;
use tautline_machine::Machine;
use tautline_report::page::{self, Level, Page, Table};
use tautline_report::pictures::{self, Picture};
use tautline_report::table;

use crate::drawings::{faults, loops, phases, remotes, soft, space, strips};
use crate::record::{CALM_FROM, Errors, FlightRecord, Loop, Sample, Variant};
use crate::reference;
use crate::soft::{Shot, pictures};
use crate::trials::TOLD;

const HEADER: [&str; 8] = [
    "",
    "end of the flight",
    "missed",
    "worst response",
    "attitude, calm",
    "under load",
    "position",
    "commands lost",
];
/// Columns of the page's two tables: a page is too narrow for all of them side by side.
const PAGE_COLUMNS: [&[usize]; 2] = [&[0, 1, 2, 3, 7], &[0, 4, 5, 6]];
/// Longest reference; a show has its first fault earlier.
const REFERENCE_SECONDS_MAX: f64 = 60.0;
/// Pictures on the page, and where they come from.
const PICTURES_SHOWN: usize = 6;
const PICTURES: &str = "From the recording of (c): one picture in ten. The mapping finds the door in them, and without \
GPS the craft flies by it.";
/// Control error above that of the flight that is never late, within which the executive flies as if nothing ran
/// beside it: a share of the root mean square. Lower: the pictures' arrival alone, which moves the door by centimetres,
/// decides. Higher: a loop that is late now and then is taken for one that is not.
const EXCESS_MAX: f64 = 0.05;
/// Name of the flight without a machine.
const REFERENCE: &str = "virtual time, never late";

/// Flights of a show, and what they are compared with.
#[derive(Clone, Debug)]
pub struct Report {
    records: Vec<FlightRecord>,
    missing: Vec<(Variant, String)>,
    machine: Machine,
    seed: u64,
    /// The same flight in virtual time.
    reference: Vec<Sample>,
    /// Pictures that the recorder kept.
    shots: Vec<Shot>,
}

impl Report {
    /// Compares flights that had this seed with the flight that is never late. Variants that could not fly come with
    /// the reason.
    pub fn new(records: Vec<FlightRecord>, missing: Vec<(Variant, String)>, seed: u64) -> Report {
        let recorded = records
            .iter()
            .find(|record| record.variant == Variant::Partition);
        let files: Vec<PathBuf> =
            recorded.map_or(Vec::new(), |record| record.soft.recordings.clone());
        let end = records
            .iter()
            .map(FlightRecord::fault_at)
            .fold(0.0, f64::max);
        Report {
            records,
            missing,
            machine: Machine::read(),
            seed,
            // A recording that cannot be read is told by the tools that read recordings; the page has no pictures.
            shots: pictures(&files).unwrap_or_default(),
            reference: reference::fly(seed, end.min(REFERENCE_SECONDS_MAX)),
        }
    }

    /// Whether the executive's craft came down unharmed.
    pub fn holds(&self) -> bool {
        holds(&self.records)
    }

    /// Table and verdict for a terminal.
    pub fn text(&self) -> String {
        let rows = table::figures(&HEADER, self.rows());
        let mut text = format!("{}\n{rows}", self.machine.summary());
        for line in self.notes(true) {
            text += &format!("{line}\n");
        }
        let (_, answer, reasons) = self.verdict();
        text += &format!("{answer}\n");
        for reason in reasons {
            text += &format!("  {reason}\n");
        }
        text
    }

    /// The same as JSON, with all samples.
    pub fn json(&self) -> Value {
        let missing = self.missing.iter();
        let missing: Vec<Value> = missing
            .map(|(variant, reason)| json!({ "variant": variant, "reason": reason }))
            .collect();
        let flights: Vec<Value> = self.records.iter().map(flight_json).collect();
        let (_, answer, _) = self.verdict();
        let reference = self.reference_errors();
        json!({
            "machine": self.machine,
            "seed": self.seed,
            "verdict": answer,
            "flights": flights,
            "missing": missing,
            "reference": reference.map(|(calm, loaded)| json!({ "calm": calm, "loaded": loaded })),
        })
    }

    /// The page.
    pub fn page(&self) -> String {
        let records = &self.records;
        let mut page = Page::new("A flight beside a busy Linux", self.machine.summary());
        let (level, answer, reasons) = self.verdict();
        page.verdict(level, &answer, &reasons);
        page.section("Error of the attitude", [strips(records).html()]);
        page.section("Path", [space(records).html()]);
        let rows = self.rows();
        let tables = PAGE_COLUMNS.map(|columns| of_columns(columns, &rows).html());
        // The faults have a table of their own there.
        let notes = self.notes(false).into_iter();
        let notes = notes.map(|note| page::paragraph(&note));
        page.section("Figures", tables.into_iter().chain(notes));
        let shots = chosen(&self.shots, records);
        if !shots.is_empty() {
            let source = page::paragraph(PICTURES);
            page.section(
                "The camera's pictures",
                [source, pictures::pictures(&shots)],
            );
        }
        page.section("Faults", [faults(records).html()]);
        if records.iter().any(|record| record.remote.is_some()) {
            page.section("Remote control on a network", [remotes(records).html()]);
        }
        page.section("Soft half", [soft(records).html()]);
        page.section("Loops", records.iter().map(|record| loops(record).html()));
        page.section("Loads and faults", [phases(records).html()]);
        page.section("Machine", [page::key_values(&self.machine.rows())]);
        page.section("How it flies", [page::paragraph(METHOD)]);
        page.html()
    }

    fn verdict(&self) -> (Level, String, Vec<String>) {
        let loaded = self.reference_errors().and_then(|(_, loaded)| loaded);
        verdict(&self.records, loaded)
    }

    /// Errors of the reference in the stretches of the first flight that has them.
    fn reference_errors(&self) -> Option<(Option<Errors>, Option<Errors>)> {
        let like = self
            .records
            .iter()
            .find(|record| !record.phases.is_empty())?;
        let (from, until) = (like.load_at(), like.fault_at());
        let errors = |from, until| Errors::of(&self.reference, from, until);
        Some((errors(CALM_FROM, from), errors(from, until)))
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let mut rows: Vec<Vec<String>> = self.records.iter().map(row).collect();
        if let Some((calm, loaded)) = self.reference_errors() {
            let none = || "-".to_owned();
            let errors = [tilt(calm), tilt(loaded), position(loaded)];
            let mut row = vec![REFERENCE.to_owned(), none(), none(), none()];
            row.extend(errors);
            row.push(none());
            rows.push(row);
        }
        rows
    }

    /// Facts that the table does not say, the faults among them or not.
    fn notes(&self, with_faults: bool) -> Vec<String> {
        let mut notes = vec![
            "Errors are root mean squares, the largest in brackets: the attitude's before and under load, the position's \
             under load."
                .to_owned(),
        ];
        if let Some(record) = self.records.first() {
            let [rate, attitude, navigator] =
                missed_under_load(record).map(|(_, releases)| releases);
            notes.push(format!(
                "Missed: deadlines under load of the rate loop (of {rate}), the attitude loop (of {attitude}) and the \
                 navigator (of {navigator}), before the fault."
            ));
        }
        for record in &self.records {
            let name = record.variant.text();
            let others = record.world.alarms.iter();
            for (at, alarm) in others.filter(|(_, alarm)| !TOLD.contains(&alarm.as_str())) {
                notes.push(format!(
                    "{name}: at {at:.1} s the controller noticed: {alarm}"
                ));
            }
            for fault in record.faults.iter().filter(|_| with_faults) {
                notes.push(format!(
                    "{name}: at {:.1} s {}: {}",
                    fault.from, fault.name, fault.outcome
                ));
            }
            notes.extend(remote(record).filter(|_| with_faults));
            let monitor = record.monitor.iter();
            notes.extend(monitor.map(|monitor| format!("{name}: by {monitor}")));
            notes.extend(
                record
                    .limits
                    .iter()
                    .map(|limit| format!("{name}: limited: {limit}")),
            );
        }
        let missing = self.missing.iter();
        notes.extend(
            missing.map(|(variant, reason)| format!("{} did not fly: {reason}", variant.text())),
        );
        notes
    }
}

/// The remote control's way over the network under load, in a sentence.
fn remote(record: &FlightRecord) -> Option<String> {
    let remote = record.remote.as_ref()?;
    let counts = remote.counts(record.load_at(), record.fault_at());
    Some(format!(
        "{}: remote control beside a cable full of TCP, by {}{}: {} of {} frames lost, {} late, the oldest {:.1} ms",
        record.variant.text(),
        remote.link,
        if remote.is_smoothed {
            " with control process and smoother"
        } else {
            ""
        },
        counts.lost,
        counts.sent,
        counts.late,
        counts.age_ns_max as f64 / 1e6
    ))
}

/// Pictures from the take-off to a moment after the door, at equal distances.
fn chosen(shots: &[Shot], records: &[FlightRecord]) -> Vec<Picture> {
    let passed = records.iter().filter_map(|record| record.world.passage);
    let until = passed.map(|(at, _)| at).fold(0.0, f64::max) + 0.5;
    let shown: Vec<&Shot> = shots
        .iter()
        .filter(|(at, _)| (CALM_FROM..until).contains(at))
        .collect();
    let places = (1..=PICTURES_SHOWN).map(|number| shown.len() * number / PICTURES_SHOWN);
    let mut places: Vec<usize> = places.filter_map(|place| place.checked_sub(1)).collect();
    places.dedup();
    places
        .into_iter()
        .map(|place| Picture {
            caption: format!("{:.1} s", shown[place].0),
            width: WIDTH as u32,
            pixels: shown[place].1.clone(),
        })
        .collect()
}

fn flight_json(record: &FlightRecord) -> Value {
    let missed = Loop::ALL.iter().zip(missed_under_load(record));
    let missed: serde_json::Map<String, Value> = missed
        .map(|(which, (missed, _))| (which.name().to_owned(), json!(missed)))
        .collect();
    json!({
        "void": record.void(),
        "outcome": outcome(record),
        "calm": calm(record),
        "loaded": loaded(record),
        "missed_under_load": missed,
        "record": record,
    })
}

/// Whether the executive's craft came down unharmed. A guest whose flight says nothing is no reason to say no: its
/// processor may be an emulated one.
fn holds(records: &[FlightRecord]) -> bool {
    records.iter().all(|record| match record.variant {
        Variant::Plain | Variant::Fifo => true,
        Variant::Partition => record.world.crash.is_none() && record.void().is_none(),
        Variant::Guest => !has_fallen(record),
    })
}

/// Whether the craft was lost in a flight that counts.
fn has_fallen(record: &FlightRecord) -> bool {
    record.world.crash.is_some() && record.void().is_none()
}

/// Errors from the second on in which the craft is at its height, before anything runs beside it.
fn calm(record: &FlightRecord) -> Option<Errors> {
    record.errors(CALM_FROM, record.load_at())
}

/// Errors under loads, before the first fault.
fn loaded(record: &FlightRecord) -> Option<Errors> {
    record.errors(record.load_at(), record.fault_at())
}

/// Deadlines of each loop that were missed from the first load to the first fault.
pub(crate) fn missed_under_load(record: &FlightRecord) -> [(u64, u64); 3] {
    let (from, until) = (record.load_at(), record.fault_at().min(1e6));
    let seconds =
        (until.min(record.world.samples.last().map_or(0.0, |one| one.at)) - from).max(0.0);
    Loop::ALL.map(|which| {
        let releases = (seconds * 1e9 / which.period_ns() as f64) as u64;
        let missed = record.missed_between(which, from, until);
        (missed, releases)
    })
}

fn missed_of(record: &FlightRecord) -> u64 {
    missed_under_load(record)
        .iter()
        .map(|(missed, _)| missed)
        .sum()
}

/// How the flight ended, in a few words.
fn outcome(record: &FlightRecord) -> String {
    if let Some(reason) = record.void() {
        return format!("void: {reason}");
    }
    match (record.world.crash, record.world.landed_at) {
        (Some((at, speed, _)), _) => format!("crashed at {at:.1} s, {speed:.1} m/s"),
        (None, Some(at)) => format!("landed at {at:.1} s"),
        (None, None) => "still flew at the end".to_owned(),
    }
}

/// A table of these columns.
fn of_columns(columns: &[usize], rows: &[Vec<String>]) -> Table {
    let chosen = |cells: &[String]| -> Vec<String> {
        columns
            .iter()
            .map(|column| cells[*column].clone())
            .collect()
    };
    let mut table = Table::new(chosen(&HEADER.map(str::to_owned)));
    for row in rows {
        table.row(chosen(row));
    }
    table
}

fn row(record: &FlightRecord) -> Vec<String> {
    let missed = missed_under_load(record);
    let missed: Vec<String> = missed
        .iter()
        .map(|(missed, _)| missed.to_string())
        .collect();
    let worst = record
        .loops
        .iter()
        .map(|one| one.worst_ns)
        .max()
        .unwrap_or(0);
    let lost = record.world.commands_lost;
    vec![
        record.variant.text().to_owned(),
        outcome(record),
        missed.join(" / "),
        format!("{:.1} ms", worst as f64 / 1e6),
        tilt(calm(record)),
        tilt(loaded(record)),
        position(loaded(record)),
        format!("{lost} of {}", record.world.commands + lost),
    ]
}

fn tilt(errors: Option<Errors>) -> String {
    errors.map_or("-".to_owned(), |errors| {
        format!("{:.2}° ({:.1}°)", errors.tilt_rms, errors.tilt_max)
    })
}

fn position(errors: Option<Errors>) -> String {
    errors.map_or("-".to_owned(), |errors| {
        format!(
            "{:.2} m ({:.2} m)",
            errors.position_rms, errors.position_max
        )
    })
}

/// Control error under load above that of the same flight in virtual time, as shares of the root mean squares: of the
/// attitude and of the position.
fn excess(record: &FlightRecord, reference: Option<Errors>) -> Option<[f64; 2]> {
    let (own, reference) = (loaded(record)?, reference?);
    let share = |own: f64, reference: f64| own / reference - 1.0;
    Some([
        share(own.tilt_rms, reference.tilt_rms),
        share(own.position_rms, reference.position_rms),
    ])
}

/// Verdict: its level, a sentence, and the reasons. `reference` has the errors of the flight that is never late.
fn verdict(records: &[FlightRecord], reference: Option<Errors>) -> (Level, String, Vec<String>) {
    let mut reasons: Vec<String> = records
        .iter()
        .map(|record| format!("{}: {}", record.variant.text(), outcome(record)))
        .collect();
    let of = |variant| records.iter().find(|record| record.variant == variant);
    let guest = of(Variant::Guest);
    let Some(ours) = of(Variant::Partition).or(guest) else {
        return (
            Level::Note,
            "The executive did not fly: nothing is compared".to_owned(),
            reasons,
        );
    };
    for record in records.iter().filter(|record| record.variant.is_ours()) {
        let missed: u64 = missed_of(record);
        if missed > 0 && record.void().is_none() {
            reasons.push(format!(
                "{} missed {missed} deadlines under load: {}",
                record.variant.text(),
                match record.variant {
                    Variant::Guest => "an emulated processor, a virtual machine's host, or what the kernel keeps on the CPU",
                    _ => "a virtual machine's host, or what the kernel keeps on the CPU",
                }
            ));
        }
    }
    let excess = excess(ours, reference).filter(|_| ours.void().is_none());
    reasons.extend(excess.map(|[tilt, place]| {
        format!(
            "{}: its errors under load differ by {:+.1} % (attitude) and {:+.1} % (position) from those of the flight \
             that is never late",
            ours.variant.text(),
            tilt * 100.0,
            place * 100.0
        )
    }));
    let is_astray = excess.is_some_and(|shares| shares.iter().any(|share| *share > EXCESS_MAX));
    let missed = missed_of(ours);
    let guest_missed = guest
        .filter(|guest| guest.void().is_none())
        .map_or(0, missed_of);
    let others_fell = records
        .iter()
        .any(|record| !record.variant.is_ours() && record.world.crash.is_some());
    let (level, answer) = match (ours.void(), ours.world.crash, missed, others_fell) {
        (Some(_), ..) => (
            Level::Note,
            "No verdict: the world or the guest was not in time",
        ),
        (_, Some(_), ..) if ours.variant == Variant::Guest => {
            (Level::Bad, "The craft was lost in the guest too")
        }
        (_, Some(_), ..) => (Level::Bad, "The craft was lost in the partition too"),
        _ if guest.is_some_and(has_fallen) => (
            Level::Bad,
            "The executive flew on and landed in the partition, and lost its craft in the guest",
        ),
        (.., true) if is_astray => (
            Level::Limited,
            "The executive flew on and landed where plain Linux fell, with a control error more than 5 % above that \
             of the flight that is never late",
        ),
        (.., true) if missed == 0 && guest_missed > 0 => (
            Level::Good,
            "The executive flew on and landed where plain Linux fell, and missed no deadline in the partition",
        ),
        (.., true) if missed == 0 => (
            Level::Good,
            "The executive flew on and landed where plain Linux fell, and missed no deadline under load",
        ),
        (.., true) => (
            Level::Limited,
            "The executive flew on and landed where plain Linux fell, with late jobs",
        ),
        _ if records.iter().all(|record| record.variant.is_ours()) => (
            Level::Note,
            "The executive flew on and landed; no other variant flew",
        ),
        _ => (
            Level::Limited,
            "The executive flew on and landed; so did the others",
        ),
    };
    (level, answer.to_owned(), reasons)
}

const METHOD: &str = "Each variant flies the same craft through the same wind, gusts, loads and faults, one after the \
other. The world is a process of its own, above everything else, and checks that its own steps were in time; a run in \
which they were not is void. A deadline is missed when a job is not done within its loop's period. The attitude error \
is the angle between the craft's upward axis and where the controller wants it. The runaway takes every CPU that Linux \
has; the world takes its time back by SCHED_DEADLINE. The guest counts its deadlines itself, by its own clock; if it is \
late before anything runs beside it, its processor is too slow, and its flight is void. The last row is the same flight in virtual time, where no job is \
ever late: the wind makes these errors, and a variant adds to them what its lateness costs.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{LoopRecord, Phase, SoftRecord, WorldRecord};
    use tautline_flight::vector::Vector;

    fn flight(variant: Variant, crash: Option<(f64, f64, f64)>, missed: u64) -> FlightRecord {
        let sample = |at: f64| Sample {
            at,
            position: Vector {
                x: at,
                y: 0.0,
                z: 2.0,
            },
            tilt_error: 1.0,
            position_error: 0.2,
            is_flying: true,
        };
        let phase = |name: &str, from: f64, is_fault| Phase {
            name: name.to_owned(),
            from,
            until: from + 2.0,
            is_fault,
        };
        FlightRecord {
            variant,
            world: WorldRecord {
                start_ns: 1_000,
                steps: 40_000,
                samples: (0..100).map(|at| sample(f64::from(at) / 10.0)).collect(),
                crash,
                landed_at: crash.is_none().then_some(9.5),
                ..WorldRecord::default()
            },
            loops: Loop::ALL
                .map(|_| LoopRecord {
                    missed,
                    missed_at_ns: (0..missed).map(|at| 4_000_000_000 + at).collect(),
                    ..LoopRecord::default()
                })
                .to_vec(),
            stale_inputs: 0,
            monitor: None,
            limits: vec![],
            phases: vec![
                phase("combined load", 3.0, false),
                phase("runaway", 7.0, true),
            ],
            achieved: vec![],
            soft: SoftRecord::default(),
            faults: vec![crate::record::Fault {
                name: "sonar silent".to_owned(),
                from: 4.0,
                until: 5.0,
                outcome: "noticed after a blink".to_owned(),
            }],
            remote: None,
        }
    }

    #[test]
    fn the_verdict_follows_from_crashes_deadlines_and_the_world() {
        let fell = flight(Variant::Plain, Some((8.0, 6.0, 90.0)), 50);
        let level = |ours: FlightRecord| verdict(&[fell.clone(), ours], None).0;
        let ours = flight(Variant::Partition, None, 0);
        assert_eq!(level(ours.clone()), Level::Good);
        assert!(holds(std::slice::from_ref(&ours)));
        assert_eq!(level(flight(Variant::Partition, None, 2)), Level::Limited);
        let lost = flight(Variant::Partition, Some((8.0, 6.0, 1.0)), 0);
        assert!(!holds(std::slice::from_ref(&lost)));
        assert_eq!(level(lost), Level::Bad);
        assert_eq!(verdict(std::slice::from_ref(&ours), None).0, Level::Note);
        let mut late = ours.clone();
        late.world.late_ns_max = 1_000_000_000;
        assert_eq!(level(late), Level::Note);
        assert_eq!(verdict(std::slice::from_ref(&fell), None).0, Level::Note);
        // A guest that is lost counts; one whose processor is too slow does not.
        let with = |guest: FlightRecord| [fell.clone(), ours.clone(), guest];
        let guest = with(flight(Variant::Guest, None, 0));
        assert_eq!(verdict(&guest, None).0, Level::Good);
        let guest = with(flight(Variant::Guest, None, 2));
        assert!(
            verdict(&guest, None)
                .1
                .ends_with("no deadline in the partition")
        );
        let guest = with(flight(Variant::Guest, Some((8.0, 6.0, 90.0)), 0));
        assert_eq!(
            (verdict(&guest, None).0, holds(&guest)),
            (Level::Bad, false)
        );
        let mut slow = flight(Variant::Guest, Some((8.0, 6.0, 90.0)), 0);
        slow.loops[0].missed_at_ns = vec![2_000_000_000; 1_000];
        let guest = with(slow);
        assert_eq!(
            (verdict(&guest, None).0, holds(&guest)),
            (Level::Good, true)
        );
        assert!(verdict(&guest, None).2[2].contains("too slow"));
        // Within 5 % of the flight that is never late, in attitude and position.
        let errors = loaded(&ours).unwrap();
        let beside = |tilt: f64, place: f64| Errors {
            tilt_rms: errors.tilt_rms / tilt,
            position_rms: errors.position_rms / place,
            ..errors
        };
        let level_beside = |reference| verdict(&[fell.clone(), ours.clone()], Some(reference)).0;
        assert_eq!(level_beside(beside(1.04, 1.04)), Level::Good);
        assert_eq!(level_beside(beside(0.5, 0.5)), Level::Good);
        assert_eq!(level_beside(beside(1.06, 1.0)), Level::Limited);
        assert_eq!(level_beside(beside(1.0, 1.06)), Level::Limited);
        let both = [flight(Variant::Plain, None, 0), ours];
        assert_eq!(verdict(&both, None).0, Level::Limited, "nothing was shown");
    }

    #[test]
    fn the_page_has_each_flight_and_names_who_did_not_fly() {
        let records = [
            flight(Variant::Plain, Some((8.0, 6.0, 90.0)), 50),
            flight(Variant::Partition, None, 0),
        ];
        let missing = [(Variant::Fifo, "<no root>".to_owned())];
        let report = Report::new(records.to_vec(), missing.to_vec(), 1);
        let page = report.page();
        assert!(page.contains("crashed at 8.0 s, 6.0 m/s") && page.contains("landed at 9.5 s"));
        assert!(page.contains("&lt;no root&gt;") && !page.contains("NaN"));
        // The page has the course of a fault in its table alone, for each flight once.
        assert_eq!(page.matches("noticed after a blink").count(), 2);
        let text = report.text();
        assert_eq!(text.matches("noticed after a blink").count(), 2);
        assert!(
            text.contains("50 / 50 / 50") && text.contains("did not fly"),
            "{text}"
        );
        assert!(text.contains(REFERENCE), "{text}");
        let json = report.json();
        assert_eq!(json["flights"][1]["missed_under_load"]["rate"], 0);
        assert!(json["reference"]["loaded"]["tilt_rms"].as_f64().unwrap() > 0.1);
    }

    #[test]
    fn pictures_are_chosen_from_the_take_off_to_the_door() {
        let shots: Vec<Shot> = (0..120)
            .map(|tenth| (f64::from(tenth) / 10.0, vec![]))
            .collect();
        let mut record = flight(Variant::Partition, None, 0);
        record.world.passage = Some((9.0, 0.1));
        let captions = |shots: &[Shot]| -> Vec<String> {
            let all = chosen(shots, std::slice::from_ref(&record)).into_iter();
            all.map(|picture| picture.caption).collect()
        };
        assert_eq!(
            captions(&shots),
            ["2.7 s", "4.0 s", "5.4 s", "6.7 s", "8.0 s", "9.4 s"]
        );
        assert_eq!(captions(&shots[20..22]), ["2.0 s", "2.1 s"]);
        assert!(captions(&[]).is_empty());
    }
}
