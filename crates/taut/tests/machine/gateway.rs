//! `taut gateway` and `taut ros` become the programs `taut-gateway` and `taut-ros`, or say how to get them. The
//! programs' own tests are in `gateway/` and `ros/`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use tautline_state::TemporaryDirectory;

/// Subcommands that become a program.
const NAMES: [&str; 2] = ["gateway", "ros"];

/// Arguments, and those that the program gets: nothing if they are refused.
const OF_BOTH: [(&[&str], &str); 4] = [
    (&["run", "--config", "a b.toml"], "<run><--config=a b.toml>"),
    (
        &["check", "--config=c", "--json"],
        "<check><--config=c><--json=->",
    ),
    (&["status", "--json=out"], "<status><--json=out>"),
    (&["status"], "<status>"),
];

const OF_THE_GATEWAY: [(&[&str], &str); 7] = [
    (
        &["fleet", "--once", "--prefix", "plant/fleet"],
        "<fleet><--prefix=plant/fleet><--once><--interval=1>",
    ),
    (&["fleet", "--interval", "500ms"], "<fleet><--interval=0.5>"),
    (&["fleet", "--interval", "99ms"], ""),
    (&["record", "--key=a", "-"], ""),
    (&["record", "--key=a", "--count", "0", "f"], ""),
    (
        &[
            "record",
            "--key=a/**",
            "--key",
            "b",
            "--zenoh=z",
            "--seconds=3",
            "-o.mcap",
        ],
        "",
    ),
    (
        &[
            "record",
            "--key=a/**",
            "--key",
            "b",
            "--zenoh=z",
            "--timeout=2min",
            "--count=5",
            "--",
            "-o.mcap",
        ],
        "<record><--key=a/**><--key=b><--zenoh=z><--count=5><--timeout=120><--><-o.mcap>",
    ),
];

fn run(path: &std::path::Path, name: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.arg(name).args(arguments).env("PATH", path);
    command.output().expect("taut")
}

#[test]
fn the_program_gets_the_arguments_as_they_are() {
    let place = TemporaryDirectory::make("taut-gateway-program").expect("a directory");
    for name in NAMES {
        let program = place.path().join(format!("taut-{name}"));
        fs::write(&program, "#!/bin/sh\nprintf '<%s>' \"$@\"\nexit 3\n").expect("a program");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a program");
        gets_the_arguments(place.path(), name, &OF_BOTH);
    }
    gets_the_arguments(place.path(), "gateway", &OF_THE_GATEWAY);
}

fn gets_the_arguments(place: &std::path::Path, name: &str, all: &[(&[&str], &str)]) {
    for (arguments, expected) in all {
        let output = run(place, name, arguments);
        assert_eq!(String::from_utf8_lossy(&output.stdout), *expected);
        if expected.is_empty() {
            // Refused before the program is looked for.
            assert_eq!(output.status.code(), Some(2));
            continue;
        }
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
    for name in NAMES {
        let output = run(place.path(), name, &["status"]);
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("neither beside this command nor in PATH"),
            "{said}"
        );
        assert!(said.contains(&format!("make {name}")), "{said}");
    }
}

/// A program that says what a gateway would, and the output of a command that starts it.
fn with_program(script: &str, arguments: &[&str]) -> Output {
    let place = TemporaryDirectory::make("taut-gateway-program").expect("a directory");
    let program = place.path().join("taut-gateway");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("a program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a program");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = place.path().as_os_str().to_owned();
    all.push(":");
    all.push(path);
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command
        .args(arguments)
        .env("PATH", all)
        .output()
        .expect("taut")
}

const PICTURE: &str = r#"{"cells":[{"prefix":"plant/a","gateway":"north\u001b[2J","number":"1","presence":"alive","age_ms":5,"report":{"host":"robot","state":"active","totals":{"nodes":3,"missed":2}}},{"prefix":"plant/b","gateway":"south","number":"2","presence":"vanished","age_ms":61000}],"connections":1}"#;

#[test]
fn a_fleet_is_shown_as_the_program_tells_it() {
    let say = format!("printf '%s\\n' '{PICTURE}'");
    let output = with_program(&say, &["status", "--fleet"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(
        text.contains("plant/a") && text.contains("active"),
        "{text}"
    );
    assert!(
        text.contains("vanished") && text.contains("61.0 s"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let output = with_program(&say, &["status", "--fleet", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["cells"][1]["presence"], "vanished");
    let arguments = ["top", "--fleet", "--once", "--interval", "100ms"];
    let output = with_program(&say, &arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("msg/s") && text.contains("plant/b"), "{text}");
    // The program gets its way into Zenoh.
    let words = "echo \"$@\" >&2; exit 3";
    let arguments = ["status", "--fleet", "--config", "a b", "--prefix", "p"];
    let output = with_program(words, &arguments);
    assert_eq!(output.status.code(), Some(3), "its exit status");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("fleet --config=a b --prefix=p --once"),
        "{said}"
    );
}

#[test]
fn a_program_that_says_nothing_sensible_is_no_fleet() {
    for script in [
        "true",
        "echo hello",
        "printf '{\"cells\":[]}'",
        "head -c 200000 /dev/zero",
        "echo '{\"cells\":[{\"age_ms\":\"x\"}]}'",
    ] {
        let output = with_program(script, &["status", "--fleet"]);
        assert_eq!(output.status.code(), Some(1), "{script}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("says what no gateway says"),
            "{script}: {said}"
        );
    }
    let place = TemporaryDirectory::make("taut-gateway-program").expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    let command = command
        .args(["status", "--fleet"])
        .env("PATH", place.path());
    let said = command.output().expect("taut").stderr;
    assert!(String::from_utf8_lossy(&said).contains("make gateway"));
}

#[test]
fn the_unit_is_rated_as_little_exposed() {
    let unit = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../contrib/systemd/taut-gateway@.service"
    );
    let rating = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=20", unit])
        .output();
    let Ok(output) = rating else {
        return println!("SKIPPED: systemd-analyze is not installed");
    };
    let complained = String::from_utf8_lossy(&output.stderr);
    if complained.contains("unrecognized option") {
        return println!("SKIPPED: systemd-analyze does not rate files (systemd 250)");
    }
    assert!(output.status.success(), "{complained}");
}
