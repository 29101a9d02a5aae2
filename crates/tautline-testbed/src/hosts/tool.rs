//! The programs that do part of the work: `ip` for the most part.

use std::fs::File;
use std::io::{self, PipeReader, Write};
use std::process::{Command, Stdio};

use super::HostsError;

/// Runs `ip` to its end and returns its standard output.
///
/// It is not tied to the calling thread: that would copy this process's page tables each time, which takes milliseconds
/// where ports have much memory, and `ip` ends by itself in less.
pub(super) fn ip(arguments: &[&str]) -> Result<String, HostsError> {
    run(Command::new("ip").args(arguments))
}

/// Runs several commands of `ip` inside a namespace, all of them even if one fails. Starting `ip` costs more than what
/// it does.
///
/// # Errors
/// That of the first command that failed.
pub(super) fn ip_batch(namespace: &str, lines: &[String]) -> Result<(), HostsError> {
    let arguments = ["-n", namespace, "-force", "-batch", "-"];
    let script = lines_to_read(lines).map_err(HostsError::io("write for `ip`"))?;
    match run_reading(Command::new("ip").args(arguments), script.into()) {
        Err(HostsError::Tool { command, stderr }) => {
            Err(of_line(namespace, lines, command, stderr))
        }
        result => result.map(drop),
    }
}

/// A pipe that has the lines in it. They are few, and fit into it.
fn lines_to_read(lines: &[String]) -> io::Result<PipeReader> {
    let (reader, mut writer) = io::pipe()?;
    for line in lines {
        writeln!(writer, "{line}")?;
    }
    Ok(reader)
}

/// The error of the first line that failed. `ip` writes what went wrong, and then `Command failed -:NUMBER`.
fn of_line(namespace: &str, lines: &[String], command: String, stderr: String) -> HostsError {
    let failed = stderr
        .split_once("\nCommand failed -:")
        .and_then(|(reason, rest)| {
            let number = rest.split(|byte: char| !byte.is_ascii_digit()).next()?;
            let line = lines.get(number.parse::<usize>().ok()?.checked_sub(1)?)?;
            Some((reason.to_owned(), format!("ip -n {namespace} {line}")))
        });
    let (stderr, command) = failed.unwrap_or((stderr, command));
    HostsError::Tool { command, stderr }
}

/// Runs a tool to its end and returns its standard output.
pub(super) fn run(command: &mut Command) -> Result<String, HostsError> {
    // Opened here: if it is missing, as in a chroot, the command would seem to be.
    let nothing = File::open("/dev/null").map_err(HostsError::io("open /dev/null"))?;
    run_reading(command, nothing.into())
}

fn run_reading(command: &mut Command, input: Stdio) -> Result<String, HostsError> {
    let tool = command.get_program().to_string_lossy().into_owned();
    let line = [tool.clone()]
        .into_iter()
        .chain(
            command
                .get_args()
                .map(|arg| arg.to_string_lossy().into_owned()),
        )
        .collect::<Vec<_>>()
        .join(" ");
    let output = command
        .env("LC_ALL", "C")
        .stdin(input)
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => HostsError::ToolMissing { tool },
            _ => HostsError::io(format!("run `{line}`"))(error),
        })?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(HostsError::Tool {
            command: line,
            stderr: if stderr.is_empty() {
                output.status.to_string()
            } else {
                stderr
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_tool_is_quoted() {
        match run(Command::new("sh").args(["-c", "echo broken >&2; exit 3"])) {
            Err(HostsError::Tool { command, stderr }) => {
                assert!(command.starts_with("sh -c"));
                assert_eq!(stderr, "broken");
            }
            other => panic!("{other:?}"),
        }
        let missing = run(&mut Command::new("no-such-tool-anywhere")).unwrap_err();
        assert!(
            missing
                .remedy()
                .contains("apt-get install no-such-tool-anywhere")
        );
    }

    #[test]
    fn the_line_that_failed_is_named() {
        let lines = [
            "link set lo up".to_owned(),
            "link set nothing up".to_owned(),
        ];
        let stderr = "Cannot find device \"nothing\"\nCommand failed -:2\nmore\nCommand failed -:3";
        match of_line("n", &lines, "ip".to_owned(), stderr.to_owned()) {
            HostsError::Tool { command, stderr } => {
                assert_eq!(command, "ip -n n link set nothing up");
                assert_eq!(stderr, "Cannot find device \"nothing\"");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_error_that_names_no_line_is_kept() {
        for stderr in [
            "no such namespace",
            "x\nCommand failed -:9",
            "x\nCommand failed -:0",
        ] {
            match of_line(
                "n",
                &["link".to_owned()],
                "ip -n n".to_owned(),
                stderr.to_owned(),
            ) {
                HostsError::Tool {
                    command,
                    stderr: kept,
                } => {
                    assert_eq!((command.as_str(), kept.as_str()), ("ip -n n", stderr));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
