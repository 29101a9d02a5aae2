//! `taut key`, and protected messages between `taut send` and `taut recv`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use crate::common::Scratch;
use serde_json::Value;

const TAUT: &str = env!("CARGO_BIN_EXE_taut");

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(TAUT);
    command.args(arguments).stdin(Stdio::null());
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_key_file_is_made_once_for_its_user_alone_and_gets_epochs() {
    let scratch = Scratch::new("key-file");
    let file = scratch.0.join("pair.key");
    let name = file.to_str().unwrap();
    let made = run(&["key", "create", name]);
    assert!(made.status.success(), "{}", said(&made));
    assert_eq!(
        file.metadata().unwrap().permissions().mode() & 0o7777,
        0o600
    );
    let first = fs::read_to_string(&file).unwrap();
    let secret = first.split('"').find(|part| part.len() == 64).unwrap();
    assert!(!said(&made).contains(secret) && made.stdout.is_empty());
    assert!(
        !run(&["key", "create", name]).status.success(),
        "it is there"
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), first);
    for epoch in 2..=4 {
        let added = run(&["key", "add", name, "--after", "1h"]);
        assert!(added.status.success(), "{}", said(&added));
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(secret) && text.contains(&format!("epoch = {epoch}\n")));
        assert!(!text.contains(&format!("epoch = {}\n", epoch + 1)));
    }
    let added = run(&["key", "add", name]);
    assert!(!added.status.success() && said(&added).contains("more than 4 keys"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let added = run(&["key", "add", name]);
    assert!(
        !added.status.success() && said(&added).contains("0644"),
        "{}",
        said(&added)
    );
    let wrong = run(&["key", "create", name, "--cipher", "rot13"]);
    assert_eq!(wrong.status.code(), Some(2));
}

/// Configurations of two nodes on addresses of loopback, each with its key file.
fn configure(scratch: &Scratch, [own, peer]: [&str; 2], key: &str) -> String {
    let file = scratch.0.join(format!("{own}.toml"));
    let key = scratch.0.join(key);
    let text = format!(
        "link = \"udp\"\naddress = \"{own}\"\n[[neighbour]]\nname = \"peer\"\nip = \"{peer}\"\nkey_file = \"{}\"\n\
         [[port]]\nname = \"command\"\nnumber = 30\nkind = \"queuing\"\nprotection = \"encrypted\"\n",
        key.display()
    );
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_protected_message_is_taken_and_a_plain_one_is_not() {
    let scratch = Scratch::new("key-messages");
    let key = scratch.0.join("pair.key");
    let made = run(&["key", "create", key.to_str().unwrap()]);
    assert!(made.status.success(), "{}", said(&made));
    let [a, b] = ["127.0.30.1", "127.0.30.2"];
    let (from, to) = (
        configure(&scratch, [a, b], "pair.key"),
        configure(&scratch, [b, a], "pair.key"),
    );
    let mut receiver = Command::new(TAUT)
        .args([
            "recv",
            "30",
            "--config",
            &to,
            "--count",
            "2",
            "--timeout",
            "30s",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(receiver.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("listening on port 30")));
    let send = |message: &str, more: &[&str]| {
        let sent = run(&[&["send", "peer", "30", message, "--config", &from], more].concat());
        assert!(sent.status.success(), "{}", said(&sent));
    };
    send("plain", &["--protection", "none"]);
    // Nothing goes out openly to a neighbour with keys because an option was forgotten.
    let refused = run(&["send", "peer", "31", "TOPSECRET", "--config", &from]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(
        said(&refused).contains("--protection encrypted"),
        "{}",
        said(&refused)
    );
    send("authentic", &["--protection", "authenticated"]);
    let status = run(&["status", "--json"]);
    let nodes: Value = serde_json::from_slice(&status.stdout).unwrap();
    let text = String::from_utf8_lossy(&run(&["status"]).stdout).into_owned();
    // As the file has it for the port of this number.
    send("hidden", &[]);
    let output = receiver.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "authentic\nhidden\n"
    );
    let ports = |node: &Value| node["ports"].as_array().cloned().unwrap_or_default();
    let nodes = nodes.as_array().or_else(|| nodes["nodes"].as_array());
    let mut all = nodes.expect("a list of nodes").iter().flat_map(ports);
    let port = all.find(|port| port["key"] == "30").expect("the receiver");
    let protection = &port["protection"];
    assert_eq!(protection["kind"], "encrypted");
    assert_eq!(protection["unprotected"], 1, "{protection}");
    assert!(text.contains("1 not protected"), "{text}");
}
