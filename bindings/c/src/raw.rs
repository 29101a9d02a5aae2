//! Raw ports: whole Ethernet frames. What they share with other ports is in [`crate::port`].
#![allow(unsafe_code)] // Exported functions that take pointers.

use std::ffi::{c_int, c_void};

use tautline::port::RawOptions;
use tautline::{EtherType, Instant, Wait};

use crate::border::{Fault, coded};
use crate::code::Code;
use crate::node::node;
use crate::pointer::{self, Out, Outgoing};
use crate::port::{Kind, enter, opened, set, set_spin};
use crate::types::{
    TAUTLINE_NOW, tautline_frame, tautline_node, tautline_port, tautline_raw_options,
};

/// Opens a raw port.
///
/// # Safety
/// `options` is null or points to options; `port` is null or a port can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_raw_port_open(
    node: tautline_node,
    ethertype: u16,
    options: *const tautline_raw_options,
    port: *mut tautline_port,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let (given, out) = unsafe { (pointer::optional(options)?, Out::new(port)?) };
        let node = self::node(node)?;
        let ethertype = EtherType::new(ethertype)
            .map_err(|error| Fault::new(Code::BadOptions, error.to_string()))?;
        let mut options = RawOptions::default();
        if let Some(given) = given {
            set(&mut options.depth, given.depth);
            set_spin(&mut options.spin, given.spin_ns);
        }
        let port = node.raw(ethertype).options(&options).open()?;
        opened(Kind::Raw(port), node, out)
    })
}

/// Sends a frame as it is.
///
/// # Safety
/// `frame` is null or `bytes` bytes can be read there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_send_frame(
    port: tautline_port,
    frame: *const c_void,
    bytes: usize,
) -> c_int {
    coded(|| {
        let frame = Outgoing::new(frame, bytes)?;
        let mut entered = enter(port.id)?;
        // SAFETY: the caller's promise. The kernel copies it, and C does not see the slice.
        entered.raw()?.send(unsafe { frame.read() }?)?;
        Ok(0)
    })
}

/// Receives the most urgent frame, and waits for one until a deadline.
///
/// # Safety
/// `buffer` is null or has room for `bytes` bytes; `frame` is null or the struct can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tautline_receive_frame(
    port: tautline_port,
    deadline_ns: u64,
    buffer: *mut c_void,
    bytes: usize,
    frame: *mut tautline_frame,
) -> c_int {
    coded(|| {
        // SAFETY: the caller's promise.
        let (buffer, out) = unsafe { (pointer::buffer(buffer, bytes)?, Out::new(frame)?) };
        let mut entered = enter(port.id)?;
        let port = entered.raw()?;
        let received = match deadline_ns {
            TAUTLINE_NOW => port.receive_into(buffer, Wait::Poll)?,
            _ => port.receive_into(buffer, Wait::Until(Instant::from_nanos(deadline_ns)))?,
        };
        Ok(match received {
            Some(received) => {
                out.put(received.into());
                1
            }
            None => 0,
        })
    })
}
