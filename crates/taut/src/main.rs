//! The command `taut`.

use std::process::ExitCode;

fn main() -> ExitCode {
    taut::cli::main()
}
