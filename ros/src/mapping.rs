//! Mapping of a port's fields to the fields of a message, as declared: one tree, which is followed in both directions.

use std::collections::{BTreeMap, BTreeSet};

use tautline::types::{Declaration, Scalar};

use crate::definition::{Kind, Shape, TIME};

/// Parts of one message. Lower: large arrays do not pass. Higher: a mistake in a definition takes memory.
const PARTS_MAX: usize = 100_000;

/// Whether messages are made of what a port receives, or what it sends is made of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the port to the topic.
    Publish,
    /// From the topic to the port.
    Subscribe,
}

/// Declarations of one entry of the configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Declared {
    /// Path in the message, and field of the port.
    pub(crate) fields: BTreeMap<String, String>,
    /// Path in the message, and its value: sent, or expected.
    pub(crate) constants: BTreeMap<String, toml::Value>,
    /// Paths of sequences that may be empty.
    pub(crate) optional: Vec<String>,
}

/// A number on its way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    /// Without fractions.
    Whole(i128),
    /// With them.
    Float(f64),
}

/// Numbers of a port that lie one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Their sort.
    pub(crate) scalar: Scalar,
    /// Beginning of the first, in bytes.
    pub(crate) offset: usize,
}

/// A time of a message, which has seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    /// Wall clock when the value arrived in the port.
    Arrival,
    /// One number of the port: nanoseconds if it is whole, seconds if it is not.
    Field(Place),
}

/// Origin of a number of a message, or its destination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Where {
    /// 0 when sent, ignored when received.
    Nowhere,
    /// A number of the port.
    Field(Place),
    /// Sent, or expected.
    Constant(Number),
    /// Whole seconds of a time.
    Seconds(Time),
    /// The rest of it.
    Nanoseconds(Time),
}

/// Origin of a text of a message, or its destination.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TextWhere {
    /// Empty when sent, ignored when received.
    Nowhere,
    /// So many bytes of the port from an offset; a shorter text ends with a zero.
    Field { offset: usize, bytes: usize },
    /// Sent, or expected.
    Constant(String),
}

/// A message or a part of it, with the places that it is mapped to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Number(Kind, Where),
    Text {
        bytes_max: usize,
        place: TextWhere,
    },
    /// Fields of a message, elements of an array.
    All(Vec<Part>),
    /// A sequence with so many elements.
    Sequence {
        parts: Vec<Part>,
        may_be_empty: bool,
    },
    /// A sequence that is mapped to nothing: empty when sent, ignored when received.
    Open {
        of: Box<Part>,
        count_max: usize,
    },
}

/// Maps a message to a port's type.
///
/// # Errors
/// The declarations name what is not there, or what does not fit; in words.
pub(crate) fn map(
    shape: &Shape,
    declaration: &Declaration,
    mut declared: Declared,
    direction: Direction,
) -> Result<Part, String> {
    if declared.fields.is_empty() {
        let Shape::Message { fields, .. } = shape else {
            unreachable!("a topic has messages")
        };
        let same = |name: &String| declaration.fields().iter().any(|field| field.name == *name);
        let same = fields
            .iter()
            .map(|(name, _)| name)
            .filter(|name| same(name));
        declared.fields = same.map(|name| (name.clone(), name.clone())).collect();
    }
    if declared.fields.is_empty() {
        return Err("no field of the message is mapped; name some in `fields`".to_owned());
    }
    let mut mapper = Mapper {
        declaration,
        declared: &declared,
        direction,
        used: BTreeSet::new(),
        parts: 0,
    };
    let part = mapper.part(shape, "")?;
    let used = mapper.used;
    let named = (declared.fields.keys().chain(declared.constants.keys())).chain(&declared.optional);
    if let Some(unused) = named.into_iter().find(|path| !used.contains(*path)) {
        return Err(format!(
            "`{unused}` is not a field of the message that can be mapped, or a part of one that is mapped"
        ));
    }
    Ok(part)
}

struct Mapper<'m> {
    declaration: &'m Declaration,
    declared: &'m Declared,
    direction: Direction,
    used: BTreeSet<String>,
    parts: usize,
}

impl Mapper<'_> {
    fn part(&mut self, shape: &Shape, path: &str) -> Result<Part, String> {
        self.parts += 1;
        if self.parts > PARTS_MAX {
            return Err(format!("the message has more than {PARTS_MAX} parts"));
        }
        let may_be_empty = self.declared.optional.iter().any(|one| one == path);
        if may_be_empty && matches!(shape, Shape::Sequence { .. }) {
            self.used.insert(path.to_owned());
        }
        if let Some(value) = self.declared.constants.get(path) {
            self.used.insert(path.to_owned());
            return constant(shape, value, may_be_empty)
                .map_err(|what| format!("constant `{path}`: {what}"));
        }
        if let Some(text) = self.declared.fields.get(path) {
            self.used.insert(path.to_owned());
            let wrong = |what: String| format!("`{path}` = \"{text}\": {what}");
            let numbers = self.numbers(text).map_err(wrong)?;
            return mapped(shape, numbers, self.direction, may_be_empty).map_err(wrong);
        }
        let below = |field: &str| match path {
            "" => field.to_owned(),
            _ => format!("{path}.{field}"),
        };
        Ok(match shape {
            Shape::Message { name, .. } if name == TIME && is_stamp(path) => match self.direction {
                Direction::Publish => time_parts(Time::Arrival),
                Direction::Subscribe => ignored(shape),
            },
            Shape::Message { fields, .. } => {
                let fields = fields.iter();
                let parts = fields.map(|(name, shape)| self.part(shape, &below(name)));
                Part::All(parts.collect::<Result<_, _>>()?)
            }
            Shape::Array { of, count } => {
                self.parts += leaves(of).saturating_mul(*count);
                if self.parts > PARTS_MAX {
                    return Err(format!("the message has more than {PARTS_MAX} parts"));
                }
                Part::All(vec![ignored(of); *count])
            }
            _ => ignored(shape),
        })
    }

    /// Numbers of the port that a text names: `field`, `field[2]` or `field[0:3]`.
    fn numbers(&self, text: &str) -> Result<Vec<Place>, String> {
        let (name, range) = match text.strip_suffix(']').and_then(|text| text.split_once('[')) {
            Some((name, range)) => (name, Some(range)),
            None => (text, None),
        };
        let field = self.declaration.fields().iter();
        let field = field.clone().find(|field| field.name == name);
        let field = field
            .ok_or_else(|| format!("type {} has no field `{name}`", self.declaration.name()))?;
        let count = field.count.unwrap_or(1);
        let (first, end) = match range.map(|range| range.split_once(':')) {
            None => (Some(0), Some(count)),
            Some(Some((first, end))) => (first.parse().ok(), end.parse().ok()),
            Some(None) => {
                let first = range.and_then(|range| range.parse::<usize>().ok());
                (first, first.and_then(|first| first.checked_add(1)))
            }
        };
        let (Some(first), Some(end)) = (first, end) else {
            return Err("expected `field`, `field[2]` or `field[0:3]`".to_owned());
        };
        if first >= end || end > count {
            return Err(format!("field `{name}` has {count} numbers"));
        }
        let place = |index: usize| Place {
            scalar: field.scalar,
            offset: field.offset + index * field.scalar.bytes(),
        };
        Ok((first..end).map(place).collect())
    }
}

/// Whether a path is that of a header's time.
fn is_stamp(path: &str) -> bool {
    path == "stamp" || path.ends_with(".stamp")
}

/// A part that is mapped to nothing.
fn ignored(shape: &Shape) -> Part {
    match shape {
        Shape::Number(kind) => Part::Number(*kind, Where::Nowhere),
        Shape::Text { bytes_max } => Part::Text {
            bytes_max: *bytes_max,
            place: TextWhere::Nowhere,
        },
        Shape::Message { fields, .. } => {
            Part::All(fields.iter().map(|(_, shape)| ignored(shape)).collect())
        }
        Shape::Array { of, count } => Part::All(vec![ignored(of); *count]),
        Shape::Sequence { of, count_max } => Part::Open {
            of: Box::new(ignored(of)),
            count_max: *count_max,
        },
    }
}

fn leaves(shape: &Shape) -> usize {
    match shape {
        Shape::Message { fields, .. } => fields.iter().fold(1, |sum: usize, (_, shape)| {
            sum.saturating_add(leaves(shape))
        }),
        Shape::Array { of, count } => leaves(of).saturating_mul(*count).saturating_add(1),
        _ => 1,
    }
}

fn time_parts(time: Time) -> Part {
    Part::All(vec![
        Part::Number(Kind::I32, Where::Seconds(time)),
        Part::Number(Kind::U32, Where::Nanoseconds(time)),
    ])
}

/// A part that is mapped to numbers of the port.
fn mapped(
    shape: &Shape,
    numbers: Vec<Place>,
    direction: Direction,
    may_be_empty: bool,
) -> Result<Part, String> {
    match shape {
        Shape::Message { name, .. } if name == TIME => match numbers[..] {
            [
                place @ Place {
                    scalar: Scalar::U64 | Scalar::I64 | Scalar::F64,
                    ..
                },
            ] => Ok(time_parts(Time::Field(place))),
            _ => Err("a time is one i64 or u64 (nanoseconds) or f64 (seconds)".to_owned()),
        },
        Shape::Text { bytes_max } => {
            let bytes = numbers.len();
            if numbers[0].scalar != Scalar::U8 || bytes < 2 {
                return Err("a text needs an array of u8".to_owned());
            }
            if direction == Direction::Publish && bytes > *bytes_max {
                return Err(format!("the text has at most {bytes_max} bytes"));
            }
            Ok(Part::Text {
                bytes_max: *bytes_max,
                place: TextWhere::Field {
                    offset: numbers[0].offset,
                    bytes,
                },
            })
        }
        Shape::Sequence { of, count_max } => {
            let Shape::Number(kind) = **of else {
                return Err("only sequences of numbers are mapped".to_owned());
            };
            if numbers.len() > *count_max {
                return Err(format!("the sequence has at most {count_max} elements"));
            }
            let parts = numbers.iter().map(|place| number(kind, *place, direction));
            Ok(Part::Sequence {
                parts: parts.collect::<Result<_, _>>()?,
                may_be_empty,
            })
        }
        _ => {
            let mut rest = numbers.iter().copied();
            let part = spread(shape, &mut rest, direction)?;
            match rest.count() {
                0 => Ok(part),
                more => Err(format!("{more} numbers more than the message takes there")),
            }
        }
    }
}

/// Spreads numbers over those of an array, or of a message that has nothing but numbers.
fn spread(
    shape: &Shape,
    rest: &mut impl Iterator<Item = Place>,
    direction: Direction,
) -> Result<Part, String> {
    match shape {
        Shape::Number(kind) => match rest.next() {
            Some(place) => number(*kind, place, direction),
            None => Err("fewer numbers than the message has there".to_owned()),
        },
        Shape::Message { fields, .. } => {
            let parts = fields
                .iter()
                .map(|(_, shape)| spread(shape, rest, direction));
            Ok(Part::All(parts.collect::<Result<_, _>>()?))
        }
        Shape::Array { of, count } => {
            let parts = (0..*count).map(|_| spread(of, rest, direction));
            Ok(Part::All(parts.collect::<Result<_, _>>()?))
        }
        Shape::Text { .. } | Shape::Sequence { .. } => {
            Err("that part has more than numbers; map its fields one by one".to_owned())
        }
    }
}

fn number(kind: Kind, place: Place, direction: Direction) -> Result<Part, String> {
    let port_is_float = matches!(place.scalar, Scalar::F32 | Scalar::F64);
    let loses = match direction {
        Direction::Publish => port_is_float && !kind.is_float(),
        Direction::Subscribe => kind.is_float() && !port_is_float,
    };
    if loses {
        return Err("fractions would be lost".to_owned());
    }
    Ok(Part::Number(kind, Where::Field(place)))
}

/// A part that is constant.
fn constant(shape: &Shape, value: &toml::Value, may_be_empty: bool) -> Result<Part, String> {
    use toml::Value::{Array, Boolean, Float, Integer, String};
    let is_whole = |kind: &Kind, number: i64| {
        let number = i128::from(number);
        crate::cdr::fits(*kind, number)
    };
    match (shape, value) {
        (Shape::Number(kind), Integer(number)) if kind.is_float() => Ok(Part::Number(
            *kind,
            #[allow(clippy::cast_precision_loss)] // a person wrote it
            Where::Constant(Number::Float(*number as f64)),
        )),
        (Shape::Number(kind), Integer(number)) if is_whole(kind, *number) => Ok(Part::Number(
            *kind,
            Where::Constant(Number::Whole((*number).into())),
        )),
        (Shape::Number(kind), Float(number)) if kind.is_float() => {
            Ok(Part::Number(*kind, Where::Constant(Number::Float(*number))))
        }
        (Shape::Number(Kind::Bool), Boolean(is)) => Ok(Part::Number(
            Kind::Bool,
            Where::Constant(Number::Whole((*is).into())),
        )),
        (Shape::Text { bytes_max }, String(text)) => {
            if text.len() > *bytes_max || text.contains('\0') {
                return Err(format!(
                    "a text of at most {bytes_max} bytes, without zeros"
                ));
            }
            Ok(Part::Text {
                bytes_max: *bytes_max,
                place: TextWhere::Constant(text.clone()),
            })
        }
        (Shape::Array { of, count }, Array(values)) if values.len() == *count => {
            let parts = values.iter().map(|value| constant(of, value, false));
            Ok(Part::All(parts.collect::<Result<_, _>>()?))
        }
        (Shape::Sequence { of, count_max }, Array(values))
            if (1..=*count_max).contains(&values.len()) =>
        {
            let parts = values.iter().map(|value| constant(of, value, false));
            Ok(Part::Sequence {
                parts: parts.collect::<Result<_, _>>()?,
                may_be_empty,
            })
        }
        _ => Err(format!("{value} does not fit the message's field")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Definitions;

    fn mapping(
        message: &str,
        declaration: &str,
        entries: &str,
        direction: Direction,
    ) -> Result<Part, String> {
        #[derive(serde::Deserialize)]
        struct Entries {
            #[serde(default)]
            fields: BTreeMap<String, String>,
            #[serde(default)]
            constants: BTreeMap<String, toml::Value>,
            #[serde(default)]
            optional: Vec<String>,
        }
        let (_, shape) = Definitions::known().shape(message).unwrap();
        let entries: Entries = toml::from_str(entries).unwrap();
        let declared = Declared {
            fields: entries.fields,
            constants: entries.constants,
            optional: entries.optional,
        };
        map(&shape, &declaration.parse().unwrap(), declared, direction)
    }

    #[test]
    fn fields_of_one_name_are_mapped_without_being_named() {
        let part = mapping(
            "std_msgs/msg/Float64",
            "Speed { data: f32 }",
            "",
            Direction::Publish,
        );
        let place = Place {
            scalar: Scalar::F32,
            offset: 0,
        };
        let number = Part::Number(Kind::F64, Where::Field(place));
        assert_eq!(part.unwrap(), Part::All(vec![number]));
    }

    #[test]
    fn mistakes_are_told() {
        let joints = "sensor_msgs/msg/JointState";
        for (message, entries, expected) in [
            (joints, "", "no field of the message is mapped"),
            (joints, "fields.position = 'p'", "has no field `p`"),
            (joints, "fields.position = 'q[2:9]'", "has 3 numbers"),
            (joints, "fields.position = 'q[a]'", "expected `field`"),
            (joints, "fields.position = 'q[2:2]'", "has 3 numbers"),
            (joints, "fields.name = 'q'", "only sequences of numbers"),
            (joints, "fields.header = 'mode'", "fewer numbers"),
            (
                joints,
                "fields.'header.stamp' = 'q[0]'\nfields.torque = 'q'",
                "`torque` is not",
            ),
            (joints, "fields.'header.stamp' = 'mode'", "a time is one"),
            (joints, "fields.'header.frame_id' = 'q'", "array of u8"),
            (
                joints,
                "fields.position = 'q'\nconstants.name = [1]",
                "1 does not fit",
            ),
            (
                joints,
                "fields.position = 'q'\noptional = ['header']",
                "`header` is not",
            ),
            ("std_msgs/msg/Int32", "fields.data = 'q[0]'", "fractions"),
            (
                "geometry_msgs/msg/Twist",
                "fields.linear = 'q[0:2]'",
                "fewer numbers",
            ),
            (
                "geometry_msgs/msg/Twist",
                "fields.'linear.x' = 'q'",
                "2 numbers more",
            ),
            (
                "std_msgs/msg/Bool",
                "constants.data = 7\nfields.data = 'mode'",
                "7 does not fit",
            ),
        ] {
            let error = mapping(
                message,
                "State { q: f64[3], mode: u8 }",
                entries,
                Direction::Publish,
            );
            let error = error.map(|_| entries).unwrap_err();
            assert!(error.contains(expected), "{entries}: {error}");
        }
        let error = mapping(
            "std_msgs/msg/Float64",
            "Mode { data: u8 }",
            "",
            Direction::Subscribe,
        );
        assert!(error.unwrap_err().contains("fractions"));
    }
}
