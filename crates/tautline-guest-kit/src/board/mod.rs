//! The guest's machine: start, clock, console, end and window, as the kit in C has them, and the tasks' stacks.

#![allow(unsafe_code)] // Calls the kit in C, and changes stacks.

#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
mod processor;

mod memory;
mod tasks;
mod value;

use core::ffi::{CStr, c_char};
use core::fmt;
use core::time::Duration;

pub use tasks::{Executive, request_mode, with_monitor};
pub use value::SharedValue;

use crate::error::GuestError;
use crate::window::Window;

// `tautline_guest.h` and `kit.h` of bindings/guest.
unsafe extern "C" {
    fn tlg_print(text: *const c_char);
    safe fn tlg_now_ns() -> u64;
    fn tlg_window(bytes: *mut u64) -> *mut u8;
    safe fn tlg_ring();
    safe fn tlg_set_timer(until_ns: u64);
    safe fn tlg_acknowledge() -> bool;
    safe fn tlg_off() -> !;
    safe fn tlg_reset() -> !;
    fn tlg_fail(why: *const c_char) -> !;
}

/// Time since the virtual machine started.
#[must_use]
pub fn now() -> Duration {
    Duration::from_nanos(tlg_now_ns())
}

/// Switches the guest off.
pub fn off() -> ! {
    tlg_off()
}

/// Starts the guest anew.
pub fn reset() -> ! {
    tlg_reset()
}

/// Ends the guest as failed, with a line on the console.
pub fn fail(why: fmt::Arguments<'_>) -> ! {
    crate::println!("guest: {why}");
    end_as_failed(c"ended")
}

fn end_as_failed(why: &CStr) -> ! {
    // SAFETY: a text with its end.
    unsafe { tlg_fail(why.as_ptr()) }
}

/// Console of the guest: `--console` of `taut guest run`.
pub struct Console;

/// Bytes that go to the console at a time. Lower: more calls. Higher: more stack.
const CHUNK_BYTES: usize = 64;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for chunk in text.as_bytes().chunks(CHUNK_BYTES) {
            let mut ended = [0; CHUNK_BYTES + 1];
            ended[..chunk.len()].copy_from_slice(chunk);
            // SAFETY: a zero follows the text.
            unsafe { tlg_print(ended.as_ptr().cast()) };
        }
        Ok(())
    }
}

/// Joins the window; waits for Linux if need be.
///
/// # Errors
/// [`GuestError::NoWindow`]: there is none, or another version of it.
pub fn join() -> Result<Window<'static>, GuestError> {
    use tautline_shm::vbus::shape::LayoutError;

    let mut bytes = 0;
    // SAFETY: it writes the size of the memory that it finds.
    let memory = unsafe { tlg_window(&raw mut bytes) };
    if memory.is_null() {
        return Err(GuestError::NoWindow(LayoutError {
            field: "bytes",
            value: 0,
        }));
    }
    loop {
        // SAFETY: the virtual machine has this memory for as long as it runs; the kit has mapped it, and nothing else
        // of this program knows where it is.
        match unsafe { Window::join(memory, bytes as usize, || tlg_ring()) } {
            Ok(window) => return Ok(window),
            // Linux is not there yet.
            Err(LayoutError {
                field: "magic",
                value: 0,
            }) => {}
            Err(error) => return Err(GuestError::NoWindow(error)),
        }
    }
}

/// Runs the program: what `program!` calls.
pub fn main(program: fn() -> Result<(), GuestError>) {
    if let Err(error) = program() {
        fail(format_args!("{error}"));
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    processor::mask();
    crate::println!("guest: {info}");
    end_as_failed(c"panic")
}
