//! Pictures of task sets and of their runs.

pub mod measured;
pub mod picture;
pub mod timeline;
