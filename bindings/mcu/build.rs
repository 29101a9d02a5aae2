//! Compiles the header, wrapped in functions that can be called. Undefined behaviour ends the process, by a trap that
//! needs no library: a test or a fuzz target that meets it fails.

fn main() {
    for file in ["tautline_wire.h", "src/calls.c"] {
        println!("cargo:rerun-if-changed={file}");
    }
    cc::Build::new()
        .file("src/calls.c")
        .include(".")
        .std("c99")
        .opt_level(2)
        .flag("-Wall")
        .flag("-Wextra")
        .flag("-Werror")
        .flag_if_supported("-fsanitize=undefined")
        .flag_if_supported("-fsanitize-undefined-trap-on-error")
        .compile("tautline_mcu_calls");
}
