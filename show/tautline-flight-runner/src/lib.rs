//! Flights on this machine: the same world and the same flight controller, run in several ways beside the same loads.
//!
//! [`show::run`] flies each [`Variant`] once: the world is a process of its own that keeps the time of nature, the
//! controller another one, and this process switches loads and faults on. [`report`] tells how it went.
//!
//! | module | holds |
//! |---|---|
//! | [`show`] | the schedule of a flight: children, loads, faults, results |
//! | `world` | the process of the world, and the check that its steps were in time |
//! | `loops` | the controller's loops as jobs, the same for all variants |
//! | `threads`, `tasks` | jobs as threads with a timer; jobs as tasks of the executive |
//! | `keeper` | the loops in a guest, which has them as an image of its own |
//! | `wire` | values between processes and loops: datagrams of the kernel, or ports on a V-Bus |
//! | `cable` | the second node of a network: pilot, control process, smoother, TCP |
//! | `radio` | the pilot's frames and their receiver |
//! | `course` | the day on which all variants fly |
//! | `home` | the directory of a flight, and what a killed one left |
//! | `soft` | video, mapping and recorder: ordinary processes under supervision |
//! | `trials` | faults that a craft is to survive, and how it went |
//! | [`part`] | entry of the child processes |
//! | [`live`] | a craft that flies until it is told to stop, with a page that shows it |
//! | `reference` | the same flight in virtual time, where nothing is late |
//! | [`ground`] | the craft for ground stations, by MAVLink |
//! | [`cell`] | the craft as the program of a cell, with ports on a bus |
//! | [`report`] | table, verdict, page |

mod cable;
pub mod cell;
mod child;
mod course;
mod drawings;
mod faults;
pub mod ground;
mod guest_process;
mod home;
pub mod live;
mod loops;
pub mod part;
mod radio;
mod record;
mod reference;
pub mod report;
pub mod show;
mod soft;
mod tasks;
mod threads;
mod trials;
mod wire;
mod world;

pub use cable::{RemoteCounts, RemoteRecord};
pub use record::{
    Fault, FlightRecord, Loop, LoopRecord, Phase, Restart, Sample, SoftRecord, Variant, WorldRecord,
};
pub use soft::SoftPart;
