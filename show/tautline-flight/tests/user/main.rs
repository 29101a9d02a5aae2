//! Flights in virtual time.

mod door;
mod flight;
mod simulator;
