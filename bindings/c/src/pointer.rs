//! Arguments from C, checked as far as possible: not null, aligned, a length that a buffer can have. `name` is that of
//! the parameter or member in the header, for the error's text.
#![allow(unsafe_code)] // Pointers from C are followed here, and only here.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::border::Fault;
use crate::code::Code;

/// A text.
///
/// # Safety
/// `text` is null or points to a text that ends with a zero byte and stays for `'a`.
pub(crate) unsafe fn text<'a>(name: &'static str, text: *const c_char) -> Result<&'a str, Fault> {
    if text.is_null() {
        return Err(Fault::null(name));
    }
    // SAFETY: not null; that it ends with a zero byte and stays is the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| Fault::argument(name, "is not UTF-8"))
}

/// Bytes to read. Null is an empty buffer if the length says so.
///
/// # Safety
/// `start` is null, or `bytes` bytes from it can be read and are not written during `'a`.
pub(crate) unsafe fn bytes<'a>(
    name: &'static str,
    start: *const c_void,
    bytes: usize,
) -> Result<&'a [u8], Fault> {
    check_buffer(name, start, bytes)?;
    if bytes == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null, of a length that a buffer can have; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), bytes) })
}

/// Bytes to send, which may lie in the very buffer that they are sent from.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing {
    name: &'static str,
    start: *const c_void,
    bytes: usize,
}

impl Outgoing {
    /// Checks what can be checked. Null is an empty message if the length says so.
    pub(crate) fn new(
        name: &'static str,
        start: *const c_void,
        bytes: usize,
    ) -> Result<Self, Fault> {
        check_buffer(name, start, bytes)?;
        Ok(Self { name, start, bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where in `buffer` it lies; `None` if it does not.
    pub(crate) fn offset_in(&self, buffer: &[u8]) -> Result<Option<usize>, Fault> {
        let (start, first) = (self.start.addr(), buffer.as_ptr().addr());
        let end = first + buffer.len();
        if self.bytes == 0 || start >= end || start.saturating_add(self.bytes) <= first {
            return Ok(None);
        }
        // Part of it is the buffer, and part is not the caller's to send.
        if start < first || self.bytes > end - start {
            return Err(
                Fault::new(Code::BadArgument, "the message leaves the send buffer")
                    .with_errno(libc::EFAULT),
            );
        }
        Ok(Some(start - first))
    }

    /// The bytes.
    ///
    /// # Safety
    /// They are null, or can be read and are written by nobody during `'a`.
    pub(crate) unsafe fn read<'a>(self) -> Result<&'a [u8], Fault> {
        // SAFETY: the caller's promise.
        unsafe { bytes(self.name, self.start, self.bytes) }
    }
}

/// A buffer to fill. Null is an empty buffer if the length says so.
///
/// # Safety
/// `start` is null, or `bytes` bytes from it can be written and nobody else uses them during `'a`.
pub(crate) unsafe fn buffer<'a>(
    name: &'static str,
    start: *mut c_void,
    bytes: usize,
) -> Result<&'a mut [u8], Fault> {
    check_buffer(name, start, bytes)?;
    if bytes == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not null, of a length that a buffer can have; the rest is the caller's promise. C
    // need not have written to it: every byte is a valid `u8`, and the library only writes.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), bytes) })
}

fn check_buffer(name: &'static str, start: *const c_void, bytes: usize) -> Result<(), Fault> {
    if bytes > isize::MAX as usize {
        return Err(Fault::argument(name, "is larger than a buffer can be"));
    }
    if start.is_null() && bytes > 0 {
        return Err(Fault::null(name));
    }
    Ok(())
}

/// A struct to read, copied.
///
/// # Safety
/// `place` is null or points to a `T`.
pub(crate) unsafe fn value<T: Copy>(name: &'static str, place: *const T) -> Result<T, Fault> {
    check_place(name, place)?;
    // SAFETY: not null and aligned; that it points to a `T` is the caller's promise.
    Ok(unsafe { place.read() })
}

/// Structs to read, one after the other. Null is none if the count says so.
///
/// # Safety
/// `first` is null, or `count` of them can be read from there, and are not written during `'a`.
pub(crate) unsafe fn values<'a, T: Copy>(
    name: &'static str,
    first: *const T,
    count: usize,
) -> Result<&'a [T], Fault> {
    if count == 0 {
        return Ok(&[]);
    }
    check_place(name, first)?;
    check_buffer(name, first.cast(), count.saturating_mul(size_of::<T>()))?;
    // SAFETY: not null, aligned, of a length that a buffer can have; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// A place for a result, checked before the work is done.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// A place that must be there.
    ///
    /// # Safety
    /// `place` is null, or a `T` can be written there for as long as this lives.
    pub(crate) unsafe fn new(name: &'static str, place: *mut T) -> Result<Self, Fault> {
        check_place(name, place)?;
        Ok(Self(place))
    }

    /// Writes the result.
    pub(crate) fn put(self, value: T) {
        // SAFETY: checked in `new`; that a `T` can be written there is what its caller promised.
        unsafe { self.0.write(value) };
    }
}

fn check_place<T>(name: &'static str, place: *const T) -> Result<(), Fault> {
    if place.is_null() {
        return Err(Fault::null(name));
    }
    if !place.is_aligned() {
        return Err(Fault::argument(name, "is misaligned"));
    }
    Ok(())
}

/// A CPU by its number; -1 stands for any.
pub(crate) fn cpu(number: c_int) -> Result<Option<usize>, Fault> {
    match number {
        -1 => Ok(None),
        number => usize::try_from(number)
            .map(Some)
            .map_err(|_| Fault::new(Code::BadArgument, "a CPU is -1 for any, or from 0 up")),
    }
}

/// Writes a text and its end into a buffer as `snprintf` does; bytes of the whole text.
pub(crate) fn put_text(text: &[u8], buffer: &mut [u8]) -> usize {
    if let Some(room) = buffer.len().checked_sub(1) {
        let bytes = text.len().min(room);
        buffer[..bytes].copy_from_slice(&text[..bytes]);
        buffer[bytes] = 0;
    }
    text.len()
}
