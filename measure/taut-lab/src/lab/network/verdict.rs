//! The judgement of a network: on which paths every reply came within the deadline, and how strong the evidence is.

use serde::Serialize;
use tautline_bench::echo::Path;
use tautline_bench::network::{PATHS, Row, path_name};
use tautline_lab::judge;
use tautline_machine::verdict::{Outcome, Strength};
use tautline_report::plot::latency_text;

use super::session::Measured;

/// Judgement of one path alongside all loads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Judged {
    pub path: Path,
    pub outcome: Outcome,
    pub cycles: u64,
    pub late: u64,
    pub episodes: u64,
    pub lost: u64,
    pub worst_ns: u64,
    pub duration_ns: u64,
    pub late_share_max: f64,
    pub between_episodes_ns_min: u64,
    pub strength: Strength,
}

/// Judgement of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Verdict {
    /// The best outcome over the paths.
    pub outcome: Outcome,
    /// Whether this says something about hardware.
    pub about_hardware: bool,
    /// The judgement in one sentence, and the reasons.
    pub sentences: Vec<String>,
    /// Each path.
    pub paths: Vec<Judged>,
}

impl Verdict {
    /// Judges.
    pub(super) fn of(measured: &Measured) -> Verdict {
        let weakened_by = weaknesses(measured);
        let rows = || measured.phases.iter().flat_map(|phase| &phase.rows);
        let judged = PATHS.iter().filter_map(|path| {
            let rows: Vec<&Row> = rows().filter(|row| row.path == *path).collect();
            (!rows.is_empty()).then(|| judge(*path, &rows, !weakened_by.is_empty()))
        });
        let paths: Vec<Judged> = judged.collect();
        let outcome = best(&paths);
        let (about_hardware, subject) = subject(measured);
        let mut sentences = vec![headline(measured, outcome, &paths, &subject)];
        sentences.extend(paths.iter().map(Judged::sentence));
        if !weakened_by.is_empty() {
            sentences.push(format!("Weaker because: {}.", weakened_by.join("; ")));
        }
        Verdict {
            outcome,
            about_hardware,
            sentences,
            paths,
        }
    }

    /// For scripts, as of `taut lab run`: 0 held (and about hardware), 3 exceeded, 4 no verdict.
    pub(super) fn exit_status(&self) -> u8 {
        match self.outcome {
            Outcome::Held if self.about_hardware => 0,
            Outcome::Exceeded => 3,
            _ => 4,
        }
    }
}

fn judge(path: Path, rows: &[&Row], is_weakened: bool) -> Judged {
    let sum = |of: fn(&Row) -> u64| rows.iter().map(|row| of(row)).sum::<u64>();
    let cycles = sum(|row| row.cycles);
    let late = sum(|row| row.late.count);
    let episodes = sum(|row| row.late.episodes);
    let duration_ns = sum(|row| row.duration.as_nanos() as u64);
    let worst = rows.iter().map(|row| row.histogram.summary().max_ns).max();
    Judged {
        path,
        outcome: judge::outcome(late, cycles),
        cycles,
        late,
        episodes,
        lost: sum(|row| row.lost),
        worst_ns: worst.unwrap_or(0),
        duration_ns,
        late_share_max: judge::late_share_max(late, cycles),
        between_episodes_ns_min: judge::between_episodes_ns_min(episodes, duration_ns),
        strength: judge::strength(cycles, duration_ns, is_weakened),
    }
}

fn best(paths: &[Judged]) -> Outcome {
    let has = |outcome| paths.iter().any(|judged| judged.outcome == outcome);
    [Outcome::Held, Outcome::Exceeded]
        .into_iter()
        .find(|outcome| has(*outcome))
        .unwrap_or(Outcome::Inconclusive)
}

fn subject(measured: &Measured) -> (bool, String) {
    let machine = &measured.machine;
    match machine.is_virtual.known() {
        _ if measured.card.is_virtual() => {
            let interface = &measured.card.interface;
            (
                false,
                format!("`{interface}` is virtual: no verdict on hardware"),
            )
        }
        Some(true) => {
            let hypervisor = &machine.hypervisor;
            (
                false,
                format!("in a virtual machine ({hypervisor}): no verdict on hardware"),
            )
        }
        None => (
            false,
            "virtual or not is unknown: no verdict on hardware".to_owned(),
        ),
        Some(false) => (true, "this machine".to_owned()),
    }
}

fn headline(measured: &Measured, outcome: Outcome, paths: &[Judged], subject: &str) -> String {
    let settings = &measured.settings;
    let of_these = format!(
        "{}, its cable and {}",
        measured.card.summary(),
        settings.peer.ip()
    );
    let cycle = latency_text(settings.period.as_nanos() as u64);
    let within = latency_text(settings.deadline.as_nanos() as u64);
    let names = |wanted: Outcome| {
        let those = paths.iter().filter(|judged| judged.outcome == wanted);
        those
            .map(|judged| path_name(judged.path))
            .collect::<Vec<_>>()
            .join(", ")
    };
    match outcome {
        Outcome::Held => {
            let by = match paths.iter().all(|judged| judged.outcome == Outcome::Held) {
                true => "on each path".to_owned(),
                false => format!(
                    "by {}; not by {}",
                    names(Outcome::Held),
                    names(Outcome::Exceeded)
                ),
            };
            format!(
                "HELD during this run: {of_these} are good for a cycle of {cycle} with each reply within {within}, {by} \
                 ({subject})."
            )
        }
        Outcome::Exceeded => {
            let rarest = paths.iter().min_by(|a, b| share(a).total_cmp(&share(b)));
            let rarest = rarest.map_or(String::new(), |judged| {
                format!(
                    "; fewest by {}: {} of {} cycles",
                    path_name(judged.path),
                    judged.late,
                    judged.cycles
                )
            });
            format!(
                "NOT HELD: {of_these} are not good for a cycle of {cycle} with each reply within {within}; every path had \
                 late cycles{rarest} ({subject})."
            )
        }
        Outcome::Inconclusive => {
            format!("NO VERDICT, too little was measured: {of_these} ({subject}).")
        }
    }
}

fn share(judged: &Judged) -> f64 {
    judged.late as f64 / judged.cycles.max(1) as f64
}

impl Judged {
    fn sentence(&self) -> String {
        let lost = match self.lost {
            0 => String::new(),
            lost => format!(", {lost} without any reply"),
        };
        let measured = format!(
            "{}: {} of {} cycles late{lost} ({}) in {}, worst reply after {}",
            path_name(self.path),
            self.late,
            self.cycles,
            episodes_text(self.episodes),
            latency_text(self.duration_ns),
            latency_text(self.worst_ns),
        );
        let bound = format!(
            "with 95 % confidence at most {:.2e} of all are late, if each is late by itself, and episodes of late ones \
             are {} apart or more on average",
            self.late_share_max,
            latency_text(self.between_episodes_ns_min),
        );
        match self.outcome {
            Outcome::Inconclusive => format!("{measured}."),
            _ => format!(
                "{measured}; {bound}; {} evidence.",
                strength_text(self.strength)
            ),
        }
    }
}

fn episodes_text(count: u64) -> String {
    match count {
        1 => "1 episode".to_owned(),
        count => format!("{count} episodes"),
    }
}

fn strength_text(strength: Strength) -> &'static str {
    match strength {
        Strength::Weak => "weak",
        Strength::Moderate => "moderate",
        Strength::Strong => "strong",
    }
}

fn weaknesses(measured: &Measured) -> Vec<String> {
    let weakens = measured
        .missing
        .iter()
        .filter(|missing| missing.weakens_verdict);
    let mut found: Vec<String> = weakens
        .map(|missing| format!("{}: {}", missing.what, missing.reason))
        .collect();
    let loads = measured.phases.iter().map(|phase| phase.load.to_string());
    if loads.into_iter().all(|load| load == "idle") {
        found.push("no load was run".to_owned());
    }
    found
}
