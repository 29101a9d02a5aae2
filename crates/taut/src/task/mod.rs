//! Task sets in files: reading them, and showing their analysis.

pub mod file;
pub mod picture;
