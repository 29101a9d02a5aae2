//! `scripts/setup.sh` beside another package manager: with the real apt-get, on a state of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Holds a lock as apt does (fcntl, not flock), says so, and ends when its standard input is closed.
const HOLD: &str = "
import fcntl, sys
lock = open(sys.argv[1], 'w')
fcntl.lockf(lock, fcntl.LOCK_EX)
print('held', flush=True)
sys.stdin.read()
";

/// State of apt in a directory of its own, removed when dropped.
struct Apt(PathBuf);

impl Apt {
    fn new(name: &str) -> Self {
        let base = std::env::temp_dir().join(format!("taut-{name}-{}", std::process::id()));
        for directory in ["lists/partial", "archives/partial", "etc", "dpkg"] {
            fs::create_dir_all(base.join(directory)).unwrap();
        }
        // The list of installed packages, so that apt-get has nothing to fetch.
        fs::copy("/var/lib/dpkg/status", base.join("dpkg/status")).unwrap();
        let at = base.display();
        let text = format!(
            "Dir::State::lists \"{at}/lists\";\nDir::State::status \"{at}/dpkg/status\";\n\
             Dir::Cache::archives \"{at}/archives\";\nDir::Etc \"{at}/etc\";\n\
             Dir::State::extended_states \"{at}/extended\";\nDir::Cache::pkgcache \"\";\n\
             Dir::Cache::srcpkgcache \"\";\nAPT::Sandbox::User \"root\";\n"
        );
        fs::write(base.join("apt.conf"), text).unwrap();
        Self(base)
    }

    fn hold(&self, lock: &str) -> Child {
        let mut holder = Command::new("python3")
            .args(["-c", HOLD])
            .arg(self.0.join(lock))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "held\n");
        holder
    }

    /// The set-up on a machine without a C compiler. The package that has it is installed, so nothing changes.
    fn set_up(&self) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/setup.sh");
        let mut command = Command::new(script);
        command
            .args(["--for", "build"])
            .env("CC", "taut-no-such-compiler")
            .env("APT_CONFIG", self.0.join("apt.conf"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

impl Drop for Apt {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

/// Whether the set-up can be tested here.
fn is_possible() -> bool {
    let has_apt =
        Path::new("/var/lib/dpkg/status").exists() && Path::new("/usr/bin/apt-get").exists();
    if !has_apt {
        println!("SKIPPED: this system has no apt-get");
    } else if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: packages are installed by root only");
        return false;
    }
    has_apt
}

#[test]
fn set_up_waits_for_each_lock_of_another_package_manager() {
    if !is_possible() {
        return;
    }
    let apt = Apt::new("locks");
    for (step, lock) in [
        ("update", "lists/lock"),
        ("install", "archives/lock"),
        ("install", "dpkg/lock-frontend"),
    ] {
        let mut holder = apt.hold(lock);
        let mut child = apt.set_up().spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let waits = format!("set-up: apt-get {step} waits for another package manager");
        let waited = lines.by_ref().any(|line| line.unwrap().starts_with(&waits));
        // The other one ends, and the set-up goes on.
        drop(holder.stdin.take());
        holder.wait().unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(waited, "{lock}: {text}");
        assert!(
            text.contains("still missing after the installation"),
            "{lock}: {text}"
        );
    }
}

#[test]
fn set_up_says_who_holds_a_lock_and_gives_up_in_the_end() {
    if !is_possible() {
        return;
    }
    let apt = Apt::new("lock");
    let mut holder = apt.hold("lists/lock");
    let output = apt
        .set_up()
        .env("TAUTLINE_LOCK_SECONDS_MAX", "2")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let process = format!("set-up: waiting for process {}", holder.id());
    assert!(said.contains(&process), "{said}{complained}");
    assert!(complained.contains("apt-get update failed"), "{complained}");
}
