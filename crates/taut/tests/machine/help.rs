//! The help: its examples do what they say, as far as one machine goes, and words of earlier versions name the new
//! ones.
//!
//! The shell has mount, network and process namespaces of its own, with an empty /run: nothing of the machine is seen
//! or changed. The unit tests of `help.rs` parse the other examples.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Scratch, skipped_without_privilege};

/// Run before the first example.
const SETTING: &str = "set -euo pipefail
mount -t tmpfs -o mode=755 taut /run
ip link set lo up
ip link add eth0 type veth peer name eth1
ip link set eth0 up
ip link set eth1 up
";

/// A node on loopback that is its own neighbour.
const NODE: &str = "link = \"udp\"\naddress = \"127.0.0.1\"\n\
    [[neighbour]]\nname = \"motor\"\nip = \"127.0.0.1\"\n\
    [[type]]\nname = \"State\"\nfields = [\"position: f64\", \"mode: u32\", \"reserved: u32\"]\n";

const TASKS: &str = "[[task]]\nname = \"slow\"\nperiod = \"100ms\"\nworst_case = \"1ms\"\n";

/// Examples that end by themselves, in this order. The second number is that of the example.
const ALONE: [(&str, &[usize]); 15] = [
    ("exec", &[0, 1]),
    ("capture", &[0]),
    ("init", &[1]),
    ("key create", &[0, 1]),
    ("key add", &[0, 1]),
    ("types", &[0, 1]),
    ("status", &[0, 1]),
    ("task check", &[0, 1]),
    ("partition create", &[1]),
    ("partition show", &[0]),
    ("node tune", &[1]),
    ("bus show", &[0]),
    ("smooth stop", &[0, 1]),
    ("smooth show", &[0, 1]),
    ("guest show", &[0]),
];

/// Examples that look at a task set which runs.
const BESIDE_TASKS: [(&str, &[usize]); 3] =
    [("task show", &[0]), ("task trace", &[0, 1]), ("top", &[1])];

/// An example of a command, out of its help.
fn example(words: &str, number: usize) -> String {
    let mut command = &taut::cli::grammar();
    for word in words.split(' ') {
        command = command.find_subcommand(word).expect(words);
    }
    let help = command.clone().render_long_help().to_string();
    let (_, examples) = help.split_once("Examples:\n").expect(words);
    let mut lines = examples
        .lines()
        .filter_map(|line| line.strip_prefix("    "));
    lines.nth(number).expect(words).to_owned()
}

fn all(examples: &[(&str, &[usize])]) -> String {
    let each = examples
        .iter()
        .flat_map(|(words, numbers)| numbers.iter().map(|number| example(words, *number)));
    each.map(|line| format!("echo '+ {line}'\n{line} </dev/null\n"))
        .collect()
}

/// A receiver, and its sender as often as it takes.
fn until_received(number: usize) -> String {
    let [receive, send] = ["recv", "send"].map(|words| example(words, number));
    format!(
        "{receive} & receiver=$!\nfor attempt in {{1..100}}; do\nkill -0 $receiver 2>/dev/null || break\n{send}\n\
         done\nwait $receiver\n"
    )
}

#[test]
fn examples_of_the_help_do_what_they_say() {
    if skipped_without_privilege() {
        return;
    }
    let scratch = Scratch::new("examples");
    for (name, text) in [
        ("node.toml", NODE),
        ("tasks.toml", TASKS),
        ("controller", "#!/bin/sh\necho controlled\n"),
    ] {
        fs::write(scratch.0.join(name), text).unwrap();
    }
    let controller = scratch.0.join("controller");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(controller, executable).unwrap();
    let [echo, ping] = [("echo", 0), ("ping", 1)].map(|(words, number)| example(words, number));
    let [run, run_on] = [0, 1].map(|number| example("task run", number));
    // A deadline may be missed beside other tests.
    let script = [
        SETTING.to_owned(),
        all(&ALONE),
        until_received(0),
        until_received(1),
        format!(
            "{echo} & echo=$!\nfor attempt in {{1..100}}; do {ping} && break; done\nkill $echo\n"
        ),
        format!("{run} || test $? = 1\n{run_on} & tasks=$!\n"),
        "for attempt in {1..100}; do taut task show | grep slow && break; sleep 0.1; done\n"
            .to_owned(),
        all(&BESIDE_TASKS),
        "kill $tasks\nwait $tasks || true\n".to_owned(),
        // The last one puts back what is left.
        all(&[("doctor", &[0, 1])]),
    ];
    let taut = Path::new(crate::PROGRAM).parent().unwrap().display();
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--net", "--pid"])
        .args(["--fork", "--kill-child", "--mount-proc"])
        .args(["bash", "-c", &script.concat()])
        .current_dir(&scratch.0)
        .env("PATH", format!("{taut}:{path}:/usr/sbin:/sbin"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    for promised in [
        "controlled",
        "hello",
        "\"payload\"",
        "10 sent, 10 answered",
        "struct",
        "Jobs that ran",
        "Best link here",
        "no interface of this network namespace is smoothed",
        "\"cpu_percent\":",
    ] {
        assert!(said.contains(promised), "no {promised:?}: {said}\n{errors}");
    }
    for file in ["ports.pcapng", "motor.key", "tasks.html", "jobs.json"] {
        assert!(scratch.0.join(file).exists(), "{file}: {said}\n{errors}");
    }
}

#[test]
fn words_of_earlier_versions_are_answered_with_the_new_ones() {
    for (old, new) in [
        (&["vbus", "list", "--json"][..], "taut bus show"),
        (&["guest", "top"], "taut top --kind guest"),
        (&["record", "f.mcap", "--timeout=1s"], "taut record --for"),
    ] {
        let output = Command::new(crate::PROGRAM).args(old).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.ends_with(&format!("is now `{new}`\n")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
