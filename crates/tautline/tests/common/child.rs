//! A test that needs a process of its own starts its own binary again, to run only itself, in another role.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::{PATIENCE, Take};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tautline::Wait;
use tautline_testbed::own_test;

const ROLE: &str = "TAUTLINE_TEST_ROLE";

/// Line that a child prints when it is ready.
pub const READY: &str = "the child is ready";

/// The role that this process was started in; `None` in the test itself.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Says that the child is ready, and stays until it is killed or its parent is gone.
pub fn ready() {
    println!("{READY}");
    let mut line = String::new();
    let _end = std::io::stdin().read_line(&mut line);
}

/// Answers what comes to a port until the parent is gone.
pub fn answer_for_ever<P: Take>(
    mut port: P,
    bytes_max: usize,
    answer: impl Fn(&mut P, P::Item, &[u8]),
) -> ! {
    std::thread::spawn(|| {
        ready();
        std::process::exit(0);
    });
    let mut buffer = vec![0; bytes_max];
    loop {
        let deadline = tautline::now() + PATIENCE;
        if let Some(item) = port.look(&mut buffer, Wait::Until(deadline)) {
            answer(&mut port, item, &buffer);
        }
    }
}

/// The command that runs `test` of this binary in `role`. It runs in the network namespace of the
/// thread that spawns it.
pub fn again(test: &str, role: &str) -> Command {
    let mut command = own_test::again(test);
    command.env(ROLE, role);
    command
}

/// Runs a child to its end; fails as it fails.
pub fn run(test: &str, role: &str) {
    let output = again(test, role).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    assert!(said.contains("1 passed"), "there is no test `{test}`");
}

/// A child that stays; killed with signal 9 when dropped.
pub struct Helper {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts one, and waits until it is ready.
    pub fn start(test: &str, role: &str) -> Self {
        let mut child = again(test, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut helper = Self { child, output };
        helper.wait_for(READY);
        helper
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line of the child's with this in it.
    pub fn wait_for(&mut self, text: &str) -> String {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            let bytes = self.output.read_line(&mut line).unwrap();
            assert!(bytes > 0, "the child ended before it said `{text}`");
        }
        line
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Lets a child that waits in [`ready`] go on.
    pub fn let_go(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Kills it with signal 9 and waits until it is gone.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.end();
    }
}
