//! A quadcopter and its flight controller, without a clock.
//!
//! [`world`] is the craft in moving air with its sensors; [`control`] the three loops that fly it; [`loops`] these
//! loops with their streams, for their runner; [`vision`] the craft's camera, and the door in its pictures;
//! [`message`] the values that they exchange. No function here reads a clock, makes a system call or draws a random
//! number that its caller did not seed: the same code flies in a test, in tasks of the executive, and beside any load.
//! There is no unsafe code, and none of the loops takes memory after it is made.
//!
//! ```
//! use tautline_flight::flight::Flight;
//! use tautline_flight::message::{Mission, Order, Phase};
//! use tautline_flight::vector::vector;
//! use tautline_flight::world::Scene;
//!
//! let orders = vec![(1.0, Order::Arm), (1.2, Order::TakeOff), (1.4, Order::Mission)];
//! let scene = Scene { orders, ..Scene::default() };
//! let mut flight = Flight::new(scene, Mission::new(&[vector(2.0, 0.0, 2.0)]));
//! flight.run_until(6.0);
//! assert_eq!(flight.status.phase, Phase::Hold);
//! assert!((flight.world.body().position - vector(2.0, 0.0, 2.0)).length() < 0.8);
//! ```
//!
//! # What it is not
//!
//! It is no firmware for a craft that carries people or flies above them. The air has no ground effect and no wake of
//! the rotors, the frame does not bend, and there is no magnetometer: the heading drifts with the gyroscope.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod control;
pub mod flight;
pub mod loops;
pub mod message;
pub mod scenery;
pub mod vector;
pub mod vision;
pub mod world;
