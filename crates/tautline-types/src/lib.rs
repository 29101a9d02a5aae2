//! Types of messages: a name and fields of fixed size, which lie one after the other, little-endian, without padding.
//!
//! A [`Declaration`] describes a type at run time: it is read from a configuration, reported by a status and compared
//! with the peer's. A [`Typed`] struct is a type of Rust that lies in memory as its declaration says. This crate moves
//! no messages: `tautline` does.
//!
//! ```
//! use tautline_types::Declaration;
//!
//! let state = Declaration::new("JointState", ["position: f64[3]", "flags: u32"])?;
//! assert_eq!(state.bytes(), 28);
//! let wrong = Declaration::new("JointState", ["position: f64[3]", "flags: u16"])?;
//! assert_eq!(
//!     state.difference(&wrong).as_deref(),
//!     Some("field `flags` is u32 here and u16 there")
//! );
//! # Ok::<(), tautline_types::TypeError>(())
//! ```

mod declaration;
mod scalar;
mod typed;
mod value;

pub use declaration::{
    DECLARATION_BYTES_MAX, Declaration, FIELDS_MAX, Field, NAME_BYTES_MAX, TYPE_BYTES_MAX,
    TypeError, type_byte,
};
pub use scalar::Scalar;
pub use typed::{FieldType, StaticField, Typed, WithRoom};
pub use value::ValueError;
