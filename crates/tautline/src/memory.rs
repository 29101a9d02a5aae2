//! The memory of one port of this process: a mapping laid out as [`tautline_shm`] says.
#![allow(unsafe_code)] // Implements `PortMemory`, whose promises are made here.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use tautline_shm::region::{PortMemory, Shape};

use crate::sys::memory::Mapping;

/// A port's memory. It is shared by its reader, its link and the status page, hence kept in an
/// [`Arc`](std::sync::Arc).
#[derive(Debug)]
pub struct MappedPort {
    mapping: Mapping,
    shape: Shape,
}

impl MappedPort {
    /// Memory of this process, for links whose frames reach the process through a socket. The
    /// second value says why it could not be locked, if it could not.
    pub(crate) fn private(shape: Shape, port: u16) -> io::Result<(Self, Option<io::Error>)> {
        let mapping = Mapping::anonymous(shape.bytes())?;
        let not_locked = mapping.lock().err();
        let memory = Self { mapping, shape };
        memory.initialise(port);
        Ok((memory, not_locked))
    }

    /// Memory behind a descriptor, such as a BPF map's, which this process makes a port.
    pub(crate) fn shared(fd: BorrowedFd<'_>, shape: Shape, port: u16) -> io::Result<Self> {
        let mapping = Mapping::shared(fd, shape.bytes(), 0)?;
        let memory = Self { mapping, shape };
        memory.initialise(port);
        Ok(memory)
    }
}

// SAFETY: the mapping is of `shape.bytes()` bytes, page-aligned, writable, stays until dropped,
// and is handed out only through `PortMemory::port`, that is, as atomics.
unsafe impl PortMemory for MappedPort {
    fn base(&self) -> NonNull<u8> {
        debug_assert!(self.mapping.bytes() >= self.shape.bytes());
        self.mapping.base()
    }

    fn shape(&self) -> Shape {
        self.shape
    }
}
