//! Programs for the guests: this project's, built here, and Debian's `ip`, `ethtool`, `iperf3` and `sh`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tautline_lab::kernels::archive::{Apt, unpack};
use tautline_lab::kernels::initramfs::Initramfs;
use tautline_lab::kernels::{Arch, KernelsError};
use tautline_lab::load::find_program;

use crate::plan::Part;

/// The test program with the suites of the links: its crate and its name, which test programs of other crates have too.
const TESTS: (&str, &str) = ("tautline", "machine");

/// The test program for guests on KVM, likewise.
const GUEST_TESTS: (&str, &str) = ("taut", "guest");

/// Debian's packages with the programs that tests and demo run: the demo writes a setting of a host through a shell.
const PACKAGES: [&str; 4] = ["iproute2", "ethtool", "iperf3", "dash"];

/// The programs of those packages, and their names in the guest.
const TOOLS: [(&str, &str); 4] = [
    ("ip", "ip"),
    ("ethtool", "ethtool"),
    ("iperf3", "iperf3"),
    ("dash", "sh"),
];

/// Place of images for guests of a guest.
pub(crate) const GUEST_IMAGES: &str = "/guests";

/// Place of further BPF objects in a guest.
pub(crate) const BPF_OBJECTS: &str = "/bpf-objects";

/// This very program, which is a guest's first process too.
const INIT: &str = "kernel-tests";

/// Programs of this project for one architecture.
#[derive(Debug)]
pub(crate) struct Programs {
    /// Name in the guest's `/usr/bin`, and file.
    files: Vec<(String, PathBuf)>,
    /// The guest's first process.
    init: PathBuf,
}

impl Programs {
    /// Builds static programs, which run whatever libraries the guest has.
    pub(crate) fn build(arch: Arch, workspace: &Path, parts: &[Part]) -> io::Result<Programs> {
        let mut tests = Vec::new();
        if parts.iter().any(|part| *part != Part::Guests) {
            tests.push(TESTS);
        }
        if parts.contains(&Part::Guests) && arch == Arch::Arm64 {
            tests.push(GUEST_TESTS);
        }
        let mut files = Vec::new();
        if !tests.is_empty() {
            files = build_tests(workspace, &tests, Some(arch))?;
        }
        let bins = named("--bin", &["taut", "taut-lab", INIT]);
        let bins = cargo(workspace, &["build"], &bins, Some(arch))?;
        files.extend(bins.into_iter().map(|built| (built.name, built.file)));
        let at = files.iter().position(|(name, _)| name == INIT);
        let (_, init) = files.remove(at.expect("cargo names what it was asked for"));
        Ok(Programs { files, init })
    }

    /// Programs that were built before, by their names in a directory.
    pub(crate) fn of(directory: &Path) -> io::Result<Programs> {
        let (mut files, mut init) = (Vec::new(), None);
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            match name.as_str() {
                INIT => init = Some(path),
                _ => files.push((name, path)),
            }
        }
        let init = init.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, INIT))?;
        Ok(Programs { files, init })
    }

    /// Builds what `--quick` needs for this machine's own architecture, as `make test` does.
    pub(crate) fn build_quick(workspace: &Path) -> io::Result<Programs> {
        Ok(Programs {
            files: build_tests(workspace, &[TESTS], None)?,
            init: std::env::current_exe()?,
        })
    }

    /// Puts all of them into a guest, each with the shared libraries that it needs.
    pub(crate) fn add_to(&self, initramfs: &mut Initramfs, scratch: &Path) -> io::Result<()> {
        let init = ("/init".to_owned(), &self.init);
        let programs = self
            .files
            .iter()
            .map(|(name, file)| (format!("/usr/bin/{name}"), file));
        for (path, file) in programs.chain([init]) {
            let stripped = scratch.join("stripped");
            let lean = strip(file, &stripped)?;
            initramfs.add_program(path, lean.unwrap_or(file))?;
        }
        Ok(())
    }
}

fn named(option: &str, names: &[&str]) -> Vec<String> {
    names
        .iter()
        .flat_map(|name| [option.to_owned(), (*name).to_owned()])
        .collect()
}

/// Builds test programs, and returns the names and files of those that are of the crates asked for.
fn build_tests(
    workspace: &Path,
    tests: &[(&str, &str)],
    arch: Option<Arch>,
) -> io::Result<Vec<(String, PathBuf)>> {
    let names: Vec<&str> = tests.iter().map(|(_, name)| *name).collect();
    let built = cargo(
        workspace,
        &["test", "--no-run"],
        &named("--test", &names),
        arch,
    )?;
    let files = built
        .into_iter()
        .filter(|built| tests.contains(&(&built.krate, &built.name)))
        .map(|built| (built.name, built.file))
        .collect();
    Ok(files)
}

/// A program that cargo has built.
struct Built {
    krate: String,
    name: String,
    file: PathBuf,
}

/// Builds with cargo. All of the workspace is named, so that libraries have the features that they have in every other
/// build of it.
fn cargo(
    workspace: &Path,
    verb: &[&str],
    what: &[String],
    arch: Option<Arch>,
) -> io::Result<Vec<Built>> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command
        .args(verb)
        .args([
            "--workspace",
            "--locked",
            "--message-format",
            "json-render-diagnostics",
        ])
        .args(what)
        .current_dir(workspace);
    if let Some(arch) = arch {
        let target = arch.rust_target();
        let variable = format!(
            "CARGO_TARGET_{}_RUSTFLAGS",
            target.to_uppercase().replace('-', "_")
        );
        // musl's start files and libc come with the Rust target, and rust-lld with the toolchain.
        // It wraps functions of glibc.
        command.args(["--exclude", "tautline-awake-preload"]);
        command.args(["--target", target]).env(
            variable,
            "-C linker=rust-lld -C target-feature=+crt-static -C strip=debuginfo",
        );
    }
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        let hint = arch.map_or(String::new(), |arch| {
            format!(
                "; is the target there? rustup target add {}",
                arch.rust_target()
            )
        });
        return Err(io::Error::other(format!(
            "cargo {} failed{hint}",
            verb.join(" ")
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(executable)
        .collect())
}

/// The program that a line of cargo's messages is about.
fn executable(line: &str) -> Option<Built> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let file = message.get("executable")?.as_str()?;
    let name = message.get("target")?.get("name")?.as_str()?;
    let manifest = Path::new(message.get("manifest_path")?.as_str()?);
    Some(Built {
        // A crate's directory has the name of the crate.
        krate: manifest.parent()?.file_name()?.to_str()?.to_owned(),
        name: name.to_owned(),
        file: file.into(),
    })
}

/// A copy without debug information, where `strip` is installed and knows the architecture.
fn strip<'a>(program: &Path, to: &'a Path) -> io::Result<Option<&'a Path>> {
    let Some(tool) = find_program("strip") else {
        return Ok(None);
    };
    let status = Command::new(tool)
        .arg("--strip-debug")
        .arg("-o")
        .arg(to)
        .arg(program)
        .stderr(Stdio::null())
        .status()?;
    Ok(status.success().then_some(to))
}

/// Builds the images that guests on KVM of arm64 run, and puts them into a guest. Those for x86-64 are refused there.
/// Without the toolchain for them, those in Rust and FreeRTOS are missing, and their tests say so.
pub(crate) fn add_guest_images(initramfs: &mut Initramfs, scratch: &Path) -> io::Result<()> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let kit = sources.join("bindings/guest");
    let build = scratch.join("guests");
    let make = |arguments: &[&str]| {
        Command::new("make")
            .arg("-C")
            .arg(&kit)
            .arg(format!("BUILD={}", build.display()))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
    };
    let misbehaving = format!("PROGRAM={}", kit.join("tests/misbehave.c").display());
    if !make(&[&misbehaving])?.success() {
        return Err(io::Error::other(
            "make -C bindings/guest failed: it needs clang and lld",
        ));
    }
    let flight = format!("CRATE={}", sources.join("show/guest").display());
    for more in [&["rust"][..], &["rust", &flight], &["freertos"]] {
        if !make(&[&["ARCHITECTURES=aarch64"], more].concat())?.success() {
            let more = more.join(" ");
            eprintln!("make -C bindings/guest {more} failed: its tests will be skipped");
        }
    }
    for entry in fs::read_dir(&build)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "elf") {
            let place = Path::new(GUEST_IMAGES).join(path.file_name().unwrap_or_default());
            initramfs.add(place, fs::read(path)?);
        }
    }
    Ok(())
}

/// Puts the BPF objects of several compilers into a guest: a directory for each, as on the host.
pub(crate) fn add_bpf_objects(initramfs: &mut Initramfs, from: &Path) -> io::Result<()> {
    for compiler in fs::read_dir(from)? {
        let compiler = compiler?.path();
        let place = Path::new(BPF_OBJECTS).join(compiler.file_name().unwrap_or_default());
        for object in fs::read_dir(&compiler)? {
            let object = object?.path();
            let name = object.file_name().unwrap_or_default();
            initramfs.add(place.join(name), fs::read(&object)?);
        }
    }
    Ok(())
}

/// Puts Debian's programs for an architecture into a guest, out of the suite that its kernel is of.
pub(crate) fn add_tools(
    initramfs: &mut Initramfs,
    arch: Arch,
    suite: Option<&str>,
    cache: &Path,
) -> Result<(), KernelsError> {
    let root = cache.join("userland").join(format!(
        "{}-{}",
        suite.unwrap_or("system"),
        arch.debian_name()
    ));
    // Says what was unpacked there.
    let marker = root.join("complete");
    let content = PACKAGES.join(" ");
    if fs::read_to_string(&marker).ok().as_deref() != Some(&content) {
        let packages = Apt::new(arch, suite, cache)?.fetch_with_dependencies(&PACKAGES)?;
        fs::create_dir_all(&root).map_err(KernelsError::file(&root))?;
        for package in packages {
            unpack(&package, &root, &[])?;
        }
        fs::write(&marker, &content).map_err(KernelsError::file(&marker))?;
    }
    add_root(initramfs, &root, arch).map_err(KernelsError::file(&root))
}

/// The tools of an unpacked root, all libraries, and the loader where programs look for it.
fn add_root(initramfs: &mut Initramfs, root: &Path, arch: Arch) -> io::Result<()> {
    for (tool, name) in TOOLS {
        let file = ["usr/bin", "usr/sbin", "bin", "sbin"]
            .map(|directory| root.join(directory).join(tool))
            .into_iter()
            .find_map(|path| resolve(root, path))
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, tool))?;
        initramfs.add(format!("/usr/bin/{name}"), fs::read(file)?);
    }
    let (triple, loader) = match arch {
        Arch::X86_64 => ("x86_64-linux-gnu", "/lib64/ld-linux-x86-64.so.2"),
        Arch::Arm64 => ("aarch64-linux-gnu", "/lib/ld-linux-aarch64.so.1"),
        Arch::Armhf => ("arm-linux-gnueabihf", "/lib/ld-linux-armhf.so.3"),
    };
    for directory in ["lib", "usr/lib"].map(|top| root.join(top).join(triple)) {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let Some(file) = resolve(root, path.clone()).filter(|_| name.contains(".so")) else {
                continue;
            };
            let content = fs::read(file)?;
            if loader.ends_with(&*name) {
                initramfs.add(loader, content.clone());
            }
            initramfs.add(format!("/usr/lib/{triple}/{name}"), content);
        }
    }
    Ok(())
}

/// The file that a path leads to, links followed as if `root` were the root directory.
fn resolve(root: &Path, mut path: PathBuf) -> Option<PathBuf> {
    /// More links than any file of a distribution is behind; a loop ends here.
    const LINKS_MAX: usize = 8;
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(target) => {
                path = match target.strip_prefix("/") {
                    Ok(inside) => root.join(inside),
                    Err(_) => path.parent()?.join(target),
                };
            }
            Err(_) => return path.is_file().then_some(path),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_names_the_programs() {
        let line = r#"{"manifest_path":"/w/crates/tautline/Cargo.toml","target":{"name":"machine"},"executable":"/t/m-1"}"#;
        let built = executable(line).unwrap();
        assert_eq!((&*built.krate, &*built.name), ("tautline", "machine"));
        assert_eq!(built.file, Path::new("/t/m-1"));
        assert!(executable(&line.replace(r#""/t/m-1""#, "null")).is_none());
        assert!(executable("test result").is_none());
    }

    #[test]
    fn links_stay_inside_the_root() {
        let root = std::env::temp_dir().join(format!("taut-root-{}", std::process::id()));
        fs::create_dir_all(root.join("lib")).unwrap();
        fs::write(root.join("lib/real"), "x").unwrap();
        std::os::unix::fs::symlink("/lib/real", root.join("absolute")).unwrap();
        std::os::unix::fs::symlink("absolute", root.join("relative")).unwrap();
        std::os::unix::fs::symlink("loop", root.join("loop")).unwrap();
        let found = resolve(&root, root.join("relative"));
        let lost = resolve(&root, root.join("loop"));
        let expected = root.join("lib/real");
        fs::remove_dir_all(&root).unwrap();
        assert_eq!((found, lost), (Some(expected), None));
    }
}
