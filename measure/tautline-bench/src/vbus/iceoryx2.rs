//! iceoryx2, measured by a program of its own (`measure/iceoryx2`) that speaks lines on a pipe: nothing of it is linked
//! here.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use crate::sides::Placement;

use super::ends::Ask;
use super::{Failure, Measure, Slice};

/// The program's name; `make bench-bus` puts it beside `taut`.
pub const PROGRAM: &str = "tautline-bench-iceoryx2";

/// The program as it is found without being named: beside this one.
pub fn beside_this_program() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.with_file_name(PROGRAM);
    program.is_file().then_some(program)
}

/// The running program.
pub(super) struct Iceoryx2 {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Name and version that the program reports.
    pub(super) version: String,
}

impl Iceoryx2 {
    /// Starts it on the CPUs that this program measures on. It ends when this is dropped, or when this process does.
    pub(super) fn start(program: &Path, placement: &Placement) -> Result<Iceoryx2, Failure> {
        let mut command = Command::new(program);
        for (option, cpu) in [
            ("--client-cpu", placement.client_cpu),
            ("--server-cpu", placement.server_cpu),
        ] {
            if let Some(cpu) = cpu {
                command.args([option, &cpu.to_string()]);
            }
        }
        let failed = |error| Failure::new(format!("cannot run {}: {error}", program.display()));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // ^C is for this program, which ends the other in order.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let mut started = Iceoryx2 {
            child,
            input,
            output,
            version: String::new(),
        };
        let greeting = started.line()?;
        match greeting.strip_prefix("ready ") {
            Some(version) => started.version = version.to_owned(),
            None => {
                return Err(Failure::new(format!(
                    "{} says `{greeting}` in place of `ready`",
                    program.display()
                )));
            }
        }
        Ok(started)
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) => Err(Failure::new("the program that measures iceoryx2 has ended")),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(Failure::new(format!("cannot read from it: {error}"))),
        }
    }

    /// Sends a request, and adds the times of its answer to these.
    pub(super) fn ask(&mut self, request: &str, times: &mut Vec<u64>) -> Result<(), Failure> {
        let input = self.input.as_mut().expect("open until this is dropped");
        writeln!(input, "{request}")
            .map_err(|error| Failure::new(format!("cannot write to it: {error}")))?;
        let line = self.line()?;
        let mut words = line.split(' ');
        if words.next() != Some("ok") {
            return Err(Failure::new(line));
        }
        for word in words {
            let time = word.parse();
            times.push(time.map_err(|_| Failure::new(format!("invalid time `{word}`")))?);
        }
        Ok(())
    }
}

impl Drop for Iceoryx2 {
    fn drop(&mut self) {
        // The end of its input ends it, in order: it takes its shared memory with it.
        self.input = None;
        let _ = self.child.wait();
    }
}

/// The asking side of all its measurements; it has no other.
pub(super) fn asking(program: Arc<Mutex<Iceoryx2>>) -> Ask {
    Box::new(move |slice, times| {
        let Slice {
            bytes,
            length,
            period,
            ..
        } = slice;
        let request = match slice.measure {
            Measure::RoundTrip => format!("round-trip {bytes} {length}"),
            Measure::Throughput => format!("throughput {bytes} {length}"),
            Measure::Paced => format!("paced {bytes} {length} {}", period.as_nanos()),
            Measure::Read | Measure::ReadWhileWritten => {
                return Err(Failure::new("iceoryx2 has no last value to read here"));
            }
        };
        let mut program = program.lock().unwrap_or_else(PoisonError::into_inner);
        program.ask(&request, times)
    })
}
