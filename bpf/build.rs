//! Compiles the BPF programs with clang, if the feature `programs` asks for them. There is no pre-built object in the
//! project, so that the code that runs in the kernel is the code that can be read.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=CLANG");
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_PROGRAMS").is_none() {
        return;
    }
    let sources = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    for entry in std::fs::read_dir(&sources).expect("the package has its sources") {
        let path = entry.expect("the package has its sources").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".h") || name.ends_with(".c") {
            println!("cargo:rerun-if-changed={}", path.display());
        }
        if let Some(program) = name.strip_suffix(".bpf.c") {
            compile(&sources, &name, &out.join(format!("{program}.bpf.o")));
        }
    }
}

/// The same compiler makes the same bytes wherever the sources lie: their directory is not in the object.
fn compile(sources: &Path, source: &str, object: &Path) {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    // For another architecture its own headers may not be installed; the types in asm/ are the same.
    let archs = ["CARGO_CFG_TARGET_ARCH"]
        .map(|name| std::env::var(name).expect("cargo sets it"))
        .into_iter()
        .chain([std::env::consts::ARCH.to_owned()]);
    let status = Command::new(&clang)
        .current_dir(sources)
        .args([
            "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror",
        ])
        .arg("-fdebug-compilation-dir=.")
        // Debian keeps asm/ under the multiarch triple, which the BPF target does not search.
        .args(archs.map(|arch| format!("-I/usr/include/{arch}-linux-gnu")))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(_) => panic!(
            "clang could not compile {}; if a header is missing: apt-get install libbpf-dev linux-libc-dev",
            sources.join(source).display()
        ),
        Err(error) => panic!(
            "cannot run {clang}: {error}; Tautline compiles its kernel side with it: apt-get install clang libbpf-dev"
        ),
    }
}
