//! Python's buffer protocol, in both directions: bytes of other objects, and views of memory that is lent.
//!
//! The stable ABI has that protocol since Python 3.11 only, and so has PyO3 for it. Its functions, the structure and
//! the two slots of a type are in every interpreter since 3.9 all the same, unchanged, so they are declared here. See
//! `docs/decisions/0057-python-wheel-for-every-version.md`.
#![allow(unsafe_code)] // Calls of Python's C interface, and an object that it lays out.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyType};

use crate::errors::exception;

/// A view of somebody's memory, as Python 3.3 and later lay it out (PEP 3118).
#[repr(C)]
struct View {
    start: *mut c_void,
    object: *mut ffi::PyObject,
    bytes: ffi::Py_ssize_t,
    item_bytes: ffi::Py_ssize_t,
    read_only: c_int,
    dimensions: c_int,
    format: *mut c_char,
    shape: *mut ffi::Py_ssize_t,
    strides: *mut ffi::Py_ssize_t,
    sub_offsets: *mut ffi::Py_ssize_t,
    internal: *mut c_void,
}

/// Contiguous bytes, read only (PyBUF_SIMPLE).
const SIMPLE: c_int = 0;

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut ffi::PyObject, view: *mut View, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut View);
    fn PyBuffer_FillInfo(
        view: *mut View,
        object: *mut ffi::PyObject,
        start: *mut c_void,
        bytes: ffi::Py_ssize_t,
        read_only: c_int,
        flags: c_int,
    ) -> c_int;
}

/// Bytes of an argument: of a `bytes`, or of any object with a contiguous buffer.
pub(crate) enum Bytes<'a> {
    /// Of a `bytes`, which never change.
    Plain(&'a [u8]),
    /// Of another object.
    Held(Held<'a>),
}

/// A buffer of another object, which stays where it is meanwhile.
pub(crate) struct Held<'a> {
    view: View,
    object: PhantomData<&'a ()>,
}

impl<'a> Bytes<'a> {
    #[inline]
    pub(crate) fn of(object: &'a Bound<'_, PyAny>) -> PyResult<Self> {
        match object.cast_exact::<PyBytes>() {
            Ok(bytes) => Ok(Self::Plain(bytes.as_bytes())),
            Err(_) => Held::of(object).map(Self::Held),
        }
    }
}

impl std::ops::Deref for Bytes<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Held(held) => held.bytes(),
        }
    }
}

impl<'a> Held<'a> {
    fn of(object: &'a Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = MaybeUninit::<View>::zeroed();
        // SAFETY: an object, and room for a view of it; the thread holds the interpreter.
        let status = unsafe { PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), SIMPLE) };
        if status != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Self {
            // SAFETY: all zeroes are valid in it, and the call has filled it.
            view: unsafe { view.assume_init() },
            object: PhantomData,
        })
    }

    fn bytes(&self) -> &[u8] {
        match self.view.bytes {
            1.. => {
                // SAFETY: contiguous bytes that the exporter keeps there until the view is released. Another thread may
                // write them meanwhile only while the interpreter is free, and then the message is torn, not more.
                unsafe {
                    std::slice::from_raw_parts(self.view.start.cast(), self.view.bytes as usize)
                }
            }
            _ => &[],
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: filled by `PyObject_GetBuffer`, released once. The thread holds the interpreter, as when it was made:
        // the borrowed object's lifetime is that of a call.
        unsafe { PyBuffer_Release(&raw mut self.view) };
    }
}

/// Keeper of the memory that an exporter shows.
pub(crate) type Keeper = Box<dyn Any + Send>;

/// An object that shows memory of a port to whoever asks for a buffer, and counts them. Python lays it out; every
/// access is by a thread that holds the interpreter.
#[repr(C)]
struct Exporter {
    head: ffi::PyObject,
    start: *mut u8,
    bytes: ffi::Py_ssize_t,
    read_only: c_int,
    /// Views that are not released.
    views: usize,
    /// Null when the memory was given back.
    keeper: *mut Keeper,
}

/// Memory of a port as a Python object.
pub(crate) struct Memory(Py<PyAny>);

/// Memory that a keeper keeps: where it begins, and its length.
pub(crate) struct Extent {
    pub(crate) start: *mut u8,
    pub(crate) bytes: usize,
    pub(crate) read_only: bool,
}

impl Memory {
    /// Shows memory.
    ///
    /// # Safety
    /// The extent is readable, and writable if it says so, for as long as `keeper` lives, wherever that is moved.
    pub(crate) unsafe fn new(py: Python<'_>, extent: Extent, keeper: Keeper) -> PyResult<Self> {
        let class = exporter_class(py)?;
        // SAFETY: a class that was made for `Exporter`; the allocation is zeroed behind its head.
        let object = unsafe { ffi::PyType_GenericAlloc(class.as_type_ptr(), 0) };
        // SAFETY: a new reference, or null with an exception set.
        let object = unsafe { Bound::from_owned_ptr_or_err(py, object) }?;
        let exporter = object.as_ptr().cast::<Exporter>();
        // SAFETY: the object was just made with the size of an `Exporter`, and nobody else has it.
        unsafe {
            (*exporter).start = extent.start;
            (*exporter).bytes = extent.bytes as ffi::Py_ssize_t;
            (*exporter).read_only = extent.read_only.into();
            (*exporter).keeper = Box::into_raw(Box::new(keeper));
        }
        Ok(Self(object.unbind()))
    }

    /// A `memoryview` of it.
    pub(crate) fn view<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: an object with the buffer protocol; the result is a new reference, or null with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyMemoryView_FromObject(self.0.as_ptr())) }
    }

    /// Takes the keeper out; nobody can look at the memory any more. `None` if that was done before.
    pub(crate) fn end(&self, py: Python<'_>) -> PyResult<Option<Keeper>> {
        let exporter = self.exporter(py);
        // SAFETY: see `exporter`; only fields are touched.
        let (views, keeper) = unsafe { ((*exporter).views, (*exporter).keeper) };
        let Some(keeper) = NonNull::new(keeper) else {
            return Ok(None);
        };
        if views > 0 {
            let message = format!("{views} of this message's views are still in use");
            let why = "delete or release them, or copy what you keep; then release the message";
            return Err(PyBufferError::new_err(format!(
                "{message}\n  what to do: {why}"
            )));
        }
        // SAFETY: from `Box::into_raw` in `new`, taken once: it is null from here on.
        Ok(Some(*unsafe {
            (*exporter).keeper = null_mut();
            Box::from_raw(keeper.as_ptr())
        }))
    }

    pub(crate) fn is_kept(&self, py: Python<'_>) -> bool {
        // SAFETY: see `exporter`.
        unsafe { !(*self.exporter(py)).keeper.is_null() }
    }

    /// The object's memory: valid while `self` is, used by one thread at a time, since that holds the interpreter.
    fn exporter(&self, _py: Python<'_>) -> *mut Exporter {
        self.0.as_ptr().cast()
    }
}

/// The class of exporters, which no program can make an object of.
fn exporter_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    const NAME: &CStr = c"tautline._tautline.Memory";
    let make = || {
        let slot = |slot, function| ffi::PyType_Slot {
            slot,
            pfunc: function,
        };
        let mut slots = [
            slot(ffi::Py_bf_getbuffer, export as *mut c_void),
            slot(ffi::Py_bf_releasebuffer, release as *mut c_void),
            slot(ffi::Py_tp_dealloc, deallocate as *mut c_void),
            slot(ffi::Py_tp_new, refuse as *mut c_void),
            slot(0, null_mut()),
        ];
        let mut specification = ffi::PyType_Spec {
            name: NAME.as_ptr(),
            basicsize: size_of::<Exporter>() as c_int,
            itemsize: 0,
            flags: ffi::Py_TPFLAGS_DEFAULT as _,
            slots: slots.as_mut_ptr(),
        };
        // SAFETY: a specification whose name is static and whose slots hold functions of their slots' types; Python
        // copies the rest.
        let class = unsafe { ffi::PyType_FromSpec(&raw mut specification) };
        // SAFETY: a new reference, or null with an exception set.
        let class = unsafe { Bound::from_owned_ptr_or_err(py, class) }?;
        Ok::<_, PyErr>(class.cast_into::<PyType>()?.unbind())
    };
    Ok(CLASS.get_or_try_init(py, make)?.bind(py))
}

unsafe extern "C" fn export(object: *mut ffi::PyObject, view: *mut View, flags: c_int) -> c_int {
    let exporter = object.cast::<Exporter>();
    // SAFETY: Python calls this with an object of the class, a view to fill, and the interpreter held.
    unsafe {
        if (*exporter).keeper.is_null() {
            (*view).object = null_mut();
            given_back(Python::assume_attached()).restore(Python::assume_attached());
            return -1;
        }
        let Exporter {
            start,
            bytes,
            read_only,
            ..
        } = *exporter;
        let status = PyBuffer_FillInfo(view, object, start.cast(), bytes, read_only, flags);
        if status == 0 {
            (*exporter).views += 1;
        }
        status
    }
}

/// The error of who looks at a message that was given back.
pub(crate) fn given_back(py: Python<'_>) -> PyErr {
    let message = "this message was given back: its memory is the port's again";
    let remedy =
        "use it before release() or the end of its `with` block, or keep a copy: bytes(message)";
    exception(py, "ClosedError", message, remedy)
}

unsafe extern "C" fn release(object: *mut ffi::PyObject, _view: *mut View) {
    // SAFETY: Python calls this once for each view that `export` has filled, with the interpreter held.
    unsafe { (*object.cast::<Exporter>()).views -= 1 };
}

unsafe extern "C" fn deallocate(object: *mut ffi::PyObject) {
    // SAFETY: Python calls this when nobody has the object any more, so no view is left, each of which holds it. The
    // memory goes back by the class's own function, and an object of such a class holds its class.
    unsafe {
        let keeper = (*object.cast::<Exporter>()).keeper;
        if !keeper.is_null() {
            drop(Box::from_raw(keeper));
        }
        let class = ffi::Py_TYPE(object);
        let free = ffi::PyType_GetSlot(class, ffi::Py_tp_free);
        if !free.is_null() {
            std::mem::transmute::<*mut c_void, ffi::freefunc>(free)(object.cast());
        }
        ffi::Py_DECREF(class.cast());
    }
}

unsafe extern "C" fn refuse(
    _class: *mut ffi::PyTypeObject,
    _positional: *mut ffi::PyObject,
    _named: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: Python calls this with the interpreter held.
    let py = unsafe { Python::assume_attached() };
    PyTypeError::new_err("memory is lent by ports, not made").restore(py);
    null_mut()
}
