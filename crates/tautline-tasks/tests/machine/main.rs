//! Task sets that run, with the policies that this machine allows.

mod run;
mod watchdog;
