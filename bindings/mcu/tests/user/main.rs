//! The header for firmware beside `tautline-proto`.

mod header;
mod same_verdict;
mod vectors;
