//! Numbers that fields are made of.

use std::fmt;

/// A number of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // Each is called as in Rust.
pub enum Scalar {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

impl Scalar {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F32,
        Self::F64,
    ];

    /// Bytes of one number, which are also its alignment in C and in Rust.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Name in a declaration, and in Rust.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.names().0
    }

    /// Name in C.
    #[must_use]
    pub const fn c_name(self) -> &'static str {
        self.names().1
    }

    /// Name in a message definition of ROS.
    #[must_use]
    pub const fn ros_name(self) -> &'static str {
        self.names().2
    }

    /// Format of Python's module `struct`.
    #[must_use]
    pub const fn python_format(self) -> char {
        self.names().3
    }

    const fn names(self) -> (&'static str, &'static str, &'static str, char) {
        match self {
            Self::I8 => ("i8", "int8_t", "int8", 'b'),
            Self::U8 => ("u8", "uint8_t", "uint8", 'B'),
            Self::I16 => ("i16", "int16_t", "int16", 'h'),
            Self::U16 => ("u16", "uint16_t", "uint16", 'H'),
            Self::I32 => ("i32", "int32_t", "int32", 'i'),
            Self::U32 => ("u32", "uint32_t", "uint32", 'I'),
            Self::I64 => ("i64", "int64_t", "int64", 'q'),
            Self::U64 => ("u64", "uint64_t", "uint64", 'Q'),
            Self::F32 => ("f32", "float", "float32", 'f'),
            Self::F64 => ("f64", "double", "float64", 'd'),
        }
    }

    /// Whether it is a number with a fraction.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scalar| scalar.name() == text)
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
