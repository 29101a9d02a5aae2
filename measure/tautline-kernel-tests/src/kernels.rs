//! The kernels that people run, and what is run under each.

use tautline_lab::kernels::cards::{DRIVERS, Driver};
use tautline_lab::kernels::{Arch, Job, KernelSource, KernelSpec};

/// A kernel of the matrix.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) job: Job,
    /// Where it comes from, in words.
    pub(crate) origin: String,
    /// Whether the tests of `--quick` use it.
    pub(crate) quick: bool,
    /// Whether it is too old for link `xdp`, which must say so.
    pub(crate) too_old: bool,
    /// Drivers that have zero-copy AF_XDP in it.
    pub(crate) zero_copy: &'static [&'static str],
}

/// Debian's suites with the first words of their kernels' origin.
const SUITES: [(&str, &str); 4] = [
    ("bookworm", "Debian 12"),
    ("bookworm-backports", "Debian 12 backports"),
    ("trixie", "Debian 13"),
    ("trixie-backports", "Debian 13 backports"),
];

/// The newest Debian whose kernel has no `bpf_xdp_load_bytes` (Linux 5.18).
const TOO_OLD: (&str, &str) = ("bullseye", "Debian 11");

/// All kernels, in the order of the table.
pub(crate) fn all() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for arch in [Arch::X86_64, Arch::Arm64] {
        kernels.push(Kernel {
            too_old: true,
            ..kernel(arch, TOO_OLD, false)
        });
        for suite in SUITES {
            kernels.extend([false, true].map(|realtime| kernel(arch, suite, realtime)));
        }
    }
    kernels
}

fn kernel(arch: Arch, (suite, origin): (&str, &str), realtime: bool) -> Kernel {
    let (debian, middle) = (arch.debian_name(), if realtime { "rt-" } else { "" });
    let origin = format!("{origin}{}", if realtime { ", PREEMPT_RT" } else { "" });
    let name = format!("linux-image-{middle}{debian}@{suite}");
    let of_pc = arch == Arch::X86_64;
    Kernel {
        job: Job {
            arch,
            kernel: KernelSpec {
                source: KernelSource::PackageName(name),
                parameters: Vec::new(),
            },
        },
        origin,
        quick: of_pc && !realtime && ["bookworm", "trixie"].contains(&suite),
        too_old: false,
        zero_copy: if suite == "trixie-backports" {
            &["virtio_net", "igb"]
        } else {
            &[]
        },
    }
}

impl Kernel {
    /// A kernel that the user names.
    pub(crate) fn named(arch: Arch, spec: KernelSpec, too_old: bool) -> Kernel {
        Kernel {
            origin: spec.to_string(),
            job: Job { arch, kernel: spec },
            quick: true,
            too_old,
            zero_copy: &[],
        }
    }

    /// A name for messages and files, which `--only` looks in.
    pub(crate) fn name(&self) -> String {
        match &self.job.kernel.source {
            KernelSource::PackageName(name) => name.trim_start_matches("linux-image-").to_owned(),
            _ => self.job.kernel.to_string(),
        }
    }
}

/// Modules of the cards, of virtual cables, and of what the tests make beside.
pub(crate) const MODULES: [&str; 13] = [
    "veth",
    "tun",
    "macvlan",
    "bridge",
    "xsk_diag",
    "virtio_pci",
    "virtio_net",
    "igb",
    "e1000e",
    "ipv6",
    "af_packet",
    "sch_fq",
    "tcp_cubic",
];

/// The drivers whose modules are there. The lab has more, which hand packets over as e1000e does.
pub(crate) fn drivers() -> impl Iterator<Item = &'static Driver> {
    let is_there = |driver: &&Driver| driver.modules.iter().all(|name| MODULES.contains(name));
    DRIVERS.iter().filter(is_there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_packages_that_the_lab_understands() {
        let kernels = all();
        for kernel in &kernels {
            let KernelSource::PackageName(name) = &kernel.job.kernel.source else {
                panic!("a package");
            };
            let spec: KernelSpec = name.parse().unwrap();
            assert_eq!(spec, kernel.job.kernel);
        }
        assert_eq!(kernels.iter().filter(|kernel| kernel.quick).count(), 2);
        assert_eq!(kernels[1].name(), "amd64@bookworm");
    }
}
