//! Compiles the BPF programs of this package, if the feature `programs` asks for them.

#[path = "src/compile.rs"]
mod compile;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_PROGRAMS").is_some() {
        let sources = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
        compile::compile(sources.as_ref(), ".".as_ref());
    }
}
