//! The shared-memory objects of Tautline: the memory of one port, and the two disciplines in which
//! messages pass through it.
//!
//! A *producer* (the BPF demux in the kernel, or a link of this process) delivers frames into the memory; one
//! *consumer* (the thread that owns the port) takes them out. Neither ever waits for the other, neither makes a system
//! call to pass a message, and what is full is counted, not waited for.
//!
//! * [`layout`] is the byte layout. It is ABI: `bpf/tautline.h` describes the same bytes to the
//!   kernel side, and the sizes and offsets are asserted when either is compiled.
//! * [`queue`] is the queuing discipline: eight classes, one ring each, most urgent first.
//! * [`sample`] is the sampling discipline: the last value only, of all or of each source.
//! * [`police`] limits the rate of a port.
//! * [`peer`] assigns peers to places.
//! * [`index_pool`] holds the free buffers of a pool.
//! * [`doorbell`] lets a consumer sleep without missing a message.
//! * [`deliver`] puts one frame into a port of either kind, as the BPF demux does.
//! * [`region`] lays all this over raw memory.
//! * [`vbus`] is another layout, for ports between processes, where each side writes its own pages only.
//!
//! # Progress and trust
//! Every operation is bounded: a producer makes at most [`queue::CLAIM_ATTEMPTS`] attempts, a
//! consumer makes none. Indices that come from memory are masked or checked before use, so a
//! peer that overwrites the memory harms only its own messages.
//!
//! The lock-free parts are model-checked with loom: `tests/loom.rs`.

#![cfg_attr(not(any(loom, test)), no_std)]

pub mod deliver;
pub mod doorbell;
pub mod index_pool;
pub mod layout;
pub mod peer;
pub mod police;
pub mod queue;
#[cfg(not(loom))]
pub mod region;
pub mod sample;
mod sync;
pub mod tap;
pub mod vbus;
