//! Tautline's kernel side: the objects of the BPF programs in this package, compiled with clang when the package is
//! built. The crates `tautline` and `tautline-smoother` load them. Packages with programs of their own have
//! [`build_script`] compile them.
//!
//! Each is `None` in a build without the feature `programs`, which needs no clang.

mod compile;

/// Build script of a package whose programs lie in its folder `bpf`: compiles them, with the headers of this package,
/// if its feature `bpf` asks for them.
///
/// # Panics
/// clang is missing, or cannot compile a program. The message says what to install.
pub fn build_script() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_BPF").is_some() {
        let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
        let sources = std::path::Path::new(&package).join("bpf");
        compile::compile(&sources, env!("CARGO_MANIFEST_DIR").as_ref());
    }
}

/// Object that the build script of the calling package has compiled; `None` without that package's feature `$feature`.
#[macro_export]
macro_rules! object {
    ($feature:literal, $name:literal) => {{
        #[cfg(feature = $feature)]
        {
            /// The loader reads the object in place, so it begins where an ELF header may.
            #[repr(C, align(32))]
            struct Aligned<T: ?Sized>(T);
            static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(
                env!("OUT_DIR"),
                "/",
                $name,
                ".bpf.o"
            )));
            Some(&OBJECT.0)
        }
        #[cfg(not(feature = $feature))]
        {
            None
        }
    }};
}

/// The demux, in the driver's receive loop (XDP).
pub static DEMUX: Option<&[u8]> = object!("programs", "demux");

/// The demux, at traffic control.
pub static DEMUX_TC: Option<&[u8]> = object!("programs", "demux_tc");

/// Program on the taps of a control process: what its clients may send.
pub static SEND: Option<&[u8]> = object!("programs", "send");

/// Program of link `xsk`: hands the frames of open ports to AF_XDP sockets.
pub static XSK: Option<&[u8]> = object!("programs", "xsk");

/// The smoother's programs.
pub static SMOOTHER: Option<&[u8]> = object!("programs", "smoother");

/// Hands a datagram to a thread that looks, past the stack (`taut exec`).
pub static LOOK: Option<&[u8]> = object!("programs", "look");

/// Byte layout that both sides share, `tautline.h`.
pub const HEADER: &str = include_str!("../tautline.h");
