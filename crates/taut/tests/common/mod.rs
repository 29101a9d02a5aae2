//! Common parts of several tests of the commands: a test's root has the one that it tests as `PROGRAM`.
#![allow(dead_code)] // each test binary uses its own part

pub(crate) mod browser;
pub(crate) mod pages;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tautline_state::child::KilledOnDrop;
use tautline_testbed::hosts::{Hosts, HostsOptions, may_create};
use tautline_testbed::process_namespace::am_inside;
use tautline_testbed::sys;

/// Far longer than any command takes that ends by itself; only ends a test that would hang.
const PATIENCE: Duration = Duration::from_secs(120);

/// The command that is tested, with nothing on its standard input.
pub(crate) fn taut(arguments: &[&str]) -> Command {
    let mut command = Command::new(crate::PROGRAM);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// The output of a whole run.
pub(crate) fn run(arguments: &[&str]) -> Output {
    taut(arguments).output().unwrap()
}

/// Standard output, which is text.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Standard error, which is text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Standard output and then standard error, as text.
pub(crate) fn both(output: &Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

/// Bytes that should be text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Two hosts with a cable, or says why not.
pub(crate) fn hosts() -> Option<Hosts> {
    (!skipped_without_privilege()).then(|| Hosts::create(&HostsOptions::default()).unwrap())
}

/// Says so where hosts cannot be made.
pub(crate) fn skipped_without_privilege() -> bool {
    let skipped = !may_create();
    if skipped {
        println!("SKIPPED: making network namespaces needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
    }
    skipped
}

/// Says so where a program is missing; each with Debian's package that has it.
pub(crate) fn skipped_without_tools(tools: &[(&str, &str)]) -> bool {
    let is_missing = |tool: &str| {
        let mut command = Command::new(tool);
        command.arg("--version").stdout(Stdio::null());
        command.status().is_err()
    };
    let missing = tools.iter().find(|(tool, _)| is_missing(tool));
    if let Some((tool, package)) = missing {
        println!("SKIPPED: {tool} is not installed ({package})");
    }
    missing.is_some()
}

/// Whether `taut lab` has said that it cannot have kernels or the emulator for them here; then a note says so.
pub(crate) fn skipped_without_kernels(said: &str) -> bool {
    let reasons = [
        "the archive has no kernel package",
        "need QEMU",
        "is not installed",
    ];
    let reason = reasons.iter().find(|reason| said.contains(**reason));
    if let Some(reason) = reason {
        println!("SKIPPED: {reason}: {said}");
    }
    reason.is_some()
}

/// Starts a command and waits for a line with this word: on standard error for `recv`, on standard
/// output for the others.
pub(crate) fn started(command: &mut Command, word: &str, on_stderr: bool) -> KilledOnDrop {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines: Box<dyn BufRead> = if on_stderr {
        Box::new(BufReader::new(child.stderr.take().unwrap()))
    } else {
        Box::new(BufReader::new(child.stdout.take().unwrap()))
    };
    let mut seen = String::new();
    while !seen.contains(word) {
        let bytes = lines.read_line(&mut seen).unwrap();
        assert!(bytes > 0, "it ended with: {seen}");
    }
    // Its pipe stays open for as long as the command writes nothing more that matters.
    std::mem::forget(lines);
    KilledOnDrop(child)
}

/// A directory of the test's own, removed at the end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("taut-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The rest of a failed test does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An empty directory among cargo's, for programs that one run of a test's program builds once. A test in a process
/// namespace of its own has another one: its program also runs outside, and uses what it has built there.
pub(crate) fn build_directory(name: &str) -> PathBuf {
    let place = if am_inside() { "inside" } else { "" };
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(place)
        .join(name);
    let _ = fs::remove_dir_all(&path); // of an earlier run
    fs::create_dir_all(&path).unwrap();
    path
}

/// Builds a program in Rust, in this folder of the sources, for a guest of this processor, in a directory that may have
/// the kit already; `false`, with a note, where something is missing.
pub(crate) fn built_rust_guest(folder: &str, architecture: &str, build: &Path) -> bool {
    let target = format!("{architecture}-unknown-none");
    let found = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", &target])
        .output()
        .unwrap();
    if !Path::new(String::from_utf8_lossy(&found.stdout).trim_end()).is_dir() {
        println!("SKIPPED: the Rust toolchain has no {target} (rustup target add {target})");
        return false;
    }
    if skipped_without_tools(&[("clang", "clang"), ("ld.lld", "lld")]) {
        return false;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new("make")
        .arg("-C")
        .arg(root.join("bindings/guest"))
        .arg(format!("BUILD={}", build.display()))
        .arg(format!("CRATE={}", root.join(folder).display()))
        .arg(format!("rust-{architecture}"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    true
}

/// A command that runs beside, killed when dropped.
pub(crate) struct Running {
    pub(crate) child: KilledOnDrop,
    said: BufReader<ChildStderr>,
}

impl Running {
    /// Starts it and waits for a line with these words on standard error.
    pub(crate) fn start(command: &mut Command, words: &str) -> Running {
        let mut child = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut text = String::new();
        while !text.contains(words) {
            assert!(
                said.read_line(&mut text).unwrap() > 0,
                "it ended with: {text}"
            );
        }
        let child = KilledOnDrop(child);
        Running { child, said }
    }

    /// Ends it in order: exit status, and its last words.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        sys::signal_process(self.child.id(), Signal::INT);
        self.ended()
    }

    /// Waits for its end. One that does not end is killed, and fails the test.
    pub(crate) fn ended(&mut self) -> (Option<i32>, String) {
        let limit = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if Instant::now() < limit => thread::sleep(Duration::from_millis(10)),
                None => {
                    self.child.kill().unwrap();
                    break None;
                }
            }
        };
        let mut text = String::new();
        self.said.read_to_string(&mut text).unwrap();
        let status = status.unwrap_or_else(|| panic!("it does not end: {text}"));
        (status.code(), text)
    }
}

/// Whether a process has said how it answers a signal (`SigCgt`, proc_pid_status(5)).
pub(crate) fn has_handler(process: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or_default() & (1 << (signal.as_raw() - 1)) != 0
}

/// A server of the command, and where it is.
pub(crate) struct Served {
    pub(crate) child: KilledOnDrop,
    pub(crate) address: String,
    pub(crate) token: Option<String>,
}

/// Answer of the server: its status, its head and its body.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Served {
    /// Starts `taut serve`.
    pub(crate) fn start(arguments: &[&str]) -> Served {
        Self::started(&[&["serve"], arguments].concat())
    }

    /// Starts a command that prints the address at which it serves.
    pub(crate) fn started(arguments: &[&str]) -> Served {
        Self::of(&mut taut(arguments))
    }

    /// Starts a command, which may have an environment of its own, and reads the address at which it serves.
    pub(crate) fn of(command: &mut Command) -> Served {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("http://").unwrap();
        let (address, fragment) = url.split_once('/').unwrap();
        let address = address.replace("0.0.0.0", "127.0.0.1");
        let token = fragment.strip_prefix("#token=").map(str::to_owned);
        Served {
            child: KilledOnDrop(child),
            address,
            token,
        }
    }

    pub(crate) fn ask(&self, method: &str, path: &str, head: &str) -> Answer {
        self.ask_with(method, path, head, "")
    }

    /// The same with a body.
    pub(crate) fn ask_with(&self, method: &str, path: &str, head: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{head}");
        if !body.is_empty() {
            request += &format!("Content-Length: {}\r\n", body.len());
        }
        request += &format!("\r\n{body}");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let (head, body) = (head.to_ascii_lowercase(), body.to_owned());
        Answer { status, head, body }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &format!("Host: {}\r\n", self.address))
    }
}

/// Text of a page as a browser shows it, which must not complain about it. Nothing, with a note, where there is no
/// browser.
pub(crate) fn browse(page: &Path, profile: &Path) -> Option<String> {
    browse_with(&[], page, profile)
}

/// The same, with options of the browser's.
pub(crate) fn browse_with(options: &[&str], page: &Path, profile: &Path) -> Option<String> {
    browse_url(options, &format!("file://{}", page.display()), profile)
}

/// The same, of a page by its address.
pub(crate) fn browse_url(options: &[&str], url: &str, profile: &Path) -> Option<String> {
    let (text, log) = dom_and_log(options, url, profile)?;
    assert!(!log.contains("CONSOLE"), "{log}");
    Some(text)
}

/// The same with what the browser says of it, complaints about the page among it.
pub(crate) fn dom_and_log(options: &[&str], url: &str, profile: &Path) -> Option<(String, String)> {
    let browser = Command::new("chromium")
        .args(options)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(url)
        .stdin(Stdio::null())
        .output();
    let Ok(output) = browser else {
        println!("SKIPPED: chromium is not installed");
        return None;
    };
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let log = text(&output.stderr);
    assert!(output.status.success(), "{log}");
    Some((text(&output.stdout), log))
}
