//! `taut exec` and clients of a control process in a container: no capability, a user namespace, a process namespace, a
//! filter of system calls as container runtimes have it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tautline_testbed::hosts::{Host, Hosts, HostsOptions};

use crate::common::{
    Scratch, skipped_without_privilege, skipped_without_tools, started, stderr, stdout,
};

/// User outside the container that is root inside.
const USER: u32 = 100_000;

/// Files of a container, with the command and its library in `/opt`.
struct Container {
    scratch: Scratch,
    quota_us: Option<i64>,
}

impl Container {
    /// Says so where the machine cannot have one.
    fn new(name: &str) -> Option<Self> {
        if skipped_without_privilege() || skipped_without_tools(&[("crun", "crun")]) {
            return None;
        }
        let scratch = Scratch::new(name);
        let (root, command) = (scratch.0.join("root"), scratch.0.join("command"));
        for directory in ["usr", "proc", "dev", "run/tautline", "opt", "sys/fs/cgroup"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for link in ["bin", "lib", "lib64"] {
            symlink(Path::new("usr").join(link), root.join(link)).unwrap();
        }
        for directory in ["", "run", "opt"] {
            chown(root.join(directory), Some(USER), Some(USER)).unwrap();
        }
        fs::create_dir(&command).unwrap();
        fs::set_permissions(&command, fs::Permissions::from_mode(0o755)).unwrap();
        fs::copy(crate::PROGRAM, command.join("taut")).unwrap();
        let library = library();
        fs::copy(&library, command.join(library.file_name().unwrap())).unwrap();
        Some(Self {
            scratch,
            quota_us: None,
        })
    }

    fn config(&self, words: &[&str]) -> Value {
        let bind = |source: &Path, destination: &str| json!({"type": "bind", "source": source, "destination": destination, "options": ["rbind", "ro"]});
        let mut mounts = vec![
            json!({"type": "proc", "source": "proc", "destination": "/proc"}),
            json!({"type": "tmpfs", "source": "tmpfs", "destination": "/dev", "options": ["mode=755"]}),
            bind(Path::new("/usr"), "/usr"),
            bind(&self.scratch.0.join("command"), "/opt"),
            bind(Path::new("/run/tautline"), "/run/tautline"),
        ];
        let mut resources = json!({});
        let namespaces =
            ["pid", "mount", "ipc", "cgroup", "user"].map(|kind| json!({"type": kind}));
        if let Some(quota) = self.quota_us {
            mounts.push(
                json!({"type": "cgroup", "source": "cgroup", "destination": "/sys/fs/cgroup"}),
            );
            resources = json!({"cpu": {"quota": quota, "period": 100_000}});
        }
        let map = json!([{"containerID": 0, "hostID": USER, "size": 1_000}]);
        json!({
            "ociVersion": "1.0.2",
            "root": {"path": "root", "readonly": true},
            "mounts": mounts,
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": words,
                "env": ["PATH=/opt:/usr/bin"],
                "cwd": "/",
                "capabilities": {"bounding": [], "effective": [], "permitted": []},
                "noNewPrivileges": true,
                "rlimits": [{"type": "RLIMIT_MEMLOCK", "hard": 65_536, "soft": 65_536}],
            },
            "linux": {
                "namespaces": namespaces,
                "uidMappings": map,
                "gidMappings": map,
                "resources": resources,
                "seccomp": {
                    "defaultAction": "SCMP_ACT_ALLOW",
                    "syscalls": [{
                        "names": ["bpf", "perf_event_open", "io_uring_setup", "mount", "unshare", "setns"],
                        "action": "SCMP_ACT_ERRNO",
                    }],
                },
            },
        })
    }

    /// Runs a program in the container, started by `crun`: a command of the network namespace that it is to have.
    fn run(&self, crun: impl Fn(&str) -> Command, words: &[&str]) -> Output {
        let config = self.config(words).to_string();
        fs::write(self.scratch.0.join("config.json"), config).unwrap();
        // Some runtimes refuse a machine that has both versions of cgroups mounted.
        let script = "umount /sys/fs/cgroup/unified 2>/dev/null; exec crun --root state \"$@\"";
        // A container without a limit needs no group.
        let manager = match self.quota_us {
            Some(_) => "cgroupfs",
            None => "disabled",
        };
        let name = format!("taut-container-{}", std::process::id());
        crun("unshare")
            .args(["--mount", "sh", "-c", script, "sh"])
            .args(["--cgroup-manager", manager, "run", &name])
            .current_dir(&self.scratch.0)
            // Never a device: crun gives its standard streams to the container's user.
            .stdin(Stdio::piped())
            .output()
            .unwrap()
    }
}

/// The library that `taut exec` loads, which cargo leaves beside the command or below it.
fn library() -> PathBuf {
    let own = Path::new(crate::PROGRAM).parent().unwrap();
    let written = |path: &PathBuf| path.metadata().and_then(|found| found.modified()).ok();
    let places = [
        "libtautline_awake_preload.so",
        "deps/libtautline_awake_preload.so",
    ];
    let places = places.map(|place| own.join(place)).into_iter();
    let places = places.filter(|place| place.exists());
    places.max_by_key(written).expect("cargo built the library")
}

const SLEEPER: &str = "import time\nfor k in range(200): time.sleep(0.002)\nprint('done')";

#[test]
fn a_program_sleeps_awake_in_a_container() {
    let Some(container) = Container::new("container-exec") else {
        return;
    };
    let words = ["taut", "exec", "--report", "--", "python3", "-c", SLEEPER];
    let output = container.run(|program| Command::new(program), &words);
    let said = stderr(&output);
    assert_eq!(stdout(&output), "done\n", "{said}");
    assert!(
        said.contains("awake for ") && said.contains("sleeps: late by "),
        "{said}"
    );
    let words = [
        "taut",
        "exec",
        "--interface",
        "lo",
        "--fifo",
        "50",
        "--",
        "true",
    ];
    let output = container.run(|program| Command::new(program), &words);
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    for reason in [
        "nothing comes past the stack: link `xdp` needs",
        "without SCHED_FIFO",
    ] {
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn a_container_with_a_limit_of_cpu_time_is_told_that_nothing_changes() {
    let Some(mut container) = Container::new("container-limit") else {
        return;
    };
    container.quota_us = Some(50_000);
    let output = container.run(|program| Command::new(program), &["true"]);
    if !output.status.success() {
        println!(
            "SKIPPED: crun cannot limit CPU time here: {}",
            stderr(&output)
        );
        return;
    }
    let words = ["taut", "exec", "--report", "--", "python3", "-c", SLEEPER];
    let output = container.run(|program| Command::new(program), &words);
    let said = stderr(&output);
    assert_eq!(stdout(&output), "done\n", "{said}");
    assert!(
        said.contains("stay as they are: a cgroup limits its CPU time (cpu.max)")
            && said.contains("awake for 0 ms"),
        "{said}"
    );
}

#[test]
fn a_client_in_a_container_sends_and_receives_through_the_control_process_outside() {
    let Some(container) = Container::new("container-client") else {
        return;
    };
    let hosts = Hosts::create(&HostsOptions::default()).unwrap();
    let [own, peer] = [Host::A, Host::B].map(|host| hosts.end(host, 0));
    let file = container.scratch.0.join("node.toml");
    let rules = format!(
        "interface = \"{}\"\n[[allow]]\nuser = \"{USER}\"\nports = [10]\n",
        own.interface()
    );
    fs::write(&file, rules).unwrap();
    let mut control = hosts.command(Host::A, crate::PROGRAM);
    control.args(["node", "run", "--config", file.to_str().unwrap()]);
    let _control = started(&mut control, "serving clients", false);
    let mut echo = hosts.command(Host::B, crate::PROGRAM);
    echo.args(["echo", "--interface", &peer.interface(), "--port", "9"]);
    let _echo = started(&mut echo, "answering on port", false);
    let ping = |from: &str| {
        let (interface, address) = (own.interface(), peer.address().to_string());
        let words = ["taut", "ping", "--interface", &interface, "--from", from];
        let words = [&words[..], &["--port", "9", "--count", "20", &address]].concat();
        container.run(|program| hosts.command(Host::A, program), &words)
    };
    let output = ping("10");
    let said = [stdout(&output), stderr(&output)].concat();
    assert!(said.contains("through the control process"), "{said}");
    assert!(said.contains("20 sent, 20 answered"), "{said}");
    let output = ping("11");
    let said = stderr(&output);
    assert!(
        said.contains("port 11 is not allowed: user") && said.contains(&USER.to_string()),
        "{said}"
    );
}
