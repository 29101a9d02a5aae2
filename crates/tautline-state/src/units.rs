//! Times and sizes as users write them, on the command line and in files. No plain numbers of times: each place that
//! takes them has a unit of its own.

use std::time::Duration;

/// Units of sizes. K, M and G are short for KiB, MiB and GiB, powers of 1,024; kB, MB and GB are powers of 1,000.
const SIZES: [(&str, u64); 11] = [
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("K", 1 << 10),
    ("KiB", 1 << 10),
    ("M", 1 << 20),
    ("MiB", 1 << 20),
    ("G", 1 << 30),
    ("GiB", 1 << 30),
];

/// Bytes of a size such as `1400B`, `64KiB` or `256M`; a plain number counts units of `plain_bytes`. `None`: the text
/// is invalid.
#[must_use]
pub fn bytes(text: &str, plain_bytes: u64) -> Option<u64> {
    let digits = text.trim_end_matches(|one: char| one.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "" => plain_bytes,
        unit => SIZES.iter().find(|(name, _)| *name == unit)?.1,
    };
    let number: u64 = digits.trim_end().parse().ok()?;
    number.checked_mul(scale)
}

/// Units of times, in nanoseconds.
const TIMES: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A time such as `250us`, `1.5s`, `2min` or `1h`, exact to the nanosecond; finer digits are left out. `None`: no unit,
/// no time, or more than 64 bits of nanoseconds.
#[must_use]
pub fn time(text: &str) -> Option<Duration> {
    let digits = text.find(|one: char| one != '.' && !one.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, scale) = TIMES.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<f64>().ok()?; // its form; the value would lose digits
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = format!("0{whole}").parse::<u64>().ok()?; // `.5s`
    let mut ns = whole.checked_mul(*scale)?;
    let mut place = *scale;
    for digit in fraction.chars() {
        place /= 10;
        ns = ns.checked_add(u64::from(digit.to_digit(10)?) * place)?;
    }
    Some(Duration::from_nanos(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_are_exact() {
        for (text, ns) in [
            ("250us", 250_000),
            ("250 µs", 250_000),
            ("1.5ms", 1_500_000),
            ("0us", 0),
            (".5us", 500),
            ("0.0000000019s", 1),
            ("800ns", 800),
            ("2min", 120_000_000_000),
            ("1h", 3_600_000_000_000),
        ] {
            assert_eq!(time(text), Some(Duration::from_nanos(ns)), "{text}");
        }
        for text in [
            "",
            "5",
            "us",
            "-1us",
            "1.2.3us",
            "1 fortnight",
            "99999999999999999h",
        ] {
            assert_eq!(time(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_have_units() {
        for (text, expected) in [
            ("256M", 256 << 20),
            ("256MiB", 256 << 20),
            ("256MB", 256_000_000),
            ("1G", 1 << 30),
            ("1GB", 1_000_000_000),
            ("64K", 64 << 10),
            ("64 KiB", 64 << 10),
            ("64kB", 64_000),
            ("64KB", 64_000),
            ("1400B", 1_400),
            ("4096", 4096),
        ] {
            assert_eq!(bytes(text, 1), Some(expected), "{text}");
        }
        assert_eq!(bytes("256", 1 << 20), Some(256 << 20));
        for text in [
            "",
            "M",
            "-1M",
            "1.5G",
            "64kib",
            "64k",
            "18446744073709551615K",
            "1é",
            "é",
            "1 T",
        ] {
            assert_eq!(bytes(text, 1), None, "{text}");
        }
    }
}
