//! The command `taut`.

use std::process::ExitCode;

fn main() -> ExitCode {
    taut::lab::run_if_guest();
    taut::cli::main()
}
