//! The lab's verdict on this machine, from a result file that `taut lab run` wrote. The lab judges; this reads the few
//! fields of its result that a report has room for. It does not depend on the lab, which brings loads and kernels.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tautline_state::{Directory, StateError};

use super::report::{Judged, Verdict, plain};

/// Bytes of a result file. Lower: a long run on many CPUs is refused. Higher: a file of another kind takes memory
/// before it is refused.
const RESULT_BYTES_MAX: u64 = 8 << 20;
/// Time between two looks at the file. Lower: a file that changes once a week is opened often. Higher: a new verdict is
/// shown late.
const LOOK_PAUSE: Duration = Duration::from_secs(3);
/// Value of `format` and version in the results that are understood, as the lab has them.
const FORMAT: &str = "tautline-lab";
const VERSION: u64 = 1;

/// Path of a result that a gateway's file names, relative to its directory. Links on the way to the gateway's file are
/// followed, as they were to read it; those on the way from there are not.
pub(crate) fn place(gateway_file: &Path, named: &Path) -> PathBuf {
    let above = match gateway_file.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    };
    let above = above.canonicalize().unwrap_or_else(|_| above.to_owned());
    let mut place = PathBuf::new();
    for component in above.join(named).components() {
        match component {
            Component::ParentDir => _ = place.pop(),
            Component::CurDir => {}
            other => place.push(other),
        }
    }
    place
}

/// A result file that is read when it has changed.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    looked: Option<Instant>,
    version: Option<FileVersion>,
    verdict: Option<Verdict>,
}

/// Marks by which a file is known to be the same, unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl FileVersion {
    fn of(found: &Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
        }
    }
}

impl Source {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            looked: None,
            version: None,
            verdict: None,
        }
    }

    /// The verdict, after another look at the file if it is time. `say` gets the reason why there is none, once.
    pub(super) fn look(&mut self, now: Instant, say: impl FnOnce(&str)) -> Option<Verdict> {
        let is_due = |looked| now.saturating_duration_since(looked) >= LOOK_PAUSE;
        if self.looked.is_none_or(is_due) {
            self.looked = Some(now);
            let before = self.verdict.take();
            self.verdict = match self.read_changed() {
                Ok(None) => before,
                Ok(Some(judged)) => Some(Verdict::Judged(Box::new(judged.cleaned()))),
                Err(error) => {
                    let error = plain(&error);
                    let unreadable = Some(Verdict::Unreadable {
                        error: error.clone(),
                    });
                    if unreadable != before {
                        say(&error);
                    }
                    unreadable
                }
            };
        }
        self.verdict.clone()
    }

    /// Reads the file; `None` if it is the one that was read last.
    fn read_changed(&mut self) -> Result<Option<Judged>, String> {
        let last = self.version.take();
        let unreadable = |error: std::io::Error| format!("read {}: {error}", self.path.display());
        let mut file = self.open().map_err(|error| error.to_string())?;
        let version = FileVersion::of(&file.metadata().map_err(unreadable)?);
        if last == Some(version) {
            self.version = last;
            return Ok(None);
        }
        let bytes = read(&mut file).map_err(unreadable)?;
        self.version = Some(version);
        let judged = match bytes {
            Some(bytes) => parse(&bytes),
            None => Err(format!("is longer than {RESULT_BYTES_MAX} bytes")),
        };
        let judged = judged.map_err(|error| format!("{} {error}", self.path.display()))?;
        Ok(Some(judged))
    }

    /// Opens the file by checked directories: one of this user or root, that no other user can write or replace.
    fn open(&self) -> Result<File, StateError> {
        let (Some(above), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Err(StateError::InvalidName {
                path: self.path.clone(),
            });
        };
        Directory::open(above)?.open_file(name)
    }
}

/// Reads a file; `None` for one that is too long.
fn read(file: &mut File) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    // Not by the length that it has: it may grow meanwhile.
    file.take(RESULT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= RESULT_BYTES_MAX).then_some(bytes))
}

/// Marks of a result of the lab.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Head {
    format: String,
    version: u64,
}

/// Fields of a result that are read.
#[derive(Deserialize)]
struct LabResult {
    label: String,
    started_unix_s: u64,
    machine: Machine,
    verdict: Option<LabVerdict>,
}

#[derive(Deserialize)]
struct Machine {
    kernel_release: String,
}

#[derive(Deserialize)]
struct LabVerdict {
    class: Class,
    deadline_ns: u64,
    judgements: Vec<Judgement>,
    about_hardware: bool,
    subject: String,
    linuxcnc_grade: String,
}

/// A class by its name, or a deadline of one's own.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Class {
    Multimedia,
    Instrument,
    FastIo,
    Linuxcnc,
    // Its length is in the verdict, too.
    Deadline(#[allow(dead_code)] u64),
}

impl Class {
    fn name(&self) -> &'static str {
        match self {
            Self::Multimedia => "multimedia",
            Self::Instrument => "instrument",
            Self::FastIo => "fast-io",
            Self::Linuxcnc => "linuxcnc",
            Self::Deadline(_) => "deadline",
        }
    }
}

/// Judgement of one state of the machine, untouched or tuned.
#[derive(Deserialize)]
struct Judgement {
    state: String,
    outcome: Outcome,
    samples: u64,
    max_ns: u64,
    strength: String,
}

/// Value that was found, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    Held,
    Exceeded,
    Inconclusive,
}

impl LabVerdict {
    /// The state that the verdict rests on: a machine that holds when tuned can be used tuned.
    fn best(&self) -> Option<&Judgement> {
        let all = self.judgements.iter();
        all.min_by_key(|one| (one.outcome, one.max_ns))
    }

    /// The outcome, and the words that the lab has for it.
    fn words(&self) -> (&'static str, &'static str) {
        let is_held = |one: &Judgement| one.outcome == Outcome::Held;
        match self.best().map(|best| best.outcome) {
            Some(Outcome::Held) if self.judgements.iter().all(is_held) => {
                ("held", "HELD during this run")
            }
            Some(Outcome::Held) => ("held", "HELD in one of the two states"),
            Some(Outcome::Exceeded) => ("exceeded", "NOT HELD"),
            Some(Outcome::Inconclusive) | None => {
                ("inconclusive", "NO VERDICT, too little was measured")
            }
        }
    }
}

/// Understands a result; the error continues a sentence that begins with its path.
fn parse(bytes: &[u8]) -> Result<Judged, String> {
    // A list would be taken for an object, field by field.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err("is not a result of taut lab run".to_owned());
    }
    let faulty = |error: serde_json::Error| match error.is_eof() {
        true => "is cut off".to_owned(),
        false => format!("is not a result of taut lab run: {error}"),
    };
    let head: Head = serde_json::from_slice(bytes).map_err(faulty)?;
    if head.format != FORMAT {
        return Err("is not a result of taut lab run".to_owned());
    }
    if head.version != VERSION {
        let found = head.version;
        return Err(format!("has result version {found}, not {VERSION}"));
    }
    let result: LabResult = serde_json::from_slice(bytes).map_err(faulty)?;
    let Some(verdict) = result.verdict else {
        return Err("has no verdict; measure with taut lab run --class".to_owned());
    };
    let (outcome, words) = verdict.words();
    let best = verdict.best();
    let measured = best.filter(|best| best.samples > 0);
    Ok(Judged {
        label: result.label,
        class: verdict.class.name().to_owned(),
        deadline_ns: verdict.deadline_ns,
        outcome: outcome.to_owned(),
        words: words.to_owned(),
        state: best.map_or_else(String::new, |best| best.state.clone()),
        strength: best.map_or_else(String::new, |best| best.strength.clone()),
        max_ns: measured.map(|best| best.max_ns),
        about_hardware: verdict.about_hardware,
        subject: verdict.subject,
        linuxcnc_grade: verdict.linuxcnc_grade,
        started_unix_s: result.started_unix_s,
        kernel: result.machine.kernel_release,
        kernel_now: kernel_now(),
    })
}

/// Release of the kernel that runs: a verdict is about the one that was measured.
fn kernel_now() -> String {
    let system = rustix::system::uname();
    system.release().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::process::Command;

    use serde_json::{Value, json};
    use tautline_state::TemporaryDirectory;

    use super::*;

    /// A result as the lab writes it, without most of its measurements.
    fn result() -> Value {
        json!({
            "format": "tautline-lab", "version": 1, "tool": "taut 0.1.0", "label": "robot", "time": "real",
            "started_unix_s": 1_795_696_892, "machine": { "kernel_release": "6.18.44", "cpu_count": 2 },
            "phases": [{ "state": "tuned", "series": [{ "buckets": [] }] }],
            "verdict": {
                "class": "instrument", "deadline_ns": 1_000_000,
                "judgements": [
                    judgement("untouched", "exceeded", 1_200_000),
                    judgement("tuned", "held", 87_000),
                ],
                "about_hardware": true, "subject": "this machine", "loads": ["idle"],
                "linuxcnc_grade": "poor for software stepping (up to 100 \u{b5}s)", "weakened_by": [],
            },
        })
    }

    fn judgement(state: &str, outcome: &str, max_ns: u64) -> Value {
        json!({
            "state": state, "outcome": outcome, "samples": 5_000, "late": 0, "max_ns": max_ns,
            "duration_ns": 1, "late_share_max": 6e-4, "strength": "weak",
        })
    }

    fn of(result: &Value) -> Result<Judged, String> {
        parse(result.to_string().as_bytes())
    }

    #[test]
    fn the_verdict_is_that_of_the_best_state() {
        let mut result = result();
        let judged = of(&result).unwrap();
        assert_eq!(judged.words, "HELD in one of the two states");
        assert_eq!((&judged.outcome[..], &judged.state[..]), ("held", "tuned"));
        assert_eq!(
            (&judged.class[..], judged.max_ns),
            ("instrument", Some(87_000))
        );
        assert_eq!(
            (&judged.label[..], &judged.kernel[..]),
            ("robot", "6.18.44")
        );
        assert_eq!(judged.started_unix_s, 1_795_696_892);
        assert!(judged.about_hardware && !judged.kernel_now.is_empty());

        let (held, late) = (("held", 5), ("exceeded", 7));
        let few = ("inconclusive", 3);
        for (states, words, max_ns) in [
            (&[held, held][..], "HELD during this run", Some(5)),
            (&[late, late], "NOT HELD", Some(7)),
            (&[few, late], "NOT HELD", Some(7)),
            (&[few], "NO VERDICT, too little was measured", Some(3)),
            (&[], "NO VERDICT, too little was measured", None),
        ] {
            let states = states.iter().map(|one| judgement("tuned", one.0, one.1));
            result["verdict"]["judgements"] = states.collect();
            let judged = of(&result).unwrap();
            assert_eq!((&judged.words[..], judged.max_ns), (words, max_ns));
        }
        result["verdict"]["class"] = json!({ "deadline": 250_000 });
        assert_eq!(of(&result).unwrap().class, "deadline");
    }

    #[test]
    fn each_wrong_file_is_named() {
        let text = result().to_string();
        let changed = |key: &str, value: Value| {
            let mut changed = result();
            changed[key] = value;
            changed.to_string()
        };
        let mut unknown = result();
        unknown["verdict"]["judgements"][0]["outcome"] = "perhaps".into();
        for (text, expected) in [
            ("", "is not a result"),
            ("[]", "is not a result"),
            ("\u{0}{}", "is not a result"),
            ("{}", "is not a result"),
            (&text[..text.len() - 2], "is cut off"),
            (&changed("format", "perf".into()), "is not a result"),
            (&changed("version", 2.into()), "has result version 2, not 1"),
            (&changed("version", (-1).into()), "is not a result"),
            (&changed("verdict", Value::Null), "has no verdict"),
            (&changed("verdict", 7.into()), "is not a result"),
            (&changed("label", Value::Null), "is not a result"),
            (&unknown.to_string(), "is not a result"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.starts_with(expected), "{text:.40}: {error}");
        }
        let deep = format!("{{\"phases\":{}", "[".repeat(100_000));
        assert!(parse(deep.as_bytes()).is_err());
    }

    #[test]
    fn paths_are_relative_to_the_gateways_file() {
        let directory = TemporaryDirectory::make("taut-gateway-verdict").unwrap();
        let real = directory.path().canonicalize().unwrap();
        fs::create_dir(real.join("a")).unwrap();
        symlink(real.join("a"), real.join("link")).unwrap();
        let file = real.join("link/gateway.toml");
        for (named, expected) in [
            ("lab.json", real.join("a/lab.json")),
            ("./b/lab.json", real.join("a/b/lab.json")),
            ("../lab.json", real.join("lab.json")),
            ("/run/lab.json", "/run/lab.json".into()),
        ] {
            assert_eq!(place(&file, Path::new(named)), expected, "{named}");
        }
        let own = std::env::current_dir().unwrap().canonicalize().unwrap();
        let place = place(Path::new("gateway.toml"), Path::new("lab.json"));
        assert_eq!(place, own.join("lab.json"));
    }

    /// A look, and the error that was said.
    fn look(source: &mut Source, now: Instant) -> (Option<Verdict>, Option<String>) {
        let mut said = None;
        let verdict = source.look(now, |error| said = Some(error.to_owned()));
        (verdict, said)
    }

    fn words((verdict, said): (Option<Verdict>, Option<String>)) -> String {
        assert_eq!(said, None);
        match verdict {
            Some(Verdict::Judged(judged)) => judged.words,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_is_read_again_when_it_has_changed() {
        let directory = TemporaryDirectory::make("taut-gateway-verdict").unwrap();
        let path = directory.path().join("lab.json");
        let mut source = Source::new(path.clone());
        let mut now = Instant::now();
        let (_, said) = look(&mut source, now);
        assert!(said.is_some_and(|said| said.contains("No such file")));
        let write = |path: &Path, value: &Value| fs::write(path, value.to_string()).unwrap();
        write(&path, &result());
        // Not yet, and nothing is said again.
        let (verdict, said) = look(&mut source, now + LOOK_PAUSE / 2);
        assert!(matches!(verdict, Some(Verdict::Unreadable { .. })));
        assert_eq!(said, None);
        now += LOOK_PAUSE;
        assert_eq!(
            words(look(&mut source, now)),
            "HELD in one of the two states"
        );
        // Of the same size and time: another inode.
        let mut other = result();
        other["verdict"]["judgements"][0]["outcome"] = "inconclusive".into();
        other["verdict"]["judgements"][1]["outcome"] = "inconclusive".into();
        let beside = directory.path().join("other.json");
        write(&beside, &other);
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let file = File::options().write(true).open(&beside).unwrap();
        file.set_modified(modified).unwrap();
        fs::rename(&beside, &path).unwrap();
        now += LOOK_PAUSE;
        let (verdict, _) = look(&mut source, now);
        assert!(
            matches!(verdict, Some(Verdict::Judged(judged)) if judged.outcome == "inconclusive")
        );
        // Broken in place: said once, and shown until it is whole.
        fs::write(&path, "{").unwrap();
        now += LOOK_PAUSE;
        let (_, said) = look(&mut source, now);
        assert!(said.is_some_and(|said| said.ends_with("lab.json is cut off")));
        now += LOOK_PAUSE;
        let (verdict, said) = look(&mut source, now);
        assert!(matches!(verdict, Some(Verdict::Unreadable { .. })));
        assert_eq!(said, None);
        write(&path, &result());
        now += LOOK_PAUSE;
        assert_eq!(
            words(look(&mut source, now)),
            "HELD in one of the two states"
        );
    }

    #[test]
    fn files_that_strangers_could_write_are_refused() {
        let directory = TemporaryDirectory::make("taut-gateway-verdict").unwrap();
        let place = |name: &str| directory.path().join(name);
        let refused = |path: PathBuf, expected: &str| {
            let (_, said) = look(&mut Source::new(path), Instant::now());
            let said = said.expect("a refusal");
            assert!(said.contains(expected), "{said}");
        };
        let right = place("right.json");
        fs::write(&right, result().to_string()).unwrap();
        assert!(words(look(&mut Source::new(right.clone()), Instant::now())).starts_with("HELD"));
        symlink(&right, place("link.json")).unwrap();
        refused(place("link.json"), "is a symbolic link");
        symlink(directory.path(), place("links")).unwrap();
        refused(place("links/right.json"), "is a symbolic link");
        refused(directory.path().to_owned(), "is not a regular file");
        let made = Command::new("mkfifo").arg(place("pipe")).status();
        assert!(made.unwrap().success());
        refused(place("pipe"), "is not a regular file");
        let large = File::create(place("large.json")).unwrap();
        large.set_len(RESULT_BYTES_MAX + 1).unwrap();
        refused(place("large.json"), "is longer than 8388608 bytes");
        refused(place("a\u{1b}[2J"), "a\u{fffd}[2J");
        for (name, mode) in [("group.json", 0o664), ("all.json", 0o646)] {
            fs::copy(&right, place(name)).unwrap();
            fs::set_permissions(place(name), fs::Permissions::from_mode(mode)).unwrap();
            refused(place(name), "can be written by other users");
        }
        fs::create_dir(place("open")).unwrap();
        fs::copy(&right, place("open/right.json")).unwrap();
        fs::set_permissions(place("open"), fs::Permissions::from_mode(0o777)).unwrap();
        refused(place("open/right.json"), "can be written by other users");
        if chown(&right, Some(65_534), None).is_err() {
            println!("SKIPPED: giving a file to another user needs root");
            return;
        }
        refused(right, "belongs to user 65534");
    }
}
