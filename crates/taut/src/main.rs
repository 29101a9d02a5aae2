//! The command `taut`.
fn main() {}
