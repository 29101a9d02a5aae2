//! A TCP stream that fills a link, and what it achieved.
//!
//! With iperf3 where it is installed, otherwise with a plain pair of threads, both writing and reading
//! 16 KiB at a time, at a [`Pace`].

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tautline_state::child::KilledOnDrop;
use tautline_testbed::child;
use tautline_testbed::hosts::Host;
use thiserror::Error;

use crate::path::sides::Sides;
use crate::path::{PathError, tcp};

/// The longest load. iperf3 wants an end given; it is stopped before by [`Load::stop`].
const SECONDS_MAX: u32 = 86_400;

/// How long iperf3 may take to listen, and to write its result after it was told to stop.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes that the load hands to the kernel at once. Lower: system calls cost more than the data, and
/// the rate falls. Higher: on a kernel that does not preempt itself, each write keeps its processor
/// for longer (128 KiB: a millisecond), and what is measured beside it is the load's system call.
pub const CHUNK_BYTES: usize = 16_384;

/// How much a load asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// Payload rate of TCP on gigabit Ethernet that it fills, 941 Mbit/s. A virtual cable has no
    /// rate of its own: what fills it is not a link but the processor.
    Gigabit,
    /// All that TCP gets.
    Full,
}

impl Pace {
    /// Payload bits a second; `None` where there is no limit.
    fn bits_per_second(self) -> Option<u64> {
        match self {
            // 1,448 bytes of payload in each 1,538 of Ethernet: preamble, headers and gap counted.
            Pace::Gigabit => Some(1_000_000_000 * 1_448 / 1_538),
            Pace::Full => None,
        }
    }

    /// Text for reports.
    pub fn text(self) -> &'static str {
        match self {
            Pace::Gigabit => "paced to what fills gigabit Ethernet",
            Pace::Full => "not paced",
        }
    }
}

/// Program that makes the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadTool {
    /// The program iperf3.
    Iperf3,
    /// The pair of threads of this module.
    BuiltIn,
}

impl LoadTool {
    /// iperf3 where it can be run, else the built-in one.
    pub fn best() -> LoadTool {
        let found = Command::new("iperf3")
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if found {
            LoadTool::Iperf3
        } else {
            LoadTool::BuiltIn
        }
    }

    /// Its name for the user.
    pub fn text(self) -> &'static str {
        match self {
            LoadTool::Iperf3 => "iperf3",
            LoadTool::BuiltIn => "built-in TCP sender (iperf3 is not installed)",
        }
    }
}

/// Work of a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LoadReport {
    /// Program that made it.
    pub tool: LoadTool,
    /// Payload delivered, in gigabits a second.
    pub gbit_per_s: f64,
    /// Time over which that is the mean.
    pub seconds: f64,
}

/// Why there is no load.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A system call failed.
    #[error("cannot {operation}: {source}")]
    Io {
        /// Operation that failed.
        operation: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// The connection could not be made.
    #[error("the load: {0}")]
    Path(#[from] PathError),
    /// iperf3 did not do what it should.
    #[error("iperf3: {0}")]
    Iperf3(String),
    /// The stream ended before it was told to.
    #[error("the TCP stream of the load ended early: {0}")]
    Ended(String),
}

fn io_error(operation: &'static str) -> impl FnOnce(io::Error) -> LoadError {
    move |source| LoadError::Io { operation, source }
}

/// A load that runs until it is stopped or dropped.
#[derive(Debug)]
pub struct Load(Running);

#[derive(Debug)]
enum Running {
    Iperf3(Iperf3),
    BuiltIn(BuiltIn),
}

impl Load {
    /// Starts the best load there is. Its processes die with the calling thread.
    pub fn start(sides: Sides<'_>, pace: Pace) -> Result<Load, LoadError> {
        Load::start_with(LoadTool::best(), sides, pace)
    }

    /// Starts a particular load.
    pub fn start_with(tool: LoadTool, sides: Sides<'_>, pace: Pace) -> Result<Load, LoadError> {
        Ok(Load(match tool {
            LoadTool::Iperf3 => Running::Iperf3(Iperf3::start(sides, pace)?),
            LoadTool::BuiltIn => Running::BuiltIn(BuiltIn::start(sides, pace)?),
        }))
    }

    /// Ends the load and reports what it achieved.
    pub fn stop(self) -> Result<LoadReport, LoadError> {
        match self.0 {
            Running::Iperf3(load) => load.stop(),
            Running::BuiltIn(load) => load.stop(),
        }
    }
}

/// A TCP port that is free now on host B; somebody else may take it before iperf3 does.
fn free_port(sides: Sides<'_>) -> Result<u16, LoadError> {
    let address = (sides.address(Host::B), 0);
    let port = || TcpListener::bind(address)?.local_addr();
    let free = sides.inside(Host::B, port).map_err(PathError::from)?;
    Ok(free.map_err(io_error("find a port for the load"))?.port())
}

#[derive(Debug)]
struct Iperf3 {
    _server: KilledOnDrop,
    client: KilledOnDrop,
    output: mpsc::Receiver<String>,
}

impl Iperf3 {
    fn start(sides: Sides<'_>, pace: Pace) -> Result<Iperf3, LoadError> {
        let port = free_port(sides)?.to_string();
        let address = sides.address(Host::B).to_string();
        let server = Self::start_server(sides, &address, &port)?;
        let mut command = Command::new("iperf3");
        child::tie(&mut command, sides.namespace(Host::A));
        let mut client = command
            .args([
                "--client",
                &address,
                "--port",
                &port,
                "--json",
                "--bitrate",
                // 0: as much as it can.
                &pace.bits_per_second().unwrap_or(0).to_string(),
                "--length",
                &CHUNK_BYTES.to_string(),
                "--time",
                &SECONDS_MAX.to_string(),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map(KilledOnDrop)
            .map_err(io_error("start iperf3"))?;
        let mut pipe = client.0.stdout.take().expect("standard output is piped");
        let (send, output) = mpsc::channel();
        thread::spawn(move || {
            let mut text = String::new();
            let _ = pipe.read_to_string(&mut text);
            let _ = send.send(text);
        });
        Ok(Iperf3 {
            _server: server,
            client,
            output,
        })
    }

    /// Starts the server and waits until it listens.
    fn start_server(
        sides: Sides<'_>,
        address: &str,
        port: &str,
    ) -> Result<KilledOnDrop, LoadError> {
        let mut command = Command::new("iperf3");
        child::tie(&mut command, sides.namespace(Host::B));
        let mut server = command
            .args([
                "--server",
                "--one-off",
                "--forceflush",
                "--bind",
                address,
                "--port",
                port,
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map(KilledOnDrop)
            .map_err(io_error("start iperf3"))?;
        let pipe = server.0.stdout.take().expect("standard output is piped");
        let (send, listening) = mpsc::channel();
        // Goes on reading to the end, so that the server never blocks on a full pipe.
        thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if line.contains("Server listening") {
                    let _ = send.send(());
                }
            }
        });
        listening
            .recv_timeout(PATIENCE)
            .map_err(|_| LoadError::Iperf3("its server did not begin to listen".to_owned()))?;
        Ok(server)
    }

    fn stop(mut self) -> Result<LoadReport, LoadError> {
        if let Ok(Some(status)) = self.client.0.try_wait() {
            let text = self.output.recv_timeout(PATIENCE).unwrap_or_default();
            return Err(LoadError::Ended(
                iperf3_error(&text).unwrap_or(status.to_string()),
            ));
        }
        // On an interrupt iperf3 writes the result so far. It is our child and not yet reaped, so
        // that its number is still its own.
        kill_process(Pid::from_child(&self.client.0), Signal::INT)
            .map_err(|error| io_error("stop iperf3")(error.into()))?;
        let text = self.output.recv_timeout(PATIENCE).map_err(|_| {
            LoadError::Iperf3("it wrote no result after it was told to stop".to_owned())
        })?;
        parse_iperf3(&text)
    }
}

fn iperf3_error(text: &str) -> Option<String> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    Some(json["error"].as_str()?.to_owned())
}

/// Reads iperf3's result: the mean over its intervals, since an interrupted client has no figures
/// from the receiving side. What was sent but not delivered is at most a socket buffer.
fn parse_iperf3(text: &str) -> Result<LoadReport, LoadError> {
    let json: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| LoadError::Iperf3(format!("its result is not JSON: {error}")))?;
    let intervals = json["intervals"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let sum = |key: &str| -> f64 {
        intervals
            .iter()
            .filter_map(|interval| interval["sum"][key].as_f64())
            .sum()
    };
    let (bytes, seconds) = (sum("bytes"), sum("seconds"));
    if seconds <= 0.0 {
        let reason = json["error"]
            .as_str()
            .unwrap_or("its result has no intervals");
        return Err(LoadError::Iperf3(reason.to_owned()));
    }
    Ok(LoadReport {
        tool: LoadTool::Iperf3,
        gbit_per_s: bytes * 8.0 / seconds / 1e9,
        seconds,
    })
}

#[derive(Debug)]
struct BuiltIn {
    stop: Arc<AtomicBool>,
    start: Instant,
    sender: Option<JoinHandle<io::Result<()>>>,
    receiver: Option<JoinHandle<io::Result<u64>>>,
}

impl BuiltIn {
    fn start(sides: Sides<'_>, pace: Pace) -> Result<BuiltIn, LoadError> {
        let [sending, receiving] = tcp::connection(sides, 0)?;
        // So that the sender sees the stop flag even if nobody reads.
        sending
            .set_write_timeout(Some(Duration::from_millis(100)))
            .map_err(io_error("configure the load"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let sender = {
            let stop = Arc::clone(&stop);
            thread::spawn(move || send_until(sending, pace, &stop))
        };
        Ok(BuiltIn {
            stop,
            start: Instant::now(),
            sender: Some(sender),
            receiver: Some(thread::spawn(move || receive_all(receiving))),
        })
    }

    fn stop(mut self) -> Result<LoadReport, LoadError> {
        let bytes = self
            .end()
            .map_err(|error| LoadError::Ended(error.to_string()))?;
        let seconds = self.start.elapsed().as_secs_f64();
        Ok(LoadReport {
            tool: LoadTool::BuiltIn,
            gbit_per_s: bytes as f64 * 8.0 / seconds / 1e9,
            seconds,
        })
    }

    fn end(&mut self) -> io::Result<u64> {
        // Relaxed: the flag carries nothing else, and the joins below order the rest.
        self.stop.store(true, Ordering::Relaxed);
        let gone = || io::Error::other("a thread of the load panicked");
        if let Some(sender) = self.sender.take() {
            sender.join().map_err(|_| gone())??;
        }
        match self.receiver.take() {
            Some(receiver) => receiver.join().map_err(|_| gone())?,
            None => Ok(0),
        }
    }
}

impl Drop for BuiltIn {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn send_until(mut stream: TcpStream, pace: Pace, stop: &AtomicBool) -> io::Result<()> {
    let chunk = vec![0u8; CHUNK_BYTES];
    let start = Instant::now();
    let mut bytes = 0u64;
    while !stop.load(Ordering::Relaxed) {
        if let Some(rate) = pace.bits_per_second() {
            let due = Duration::from_secs_f64(bytes as f64 * 8.0 / rate as f64);
            thread::sleep(due.saturating_sub(start.elapsed()));
        }
        match stream.write(&chunk) {
            Ok(length) => bytes += length as u64,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn receive_all(mut stream: TcpStream) -> io::Result<u64> {
    let mut chunk = vec![0u8; CHUNK_BYTES];
    let mut bytes = 0u64;
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(length) => bytes += length as u64,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_iperf3_are_read() {
        let text = r#"{"intervals":[{"sum":{"bytes":125000000,"seconds":0.5}},{"sum":{"bytes":125000000,"seconds":0.5}}],"error":"interrupt"}"#;
        let report = parse_iperf3(text).unwrap();
        assert!((report.gbit_per_s - 2.0).abs() < 1e-9);
        assert!((report.seconds - 1.0).abs() < 1e-9);
    }

    #[test]
    fn results_that_are_none_say_why() {
        for (text, expected) in [
            ("", "not JSON"),
            ("{}", "no intervals"),
            (
                r#"{"intervals":[],"error":"unable to connect"}"#,
                "unable to connect",
            ),
            (r#"{"intervals":[{"sum":{"bytes":"x"}}]}"#, "no intervals"),
        ] {
            let error = parse_iperf3(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn both_loads_move_data_over_loopback() {
        for tool in [LoadTool::BuiltIn, LoadTool::best()] {
            let load = Load::start_with(tool, Sides::Loopback, Pace::Full).unwrap();
            thread::sleep(Duration::from_millis(300));
            let report = load.stop().unwrap();
            assert_eq!(report.tool, tool);
            assert!(
                report.gbit_per_s > 0.0 && report.seconds > 0.0,
                "{report:?}"
            );
        }
    }

    #[test]
    fn a_dropped_load_is_gone() {
        drop(Load::start_with(LoadTool::BuiltIn, Sides::Loopback, Pace::Full).unwrap());
    }
}
