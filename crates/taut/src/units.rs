//! Times and sizes on the command line: numbers with their units.

use std::time::Duration;

use tautline_state::units;

/// Longest time that an option takes: what a clock of 64 bits of nanoseconds can add without an overflow.
const TIME_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// Nanoseconds of a time; centuries are all the same.
pub fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A number of things: `1 neighbour`, `2 neighbours`.
pub fn counted(count: usize, thing: &str) -> String {
    let end = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{end}")
}

/// Reads a number of things, 1 or more.
pub fn count(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "expected a whole number, 1 or more".to_owned())
}

/// Reads a time with its unit; 0 needs none.
pub fn time(text: &str) -> Result<Duration, String> {
    let zero = || (text.parse() == Ok(0.0)).then_some(Duration::ZERO);
    units::time(text)
        .or_else(zero)
        .filter(|time| *time <= TIME_MAX)
        .ok_or_else(|| "expected a time with its unit, such as 5s, 10ms or 100us".to_owned())
}

/// Reads a time that is not zero.
pub fn some_time(text: &str) -> Result<Duration, String> {
    let time = time(text)?;
    match time.is_zero() {
        true => Err("expected a time above zero".to_owned()),
        false => Ok(time),
    }
}

/// Reads a size with its unit, in bytes; 0 needs none.
pub fn size(text: &str) -> Result<usize, String> {
    let has_unit = text.ends_with(|last: char| last.is_ascii_alphabetic());
    units::bytes(text, 1)
        .filter(|bytes| has_unit || *bytes == 0)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(|| "expected a size with its unit, such as 1400B, 64KiB or 16M".to_owned())
}

/// Reads a size of memory above zero, in bytes.
pub fn memory(text: &str) -> Result<u64, String> {
    let bytes = Some(size(text)?).filter(|bytes| *bytes > 0);
    let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
    bytes.ok_or_else(|| "expected a size above zero".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_have_units() {
        for (text, ns) in [
            ("5s", 5_000_000_000),
            ("10ms", 10_000_000),
            ("100us", 100_000),
            ("100µs", 100_000),
            ("1.5ms", 1_500_000),
            ("800ns", 800),
            ("2min", 120_000_000_000),
            ("1h", 3_600_000_000_000),
            ("0ms", 0),
            ("0", 0),
        ] {
            assert_eq!(time(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        for (text, bytes) in [
            ("1400B", 1_400),
            ("64KiB", 65_536),
            ("64 KiB", 65_536),
            ("1kB", 1_000),
            ("2MiB", 2 << 20),
            ("256M", 256 << 20),
            ("256MB", 256_000_000),
            ("0", 0),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn anything_else_says_what_is_expected() {
        for text in [
            "", "s", "5", "2.5", "-1", "-1s", "1 day", "NaN", "inf", "1e300", "5 5s", "ms5", "0x5",
            "µ",
        ] {
            let error = time(text).unwrap_err();
            assert!(error.contains("5s, 10ms or 100us"), "{text}: {error}");
        }
        for text in [
            "",
            "KiB",
            "64",
            "-1",
            "1.5KiB",
            "64kib",
            "18446744073709551615KiB",
            "é",
        ] {
            let error = size(text).unwrap_err();
            assert!(error.contains("64KiB or 16M"), "{text}: {error}");
        }
        assert!(some_time("0").is_err() && some_time("0us").is_err());
        assert!(memory("0").is_err() && memory("much").is_err());
        assert_eq!(memory("256MB"), Ok(256_000_000));
    }
}
