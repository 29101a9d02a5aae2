//! The cells of a fleet, for `taut status`, `taut top` and `taut serve`: what the program `taut-gateway` hears, over a
//! pipe. What comes from there came from a network: it is bounded, parsed into known fields, and cleaned.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tautline_report::plot::latency_text;
use tautline_report::{date, table};
use tautline_state::child::KilledOnDrop;
use tautline_state::text;

use crate::cli::CommandError;
use crate::external;

/// Bytes of a picture. Lower: a large fleet is refused. Higher: a program that is not ours takes more memory.
const PICTURE_BYTES_MAX: u64 = 64 << 20;
/// Cells of a picture that are shown. Lower: a large fleet is cut. Higher: a table too long to be read.
const CELLS_MAX: usize = 1_024;
/// Characters of text from other programs that are kept.
const TEXT_CHARS_MAX: usize = 128;
/// The same of the reason why there is no verdict: it has a path.
const REASON_CHARS_MAX: usize = 256;
/// Depth of documents that is kept.
const DEPTH_MAX: usize = 16;
/// Time for one picture. Lower: routers on slow links are not reached. Higher: a program that hangs is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// A fleet to be shown in place of this machine. The same options for every such command.
#[derive(Clone, Debug, Args)]
pub struct FleetArguments {
    /// Show the cells of a fleet that gateways tell of, in place of this machine; the program taut-gateway is needed.
    #[arg(long)]
    fleet: bool,
    /// Configuration file of a gateway (TOML): its fleet, and its way into Zenoh.
    #[arg(
        long = "config",
        id = "fleet-config",
        value_name = "FILE",
        requires = "fleet"
    )]
    config: Option<PathBuf>,
    /// Zenoh's own configuration (JSON5, JSON or YAML), in place of the gateway's.
    #[arg(long = "zenoh", value_name = "FILE", requires = "fleet")]
    zenoh: Option<PathBuf>,
    /// First part of the fleet's keys [default: that of the gateway's file, or tautline/fleet].
    #[arg(long = "prefix", value_name = "KEY", requires = "fleet")]
    prefix: Option<String>,
}

/// A gateway of a cell, as it was heard of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cell {
    prefix: String,
    gateway: String,
    number: String,
    /// `alive`, `silent` or `vanished`.
    presence: String,
    age_ms: u64,
    report: Option<Report>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tasks: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    smoothers: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<u64>,
}

/// Report of a gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Report {
    host: String,
    process: u32,
    state: String,
    term: u32,
    connections: u64,
    standing_by: u64,
    foreign: u64,
    sequence: u64,
    period_ms: u32,
    look_us: u64,
    totals: Totals,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<Verdict>,
}

/// Verdict of the lab on a machine, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Verdict {
    Unreadable { error: String },
    Judged(Box<Judged>),
}

/// A verdict of the lab; an empty text, 0 and `None` are unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Judged {
    label: String,
    class: String,
    deadline_ns: u64,
    outcome: String,
    words: String,
    state: String,
    strength: String,
    max_ns: Option<u64>,
    about_hardware: bool,
    subject: String,
    linuxcnc_grade: String,
    started_unix_s: u64,
    kernel: String,
    kernel_now: String,
}

/// Sums over a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Totals {
    nodes: u64,
    silent: u64,
    ports: u64,
    sent: u64,
    received: u64,
    lost: u64,
    full: u64,
    refused: u64,
    tasks: u64,
    jobs: u64,
    missed: u64,
    smoothers: u64,
    held_back: u64,
    published: u64,
    delivered: u64,
    dropped: u64,
}

/// All cells at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Picture {
    cells: Vec<Cell>,
    /// Routers and peers of Zenoh that the watcher is connected to.
    connections: u64,
    /// Reports that could not be read; of gateways for which there was no room, or that were not announced.
    malformed: u64,
    crowded_out: u64,
    unannounced: u64,
    /// Gateways whose nodes are not in the picture.
    left_out: u64,
}

impl FleetArguments {
    /// Whether a fleet is to be shown.
    pub fn is_wanted(&self) -> bool {
        self.fleet
    }

    /// The fleet at this moment, with everything that each gateway tells.
    pub fn look(&self) -> Result<Picture, CommandError> {
        let mut program = Program::start(self, None)?;
        program.next(PATIENCE)
    }

    /// Follows the fleet.
    pub fn follow(&self, interval: Duration) -> Result<Program, CommandError> {
        Program::start(self, Some(interval))
    }

    /// Follows the fleet on a thread; the returned function gives the newest picture.
    pub fn newest(&self) -> Result<impl Fn() -> Value + Send + Sync + 'static, CommandError> {
        let (arguments, newest) = (self.clone(), Arc::new(Mutex::new(Value::Null)));
        let shown = Arc::clone(&newest);
        let (sender, started) = sync_channel(1);
        // The program ends with the thread that started it, which ends with this process.
        thread::spawn(move || {
            let program = Program::start(&arguments, Some(Duration::from_secs(1)));
            let mut program = match program {
                Ok(program) => {
                    let _ = sender.send(None);
                    program
                }
                Err(error) => {
                    let _ = sender.send(Some(error));
                    return;
                }
            };
            loop {
                let picture = match program.next(PATIENCE) {
                    Ok(picture) => json!(picture),
                    Err(_) => json!({ "error": "the program taut-gateway has ended" }),
                };
                let has_ended = picture["error"].is_string();
                *newest.lock().unwrap_or_else(PoisonError::into_inner) = picture;
                if has_ended {
                    return;
                }
            }
        });
        match started.recv() {
            Ok(Some(error)) => Err(error),
            _ => Ok(move || shown.lock().unwrap_or_else(PoisonError::into_inner).clone()),
        }
    }

    fn words(&self, interval: Option<Duration>) -> Vec<OsString> {
        let valued = |option: &str, value: OsString| {
            let mut word = OsString::from(option);
            word.push(value);
            word
        };
        let mut words: Vec<OsString> = vec!["fleet".into()];
        for (option, file) in [("--config=", &self.config), ("--zenoh=", &self.zenoh)] {
            words.extend(file.iter().map(|file| valued(option, file.into())));
        }
        words.extend(
            self.prefix
                .iter()
                .map(|one| valued("--prefix=", one.into())),
        );
        words.push(match interval {
            None => "--once".into(),
            Some(interval) => {
                let ms = interval.as_millis().clamp(100, 60_000);
                valued("--interval=", format!("{ms}ms").into())
            }
        });
        words
    }
}

/// The program that hears, and what it says. It ends when this is dropped.
pub struct Program {
    child: KilledOnDrop,
    pictures: Receiver<Option<Picture>>,
}

impl Program {
    fn start(arguments: &FleetArguments, interval: Option<Duration>) -> Result<Self, CommandError> {
        let program = external::GATEWAY.find()?;
        let mut command = Command::new(&program);
        tautline_state::child::end_with_thread(&mut command, rustix::process::Signal::KILL);
        let started = command
            .args(arguments.words(interval))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = started.map_err(|error| {
            CommandError::failed(
                format!("cannot run {}: {error}", program.display()),
                "build it again with `make gateway`",
            )
        })?;
        let output = child.stdout.take().expect("it is piped");
        // One may wait to be shown: a reader that is held up gets the next, not old ones.
        let (sender, pictures) = sync_channel(1);
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            loop {
                let picture = read(&mut output);
                let is_last = picture.is_none();
                if sender.send(picture).is_err() || is_last {
                    return;
                }
            }
        });
        Ok(Self {
            child: KilledOnDrop(child),
            pictures,
        })
    }

    /// The next picture.
    pub fn next(&mut self, patience: Duration) -> Result<Picture, CommandError> {
        match self.pictures.recv_timeout(patience) {
            Ok(Some(picture)) => Ok(picture),
            Err(RecvTimeoutError::Timeout) => Err(CommandError::failed(
                "the program taut-gateway says nothing",
                "see that Zenoh's router can be reached",
            )),
            Ok(None) | Err(RecvTimeoutError::Disconnected) => {
                let ended = self.child.0.wait().ok().and_then(|status| status.code());
                match ended {
                    // It has said why.
                    Some(code) if code != 0 => {
                        Err(CommandError::answer(u8::try_from(code).unwrap_or(1)))
                    }
                    _ => Err(CommandError::failed(
                        "the program taut-gateway has ended, or says what no gateway says",
                        "build it again with `make gateway`",
                    )),
                }
            }
        }
    }
}

/// Reads a line; `None` at the end, and for one that is no picture.
fn read(output: &mut impl BufRead) -> Option<Picture> {
    let mut line = Vec::new();
    let mut limited = output.take(PICTURE_BYTES_MAX);
    limited.read_until(b'\n', &mut line).ok()?;
    (line.last() == Some(&b'\n')).then(|| parse(&line))?
}

fn parse(line: &[u8]) -> Option<Picture> {
    // A list would be taken for an object, field by field.
    if line.first() != Some(&b'{') {
        return None;
    }
    let mut picture: Picture = serde_json::from_slice(line).ok()?;
    picture.cells.truncate(CELLS_MAX);
    for cell in &mut picture.cells {
        for name in [
            &mut cell.prefix,
            &mut cell.gateway,
            &mut cell.number,
            &mut cell.presence,
        ] {
            *name = text::plain(name, TEXT_CHARS_MAX);
        }
        if let Some(report) = &mut cell.report {
            report.host = text::plain(&report.host, TEXT_CHARS_MAX);
            report.state = text::plain(&report.state, TEXT_CHARS_MAX);
            report.verdict.iter_mut().for_each(Verdict::clean);
        }
        let lists = [&mut cell.nodes, &mut cell.tasks, &mut cell.smoothers];
        for value in lists.into_iter().flatten().flatten() {
            text::clean(value, TEXT_CHARS_MAX, DEPTH_MAX);
        }
    }
    Some(picture)
}

impl Verdict {
    fn clean(&mut self) {
        let judged = match self {
            Self::Unreadable { error } => {
                *error = text::plain(error, REASON_CHARS_MAX);
                return;
            }
            Self::Judged(judged) => judged,
        };
        for text in [
            &mut judged.label,
            &mut judged.class,
            &mut judged.outcome,
            &mut judged.words,
            &mut judged.state,
            &mut judged.strength,
            &mut judged.subject,
            &mut judged.linuxcnc_grade,
            &mut judged.kernel,
            &mut judged.kernel_now,
        ] {
            *text = text::plain(text, TEXT_CHARS_MAX);
        }
    }

    /// The verdict in a sentence, as the lab words it.
    fn line(&self) -> String {
        let judged = match self {
            Self::Unreadable { error } => return format!("no verdict of the lab: {error}"),
            Self::Judged(judged) => judged,
        };
        let Judged {
            label,
            class,
            words,
            state,
            strength,
            subject,
            linuxcnc_grade,
            kernel,
            ..
        } = &**judged;
        let deadline = latency_text(judged.deadline_ns);
        let mut line = format!("verdict of {label}: {class} ({deadline}) {words} ({subject})");
        if let Some(max_ns) = judged.max_ns {
            line += &format!("; {state}, worst wake-up {}", latency_text(max_ns));
        }
        if judged.outcome == "held" {
            line += &format!(", {strength} evidence");
        }
        let at = match judged.started_unix_s {
            0 => "at an unknown time".to_owned(),
            seconds => date::text(seconds),
        };
        line += &format!("; LinuxCNC grade: {linuxcnc_grade}; {at}, Linux {kernel}");
        if *kernel != judged.kernel_now {
            line += &format!(", but {} runs now", judged.kernel_now);
        }
        line
    }
}

/// Messages of each gateway's cell at its last reports, for rates.
#[derive(Debug, Default)]
pub struct Rates(HashMap<(String, String, String), Counted>);

#[derive(Debug)]
struct Counted {
    sequence: u64,
    messages: u64,
    at: Instant,
    per_second: Option<f64>,
}

impl Rates {
    /// Takes note of a picture.
    pub fn take(&mut self, picture: &Picture, now: Instant) {
        let mut next = HashMap::new();
        for cell in &picture.cells {
            let Some(report) = &cell.report else { continue };
            let key = key(cell);
            let messages = report.totals.sent.saturating_add(report.totals.received);
            let before = self.0.remove(&key);
            let counted = match before {
                Some(before) if before.sequence == report.sequence => before,
                Some(before) => Counted {
                    sequence: report.sequence,
                    messages,
                    at: now,
                    per_second: messages.checked_sub(before.messages).map(|more| {
                        let seconds = now.saturating_duration_since(before.at).as_secs_f64();
                        more as f64 / seconds.max(0.001)
                    }),
                },
                None => Counted {
                    sequence: report.sequence,
                    messages,
                    at: now,
                    per_second: None,
                },
            };
            next.insert(key, counted);
        }
        self.0 = next;
    }
}

fn key(cell: &Cell) -> (String, String, String) {
    (
        cell.prefix.clone(),
        cell.gateway.clone(),
        cell.number.clone(),
    )
}

impl Picture {
    /// A table of the cells; with the rates, where they are known, in place of the sums.
    pub fn table(&self, rates: Option<&Rates>) -> String {
        let mut text = self.notes();
        if self.cells.is_empty() {
            return text + "no gateway of this fleet is connected\n";
        }
        let mut header = vec!["cell", "gateway", "state", "age", "nodes", "ports"];
        match rates {
            None => header.extend(["sent", "received"]),
            Some(_) => header.push("msg/s"),
        }
        header.extend(["lost", "full", "refused", "tasks", "missed", "dropped"]);
        let rows = self.cells.iter().map(|cell| row(cell, rates));
        text += &table::figures(&header, rows);
        text
    }

    /// Lines about verdicts, single nodes and tasks.
    pub fn details(&self) -> String {
        let mut text = String::new();
        for cell in &self.cells {
            let (nodes, tasks) = (list(&cell.nodes), list(&cell.tasks));
            let report = cell.report.as_ref();
            let verdict = report.and_then(|report| report.verdict.as_ref());
            if nodes.is_empty() && tasks.is_empty() && verdict.is_none() {
                continue;
            }
            let host = report.map_or("", |report| &report.host);
            text += &format!("{} by {} on {host}\n", cell.prefix, cell.gateway);
            if let Some(verdict) = verdict {
                text += &format!("  {}\n", verdict.line());
            }
            for node in nodes {
                text += &node_line(node);
            }
            for task in tasks {
                text += &format!(
                    "  task {} of {}: {}, {} jobs, {} missed, response p99 {} us, at most {} us\n",
                    words(&task["task"]),
                    words(&task["run"]),
                    words(&task["state"]),
                    words(&task["jobs"]),
                    words(&task["missed"]),
                    words(&task["response_p99_us"]),
                    words(&task["response_max_us"]),
                );
            }
            if let Some(count) = cell.left_out.filter(|count| *count > 0) {
                text += &format!("  {count} more had no room\n");
            }
        }
        text
    }

    fn notes(&self) -> String {
        let mut text = String::new();
        if self.connections == 0 {
            text += "not connected to any router or peer of Zenoh: name its configuration with --config or --zenoh\n";
        }
        let counts = [
            (self.malformed, "reports could not be read"),
            (self.crowded_out, "gateways found no room in the table"),
            (
                self.unannounced,
                "reports came from gateways that are not there",
            ),
            (
                self.left_out,
                "gateways told too much: their nodes are left out",
            ),
        ];
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            text += &format!("{count} {what}\n");
        }
        text
    }
}

fn list(values: &Option<Vec<Value>>) -> &[Value] {
    values.as_deref().unwrap_or_default()
}

fn words(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        // Nothing else has a place in a line.
        _ => "?".to_owned(),
    }
}

fn node_line(node: &Value) -> String {
    let place = ["interface", "ip", "bus", "node"];
    let place = place.iter().filter(|key| node[**key].is_string());
    let place: String = place
        .map(|key| format!(", {}", words(&node[*key])))
        .collect();
    let mode = match &node["capabilities"]["xdp_mode"] {
        Value::String(mode) => format!(" ({mode})"),
        _ => String::new(),
    };
    let ports = node["ports"].as_array().map_or(0, Vec::len);
    format!(
        "  node of process {} ({}): link {}{mode}{place}, {ports} ports\n",
        words(&node["process"]),
        words(&node["command"]),
        words(&node["link"]),
    )
}

fn row(cell: &Cell, rates: Option<&Rates>) -> Vec<String> {
    let state = match (cell.presence.as_str(), &cell.report) {
        ("alive", Some(report)) => report.state.clone(),
        ("alive", None) => "no report yet".to_owned(),
        ("silent", Some(report)) => format!("silent, was {}", report.state),
        (presence, _) => presence.to_owned(),
    };
    let age = latency_text(cell.age_ms.saturating_mul(1_000_000));
    let mut cells = vec![cell.prefix.clone(), cell.gateway.clone(), state, age];
    let totals = cell.report.as_ref().map(|report| report.totals);
    let figure = |of: fn(&Totals) -> u64| {
        totals
            .as_ref()
            .map_or_else(|| "–".to_owned(), |totals| of(totals).to_string())
    };
    cells.extend([figure(|one| one.nodes), figure(|one| one.ports)]);
    match rates {
        None => cells.extend([figure(|one| one.sent), figure(|one| one.received)]),
        Some(rates) => {
            let known = rates.0.get(&key(cell)).and_then(|one| one.per_second);
            let is_there = cell.presence == "alive";
            cells.push(
                known
                    .filter(|_| is_there)
                    .map_or_else(|| "–".to_owned(), |rate| format!("{rate:.0}")),
            );
        }
    }
    cells.extend([
        figure(|one| one.lost),
        figure(|one| one.full),
        figure(|one| one.refused),
        figure(|one| one.tasks),
        figure(|one| one.missed),
        figure(|one| one.dropped),
    ]);
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"cells":[
        {"prefix":"plant/a","gateway":"north","number":"01","presence":"alive","age_ms":420,
         "report":{"host":"robot","state":"active","sequence":3,"totals":{"nodes":2,"ports":5,"sent":100,"missed":7}},
         "nodes":[{"process":12,"command":"craft","link":"vbus","bus":"/run/cell","ports":[1,2]}],
         "tasks":[{"task":"rate","run":"craft","state":"ready","jobs":9,"missed":7}]},
        {"prefix":"plant/b","gateway":"south","number":"02","presence":"vanished","age_ms":61000}],
        "connections":1,"malformed":2,"new":{}}"#;

    fn picture(text: &str) -> Picture {
        parse(text.replace('\n', " ").as_bytes()).expect("a picture")
    }

    #[test]
    fn cells_have_lines_and_those_that_vanished_stay() {
        let picture = picture(LINE);
        let table = picture.table(None);
        let lines: Vec<&str> = table.lines().collect();
        assert!(table.contains("2 reports could not be read"), "{table}");
        let of = |cell: &str| *lines.iter().find(|line| line.contains(cell)).unwrap();
        assert!(
            of("plant/a").contains("active") && of("plant/a").contains("420 ms"),
            "{table}"
        );
        assert!(
            of("plant/b").contains("vanished") && of("plant/b").contains("61"),
            "{table}"
        );
        let details = picture.details();
        assert!(
            details.contains("node of process 12 (craft): link vbus, /run/cell, 2 ports"),
            "{details}"
        );
        assert!(
            details.contains("task rate of craft: ready, 9 jobs, 7 missed"),
            "{details}"
        );
    }

    #[test]
    fn hostile_lines_are_refused_or_cleaned() {
        for wrong in [
            "",
            "[]",
            "{\"cells\":7}",
            "{\"cells\":[{\"age_ms\":-1}]}",
            "{",
        ] {
            assert!(parse(wrong.as_bytes()).is_none(), "{wrong}");
        }
        let dirty = r#"{"cells":[{"prefix":"a\u001b[2J","gateway":"\u202eb","presence":"alive\n",
            "report":{"state":"\u0007"},"nodes":[{"command":"\u001b]0;x\u0007","link":[1],"process":{"a":1}}]}]}"#;
        let picture = picture(dirty);
        let shown = picture.table(None) + &picture.details() + &json!(picture).to_string();
        let is_hostile = |one: char| one.is_control() && one != '\n' || one == '\u{202e}';
        assert!(!shown.contains(is_hostile), "{shown:?}");
        let many = format!("{{\"cells\":[{}]}}", vec!["{}"; CELLS_MAX + 5].join(","));
        assert_eq!(parse(many.as_bytes()).unwrap().cells.len(), CELLS_MAX);
        assert!(read(&mut &b"{\"cells\":[]}"[..]).is_none(), "cut off");
    }

    #[test]
    fn verdicts_are_shown_with_their_cells() {
        let shown = |verdict: &str| {
            let line = format!(
                r#"{{"cells":[{{"prefix":"plant/a","gateway":"north","presence":"alive",
                "report":{{"host":"robot","state":"active","verdict":{verdict}}}}}]}}"#
            );
            let picture = picture(&line);
            let back = serde_json::to_string(&picture).unwrap();
            assert_eq!(parse(back.as_bytes()), Some(picture.clone()));
            picture.details()
        };
        let held = r#"{"label":"robot","class":"instrument","deadline_ns":1000000,"outcome":"held",
            "words":"HELD during this run","state":"tuned","strength":"weak","max_ns":87000,"about_hardware":true,
            "subject":"this machine","linuxcnc_grade":"poor","started_unix_s":951782400,"kernel":"6.18.44",
            "kernel_now":"6.18.44"}"#;
        assert_eq!(
            shown(held),
            "plant/a by north on robot\n  verdict of robot: instrument (1.00 ms) HELD during this run (this machine); \
             tuned, worst wake-up 87.0 µs, weak evidence; LinuxCNC grade: poor; 2000-02-29 00:00 UTC, Linux 6.18.44\n"
        );
        let other = held.replace("\"held\"", "\"exceeded\"");
        let other = other.replace("_now\":\"6.18.44", "_now\":\"6.19.0");
        let text = shown(&other);
        assert!(
            text.ends_with("Linux 6.18.44, but 6.19.0 runs now\n"),
            "{text}"
        );
        assert!(!text.contains("evidence"), "{text}");
        let text = shown(r#"{"error":"open /x/lab.json: \u001b[2JNo such file"}"#);
        assert!(
            text.ends_with("no verdict of the lab: open /x/lab.json: \u{fffd}[2JNo such file\n"),
            "{text}"
        );
        let text = shown(
            r#"{"label":"\u202ea\nb","started_unix_s":18446744073709551615,"max_ns":18446744073709551615}"#,
        );
        assert!(text.contains("verdict of \u{fffd}a\u{fffd}b:"), "{text}");
        assert_eq!(shown("null"), "");
    }

    #[test]
    fn rates_are_those_between_two_reports() {
        let mut rates = Rates::default();
        let start = Instant::now();
        let mut picture = picture(LINE);
        rates.take(&picture, start);
        let report = picture.cells[0].report.as_mut().unwrap();
        (report.sequence, report.totals.sent) = (5, 1_100);
        rates.take(&picture, start + Duration::from_secs(2));
        assert!(picture.table(Some(&rates)).contains("500"));
        // The same report again says nothing new.
        rates.take(&picture, start + Duration::from_secs(3));
        assert!(picture.table(Some(&rates)).contains("500"));
    }
}
