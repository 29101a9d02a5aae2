//! Hands a datagram from a place beside a socket to the program, as the kernel's receive does.
#![allow(unsafe_code)] // Memory of the program.

use std::ffi::{c_int, c_void};

use libc::{MSG_CMSG_CLOEXEC, MSG_PEEK, MSG_TRUNC, iovec, msghdr, sockaddr, socklen_t};

use crate::look::{Place, Taken};

/// Most parts that the kernel takes (UIO_MAXIOV).
const PARTS_MAX: usize = 1024;

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Arguments of a receiving call.
pub(crate) struct Asked {
    parts: Parts,
    name: *mut sockaddr,
    name_bytes: *mut socklen_t,
    message: *mut msghdr,
    /// read(2) and readv(2), which leave the datagram there if they have no room at all.
    is_read: bool,
}

enum Parts {
    One(iovec),
    List(*const iovec, usize),
}

impl Asked {
    /// read(2).
    pub(crate) fn read(buffer: *mut c_void, length: usize) -> Self {
        let no_name = (std::ptr::null_mut(), std::ptr::null_mut());
        Self {
            is_read: true,
            ..Self::receive(buffer, length, no_name)
        }
    }

    /// readv(2).
    pub(crate) fn parts(parts: *const iovec, count: c_int) -> Self {
        Self {
            parts: Parts::List(parts, usize::try_from(count).unwrap_or(usize::MAX)),
            ..Self::read(std::ptr::null_mut(), 0)
        }
    }

    /// recv(2), recvfrom(2).
    pub(crate) fn receive(
        buffer: *mut c_void,
        length: usize,
        (name, name_bytes): (*mut sockaddr, *mut socklen_t),
    ) -> Self {
        Self {
            parts: Parts::One(iovec {
                iov_base: buffer,
                iov_len: length,
            }),
            name,
            name_bytes,
            message: std::ptr::null_mut(),
            is_read: false,
        }
    }

    /// recvmsg(2).
    ///
    /// # Safety
    /// A message that may be written for as long as this is used.
    pub(crate) unsafe fn message(message: *mut msghdr) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                parts: Parts::List((*message).msg_iov, (*message).msg_iovlen),
                name: (*message).msg_name.cast(),
                name_bytes: &raw mut (*message).msg_namelen,
                message,
                is_read: false,
            }
        }
    }

    /// Takes what is in a place. `None`: nothing, or the call is the kernel's to answer.
    ///
    /// # Safety
    /// Arguments as the C library's function asks for.
    pub(crate) unsafe fn take(&self, place: Place, fd: c_int, flags: c_int) -> Option<isize> {
        let parts = match &self.parts {
            Parts::One(part) => std::slice::from_ref(part),
            Parts::List(_, count) if *count > PARTS_MAX => return None,
            Parts::List(_, 0) => &[],
            // SAFETY: the caller's promise.
            Parts::List(parts, count) => unsafe { std::slice::from_raw_parts(*parts, *count) },
        };
        let room = parts
            .iter()
            .fold(0usize, |sum, part| sum.saturating_add(part.iov_len));
        if self.is_read && room == 0 {
            return None;
        }
        // SAFETY: no arguments. The thread may be cancelled here, as in the kernel's call: nothing is held.
        unsafe { pthread_testcancel() };
        let taken = place.take(fd)?;
        let length = taken.bytes().len();
        let copied = length.min(room);
        // SAFETY: the caller's promise.
        unsafe {
            scatter(taken.bytes(), parts);
            self.write_head(&taken, flags, copied < length);
        }
        if flags & MSG_PEEK != 0 {
            taken.put_back();
        }
        Some(match flags & MSG_TRUNC {
            0 => copied as isize,
            _ => length as isize,
        })
    }

    /// Writes the sender, and what recvmsg(2) says of the datagram.
    ///
    /// # Safety
    /// As [`Self::take`].
    unsafe fn write_head(&self, taken: &Taken, flags: c_int, is_cut: bool) {
        if !self.name.is_null() && !self.name_bytes.is_null() {
            let sender = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: taken.source.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(taken.source.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            let bytes = size_of::<libc::sockaddr_in>();
            // SAFETY: the caller's promise: room of that many bytes for a name.
            unsafe {
                let room = (*self.name_bytes as usize).min(bytes);
                (&raw const sender)
                    .cast::<u8>()
                    .copy_to_nonoverlapping(self.name.cast(), room);
                *self.name_bytes = bytes as socklen_t;
            }
        }
        if !self.message.is_null() {
            let cut = if is_cut { MSG_TRUNC } else { 0 };
            // SAFETY: the caller's promise.
            unsafe {
                (*self.message).msg_flags = flags & MSG_CMSG_CLOEXEC | cut;
                (*self.message).msg_controllen = 0;
            }
        }
    }
}

/// Copies bytes into parts, as many as there is room for.
///
/// # Safety
/// Parts that may be written.
unsafe fn scatter(bytes: &[u8], parts: &[iovec]) {
    let mut rest = bytes;
    for part in parts {
        let (now, later) = rest.split_at(part.iov_len.min(rest.len()));
        // SAFETY: the caller's promise; the place is in memory of this library.
        unsafe {
            now.as_ptr()
                .copy_to_nonoverlapping(part.iov_base.cast(), now.len())
        };
        rest = later;
    }
}
