//! `/dev/kvm`, and whether it can do all that a machine needs.
#![allow(unsafe_code)] // a descriptor is handed to kvm-ioctls, which takes numbers

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The device.
const DEVICE: &str = "/dev/kvm";
/// Flags of processors that execute a guest's instructions themselves.
const NATIVE: [&str; 2] = ["vmx", "svm"];

/// KVM cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvmError {
    /// This machine's processor is not that of the guest.
    #[error(
        "KVM runs guests for this machine's own processor alone, and that only if it is aarch64 or x86-64"
    )]
    OtherProcessor,
    /// There is no device.
    #[error("this machine has no {DEVICE}")]
    Missing,
    /// This user may not open it.
    #[error("this user may not open {DEVICE}")]
    Denied,
    /// It can be opened and is not KVM, or fails.
    #[error("{DEVICE} cannot be used: {0}")]
    Unusable(io::Error),
    /// It is KVM, and an old or a reduced one.
    #[error("KVM of this kernel lacks {}", .0.join(", "))]
    Lacks(Vec<&'static str>),
}

impl KvmError {
    /// Remedy, in a sentence.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            KvmError::OtherProcessor => {
                "build the guest for aarch64, which runs under QEMU on other processors"
            }
            KvmError::Missing => {
                "turn virtualisation on in the firmware's settings (on a virtual machine: nested virtualisation, at its host), then `modprobe kvm_intel` or `modprobe kvm_amd`; a container needs --device /dev/kvm"
            }
            KvmError::Denied => {
                "join the device's group (`usermod -aG kvm USER`) and log in again; a container needs --device /dev/kvm"
            }
            KvmError::Unusable(_) => "look at `ls -l /dev/kvm` and at the kernel's log (dmesg)",
            KvmError::Lacks(_) => "run Linux 5.10 or later, as distributions build it",
        }
    }
}

/// Opens KVM, and checks that it can do all that a machine for this machine's own processor needs.
///
/// # Errors
/// [`KvmError`].
pub fn open() -> Result<OwnedFd, KvmError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => KvmError::Missing,
        Errno::ACCESS | Errno::PERM => KvmError::Denied,
        _ => KvmError::Unusable(error.into()),
    })?;
    check(&device)?;
    Ok(device)
}

/// Whether the processor executes a guest's instructions itself. Otherwise the kernel emulates it, thousands of times
/// slower, as kernels for x86 can. Where `/proc` does not tell, it is taken to.
#[must_use]
pub fn is_native() -> bool {
    use std::io::{BufRead, BufReader};
    if !cfg!(target_arch = "x86_64") {
        return true;
    }
    let Ok(file) = std::fs::File::open("/proc/cpuinfo") else {
        return true;
    };
    let mut lines = BufReader::new(file).lines().map_while(Result::ok);
    lines
        .find(|line| line.starts_with("flags"))
        .is_none_or(|flags| flags.split(' ').any(|flag| NATIVE.contains(&flag)))
}

#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
fn check(_device: &OwnedFd) -> Result<(), KvmError> {
    Err(KvmError::OtherProcessor)
}

#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
fn check(device: &OwnedFd) -> Result<(), KvmError> {
    use std::os::fd::{FromRawFd, IntoRawFd};

    use kvm_bindings::KVM_API_VERSION;
    use kvm_ioctls::Kvm;

    let device = device.try_clone().map_err(KvmError::Unusable)?;
    // SAFETY: the number is open and has no other owner; the wrapper closes it.
    let kvm = unsafe { Kvm::from_raw_fd(device.into_raw_fd()) };
    match kvm.get_api_version() {
        version if version == KVM_API_VERSION as i32 => {}
        -1 => return Err(KvmError::Unusable(io::Error::last_os_error())),
        version => {
            let text = format!("its interface has version {version}, not {KVM_API_VERSION}");
            return Err(KvmError::Unusable(io::Error::other(text)));
        }
    }
    match lacking(|number| kvm.check_extension_raw(number.into()) > 0) {
        missing if missing.is_empty() => Ok(()),
        missing => Err(KvmError::Lacks(missing)),
    }
}

/// A capability of KVM, with its name.
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
macro_rules! capabilities {
    ($($name:ident),* $(,)?) => { &[$((kvm_bindings::$name, stringify!($name))),*] };
}

/// All that a machine needs.
#[cfg(target_arch = "aarch64")]
const NEEDED: &[(u32, &str)] = capabilities![
    KVM_CAP_USER_MEMORY,
    KVM_CAP_READONLY_MEM,
    KVM_CAP_ONE_REG,
    KVM_CAP_DEVICE_CTRL,
    KVM_CAP_IRQFD,
    KVM_CAP_IOEVENTFD,
    KVM_CAP_IOEVENTFD_ANY_LENGTH,
    KVM_CAP_ARM_PSCI_0_2,
    KVM_CAP_ARM_VM_IPA_SIZE,
    KVM_CAP_ARM_NISV_TO_USER,
];
/// All that a machine needs.
#[cfg(target_arch = "x86_64")]
const NEEDED: &[(u32, &str)] = capabilities![
    KVM_CAP_USER_MEMORY,
    KVM_CAP_READONLY_MEM,
    KVM_CAP_SPLIT_IRQCHIP,
    KVM_CAP_IRQ_ROUTING,
    KVM_CAP_IRQFD,
    KVM_CAP_IOEVENTFD,
    KVM_CAP_IOEVENTFD_ANY_LENGTH,
    KVM_CAP_TSC_DEADLINE_TIMER,
    KVM_CAP_GET_TSC_KHZ,
    KVM_CAP_EXT_CPUID,
    KVM_CAP_SET_TSS_ADDR,
    KVM_CAP_SET_IDENTITY_MAP_ADDR,
];

/// Of all that a machine needs, what is not there.
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
fn lacking(has: impl Fn(u32) -> bool) -> Vec<&'static str> {
    let missing = NEEDED.iter().filter(|(number, _)| !has(*number));
    missing.map(|(_, name)| *name).collect()
}

#[cfg(all(test, any(target_arch = "aarch64", target_arch = "x86_64")))]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_lacking_is_named_at_once() {
        use kvm_bindings::{KVM_CAP_IRQFD, KVM_CAP_READONLY_MEM};
        assert!(lacking(|_| true).is_empty());
        assert_eq!(lacking(|_| false).len(), NEEDED.len());
        let missing = lacking(|number| ![KVM_CAP_READONLY_MEM, KVM_CAP_IRQFD].contains(&number));
        let text = KvmError::Lacks(missing).to_string();
        assert!(text.ends_with("lacks KVM_CAP_READONLY_MEM, KVM_CAP_IRQFD"));
    }

    #[test]
    fn a_device_that_is_not_kvm_is_unusable() {
        let device = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty()).unwrap();
        assert!(matches!(check(&device), Err(KvmError::Unusable(_))));
    }
}
