//! A loop of one's own in Rust, C and Python: `docs/start/own-loop.md` shows the programs; each moves the motor.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::hello::{block, built, python_package, root, timed};
use crate::{IMAGE, succeeded};

#[test]
fn the_page_shows_the_programs() {
    let page = fs::read_to_string(root().join("docs/start/own-loop.md")).unwrap();
    for (language, file) in [
        ("c", "bindings/c/examples/own_loop.c"),
        ("rust", "examples/own_loop.rs"),
        ("python", "bindings/python/examples/own_loop.py"),
    ] {
        let program = fs::read_to_string(root().join(file)).unwrap();
        assert_eq!(block(&page, language), program, "{file}");
    }
}

/// A node on loopback, as `taut init` describes it on an interface.
fn node(own: u8, peer: u8, name: &str) -> String {
    format!(
        "link = \"udp\"\naddress = \"127.0.45.{own}\"\n\
         [[neighbour]]\nname = \"{name}\"\nip = \"127.0.45.{peer}\"\n\
         [[port]]\nname = \"state\"\nnumber = 7\nkind = \"sampling\"\nrefresh_period_us = 10000\n\
         [[port]]\nname = \"command\"\nnumber = 8\nkind = \"queuing\"\n"
    )
}

#[test]
fn a_controller_in_each_language_moves_the_motor() {
    let directory = IMAGE.root.join("own-loop");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("motor.toml"), node(1, 2, "controller")).unwrap();
    fs::write(directory.join("controller.toml"), node(2, 1, "motor")).unwrap();
    let example = |name: &str| {
        let file = format!("examples/{name}");
        built(&file, &["-p", "tautline", "--example", name])
    };
    let (motor, rust) = (example("loop_motor"), example("own_loop"));
    let c = IMAGE.compile("cc", "examples/own_loop.c", "own-loop-c", &[]);
    let (site, script) = (
        python_package(),
        root().join("bindings/python/examples/own_loop.py"),
    );
    let mut python = IMAGE.run(Path::new("python3"));
    python.arg(script).env("PYTHONPATH", site);
    for (language, command) in [
        ("Rust", IMAGE.run(&rust)),
        ("C", IMAGE.run(&c)),
        ("Python", python),
    ] {
        let mut command: Command = command;
        command.current_dir(&directory).stdin(Stdio::null());
        // A minute at most, also if this test fails.
        command.args(["controller.toml", "60000"]);
        let mut controller = command.stdout(Stdio::null()).spawn().unwrap();
        let said = loop {
            let mut command = timed(&[&motor]);
            command.current_dir(&directory).stdin(Stdio::null());
            let output = command.args(["motor.toml", "2000"]).output().unwrap();
            let said = succeeded("loop_motor", &output);
            let ended = controller.try_wait().unwrap();
            assert!(ended.is_none(), "{language}: {ended:?}");
            // The controller may not have begun when the motor ended.
            match said.contains("\n0 commands received") {
                true => thread::sleep(Duration::from_millis(100)),
                false => break said,
            }
        };
        controller.kill().unwrap();
        controller.wait().unwrap();
        assert!(
            said.contains(" commands received, position "),
            "{language}: {said}"
        );
        assert!(!said.contains("position 1.000"), "{language}: {said}");
    }
}
