//! Where kernels and guest programs come from. Kernels: the distribution's archive through the distribution's
//! own tools (apt-get and dpkg-deb), with package lists of our own below the cache, so that neither privilege nor
//! a change to the system is needed, for foreign architectures neither.

use std::cmp::Ordering;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use tautline_state::trusted_file;

use super::defaults::MANIFEST;
use super::{Arch, Job, KernelSource, KernelsError, Settings};
use crate::load::find_program;

/// Lines of a failed command that an error quotes.
const OUTPUT_TAIL_LINES: usize = 6;

/// The kernel image of a job, fetched and unpacked into the cache where it is not there yet.
pub fn kernel_image(job: &Job, cache: &Path) -> Result<PathBuf, KernelsError> {
    let path = match &job.kernel.source {
        KernelSource::Image(path) => path.clone(),
        _ => image_of(&kernel_packages(job, cache)?, cache)?,
    };
    let image = fs::read(&path).map_err(KernelsError::file(&path))?;
    if looks_like_a_kernel(&image, job.arch) {
        Ok(path)
    } else {
        Err(KernelsError::NotAKernel {
            path,
            arch: job.arch,
        })
    }
}

/// The packages of a job's kernel, fetched into the cache where they are not there yet: one with image and modules, or,
/// from Linux 7 on, those that it names beside it. None for an image.
pub fn kernel_packages(job: &Job, cache: &Path) -> Result<Vec<PathBuf>, KernelsError> {
    match &job.kernel.source {
        KernelSource::Image(_) => Ok(Vec::new()),
        KernelSource::PackageFile(path) => {
            fs::metadata(path).map_err(KernelsError::file(path))?;
            Ok(vec![path.clone()])
        }
        KernelSource::PackageName(name) => {
            let (name, suite) = match name.split_once('@') {
                Some((name, suite)) => (name, Some(suite)),
                None => (name.as_str(), None),
            };
            Apt::new(job.arch, suite, cache)?.kernel(name)
        }
    }
}

/// The image in the first of the packages that has one.
fn image_of(packages: &[PathBuf], cache: &Path) -> Result<PathBuf, KernelsError> {
    let mut none = None;
    for package in packages {
        match unpack_image(package, cache) {
            Err(error @ KernelsError::NoKernelInPackage { .. }) => none = none.or(Some(error)),
            found => return found,
        }
    }
    Err(none.expect("a kernel has a package"))
}

/// Whether a file has the mark of a kernel image. Only that of x86 is always there (Documentation/arch/x86/boot.rst:
/// `HdrS` at 0x202); ARM images come in several wrappings, which QEMU knows.
fn looks_like_a_kernel(image: &[u8], arch: Arch) -> bool {
    arch != Arch::X86_64 || image.get(0x202..0x206) == Some(b"HdrS")
}

/// Places of the image in packages: the second from Debian's Linux 7 on.
const IMAGES: [&str; 2] = ["./boot/vmlinuz-*", "./usr/lib/modules/*/vmlinuz"];

/// Unpacks the kernel of a package; the file's name carries version and architecture, so it names the copy.
fn unpack_image(package: &Path, cache: &Path) -> Result<PathBuf, KernelsError> {
    let stem = package.file_stem().unwrap_or_default();
    let directory = cache.join("kernels").join(stem);
    if let Some(image) = image_below(&directory) {
        return Ok(image);
    }
    let partial = partial(&directory)?;
    // Not the modules: they are twenty times its size and few guests need them.
    let unpacked = unpack(package, &partial, &IMAGES);
    let image = unpacked.and_then(|()| {
        image_below(&partial).ok_or(KernelsError::NoKernelInPackage {
            package: package.to_owned(),
        })
    });
    if let Err(error) = image {
        let _ = fs::remove_dir_all(&partial); // the error in hand is the one that matters
        return Err(error);
    }
    take_name(&partial, &directory)?;
    image_below(&directory).ok_or(KernelsError::NoKernelInPackage {
        package: package.to_owned(),
    })
}

/// A directory beside `whole`, which takes its name when all is in it.
pub(super) fn partial(whole: &Path) -> Result<PathBuf, KernelsError> {
    let mut name = whole.to_owned().into_os_string();
    name.push(format!(".{}.part", std::process::id()));
    let partial = PathBuf::from(name);
    let _ = fs::remove_dir_all(&partial); // of one with this number that was killed; else there is none
    fs::create_dir_all(&partial).map_err(KernelsError::file(&partial))?;
    Ok(partial)
}

/// Gives a partial directory its name, unless a run beside this one was faster: then the directory is that run's.
pub(super) fn take_name(partial: &Path, whole: &Path) -> Result<(), KernelsError> {
    match fs::rename(partial, whole) {
        Err(_) if whole.is_dir() => fs::remove_dir_all(partial),
        renamed => renamed,
    }
    .map_err(KernelsError::file(whole))
}

/// Unpacks those files of a package that match one of the patterns of tar, or all if there is no pattern. None that
/// match is no error.
pub fn unpack(package: &Path, into: &Path, patterns: &[&str]) -> Result<(), KernelsError> {
    let mut producer = Command::new(require("dpkg-deb", "dpkg")?);
    producer.arg("--fsys-tarfile").arg(package);
    let tar_missing = |source| KernelsError::Tool {
        tool: "tar".to_owned(),
        source,
    };
    let mut first = producer
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .map_err(|source| KernelsError::Tool {
            tool: "dpkg-deb".to_owned(),
            source,
        })?;
    let stream = first.stdout.take().expect("it was just piped");
    let second = Command::new("tar")
        .args(["--extract", "--directory"])
        .arg(into)
        .arg("--wildcards")
        .args(patterns)
        .stdin(stream)
        .output()
        .map_err(tar_missing)?;
    let read = first.wait().map_err(|source| KernelsError::Tool {
        tool: "dpkg-deb".to_owned(),
        source,
    })?;
    if !read.success() {
        return Err(KernelsError::ToolFailed {
            command: "dpkg-deb --fsys-tarfile".to_owned(),
            output: format!("{} is not a complete Debian package", package.display()),
        });
    }
    if second.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&second.stderr);
    if said.contains("Not found in archive") {
        return Ok(()); // the caller looks for what it needs
    }
    Err(KernelsError::ToolFailed {
        command: "dpkg-deb --fsys-tarfile | tar".to_owned(),
        output: tail(&said),
    })
}

fn image_below(directory: &Path) -> Option<PathBuf> {
    let entries = |directory: &str, below: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(below.join(directory)).into_iter().flatten();
        entries.flatten().map(|entry| entry.path()).collect()
    };
    let in_boot = entries("boot", directory).into_iter().filter(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
    });
    let beside_modules = entries("usr/lib/modules", directory)
        .into_iter()
        .map(|path| path.join("vmlinuz"))
        .filter(|path| path.is_file());
    in_boot.chain(beside_modules).max()
}

/// apt with lists and archives of its own, for one architecture, and for one suite if that is not the system's.
#[derive(Debug)]
pub struct Apt {
    options: Vec<String>,
    packages: PathBuf,
    arch: Arch,
}

impl Apt {
    /// apt with its directories below `cache`.
    pub fn new(arch: Arch, suite: Option<&str>, cache: &Path) -> Result<Apt, KernelsError> {
        require("apt-get", "apt")?;
        let debian = arch.debian_name();
        let root = cache.join("apt").join(match suite {
            Some(suite) => format!("{suite}-{debian}"),
            None => debian.to_owned(),
        });
        for directory in ["lists/partial", "cache/archives/partial", "packages"] {
            let path = root.join(directory);
            fs::create_dir_all(&path).map_err(KernelsError::file(&path))?;
        }
        let mut options = vec![
            format!("APT::Architecture={debian}"),
            format!("APT::Architectures={debian}"),
            format!("Dir::State::Lists={}", root.join("lists").display()),
            format!("Dir::Cache={}", root.join("cache").display()),
            "Acquire::Languages=none".to_owned(),
            // As root apt would otherwise hand the download to a user that cannot write to the cache.
            "APT::Sandbox::User=root".to_owned(),
        ];
        if let Some(suite) = suite {
            let sources = root.join("sources.list");
            let text = sources_of(suite)?;
            fs::write(&sources, text).map_err(KernelsError::file(&sources))?;
            options.push(format!("Dir::Etc::sourcelist={}", sources.display()));
            options.push("Dir::Etc::sourceparts=-".to_owned());
        }
        Ok(Apt {
            options,
            packages: root.join("packages"),
            arch,
        })
    }

    fn command(&self, tool: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(tool);
        for option in &self.options {
            command.arg("-o").arg(option);
        }
        command
            .args(arguments)
            .env("LC_ALL", "C")
            .current_dir(&self.packages);
        command
    }

    fn update(&self) -> Result<(), KernelsError> {
        // Ends with an error if one of several sources cannot be had; what counts is whether the package is found.
        run(self.command("apt-get", &["--quiet", "update"])).map(|_| ())
    }

    /// The packages that a package depends on.
    fn depends(&self, name: &str) -> Result<Vec<String>, KernelsError> {
        let text = run_text(self.command("apt-cache", &["depends", name]))?;
        Ok(parse_depends(&text))
    }

    /// The package that a meta package stands for, or the package itself.
    fn resolve(&self, name: &str) -> Result<String, KernelsError> {
        let image = self
            .depends(name)?
            .into_iter()
            .find(|name| name.starts_with("linux-image-"));
        Ok(image.unwrap_or_else(|| name.to_owned()))
    }

    /// Downloads a kernel's packages once. The names that a meta package stood for are kept, so that a later run
    /// compares the same kernels without a network; removing the cache brings newer ones.
    fn kernel(&self, name: &str) -> Result<Vec<PathBuf>, KernelsError> {
        let remembered = self.packages.join(format!("{name}.resolved"));
        if let Ok(names) = fs::read_to_string(&remembered) {
            let paths: Option<Vec<PathBuf>> =
                names.lines().map(|name| self.downloaded(name)).collect();
            if let Some(paths) = paths.filter(|paths| !paths.is_empty()) {
                return Ok(paths);
            }
        }
        let updated = self.update();
        let image = self
            .resolve(name)
            .map_err(|error| self.none(name, updated.err().unwrap_or(error)))?;
        let mut names = vec![image];
        let parts = self.depends(&names[0])?.into_iter().filter(|part| {
            ["linux-binary-", "linux-modules-"]
                .iter()
                .any(|prefix| part.starts_with(prefix))
        });
        names.extend(parts);
        let paths = names
            .iter()
            .map(|name| self.download(name))
            .collect::<Result<_, _>>()?;
        fs::write(&remembered, names.join("\n")).map_err(KernelsError::file(&remembered))?;
        Ok(paths)
    }

    /// Downloads packages and nothing that they depend on, each once.
    pub fn fetch(&self, names: &[&str]) -> Result<Vec<PathBuf>, KernelsError> {
        if names.iter().any(|name| self.downloaded(name).is_none()) {
            self.update()
                .map_err(|error| self.none(&names.join(" "), error))?;
        }
        names.iter().map(|name| self.download(name)).collect()
    }

    /// Downloads packages with all that they depend on, as for an empty system.
    pub fn fetch_with_dependencies(&self, names: &[&str]) -> Result<Vec<PathBuf>, KernelsError> {
        let archives = self.packages.join("closure").join(names.join("+"));
        let marker = archives.join("complete");
        if !marker.exists() {
            let updated = self.update();
            let partial = archives.join("partial");
            fs::create_dir_all(&partial).map_err(KernelsError::file(&partial))?;
            let status = archives.join("status");
            fs::write(&status, "").map_err(KernelsError::file(&status))?;
            let directory = format!("Dir::Cache::Archives={}", archives.display());
            let empty = format!("Dir::State::status={}", status.display());
            #[rustfmt::skip]
            let mut words = vec![
                "-o", &directory, "-o", &empty, "-o", "Debug::NoLocking=1", "--quiet", "--yes",
                "--no-install-recommends", "--download-only", "install",
            ];
            words.extend(names);
            run(self.command("apt-get", &words))
                .map_err(|error| self.none(&names.join(" "), updated.err().unwrap_or(error)))?;
            fs::write(&marker, "").map_err(KernelsError::file(&marker))?;
        }
        let entries = fs::read_dir(&archives).map_err(KernelsError::file(&archives))?;
        let mut found: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .collect();
        found.sort();
        Ok(found)
    }

    fn none(&self, name: &str, error: KernelsError) -> KernelsError {
        KernelsError::NoPackage {
            name: name.to_owned(),
            arch: self.arch,
            reason: error.to_string(),
        }
    }

    fn download(&self, name: &str) -> Result<PathBuf, KernelsError> {
        if let Some(path) = self.downloaded(name) {
            return Ok(path);
        }
        fetched(&self.packages, name, |part| {
            let mut command = self.command("apt-get", &["--quiet", "download", name]);
            command.current_dir(part);
            run(command).map(|_| ())
        })?
        .ok_or_else(|| KernelsError::NoPackage {
            name: name.to_owned(),
            arch: self.arch,
            reason: "apt-get download left no file".to_owned(),
        })
    }

    fn downloaded(&self, name: &str) -> Option<PathBuf> {
        newest(&self.packages, name)
    }
}

/// Has `download` fill a directory beside the packages, and takes the package from there when it is whole: one that was
/// cut off, as the program was killed or the network ended, is never among them.
fn fetched(
    packages: &Path,
    name: &str,
    download: impl FnOnce(&Path) -> Result<(), KernelsError>,
) -> Result<Option<PathBuf>, KernelsError> {
    let part = partial(&packages.join(name))?;
    let downloaded = download(&part);
    let found = downloaded.and_then(|()| match newest(&part, name) {
        None => Ok(None),
        Some(path) => {
            let whole = packages.join(path.file_name().unwrap_or_default());
            fs::rename(&path, &whole).map_err(KernelsError::file(&whole))?;
            Ok(Some(whole))
        }
    });
    let _ = fs::remove_dir_all(&part); // the result in hand is the one that matters
    found
}

/// The package of this name and the highest version in a directory.
fn newest(packages: &Path, name: &str) -> Option<PathBuf> {
    let prefix = format!("{name}_");
    let version = |path: &PathBuf| {
        let file = path.file_name()?.to_str()?.strip_suffix(".deb")?;
        let (version, _arch) = file.strip_prefix(&prefix)?.split_once('_')?;
        Some(version.to_owned())
    };
    fs::read_dir(packages)
        .ok()?
        .flatten()
        .filter_map(|entry| Some((version(&entry.path())?, entry.path())))
        .max_by(|(one, _), (other, _)| compare_versions(one, other))
        .map(|(_, path)| path)
}

/// Order of two versions of packages, by the rules of deb-version(7). In the name of a file the colon behind an epoch
/// is `%3a`.
fn compare_versions(one: &str, other: &str) -> Ordering {
    let parts = |version: &str| {
        let (epoch, rest) = version.split_once("%3a").unwrap_or(("0", version));
        let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, ""));
        [epoch, upstream, revision].map(str::to_owned)
    };
    let pairs = parts(one).into_iter().zip(parts(other));
    let mut orders = pairs.map(|(one, other)| compare_part(&one, &other));
    orders
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

/// Text and numbers in turns. `~` comes before the end, letters before all other characters.
fn compare_part(mut one: &str, mut other: &str) -> Ordering {
    let cut = |text: &mut &str, is_digit: bool| {
        let end = text.find(|c: char| c.is_ascii_digit() != is_digit);
        let (head, rest) = text.split_at(end.unwrap_or(text.len()));
        *text = rest;
        head.to_owned()
    };
    let weights = |text: &str| -> Vec<u32> {
        let weight = |c: char| match c {
            '~' => 0,
            c if c.is_ascii_alphabetic() => 2 + c as u32,
            c => 1_000 + c as u32,
        };
        // The end is one of them.
        text.chars().map(weight).chain([1]).collect()
    };
    while !(one.is_empty() && other.is_empty()) {
        let texts = weights(&cut(&mut one, false)).cmp(&weights(&cut(&mut other, false)));
        let (one, other) = (cut(&mut one, true), cut(&mut other, true));
        let (one, other) = (one.trim_start_matches('0'), other.trim_start_matches('0'));
        let numbers = one.len().cmp(&other.len()).then_with(|| one.cmp(other));
        match texts.then(numbers) {
            Ordering::Equal => {}
            order => return order,
        }
    }
    Ordering::Equal
}

/// The sources of a suite: the Debian archive that the system knows, and its security updates of that suite.
fn sources_of(suite: &str) -> Result<String, KernelsError> {
    #[rustfmt::skip]
    let known = run_text({
        let mut command = Command::new("apt-get");
        command.args(["indextargets", "--format", "$(LABEL) $(REPO_URI)", "Origin: Debian"]);
        command
    })?;
    parse_sources(&known, suite).ok_or_else(|| KernelsError::ToolFailed {
        command: "apt-get indextargets".to_owned(),
        output: "apt knows no Debian archive on this system".to_owned(),
    })
}

fn parse_sources(known: &str, suite: &str) -> Option<String> {
    let of_label = |label: &str| {
        known
            .lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(found, _)| *found == label)
            .map(|(_, address)| address.trim())
    };
    let mut sources = format!("deb {} {suite} main\n", of_label("Debian")?);
    // A suite of its own, as backports are, has its security updates in itself.
    if !suite.contains('-')
        && let Some(address) = of_label("Debian-Security")
    {
        sources += &format!("deb {address} {suite}-security main\n");
    }
    Some(sources)
}

/// The packages that `apt-cache depends` lists.
fn parse_depends(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .map(str::to_owned)
        .collect()
}

/// A program that can be the first process of a guest: on the host's own architecture this program itself, else one
/// that the user gave, else `tautline-lab-guest` built from the sources for that target.
pub fn guest_program(arch: Arch, settings: &Settings) -> Result<PathBuf, KernelsError> {
    if let Some((_, path)) = settings.foreign_programs.iter().find(|(of, _)| *of == arch) {
        fs::metadata(path).map_err(KernelsError::file(path))?;
        return Ok(path.clone());
    }
    if Arch::host() == Some(arch) {
        return Ok(settings.guest_program.clone());
    }
    let Some(sources) = &settings.sources else {
        return Err(KernelsError::NoGuestProgram {
            arch,
            reason: format!(
                "this taut was not started inside its sources, from which one could be built; build it there with `cargo build --release --package tautline-lab --bin tautline-lab-guest --target {}` and give it with --guest-program {arch}=FILE",
                arch.rust_target()
            ),
        });
    };
    build_guest_program(arch, sources, &settings.cache)
}

pub(super) fn build_guest_program(
    arch: Arch,
    sources: &Path,
    cache: &Path,
) -> Result<PathBuf, KernelsError> {
    let manifest = trusted_file(&sources.join(MANIFEST)).map_err(KernelsError::StrangeSources)?;
    let target = arch.rust_target();
    let target_directory = cache.join("guest-build");
    let cargo = find_program("cargo")
        .or_else(|| std::env::var_os("CARGO").map(PathBuf::from))
        .ok_or(KernelsError::ToolMissing {
            tool: "cargo",
            package: "cargo",
        })?;
    let mut command = Command::new(cargo);
    command
        .args([
            "build",
            "--quiet",
            "--release",
            "--package",
            "tautline-lab",
            "--bin",
            "tautline-lab-guest",
            "--target",
            target,
        ])
        .arg("--manifest-path")
        .arg(&manifest)
        .arg("--target-dir")
        .arg(&target_directory)
        // Settings of cargo and of rustup are looked for in all directories from here up: others can write into /tmp.
        .current_dir("/")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    match arch {
        Arch::Armhf => {
            require(
                "arm-linux-gnueabihf-gcc",
                "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross",
            )?;
            command
                .env(
                    "CARGO_TARGET_ARMV7_UNKNOWN_LINUX_GNUEABIHF_LINKER",
                    "arm-linux-gnueabihf-gcc",
                )
                .env("RUSTFLAGS", "-C target-feature=+crt-static");
        }
        // musl's start files and libc come with the Rust target, and rust-lld with the toolchain.
        _ => {
            command.env(
                "RUSTFLAGS",
                "-C linker=rust-lld -C target-feature=+crt-static",
            );
        }
    }
    run(command).map_err(|error| KernelsError::NoGuestProgram {
        arch,
        reason: format!("{error}\nif the target is missing: rustup target add {target}"),
    })?;
    Ok(target_directory
        .join(target)
        .join("release/tautline-lab-guest"))
}

pub(super) fn require(tool: &'static str, package: &'static str) -> Result<PathBuf, KernelsError> {
    find_program(tool).ok_or(KernelsError::ToolMissing { tool, package })
}

/// Runs a command to its end and returns what it printed.
pub(super) fn run(mut command: Command) -> Result<Vec<u8>, KernelsError> {
    let text = format!(
        "{} {}",
        command.get_program().to_string_lossy(),
        last_arguments(&command)
    );
    let output = command
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|source: io::Error| KernelsError::Tool {
            tool: command.get_program().to_string_lossy().into_owned(),
            source,
        })?;
    if !output.status.success() {
        let said = if output.stderr.is_empty() {
            &output.stdout
        } else {
            &output.stderr
        };
        return Err(KernelsError::ToolFailed {
            command: text,
            output: tail(&String::from_utf8_lossy(said)),
        });
    }
    Ok(output.stdout)
}

fn run_text(command: Command) -> Result<String, KernelsError> {
    run(command).map(|output| String::from_utf8_lossy(&output).into_owned())
}

/// The arguments without apt's long `-o` options, for messages.
fn last_arguments(command: &Command) -> String {
    let mut words = command
        .get_args()
        .map(|word| word.to_string_lossy().into_owned());
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if word == "-o" {
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept.join(" ")
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines[lines.len().saturating_sub(OUTPUT_TAIL_LINES)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_runs_that_unpack_at_once_one_gives_way() {
        let home = std::env::temp_dir().join(format!("taut-unpack-{}", std::process::id()));
        let whole = home.join("kernel");
        for run in ["first", "second"] {
            let partial = home.join(run);
            fs::create_dir_all(&partial).unwrap();
            fs::write(partial.join("by"), run).unwrap();
            take_name(&partial, &whole).unwrap();
            assert!(!partial.exists());
        }
        assert_eq!(fs::read_to_string(whole.join("by")).unwrap(), "first");
        assert!(take_name(&home.join("none"), &home.join("other")).is_err());
        fs::remove_dir_all(&home).unwrap();
    }

    #[test]
    fn the_image_is_found_in_both_places() {
        for place in [
            "boot/vmlinuz-6.1.0-56-amd64",
            "usr/lib/modules/7.3.4/vmlinuz",
        ] {
            let directory = std::env::temp_dir().join(format!(
                "taut-image-{}-{}",
                std::process::id(),
                place.len()
            ));
            let image = directory.join(place);
            fs::create_dir_all(image.parent().unwrap()).unwrap();
            assert_eq!(image_below(&directory), None);
            fs::write(&image, "").unwrap();
            assert_eq!(image_below(&directory), Some(image));
            fs::remove_dir_all(&directory).unwrap();
        }
    }

    #[test]
    fn a_package_that_was_cut_off_is_fetched_again() {
        let home = std::env::temp_dir().join(format!("taut-fetch-{}", std::process::id()));
        fs::create_dir_all(&home).unwrap();
        let file = "linux-image-x_6.1.9-1_amd64.deb";
        let cut_off = |part: &Path| {
            fs::write(part.join(file), "ha").unwrap();
            Err(KernelsError::NoCache)
        };
        assert!(fetched(&home, "linux-image-x", cut_off).is_err());
        assert_eq!(newest(&home, "linux-image-x"), None);
        // Of a program that was killed meanwhile.
        let left = partial(&home.join("linux-image-x")).unwrap();
        fs::write(left.join(file), "ha").unwrap();
        assert_eq!(newest(&home, "linux-image-x"), None);
        let whole = |part: &Path| {
            assert!(fs::read_dir(part).unwrap().next().is_none());
            fs::write(part.join(file), "half and half").unwrap();
            Ok(())
        };
        let found = fetched(&home, "linux-image-x", whole).unwrap().unwrap();
        assert_eq!(fs::read_to_string(&found).unwrap(), "half and half");
        assert_eq!(newest(&home, "linux-image-x"), Some(found));
        assert!(!left.exists());
        fs::remove_dir_all(&home).unwrap();
    }

    #[test]
    fn of_several_versions_the_highest_is_taken() {
        let home = std::env::temp_dir().join(format!("taut-newest-{}", std::process::id()));
        fs::create_dir_all(&home).unwrap();
        for version in ["6.1.9-1", "6.1.10-1", "6.1.10~rc1-1", "6.1.2-1"] {
            fs::write(home.join(format!("linux-image-x_{version}_amd64.deb")), "").unwrap();
        }
        fs::write(home.join("linux-image-xyz_9-1_amd64.deb"), "").unwrap();
        let expected = home.join("linux-image-x_6.1.10-1_amd64.deb");
        assert_eq!(newest(&home, "linux-image-x"), Some(expected));
        fs::remove_dir_all(&home).unwrap();
        // Each lower than the next, as `dpkg --compare-versions` has it.
        let rising = [
            "1.0~rc1-1",
            "1.0-1",
            "1.0-1+deb13u1",
            "1.0a-1",
            "1.0+b-1",
            "1.2-9",
            "1.10-1",
            "1.010.1-1",
            "1%3a0.1-1",
        ];
        for (index, one) in rising.iter().enumerate() {
            for (other_index, other) in rising.iter().enumerate() {
                let order = compare_versions(one, other);
                assert_eq!(order, index.cmp(&other_index), "{one} {other}");
            }
        }
    }

    #[test]
    fn dependencies_and_sources_are_understood() {
        let text = "linux-image-7.3.4-amd64\n  Depends: linux-binary-7.3.4-amd64\n  Depends: linux-modules-7.3.4-amd64\n  Suggests: x\n";
        assert_eq!(
            parse_depends(text),
            ["linux-binary-7.3.4-amd64", "linux-modules-7.3.4-amd64"]
        );
        assert_eq!(parse_depends("x\n"), [""; 0]);
        let known = "Debian http://a/debian/\nDebian-Security http://a/security/\n";
        assert_eq!(
            parse_sources(known, "trixie").unwrap(),
            "deb http://a/debian/ trixie main\ndeb http://a/security/ trixie-security main\n"
        );
        assert_eq!(
            parse_sources(known, "x-backports").unwrap(),
            "deb http://a/debian/ x-backports main\n"
        );
        assert_eq!(parse_sources("Other http://b/\n", "trixie"), None);
    }

    #[test]
    fn messages_leave_out_the_options() {
        let mut command = Command::new("apt-get");
        command.args(["-o", "A=b", "download", "x"]);
        assert_eq!(last_arguments(&command), "download x");
        assert_eq!(tail("a\n\n b \n"), "a; b");
    }

    #[test]
    fn a_missing_file_is_named() {
        let job = Job {
            arch: Arch::X86_64,
            kernel: "./absent-vmlinuz".parse().unwrap(),
        };
        let error = kernel_image(&job, Path::new("/nonexistent"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("absent-vmlinuz"), "{error}");
    }
}
