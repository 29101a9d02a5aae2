//! Tests that move processes about: each runs in a process namespace of its own, where it sees no other processes.

use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::own_test;

/// Variable by which a test knows that it is inside.
const INSIDE: &str = "TAUTLINE_TEST_INSIDE";

/// Tests that change the machine take turns.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Whether this process runs one test, in a process namespace of its own, for another process of the same program.
pub fn am_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Says whether the test of this name runs in a process namespace of its own. If not, runs it there, and panics if it
/// fails: the caller returns then. Needs CAP_SYS_ADMIN and util-linux.
pub fn is_inside(test: &str) -> bool {
    if am_inside() {
        return true;
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "--kill-child", "--"])
        .arg(own_test::own_program())
        .args(own_test::arguments(test))
        .env(INSIDE, "1")
        .stdin(Stdio::null())
        .output()
        .expect("unshare of util-linux");
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test}: {text}{errors}");
    assert!(text.contains("1 passed"), "no test is called {test}");
    false
}
