//! Times and sizes as users write them, on the command line and in files. No plain numbers of times: each place that
//! takes them has a unit of its own.

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

/// Nanoseconds of a time such as `250us`, `1.5s`, `2min` or `1h`. `None`: zero, no unit, or no time.
#[must_use]
pub fn duration_ns(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| c != '.' && !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim_start() {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" => 60e9,
        "h" => 3_600e9,
        _ => return None,
    };
    let ns = number.parse::<f64>().ok()? * scale;
    (ns >= 1.0 && ns <= u64::MAX as f64).then_some(ns.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, ns) in [
            ("250us", 250_000),
            ("250µs", 250_000),
            ("1.5ms", 1_500_000),
            ("2s", 2_000_000_000),
            ("800ns", 800),
            ("10 us", 10_000),
        ] {
            assert_eq!(duration_ns(text), Some(ns), "{text}");
        }
        for text in ["", "5", "us", "-1us", "0us", "1.2.3us", "1 fortnight"] {
            assert_eq!(duration_ns(text), None, "{text}");
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
