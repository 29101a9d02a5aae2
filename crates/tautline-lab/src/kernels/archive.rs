//! Where kernels and guest programs come from. Kernels: the distribution's archive through the distribution's
//! own tools (apt-get and dpkg-deb), with package lists of our own below the cache, so that neither privilege nor
//! a change to the system is needed, for foreign architectures neither.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Arch, Job, KernelSource, KernelsError, Settings};
use crate::load::find_program;

/// Lines of a failed command that an error quotes.
const OUTPUT_TAIL_LINES: usize = 6;

/// The kernel image of a job, fetched and unpacked into the cache where it is not there yet.
pub fn kernel_image(job: &Job, cache: &Path) -> Result<PathBuf, KernelsError> {
    let path = match &job.kernel.source {
        KernelSource::Image(path) => path.clone(),
        KernelSource::PackageFile(path) => unpack(path, cache)?,
        KernelSource::PackageName(name) => unpack(&download(name, job.arch, cache)?, cache)?,
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

/// Whether a file has the mark of a kernel image. Only that of x86 is always there (Documentation/arch/x86/boot.rst:
/// `HdrS` at 0x202); ARM images come in several wrappings, which QEMU knows.
fn looks_like_a_kernel(image: &[u8], arch: Arch) -> bool {
    arch != Arch::X86_64 || image.get(0x202..0x206) == Some(b"HdrS")
}

/// Unpacks the kernel of a package; the file's name carries version and architecture, so it names the copy.
fn unpack(package: &Path, cache: &Path) -> Result<PathBuf, KernelsError> {
    fs::metadata(package).map_err(KernelsError::file(package))?;
    let stem = package.file_stem().unwrap_or_default();
    let directory = cache.join("kernels").join(stem);
    if let Some(image) = image_below(&directory) {
        return Ok(image);
    }
    let tool = require("dpkg-deb", "dpkg")?;
    let mut partial = directory.clone().into_os_string();
    partial.push(format!(".{}.part", std::process::id()));
    let partial = PathBuf::from(partial);
    fs::create_dir_all(&partial).map_err(KernelsError::file(&partial))?;
    // Only boot/: the modules are twenty times its size and no guest needs them.
    let mut archive = Command::new(tool);
    archive.arg("--fsys-tarfile").arg(package);
    let unpacked = pipe_to_tar(package, archive, &partial);
    let image = unpacked.and_then(|()| {
        image_below(&partial).ok_or(KernelsError::NoKernelInPackage {
            package: package.to_owned(),
        })
    });
    if let Err(error) = image {
        let _ = fs::remove_dir_all(&partial); // the error in hand is the one that matters
        return Err(error);
    }
    fs::rename(&partial, &directory).map_err(KernelsError::file(&directory))?;
    image_below(&directory).ok_or(KernelsError::NoKernelInPackage {
        package: package.to_owned(),
    })
}

fn pipe_to_tar(package: &Path, mut producer: Command, into: &Path) -> Result<(), KernelsError> {
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
        .args(["--wildcards", "./boot/vmlinuz-*"])
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
            output: format!("{} is no whole Debian package", package.display()),
        });
    }
    if second.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&second.stderr);
    if said.contains("Not found in archive") {
        return Ok(()); // no kernel in it; the caller says so
    }
    Err(KernelsError::ToolFailed {
        command: "dpkg-deb --fsys-tarfile | tar".to_owned(),
        output: tail(&said),
    })
}

fn image_below(directory: &Path) -> Option<PathBuf> {
    let mut images: Vec<PathBuf> = fs::read_dir(directory.join("boot"))
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
        })
        .collect();
    images.sort();
    images.pop()
}

/// apt with lists and archives of its own, for one architecture.
struct Apt {
    options: Vec<String>,
    packages: PathBuf,
    arch: Arch,
}

impl Apt {
    fn new(arch: Arch, cache: &Path) -> Result<Apt, KernelsError> {
        require("apt-get", "apt")?;
        let root = cache.join("apt").join(arch.debian_name());
        for directory in ["lists/partial", "cache/archives/partial", "packages"] {
            let path = root.join(directory);
            fs::create_dir_all(&path).map_err(KernelsError::file(&path))?;
        }
        let debian = arch.debian_name();
        let options = [
            format!("APT::Architecture={debian}"),
            format!("APT::Architectures={debian}"),
            format!("Dir::State::Lists={}", root.join("lists").display()),
            format!("Dir::Cache={}", root.join("cache").display()),
            "Acquire::Languages=none".to_owned(),
            // As root apt would otherwise hand the download to a user who cannot write to the cache.
            "APT::Sandbox::User=root".to_owned(),
        ];
        Ok(Apt {
            options: options.into(),
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

    /// The package that a meta package stands for, or the package itself.
    fn resolve(&self, name: &str) -> Result<String, KernelsError> {
        let text = run(self.command("apt-cache", &["depends", name]))?;
        Ok(parse_depends(&text).unwrap_or_else(|| name.to_owned()))
    }

    fn download(&self, name: &str) -> Result<PathBuf, KernelsError> {
        if let Some(path) = self.downloaded(name) {
            return Ok(path);
        }
        run(self.command("apt-get", &["--quiet", "download", name]))?;
        self.downloaded(name)
            .ok_or_else(|| KernelsError::NoPackage {
                name: name.to_owned(),
                arch: self.arch,
                reason: "apt-get download left no file".to_owned(),
            })
    }

    fn downloaded(&self, name: &str) -> Option<PathBuf> {
        let prefix = format!("{name}_");
        let mut found: Vec<PathBuf> = fs::read_dir(&self.packages)
            .ok()?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .filter(|path| {
                path.file_name()
                    .is_some_and(|file| file.to_string_lossy().starts_with(&prefix))
            })
            .collect();
        found.sort();
        found.pop()
    }
}

/// Downloads a package once. The name that a meta package stood for is kept, so that a later run compares the
/// same kernels without a network; removing the cache brings newer ones.
fn download(name: &str, arch: Arch, cache: &Path) -> Result<PathBuf, KernelsError> {
    let apt = Apt::new(arch, cache)?;
    let remembered = apt.packages.join(format!("{name}.resolved"));
    if let Ok(resolved) = fs::read_to_string(&remembered)
        && let Some(path) = apt.downloaded(resolved.trim())
    {
        return Ok(path);
    }
    let updated = apt.update();
    let resolved = apt.resolve(name).map_err(|error| KernelsError::NoPackage {
        name: name.to_owned(),
        arch,
        reason: match updated {
            Err(error) => error.to_string(),
            Ok(()) => error.to_string(),
        },
    })?;
    let path = apt.download(&resolved)?;
    fs::write(&remembered, &resolved).map_err(KernelsError::file(&remembered))?;
    Ok(path)
}

/// The first kernel image that `apt-cache depends` lists.
fn parse_depends(text: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_owned)
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
    let Some(workspace) = &settings.workspace else {
        return Err(KernelsError::NoGuestProgram {
            arch,
            reason: format!(
                "this taut was not started inside its sources, from which one could be built; build it there with `cargo build --release --package tautline-lab --bin tautline-lab-guest --target {}` and give it with --guest-program {arch}=FILE",
                arch.rust_target()
            ),
        });
    };
    build_guest_program(arch, workspace, &settings.cache)
}

fn build_guest_program(
    arch: Arch,
    workspace: &Path,
    cache: &Path,
) -> Result<PathBuf, KernelsError> {
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
        .arg("--target-dir")
        .arg(&target_directory)
        .current_dir(workspace)
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

fn require(tool: &'static str, package: &'static str) -> Result<PathBuf, KernelsError> {
    find_program(tool).ok_or(KernelsError::ToolMissing { tool, package })
}

fn run(mut command: Command) -> Result<String, KernelsError> {
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
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
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
    fn a_meta_package_names_its_kernel() {
        let text =
            "linux-image-rt-amd64\n  Depends: linux-image-6.1.0-56-rt-amd64\n  Suggests: x\n";
        assert_eq!(
            parse_depends(text).as_deref(),
            Some("linux-image-6.1.0-56-rt-amd64")
        );
        let real =
            "linux-image-6.1.0-56-amd64\n  Depends: kmod\n  Depends: initramfs-tools\n    dracut\n";
        assert_eq!(parse_depends(real), None);
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
