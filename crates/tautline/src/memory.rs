//! The memory of one port of this process: a mapping laid out as [`tautline_shm`] says.
#![allow(unsafe_code)] // Implements `PortMemory`, whose promises are made here.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use tautline_shm::region::{PortMemory, Shape};

use crate::sys::memory::Mapping;

/// A port's memory. It is shared by its reader, its link and the status page, hence kept in an [`Arc`](std::sync::Arc).
#[derive(Debug)]
pub(crate) struct MappedPort {
    mapping: Mapping,
    shape: Shape,
    resident: bool,
}

impl MappedPort {
    /// Memory of this process, for links whose frames reach the process through a socket; locked where that is allowed.
    pub(crate) fn private(shape: Shape, port: u16) -> io::Result<Self> {
        let mapping = Mapping::anonymous(shape.bytes())?;
        let resident = mapping.lock().is_ok();
        let memory = Self {
            mapping,
            shape,
            resident,
        };
        memory.initialise(port);
        Ok(memory)
    }

    /// Memory behind a descriptor, such as a BPF map's, which this process makes a port.
    pub(crate) fn shared(fd: BorrowedFd<'_>, shape: Shape, port: u16) -> io::Result<Self> {
        let mapping = Mapping::shared(fd, shape.bytes(), 0)?;
        let memory = Self {
            mapping,
            shape,
            resident: true,
        };
        memory.initialise(port);
        Ok(memory)
    }

    /// Memory behind a descriptor that the owner of the demux has made a port already.
    pub(crate) fn handed(fd: BorrowedFd<'_>, shape: Shape) -> io::Result<Self> {
        let memory = Self {
            mapping: Mapping::shared(fd, shape.bytes(), 0)?,
            shape,
            resident: true,
        };
        if memory.recognised() {
            Ok(memory)
        } else {
            Err(io::Error::other(
                "the memory is laid out differently: another version of Tautline made it",
            ))
        }
    }

    /// Whether the memory can never be paged out: it is locked, or the kernel's.
    pub(crate) fn is_resident(&self) -> bool {
        self.resident
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
