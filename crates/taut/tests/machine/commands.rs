//! The commands as a user runs them.

use std::os::unix::process::CommandExt;

use taut::external::is_external;

use crate::common::{Scratch, run, stderr, stdout, taut};

const NOBODY: u32 = 65_534;

#[test]
fn the_doctor_speaks_json_and_text() {
    let output = run(&["doctor"]);
    assert!(output.status.success());
    assert!(stdout(&output).contains("Best link here"));
    let output = run(&["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["links"]["udp"], true);
    for line in json["lines"].as_array().unwrap() {
        assert!(["good", "limited", "missing"].contains(&line["grade"].as_str().unwrap()));
    }
}

#[test]
fn the_doctor_without_privilege_finds_the_reduced_form() {
    let output = match taut(&["doctor"]).uid(NOBODY).gid(NOBODY).output() {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED: cannot run the command as nobody: {error}");
            return;
        }
    };
    assert!(output.status.success(), "usable in some form");
    let text = stdout(&output);
    assert!(text.contains("missing  CAP_NET_RAW"), "{text}");
    assert!(text.contains("Best link here: udp"), "{text}");
}

/// One form of --json, with a file and without, everywhere; the older form with a space where nothing else is meant.
#[test]
fn json_goes_to_standard_output_or_into_a_file_beside_the_table() {
    let scratch = Scratch::new("json");
    let file = scratch.0.join("result.json");
    let path = file.display().to_string();
    let with_file = format!("--json={path}");
    for command in [&["doctor"][..], &["status"], &["smooth", "show"]] {
        let is_json = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).is_ok();
        let table = run(command);
        let on_stdout = run(&[command, &["--json"]].concat());
        assert!(is_json(&on_stdout.stdout), "{command:?}");
        for into_file in [&[with_file.as_str()][..], &["--json", path.as_str()]] {
            let output = run(&[command, into_file].concat());
            assert_eq!(
                output.status,
                table.status,
                "{command:?}: {}",
                stderr(&output)
            );
            assert!(
                !is_json(&output.stdout) && !output.stdout.is_empty(),
                "{command:?}"
            );
            assert!(is_json(&std::fs::read(&file).unwrap()), "{command:?}");
            std::fs::remove_file(&file).unwrap();
        }
    }
}

/// A command that prints a table has the option.
#[test]
fn every_table_has_json() {
    /// Commands that print no result, or JSON alone: they serve, write files, send, talk or become another program.
    const WITHOUT: [&str; 12] = [
        "run", "stop", "echo", "exec", "send", "console", "record", "replay", "serve", "init",
        "create", "add",
    ];
    fn check(command: &clap::Command) {
        if command.has_subcommands() {
            let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
            let own = shown.filter(|one| !is_external(one.get_name()));
            return own.for_each(check);
        }
        let has_json = command
            .get_arguments()
            .any(|argument| argument.get_id() == "json");
        let name = command.get_name();
        assert!(has_json || WITHOUT.contains(&name), "{name}");
    }
    check(&taut::cli::grammar());
}

/// Names of the manual pages of a command and those below it.
fn pages(command: &clap::Command, before: &str, names: &mut std::collections::BTreeSet<String>) {
    let name = format!("{before}{}", command.get_name());
    names.insert(format!("{name}.1"));
    let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
    for command in shown.filter(|one| !is_external(one.get_name())) {
        pages(command, &format!("{name}-"), names);
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let scratch = Scratch::new("man");
    let directory = scratch.0.join("man1");
    let written = run(&["man", directory.to_str().unwrap()]);
    assert!(written.status.success(), "{written:?}");
    let mut expected = std::collections::BTreeSet::new();
    pages(&taut::cli::grammar(), "", &mut expected);
    assert!(expected.contains("taut-node-run.1"), "{expected:?}");
    assert!(!expected.contains("taut-lab.1"), "that program has it");
    let found = std::fs::read_dir(&directory).unwrap();
    let found = found.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(found.collect::<std::collections::BTreeSet<_>>(), expected);
    let page = std::fs::read_to_string(directory.join("taut-node-run.1")).unwrap();
    assert!(
        page.contains(".SH OPTIONS") && page.contains("config"),
        "{page}"
    );
    // A file is in the place of the directory.
    let page = directory.join("taut.1");
    let refused = run(&["man", page.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let text = stdout(&run(&["completions", shell]));
        for command in ["demo", "doctor", "exec", "init", "status"] {
            assert!(text.contains(command), "{shell}: {command}");
        }
    }
}
