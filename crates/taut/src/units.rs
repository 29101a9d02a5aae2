//! Times and sizes on the command line: a number with its unit, or a plain number in the option's own unit.

use std::time::Duration;

use tautline_state::units;

const NANOSECOND: f64 = 1.0;
const MICROSECOND: f64 = 1e3;
const MILLISECOND: f64 = 1e6;
const SECOND: f64 = 1e9;

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

/// Reads a time; a plain number is nanoseconds.
pub fn nanoseconds(text: &str) -> Result<Duration, String> {
    time(text, NANOSECOND, "nanoseconds")
}

/// Reads a time; a plain number is microseconds.
pub fn microseconds(text: &str) -> Result<Duration, String> {
    time(text, MICROSECOND, "microseconds")
}

/// Reads a time; a plain number is milliseconds.
pub fn milliseconds(text: &str) -> Result<Duration, String> {
    time(text, MILLISECOND, "milliseconds")
}

/// Reads a time; a plain number is seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    time(text, SECOND, "seconds")
}

/// Reads a time that is not zero; a plain number is microseconds.
pub fn some_microseconds(text: &str) -> Result<Duration, String> {
    positive(microseconds(text)?)
}

/// Reads a time that is not zero; a plain number is milliseconds.
pub fn some_milliseconds(text: &str) -> Result<Duration, String> {
    positive(milliseconds(text)?)
}

/// Reads a time that is not zero; a plain number is seconds.
pub fn some_seconds(text: &str) -> Result<Duration, String> {
    positive(seconds(text)?)
}

fn positive(time: Duration) -> Result<Duration, String> {
    if time.is_zero() {
        Err("expected a time above zero".to_owned())
    } else {
        Ok(time)
    }
}

fn time(text: &str, unit_ns: f64, unit: &str) -> Result<Duration, String> {
    let plain = text.parse::<f64>().ok().map(|number| number * unit_ns);
    let zero = || {
        let number = text.trim_end_matches(|c: char| c.is_alphabetic());
        let known = ["ns", "us", "µs", "ms", "s", "min", "h"].contains(&&text[number.len()..]);
        (known && number.parse() == Ok(0.0)).then_some(0.0)
    };
    plain
        .or_else(|| units::duration_ns(text).map(|ns| ns as f64))
        .or_else(zero)
        .and_then(|ns| Duration::try_from_secs_f64(ns / SECOND).ok())
        .filter(|time| *time <= TIME_MAX)
        .ok_or_else(|| {
            format!("expected a time such as 5s, 10ms or 100us; a plain number is {unit}")
        })
}

/// Reads a size in bytes; a plain number is bytes.
pub fn bytes(text: &str) -> Result<usize, String> {
    size(text, 1, "bytes")
}

/// Reads a size in bytes; a plain number is MiB.
pub fn mebibytes(text: &str) -> Result<usize, String> {
    size(text, 1 << 20, "MiB")
}

/// Reads a size of memory above zero; a plain number is bytes.
pub fn memory(text: &str) -> Result<u64, String> {
    let bytes = Some(bytes(text)?).filter(|bytes| *bytes > 0);
    let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
    bytes.ok_or_else(|| "expected a size above zero".to_owned())
}

fn size(text: &str, plain_bytes: u64, unit: &str) -> Result<usize, String> {
    units::bytes(text, plain_bytes)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(|| {
            format!("expected a size such as 64, 1400B, 64KiB or 16M; a plain number is {unit}")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_number_keeps_the_unit_of_its_option() {
        assert_eq!(milliseconds("100"), Ok(Duration::from_millis(100)));
        assert_eq!(seconds("2.5"), Ok(Duration::from_millis(2_500)));
        assert_eq!(microseconds("0"), Ok(Duration::ZERO));
        assert_eq!(nanoseconds("20000"), Ok(Duration::from_micros(20)));
        assert_eq!(bytes("65507"), Ok(65_507));
        assert_eq!(mebibytes("256"), Ok(256 << 20));
    }

    #[test]
    fn a_unit_says_what_it_says_whatever_the_option() {
        for read in [nanoseconds, microseconds, milliseconds, seconds] {
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
            ] {
                assert_eq!(read(text), Ok(Duration::from_nanos(ns)), "{text}");
            }
        }
        for (text, size) in [
            ("1400B", 1_400),
            ("64KiB", 65_536),
            ("64 KiB", 65_536),
            ("1kB", 1_000),
            ("2MiB", 2 << 20),
            ("256M", 256 << 20),
            ("256MB", 256_000_000),
        ] {
            assert_eq!(
                (bytes(text), mebibytes(text)),
                (Ok(size), Ok(size)),
                "{text}"
            );
        }
    }

    #[test]
    fn anything_else_says_what_is_expected() {
        for text in [
            "", "s", "-1", "-1s", "1 day", "NaN", "inf", "1e300", "5 5s", "ms5", "0x5", "µ",
        ] {
            let error = seconds(text).unwrap_err();
            assert!(
                error.contains("5s, 10ms or 100us; a plain number is seconds"),
                "{text}: {error}"
            );
        }
        for text in [
            "",
            "KiB",
            "-1",
            "1.5KiB",
            "64kib",
            "18446744073709551615KiB",
            "é",
        ] {
            let error = bytes(text).unwrap_err();
            assert!(
                error.contains("64KiB or 16M; a plain number is bytes"),
                "{text}: {error}"
            );
        }
        assert!(some_seconds("0").is_err() && some_milliseconds("0us").is_err());
        assert!(memory("0").is_err() && memory("much").is_err());
        assert_eq!(memory("256MB"), Ok(256_000_000));
    }
}
