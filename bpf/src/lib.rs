//! Tautline's kernel side: the objects of the BPF programs in this package, compiled with clang when the package is
//! built. The crates `tautline`, `tautline-smoother`, `tautline-bench` and `tautline-testbed` load them.
//!
//! Each is `None` in a build without the feature `programs`, which needs no clang.

/// Contents of an object. The loader reads it in place, so it begins where an ELF header may.
#[cfg(feature = "programs")]
#[repr(C, align(32))]
struct Aligned<T: ?Sized>(T);

#[cfg(feature = "programs")]
macro_rules! object {
    ($name:literal) => {{
        static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(
            env!("OUT_DIR"),
            "/",
            $name,
            ".bpf.o"
        )));
        Some(&OBJECT.0)
    }};
}

#[cfg(not(feature = "programs"))]
macro_rules! object {
    ($name:literal) => {
        None
    };
}

/// The demux, in the driver's receive loop (XDP).
pub static DEMUX: Option<&[u8]> = object!("demux");

/// The demux, at traffic control.
pub static DEMUX_TC: Option<&[u8]> = object!("demux_tc");

/// Program on the taps of a control process: what its clients may send.
pub static SEND: Option<&[u8]> = object!("send");

/// Program of link `xsk`: hands the frames of open ports to AF_XDP sockets.
pub static XSK: Option<&[u8]> = object!("xsk");

/// The smoother's programs.
pub static SMOOTHER: Option<&[u8]> = object!("smoother");

/// Fastest echo that the machine allows, for benchmarks.
pub static FLOOR: Option<&[u8]> = object!("floor");

/// The same at traffic control.
pub static FLOOR_TC: Option<&[u8]> = object!("floor_tc");

/// Port of a simulated switch, for tests and experiments.
pub static SWITCH_PORT: Option<&[u8]> = object!("switch_port");

/// Byte layout that both sides share, `tautline.h`.
pub const HEADER: &str = include_str!("../tautline.h");
