//! `taut guest show --clock`: a guest's clock against CLOCK_MONOTONIC, with the bound of the error.
//!
//! The guest's moments t2 and t3 lie between ours, t1 and t4. So its clock is ahead by t2 - t1 at the most and by
//! t3 - t4 at the least, whatever took how long. The narrowest interval of all answers is the result.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use tautline::{PortNumber, Priority, Wait};
use tautline_state::interrupt;

use crate::cli::CommandError;
use crate::commands::guest::conversation::{Way, default_port};
use crate::commands::live::LOOK;
use crate::commands::output::JsonArguments;
use crate::commands::peer;
use crate::units;

/// Start of a question and of its answer.
const MARK: [u8; 4] = *b"TLTI";

/// Questions to ask. Lower: the narrowest interval is wider. Higher: the command takes longer.
const QUESTIONS: u64 = 1_000;

/// Arguments for the clock.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Compare the guest's clock with this machine's.
    #[arg(long, requires = "name")]
    clock: bool,
    /// Port of the guest that tells its time.
    #[arg(long, value_name = "N", value_parser = peer::port_number, default_value_t = default_port(), requires = "clock")]
    port: PortNumber,
    /// Time to wait for an answer, such as 500ms.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::time, requires = "clock")]
    timeout: Duration,
}

impl Arguments {
    /// Whether the clock was asked for.
    pub(super) fn is_wanted(&self) -> bool {
        self.clock
    }
}

/// Interval in which the offset lies, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    least: i128,
    most: i128,
}

impl Bounds {
    fn width(self) -> i128 {
        self.most - self.least
    }

    /// Of one answer; `None`: the guest's moments cannot be true.
    fn of(asked: u64, came: u64, went: u64, answered: u64) -> Option<Bounds> {
        let [t1, t2, t3, t4] = [asked, came, went, answered].map(i128::from);
        let bounds = Bounds {
            least: t3 - t4,
            most: t2 - t1,
        };
        (t3 >= t2 && bounds.width() >= 0).then_some(bounds)
    }
}

/// Questions and their answers.
#[derive(Default)]
struct Asked {
    best: Option<Bounds>,
    answered: u64,
    impossible: u64,
}

/// Asks and prints. No answer that can be true: exit status 1.
pub(super) fn run(
    name: &str,
    arguments: &Arguments,
    json: &JsonArguments,
) -> Result<(), CommandError> {
    let mut way = Way::open(name, arguments.port, arguments.timeout)?;
    let asked = ask_all(arguments.timeout, &mut way)?;
    let Some(best) = asked.best else {
        return Err(CommandError::failed(
            format!(
                "guest `{name}` does not tell its time: {} answers, {} of which cannot be true",
                asked.answered, asked.impossible
            ),
            "let its program answer with tlg_tell_time, as bindings/guest/examples/echo.c does",
        ));
    };
    // Rounded up: the offset is never further away.
    let bound = (best.width() + 1) / 2;
    let offset = best.least + bound;
    json.print(
        || {
            json!({
                "name": name,
                "offset_ns": i64::try_from(offset).ok(),
                "error_max_ns": i64::try_from(bound).ok(),
                "asked": QUESTIONS,
                "answered": asked.answered,
                "impossible": asked.impossible,
            })
        },
        || {
            format!(
                "guest {name}: its clock is CLOCK_MONOTONIC {}{}.{:09} s, \u{b1} {}.{:03} \u{b5}s ({} of {} answered, {} impossible)\n",
                if offset < 0 { "- " } else { "+ " },
                offset.abs() / 1_000_000_000,
                offset.abs() % 1_000_000_000,
                bound / 1_000,
                bound % 1_000,
                asked.answered,
                QUESTIONS,
                asked.impossible,
            )
        },
    )
}

fn ask_all(timeout: Duration, way: &mut Way) -> Result<Asked, CommandError> {
    let mut asked = Asked::default();
    let mut buffer = vec![0; way.port.message_bytes_max()];
    let mut missed = 0;
    for number in 0..QUESTIONS {
        let mut question = [0; 8];
        question[..4].copy_from_slice(&MARK);
        question[4..].copy_from_slice(&(number as u32).to_le_bytes());
        let t1 = tautline::now();
        way.port
            .send(way.to, Priority::HIGHEST, &question)
            .map_err(peer::send_error)?;
        let until = t1 + timeout;
        let mut has_answered = false;
        // An answer to an earlier question may come before; a guest that sends without end is not waited for.
        while !has_answered && tautline::now() < until {
            let look = until.min(tautline::now() + LOOK);
            let found = way.port.receive_into(&mut buffer, Wait::Until(look));
            let t4 = tautline::now();
            if let Some(signal) = interrupt::interrupted() {
                return Err(CommandError::interrupted(signal));
            }
            let Some(message) = found.map_err(peer::receive_error)? else {
                continue;
            };
            let Some((came, went)) = moments(&buffer[..message.length], question) else {
                continue;
            };
            has_answered = true;
            asked.answered += 1;
            match Bounds::of(t1.as_nanos(), came, went, t4.as_nanos()) {
                Some(bounds) if asked.best.is_none_or(|best| bounds.width() < best.width()) => {
                    asked.best = Some(bounds);
                }
                Some(_) => {}
                None => asked.impossible += 1,
            }
        }
        missed = if has_answered { 0 } else { missed + 1 };
        if missed == MISSED_MAX {
            break;
        }
    }
    Ok(asked)
}

/// Questions without an answer, one after the other, after which no more are asked.
const MISSED_MAX: u32 = 3;

/// The guest's two moments, if this is the answer to the question.
fn moments(answer: &[u8], question: [u8; 8]) -> Option<(u64, u64)> {
    let (echoed, rest) = answer.split_first_chunk::<8>()?;
    let (came, rest) = rest.split_first_chunk::<8>()?;
    let went = rest.try_into().ok()?;
    (*echoed == question).then(|| (u64::from_le_bytes(*came), u64::from_le_bytes(went)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_lies_between_its_bounds_whatever_took_how_long() {
        // The guest's clock is 1,000 ahead; the question takes 30, the guest 5, the answer 2.
        let bounds = Bounds::of(100, 1_130, 1_135, 137).expect("possible");
        assert_eq!((bounds.least, bounds.most), (998, 1_030));
        // Behind.
        let bounds = Bounds::of(5_000, 10, 10, 5_004).expect("possible");
        assert_eq!((bounds.least, bounds.most), (-4_994, -4_990));
    }

    #[test]
    fn moments_that_cannot_be_true_are_refused() {
        for (came, went) in [(50, 40), (0, u64::MAX), (u64::MAX, 0), (10, 31)] {
            assert_eq!(Bounds::of(100, came, went, 120), None, "{came} {went}");
        }
        assert!(Bounds::of(0, u64::MAX, u64::MAX, u64::MAX).is_some());
    }

    #[test]
    fn only_the_answer_to_the_question_counts() {
        let mut answer = [0; 24];
        answer[..8].copy_from_slice(b"TLTI\x07\0\0\0");
        answer[8] = 3;
        answer[16] = 9;
        assert_eq!(moments(&answer, *b"TLTI\x07\0\0\0"), Some((3, 9)));
        assert_eq!(moments(&answer, *b"TLTI\x08\0\0\0"), None);
        assert_eq!(moments(&answer[..23], *b"TLTI\x07\0\0\0"), None);
        assert_eq!(moments(b"", *b"TLTI\x07\0\0\0"), None);
    }
}
