//! Keys and documents of a fleet. What comes from elsewhere is bounded, parsed into known fields, and cleaned.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tautline_state::text;

/// Version of the documents. A watcher reads the fields that it knows of any version.
const VERSION: u32 = 1;
/// Bytes of a report. Lower: long names do not fit. Higher: a fleet of many cells fills slow links.
pub(crate) const REPORT_BYTES_MAX: usize = 8 << 10;
/// Bytes of an answer with everything. Lower: nodes of a large machine are left out. Higher: a query makes a
/// gateway send that much.
pub(crate) const WHOLE_BYTES_MAX: usize = 256 << 10;
/// Characters that are kept of a name from another machine. Lower: paths are cut. Higher: one name fills a line.
const TEXT_CHARS_MAX: usize = 256;
/// Characters of each text of a verdict that are kept. Lower: subjects are cut. Higher: they do not fit a report.
const VERDICT_CHARS_MAX: usize = 128;
/// Depth of documents of nodes that is kept: theirs have seven levels. Higher: more of a strange one is kept.
const DEPTH_MAX: usize = 12;

/// Identity of a gateway: the prefix of its cell, its name, and the number of its process, which no other has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id {
    pub(crate) prefix: String,
    pub(crate) gateway: String,
    pub(crate) number: u64,
}

impl Id {
    /// The gateway's key below the fleet's prefix.
    pub(crate) fn key(&self, fleet: &str) -> String {
        format!(
            "{fleet}/@cell/{}/@gateway/{}/{:016x}",
            self.prefix, self.gateway, self.number
        )
    }

    /// Reads a key; `None` for one that is no gateway's.
    pub(crate) fn of(fleet: &str, key: &str) -> Option<Self> {
        let rest = key.strip_prefix(fleet)?.strip_prefix("/@cell/")?;
        let (prefix, rest) = rest.split_once("/@gateway/")?;
        let (gateway, number) = rest.split_once('/')?;
        let is_number = number.len() == 16 && !number.starts_with('+');
        let number = u64::from_str_radix(number, 16).ok().filter(|_| is_number)?;
        let fits = |text: &str| !text.is_empty() && text.chars().count() <= TEXT_CHARS_MAX;
        (fits(prefix) && fits(gateway)).then(|| Self {
            prefix: prefix.to_owned(),
            gateway: gateway.to_owned(),
            number,
        })
    }
}

/// All gateways of a fleet.
pub(crate) fn cells(fleet: &str) -> String {
    format!("{fleet}/@cell/**/@gateway/*/*")
}

/// Key on which a gateway tells of the cells that have vanished.
pub(crate) fn vanished(fleet: &str, number: u64) -> String {
    format!("{fleet}/@vanished/{number:016x}")
}

/// Key of all vanished gateways.
pub(crate) fn all_vanished(fleet: &str) -> String {
    format!("{fleet}/@vanished/*")
}

/// Sums over a machine. Losses are those of its ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Totals {
    pub(crate) nodes: u64,
    /// Nodes that gave no answer.
    pub(crate) silent: u64,
    pub(crate) ports: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Lost on the way, incomplete, or gone with a process.
    pub(crate) lost: u64,
    /// Dropped because there was no room.
    pub(crate) full: u64,
    /// Policed, of a wrong size, not authentic; sends that failed.
    pub(crate) refused: u64,
    pub(crate) tasks: u64,
    pub(crate) jobs: u64,
    /// Deadlines that jobs have missed.
    pub(crate) missed: u64,
    pub(crate) smoothers: u64,
    /// Frames of other traffic that smoothers dropped.
    pub(crate) held_back: u64,
    /// Given to Zenoh by the gateway; delivered by it; dropped by it.
    pub(crate) published: u64,
    pub(crate) delivered: u64,
    pub(crate) dropped: u64,
}

/// A gateway's short report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    pub(crate) version: u32,
    /// Name of the machine.
    pub(crate) host: String,
    pub(crate) process: u32,
    /// `active`, `standing by` or `listening`.
    pub(crate) state: String,
    pub(crate) term: u32,
    /// Routers and peers that it is connected to.
    pub(crate) connections: u64,
    /// Other gateways of the cell.
    pub(crate) standing_by: u64,
    /// Gateways of other cells with the same prefix.
    pub(crate) foreign: u64,
    /// Number of the report, from 1.
    pub(crate) sequence: u64,
    pub(crate) period_ms: u32,
    /// Time that the look took.
    pub(crate) look_us: u64,
    pub(crate) totals: Totals,
    /// Verdict of the lab, if the gateway's file names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verdict: Option<Verdict>,
}

/// Verdict of the lab on a machine, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Verdict {
    Unreadable { error: String },
    Judged(Box<Judged>),
}

/// A verdict of the lab.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Judged {
    /// Name of the result.
    pub(crate) label: String,
    /// Class as `taut lab run` takes it, or `deadline`; and what it allows.
    pub(crate) class: String,
    pub(crate) deadline_ns: u64,
    /// `held`, `exceeded` or `inconclusive`; and the words of the lab.
    pub(crate) outcome: String,
    pub(crate) words: String,
    /// State that the verdict rests on, `untouched` or `tuned`; how much the evidence is worth; its worst wake-up.
    pub(crate) state: String,
    pub(crate) strength: String,
    pub(crate) max_ns: Option<u64>,
    /// Whether it says something about hardware, and what it is about, in words.
    pub(crate) about_hardware: bool,
    pub(crate) subject: String,
    pub(crate) linuxcnc_grade: String,
    /// Start of the measurement in seconds since 1970; 0 if unknown.
    pub(crate) started_unix_s: u64,
    /// Release of the kernel that was measured, and of the one that runs.
    pub(crate) kernel: String,
    pub(crate) kernel_now: String,
}

impl Judged {
    /// The report with texts that are safe for a terminal, truncated to fit a report.
    pub(crate) fn cleaned(mut self) -> Self {
        for text in [
            &mut self.label,
            &mut self.class,
            &mut self.outcome,
            &mut self.words,
            &mut self.state,
            &mut self.strength,
            &mut self.subject,
            &mut self.linuxcnc_grade,
            &mut self.kernel,
            &mut self.kernel_now,
        ] {
            *text = text::plain(text, VERDICT_CHARS_MAX);
        }
        self
    }
}

impl Verdict {
    fn cleaned(self) -> Self {
        match self {
            Self::Unreadable { error } => Self::Unreadable {
                error: plain(&error),
            },
            Self::Judged(judged) => Self::Judged(Box::new(judged.cleaned())),
        }
    }
}

impl Report {
    /// This version's, empty.
    pub(crate) fn new() -> Self {
        Self {
            version: VERSION,
            ..Self::default()
        }
    }

    /// Parses a report from another machine.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > REPORT_BYTES_MAX || !is_object(bytes) {
            return None;
        }
        let report: Self = serde_json::from_slice(bytes).ok()?;
        Some(report.cleaned())
    }

    fn cleaned(self) -> Self {
        Self {
            host: plain(&self.host),
            state: plain(&self.state),
            verdict: self.verdict.map(Verdict::cleaned),
            ..self
        }
    }
}

/// Everything that a gateway tells.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Whole {
    pub(crate) report: Report,
    /// Nodes as they describe themselves, as `taut status --json` has them.
    pub(crate) nodes: Vec<Value>,
    pub(crate) tasks: Vec<Value>,
    pub(crate) smoothers: Vec<Value>,
    /// Nodes, tasks and smoothers for which there was no room.
    pub(crate) left_out: u64,
}

impl Whole {
    /// Parses an answer from another machine.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > WHOLE_BYTES_MAX || !is_object(bytes) {
            return None;
        }
        let mut whole: Self = serde_json::from_slice(bytes).ok()?;
        for list in [&mut whole.nodes, &mut whole.tasks, &mut whole.smoothers] {
            let each = list.iter_mut();
            each.for_each(|one| text::clean(one, TEXT_CHARS_MAX, DEPTH_MAX));
        }
        whole.report = whole.report.cleaned();
        Some(whole)
    }

    /// The document, with as many of the nodes, tasks and smoothers as there is room for.
    pub(crate) fn text(mut self) -> String {
        /// Bytes around the lists.
        const AROUND: usize = 256;
        let room = WHOLE_BYTES_MAX - AROUND - REPORT_BYTES_MAX;
        let mut used = 0;
        let mut left_out = 0;
        for list in [&mut self.tasks, &mut self.smoothers, &mut self.nodes] {
            list.retain(|one| {
                let bytes = serde_json::to_string(one).map_or(room, |text| text.len() + 1);
                let fits = used + bytes <= room;
                (used, left_out) = if fits {
                    (used + bytes, left_out)
                } else {
                    (used, left_out + 1)
                };
                fits
            });
        }
        self.left_out += left_out;
        serde_json::to_string(&self).unwrap_or_default()
    }
}

/// A cell that has vanished, as a gateway that saw it tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Vanished {
    /// Its key below the fleet's prefix.
    pub(crate) key: String,
    /// Time since then.
    pub(crate) age_ms: u64,
}

/// Whether it can be one of the documents: serde takes a list for one, too, field by field.
fn is_object(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().first() == Some(&b'{')
}

/// Reads what a gateway tells of vanished cells; at most so many.
pub(crate) fn parse_vanished(bytes: &[u8], most: usize) -> Option<Vec<Vanished>> {
    if bytes.len() > WHOLE_BYTES_MAX {
        return None;
    }
    let mut all: Vec<Vanished> = serde_json::from_slice(bytes).ok()?;
    all.truncate(most);
    Some(all)
}

/// The text as a terminal can show it, and cut.
pub(crate) fn plain(text: &str) -> String {
    text::plain(text, TEXT_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_and_strange_ones_do_not() {
        let id = Id {
            prefix: "plant/cell1".to_owned(),
            gateway: "north".to_owned(),
            number: 7,
        };
        let key = id.key("a/fleet");
        assert_eq!(
            key,
            "a/fleet/@cell/plant/cell1/@gateway/north/0000000000000007"
        );
        assert_eq!(Id::of("a/fleet", &key), Some(id));
        for strange in [
            "a/fleet",
            "a/fleet/@cell/x/@gateway/north",
            "a/fleet/@cell/x/@gateway/north/7",
            "a/fleet/@cell/x/@gateway/north/000000000000000g",
            "a/fleet/@cell/x/@gateway/north/+000000000000007",
            "a/fleet/@cell//@gateway/north/0000000000000007",
            "b/@cell/x/@gateway/north/0000000000000007",
            &Id {
                prefix: "x".repeat(300),
                gateway: "a".to_owned(),
                number: 1,
            }
            .key("a/fleet"),
        ] {
            assert_eq!(Id::of("a/fleet", strange), None, "{strange}");
        }
    }

    #[test]
    fn reports_of_others_are_bounded_and_cleaned() {
        let hostile = "{\"host\":\"a\\u001b[2Jb\",\"state\":\"\\u202eevitca\",\
            \"totals\":{\"lost\":18446744073709551615},\"new\":[1]}";
        let report = Report::parse(hostile.as_bytes()).unwrap();
        assert_eq!(report.host, "a\u{fffd}[2Jb");
        assert_eq!(report.state, "\u{fffd}evitca");
        assert_eq!(report.totals.lost, u64::MAX);
        for wrong in [
            "",
            "[]",
            "{\"term\":-1}",
            "{\"totals\":7}",
            "{\"host\":",
            &"[".repeat(REPORT_BYTES_MAX),
            &format!("{{\"host\":\"{}\"}}", "x".repeat(REPORT_BYTES_MAX)),
        ] {
            assert_eq!(Report::parse(wrong.as_bytes()), None, "{wrong:.40}");
        }
        let long = format!("{{\"host\":\"{}\"}}", "x".repeat(4_000));
        let shown = Report::parse(long.as_bytes()).unwrap().host;
        assert_eq!(shown, "x".repeat(TEXT_CHARS_MAX) + "…");
    }

    #[test]
    fn verdicts_of_others_are_bounded_and_cleaned() {
        let verdict = |told: &str| {
            let report = format!("{{\"verdict\":{told}}}");
            Report::parse(report.as_bytes()).map(|report| report.verdict)
        };
        let dirty = verdict(
            "{\"label\":\"\\u001b[2J\",\"max_ns\":7,\"words\":\"\\u202eDLEH\",\"new\":[1]}",
        );
        let Some(Some(Verdict::Judged(judged))) = dirty else {
            panic!("{dirty:?}");
        };
        assert_eq!((&judged.label[..], judged.max_ns), ("\u{fffd}[2J", Some(7)));
        assert_eq!(judged.words, "\u{fffd}DLEH");
        let error = verdict("{\"error\":\"\\u0007no\"}");
        let no = "\u{fffd}no".to_owned();
        assert_eq!(error, Some(Some(Verdict::Unreadable { error: no })));
        assert_eq!(verdict("null"), Some(None));
        for wrong in ["7", "\"HELD\"", "{\"max_ns\":-1}", "{\"label\":1}"] {
            assert_eq!(verdict(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_longest_report_fits() {
        let long = |chars| "\u{10ffff}".repeat(chars);
        let mut report = Report {
            host: "h".repeat(64),
            state: "standing by".to_owned(),
            sequence: u64::MAX,
            ..Report::new()
        };
        let text = long(1_000);
        let judged = Judged {
            label: text.clone(),
            class: text.clone(),
            outcome: text.clone(),
            words: text.clone(),
            state: text.clone(),
            strength: text.clone(),
            subject: text.clone(),
            linuxcnc_grade: text.clone(),
            kernel: text.clone(),
            kernel_now: text,
            ..Judged::default()
        };
        let error = long(TEXT_CHARS_MAX);
        for verdict in [
            Verdict::Judged(Box::new(judged.cleaned())),
            Verdict::Unreadable { error },
        ] {
            report.verdict = Some(verdict);
            let text = serde_json::to_string(&report).unwrap();
            assert!(text.len() <= REPORT_BYTES_MAX, "{} bytes", text.len());
            assert_eq!(Report::parse(text.as_bytes()).as_ref(), Some(&report));
        }
    }

    #[test]
    fn a_whole_answer_fits_and_says_what_does_not() {
        let node = serde_json::json!({ "command": "x".repeat(1_000), "ports": [] });
        let whole = Whole {
            nodes: vec![node; 1_000],
            ..Whole::default()
        };
        let text = whole.text();
        assert!(text.len() <= WHOLE_BYTES_MAX);
        let back = Whole::parse(text.as_bytes()).unwrap();
        assert!(back.nodes.len() > 200);
        assert_eq!(back.nodes.len() as u64 + back.left_out, 1_000);
        assert!(Whole::parse(&[b' '; WHOLE_BYTES_MAX + 1]).is_none());
    }

    #[test]
    fn values_of_nodes_are_cleaned_to_their_depth() {
        let mut deep = Value::from("\u{7}");
        for _ in 0..DEPTH_MAX {
            deep = Value::Array(vec![deep]);
        }
        let told = Whole {
            nodes: vec![deep.clone(), Value::Array(vec![deep])],
            ..Whole::default()
        };
        let kept = Whole::parse(told.text().as_bytes())
            .expect("a document")
            .nodes;
        assert!(kept[0].to_string().contains('\u{fffd}'), "{}", kept[0]);
        assert!(kept[1].to_string().contains("null"), "{}", kept[1]);
    }
}
