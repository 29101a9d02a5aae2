//! Parameters that a user may set of an experiment: whole numbers by name, given as `--set NAME=VALUE`.

use std::collections::BTreeMap;
use std::str::FromStr;

use thiserror::Error;

/// A number that the user may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Description of the parameter, with its unit.
    pub meaning: &'static str,
    /// The least and the greatest value.
    pub range: (u64, u64),
}

impl Parameter {
    fn takes(&self, value: u64) -> bool {
        let (least, most) = self.range;
        (least..=most).contains(&value)
    }
}

/// One `NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    name: String,
    value: u64,
}

impl FromStr for Assignment {
    type Err = ParameterError;

    fn from_str(text: &str) -> Result<Assignment, ParameterError> {
        let parsed = text.split_once('=').and_then(|(name, value)| {
            let value = value.trim().parse().ok()?;
            Some(Assignment {
                name: name.trim().to_owned(),
                value,
            })
        });
        parsed.ok_or_else(|| ParameterError::Form(text.to_owned()))
    }
}

/// Why something cannot be set.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParameterError {
    /// Not a name and a whole number.
    #[error("`{0}` is not NAME=VALUE with a whole number")]
    Form(String),
    /// No experiment that is to run has it.
    #[error("no parameter is called `{name}`; {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// Those that there are, for the user.
        known: String,
    },
    /// Out of its range.
    #[error("{name} is {value}: {least} to {most} is possible")]
    Range {
        /// The parameter.
        name: &'static str,
        /// The value given.
        value: u64,
        /// The least possible.
        least: u64,
        /// The greatest possible.
        most: u64,
    },
    /// Given twice.
    #[error("{0} is given twice")]
    Twice(&'static str),
}

/// Values that the user set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values(BTreeMap<&'static str, u64>);

impl Values {
    /// Checks assignments against the parameters of the experiments that are to run.
    ///
    /// # Errors
    /// [`ParameterError`], of the first that is wrong.
    pub fn of(
        assignments: &[Assignment],
        parameters: &[&'static Parameter],
    ) -> Result<Values, ParameterError> {
        let mut values = BTreeMap::new();
        for Assignment { name, value } in assignments {
            let matching = || parameters.iter().filter(|one| one.name == *name);
            let first = matching().next().ok_or_else(|| ParameterError::Unknown {
                name: name.clone(),
                known: known(parameters),
            })?;
            if let Some(narrow) = matching().find(|one| !one.takes(*value)) {
                let (least, most) = narrow.range;
                return Err(ParameterError::Range {
                    name: narrow.name,
                    value: *value,
                    least,
                    most,
                });
            }
            if values.insert(first.name, *value).is_some() {
                return Err(ParameterError::Twice(first.name));
            }
        }
        Ok(Values(values))
    }

    /// Value that was set, or the default.
    pub fn or(&self, name: &str, otherwise: u64) -> u64 {
        self.0.get(name).copied().unwrap_or(otherwise)
    }
}

fn known(parameters: &[&'static Parameter]) -> String {
    let mut list: Vec<String> = parameters
        .iter()
        .map(|parameter| format!("{} ({})", parameter.name, parameter.meaning))
        .collect();
    list.sort();
    list.dedup();
    match list.is_empty() {
        true => "nothing can be set of these experiments".to_owned(),
        false => format!("there are {}", list.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALLEST: Parameter = Parameter {
        name: "smallest",
        meaning: "bytes",
        range: (1, 1472),
    };

    fn set(texts: &[&str]) -> Result<Values, ParameterError> {
        let assignments: Result<Vec<Assignment>, _> =
            texts.iter().map(|text| text.parse()).collect();
        Values::of(&assignments?, &[&SMALLEST])
    }

    #[test]
    fn what_is_set_comes_back_and_the_rest_has_its_own_value() {
        let values = set(&["smallest=50"]).unwrap();
        assert_eq!(
            (values.or("smallest", 4), values.or("count", 100)),
            (50, 100)
        );
    }

    #[test]
    fn wrong_ones_say_what_is_possible() {
        for (texts, part) in [
            (&["smallest"][..], "NAME=VALUE"),
            (&["smallest=x"], "whole number"),
            (&["smallest=-1"], "whole number"),
            (&["smalest=4"], "smallest (bytes)"),
            (&["smallest=0"], "1 to 1472"),
            (&["smallest=4", "smallest=5"], "twice"),
        ] {
            let error = set(texts).unwrap_err().to_string();
            assert!(error.contains(part), "{texts:?}: {error}");
        }
        let nothing = Values::of(&["a=1".parse().unwrap()], &[]).unwrap_err();
        assert!(nothing.to_string().contains("nothing can be set"));
    }
}
