//! Says for each socket what became of it: TAUTLINE_EXPLAIN=1, or the name of a file.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddrV4;
use std::os::fd::RawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::next;
use crate::policy::{Explain, policy};

/// A socket in a line.
pub(crate) struct Named {
    pub(crate) descriptor: RawFd,
    pub(crate) local: Option<SocketAddrV4>,
    pub(crate) peer: Option<SocketAddrV4>,
    /// Protocol of a packet socket.
    pub(crate) ethertype: Option<u16>,
}

impl Named {
    /// A UDP socket.
    pub(crate) fn udp(
        descriptor: RawFd,
        local: Option<SocketAddrV4>,
        peer: Option<SocketAddrV4>,
    ) -> Self {
        Self {
            descriptor,
            local,
            peer,
            ethertype: None,
        }
    }

    /// A packet socket.
    pub(crate) fn packet(descriptor: RawFd, ethertype: u16) -> Self {
        Self {
            descriptor,
            local: None,
            peer: None,
            ethertype: Some(ethertype),
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "socket {}", self.descriptor)?;
        if let Some(ethertype) = self.ethertype {
            write!(to, ", EtherType {ethertype:#06x}")?;
        }
        if let Some(local) = self.local {
            write!(to, ", local {local}")?;
        }
        if let Some(peer) = self.peer {
            write!(to, ", peer {peer}")?;
        }
        Ok(())
    }
}

/// Writes a line if somebody wants to know. A line that cannot be written is lost.
pub(crate) fn explain(named: &Named, what: fmt::Arguments<'_>) {
    let Some(policy) = policy() else { return };
    if policy.explain == Explain::No {
        return;
    }
    let _kept = crate::errno::Kept::new();
    let line = line(&policy.program, named, what);
    match &policy.explain {
        Explain::File(path) => {
            // `taut exec` has looked at the file; what is a link by now is somebody else's. Links of /dev are the
            // system's.
            let flags = match path.starts_with("/dev") {
                true => 0,
                false => libc::O_NOFOLLOW,
            };
            let mut file = OpenOptions::new();
            let file = file
                .append(true)
                .create(true)
                .custom_flags(flags)
                .open(path);
            let _lost = file.and_then(|mut file| file.write_all(line.as_bytes()));
        }
        _ => {
            let _lost = std::io::stderr().write_all(line.as_bytes());
        }
    }
}

/// Says on standard error, once for a process, that a socket stays the kernel's though it was to be taken; with
/// `--explain` on standard error, its line is there already.
pub(crate) fn warn(named: &Named, why: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let Some(policy) = policy() else { return };
    if policy.explain == Explain::StandardError || SAID.swap(true, Relaxed) {
        return;
    }
    let _kept = crate::errno::Kept::new();
    // The program may have given the number to something else, or its reader may be gone, which would end it.
    if policy.has_standard_error() && next::takes_bytes(libc::STDERR_FILENO) {
        let what = format_args!("left to the kernel: {why} (--explain tells more)");
        let line = line(&policy.program, named, what);
        let _lost = std::io::stderr().write_all(line.as_bytes());
    }
}

fn line(program: &str, named: &Named, what: fmt::Arguments<'_>) -> String {
    let pid = std::process::id();
    format!("taut exec: {program}[{pid}]: {named}: {what}\n")
}
