//! Beginning and end of a program, and what it writes.

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tautline_state::text::plain_lines;

/// Bytes of a line on standard error, with its end: a page, for which a pipe has room when it says so. Higher: a
/// program may wait for its reader. Lower: less of a long error is shown.
const LINE_BYTES_MAX: usize = 4096;

/// A failure and its remedy, for a person.
#[derive(Debug)]
pub struct Failed {
    what: String,
    remedy: &'static str,
    status: u8,
}

impl Failed {
    /// Something did not work: status 1.
    pub fn new(what: impl ToString, remedy: &'static str) -> Self {
        Self {
            what: what.to_string(),
            remedy,
            status: 1,
        }
    }

    /// The program was called wrongly, or a file of its user is wrong: status 2.
    pub fn wrong_use(what: impl ToString, remedy: &'static str) -> Self {
        Self {
            status: 2,
            ..Self::new(what, remedy)
        }
    }
}

/// Why a part of a program ended.
pub type Failure = Box<dyn Error + Send + Sync>;

/// Exit status; writes a failure of `command`, and what to do.
#[must_use]
pub fn ended(command: &str, result: Result<(), Failed>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            let Failed {
                what,
                remedy,
                status,
            } = failed;
            say(&format!("{command}: {what}\n  what to do: {remedy}"));
            ExitCode::from(status)
        }
    }
}

/// A flag that SIGINT, SIGTERM and SIGHUP set; the second of them ends the process at once.
///
/// # Errors
/// There is no descriptor for the handler.
pub fn signals() -> Result<Arc<AtomicBool>, Failed> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| {
                Failed::new(
                    format!("cannot watch for signals: {error}"),
                    "raise the limit of open files (ulimit -n)",
                )
            })?;
    }
    Ok(stop)
}

/// Limits the memory of this process, which ends by SIGABRT when it needs more. Memory that it shares with others, as
/// that of ports, does not count. A lower limit stays.
///
/// # Errors
/// The kernel refuses it.
pub fn limit_memory(bytes: u64) -> Result<(), Failed> {
    let limits = getrlimit(Resource::Data);
    let at_most = |limit: Option<u64>| Some(limit.map_or(bytes, |limit| limit.min(bytes)));
    let limits = Rlimit {
        current: at_most(limits.current),
        maximum: at_most(limits.maximum),
    };
    setrlimit(Resource::Data, limits).map_err(|error| {
        Failed::new(
            format!("cannot limit the memory of this program: {error}"),
            "allow it to lower its limits (setrlimit)",
        )
    })
}

/// Starts a thread whose end, good or bad, sets `stop`.
///
/// # Errors
/// The system has no thread left.
pub fn start(
    name: &str,
    stop: &Arc<AtomicBool>,
    work: impl FnOnce() -> Result<(), Failure> + Send + 'static,
) -> Result<JoinHandle<Result<(), Failure>>, Failure> {
    let end = End(Arc::clone(stop));
    let thread = thread::Builder::new().name(name.to_owned());
    Ok(thread.spawn(move || {
        let _end = end;
        work()
    })?)
}

/// Sets a flag when it is dropped, by a panic too.
pub(crate) struct End(pub(crate) Arc<AtomicBool>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Waits for the end of a thread.
///
/// # Errors
/// That of its work, or it has panicked.
pub fn join(thread: JoinHandle<Result<(), Failure>>) -> Result<(), Failure> {
    let name = thread.thread().name().unwrap_or_default().to_owned();
    let panicked = |_| -> Failure { format!("the thread `{name}` has panicked").into() };
    thread.join().map_err(panicked)?
}

/// Runs this program again in this process, with its own arguments and what `change` does to the command. Returns only
/// if that fails. Nothing of the first run remains: its descriptors close, and its ports with them.
pub fn run_again(change: impl FnOnce(&mut Command)) -> io::Error {
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let mut words = env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = words.next() {
        command.arg0(name);
    }
    command.args(words);
    change(&mut command);
    command.exec()
}

/// Writes JSON to the file `json`, to standard output if that is `-`, and the text unless standard output has the JSON.
///
/// # Errors
/// The file cannot be written.
pub fn output(json: Option<&Path>, told: &serde_json::Value, text: &str) -> Result<(), Failed> {
    let Some(path) = json else {
        print(text);
        return Ok(());
    };
    let bytes = format!("{told:#}\n");
    if path == Path::new("-") {
        print(&bytes);
        return Ok(());
    }
    tautline_state::write_whole(path, bytes.as_bytes())
        .map_err(|error| Failed::new(error, "name a file in a directory that you may write to"))?;
    print(text);
    Ok(())
}

/// Writes a line to standard error, unless its reader has gone away, or reads so little that it would have to wait.
/// `eprintln!` would panic or wait. What a line has beyond 4095 bytes is left out.
pub fn say(line: &str) {
    // Locked first: of two threads that find room for one line, the second would wait.
    let _unread = write_at_once(io::stderr().lock(), &plain_lines(line));
}

fn write_at_once(mut to: impl Write + AsFd, line: &str) -> io::Result<()> {
    let mut ready = [PollFd::new(&to, PollFlags::OUT)];
    if poll(&mut ready, Some(&Timespec::default()))? == 0 {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let is_end = |bytes: &usize| line.is_char_boundary(*bytes);
    let mut ends = (0..=line.len().min(LINE_BYTES_MAX - 1)).rev();
    let shown = &line[..ends.find(is_end).unwrap_or_default()];
    to.write_all(format!("{shown}\n").as_bytes())
}

/// Writes to standard output; a reader that has gone away is no error.
fn print(text: &str) {
    let _gone = io::stdout().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_line_waits_for_no_reader_and_needs_none() {
        let (mut reader, writer) = io::pipe().unwrap();
        write_at_once(&writer, "read").unwrap();
        reader.read_exact(&mut [0; 5]).unwrap();
        let longest = "€".repeat(10_000);
        write_at_once(&writer, &longest).unwrap();
        let mut shown = [0; LINE_BYTES_MAX];
        reader.read_exact(&mut shown).unwrap();
        assert_eq!(
            shown.split_last().unwrap(),
            (&b'\n', &longest.as_bytes()[..4095])
        );
        let filled = (0..).find_map(|_| write_at_once(&writer, &longest).err());
        assert_eq!(filled.unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(reader);
        let gone = write_at_once(&writer, "unread").unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn the_end_of_a_thread_is_the_programs_whichever_it_is() {
        let works: [fn() -> Result<(), Failure>; 3] = [
            || Ok(()),
            || Err("no room".into()),
            || panic!("as the test has it"),
        ];
        let told = works.map(|work| {
            let stop = Arc::new(AtomicBool::new(false));
            let ended = join(start("work", &stop, work).unwrap());
            assert!(stop.load(Relaxed), "{ended:?}");
            ended.err().map(|error| error.to_string())
        });
        let expected = [
            None,
            Some("no room"),
            Some("the thread `work` has panicked"),
        ];
        assert_eq!(told.each_ref().map(Option::as_deref), expected);
    }
}
