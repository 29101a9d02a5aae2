//! The first process of a guest of `taut lab kernels` on an architecture that is not the host's, as a static program.
//! It understands the two internal commands of `taut` that a guest needs and nothing else.

use std::path::PathBuf;
use std::process::ExitCode;

use tautline_lab::{kernels, load};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["lab", "worker", rest @ ..] => load::run_worker(
            &rest
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>(),
        ),
        _ => kernels::guest::run_as_first_process(&["/init", "lab", "worker"].map(PathBuf::from)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tautline-lab-guest: {error}");
            ExitCode::FAILURE
        }
    }
}
