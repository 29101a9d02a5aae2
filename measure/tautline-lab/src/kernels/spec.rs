//! Architectures and kernels, as users name them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A guest's architecture, by Debian's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// 64-bit PC.
    X86_64,
    /// 64-bit ARM.
    Arm64,
    /// 32-bit ARM with hardware floating point.
    Armhf,
}

impl Arch {
    /// The architecture of this program.
    pub fn host() -> Option<Arch> {
        match std::env::consts::ARCH {
            "x86_64" => Some(Arch::X86_64),
            "aarch64" => Some(Arch::Arm64),
            "arm" => Some(Arch::Armhf),
            _ => None,
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Arm64 => "arm64",
            Arch::Armhf => "armhf",
        }
    }

    /// The name in package archives.
    pub fn debian_name(self) -> &'static str {
        match self {
            Arch::X86_64 => "amd64",
            Arch::Arm64 => "arm64",
            Arch::Armhf => "armhf",
        }
    }

    /// The Rust target of a static program.
    pub fn rust_target(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64-unknown-linux-musl",
            Arch::Arm64 => "aarch64-unknown-linux-musl",
            Arch::Armhf => "armv7-unknown-linux-gnueabihf",
        }
    }

    /// QEMU's program for it.
    pub fn qemu(self) -> &'static str {
        match self {
            Arch::X86_64 => "qemu-system-x86_64",
            Arch::Arm64 => "qemu-system-aarch64",
            Arch::Armhf => "qemu-system-arm",
        }
    }

    /// Debian's package of that program.
    pub fn qemu_package(self) -> &'static str {
        match self {
            Arch::X86_64 => "qemu-system-x86",
            _ => "qemu-system-arm",
        }
    }

    /// Processors without a source of randomness of their own.
    pub(super) fn machine_and_cpu(self) -> (&'static str, &'static str) {
        match self {
            Arch::X86_64 => ("pc", "max,-rdrand,-rdseed"),
            Arch::Arm64 => ("virt", "cortex-a72"),
            Arch::Armhf => ("virt", "cortex-a15"),
        }
    }

    pub(super) fn console(self) -> &'static str {
        match self {
            Arch::X86_64 => "ttyS0",
            _ => "ttyAMA0",
        }
    }

    /// Default kernels. For x86_64 the Emblix paper's four figures of today: no
    /// preemption, voluntary preemption points, full preemption, and PREEMPT_RT.
    pub fn default_kernels(self) -> Vec<KernelSpec> {
        let texts: &[&str] = match self {
            Arch::X86_64 => &[
                "linux-image-amd64,preempt=none",
                "linux-image-amd64,preempt=voluntary",
                "linux-image-amd64,preempt=full",
                "linux-image-rt-amd64",
            ],
            Arch::Arm64 => &["linux-image-arm64", "linux-image-rt-arm64"],
            Arch::Armhf => &["linux-image-armmp", "linux-image-rt-armmp"],
        };
        texts
            .iter()
            .map(|text| text.parse().expect("the default set is well-formed"))
            .collect()
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Arch {
    type Err = String;

    fn from_str(text: &str) -> Result<Arch, String> {
        match text {
            "x86_64" | "amd64" => Ok(Arch::X86_64),
            "arm64" | "aarch64" => Ok(Arch::Arm64),
            "armhf" | "arm" => Ok(Arch::Armhf),
            _ => Err(format!(
                "unknown architecture '{text}': use x86_64, arm64 or armhf"
            )),
        }
    }
}

/// A kernel to run: where it comes from, and its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSpec {
    /// Where from.
    pub source: KernelSource,
    /// Kernel parameters, such as `preempt=none`.
    pub parameters: Vec<String>,
}

/// Where a kernel comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelSource {
    /// A kernel image.
    Image(PathBuf),
    /// A Debian package file.
    PackageFile(PathBuf),
    /// A package's name in the distribution's archive; `NAME@SUITE` for another suite of it than the system's.
    PackageName(String),
}

impl FromStr for KernelSpec {
    type Err = String;

    /// `SOURCE[,PARAMETER…]`. With a slash it is a file (`./vmlinuz`), else a package's name, with `@SUITE` if need be.
    fn from_str(text: &str) -> Result<KernelSpec, String> {
        let mut parts = text.split(',').map(str::trim);
        let source = parts.next().unwrap_or_default();
        let source = if source.ends_with(".deb") {
            KernelSource::PackageFile(source.into())
        } else if source.contains('/') {
            KernelSource::Image(source.into())
        } else if source.splitn(2, '@').all(is_package_name) {
            KernelSource::PackageName(source.to_owned())
        } else {
            return Err(format!(
                "'{text}' names no kernel: give a package's name (of another suite: NAME@SUITE), a .deb file or an image with its path (./vmlinuz), then parameters after commas"
            ));
        };
        let parameters = parts
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect();
        Ok(KernelSpec { source, parameters })
    }
}

/// Debian policy 5.6.1: lower-case letters, digits, plus, minus and full stop, beginning with a letter or digit.
fn is_package_name(text: &str) -> bool {
    text.len() >= 2
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c))
}

impl fmt::Display for KernelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            KernelSource::Image(path) | KernelSource::PackageFile(path) => {
                write!(
                    f,
                    "{}",
                    path.file_name()
                        .unwrap_or(path.as_os_str())
                        .to_string_lossy()
                )?;
            }
            KernelSource::PackageName(name) => {
                f.write_str(name.strip_prefix("linux-image-").unwrap_or(name))?
            }
        }
        self.parameters
            .iter()
            .try_for_each(|parameter| write!(f, " {parameter}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_named_in_three_ways() {
        let spec = |text: &str| text.parse::<KernelSpec>().unwrap();
        let package = spec("linux-image-amd64,preempt=none,quiet");
        assert_eq!(
            package.source,
            KernelSource::PackageName("linux-image-amd64".to_owned())
        );
        assert_eq!(package.parameters, ["preempt=none", "quiet"]);
        assert_eq!(package.to_string(), "amd64 preempt=none quiet");
        assert_eq!(
            spec("./vmlinuz").source,
            KernelSource::Image("./vmlinuz".into())
        );
        assert_eq!(
            spec("dir/x_1.deb").source,
            KernelSource::PackageFile("dir/x_1.deb".into())
        );
        assert_eq!(spec("linux-image-amd64@trixie").to_string(), "amd64@trixie");
        for wrong in [
            "",
            ",preempt=none",
            "Linux",
            "--help",
            "linux image",
            "linux-image@",
            "linux-image@a@b",
            "linux-image@..",
        ] {
            assert!(wrong.parse::<KernelSpec>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_default_sets_are_well_formed() {
        assert_eq!(Arch::X86_64.default_kernels().len(), 4);
        for arch in [Arch::X86_64, Arch::Arm64, Arch::Armhf] {
            assert!(arch.default_kernels().len() >= 2);
            assert_eq!(arch.name().parse(), Ok(arch));
            assert_eq!(arch.debian_name().parse(), Ok(arch));
        }
        assert!("mips".parse::<Arch>().is_err());
    }
}
