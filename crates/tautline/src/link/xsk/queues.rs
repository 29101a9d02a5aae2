//! The AF_XDP sockets of an interface, one for each of its queues: how they are opened, and what to say where
//! that is refused.

use std::io;

use crate::claim::with_retries;
use crate::error::OpenError;
use crate::link::XdpMode;
use crate::link::bpf::demux::Setup;
use crate::sys::memory::lock_limit_bytes;
use crate::sys::xsk::{Copies, Opening, XskSocket, memory_bytes};

/// Queues of an interface that are served, as many as the program's map has. Lower: large network cards have to
/// be set to fewer queues first. Higher: a node of all queues takes more memory, 4 or 8 MiB for each.
const QUEUES_MAX: u32 = 64;

/// Opens the sockets of one interface.
pub(super) struct Opener<'a> {
    pub(super) setup: &'a Setup,
}

impl Opener<'_> {
    /// A socket on each queue that the interface has.
    ///
    /// # Errors
    /// [`OpenError::TooManyQueues`], [`OpenError::QueueTaken`], [`OpenError::NotLocked`],
    /// [`OpenError::NotPermitted`], [`OpenError::Refused`].
    pub(super) fn open(&self) -> Result<Vec<XskSocket>, OpenError> {
        if XskSocket::open(&self.opening(QUEUES_MAX, Copies::One)).is_ok() {
            return Err(OpenError::TooManyQueues {
                interface: self.setup.name.clone(),
                max: QUEUES_MAX,
            });
        }
        let mut queues = Vec::new();
        for queue in 0..QUEUES_MAX {
            match self.on(queue)? {
                Some(socket) => queues.push(socket),
                None => break,
            }
        }
        Ok(queues)
    }

    /// The socket of one queue, with zero-copy where the driver has it; `None` if there is no such queue.
    fn on(&self, queue: u32) -> Result<Option<XskSocket>, OpenError> {
        // In generic mode a driver would send from our memory, and the kernel copy what comes all the same.
        if self.setup.mode == XdpMode::Native {
            match self.with(queue, Copies::Zero) {
                Ok(socket) => return Ok(Some(socket)),
                Err(error) if is_of_ours(&error) => return Err(self.refused(queue, error)),
                // The driver has none.
                Err(_) => {}
            }
        }
        match self.with(queue, Copies::One) {
            Ok(socket) => Ok(Some(socket)),
            Err(error) if is_missing(queue, &error) => Ok(None),
            Err(error) => Err(self.refused(queue, error)),
        }
    }

    /// Patiently, because closing is asynchronous: the queue of a socket that was just closed is busy for a moment.
    fn with(&self, queue: u32, copies: Copies) -> io::Result<XskSocket> {
        with_retries(io::ErrorKind::ResourceBusy, || {
            XskSocket::open(&self.opening(queue, copies))
        })
    }

    fn opening(&self, queue: u32, copies: Copies) -> Opening {
        Opening {
            interface_index: self.setup.interface.index,
            queue,
            copies,
        }
    }

    fn refused(&self, queue: u32, error: io::Error) -> OpenError {
        let interface = self.setup.name.clone();
        match error.raw_os_error() {
            Some(libc::EBUSY) => OpenError::QueueTaken { interface, queue },
            // The kernel counts the memory as locked, whichever user the process belongs to.
            Some(libc::ENOBUFS) => OpenError::NotLocked {
                needs_bytes: memory_bytes(Copies::One),
                limit_bytes: lock_limit_bytes().unwrap_or(0),
            },
            Some(libc::EPERM) => OpenError::NotPermitted {
                link: "xsk",
                needs: "CAP_NET_RAW",
            },
            _ => OpenError::Refused {
                doing: format!("opening an AF_XDP socket on queue {queue} of `{interface}`"),
                source: error.into(),
            },
        }
    }
}

/// Whether it is not about what the driver can.
fn is_of_ours(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::ENOBUFS | libc::EPERM)
    )
}

fn is_missing(queue: u32, error: &io::Error) -> bool {
    queue > 0 && error.raw_os_error() == Some(libc::EINVAL)
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    use tautline_testbed::hosts::{Host, Hosts, HostsOptions, may_create};

    use super::*;
    use crate::sys::interface;
    use crate::sys::xsk::RING_SLOTS;

    /// Runs `work` in a host that has an interface.
    fn on_an_interface(work: impl FnOnce(&Setup) + Send) {
        if !may_create() {
            println!("SKIPPED: making network namespaces needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
            return;
        }
        let hosts = Hosts::create(&HostsOptions::default()).unwrap();
        let name = hosts.end(Host::A, 0).interface();
        let inside = || {
            work(&Setup {
                interface: interface::query(&name).unwrap(),
                name: name.clone(),
                ip: None,
                ethernet: tautline_proto::wire::ethernet::EthernetForm::of(0x88B5),
                mode: XdpMode::Native,
                shared: false,
            });
        };
        hosts.inside(Host::A, inside).unwrap();
    }

    fn opener(setup: &Setup) -> Opener<'_> {
        Opener { setup }
    }

    #[test]
    fn a_queue_that_a_stranger_has_is_named() {
        on_an_interface(|setup| {
            let opener = opener(setup);
            let stranger = opener.with(0, Copies::One).unwrap();
            let error = opener.open().unwrap_err();
            assert!(
                matches!(&error, OpenError::QueueTaken { queue: 0, interface } if *interface == setup.name),
                "{error:?}"
            );
            drop(stranger);
            assert_eq!(opener.open().unwrap().len(), 1);
        });
    }

    #[test]
    fn room_for_a_whole_datagram_is_there_or_made_or_refused() {
        on_an_interface(|setup| {
            let mut socket = opener(setup).with(0, Copies::One).unwrap();
            let full = RING_SLOTS as usize;
            let refused = |result: io::Result<()>| result.unwrap_err().raw_os_error();
            assert_eq!(refused(socket.reserve(full + 1)), Some(libc::EAGAIN));
            socket.reserve(full).unwrap();
            // Without a receiver, so that they are gone as soon as they are sent.
            let frame = [2; 60];
            for _ in 0..full {
                socket.queue([&frame, &[]]).unwrap();
            }
            let one_more = socket.queue([&frame, &[]]);
            assert_eq!(refused(one_more), Some(libc::EAGAIN));
            socket.reserve(45).unwrap();
            for _ in 0..45 {
                socket.queue([&frame, &[]]).unwrap();
            }
        });
    }

    #[test]
    fn a_limit_of_locked_memory_is_told_with_its_size() {
        on_an_interface(|setup| {
            // Of this thread alone; the limit is the process's, and binds only who lacks the capability.
            let mut held = capabilities(None).unwrap();
            held.effective.remove(CapabilitySet::IPC_LOCK);
            set_capabilities(None, held).unwrap();
            let before = getrlimit(Resource::Memlock);
            let current = Some(64 << 10);
            setrlimit(Resource::Memlock, Rlimit { current, ..before }).unwrap();
            let error = opener(setup).open().unwrap_err();
            setrlimit(Resource::Memlock, before).unwrap();
            match error {
                OpenError::NotLocked {
                    needs_bytes,
                    limit_bytes,
                } => assert_eq!((needs_bytes, limit_bytes), (4 << 20, 64 << 10)),
                other => panic!("{other:?}"),
            }
        });
    }
}
