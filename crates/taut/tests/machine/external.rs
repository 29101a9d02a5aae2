//! Commands that are programs of their own: `taut` becomes them, or says how to get them. What they do has its tests
//! beside them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use tautline_state::TemporaryDirectory;

/// Subcommands that become a program, its file, and the words before its arguments.
const EXTERNAL: [(&str, &str, &str); 7] = [
    ("lab", "taut-lab", "<lab>"),
    ("bench", "taut-lab", "<bench>"),
    ("demo", "taut-lab", "<demo>"),
    ("experiment", "taut-lab", "<experiment>"),
    ("flight", "taut-flight", ""),
    ("gateway", "taut-gateway", ""),
    ("ros", "taut-ros", ""),
];

/// Arguments as the user gives them, and as the program gets them.
const WORDS: [(&[&str], &str); 5] = [
    (&["run", "--config", "a b"], "<run><--config><a b>"),
    (&["--help"], "<--help>"),
    (&["-V", "--json=c"], "<-V><--json=c>"),
    (&["a", "--", "-b"], "<a><--><-b>"),
    (&["-1"], "<-1>"),
];

/// The command in a directory of its own: none of the other programs is beside it.
fn alone(place: &TemporaryDirectory) -> PathBuf {
    let taut = place.path().join("taut");
    fs::copy(env!("CARGO_BIN_EXE_taut"), &taut).expect("a copy");
    taut
}

#[test]
fn the_program_gets_the_arguments_as_they_are() {
    let place = TemporaryDirectory::make("taut-external").expect("a directory");
    let taut = alone(&place);
    for (name, file, before) in EXTERNAL {
        let program = place.path().join(file);
        fs::write(&program, "#!/bin/sh\nprintf '<%s>' \"$@\"\nexit 3\n").expect("a program");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a program");
        for (arguments, expected) in WORDS {
            let output = Command::new(&taut).arg(name).args(arguments).output();
            let output = output.expect("taut");
            let got = String::from_utf8_lossy(&output.stdout);
            assert_eq!(got, format!("{before}{expected}"));
            assert_eq!(output.status.code(), Some(3), "the program's exit status");
        }
    }
}

#[test]
fn without_the_program_the_way_to_it_is_named() {
    let place = TemporaryDirectory::make("taut-external").expect("a directory");
    let taut = alone(&place);
    for (name, file, _) in EXTERNAL {
        let mut command = Command::new(&taut);
        let output = command.arg(name).env("PATH", place.path()).output();
        let output = output.expect("taut");
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8_lossy(&output.stderr);
        let absent = format!("{file} is neither next to this command nor in PATH");
        assert!(said.contains(&absent), "{said}");
        assert!(said.contains("in the sources"), "{said}");
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
