//! The same compiler makes the same BPF objects, byte for byte, wherever the sources lie: a user who has the sources
//! can tell whether an object was made of them.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Objects of this build.
fn built() -> [(&'static str, Option<&'static [u8]>); 6] {
    [
        ("demux.bpf.o", tautline_bpf::DEMUX),
        ("demux_tc.bpf.o", tautline_bpf::DEMUX_TC),
        ("send.bpf.o", tautline_bpf::SEND),
        ("xsk.bpf.o", tautline_bpf::XSK),
        ("smoother.bpf.o", tautline_bpf::SMOOTHER),
        ("look.bpf.o", tautline_bpf::LOOK),
    ]
}

#[test]
fn a_copy_of_the_sources_makes_the_same_objects() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let copy = tautline_state::TemporaryDirectory::make("tautline-bpf").unwrap();
    for directory in ["bpf", "scripts"] {
        fs::create_dir(copy.path().join(directory)).unwrap();
    }
    let script = "scripts/bpf-objects.sh";
    fs::copy(root.join(script), copy.path().join(script)).unwrap();
    for entry in fs::read_dir(root.join("bpf")).unwrap() {
        let source = entry.unwrap().path();
        if source.is_dir() {
            continue;
        }
        let name = source.file_name().unwrap();
        fs::copy(&source, copy.path().join("bpf").join(name)).unwrap();
    }
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let made = Command::new(copy.path().join(script))
        .arg(copy.path().join("objects"))
        .arg(&clang)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let of_clang = copy.path().join("objects").join(
        Path::new(&clang)
            .file_name()
            .expect("the compiler has a name"),
    );
    for (name, built) in built() {
        let again = fs::read(of_clang.join(name)).unwrap();
        assert!(Some(&*again) == built, "{name} has other bytes");
    }
}
