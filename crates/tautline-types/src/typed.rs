//! Structs of Rust that are messages: their memory is the bytes on the wire.
#![allow(unsafe_code)] // Views of values as bytes, and of bytes as values.

use crate::scalar::Scalar;

/// A struct whose memory is its message: fields one after the other, little-endian, without padding, and every pattern
/// of bits a value. `#[derive(tautline::Typed)]` implements it for structs with `#[repr(C)]`, and checks all of that
/// when they are compiled.
///
/// # Safety
/// The struct has `repr(C)`, with or without `packed`. [`FIELDS`](Self::FIELDS) are its fields, in their order, and
/// their bytes are all of its bytes.
pub unsafe trait Typed: Copy + 'static {
    /// Name of the type.
    const NAME: &'static str;
    /// Its fields.
    const FIELDS: &'static [StaticField];

    /// A value of which all bytes are 0.
    #[inline]
    #[must_use]
    fn zeroed() -> Self {
        // SAFETY: all fields are numbers or arrays of numbers (`FieldType`), which zeros are values of.
        unsafe { std::mem::zeroed() }
    }

    /// Its message.
    #[inline]
    #[must_use]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes of `self`, of which none is padding, by the contract of the trait; they are not written
        // while `self` is borrowed, because numbers have no interior mutability.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// Bytes of the value, to be filled.
    #[inline]
    #[must_use]
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and borrowed alone; whatever is written there is a value, since all fields are
        // numbers.
        unsafe {
            std::slice::from_raw_parts_mut(std::ptr::from_mut(self).cast(), size_of::<Self>())
        }
    }

    /// The value in a message; `None` if the message has another size.
    #[inline]
    #[must_use]
    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != size_of::<Self>() {
            return None;
        }
        let mut value = Self::zeroed();
        value.bytes_mut().copy_from_slice(bytes);
        Some(value)
    }

    /// Bytes that are a message, as a value where they lie; `None` if they have another size, or lie where such a value
    /// cannot.
    #[inline]
    #[must_use]
    fn in_place(bytes: &mut [u8]) -> Option<&mut Self> {
        let start = bytes.as_mut_ptr().cast::<Self>();
        if bytes.len() != size_of::<Self>() || !start.is_aligned() {
            return None;
        }
        // SAFETY: as many bytes as the value has, aligned as it must be, borrowed alone for as long as the result, and
        // initialised; any bytes are a value, and any value is bytes without padding.
        Some(unsafe { &mut *start })
    }
}

/// A value with room for one more byte, by which a message that is too long shows.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct WithRoom<T: Typed> {
    value: T,
    room: u8,
}

impl<T: Typed> WithRoom<T> {
    /// Zeros.
    #[inline]
    #[must_use]
    pub fn zeroed() -> Self {
        Self {
            value: T::zeroed(),
            room: 0,
        }
    }

    /// Bytes of the value and the one behind them, to be filled.
    #[inline]
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: with `repr(C)` the byte lies directly behind the value, in which nothing is padding (`Typed`); both
        // are borrowed alone, and whatever is written there is a value.
        unsafe {
            std::slice::from_raw_parts_mut(std::ptr::from_mut(self).cast(), size_of::<T>() + 1)
        }
    }

    /// The value.
    #[inline]
    #[must_use]
    pub fn value(self) -> T {
        self.value
    }
}

/// A field of a [`Typed`] struct.
#[derive(Clone, Copy, Debug)]
pub struct StaticField {
    pub(crate) name: &'static str,
    pub(crate) scalar: Scalar,
    pub(crate) count: Option<usize>,
}

impl StaticField {
    /// The field of this name and type.
    #[must_use]
    pub const fn of<F: FieldType>(name: &'static str) -> Self {
        Self {
            name,
            scalar: F::SCALAR,
            count: F::COUNT,
        }
    }
}

/// A number, or an array of numbers: what a field of a message can be.
///
/// # Safety
/// The type has no padding, and each pattern of bits is a value: [`COUNT`](Self::COUNT) numbers of
/// [`SCALAR`](Self::SCALAR) one after the other, or one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a field of a message",
    note = "fields are i8 to u64, f32, f64, and arrays of them; a bool is a u8, a text is [u8; N]"
)]
pub unsafe trait FieldType: Copy + 'static {
    /// The numbers.
    const SCALAR: Scalar;
    /// How many, if it is an array.
    const COUNT: Option<usize>;
}

macro_rules! field_types {
    ($($number:ty: $scalar:ident),*) => {$(
        // SAFETY: a number of this size; each pattern of bits is one.
        unsafe impl FieldType for $number {
            const SCALAR: Scalar = Scalar::$scalar;
            const COUNT: Option<usize> = None;
        }
        // SAFETY: as above, and arrays have no gaps.
        unsafe impl<const N: usize> FieldType for [$number; N] {
            const SCALAR: Scalar = Scalar::$scalar;
            const COUNT: Option<usize> = Some(N);
        }
    )*};
}

field_types!(
    i8: I8, u8: U8, i16: I16, u16: U16, i32: I32, u32: U32, i64: I64, u64: U64, f32: F32, f64: F64
);

/// Messages are little-endian, and a value's memory is its message.
#[cfg(target_endian = "big")]
compile_error!("typed messages need a machine whose numbers are little-endian");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Declaration;

    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct State {
        position: [f64; 2],
        flags: u32,
        mode: [u8; 4],
    }

    // SAFETY: `repr(C)`, all fields in their order, 24 bytes of 24.
    unsafe impl Typed for State {
        const NAME: &'static str = "State";
        const FIELDS: &'static [StaticField] = &[
            StaticField::of::<[f64; 2]>("position"),
            StaticField::of::<u32>("flags"),
            StaticField::of::<[u8; 4]>("mode"),
        ];
    }

    #[test]
    fn memory_is_the_message() {
        let state = State {
            position: [1.0, -2.0],
            flags: 0x0102_0304,
            mode: *b"idle",
        };
        let message: [&[u8]; 4] = [
            &1f64.to_le_bytes(),
            &(-2f64).to_le_bytes(),
            &[4, 3, 2, 1],
            b"idle",
        ];
        let message = message.concat();
        assert_eq!(state.bytes(), message);
        assert_eq!(State::of_bytes(&message), Some(state));
        for wrong in [&message[1..], &[&message[..], b"x"].concat(), &[]] {
            assert_eq!(State::of_bytes(wrong), None);
        }
        let declared = Declaration::of::<State>().unwrap();
        assert_eq!(
            declared.to_string(),
            "State { position: f64[2], flags: u32, mode: u8[4] }"
        );
        assert_eq!(declared.bytes(), size_of::<State>());
    }

    #[test]
    fn values_are_filled_where_they_lie_if_they_can_lie_there() {
        let mut words = [0u64; 4];
        // SAFETY: the bytes of the words.
        let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), 32) };
        State::in_place(&mut bytes[..24]).unwrap().flags = 7;
        assert_eq!(bytes[16], 7);
        assert!(State::in_place(&mut bytes[..23]).is_none(), "too short");
        assert!(State::in_place(&mut bytes[1..25]).is_none(), "not aligned");
    }
}
