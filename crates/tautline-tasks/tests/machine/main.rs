//! Partitions, and task sets that run, with the policies that this machine allows.

mod partition;
mod run;
mod watchdog;
