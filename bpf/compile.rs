// Compiles a BPF program with clang: shared by the build scripts of the crates that load one. There is no pre-built
// object in the project, so that the code that runs in the kernel is the code that can be read.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Headers beside the programs.
const HEADERS: [&str; 9] = [
    "tautline.h",
    // Included by the demux for traffic control.
    "demux.bpf.c",
    "fragment.bpf.h",
    "hook.bpf.h",
    "ip.bpf.h",
    "load.bpf.h",
    "node.bpf.h",
    "tap.bpf.h",
    "udp.bpf.h",
];

/// Compiles programs of `bpf/` into the output directory of the crate.
pub(crate) fn compile_all(programs: &[&str]) {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let sources = root.join("../../bpf");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo:rerun-if-env-changed=CLANG");
    for header in HEADERS {
        let header = sources.join(header);
        println!("cargo:rerun-if-changed={}", header.display());
    }
    for program in programs {
        let source = format!("{program}.bpf.c");
        println!("cargo:rerun-if-changed={}", sources.join(&source).display());
        compile(&sources, &source, &out.join(format!("{program}.bpf.o")));
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
