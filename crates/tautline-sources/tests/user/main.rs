//! Rules of the sources that a program can check.

mod prose;
mod rooms;
