//! One table: a situation in which a command fails, made for real, with the cause that it names and the remedy.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Scratch, skipped_without_privilege, skipped_without_tools};

/// A situation: a script for `sh`, run as root in network and mount namespaces of its own. `$TAUT` is the command,
/// which every user can reach, `$D` a directory of the row's own, and `$FORBID ERRNO` refuses bpf(2) to the command
/// that follows.
struct Row {
    situation: &'static str,
    script: &'static str,
    /// Words of the message or of what is shown, and of the remedy.
    message: &'static str,
    remedy: &'static str,
    /// Words of a cause or a remedy that would be wrong.
    never: &'static str,
}

/// A cable between `near`, with an address, and `far`.
const CABLE: &str = "
ip link add near type veth peer name far
ip address add 10.77.0.1/24 dev near
ip link set near up
ip link set far up
";

const TABLE: [Row; 16] = [
    Row {
        situation: "the user may have no further thread",
        script: "setpriv --reuid 64321 --regid 64321 --clear-groups prlimit --nproc=1 $TAUT doctor",
        message: "cannot watch for signals",
        remedy: "ulimit -u",
        never: "open files",
    },
    Row {
        situation: "eight descriptors, of which a bus needs more",
        script: "prlimit --nofile=8 $TAUT recv 9 --bus $D/bus --timeout 100ms",
        message: "joining bus",
        remedy: "ulimit -n",
        never: "name another bus",
    },
    Row {
        situation: "twelve descriptors, of which a port needs more",
        script: "prlimit --nofile=12 $TAUT recv 9 --bus $D/bus --timeout 100ms",
        message: "Too many open files",
        remedy: "ulimit -n",
        never: "taut doctor",
    },
    Row {
        situation: "root, to whom a seccomp filter forbids bpf(2)",
        script: "$FORBID EPERM $TAUT recv 9 --interface near --link xdp --timeout 100ms",
        message: "runs under a seccomp filter",
        remedy: "allow bpf(2) in the seccomp filter",
        never: "CAP_BPF",
    },
    Row {
        situation: "a seccomp filter by which bpf(2) is missing",
        script: r#"printf 'interface = "near"\nlink = "xdp"\nxdp_mode = "tc"\n' >$D/node.toml
            $FORBID ENOSYS $TAUT recv 9 --config $D/node.toml --timeout 100ms"#,
        message: "runs under a seccomp filter",
        remedy: "allow bpf(2) in the seccomp filter",
        never: "Linux 6.6",
    },
    Row {
        situation: "a user with all capabilities of link xdp but CAP_PERFMON",
        script: "setpriv --bounding-set=-perfmon,-sys_admin --inh-caps=-all \
            $TAUT recv 9 --interface near --link xdp --timeout 100ms",
        message: "CAP_PERFMON",
        remedy: "run as root or grant the capabilities (setcap)",
        never: "verifier",
    },
    Row {
        situation: "parts of a kernel that root is not allowed to try",
        script: "$FORBID ENOSYS $TAUT doctor",
        message: "could not be tried",
        remedy: "seccomp filter to know",
        never: "as root to know",
    },
    Row {
        situation: "the own interface is down",
        script: "ip link set near down; $TAUT send 10.77.0.2 9 hello --interface near",
        message: "interface `near` is down",
        remedy: "ip link set dev near up",
        never: "check that the host is up",
    },
    Row {
        situation: "the own interface has no carrier",
        script: "ip link set far down; $TAUT send 10.77.0.2 9 hello --interface near",
        message: "interface `near` has no carrier",
        remedy: "connect the cable, or bring its other end up",
        never: "check that the host is up",
    },
    Row {
        situation: "the other host does not answer",
        script: "$TAUT send 10.77.0.2 9 hello --interface near",
        message: "no answer from 10.77.0.2",
        remedy: "check that the host is up",
        never: "is down",
    },
    Row {
        situation: "a program in a directory that the user may not enter",
        script: "mkdir -m 700 $D/private; cp /bin/true $D/private/
            setpriv --reuid 65534 --regid 65534 --clear-groups $TAUT exec -- $D/private/true",
        message: "cannot be reached: permission denied",
        remedy: "namei -l",
        never: "there is no program",
    },
    Row {
        situation: "a program that is not there",
        script: "$TAUT exec -- $D/missing",
        message: "there is no program",
        remedy: "name a program that exists",
        never: "namei -l",
    },
    Row {
        situation: "the list of interfaces, of which one's name is not UTF-8",
        script: r#"ip link set far down; ip link set far name "$(printf 'f\377r')"; $TAUT doctor"#,
        message: "near",
        remedy: "f\u{fffd}r",
        never: "cannot be listed",
    },
    Row {
        situation: "capture of all interfaces, of which one's name is not UTF-8",
        script: r#"ip link set far down; ip link set far name "$(printf 'f\377r')" up
            $TAUT capture --for 200ms"#,
        message: "capturing on",
        remedy: "f\u{fffd}r",
        never: "is not captured",
    },
    Row {
        situation: "echo on an interface whose name orders the terminal about",
        script: r#"N="$(printf 'n\033[2Jr')"; ip link set near down; ip link set near name "$N" up
            $TAUT echo --interface "$N" >$D/said 2>&1 & P=$!
            for i in $(seq 200); do grep -q 'answering on' $D/said && break; sleep 0.05; done
            kill $P; wait; cat $D/said"#,
        message: "answering on port",
        remedy: "n\u{fffd}[2Jr",
        never: "\u{1b}",
    },
    Row {
        situation: "capture on an interface whose name orders the terminal about",
        script: r#"N="$(printf 'n\033[2Jr')"; ip link set near down; ip link set near name "$N" up
            timeout 30 $TAUT capture --interface "$N" --count 1 2>$D/said &
            for i in $(seq 200); do grep -q 'capturing on' $D/said && break; sleep 0.05; done
            cat $D/said; $TAUT send 02:00:00:00:00:01 9 hello --interface far --link packet; wait"#,
        message: "priority",
        remedy: "n\u{fffd}[2Jr",
        never: "\u{1b}",
    },
];

/// Refuses bpf(2) with the error that is named first, and becomes the program that comes after it.
const FORBID: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **words) {
    int error = strcmp(words[1], "EPERM") ? ENOSYS : EPERM;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_bpf, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program)) return 99;
    execvp(words[2], words + 2);
    return count;
}
"#;

#[test]
fn each_failure_names_its_cause_and_a_remedy_that_fits() {
    let tools = [
        ("setpriv", "util-linux"),
        ("prlimit", "util-linux"),
        ("cc", "gcc"),
    ];
    if skipped_without_privilege() || skipped_without_tools(&tools) {
        return;
    }
    let scratch = Scratch::new("remedies");
    let taut = scratch.0.join("taut");
    fs::copy(env!("CARGO_BIN_EXE_taut"), &taut).unwrap();
    let forbid = built(&scratch.0);
    let mut wrong = Vec::new();
    for (row, number) in TABLE.iter().zip(0..) {
        let own = scratch.0.join(format!("row-{number}"));
        fs::create_dir_all(&own).unwrap();
        let said = said(row, &own, &taut, &forbid);
        let is_right = [row.message, row.remedy]
            .iter()
            .all(|words| said.contains(words));
        if !is_right || said.contains(row.never) {
            wrong.push(format!("{}:\n{said}", row.situation));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Output and errors of a row.
fn said(row: &Row, own: &Path, taut: &Path, forbid: &Path) -> String {
    let output = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c"])
        .arg(format!("exec 2>&1\n{CABLE}\n{}", row.script))
        .env("TAUT", taut)
        .env("FORBID", forbid)
        .env("D", own)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn built(place: &Path) -> std::path::PathBuf {
    let (source, program) = (place.join("forbid.c"), place.join("forbid"));
    fs::write(&source, FORBID).unwrap();
    let status = Command::new("cc")
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .status();
    assert!(status.unwrap().success());
    program
}
