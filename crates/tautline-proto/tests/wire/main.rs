//! Formats on the wire, and the protocol on the simulated network.

#[cfg(feature = "authentication")]
mod authentication;
mod headers;
mod ip_headers;
mod ip_reassembly;
mod simulation;
mod smoother;
mod vectors;
