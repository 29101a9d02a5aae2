//! Measurements shown: histograms, tables for a terminal, plots, and pages that need no network.
//!
//! * [`histogram`]: many latencies in fixed memory.
//! * [`table`]: figures in columns; [`text`]: what others wrote, made fit to be shown.
//! * [`plot`], [`chart`], [`bars`], [`gantt`], [`space`], [`strips`], [`surface`] and [`timeline`]: drawings as SVG.
//! * [`mod@reference`]: deadlines and values of papers in plots.
//! * [`page`]: a self-contained HTML page of them.
//!
//! It knows nothing of what was measured.

pub mod bars;
pub mod chart;
pub mod date;
pub mod gantt;
pub mod histogram;
mod live;
pub mod page;
pub mod plot;
pub mod reference;
pub mod space;
pub mod strips;
pub mod surface;
pub mod table;
pub mod text;
pub mod timeline;

pub use histogram::{Bucket, LatencyHistogram, Summary};
