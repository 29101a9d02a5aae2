//! Tasks that are programs: a process for each, which does a job for each line that it reads.
//!
//! A line has three numbers: the job's, its release and its deadline in nanoseconds of `CLOCK_MONOTONIC`. The bytes of
//! a message that activated it follow as hexadecimal digits. The program does the job and answers with the job's number
//! on a line of its own; other lines are ignored. Job 0 comes before the first release: the program prepares itself,
//! and answers. The end of its input asks it to end.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use tautline_exec::Job;
use tautline_state::child::end_with_thread;

use crate::figures::ns;
use crate::sys;

/// Time for a program to prepare itself. Lower: an interpreter with large libraries is given up on a slow machine.
/// Higher: a program that does not know the protocol is reported later.
const PREPARE_MAX: Duration = Duration::from_secs(30);
/// Time for a program to end by itself. Lower: one that writes a file at its end is killed. Higher: stopping takes
/// longer when one does not look at its input.
const END_MAX: Duration = Duration::from_millis(500);
/// Time between the closing of a program's pipes and its end, after which it counts as running. Lower: on a busy
/// machine its end is not reported. Higher: the safe state of one that closes its pipes and goes on is set later.
const PIPES_END_MAX: Duration = Duration::from_millis(20);
/// Room for the line of a job with an ordinary message, 1,500 bytes of two digits. Lower: the first message takes
/// memory. Higher: memory that few use.
const REQUEST_BYTES: usize = 4096;
/// Longest line that can be an answer.
const LINE_BYTES_MAX: usize = 64;

/// A program that does the jobs of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Program, with arguments, that sets the outputs to their safe values when the task is stopped.
    pub safe_words: Option<Vec<String>>,
    /// Directory in which both start; programs with a `/` in their names are found from there.
    pub directory: PathBuf,
}

impl Program {
    /// File of a program; one without `/` in its name is looked for in `PATH`.
    fn file(&self, words: &[String]) -> PathBuf {
        let name = words.first().map_or("", String::as_str);
        match name.contains('/') {
            true => self.directory.join(name),
            false => PathBuf::from(name),
        }
    }

    /// Refuses, for root, programs that other users can write or replace.
    fn check(&self) -> io::Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let all = [Some(&self.words), self.safe_words.as_ref()];
        let files = all.into_iter().flatten().map(|words| self.file(words));
        // One that does not exist is reported by its start.
        let mut named = files.filter(|file| file.components().count() > 1 && file.exists());
        named.try_for_each(|file| Ok(tautline_state::trusted_file(&file).map(drop)?))
    }

    fn command(&self, words: &[String]) -> Command {
        let mut command = Command::new(self.file(words));
        command
            .args(words.iter().skip(1))
            .current_dir(match self.directory.as_os_str().is_empty() {
                true => Path::new("."),
                false => &self.directory,
            })
            .process_group(0);
        end_with_thread(&mut command, Signal::KILL);
        command
    }

    /// Runs the program of the safe state to its end.
    pub(crate) fn go_to_safe_state(&self) -> io::Result<()> {
        let Some(words) = &self.safe_words else {
            return Ok(());
        };
        let status = self.command(words).stdin(Stdio::null()).status()?;
        if status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{} ended with {status}",
            words[0]
        )))
    }
}

/// The process of a task. Dropped, it is killed with all that it started and that is still in its process group.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// Readable once it has ended.
    handle: OwnedFd,
    /// Whether it was waited for: its number can be another process's then.
    is_reaped: bool,
    to: Option<ChildStdin>,
    from: ChildStdout,
    /// Bytes of a line that is not whole yet.
    line: Vec<u8>,
    /// The line of a job; its memory is kept from one job to the next.
    request: Vec<u8>,
}

impl Process {
    /// Starts a program with the scheduling and the CPUs of the calling thread, and waits until it is prepared.
    pub(crate) fn start(program: &Program) -> io::Result<Process> {
        program.check()?;
        let mut command = program.command(&program.words);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let handle = match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(error) => {
                child.kill()?;
                child.wait()?;
                return Err(error.into());
            }
        };
        let mut process = Process {
            child,
            handle,
            is_reaped: false,
            to,
            from: from.expect("a pipe was asked for"),
            line: Vec::with_capacity(LINE_BYTES_MAX + 1),
            request: Vec::with_capacity(REQUEST_BYTES),
        };
        let asked = process.send(0, Duration::ZERO, Duration::ZERO, None);
        let prepared = asked.and_then(|()| process.wait_for(0, Some(Instant::now() + PREPARE_MAX)));
        match prepared {
            Ok(()) => Ok(process),
            Err(error) => Err(process.ended(error)),
        }
    }

    /// Number of the process.
    pub(crate) fn number(&self) -> sys::ThreadNumber {
        Pid::from_child(&self.child).as_raw_nonzero().get()
    }

    /// A handle by which another thread may kill it, whatever becomes of its number.
    pub(crate) fn handle(&self) -> io::Result<OwnedFd> {
        self.handle.try_clone()
    }

    /// Has it do a job. An error if it has ended.
    pub(crate) fn run(&mut self, job: &Job, message: Option<&[u8]>) -> io::Result<()> {
        self.send(job.number, job.release, job.deadline, message)
            .and_then(|()| self.wait_for(job.number, None))
            .map_err(|error| self.ended(error))
    }

    /// The error, with the way in which the program ended if that is what it says.
    fn ended(&mut self, error: io::Error) -> io::Error {
        if !matches!(
            error.kind(),
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe
        ) {
            return error;
        }
        // Its pipes close a moment before it has ended.
        let status = self.wait_for_end(PIPES_END_MAX);
        io::Error::other(match status {
            Some(status) => format!("its program ended ({status})"),
            None => "its program closed its input or its output".to_owned(),
        })
    }

    fn send(
        &mut self,
        number: u64,
        release: Duration,
        deadline: Duration,
        message: Option<&[u8]>,
    ) -> io::Result<()> {
        // One write for the whole line. The pipe has room, since there is one job at a time, for messages of up to
        // 32 KiB; a longer one waits until the program reads.
        self.request.clear();
        write!(self.request, "{number} {} {}", ns(release), ns(deadline))?;
        if let Some(message) = message {
            self.request.push(b' ');
            let digits = message.iter().flat_map(|byte| [byte >> 4, byte & 15]);
            self.request.extend(digits.map(digit));
        }
        self.request.push(b'\n');
        let to = self.to.as_mut().ok_or(ErrorKind::BrokenPipe)?;
        to.write_all(&self.request)
    }

    fn wait_for(&mut self, number: u64, until: Option<Instant>) -> io::Result<()> {
        let mut buffer = [0; 4 * LINE_BYTES_MAX];
        let mut has_answered = false;
        while !has_answered {
            // Output from before its end counts. Others may hold it open, and write on.
            let has_ended = self.wait_for_input(until)?;
            let length = match self.from.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            for byte in &buffer[..length] {
                match *byte {
                    b'\n' => {
                        has_answered |= self.is_answer(number);
                        self.line.clear();
                    }
                    // A longer line is none that counts: its length says so.
                    byte if self.line.len() <= LINE_BYTES_MAX => self.line.push(byte),
                    _ => {}
                }
            }
            if has_ended && !has_answered {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Whether the line is the number of a job.
    fn is_answer(&self, number: u64) -> bool {
        let text = std::str::from_utf8(self.line.trim_ascii());
        self.line.len() <= LINE_BYTES_MAX && text.is_ok_and(|text| text.parse() == Ok(number))
    }

    /// Waits for output, or the end of it; whether the process has ended. An error if it has, and no output is left.
    fn wait_for_input(&self, until: Option<Instant>) -> io::Result<bool> {
        let mut watched = [
            PollFd::new(&self.from, PollFlags::IN),
            PollFd::new(&self.handle, PollFlags::IN),
        ];
        if poll_until(&mut watched, until)? == 0 {
            return Err(ErrorKind::TimedOut.into());
        }
        let [has_input, has_ended] = watched.map(|one| !one.revents().is_empty());
        match has_input {
            true => Ok(has_ended),
            false => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Asks it to end, and kills it if it does not.
    pub(crate) fn end(mut self) {
        self.to = None;
        // If it does not, the rest is `drop`'s.
        let _status = self.wait_for_end(END_MAX);
    }

    /// The way in which it ended, if it does within a time.
    fn wait_for_end(&mut self, time_max: Duration) -> Option<ExitStatus> {
        let mut watched = [PollFd::new(&self.handle, PollFlags::IN)];
        match poll_until(&mut watched, Some(Instant::now() + time_max)) {
            Ok(0) | Err(_) => None,
            Ok(_) => self.reap(),
        }
    }

    /// Kills all that is left of its group, which has the child's number until the child is waited for, and waits.
    fn reap(&mut self) -> Option<ExitStatus> {
        if !self.is_reaped {
            let group = Pid::from_child(&self.child);
            let _ = kill_process_group(group, Signal::KILL); // all have ended
            self.is_reaped = true;
        }
        self.child.wait().ok()
    }
}

/// Polls until something has happened or the time has come (never if `None`), whatever signals come.
fn poll_until(watched: &mut [PollFd<'_>], until: Option<Instant>) -> rustix::io::Result<usize> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let limit = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(watched, limit.as_ref()) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _status = self.reap();
    }
}

/// Kills the process of a handle.
pub(crate) fn kill(handle: &OwnedFd) {
    let _ = pidfd_send_signal(handle, Signal::KILL); // it has ended already
}

/// Hexadecimal digit of a number below 16.
fn digit(number: u8) -> u8 {
    b"0123456789abcdef"[usize::from(number & 15)]
}

/// How a task's process ended, for the report.
pub(crate) fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut => format!(
            "its program did not answer job 0 within {} s",
            PREPARE_MAX.as_secs()
        ),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(script: &str) -> Program {
        Program {
            words: ["sh", "-c", script].map(str::to_owned).to_vec(),
            safe_words: None,
            directory: PathBuf::new(),
        }
    }

    fn job(number: u64) -> Job {
        Job {
            number,
            arrival: Duration::from_millis(1),
            release: Duration::from_millis(1),
            ready: Duration::from_millis(1),
            deadline: Duration::from_millis(2),
            is_background: false,
        }
    }

    #[test]
    fn a_program_answers_each_job() {
        let script = "while read number release deadline; do echo working; echo \"$number\"; done";
        let mut process = Process::start(&program(script)).unwrap();
        for number in 1..50 {
            process.run(&job(number), None).unwrap();
        }
        assert!(sys::cpu_time_of_process(process.number()).is_some());
        process.end();
    }

    #[test]
    fn it_is_told_times_and_noise_is_no_answer() {
        let long = "x".repeat(10_000);
        let script = format!(
            "read a b c; [ \"$a $b $c\" = '0 0 0' ] || exit; echo {long}; echo 0; \
             read a b c; [ \"$b $c\" = '1000000 2000000' ] || exit; echo 12; echo 1x; echo 1; cat"
        );
        let mut process = Process::start(&program(&script)).unwrap();
        process.run(&job(1), None).unwrap();
    }

    #[test]
    fn a_message_follows_the_times_as_hexadecimal_digits() {
        let script = "read a b c; echo 0; read a b c d; [ \"$d\" = 00ff41 ] || exit; echo 1; \
                      read a b c d; [ -z \"$d\" ] || exit; echo 2; cat";
        let mut process = Process::start(&program(script)).unwrap();
        process.run(&job(1), Some(&[0, 255, b'A'])).unwrap();
        process.run(&job(2), Some(&[])).unwrap();
    }

    #[test]
    fn a_program_that_ends_or_is_not_there_is_an_error() {
        let error = Process::start(&program("exit 3")).unwrap_err();
        assert_eq!(reason(&error), "its program ended (exit status: 3)");
        let mut process =
            Process::start(&program("read a; echo 0; read a; kill -KILL $$")).unwrap();
        assert_eq!(
            reason(&process.run(&job(1), None).unwrap_err()),
            "its program ended (signal: 9 (SIGKILL))"
        );
        let nowhere = Program {
            words: vec!["./no-such-program".to_owned()],
            ..program("")
        };
        let error = Process::start(&nowhere).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn nothing_is_left_of_one_that_does_not_end() {
        let script = "sleep 1000 & echo 0; trap '' TERM; while :; do sleep 1000; done";
        let process = Process::start(&program(script)).unwrap();
        let group = Pid::from_raw(process.number()).unwrap();
        process.end();
        wait_until_gone(group);
    }

    /// Those that a child started have another parent, which waits for them at leisure.
    fn wait_until_gone(group: Pid) {
        let start = Instant::now();
        while rustix::process::test_kill_process_group(group).is_ok() {
            assert!(start.elapsed() < Duration::from_secs(10), "still there");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A helper in the program's group that holds its output open and would go on with the outputs.
    #[test]
    fn the_end_of_a_program_is_seen_and_its_helpers_are_killed() {
        let writes = "while :; do echo noise; done";
        for helper in ["sleep 1000", writes, "exec >/dev/null; sleep 1000"] {
            let script = format!("({helper}) & echo 0; read a; exit 3");
            let mut process = Process::start(&program(&script)).unwrap();
            let group = Pid::from_raw(process.number()).unwrap();
            let error = process.run(&job(1), None).unwrap_err();
            assert_eq!(reason(&error), "its program ended (exit status: 3)");
            drop(process);
            wait_until_gone(group);
        }
    }
}
