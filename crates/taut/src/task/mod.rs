//! Pictures of task sets.

pub mod picture;
