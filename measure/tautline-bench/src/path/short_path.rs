//! Kernel UDP under `taut exec --interface`: the calls of the library that it loads into a program, on the sockets of
//! [`udp`]. The benchmark is one program with two ends, so it loads two copies: each is to its end what the library is
//! to a program of its own, with that end's interface.
#![allow(unsafe_code)] // Calls functions of a library that is loaded by name.

use std::ffi::{CStr, CString, c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use libc::timespec;
use rustix::fs::{MemfdFlags, memfd_create};
use tautline::link::ShortPath;
use tautline_awake::exec::{LIBRARY, SHORT_PATH_VARIABLE, library_of, short_path};
use tautline_awake::raw;
use tautline_testbed::hosts::{Host, Hosts};

use super::sides::Sides;
use super::udp::{self, KernelUdp};
use super::{Arrival, End, PathError, Waiting, is_nothing_yet};

type ReceiveCall = unsafe extern "C-unwind" fn(c_int, *mut c_void, usize, c_int) -> isize;
type SendCall = unsafe extern "C-unwind" fn(c_int, *const c_void, usize, c_int) -> isize;
type SleepCall = unsafe extern "C-unwind" fn(*const timespec, *mut timespec) -> c_int;

/// One end whose datagrams come past the kernel's stack while it is awake for them.
pub struct ShortPathUdp {
    udp: KernelUdp,
    library: Library,
    /// On the interface as long as this is open.
    _attached: ShortPath,
}

/// Both ends on a cable of their own.
pub fn pair(hosts: &Hosts, cable: usize, port: u16) -> Result<[ShortPathUdp; 2], PathError> {
    let open = |host: Host, udp: KernelUdp| -> Result<ShortPathUdp, PathError> {
        let interface = hosts.end(host, cable).interface();
        let attached = hosts.inside(host, || ShortPath::attach(&interface))??;
        let library = Library::load(&attached)?;
        Ok(ShortPathUdp {
            udp,
            library,
            _attached: attached,
        })
    };
    let [a, b] = udp::pair(Sides::Hosts(hosts, cable), port, Waiting::Awake)?;
    Ok([open(Host::A, a)?, open(Host::B, b)?])
}

impl End for ShortPathUdp {
    fn send(&mut self, message: &[u8]) -> io::Result<bool> {
        self.library.send(self.udp.socket().as_raw_fd(), message)
    }

    fn send_back(&mut self) -> io::Result<bool> {
        self.library
            .send(self.udp.socket().as_raw_fd(), self.udp.message())
    }

    fn take(&mut self, _bytes: usize) -> io::Result<Option<Arrival>> {
        self.receive(libc::MSG_DONTWAIT)
    }

    fn message(&self) -> &[u8] {
        self.udp.message()
    }

    fn wait(&mut self, _bytes: usize, limit: Duration) -> io::Result<Option<Arrival>> {
        self.udp.limit_waits(limit)?;
        self.receive(0)
    }

    fn sleep_until(&mut self, due: Instant) {
        let left = raw::timespec_of(due.saturating_duration_since(Instant::now()));
        // SAFETY: nanosleep(2) of the library: a time, and no place for the rest of it.
        unsafe { (self.library.nanosleep)(&raw const left, std::ptr::null_mut()) };
    }
}

impl ShortPathUdp {
    fn receive(&mut self, flags: c_int) -> io::Result<Option<Arrival>> {
        let descriptor = self.udp.socket().as_raw_fd();
        let receive = self.library.recv;
        // SAFETY: recv(2) of the library: an open socket, and memory that it may write.
        let call = |buffer: &mut [u8]| unsafe {
            receive(descriptor, buffer.as_mut_ptr().cast(), buffer.len(), flags)
        };
        self.udp.receive_by(|buffer| result_of(call(buffer)))
    }
}

fn result_of(returned: isize) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}

/// A copy of the library of `taut exec`. It stays loaded until this program ends.
struct Library {
    recv: ReceiveCall,
    send: SendCall,
    nanosleep: SleepCall,
}

impl Library {
    /// Loads a new copy for what is attached to an interface.
    fn load(attached: &ShortPath) -> Result<Library, PathError> {
        let failed = |error: &dyn std::fmt::Display| PathError::Library(error.to_string());
        let own = std::env::current_exe().ok();
        let file = own
            .and_then(|own| library_of(own.parent()?))
            .ok_or_else(|| failed(&format_args!("{LIBRARY} is not next to this program")))?;
        // Its code runs here, perhaps as root.
        let file = tautline_state::trusted_file(&file)?;
        // The loader takes one file for one library, however often it is loaded.
        let copy = memfd_create("taut-exec", MemfdFlags::CLOEXEC);
        let mut copy = File::from(copy.map_err(|error| failed(&error))?);
        let bytes = File::open(file).and_then(|mut file| io::copy(&mut file, &mut copy));
        bytes.map_err(|error| failed(&error))?;
        let name = CString::new(format!("/proc/self/fd/{}", copy.as_raw_fd()))
            .expect("a number holds no zero byte");
        // SAFETY: threads of this program read the environment by the standard library alone, which locks it. The
        // library, which has locks of its own, reads it in this thread, while it is loaded.
        unsafe { std::env::set_var(SHORT_PATH_VARIABLE, word_for(attached)) };
        // SAFETY: the library's initialisation asks for nothing of the program that loads it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        // SAFETY: as above.
        unsafe { std::env::remove_var(SHORT_PATH_VARIABLE) };
        let found = |name: &CStr| {
            let address = match handle.is_null() {
                true => handle,
                // SAFETY: an open library, and a name.
                false => unsafe { libc::dlsym(handle, name.as_ptr()) },
            };
            match address.is_null() {
                true => Err(failed(&loader_error())),
                false => Ok(address),
            }
        };
        // SAFETY: the library has these functions with the C library's signatures.
        unsafe {
            Ok(Library {
                recv: std::mem::transmute::<*mut c_void, ReceiveCall>(found(c"recv")?),
                send: std::mem::transmute::<*mut c_void, SendCall>(found(c"send")?),
                nanosleep: std::mem::transmute::<*mut c_void, SleepCall>(found(c"nanosleep")?),
            })
        }
    }

    fn send(&self, descriptor: c_int, message: &[u8]) -> io::Result<bool> {
        // SAFETY: send(2) of the library: an open socket, and memory to read.
        let sent = unsafe { (self.send)(descriptor, message.as_ptr().cast(), message.len(), 0) };
        match result_of(sent) {
            Ok(_) => Ok(true),
            Err(error) if is_nothing_yet(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Descriptors, address and kind of the interface, as the library reads them.
fn word_for(attached: &ShortPath) -> String {
    let [places, ports, sockets, _link] = &attached.descriptors;
    let numbers = [places, ports, sockets].map(AsRawFd::as_raw_fd);
    short_path(numbers, attached.address, attached.is_virtual)
}

/// Reason of the loader's last failure.
fn loader_error() -> String {
    // SAFETY: no arguments.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "it lacks a function".to_owned();
    }
    // SAFETY: the loader's text ends with a zero byte, and stays until the next call of this thread.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
