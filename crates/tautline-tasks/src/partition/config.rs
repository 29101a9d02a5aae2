//! Configuration of a partition.

use tautline_state::cpus::CpuList;
use tautline_state::text;

use super::PartitionError;

/// Longest name. Lower: sensible names do not fit. Higher: tables become too wide.
const NAME_BYTES_MAX: usize = 32;

/// Characters of a wrong name that are shown. Lower: it is hard to find. Higher: it hides the sentence around it.
const NAME_CHARS_SHOWN: usize = 80;

/// Name and CPUs of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionConfig {
    /// Its name, one for each user of the machine.
    pub name: String,
    /// CPUs that are set aside.
    pub cpus: CpuList,
}

impl PartitionConfig {
    /// A partition of these CPUs.
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
        })
    }
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
}
