//! Inputs and outputs of tasks that are programs: bytes that are read at a job's release and written at its deadline.

use crate::logical::{First, Read, Side, Write};

/// Reads a value into a buffer, and returns its length; none while there is no value.
type Take = Box<dyn FnMut(&mut [u8]) -> Option<usize> + Send>;
/// Writes a value.
type Put = Box<dyn FnMut(&[u8]) + Send>;

/// Inputs and outputs of a program with logical execution time, in the order in which they stand in its lines.
///
/// ```
/// use tautline_tasks::ProgramValues;
///
/// let values = ProgramValues::default()
///     .with_input(8, |buffer| {
///         buffer.copy_from_slice(&1.5f64.to_le_bytes());
///         Some(8)
///     })
///     .with_output(8, |force| assert_eq!(force.len(), 8));
/// ```
#[derive(Default)]
pub struct ProgramValues {
    inputs: Vec<(usize, Take)>,
    outputs: Vec<(usize, Put)>,
}

impl ProgramValues {
    /// The same with a further input of at most so many bytes. `take` never waits.
    #[must_use]
    pub fn with_input(
        mut self,
        bytes_max: usize,
        take: impl FnMut(&mut [u8]) -> Option<usize> + Send + 'static,
    ) -> ProgramValues {
        self.inputs.push((bytes_max, Box::new(take)));
        self
    }

    /// The same with a further output of at most so many bytes. `put` never waits.
    #[must_use]
    pub fn with_output(
        mut self,
        bytes_max: usize,
        put: impl FnMut(&[u8]) + Send + 'static,
    ) -> ProgramValues {
        self.outputs.push((bytes_max, Box::new(put)));
        self
    }

    /// Functions of the exchange, and memory for all values.
    pub(crate) fn parts(self) -> (Read<Values>, Write<Values>, First<Values, Values>) {
        let (input_bytes, mut takes): (Vec<usize>, Vec<Take>) = self.inputs.into_iter().unzip();
        let (output_bytes, mut puts): (Vec<usize>, Vec<Put>) = self.outputs.into_iter().unzip();
        let first = First {
            inputs: [values(&input_bytes), values(&input_bytes)],
            outputs: [values(&output_bytes), values(&output_bytes)],
        };
        let read = move |inputs: &mut Values| {
            for (value, take) in inputs.iter_mut().zip(&mut takes) {
                let length = take(&mut value.buffer);
                value.length = length.map(|length| length.min(value.buffer.len()));
            }
        };
        let write = move |outputs: &Values| {
            for (value, put) in outputs.iter().zip(&mut puts) {
                value.bytes().into_iter().for_each(&mut *put);
            }
        };
        (Box::new(read), Box::new(write), first)
    }
}

/// One input or output.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) buffer: Box<[u8]>,
    /// `None` if there is no value.
    pub(crate) length: Option<usize>,
}

impl Value {
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        Some(&self.buffer[..self.length?])
    }

    /// Takes the value from hexadecimal digits; none if they are none, or too many.
    pub(crate) fn set(&mut self, digits: Option<&[u8]>) {
        self.length = digits.and_then(|digits| decode(digits, &mut self.buffer));
    }
}

/// All inputs or all outputs of a program.
pub(crate) type Values = Vec<Value>;
/// The program's side of the exchange.
pub(crate) type ProgramSide = Side<Values, Values>;

fn values(bytes_max: &[usize]) -> Values {
    let value = |bytes: &usize| Value {
        buffer: vec![0; *bytes].into(),
        length: None,
    };
    bytes_max.iter().map(value).collect()
}

/// Bytes of hexadecimal digits; returns how many there are.
fn decode(digits: &[u8], into: &mut [u8]) -> Option<usize> {
    let length = digits.len() / 2;
    if !digits.len().is_multiple_of(2) || length > into.len() {
        return None;
    }
    let digit = |digit: u8| Some(char::from(digit).to_digit(16)? as u8);
    for (pair, byte) in digits.chunks_exact(2).zip(into) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_whole_bytes_and_no_more_than_there_is_room_for() {
        let mut bytes = [0; 2];
        assert_eq!(decode(b"0fA0", &mut bytes), Some(2));
        assert_eq!(bytes, [0x0f, 0xa0]);
        assert_eq!(decode(b"", &mut bytes), Some(0));
        for wrong in ["0", "0g", "-", "000000", "+1", "0x00"] {
            assert_eq!(decode(wrong.as_bytes(), &mut bytes), None, "{wrong}");
        }
    }
}
