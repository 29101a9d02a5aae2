//! Errors of the laboratory.

use std::io;
use std::path::{Path, PathBuf};

use tautline_state::StateError;

use super::Arch;

/// Why the laboratory could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelsError {
    /// Neither a home directory nor a cache directory is known.
    #[error(
        "there is no directory for kernels: neither XDG_CACHE_HOME nor HOME is set; give one with --cache"
    )]
    NoCache,
    /// The directory for kernels cannot be had, or others could put programs into it.
    #[error(transparent)]
    Cache(StateError),
    /// A program is not installed.
    #[error("{tool} is not installed: apt-get install {package}")]
    ToolMissing {
        /// The program.
        tool: &'static str,
        /// Debian's package that has it.
        package: &'static str,
    },
    /// QEMU does not share one virtual time among several CPUs.
    #[error("{what} QEMU 8.1 or later; this is {version}, and no newer one could be had: {reason}")]
    QemuTooOld {
        /// Use that needs it, with its verb.
        what: &'static str,
        /// The system's.
        version: String,
        /// Why no other one.
        reason: String,
    },
    /// A program could not be run.
    #[error("{tool} cannot be run: {source}")]
    Tool {
        /// The program.
        tool: String,
        /// The reason.
        source: io::Error,
    },
    /// A program failed.
    #[error("{command} failed: {output}")]
    ToolFailed {
        /// The command line.
        command: String,
        /// The end of what it printed.
        output: String,
    },
    /// The archive has no such package.
    #[error("the archive has no kernel package '{name}' for {arch}: {reason}")]
    NoPackage {
        /// The name.
        name: String,
        /// The architecture.
        arch: Arch,
        /// Message of the distribution's tool.
        reason: String,
    },
    /// A package without a kernel in it.
    #[error("{package} has no kernel image (vmlinuz) in it: it is not a kernel package")]
    NoKernelInPackage {
        /// The package.
        package: PathBuf,
    },
    /// A file that QEMU would not know what to do with.
    #[error("{path} is not a kernel image for {arch}")]
    NotAKernel {
        /// The file.
        path: PathBuf,
        /// The architecture.
        arch: Arch,
    },
    /// No package of the kernel has the module.
    #[error(
        "{label}: no package of this kernel has a module '{name}'; if it is built in, leave it out; a kernel given as an image has none"
    )]
    NoModule {
        /// Which guest.
        label: String,
        /// The module.
        name: String,
    },
    /// A program that cannot run beside Linux.
    #[error("{path} cannot run beside Linux: {reason}")]
    NotBeside {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Settings of a program beside Linux that cannot be.
    #[error("a program beside Linux needs arm64, virtual time and two CPUs or more")]
    NoPlaceBeside,
    /// The command for the guest is not to be found on the host.
    #[error("there is no program '{name}' on this machine to run in the guests")]
    NoGuestCommand {
        /// The program.
        name: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// There is no guest program for this architecture.
    #[error("no guest program for {arch}: {reason}")]
    NoGuestProgram {
        /// The architecture.
        arch: Arch,
        /// Why not and how to get one.
        reason: String,
    },
    /// A program that is made from the sources, and these are not here.
    #[error("{name} is made from Tautline's sources, and this command was not started inside them")]
    NoSources {
        /// The program.
        name: String,
    },
    /// Sources that other users can write or replace. To build from them is to run them.
    #[error("nothing is built from these sources: {0}")]
    StrangeSources(StateError),
    /// A guest ended without a report.
    #[error("{label}: {what}\nthe last lines of its console:\n{console}")]
    NoReport {
        /// Which guest.
        label: String,
        /// Description of the failure.
        what: String,
        /// The end of its console.
        console: String,
    },
    /// KVM was asked for and does not work here.
    #[error("{label}: KVM starts no guest on this host{nested}: {what}")]
    NoKvm {
        /// Which guest.
        label: String,
        /// Whether the host is itself virtual, in words.
        nested: &'static str,
        /// Message of QEMU.
        what: String,
    },
    /// The user ended it.
    #[error("interrupted; finished kernels are kept and the next run goes on from there")]
    Interrupted,
}

impl KernelsError {
    /// An error with the file that it came with.
    pub fn file(path: &Path) -> impl FnOnce(io::Error) -> KernelsError {
        let path = path.to_owned();
        move |source| KernelsError::File { path, source }
    }
}
