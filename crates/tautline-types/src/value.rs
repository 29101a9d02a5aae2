//! Values of a declared type as text and as JSON, and messages out of text.

use std::fmt::Write as _;

use serde_json::{Map, Number, Value};

use crate::declaration::{Declaration, Field};
use crate::scalar::Scalar;

/// Texts that are no value of a type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// There is no such field.
    #[error("{name} has no field `{field}`; it has {known}")]
    NoField {
        /// The type.
        name: String,
        /// The field.
        field: String,
        /// The fields that there are.
        known: String,
    },
    /// A field has another number of values.
    #[error("field `{field}` has {expected} numbers, and {found} were given")]
    OtherCount {
        /// The field.
        field: String,
        /// How many it has.
        expected: usize,
        /// How many were given.
        found: usize,
    },
    /// A text is no number of the field.
    #[error("field `{field}`: `{found}` is not a number of type {scalar}")]
    NotNumber {
        /// The field.
        field: String,
        /// The text.
        found: String,
        /// The type of the field's numbers.
        scalar: Scalar,
    },
}

impl Declaration {
    /// The fields of a message as JSON, in their order by name. A number that JSON cannot say, such as the result of a
    /// division by zero, is text: `"NaN"`. `None` if the message is not of this size.
    #[must_use]
    pub fn json(&self, message: &[u8]) -> Option<Value> {
        if message.len() != self.bytes() {
            return None;
        }
        let fields = self.fields().iter();
        let values = fields.map(|field| (field.name.clone(), field_json(field, message)));
        Some(Value::Object(values.collect::<Map<_, _>>()))
    }

    /// The fields of a message as a line: `position=[0.5, 1.0] flags=3`. `None` if the message is not of this size.
    #[must_use]
    pub fn text(&self, message: &[u8]) -> Option<String> {
        if message.len() != self.bytes() {
            return None;
        }
        let mut line = String::new();
        for field in self.fields() {
            let space = if line.is_empty() { "" } else { " " };
            let text = match field.count {
                Some(_) => format!("[{}]", numbers(field, message).join(", ")),
                None => numbers(field, message).concat(),
            };
            // Writing to a string does not fail.
            let _ = write!(line, "{space}{}={text}", field.name);
        }
        Some(line)
    }

    /// The message in which fields have these values, each a number or numbers with commas between them, and all others
    /// are 0.
    ///
    /// # Errors
    /// [`ValueError`].
    pub fn message<'v>(
        &self,
        values: impl IntoIterator<Item = (&'v str, &'v str)>,
    ) -> Result<Vec<u8>, ValueError> {
        let mut message = vec![0; self.bytes()];
        for (name, text) in values {
            let field = self.fields().iter().find(|field| field.name == name);
            let field = field.ok_or_else(|| self.no_field(name))?;
            let text = text.trim().trim_start_matches('[').trim_end_matches(']');
            let parts: Vec<&str> = text.split(',').map(str::trim).collect();
            let expected = field.count.unwrap_or(1);
            if parts.len() != expected {
                return Err(ValueError::OtherCount {
                    field: name.to_owned(),
                    expected,
                    found: parts.len(),
                });
            }
            let places = message[field.offset..].chunks_exact_mut(field.scalar.bytes());
            for (place, part) in places.zip(parts) {
                put(field.scalar, part, place).ok_or_else(|| ValueError::NotNumber {
                    field: name.to_owned(),
                    found: part.to_owned(),
                    scalar: field.scalar,
                })?;
            }
        }
        Ok(message)
    }

    fn no_field(&self, name: &str) -> ValueError {
        let known: Vec<&str> = self
            .fields()
            .iter()
            .map(|field| field.name.as_str())
            .collect();
        ValueError::NoField {
            name: self.name().to_owned(),
            field: name.to_owned(),
            known: known.join(", "),
        }
    }
}

/// The numbers of a field, as text.
fn numbers(field: &Field, message: &[u8]) -> Vec<String> {
    let bytes = &message[field.offset..field.offset + field.bytes()];
    let parts = bytes.chunks_exact(field.scalar.bytes());
    parts.map(|part| number(field.scalar, part)).collect()
}

fn field_json(field: &Field, message: &[u8]) -> Value {
    let values = numbers(field, message).into_iter().map(|text| {
        // The text as it is, so that no digit is lost.
        match serde_json::from_str::<Number>(&text) {
            Ok(number) => Value::Number(number),
            Err(_) => Value::String(text),
        }
    });
    let mut values: Vec<Value> = values.collect();
    match field.count {
        Some(_) => Value::Array(values),
        None => values.pop().unwrap_or(Value::Null),
    }
}

/// Evaluates an expression with the type of a field's numbers under a name.
macro_rules! each_number {
    ($scalar:expr, $number:ident => $result:expr) => {
        each_number!(
            $scalar, $number => $result;
            I8: i8, U8: u8, I16: i16, U16: u16, I32: i32, U32: u32, I64: i64, U64: u64, F32: f32, F64: f64
        )
    };
    ($scalar:expr, $number:ident => $result:expr; $($name:ident: $own:ty),*) => {
        match $scalar {
            $(Scalar::$name => {
                type $number = $own;
                $result
            })*
        }
    };
}

fn number(scalar: Scalar, bytes: &[u8]) -> String {
    each_number!(scalar, N => {
        let mut own = [0; size_of::<N>()];
        own.copy_from_slice(bytes);
        // With a fraction even where there is none, so that a reader sees which numbers have one.
        format!("{:?}", N::from_le_bytes(own))
    })
}

fn put(scalar: Scalar, text: &str, place: &mut [u8]) -> Option<()> {
    each_number!(scalar, N => place.copy_from_slice(&text.parse::<N>().ok()?.to_le_bytes()));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn declared() -> Declaration {
        "T { a: f64[2], b: u16, c: i8, d: u64, e: f32 }"
            .parse()
            .unwrap()
    }

    #[test]
    fn values_come_back_as_they_were_given() {
        let values = [
            ("a", "0.1, -2"),
            ("b", "65535"),
            ("c", "-128"),
            ("d", "18446744073709551615"),
            ("e", "0.1"),
        ];
        let message = declared().message(values).unwrap();
        assert_eq!(
            declared().text(&message).unwrap(),
            "a=[0.1, -2.0] b=65535 c=-128 d=18446744073709551615 e=0.1"
        );
        assert_eq!(
            declared().json(&message).unwrap(),
            json!({"a": [0.1, -2.0], "b": 65535, "c": -128, "d": 18_446_744_073_709_551_615_u64, "e": 0.1})
        );
        let not_said = declared().message([("a", "NaN, inf")]).unwrap();
        assert_eq!(
            declared().json(&not_said).unwrap()["a"],
            json!(["NaN", "inf"])
        );
    }

    #[test]
    fn messages_of_another_size_have_no_fields() {
        let bytes = declared().bytes();
        for size in [0, bytes - 1, bytes + 1] {
            assert_eq!(declared().text(&vec![0; size]), None);
            assert_eq!(declared().json(&vec![0; size]), None);
        }
    }

    #[test]
    fn wrong_values_are_named() {
        let error = |name, text| declared().message([(name, text)]).unwrap_err().to_string();
        assert_eq!(error("x", "1"), "T has no field `x`; it has a, b, c, d, e");
        assert_eq!(error("a", "1"), "field `a` has 2 numbers, and 1 were given");
        assert_eq!(
            error("b", "65536"),
            "field `b`: `65536` is not a number of type u16"
        );
        assert_eq!(error("c", ""), "field `c`: `` is not a number of type i8");
    }
}
