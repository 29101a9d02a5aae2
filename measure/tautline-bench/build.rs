//! Compiles the programs of the floor, if the feature `bpf` asks for it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_BPF").is_some() {
        let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
        let sources = std::path::Path::new(&package).join("bpf");
        tautline_bpf::compile(&sources, tautline_bpf::HEADERS.as_ref());
    }
}
