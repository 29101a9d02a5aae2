//! Report of `taut exec`, printed when the program has ended, however it did: its processes have left their figures on
//! a board in shared memory.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Duration;

use tautline_awake::board::{Board, Effect, ProcessFigures};
use tautline_awake::flow::Micros;

/// Word of TAUTLINE_AWAKE by which the library finds the board.
pub(super) fn word(board: &File) -> String {
    format!("board={}/{}", std::process::id(), board.as_raw_fd())
}

/// Prints to standard error. `program`: number of the process that was started, which ran for so long.
pub(super) fn print(board: Board, program: u32, ran: Duration) {
    let processes = board.processes();
    if processes.is_empty() {
        say!(
            "taut exec: nothing to report: no sleep, and fewer than 8 messages at each descriptor"
        );
    }
    for process in &processes {
        let ran = (process.number == program).then_some(ran);
        let mut text = String::new();
        // Writing to a string does not fail.
        let _written = write_process(&mut text, process, ran);
        say!("{}", text.trim_end());
    }
    if board.left_out() > 0 {
        say!(
            "taut exec: {} more processes and descriptors are not listed",
            board.left_out()
        );
    }
}

/// A line for the process, one for each descriptor that was waited for, and one for sleeps.
fn write_process(
    text: &mut String,
    process: &ProcessFigures,
    ran: Option<Duration>,
) -> fmt::Result {
    write!(text, "taut exec: ")?;
    if ran.is_none() {
        write!(text, "process {}: ", process.number)?;
    }
    match process.effect {
        Effect::Limited => write!(
            text,
            "watched only, since a cgroup limits the CPU time (cpu.max)"
        )?,
        Effect::Watched => write!(text, "watched, nothing changed")?,
        Effect::Awake(settings) => write!(text, "{settings}")?,
    }
    write!(text, "; awake for {} ms in all", process.looked.as_millis())?;
    if let Some(ran) = ran.filter(|ran| !ran.is_zero()) {
        let share = process.looked.as_secs_f64() / ran.as_secs_f64() * 100.0;
        write!(text, ", {share:.1} per cent")?;
    }
    writeln!(text)?;
    for (descriptor, figures, past) in &process.flows {
        write!(text, "taut exec: descriptor {descriptor}: {figures}")?;
        if !matches!(process.effect, Effect::Awake(_)) {
            let met = figures.could_be_met;
            write!(text, "; {met} per cent could be met awake")?;
        }
        match past {
            Some(Ok(count)) => write!(text, "; {count} past the stack")?,
            Some(Err(refusal)) => write!(text, "; all through the stack: {}", refusal.why())?,
            None => {}
        }
        writeln!(text)?;
    }
    let late = [500, 990, 999].map(|quantile| process.late(quantile).map(Micros));
    if let [Some(p50), Some(p99), Some(p999)] = late {
        writeln!(
            text,
            "taut exec: sleeps: late by {p50} (p50), {p99} (p99), {p999} (p99.9)"
        )?;
    }
    Ok(())
}
