//! Limits of task sets, which errors name too.

use core::time::Duration;

/// Longest name in bytes. Lower: names become codes. Higher: tables and pictures no longer fit a screen.
pub const NAME_BYTES_MAX: usize = 32;

/// Longest hyperperiod of a table. Lower: tables of ordinary mixtures of rates are refused. Higher: tables of more jobs
/// than anybody can look at, up to years for periods without a common divisor.
pub const HYPERPERIOD_MAX: Duration = Duration::from_secs(60);

/// Most jobs in the hyperperiod of a table. Lower: 64 tasks at 1 kHz for a second do not fit. Higher: the analysis of a
/// table takes longer than a user waits at a terminal.
pub const JOBS_MAX: u64 = 100_000;

/// Shortest deadline that the kernel takes, with `sched_deadline_period_min_us` as it comes.
pub const KERNEL_DEADLINE_MIN: Duration = Duration::from_micros(100);
