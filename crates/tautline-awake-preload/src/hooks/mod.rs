//! The functions that programs call.

pub mod lifetime;
pub mod receiving;
pub mod sending;
pub mod sets;
pub mod sleeping;
