//! Code that other users can write is not run. Needs root, to be another user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};

use tautline_state::TemporaryDirectory;

fn run(program: &Path, words: &[&str]) -> Output {
    Command::new(program).args(words).output().unwrap()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn no_program_of_a_stranger_is_run_beside_the_command() {
    let made = TemporaryDirectory::make("taut-beside").unwrap();
    let (own, other) = (made.path().join("taut"), made.path().join("taut-gateway"));
    fs::copy(env!("CARGO_BIN_EXE_taut"), &own).unwrap();
    fs::write(&other, "#!/bin/sh\ntouch \"$0.ran\"\n").unwrap();
    set_mode(&other, 0o755);
    set_mode(made.path(), 0o1777);
    if chown(&other, Some(65_534), None).is_err() {
        println!("SKIPPED: only root can give a file away");
        return;
    }
    let refused = run(&own, &["gateway", "check", "--config", "gateway.toml"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!made.path().join("taut-gateway.ran").exists(), "{said}");
    assert!(
        !refused.status.success() && said.contains("65534"),
        "{said}"
    );
}

#[test]
fn root_runs_no_task_set_and_no_guest_that_others_can_write() {
    let made = TemporaryDirectory::make("taut-open").unwrap();
    let file = made.path().join("set.toml");
    fs::write(&file, "").unwrap();
    set_mode(&file, 0o666);
    if chown(&file, Some(0), None).is_err() {
        println!("SKIPPED: it needs root");
        return;
    }
    let name = file.to_str().unwrap();
    for words in [["task", "run", name], ["guest", "run", name]] {
        let refused = run(Path::new(env!("CARGO_BIN_EXE_taut")), &words);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("chmod o-w"), "{words:?}: {said}");
    }
}

#[test]
fn root_runs_no_program_of_a_task_set_that_others_can_write_or_replace() {
    let made = TemporaryDirectory::make("taut-program").unwrap();
    let (open, own) = (made.path().join("open"), made.path().join("own"));
    let set = made.path().join("set.toml");
    let program = |path: &Path| {
        fs::create_dir(path.parent().unwrap()).unwrap();
        let text = format!("#!/bin/sh\n: >{}\n", made.path().join("ran").display());
        fs::write(path, text).unwrap();
        set_mode(path, 0o755);
    };
    program(&open.join("job"));
    program(&own.join("job"));
    set_mode(&open, 0o777);
    set_mode(&own.join("job"), 0o666);
    if chown(&own, Some(0), None).is_err() {
        println!("SKIPPED: it needs root");
        return;
    }
    let safe = "exec = \"/bin/cat\"\nsafe_exec = \"open/job\"";
    for program in ["exec = \"open/job\"", "exec = \"own/job\"", safe] {
        let task = "[[task]]\nname = \"a\"\nperiod = \"100ms\"\nworst_case = \"1ms\"\n";
        let text = format!("{task}{program}\n");
        fs::write(&set, text).unwrap();
        let name = set.to_str().unwrap();
        let refused = run(
            Path::new(env!("CARGO_BIN_EXE_taut")),
            &["task", "run", name],
        );
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("written by other users"), "{program}: {said}");
        assert!(!made.path().join("ran").exists(), "{program}");
    }
}
