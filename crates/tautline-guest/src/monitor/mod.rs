//! Monitors: programs that give a guest its machine. Each implements [`Machine`]; lives, restarts, messages and figures
//! of a guest know no more of its monitor than that.
//!
//! * `kvm`: our own, for guests of the host's own processor.
//! * `qemu`: QEMU, which emulates aarch64 elsewhere; `ivshmem`: its doorbells.
//! * `process`: the process of a monitor, whichever it is.

mod ivshmem;
mod kvm;
mod process;
mod qemu;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tautline_kvm::KvmError;

use crate::config::GuestConfig;
use crate::doorbell::Doorbells;
use crate::error::GuestError;
use crate::image::{Architecture, Image};
use crate::window::Window;

pub(crate) use process::PRIORITY;

/// Time for a monitor to say that it is there. Lower: a busy machine's guests are refused. Higher: one that hangs is
/// noticed later.
pub(crate) const START_MAX: Duration = Duration::from_secs(20);

/// End of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The guest switched itself off.
    SwitchedOff,
    /// The guest asked for a reset.
    Reset,
    /// The guest's processor stopped for a fault, which a monitor may have named.
    Faulted(Option<String>),
    /// The monitor was killed, or ended with an error.
    Failed(String),
}

impl End {
    pub(crate) fn text(&self) -> String {
        match self {
            End::SwitchedOff => "it switched itself off".to_owned(),
            End::Reset => "it asked for a reset".to_owned(),
            End::Faulted(None) => "its processor stopped for a fault".to_owned(),
            End::Faulted(Some(fault)) => format!("its processor stopped for a fault: {fault}"),
            End::Failed(why) => why.clone(),
        }
    }
}

/// Parts of a machine that are the same in each life of a guest.
pub(crate) struct Recipe<'a> {
    pub(crate) config: &'a GuestConfig,
    pub(crate) image: &'a Image,
    /// Where the guest's serial line goes.
    pub(crate) console: Option<&'a OwnedFd>,
    /// Command that becomes our own monitor.
    pub(crate) monitor_command: &'a [OsString],
    /// Setting of this process that could not be had.
    pub(crate) own_limit: Option<&'a str>,
}

/// A virtual machine that runs, in a process of its own. Dropped, it is killed.
pub(crate) trait Machine {
    /// Monitor, with its release and how it executes instructions.
    fn name(&self) -> &str;

    /// Settings that could not be had.
    fn limits(&self) -> &[String];

    /// Whether the machine has ended, and how. Never waits.
    fn ended(&mut self) -> Option<End>;

    /// Ends the machine at once, whatever the guest does.
    fn kill(&mut self);
}

/// Starts a guest under the monitor for its processor: our own if that is the host's and KVM can be used, otherwise
/// QEMU, which says why it was taken.
pub(crate) fn start(
    recipe: &Recipe<'_>,
    window: &Window,
    doorbells: &Doorbells,
) -> Result<Box<dyn Machine>, GuestError> {
    let architecture = recipe.image.architecture;
    let kvm = match Architecture::host() == Some(architecture) {
        true => tautline_kvm::access::open(),
        false => Err(KvmError::OtherProcessor),
    };
    Ok(match (kvm, architecture) {
        (Ok(device), _) => Box::new(kvm::Kvm::start(recipe, window, doorbells, &device)?),
        (Err(regret), Architecture::Aarch64) => {
            let limit = match regret {
                // On a host with another processor nothing else can be had.
                KvmError::OtherProcessor => None,
                regret => Some(format!(
                    "the guest's processor is emulated ({regret}): {}",
                    regret.remedy()
                )),
            };
            Box::new(qemu::Qemu::start(recipe, window, doorbells, limit)?)
        }
        (Err(regret), Architecture::X86_64) => return Err(regret.into()),
    })
}
