//! Gives the shared library its name for the dynamic linker: programs ask for the interface's
//! version, which changes when a program built before would no longer work.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtautline.so.1");
}
