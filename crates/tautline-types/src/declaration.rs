//! Declarations: their text, their limits, and the difference of two.

use std::fmt;
use std::str::FromStr;

use crate::scalar::Scalar;
use crate::typed::Typed;

/// Most fields of a type. Lower: a robot's whole state does not fit one type. Higher: declarations grow beyond what a
/// refusal on a bus carries.
pub const FIELDS_MAX: usize = 64;
/// Bytes of the longest name, of a type or a field: all those that compilers of C tell apart (C11, 5.2.4.1).
pub const NAME_BYTES_MAX: usize = 63;
/// Bytes of the largest type: those of the largest message.
pub const TYPE_BYTES_MAX: usize = 65_536;
/// Bytes of the longest declaration as text, for buffers: each field with its separators,
/// its number and a count of five digits.
pub const DECLARATION_BYTES_MAX: usize =
    NAME_BYTES_MAX + 4 + FIELDS_MAX * (NAME_BYTES_MAX + "65536".len() + "u16".len() + 6);

/// A type of messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Declaration {
    name: String,
    fields: Vec<Field>,
}

/// A field of a type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// The numbers that it is made of.
    pub scalar: Scalar,
    /// How many they are, one after the other; `None` if the field is the number itself.
    pub count: Option<usize>,
    /// Where it begins, in bytes from the start of the message.
    pub offset: usize,
}

/// A text that declares no type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TypeError {
    /// A name is none.
    #[error(
        "`{name}` is not a name: 1 to {NAME_BYTES_MAX} letters, digits and `_`, and a letter first"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// A field is not a name, a colon and a type.
    #[error("`{text}` is not a field such as \"position: f64[7]\"")]
    NotField {
        /// The text.
        text: String,
    },
    /// A field's numbers are of no known sort.
    #[error("field `{field}`: `{found}` is not one of {}", scalar_names())]
    UnknownScalar {
        /// The field.
        field: String,
        /// Its type.
        found: String,
    },
    /// A field has no numbers, or more than any message holds.
    #[error("field `{field}`: expected 1 to {TYPE_BYTES_MAX} in brackets, not `{found}`")]
    BadCount {
        /// The field.
        field: String,
        /// The text in its brackets.
        found: String,
    },
    /// Two fields have one name.
    #[error("there are two fields `{field}`")]
    Twice {
        /// The name.
        field: String,
    },
    /// There are no fields, or too many.
    #[error("{count} fields, expected 1 to {FIELDS_MAX}")]
    FieldCount {
        /// How many.
        count: usize,
    },
    /// The type is larger than any message.
    #[error("{bytes} bytes, and a message has at most {TYPE_BYTES_MAX}")]
    TooLarge {
        /// Its bytes.
        bytes: usize,
    },
    /// A declaration is not a name and fields in braces.
    #[error("not a declaration such as `JointState {{ position: f64[7], flags: u32 }}`")]
    NotDeclaration,
}

fn scalar_names() -> String {
    Scalar::ALL.map(Scalar::name).join(", ")
}

/// Type byte of a fingerprint: its remainder by 255, plus 1. Never 0, which an untyped message has.
#[must_use]
pub const fn type_byte(fingerprint: u64) -> u8 {
    (fingerprint % 255) as u8 + 1
}

impl Declaration {
    /// A type with these fields, each as text: `position: f64[7]`.
    ///
    /// # Errors
    /// [`TypeError`].
    pub fn new<'f>(
        name: &str,
        fields: impl IntoIterator<Item = &'f str>,
    ) -> Result<Self, TypeError> {
        let mut declaration = Self::empty(name)?;
        for field in fields {
            let (name, scalar, count) = parse_field(field)?;
            declaration.push(name, scalar, count)?;
        }
        declaration.finished()
    }

    /// The declaration of a type of Rust.
    ///
    /// # Errors
    /// [`TypeError`]: not every struct that can be derived is within the limits.
    pub fn of<T: Typed>() -> Result<Self, TypeError> {
        let mut declaration = Self::empty(T::NAME)?;
        for field in T::FIELDS {
            declaration.push(field.name, field.scalar, field.count)?;
        }
        declaration.finished()
    }

    fn empty(name: &str) -> Result<Self, TypeError> {
        Ok(Self {
            name: checked_name(name)?,
            fields: Vec::new(),
        })
    }

    fn push(&mut self, name: &str, scalar: Scalar, count: Option<usize>) -> Result<(), TypeError> {
        let name = checked_name(name)?;
        if self.fields.iter().any(|field| field.name == name) {
            return Err(TypeError::Twice { field: name });
        }
        let offset = self.bytes();
        self.fields.push(Field {
            name,
            scalar,
            count,
            offset,
        });
        Ok(())
    }

    fn finished(self) -> Result<Self, TypeError> {
        if !(1..=FIELDS_MAX).contains(&self.fields.len()) {
            return Err(TypeError::FieldCount {
                count: self.fields.len(),
            });
        }
        match self.bytes() {
            bytes if bytes > TYPE_BYTES_MAX => Err(TypeError::TooLarge { bytes }),
            _ => Ok(self),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its fields, in their order.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Bytes of a message.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.fields
            .last()
            .map_or(0, |last| last.offset + last.bytes())
    }

    /// Number by which two ends know that they declare the same: FNV-1a (64 bits) of the declaration's text. Never 0.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        let text = self.to_string();
        let mixed = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
        text.bytes().fold(OFFSET, mixed).max(1)
    }

    /// The part of the fingerprint that each message on a network carries: its [`type_byte`].
    #[must_use]
    pub fn type_byte(&self) -> u8 {
        type_byte(self.fingerprint())
    }

    /// First difference to another declaration, in words: `self` is "here". `None` if they are the same.
    #[must_use]
    pub fn difference(&self, there: &Self) -> Option<String> {
        if self.name != there.name {
            return Some(format!(
                "the type is {} here and {} there",
                self.name, there.name
            ));
        }
        for (place, here) in self.fields.iter().enumerate() {
            let Some(other) = there.fields.get(place) else {
                return Some(format!("field `{}` is missing there", here.name));
            };
            if here.name != other.name {
                return Some(format!(
                    "field {} is `{}` here and `{}` there",
                    place + 1,
                    here.name,
                    other.name
                ));
            }
            if here.type_text() != other.type_text() {
                return Some(format!(
                    "field `{}` is {} here and {} there",
                    here.name,
                    here.type_text(),
                    other.type_text()
                ));
            }
        }
        let more = there.fields.get(self.fields.len());
        more.map(|field| format!("field `{}` is missing here", field.name))
    }

    /// Whether a compiler for C, or Rust with `repr(C)`, puts the fields where they are declared.
    #[must_use]
    pub fn is_aligned(&self) -> bool {
        let alignment = self.fields.iter().map(|field| field.scalar.bytes()).max();
        let fits = |field: &Field| field.offset.is_multiple_of(field.scalar.bytes());
        self.fields.iter().all(fits) && self.bytes().is_multiple_of(alignment.unwrap_or(1))
    }
}

impl Field {
    /// Bytes of the field.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.scalar.bytes() * self.count.unwrap_or(1)
    }

    /// Its type as text: `f64[7]`.
    #[must_use]
    pub fn type_text(&self) -> String {
        match self.count {
            Some(count) => format!("{}[{count}]", self.scalar),
            None => self.scalar.to_string(),
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.name, self.type_text())
    }
}

impl fmt::Display for Declaration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {{ ", self.name)?;
        for (place, field) in self.fields.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(formatter, "{comma}{field}")?;
        }
        formatter.write_str(" }")
    }
}

impl FromStr for Declaration {
    type Err = TypeError;

    fn from_str(text: &str) -> Result<Self, TypeError> {
        let (name, rest) = text.split_once('{').ok_or(TypeError::NotDeclaration)?;
        let fields = rest.trim_end().strip_suffix('}');
        let fields = fields.ok_or(TypeError::NotDeclaration)?;
        Self::new(name.trim(), fields.split(','))
    }
}

fn checked_name(name: &str) -> Result<String, TypeError> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_name = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.as_bytes()[0].is_ascii_alphabetic()
        && name.bytes().all(is_part);
    match is_name {
        true => Ok(name.to_owned()),
        false => Err(TypeError::BadName {
            name: name.chars().take(NAME_BYTES_MAX + 1).collect(),
        }),
    }
}

fn parse_field(text: &str) -> Result<(&str, Scalar, Option<usize>), TypeError> {
    let not_field = || TypeError::NotField {
        text: text.chars().take(2 * NAME_BYTES_MAX).collect(),
    };
    let (name, kind) = text.split_once(':').ok_or_else(not_field)?;
    let (name, kind) = (name.trim(), kind.trim());
    let (scalar, count) = match kind.split_once('[') {
        Some((scalar, rest)) => {
            let count = rest.strip_suffix(']').ok_or_else(not_field)?;
            let number = count.parse().ok();
            let number = number.filter(|number| (1..=TYPE_BYTES_MAX).contains(number));
            let number = number.ok_or_else(|| TypeError::BadCount {
                field: name.to_owned(),
                found: count.to_owned(),
            })?;
            (scalar, Some(number))
        }
        None => (kind, None),
    };
    let scalar = Scalar::parse(scalar).ok_or_else(|| TypeError::UnknownScalar {
        field: name.to_owned(),
        found: scalar.to_owned(),
    })?;
    Ok((name, scalar, count))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    fn declared(text: &str) -> Declaration {
        text.parse().unwrap()
    }

    #[test]
    fn text_is_read_and_written_the_same() {
        let text = "JointState { position: f64[7], velocity: f64[7], flags: u32 }";
        let declaration = declared(text);
        assert_eq!(declaration.to_string(), text);
        assert_eq!(declaration.bytes(), 116);
        let offsets: Vec<usize> = declaration.fields().iter().map(|one| one.offset).collect();
        assert_eq!(offsets, [0, 56, 112]);
        assert_eq!(
            declared("JointState{position:f64[7]  , velocity :f64[7],flags:u32}"),
            declaration
        );
        // FNV-1a of the text, computed apart from this code.
        assert_eq!(declared("A { x: u8 }").fingerprint(), 0x5155_a4e2_1f8b_02f1);
    }

    #[test]
    fn the_longest_declaration_has_the_room_that_is_kept_for_it() {
        let name = |number: usize| format!("{:a<63}", format!("f{number}_"));
        let fields: Vec<String> = (0..FIELDS_MAX)
            .map(|number| format!("{}: u16[{}]", name(number), 512))
            .collect();
        let longest = Declaration::new(&"N".repeat(63), fields.iter().map(String::as_str)).unwrap();
        assert_eq!(longest.bytes(), TYPE_BYTES_MAX);
        assert!(longest.to_string().len() <= DECLARATION_BYTES_MAX);
    }

    #[test]
    fn mistakes_are_told_in_words_of_the_file() {
        let error = |fields: &[&str]| {
            Declaration::new("T", fields.iter().copied())
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            error(&["position"]),
            "`position` is not a field such as \"position: f64[7]\""
        );
        assert_eq!(
            error(&["a: f64[7"]),
            "`a: f64[7` is not a field such as \"position: f64[7]\""
        );
        assert_eq!(
            error(&["a: double"]),
            "field `a`: `double` is not one of i8, u8, i16, u16, i32, u32, i64, u64, f32, f64"
        );
        assert_eq!(
            error(&["a: u8[0]"]),
            "field `a`: expected 1 to 65536 in brackets, not `0`"
        );
        assert_eq!(error(&["a: u8", "a: u8"]), "there are two fields `a`");
        assert_eq!(error(&[]), "0 fields, expected 1 to 64");
        assert_eq!(
            error(&["a: u8[65536]", "b: u8"]),
            "65537 bytes, and a message has at most 65536"
        );
        for name in ["", "7a", "_a", "a b", "ä", &"a".repeat(64)] {
            assert!(
                matches!(
                    Declaration::new(name, ["a: u8"]),
                    Err(TypeError::BadName { .. })
                ),
                "{name}"
            );
        }
        for text in [
            "",
            "T",
            "T {",
            "T } a: u8 {",
            "T { }",
            "{ a: u8 }",
            "T { a: u8, }",
        ] {
            assert!(text.parse::<Declaration>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_first_difference_is_named() {
        let here = declared("T { a: f64[7], b: u32 }");
        let difference = |there: &str| here.difference(&declared(there));
        assert_eq!(difference("T { a: f64[7], b: u32 }"), None);
        let cases = [
            ("U { a: f64[7], b: u32 }", "the type is T here and U there"),
            (
                "T { a: f64[6], b: u32 }",
                "field `a` is f64[7] here and f64[6] there",
            ),
            (
                "T { a: f64[7], c: u32 }",
                "field 2 is `b` here and `c` there",
            ),
            ("T { a: f64[7] }", "field `b` is missing there"),
            (
                "T { a: f64[7], b: u32, c: u8 }",
                "field `c` is missing here",
            ),
        ];
        for (there, said) in cases {
            assert_eq!(difference(there).as_deref(), Some(said));
            assert_ne!(here.fingerprint(), declared(there).fingerprint());
        }
    }

    fn vectors_folder() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/vectors")
    }

    #[test]
    fn fingerprints_are_those_of_the_vectors() {
        let text = std::fs::read_to_string(vectors_folder().join("wire/types.jsonl")).unwrap();
        let mut bytes = BTreeSet::new();
        for line in text.lines() {
            let vector: serde_json::Value = serde_json::from_str(line).unwrap();
            let declaration = declared(vector["text"].as_str().unwrap());
            let fingerprint = format!("{:016x}", declaration.fingerprint());
            assert_eq!(vector["fingerprint"], fingerprint, "{declaration}");
            assert_eq!(
                vector["type_byte"],
                declaration.type_byte(),
                "{declaration}"
            );
            bytes.insert(declaration.type_byte());
        }
        assert!(bytes.contains(&1) && bytes.contains(&255));
    }

    #[test]
    fn a_program_in_python_answers_them_too() {
        let program = vectors_folder().join("types.py");
        let Ok(output) = Command::new("python3").arg(program).output() else {
            println!("SKIPPED: there is no python3");
            return;
        };
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
    }

    #[test]
    fn alignment_is_that_of_a_compiler() {
        assert!(declared("T { a: f64[7], b: u32, c: u8[4] }").is_aligned());
        assert!(
            !declared("T { a: f64[7], b: u32 }").is_aligned(),
            "padding at the end"
        );
        assert!(
            !declared("T { a: u8, b: u16 }").is_aligned(),
            "padding between"
        );
    }
}
