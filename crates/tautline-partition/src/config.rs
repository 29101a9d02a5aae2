//! Configuration of a partition.

use tautline_state::cpus::CpuList;
use tautline_state::text;

use crate::PartitionError;

/// Longest name. Lower: sensible names do not fit. Higher: tables become too wide.
const NAME_BYTES_MAX: usize = 32;

/// Characters of a wrong name that are shown. Lower: it is hard to find. Higher: it hides the sentence around it.
const NAME_CHARS_SHOWN: usize = 80;

/// Units of memory.
const UNITS: [(&str, u64); 4] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("", 1),
];

/// Name, CPUs and memory of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionConfig {
    /// Its name, one for each user of the machine.
    pub name: String,
    /// CPUs that are set aside.
    pub cpus: CpuList,
    /// Memory that is reserved in huge pages; it is rounded up to whole ones.
    pub memory_bytes: u64,
}

impl PartitionConfig {
    /// A partition without reserved memory.
    ///
    /// # Errors
    /// [`PartitionError::InvalidName`].
    pub fn new(name: &str, cpus: CpuList) -> Result<PartitionConfig, PartitionError> {
        let mut characters = name.chars();
        let begins_well = characters
            .next()
            .is_some_and(|one| one.is_ascii_alphanumeric());
        let is_plain =
            characters.all(|one| one.is_ascii_alphanumeric() || matches!(one, '_' | '-' | '.'));
        if !begins_well || !is_plain || name.len() > NAME_BYTES_MAX {
            return Err(PartitionError::InvalidName(shown(name)));
        }
        Ok(PartitionConfig {
            name: name.to_owned(),
            cpus,
            memory_bytes: 0,
        })
    }

    /// The same with reserved memory.
    #[must_use]
    pub fn with_memory(self, memory_bytes: u64) -> Self {
        Self {
            memory_bytes,
            ..self
        }
    }
}

/// Bytes of a text such as `256MiB`; `256M` is the same.
pub fn memory_from_text(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|one: char| one.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let number: u64 = digits.trim_end().parse().ok()?;
    let is_unit = |name: &str| unit == name || (!name.is_empty() && unit == &name[..1]);
    let (_, scale) = UNITS.iter().find(|(name, _)| is_unit(name))?;
    number.checked_mul(*scale)
}

/// A name that may be anything, for a message.
pub(crate) fn shown(name: &str) -> String {
    text::plain(name, NAME_CHARS_SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        let cpus: CpuList = "1".parse().unwrap();
        for name in ["control", "a", "7-b_c.d", &"x".repeat(32)] {
            assert!(PartitionConfig::new(name, cpus.clone()).is_ok(), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            ".a",
            "-a",
            "a/b",
            "../a",
            "a b",
            "ä",
            "a\n",
            "\u{1b}[2J",
            &"x".repeat(33),
        ] {
            let error = PartitionConfig::new(name, cpus.clone()).unwrap_err();
            assert!(!error.to_string().contains('\u{1b}'), "{error}");
        }
    }

    #[test]
    fn memory_has_units() {
        for (text, bytes) in [
            ("256M", 256 << 20),
            ("256MiB", 256 << 20),
            ("1G", 1 << 30),
            ("64 KiB", 64 << 10),
            ("4096", 4096),
        ] {
            assert_eq!(memory_from_text(text), Some(bytes), "{text}");
        }
        for text in [
            "",
            "M",
            "-1M",
            "1MB",
            "1.5G",
            "18446744073709551615K",
            "1é",
            "1 T",
        ] {
            assert_eq!(memory_from_text(text), None, "{text}");
        }
    }
}
