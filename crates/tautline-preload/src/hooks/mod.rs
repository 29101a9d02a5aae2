//! The functions that stand in front of the C library's, by what they are about.

pub mod epolling;
pub mod lifetime;
pub mod polling;
pub mod receiving;
pub mod sending;
