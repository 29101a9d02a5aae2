//! Child processes of a flight, and the lines that they say.

use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tautline_state::child::KilledOnDrop;
use tautline_testbed::child::{start_at_fifo, tie};
use tautline_testbed::interrupt::interrupted;

use crate::part::Part;

/// Distance of looks for a child's end.
const END_LOOK: Duration = Duration::from_millis(10);
/// Distance of looks for ^C.
const LOOK: Duration = Duration::from_millis(50);

/// A child and its output. Dropped, it is killed.
pub(crate) struct Started {
    child: KilledOnDrop,
    lines: Receiver<String>,
}

/// Line of a child, or none yet, or none any more.
pub(crate) enum Said {
    Line(String),
    Nothing,
    Ended,
    /// By this signal, before anything was said.
    Interrupted(i32),
}

impl Started {
    /// Starts this program, by these words, as one part of a flight.
    pub(crate) fn part(words: &[PathBuf], part: &Part) -> io::Result<Started> {
        let word = serde_json::to_string(part)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(word);
        Self::command(tie(&mut command, None))
    }

    /// The same at SCHED_FIFO from the start, where this process may have it.
    pub(crate) fn urgent_part(words: &[PathBuf], part: &Part, priority: u8) -> io::Result<Started> {
        let word = serde_json::to_string(part)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(word);
        Self::command(start_at_fifo(tie(&mut command, None), priority))
    }

    /// Starts a command that is tied already.
    pub(crate) fn command(command: &mut Command) -> io::Result<Started> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        let (tell, lines) = channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Started {
            child: KilledOnDrop(child),
            lines,
        })
    }

    /// A line of the child's, waiting for so long; looks for ^C meanwhile.
    pub(crate) fn line(&self, patience: Duration) -> Said {
        let end = Instant::now() + patience;
        loop {
            if let Some(signal) = interrupted() {
                return Said::Interrupted(signal);
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(LOOK)) {
                Ok(line) => return Said::Line(line),
                Err(RecvTimeoutError::Timeout) if left > LOOK => {}
                Err(RecvTimeoutError::Timeout) => return Said::Nothing,
                Err(RecvTimeoutError::Disconnected) => return Said::Ended,
            }
        }
    }

    /// A line that was said already.
    pub(crate) fn said(&self) -> Said {
        match self.lines.try_recv() {
            Ok(line) => Said::Line(line),
            Err(TryRecvError::Empty) => Said::Nothing,
            Err(TryRecvError::Disconnected) => Said::Ended,
        }
    }

    /// Its standard input, whose end tells most parts to end.
    pub(crate) fn input(&mut self) -> Option<ChildStdin> {
        self.child.0.stdin.take()
    }

    /// Tells it a line; whether it could hear it.
    pub(crate) fn tell(&mut self, line: &str) -> bool {
        let input = self.child.0.stdin.as_mut();
        input.is_some_and(|input| {
            writeln!(input, "{line}")
                .and_then(|()| input.flush())
                .is_ok()
        })
    }

    /// Tells it to end as ^C does, and waits for that; ^C in this process does not shorten the wait.
    pub(crate) fn end(&mut self, patience: Duration) {
        // Not waited for yet, so that its number is still its own.
        if matches!(self.child.0.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child.0), Signal::INT);
        }
        let end = Instant::now() + patience;
        while matches!(self.child.0.try_wait(), Ok(None)) && Instant::now() < end {
            thread::sleep(END_LOOK);
        }
    }

    /// Kills it, as a fault.
    pub(crate) fn kill(&mut self) {
        // It may have ended.
        let _ = self.child.0.kill();
    }
}
