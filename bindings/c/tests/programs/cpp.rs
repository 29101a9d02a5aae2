//! C++ programs: the headers with gcc and clang, the example that CMake builds, and the one in the documentation.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use tautline_testbed::hosts::Host;

use crate::{Beside, IMAGE, configuration, hosts, in_host, mac, output_of, succeeded};

const COMPILERS: [&str; 2] = ["g++", "clang++"];
#[rustfmt::skip]
const STRICT: [&str; 7] = [
    "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fno-exceptions", "-fno-rtti",
];

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header(name: &str) -> String {
    std::fs::read_to_string(folder().join("include").join(name)).unwrap()
}

fn compile(compiler: &str, source: &Path, name: &str, options: &[&str]) -> PathBuf {
    let program = IMAGE.root.join(name);
    let mut command = Command::new(compiler);
    command.args(STRICT).args(options).arg(source).arg("-o");
    command
        .arg(&program)
        .args(IMAGE.flags(&["--cflags", "--libs"]));
    succeeded(compiler, &command.output().unwrap());
    program
}

#[test]
fn every_call_of_the_cpp_interface_does_as_documented() {
    let source = folder().join("tests/interface.cpp");
    let tasks = folder().join("../../examples/message_task.toml");
    for (compiler, options) in [
        ("g++", ["-g", "-fsanitize=address,undefined"]),
        ("clang++", ["-O2", "-DNDEBUG"]),
    ] {
        let program = compile(
            compiler,
            &source,
            &format!("interface-{compiler}"),
            &options,
        );
        let said = output_of(IMAGE.run(&program).arg(&tasks));
        assert_eq!(said, "all as documented\n", "{compiler}");
    }
}

#[test]
fn raw_frames_in_c_are_answered_in_cpp() {
    let Some(hosts) = hosts() else { return };
    let source = folder().join("tests/raw_answer.cpp");
    let answers = compile("g++", &source, "raw-answer", &[]);
    let asks = IMAGE.example("raw_frames", "cpp");
    let named = "[[port]]\nname = 'fieldbus'\nkind = 'raw'\nethertype = 0x88b4\n";
    let mut answering = in_host(&hosts, Host::B, &answers);
    answering.arg(configuration(&hosts, Host::B, "xdp", "ethernet", named));
    let answering = Beside::start(&mut answering, "answering");
    let mut asking = in_host(&hosts, Host::A, &asks);
    asking.arg(configuration(&hosts, Host::A, "packet", "ethernet", ""));
    let said = output_of(asking.args(["ask", &mac(&hosts, Host::B)]));
    assert_eq!(said.matches(", 60 bytes, after ").count(), 5, "{said}");
    assert_eq!(answering.end(), "5 received, 5 sent, 5 not\n");
}

/// Names of the library's functions that are called in a text.
fn calls(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words
        .filter(|word| word.starts_with("tautline_") || word.starts_with("rt_"))
        .collect()
}

#[test]
fn every_function_of_c_is_reached_from_cpp() {
    let c = header("tautline.h");
    let cpp = header("tautline.hpp") + &header("tautline_tasks.hpp");
    let used = calls(&cpp);
    let declared: BTreeSet<&str> = c
        .lines()
        .filter(|line| !line.starts_with([' ', '#', '/', '}']) && line.contains('('))
        .filter_map(|line| line.split_once('(').map(|(before, _)| before))
        .filter_map(|before| before.rsplit([' ', '*']).next())
        .filter(|name| !name.is_empty())
        .collect();
    assert!(declared.len() >= 40, "{declared:?}");
    let missing: Vec<_> = declared.difference(&used).collect();
    assert!(missing.is_empty(), "not in tautline.hpp: {missing:?}");
}

/// Configures and builds a CMake project with the installed library, in a directory of this name; that directory.
fn cmake(project: &str, name: &str, options: &[&str]) -> PathBuf {
    let build = IMAGE.root.join(name);
    let installed = IMAGE.root.join("usr");
    let mut configure = Command::new("cmake");
    configure
        .arg("-S")
        .arg(folder().join(project))
        .arg("-B")
        .arg(&build)
        .arg(format!("-DCMAKE_PREFIX_PATH={}", installed.display()))
        .args(options);
    succeeded("cmake", &configure.output().unwrap());
    let mut make = Command::new("cmake");
    make.arg("--build").arg(&build).args(["--parallel", "2"]);
    succeeded("cmake", &make.output().unwrap());
    build
}

#[test]
fn two_programs_that_cmake_built_exchange_messages() {
    let [controllers, motors] = COMPILERS.map(|compiler| {
        let chosen = format!("-DCMAKE_CXX_COMPILER={compiler}");
        cmake("examples/cpp", &format!("cmake-{compiler}"), &[&chosen])
    });
    let bus = IMAGE.root.join("bus");
    std::fs::create_dir_all(&bus).unwrap();
    for motor in ["motor", "motor_static"] {
        let motor = Beside::start(Command::new(motors.join(motor)).arg(&bus), "motor: ready");
        let said = output_of(Command::new(controllers.join("controller")).arg(&bus));
        let last = "controller: the motor is at -1 degrees after 4 commands\n";
        assert!(said.ends_with(last), "{said}");
        assert_eq!(motor.end(), "motor: 4 commands\n");
    }
}

/// Against stand-ins for the headers of ROS 2: see `bindings/ros2_control/test/stand_in/README.md`.
#[test]
fn the_package_for_ros2_control_reads_a_new_state_in_each_cycle() {
    let package = folder().join("../ros2_control");
    let stand_in = package.join("test/stand_in");
    let modules = format!("-DCMAKE_MODULE_PATH={}", stand_in.join("cmake").display());
    let options = ["-DCMAKE_CXX_FLAGS=-Wpedantic -Werror", &modules];
    let build = cmake("../ros2_control", "cmake-ros2-control", &options);
    let library = build.join("libtautline_ros2_control.so");
    let plugins = std::fs::read_to_string(package.join("tautline_ros2_control.xml")).unwrap();
    assert!(
        plugins.contains("path=\"tautline_ros2_control\""),
        "{plugins}"
    );

    let includes =
        ["ros", "ros2_control"].map(|part| format!("-I{}", stand_in.join(part).display()));
    let program = IMAGE.root.join("ros2-control-cycles");
    let mut command = Command::new("g++");
    command
        .args(["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .args(&includes)
        .arg(package.join("test/cycles.cpp"))
        .arg("-o")
        .arg(&program)
        .args(IMAGE.flags(&["--cflags", "--libs"]));
    succeeded("g++", &command.output().unwrap());
    let bus = IMAGE.root.join("ros2-control-bus");
    std::fs::create_dir_all(&bus).unwrap();
    let said = output_of(IMAGE.run(&program).arg(&library).arg(&bus));
    let expected = "1000 cycles, each with a new state; a silent robot is an error\n";
    assert_eq!(said, expected);
}

#[test]
fn cmake_refuses_another_version() {
    let project = IMAGE.root.join("cmake-version");
    std::fs::create_dir_all(&project).unwrap();
    for (asked, is_found) in [("0.1", true), ("0.2", false), ("1.0", false)] {
        let text = format!(
            "cmake_minimum_required(VERSION 3.18)\nproject(version NONE)\n\
             find_package(Tautline {asked} REQUIRED)\n"
        );
        std::fs::write(project.join("CMakeLists.txt"), text).unwrap();
        let output = Command::new("cmake")
            .arg("-S")
            .arg(&project)
            .arg("-B")
            .arg(project.join(asked))
            .arg(format!(
                "-DCMAKE_PREFIX_PATH={}",
                IMAGE.root.join("usr").display()
            ))
            .output()
            .unwrap();
        assert_eq!(output.status.success(), is_found, "{asked}");
    }
}

#[test]
fn the_example_of_the_documentation_runs() {
    let page = std::fs::read_to_string(folder().join("../../docs/reference/c.md")).unwrap();
    let (_, rest) = page.split_once("```cpp\n").expect("an example in C++");
    let (example, _) = rest.split_once("```").unwrap();
    let source = IMAGE.root.join("documentation.cpp");
    std::fs::write(&source, example).unwrap();
    for compiler in COMPILERS {
        let program = compile(compiler, &source, &format!("documentation-{compiler}"), &[]);
        let said = output_of(&mut IMAGE.run(&program));
        assert_eq!(said, "turn to 90 degrees, with priority 7\n", "{compiler}");
    }
}
