//! `taut gateway` becomes the program `taut-gateway`, or says how to get it. The program's own tests are in
//! `gateway/`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use tautline_state::TemporaryDirectory;

fn run(path: &std::path::Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.arg("gateway").args(arguments).env("PATH", path);
    command.output().expect("taut")
}

#[test]
fn the_program_gets_the_arguments_as_they_are() {
    let place = TemporaryDirectory::make("taut-gateway-program").expect("a directory");
    let program = place.path().join("taut-gateway");
    fs::write(&program, "#!/bin/sh\nprintf '<%s>' \"$@\"\nexit 3\n").expect("a program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a program");
    for (arguments, expected) in [
        (
            &["run", "--config", "a b.toml"][..],
            "<run><--config=a b.toml>",
        ),
        (
            &["check", "--config=c", "--json"],
            "<check><--config=c><--json=->",
        ),
        (&["status", "--json=out"], "<status><--json=out>"),
        (&["status"], "<status>"),
    ] {
        let output = run(place.path(), arguments);
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        assert_eq!(
            output.status.code(),
            Some(3),
            "its exit status is the program's"
        );
    }
}

#[test]
fn without_the_program_the_way_to_it_is_named() {
    let place = TemporaryDirectory::make("taut-gateway-program").expect("a directory");
    let output = run(place.path(), &["status"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("neither beside this command nor in PATH"),
        "{said}"
    );
    assert!(said.contains("make gateway"), "{said}");
}
