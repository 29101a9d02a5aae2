//! Measurements shown: histograms, tables for a terminal, plots, and pages that need no network.
//!
//! * [`histogram`]: many latencies in fixed memory.
//! * [`table`]: figures in columns; [`text`]: what others wrote, made fit to be shown.
//! * [`plot`], [`chart`] and [`gantt`]: drawings as SVG. With the feature `drawings` also `bars`, `space`, `strips`,
//!   `surface`, `timeline` and `pictures`.
//! * [`mod@reference`]: deadlines and values of papers in plots.
//! * [`page`]: a self-contained HTML page of them.
//!
//! It knows nothing of what was measured.

#[cfg(feature = "drawings")]
pub mod bars;
pub mod chart;
pub mod date;
pub mod gantt;
pub mod histogram;
mod live;
pub mod page;
#[cfg(feature = "drawings")]
pub mod pictures;
pub mod plot;
pub mod reference;
#[cfg(feature = "drawings")]
pub mod space;
#[cfg(feature = "drawings")]
pub mod strips;
#[cfg(feature = "drawings")]
pub mod surface;
pub mod table;
pub mod text;
#[cfg(feature = "drawings")]
pub mod timeline;

pub use histogram::{Bucket, LatencyHistogram, Summary};
