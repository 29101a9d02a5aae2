//! The package for Python: its wheel, its tests under pytest, its types, and a program outside the repository.
//!
//! The wheel is put together here of the library that the workspace's tests have compiled and of the metadata that
//! maturin writes: `pip install` would compile the whole library once more, optimised. `make python` does that.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use rustix::process::Signal;
use tautline_testbed::python;
use tautline_testbed::sys::signal_process;

/// Packages of the tests' environment, with all that these depend on.
const PACKAGES: [&str; 14] = [
    "pytest==9.2.0",
    "iniconfig==2.3.1",
    "packaging==26.3",
    "pluggy==1.7.0",
    "Pygments==2.21.0",
    "numpy==2.4.6",
    "mypy==2.4.1",
    "mypy_extensions==1.2.0",
    "typing_extensions==4.16.0",
    "pathspec==1.1.1",
    "librt==0.16.0",
    "ast_serialize==0.13.1",
    "maturin==1.16.0",
    "wheel==0.48.0",
];

/// Interpreters that are tried beside the environment's own, where the machine has them.
const INTERPRETERS: [&str; 7] = [
    "python3.9",
    "python3.10",
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.14",
    "python3.15",
];

/// The environment, and the wheel as a file and unpacked.
struct Image {
    python: PathBuf,
    wheel: PathBuf,
    site: PathBuf,
}

static IMAGE: LazyLock<Result<Image, String>> = LazyLock::new(|| {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let python = python::environment(scratch, &PACKAGES)?;
    let (site, dist) = (scratch.join("python-site"), scratch.join("python-dist"));
    for directory in [&site, &dist] {
        // The one before; kept after a run, so that what failed can be run again by hand.
        let _none = fs::remove_dir_all(directory);
        fs::create_dir_all(directory).unwrap();
    }
    let wheel = pack(&python, &site, &dist);
    Ok(Image {
        python,
        wheel,
        site,
    })
});

/// Puts the package together in `site`, and the wheel of it into `dist`.
fn pack(python: &Path, site: &Path, dist: &Path) -> PathBuf {
    let package = site.join("tautline");
    fs::create_dir(&package).unwrap();
    for entry in fs::read_dir(source("python/tautline")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, package.join(path.file_name().unwrap())).unwrap();
        }
    }
    let built = std::env::current_exe().unwrap();
    let library = built.with_file_name("libtautline_python.so");
    fs::copy(library, package.join("_tautline.abi3.so")).unwrap();
    let mut maturin = Command::new(python.with_file_name("maturin"));
    maturin
        .args(["pep517", "write-dist-info", "--metadata-directory"])
        .arg(site)
        .arg("--interpreter")
        .arg(python)
        .current_dir(source(""));
    succeeded("maturin", &maturin.output().unwrap());
    let mut pack = Command::new(python);
    pack.args(["-m", "wheel", "pack", "--dest-dir"])
        .arg(dist)
        .arg(site);
    succeeded("wheel pack", &pack.output().unwrap());
    let name = format!("tautline-{}-cp39-abi3-", env!("CARGO_PKG_VERSION"));
    let wheels = fs::read_dir(dist).unwrap().map(|one| one.unwrap().path());
    let mut wheels = wheels.filter(|path| {
        path.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with(&name)
    });
    wheels.next().expect("a wheel for every Python from 3.9 on")
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn succeeded(what: &str, output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    let status = output.status;
    assert!(status.success(), "{what}: {status}\n{said}{complained}");
    said
}

/// The image; nothing where its packages cannot be had, which is said.
fn image() -> Option<&'static Image> {
    match &*IMAGE {
        Ok(image) => Some(image),
        Err(reason) => {
            println!("SKIPPED: packages for Python are not to be had: {reason}");
            None
        }
    }
}

/// An interpreter in which ^C ends a program, also where this test was started in the background of a shell, which has
/// that signal ignored, and Python then leaves it so.
fn interpreter(python: &Path) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(python);
    command
}

impl Image {
    /// The environment's interpreter, which finds the package.
    fn python(&self) -> Command {
        let mut command = interpreter(&self.python);
        command
            .env("PYTHONPATH", &self.site)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env_remove("PYTHONHOME");
        command
    }
}

#[test]
fn the_python_tests_pass() {
    let Some(image) = image() else { return };
    let built = std::env::current_exe().unwrap();
    let taut = built.ancestors().nth(2).unwrap().join("taut");
    let mut pytest = image.python();
    pytest
        .args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"])
        .args(["-o", "faulthandler_timeout=120", "--basetemp"])
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-tests"))
        .arg(source("tests"))
        .env("TAUT", taut);
    let said = succeeded("pytest", &pytest.output().unwrap());
    for line in said.lines() {
        // The summary of a whole check counts lines of this form.
        match line.strip_prefix("SKIPPED ") {
            Some(reason) => println!("SKIPPED: {reason}"),
            None => println!("{line}"),
        }
    }
}

#[test]
fn types_are_right_and_whole() {
    let Some(image) = image() else { return };
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mypy");
    let mypy = |arguments: &[&str]| {
        let mut mypy = image.python();
        mypy.args(["-m", "mypy", "--strict", "--cache-dir"])
            .arg(&cache)
            .args(arguments)
            .env("MYPYPATH", &image.site)
            .current_dir(source("examples"));
        succeeded("mypy", &mypy.output().unwrap());
    };
    mypy(&["-p", "tautline"]);
    mypy(&["typed.py", "round_trip.py", "loop_1khz.py"]);
    let mut stubtest = image.python();
    stubtest
        .args(["-m", "mypy.stubtest", "tautline"])
        .env("MYPYPATH", &image.site)
        .current_dir(env!("CARGO_TARGET_TMPDIR"));
    succeeded("stubtest", &stubtest.output().unwrap());
}

#[test]
fn one_wheel_serves_every_interpreter_here() {
    let Some(image) = image() else { return };
    const PROGRAM: &str = "import doctest, sys, tautline; found = doctest.testmod(tautline); \
                           assert found.attempted > 90 and not found.failed; print(sys.version.split()[0])";
    for interpreter in INTERPRETERS {
        let mut python = Command::new(interpreter);
        let runs = python.arg("--version").output();
        if !runs.is_ok_and(|output| output.status.success()) {
            continue;
        }
        let mut python = Command::new(interpreter);
        python
            .args(["-c", PROGRAM])
            .env("PYTHONPATH", &image.site)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        print!("{}", succeeded(interpreter, &python.output().unwrap()));
    }
    let version = image.python().args(["-c", PROGRAM]).output().unwrap();
    print!("{}", succeeded("python", &version));
}

/// Twenty lines of a loop outside the repository, run by an environment that has the wheel and nothing else, and
/// stopped in the middle.
#[test]
fn the_wheel_serves_a_program_outside_the_repository() {
    let Some(image) = image() else { return };
    let fresh = std::env::temp_dir().join(format!("taut-python-{}", std::process::id()));
    let _removed = Removed(fresh.clone());
    let make = Command::new(&image.python)
        .args(["-m", "venv", "--without-pip"])
        .arg(&fresh)
        .output();
    succeeded("venv", &make.unwrap());
    let python = fresh.join("bin/python");
    let install = Command::new(&image.python)
        .args(["-m", "pip", "--python"])
        .arg(&python)
        .args([
            "install",
            "--quiet",
            "--no-index",
            "--disable-pip-version-check",
        ])
        .arg(&image.wheel)
        .output();
    succeeded("pip install", &install.unwrap());
    fs::copy(source("examples/loop_1khz.py"), fresh.join("loop_1khz.py")).unwrap();
    let mut program = interpreter(&python)
        .arg("loop_1khz.py")
        .current_dir(&fresh)
        .env_remove("PYTHONPATH")
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut output = BufReader::new(program.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert!(line.starts_with("<Node link udp"), "{line}");
    // The loop says each second how far it is.
    output.read_line(&mut line).unwrap();
    signal_process(program.id(), Signal::INT);
    output.read_to_string(&mut line).unwrap();
    assert!(program.wait().unwrap().success(), "{line}");
    assert!(line.trim_end().ends_with("deadlines missed"), "{line}");
}

struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}
