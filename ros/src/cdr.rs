//! Messages as bytes: CDR (version 1, as ROS uses it), written and read by the crate `cdr-encoding` along a mapping.
//!
//! Bytes that are read come from the network. A message is read into memory of the port's size, whatever it says:
//! lengths are held against what was declared, and each element takes bytes of a message whose size is limited.

use std::cell::Cell;
use std::fmt;
use std::io;

use byteorder::{BigEndian, ByteOrder, LittleEndian};
use serde::de::{DeserializeSeed, Error as _, SeqAccess, Visitor};
use serde::ser::{SerializeSeq, SerializeTuple};
use serde::{Deserializer, Serialize, Serializer};
use tautline::types::Scalar;

use crate::definition::Kind;
use crate::mapping::{Number, Part, Place, TextWhere, Time, Where};

/// Bytes of the largest message. Lower: declared maps and pictures do not pass, which do not belong here.
/// Higher: a hostile participant takes more memory and time.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 65_536;
/// Bytes that may follow a message: DDS fills up to a multiple of four.
const PADDING_BYTES_MAX: usize = 3;
const SECOND_NS: i128 = 1_000_000_000;

/// Order of the bytes of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Little,
    Big,
}

/// Reasons for which a message is not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Cut off, too long, or not a message of that type.
    Malformed,
    /// A sequence or a text of another length than the port's.
    OtherSize,
    /// A part that is declared as constant has another value.
    OtherValue,
    /// Not a number, or infinite.
    NotFinite,
    /// A number that the port's field cannot hold.
    OutOfRange,
}

/// Whether a kind of number holds a value.
pub(crate) fn fits(kind: Kind, number: i128) -> bool {
    let (first, last): (i128, i128) = match kind {
        Kind::Bool => (0, 1),
        Kind::I8 => (i8::MIN.into(), i8::MAX.into()),
        Kind::U8 => (0, u8::MAX.into()),
        Kind::I16 => (i16::MIN.into(), i16::MAX.into()),
        Kind::U16 => (0, u16::MAX.into()),
        Kind::I32 => (i32::MIN.into(), i32::MAX.into()),
        Kind::U32 => (0, u32::MAX.into()),
        Kind::I64 => (i64::MIN.into(), i64::MAX.into()),
        Kind::U64 => (0, u64::MAX.into()),
        Kind::F32 | Kind::F64 => return false,
    };
    (first..=last).contains(&number)
}

/// Writes a message of a port's value, little-endian, without the four bytes of the encapsulation. `arrival_ns` is the
/// wall clock of the value's arrival.
///
/// # Errors
/// The value does not fit the message: a number out of range, a text that is not UTF-8, too many bytes.
pub(crate) fn write(part: &Part, value: &[u8], arrival_ns: i64) -> Result<Vec<u8>, Refused> {
    let refused = Cell::new(Refused::Malformed);
    let mut bytes = Bounded(Vec::with_capacity(256));
    let writing = Writing {
        part,
        source: Source {
            value,
            arrival_ns: arrival_ns.into(),
            refused: &refused,
        },
    };
    match cdr_encoding::to_writer::<_, LittleEndian, _>(&mut bytes, &writing) {
        Ok(()) => Ok(bytes.0),
        Err(_) => Err(refused.get()),
    }
}

/// Reads a message into a port's value, of which everything that is not mapped is zero.
///
/// # Errors
/// [`Refused`]; the value is of no use then.
pub(crate) fn read(
    part: &Part,
    message: &[u8],
    order: Order,
    must_be_finite: bool,
    value: &mut [u8],
) -> Result<(), Refused> {
    if message.len() > PAYLOAD_BYTES_MAX {
        return Err(Refused::Malformed);
    }
    value.fill(0);
    let mut refused = Refused::Malformed;
    let seed = Reading {
        part,
        into: Into {
            value,
            must_be_finite,
            refused: &mut refused,
        },
    };
    let read = match order {
        Order::Little => whole::<LittleEndian>(message, seed),
        Order::Big => whole::<BigEndian>(message, seed),
    };
    match read {
        Ok(bytes) if message.len() - bytes <= PADDING_BYTES_MAX => Ok(()),
        Ok(_) => Err(Refused::Malformed),
        Err(_) => Err(refused),
    }
}

/// Reads along a mapping; returns the number of bytes that were read.
fn whole<O: ByteOrder>(message: &[u8], seed: Reading<'_>) -> cdr_encoding::Result<usize> {
    let mut deserializer = cdr_encoding::CdrDeserializer::<O>::new(message);
    seed.deserialize(&mut deserializer)?;
    Ok(deserializer.bytes_consumed())
}

/// Bytes of a message that is being written.
struct Bounded(Vec<u8>);

impl io::Write for &mut Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > PAYLOAD_BYTES_MAX {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Value of which a message is made.
#[derive(Clone, Copy)]
struct Source<'s> {
    value: &'s [u8],
    arrival_ns: i128,
    refused: &'s Cell<Refused>,
}

impl Source<'_> {
    fn number(&self, place: Place) -> Option<Number> {
        let bytes = self.value.get(place.offset..)?;
        let bytes = bytes.get(..place.scalar.bytes())?;
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let [one, two, _, _, ..] = word;
        let half = [one, two];
        let single = [word[0], word[1], word[2], word[3]];
        Some(match place.scalar {
            Scalar::I8 => Number::Whole(i8::from_le_bytes([one]).into()),
            Scalar::U8 => Number::Whole(one.into()),
            Scalar::I16 => Number::Whole(i16::from_le_bytes(half).into()),
            Scalar::U16 => Number::Whole(u16::from_le_bytes(half).into()),
            Scalar::I32 => Number::Whole(i32::from_le_bytes(single).into()),
            Scalar::U32 => Number::Whole(u32::from_le_bytes(single).into()),
            Scalar::I64 => Number::Whole(i64::from_le_bytes(word).into()),
            Scalar::U64 => Number::Whole(u64::from_le_bytes(word).into()),
            Scalar::F32 => Number::Float(f32::from_le_bytes(single).into()),
            Scalar::F64 => Number::Float(f64::from_le_bytes(word)),
        })
    }

    /// Nanoseconds of a time.
    fn time_ns(&self, time: Time) -> Option<i128> {
        let place = match time {
            Time::Arrival => return Some(self.arrival_ns),
            Time::Field(place) => place,
        };
        match self.number(place)? {
            Number::Whole(ns) => Some(ns),
            // A cast saturates, and what is too large for a message's seconds is refused there.
            #[allow(clippy::cast_possible_truncation)]
            Number::Float(seconds) if seconds.is_finite() => {
                let whole = seconds.floor();
                let rest_ns = ((seconds - whole) * 1e9) as i128;
                Some((whole as i128).saturating_mul(SECOND_NS) + rest_ns.min(SECOND_NS - 1))
            }
            Number::Float(_) => None,
        }
    }

    fn at(&self, place: Where) -> Option<Number> {
        match place {
            Where::Nowhere => Some(Number::Whole(0)),
            Where::Field(place) => self.number(place),
            Where::Constant(number) => Some(number),
            Where::Seconds(time) => Some(Number::Whole(self.time_ns(time)?.div_euclid(SECOND_NS))),
            Where::Nanoseconds(time) => {
                Some(Number::Whole(self.time_ns(time)?.rem_euclid(SECOND_NS)))
            }
        }
    }
}

/// A part of a message that is being written.
struct Writing<'w> {
    part: &'w Part,
    source: Source<'w>,
}

impl Writing<'_> {
    fn refuse<E: serde::ser::Error>(&self, why: Refused) -> E {
        self.source.refused.set(why);
        E::custom("refused")
    }

    fn number<S: Serializer>(&self, to: S, kind: Kind, place: Where) -> Result<S::Ok, S::Error> {
        let Some(number) = self.source.at(place) else {
            return Err(self.refuse(Refused::OutOfRange));
        };
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
        match (kind, number) {
            (Kind::F64, Number::Float(number)) => to.serialize_f64(number),
            (Kind::F64, Number::Whole(number)) => to.serialize_f64(number as f64),
            (Kind::F32, Number::Float(number)) => to.serialize_f32(number as f32),
            (Kind::F32, Number::Whole(number)) => to.serialize_f32(number as f32),
            (Kind::Bool, Number::Whole(number)) => to.serialize_bool(number != 0),
            (_, Number::Whole(number)) if fits(kind, number) => match kind {
                Kind::I8 => to.serialize_i8(number as i8),
                Kind::U8 => to.serialize_u8(number as u8),
                Kind::I16 => to.serialize_i16(number as i16),
                Kind::U16 => to.serialize_u16(number as u16),
                Kind::I32 => to.serialize_i32(number as i32),
                Kind::U32 => to.serialize_u32(number as u32),
                Kind::I64 => to.serialize_i64(number as i64),
                _ => to.serialize_u64(number as u64),
            },
            _ => Err(self.refuse(Refused::OutOfRange)),
        }
    }

    fn text<S: Serializer>(&self, to: S, place: &TextWhere) -> Result<S::Ok, S::Error> {
        match place {
            TextWhere::Nowhere => to.serialize_str(""),
            TextWhere::Constant(text) => to.serialize_str(text),
            TextWhere::Field { offset, bytes } => {
                let field = self.source.value.get(*offset..offset + bytes);
                let field = field.and_then(|field| field.split(|byte| *byte == 0).next());
                match field.map(std::str::from_utf8) {
                    Some(Ok(text)) => to.serialize_str(text),
                    _ => Err(self.refuse(Refused::Malformed)),
                }
            }
        }
    }
}

impl Serialize for Writing<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let below = |part| Writing {
            part,
            source: self.source,
        };
        match self.part {
            Part::Number(kind, place) => self.number(to, *kind, *place),
            Part::Text { place, .. } => self.text(to, place),
            Part::All(parts) => {
                let mut tuple = to.serialize_tuple(parts.len())?;
                for part in parts {
                    tuple.serialize_element(&below(part))?;
                }
                tuple.end()
            }
            Part::Sequence { parts, .. } => {
                let mut sequence = to.serialize_seq(Some(parts.len()))?;
                for part in parts {
                    sequence.serialize_element(&below(part))?;
                }
                sequence.end()
            }
            Part::Open { .. } => to.serialize_seq(Some(0))?.end(),
        }
    }
}

/// Value that is made of a message.
struct Into<'i> {
    value: &'i mut [u8],
    must_be_finite: bool,
    refused: &'i mut Refused,
}

impl Into<'_> {
    fn refuse<E: serde::de::Error>(&mut self, why: Refused) -> E {
        *self.refused = why;
        E::custom("refused")
    }

    fn put(&mut self, place: Place, number: Number) -> Result<(), Refused> {
        let end = place.offset + place.scalar.bytes();
        let bytes = self.value.get_mut(place.offset..end);
        let bytes = bytes.ok_or(Refused::OtherSize)?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
        let float = match number {
            Number::Float(number) => number,
            Number::Whole(number) => number as f64,
        };
        if self.must_be_finite && !float.is_finite() {
            return Err(Refused::NotFinite);
        }
        #[allow(clippy::cast_possible_truncation)]
        match (place.scalar, number) {
            (Scalar::F64, _) => bytes.copy_from_slice(&float.to_le_bytes()),
            (Scalar::F32, _) => {
                let short = float as f32;
                if float.is_finite() && !short.is_finite() {
                    return Err(Refused::OutOfRange);
                }
                bytes.copy_from_slice(&short.to_le_bytes());
            }
            (scalar, Number::Whole(number)) if fits(kind_of(scalar), number) => {
                // Two's complement: the lowest bytes are the number.
                let length = bytes.len();
                bytes.copy_from_slice(&number.to_le_bytes()[..length]);
            }
            _ => return Err(Refused::OutOfRange),
        }
        Ok(())
    }

    /// Puts seconds, or adds the rest to the seconds that are there.
    fn put_time(&mut self, place: Place, number: Number, is_rest: bool) -> Result<(), Refused> {
        let Number::Whole(number) = number else {
            return Err(Refused::OutOfRange);
        };
        if is_rest && number >= SECOND_NS {
            return Err(Refused::OutOfRange);
        }
        let refused = Cell::new(Refused::OutOfRange);
        let before = Source {
            value: self.value,
            arrival_ns: 0,
            refused: &refused,
        };
        #[allow(clippy::cast_precision_loss)] // what a time in seconds loses anyway
        let sum = match (before.number(place), is_rest) {
            (Some(Number::Whole(before)), true) => Number::Whole(before + number),
            (Some(Number::Whole(_)), false) => Number::Whole(number * SECOND_NS),
            (Some(Number::Float(before)), true) => Number::Float(before + number as f64 * 1e-9),
            (Some(Number::Float(_)), false) => Number::Float(number as f64),
            (None, _) => return Err(Refused::OtherSize),
        };
        self.put(place, sum)
    }

    fn number(&mut self, place: Where, number: Number) -> Result<(), Refused> {
        match place {
            Where::Nowhere | Where::Seconds(Time::Arrival) | Where::Nanoseconds(Time::Arrival) => {
                Ok(())
            }
            Where::Field(place) => self.put(place, number),
            Where::Constant(expected) if expected == number => Ok(()),
            Where::Constant(_) => Err(Refused::OtherValue),
            Where::Seconds(Time::Field(place)) => self.put_time(place, number, false),
            Where::Nanoseconds(Time::Field(place)) => self.put_time(place, number, true),
        }
    }

    fn text(&mut self, place: &TextWhere, bytes_max: usize, text: &str) -> Result<(), Refused> {
        if text.len() > bytes_max {
            return Err(Refused::Malformed);
        }
        match place {
            TextWhere::Nowhere => Ok(()),
            TextWhere::Constant(expected) if expected == text => Ok(()),
            TextWhere::Constant(_) => Err(Refused::OtherValue),
            TextWhere::Field { offset, bytes } => {
                if text.len() > *bytes {
                    return Err(Refused::OtherSize);
                }
                if text.contains('\0') {
                    return Err(Refused::Malformed);
                }
                let field = self.value.get_mut(*offset..offset + text.len());
                field
                    .ok_or(Refused::OtherSize)?
                    .copy_from_slice(text.as_bytes());
                Ok(())
            }
        }
    }
}

fn kind_of(scalar: Scalar) -> Kind {
    match scalar {
        Scalar::I8 => Kind::I8,
        Scalar::U8 => Kind::U8,
        Scalar::I16 => Kind::I16,
        Scalar::U16 => Kind::U16,
        Scalar::I32 => Kind::I32,
        Scalar::U32 => Kind::U32,
        Scalar::I64 => Kind::I64,
        Scalar::U64 => Kind::U64,
        Scalar::F32 => Kind::F32,
        Scalar::F64 => Kind::F64,
    }
}

/// A part of a message that is being read.
struct Reading<'r> {
    part: &'r Part,
    into: Into<'r>,
}

impl<'de> DeserializeSeed<'de> for Reading<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        match self.part {
            Part::Number(kind, _) => match kind {
                Kind::Bool => from.deserialize_bool(self),
                Kind::I8 => from.deserialize_i8(self),
                Kind::U8 => from.deserialize_u8(self),
                Kind::I16 => from.deserialize_i16(self),
                Kind::U16 => from.deserialize_u16(self),
                Kind::I32 => from.deserialize_i32(self),
                Kind::U32 => from.deserialize_u32(self),
                Kind::I64 => from.deserialize_i64(self),
                Kind::U64 => from.deserialize_u64(self),
                Kind::F32 => from.deserialize_f32(self),
                Kind::F64 => from.deserialize_f64(self),
            },
            Part::Text { .. } => from.deserialize_str(self),
            Part::All(parts) => from.deserialize_tuple(parts.len(), self),
            Part::Sequence { .. } | Part::Open { .. } => from.deserialize_seq(self),
        }
    }
}

macro_rules! visit_whole {
    ($($name:ident: $of:ty,)*) => {
        $(fn $name<E: serde::de::Error>(self, number: $of) -> Result<(), E> {
            self.visit(Number::Whole(number.into()))
        })*
    };
}

impl Reading<'_> {
    fn visit<E: serde::de::Error>(mut self, number: Number) -> Result<(), E> {
        let Part::Number(_, place) = self.part else {
            return Err(E::custom("a number"));
        };
        let put = self.into.number(*place, number);
        put.map_err(|why| self.into.refuse(why))
    }
}

impl<'de> Visitor<'de> for Reading<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the next part of a message")
    }

    visit_whole! {
        visit_bool: bool, visit_i8: i8, visit_u8: u8, visit_i16: i16, visit_u16: u16, visit_i32: i32, visit_u32: u32,
        visit_i64: i64, visit_u64: u64,
    }

    fn visit_f32<E: serde::de::Error>(self, number: f32) -> Result<(), E> {
        self.visit(Number::Float(number.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<(), E> {
        self.visit(Number::Float(number))
    }

    fn visit_str<E: serde::de::Error>(mut self, text: &str) -> Result<(), E> {
        let Part::Text { bytes_max, place } = self.part else {
            return Err(E::custom("a text"));
        };
        let put = self.into.text(place, *bytes_max, text);
        put.map_err(|why| self.into.refuse(why))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let mut into = self.into;
        let mut next = |part, into: &mut Into<'_>| {
            elements.next_element_seed(Reading {
                part,
                into: Into {
                    value: into.value,
                    must_be_finite: into.must_be_finite,
                    refused: into.refused,
                },
            })
        };
        match self.part {
            Part::All(parts) => {
                for part in parts {
                    next(part, &mut into)?.ok_or_else(|| A::Error::custom("too short"))?;
                }
            }
            Part::Sequence {
                parts,
                may_be_empty,
            } => {
                for (place, part) in parts.iter().enumerate() {
                    if next(part, &mut into)?.is_none() {
                        if place == 0 && *may_be_empty {
                            return Ok(());
                        }
                        return Err(into.refuse(Refused::OtherSize));
                    }
                }
                // One more than there may be: it is read as the last one, if at all.
                let last = parts.last();
                let ignored = last.map(without_place);
                let more = match &ignored {
                    Some(part) => next(part, &mut into)?.is_some(),
                    None => false,
                };
                if more {
                    return Err(into.refuse(Refused::OtherSize));
                }
            }
            Part::Open { of, count_max } => {
                let mut count = 0;
                while next(of, &mut into)?.is_some() {
                    count += 1;
                    if count > *count_max {
                        return Err(into.refuse(Refused::Malformed));
                    }
                }
            }
            Part::Number(..) | Part::Text { .. } => return Err(A::Error::custom("a sequence")),
        }
        Ok(())
    }
}

/// An element of the same shape that is mapped to nothing.
fn without_place(part: &Part) -> Part {
    match part {
        Part::Number(kind, _) => Part::Number(*kind, Where::Nowhere),
        Part::Text { .. } => Part::Text {
            bytes_max: usize::MAX,
            place: TextWhere::Nowhere,
        },
        Part::All(parts) => Part::All(parts.iter().map(without_place).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests;
