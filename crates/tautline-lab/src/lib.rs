//! Measures what a machine and a kernel can hold, and reports it.
//!
//! * [`machine`]: what about a machine decides how well it keeps time.
//! * [`histogram`]: many latencies in fixed memory.
//! * [`page`] and [`plot`]: self-contained HTML reports.

pub mod histogram;
pub mod machine;
pub mod page;
pub mod plot;

pub use histogram::{Bucket, LatencyHistogram, Summary};
pub use machine::{Machine, Reading};
