//! Compiles BPF programs with clang, for build scripts. There is no pre-built object in the project, so that the code
//! that runs in the kernel is the code that can be read.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles every `*.bpf.c` of a directory into cargo's `OUT_DIR`, with headers of that directory and of `headers`.
///
/// # Panics
/// clang is missing, or cannot compile a program. The message says what to install.
pub(crate) fn compile(sources: &Path, headers: &Path) {
    println!("cargo:rerun-if-env-changed=CLANG");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    for entry in std::fs::read_dir(sources).expect("the package has its sources") {
        let path = entry.expect("the package has its sources").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".h") || name.ends_with(".c") {
            println!("cargo:rerun-if-changed={}", path.display());
        }
        if let Some(program) = name.strip_suffix(".bpf.c") {
            let object = out.join(format!("{program}.bpf.o"));
            compile_one((sources, headers), &name, &object);
        }
    }
}

/// The directory of the sources is not in the object, so the same compiler makes the same bytes wherever they lie.
fn compile_one((sources, headers): (&Path, &Path), source: &str, object: &Path) {
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
        .arg("-I")
        .arg(headers)
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
