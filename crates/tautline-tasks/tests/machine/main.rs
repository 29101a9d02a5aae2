//! Task sets that run, with the policies that this machine allows.

mod lint;
mod run;
mod watchdog;
