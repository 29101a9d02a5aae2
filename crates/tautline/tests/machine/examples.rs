//! Every example of `/examples` runs and prints what its first lines promise. `cargo test` builds them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;

use tautline_testbed::hosts::{Host, Hosts, HostsOptions, may_create};

/// An example, next to this test in the target directory.
fn example(name: &str) -> Command {
    static BUILT: Once = Once::new();
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let program = profile.join("examples").join(name);
    if !program.exists() {
        BUILT.call_once(|| build(profile));
    }
    Command::new(program)
}

/// Builds all examples, where the test was built alone (`cargo test --test examples`).
fn build(profile: &Path) {
    let name = match profile.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        other => other,
    };
    let status = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--examples", "--profile", name, "--target-dir"])
        .arg(profile.parent().unwrap())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

fn configuration(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples")
        .join(name)
}

/// Standard output of an example that must succeed.
fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_program_that_fails_says_what_to_do() {
    let output = example("state_publisher")
        .arg("no-such-file.toml")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "Error: cannot read no-such-file.toml: No such file or directory (os error 2)\n  \
         what to do: name a TOML file that this user may read\n"
    );
}

#[test]
fn a_datagram_is_filled_and_looked_at_in_place() {
    let text = output(&mut example("in_place"));
    assert_eq!(
        text,
        "sent 30000 bytes\nanswer: brightest 199\n0 of 32 buffers lent\n"
    );
}

#[test]
fn a_reader_sees_what_a_publisher_publishes() {
    let reader = example("state_reader")
        .arg(configuration("controller.toml"))
        .arg("3")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Publishes until the reader has ended, however slow the machine is at starting it.
    let publisher = example("state_publisher")
        .arg(configuration("motor.toml"))
        .arg("1000000")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let read = reader.wait_with_output().unwrap();
    let mut publisher = publisher.unwrap();
    let running = publisher.try_wait().unwrap();
    publisher.kill().unwrap();
    publisher.wait().unwrap();
    assert_eq!(running, None, "the publisher ended early");
    let text = String::from_utf8(read.stdout).unwrap();
    assert!(
        read.status.success(),
        "{}",
        String::from_utf8_lossy(&read.stderr)
    );
    assert!(text.starts_with("link udp"), "{text}");
    let angles: Vec<f64> = text
        .lines()
        .filter_map(|line| line.strip_prefix("angle ")?.split(',').next()?.parse().ok())
        .collect();
    assert_eq!(angles.len(), 3, "{text}");
    assert!(angles.is_sorted() && angles[0] < angles[2], "{text}");
}

#[test]
fn the_most_urgent_command_comes_first() {
    let text = output(&mut example("command_queue"));
    let expected = "priority 7: emergency stop\n\
                    priority 3: turn to 90 degrees\n\
                    priority 3: turn to 45 degrees\n\
                    priority 0: log your temperature\n";
    assert_eq!(text, expected);
}

#[test]
fn one_thread_waits_for_two_ports() {
    let text = output(&mut example("epoll_loop"));
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let expected = [
        "port 30: message 0",
        "port 30: message 2",
        "port 30: message 4",
        "port 31: message 1",
        "port 31: message 3",
        "port 31: message 5",
    ];
    assert_eq!(lines, expected);
}

/// Runs the two sides of a dialogue, the answering one first.
fn dialogue(mut answerer: Command, mut asker: Command) -> String {
    let mut answering = answerer
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = answering.stdout.as_mut().unwrap();
    let mut first = String::new();
    BufReader::new(said).read_line(&mut first).unwrap();
    let text = output(&mut asker);
    assert!(answering.wait().unwrap().success());
    assert!(text.starts_with(&first), "{first}{text}");
    text
}

/// The same program between two processes and between two hosts, and nothing but its configuration says which.
#[test]
fn one_program_runs_over_a_bus_and_over_a_network() {
    let bus = std::env::temp_dir().join(format!("taut-talk-{}", std::process::id()));
    let own = |name: &str| {
        let text = std::fs::read_to_string(configuration(name)).unwrap();
        let text = text.replace("bus = \"talk\"", &format!("bus = {bus:?}"));
        let file = bus.with_extension(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let files = [own("answer_vbus.toml"), own("ask_vbus.toml")];
    let [answerer, asker] = files.clone().map(|file| {
        let mut command = example("question");
        command.arg(file);
        command
    });
    assert_eq!(
        dialogue(answerer, asker),
        "link vbus\n0? yes\n1? yes\n2? yes\n"
    );
    for file in files {
        std::fs::remove_file(file).unwrap();
    }
    assert!(!bus.exists(), "the last to leave removes the bus");

    if !may_create() {
        println!("SKIPPED: making network namespaces needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
        return;
    }
    let hosts = Hosts::create(&HostsOptions::default()).unwrap();
    let program = example("question").get_program().to_owned();
    let on = |host, file| {
        let mut command = hosts.command(host, program.to_str().unwrap());
        command.arg(configuration(file));
        command
    };
    assert_eq!(
        dialogue(on(Host::B, "answer_xdp.toml"), on(Host::A, "ask_xdp.toml")),
        "link xdp\n0? yes\n1? yes\n2? yes\n"
    );
}
