//! `taut exec --interface`: what is attached to the interface, and handed to the program.

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tautline::link::ShortPath;
use tautline_awake::exec::short_path;

/// Highest number from which descriptors are given to the program. Higher: the kernel makes a table of that many for
/// each process.
const NUMBER_MAX: u64 = 1 << 16;
/// Room for them below the limit, where it cannot be raised.
const ROOM: u64 = 8;

/// Attaches to the interface. The value of the variable that the library in the program reads; or why not.
pub(super) fn attach(interface: &str) -> Result<String, String> {
    let attached = ShortPath::attach(interface).map_err(|error| error.to_string())?;
    let (address, is_virtual) = (attached.address, attached.is_virtual);
    let numbers = hand_over(attached.descriptors).map_err(|error| error.to_string())?;
    let [places, ports, sockets, _link] = numbers;
    Ok(short_path([places, ports, sockets], address, is_virtual))
}

/// Leaves descriptors open for the program, at numbers that it cannot get itself: at its limit and above.
fn hand_over(descriptors: [OwnedFd; 4]) -> rustix::io::Result<[i32; 4]> {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.unwrap_or(NUMBER_MAX).min(NUMBER_MAX);
    let highest = limit.maximum.unwrap_or(u64::MAX);
    let raised = Rlimit {
        current: Some((current + ROOM).min(highest)),
        ..limit
    };
    let lowest = match setrlimit(Resource::Nofile, raised) {
        Ok(()) if highest >= current + ROOM => current,
        _ => current.saturating_sub(ROOM),
    };
    let mut numbers = [-1; 4];
    for (number, descriptor) in numbers.iter_mut().zip(descriptors) {
        let copy = fcntl_dupfd_cloexec(&descriptor, lowest as i32)?;
        fcntl_setfd(&copy, FdFlags::empty())?;
        *number = copy.as_raw_fd();
        // Open until the program ends.
        let _kept = copy.into_raw_fd();
    }
    setrlimit(Resource::Nofile, limit)?;
    Ok(numbers)
}
