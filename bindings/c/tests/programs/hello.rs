//! Hello world in C, C++, Rust and Python: `docs/start/hello.md` shows the programs; each speaks to each over a bus.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{IMAGE, PATIENCE, STRICT, succeeded};

/// Fewer lines than this has each program.
const LINES: usize = 20;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    fs::read_to_string(root().join("docs/start/hello.md")).unwrap()
}

/// The first block of a language in the page.
pub(crate) fn block(page: &str, language: &str) -> String {
    let (_, rest) = page
        .split_once(&format!("```{language}\n"))
        .expect(language);
    rest.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_page_shows_the_programs_and_each_is_short() {
    for (language, file) in [
        ("c", "bindings/c/examples/hello.c"),
        ("cpp", "bindings/c/examples/cpp/hello.cpp"),
        ("rust", "examples/hello.rs"),
        ("python", "bindings/python/examples/hello.py"),
    ] {
        let program = fs::read_to_string(root().join(file)).unwrap();
        assert_eq!(block(&page(), language), program, "{file}");
        let lines = program.lines().count();
        assert!(lines < LINES, "{file} has {lines} lines");
    }
}

/// A file that cargo makes, built now if the test was built alone.
pub(crate) fn built(path: &str, arguments: &[&str]) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let file = profile.join(path);
    if !file.exists() {
        let name = match profile.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            other => other,
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).arg("build");
        cargo
            .args(arguments)
            .args(["--profile", name, "--target-dir"]);
        let output = cargo.arg(profile.parent().unwrap()).output().unwrap();
        succeeded("cargo", &output);
    }
    file
}

/// The package for Python, in a directory of its own.
pub(crate) fn python_package() -> PathBuf {
    let site = IMAGE.root.join("hello-python");
    let package = site.join("tautline");
    fs::create_dir_all(&package).unwrap();
    for entry in fs::read_dir(root().join("bindings/python/python/tautline")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, package.join(path.file_name().unwrap())).unwrap();
        }
    }
    let library = built("deps/libtautline_python.so", &["-p", "tautline-python"]);
    fs::copy(library, package.join("_tautline.abi3.so")).unwrap();
    site
}

/// A program that finds the library, and ends after a while if its peer failed.
pub(crate) fn timed(program: &[&Path]) -> Command {
    let mut command = IMAGE.run(Path::new("timeout"));
    command.arg(PATIENCE.as_secs().to_string()).args(program);
    command
}

/// Words of a program, and the command that starts it.
type Program = (&'static str, Box<dyn Fn() -> Command>);

fn programs() -> [Program; 4] {
    let c = IMAGE.compile("cc", "examples/hello.c", "hello-c", &[]);
    let cpp = IMAGE.root.join("hello-cpp");
    let mut command = Command::new("c++");
    let (flags, source) = (
        IMAGE.flags(&["--cflags", "--libs"]),
        "examples/cpp/hello.cpp",
    );
    command
        .args(["-std=c++20"])
        .args(&STRICT[1..])
        .arg(root().join("bindings/c").join(source));
    succeeded(
        "c++",
        &command.arg("-o").arg(&cpp).args(flags).output().unwrap(),
    );
    let rust = built("examples/hello", &["-p", "tautline", "--example", "hello"]);
    let site = python_package();
    let python = root().join("bindings/python/examples/hello.py");
    [
        ("hello from C", Box::new(move || timed(&[&c]))),
        ("hello from C++", Box::new(move || timed(&[&cpp]))),
        ("hello from Rust", Box::new(move || timed(&[&rust]))),
        (
            "hello from Python",
            Box::new(move || {
                let mut command = timed(&[Path::new("python3"), &python]);
                command.env("PYTHONPATH", &site);
                command
            }),
        ),
    ]
}

#[test]
fn each_language_greets_each() {
    let directory = IMAGE.root.join("hello");
    fs::create_dir_all(&directory).unwrap();
    let bus = directory.join("bus").display().to_string();
    let left = block(&page(), "toml").replace("/tmp/hello", &bus);
    // The page says how the other file differs.
    let swapped = left.replace("left", "other").replace("right", "left");
    fs::write(directory.join("left.toml"), &left).unwrap();
    fs::write(
        directory.join("right.toml"),
        swapped.replace("other", "right"),
    )
    .unwrap();
    let programs = programs();
    for (index, (says, program)) in programs.iter().enumerate() {
        for (hears, other) in &programs[index..] {
            let start = |command: &mut Command, file: &str, peer: &str| {
                command.current_dir(&directory).args([file, peer]);
                command.stdin(Stdio::null()).stdout(Stdio::piped());
                command.stderr(Stdio::piped()).spawn().unwrap()
            };
            let first = start(&mut program(), "left.toml", "right");
            let second = start(&mut other(), "right.toml", "left");
            let heard = succeeded(says, &first.wait_with_output().unwrap());
            assert_eq!(heard.trim_end(), *hears);
            let heard = succeeded(hears, &second.wait_with_output().unwrap());
            assert_eq!(heard.trim_end(), *says);
        }
    }
}
