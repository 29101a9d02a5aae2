//! Counts what a Rust test program printed with `--show-output`.

use serde::{Deserialize, Serialize};

/// Tests by what became of them. A test that skipped any of its work is skipped and not passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    pub(crate) skipped: u32,
}

/// The counts of a program's output, and the reasons of what was skipped. None if the program did not come to its end.
pub(crate) fn count(text: &str) -> Option<(Counts, Vec<String>)> {
    let mut counts = Counts::default();
    let mut reasons: Vec<String> = Vec::new();
    let (mut in_successes, mut ended) = (false, false);
    let mut test = String::new();
    let mut skipped: Option<String> = None;
    for line in text.lines().map(str::trim_end) {
        if line == "successes:" {
            in_successes = true;
        } else if line == "failures:" {
            in_successes = false;
        } else if let Some(name) = between(line, "---- ", " stdout ----") {
            test = name.to_owned();
        } else if let Some(reason) = line.strip_prefix("SKIPPED: ")
            && in_successes
        {
            if skipped.as_ref() != Some(&test) {
                counts.skipped += 1;
                counts.passed = counts.passed.wrapping_sub(1); // counted below, in the last line
                skipped = Some(test.clone());
            }
            if !reasons.iter().any(|known| known == reason) {
                reasons.push(reason.to_owned());
            }
        } else if let Some(result) = line.strip_prefix("test result: ") {
            let number = |what: &str| -> u32 {
                let words: Vec<&str> = result.split([' ', ';']).collect();
                let at = words.iter().position(|word| *word == what);
                at.and_then(|at| words.get(at.wrapping_sub(1))?.parse().ok())
                    .unwrap_or(0)
            };
            counts.passed = counts.passed.wrapping_add(number("passed"));
            counts.failed += number("failed");
            counts.skipped += number("ignored");
            ended = true;
        }
    }
    ended.then_some((counts, reasons))
}

fn between<'a>(line: &'a str, before: &str, after: &str) -> Option<&'a str> {
    line.strip_prefix(before)?.strip_suffix(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_skipped_is_not_passed() {
        let text = "\nrunning 3 tests\ntest a ... ok\ntest b ... ok\ntest c ... ignored\n\nsuccesses:\n\n---- a stdout ----\nSKIPPED: no veth\nSKIPPED: no veth\n\n\nsuccesses:\n    a\n    b\n\ntest result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.0s\n";
        let (counts, reasons) = count(text).unwrap();
        let expected = Counts {
            passed: 1,
            failed: 0,
            skipped: 2,
        };
        assert_eq!(counts, expected);
        assert_eq!(reasons, ["no veth"]);
    }

    #[test]
    fn failures_are_counted_and_an_output_without_an_end_is_none() {
        let text = "test a ... FAILED\nfailures:\n\n---- a stdout ----\nSKIPPED: x\ntest result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 4 filtered out\n";
        let (counts, _) = count(text).unwrap();
        assert_eq!((counts.passed, counts.failed, counts.skipped), (0, 1, 0));
        assert_eq!(count("running 3 tests\ntest a ... ok\n"), None);
    }
}
