//! A test that needs another process starts its own program again, to run only itself.

use std::env;
use std::process::{Command, Stdio};

/// The command that runs one test of this program, ignored or not. `test` is its name, with or without its module.
pub fn again(test: &str) -> Command {
    let mut command = Command::new(own_program());
    command.args(arguments(test));
    command
}

/// Arguments with which this program runs that one test.
pub(crate) fn arguments(test: &str) -> [String; 5] {
    let name = full_name(test);
    let options = [
        "--exact",
        "--include-ignored",
        "--nocapture",
        "--test-threads=1",
    ];
    let [exact, ignored, shown, threads] = options.map(str::to_owned);
    [exact, name, ignored, shown, threads]
}

pub(crate) fn own_program() -> std::path::PathBuf {
    env::current_exe().expect("the test's own program")
}

/// Name of a test with its module. A process that runs this test alone has it among its arguments; else the program
/// lists its tests, of which one alone may be called so.
fn full_name(test: &str) -> String {
    let inside = format!("::{test}");
    let is_it = |name: &String| name == test || name.ends_with(&inside);
    if let Some(name) = env::args().find(is_it) {
        return name;
    }
    let listed = Command::new(own_program())
        .args(["--list", "--format=terse"])
        .stdin(Stdio::null())
        .output()
        .expect("the test's own program");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    let found: Vec<String> = names.map(str::to_owned).filter(is_it).collect();
    let [name] = &found[..] else {
        panic!("{test} is the name of {} tests: {found:?}", found.len());
    };
    name.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_finds_itself_by_its_name_alone() {
        const TEST: &str = "a_test_finds_itself_by_its_name_alone";
        let name = full_name(TEST);
        assert_eq!(name, format!("own_test::tests::{TEST}"));
        assert_eq!(full_name(&name), name);
    }
}
