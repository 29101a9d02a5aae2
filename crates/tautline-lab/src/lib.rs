//! Measures what a machine and a kernel can hold, and reports it.
//!
//! * [`machine`]: what about a machine decides how well it keeps time.
//! * [`histogram`]: many latencies in fixed memory.
//! * [`page`] and [`plot`]: self-contained HTML reports.
//! * [`hosts`]: two hosts on one machine, for what needs a network of its own; [`child`] and
//!   [`interrupt`] see to it that nothing of them is left behind.

pub mod capability;
pub mod child;
pub mod histogram;
pub mod hosts;
pub mod interrupt;
pub mod machine;
pub mod page;
pub mod plot;

pub use histogram::{Bucket, LatencyHistogram, Summary};
pub use machine::{Machine, Reading};
