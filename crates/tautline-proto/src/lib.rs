//! The protocol core of Tautline. It never reads a clock or a socket: `now` is an argument.
#![no_std]
#![forbid(unsafe_code)]
