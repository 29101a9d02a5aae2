//! The Debian packages of the C interface: the library alone, and what programs are built with.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Files of a package, without directories.
fn files(package: &Path) -> BTreeSet<String> {
    let text = said(Command::new("dpkg-deb").arg("--contents").arg(package));
    let paths = text.lines().filter(|line| !line.starts_with('d'));
    let paths = paths.map(|line| line.split_whitespace().nth(5).unwrap());
    paths.map(|path| path[1..].to_owned()).collect()
}

fn is_there(tool: &str) -> bool {
    Command::new(tool)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

#[test]
fn a_program_finds_what_the_packages_install() {
    for (tool, package) in [
        ("dpkg-shlibdeps", "dpkg-dev"),
        ("strip", "binutils"),
        ("readelf", "binutils"),
        ("pkg-config", "pkgconf"),
    ] {
        if !is_there(tool) {
            return println!("SKIPPED: {tool} is not installed ({package})");
        }
    }
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-packages");
    let _none = fs::remove_dir_all(&scratch); // of the run before
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = std::env::current_exe().unwrap();
    let made = said(
        Command::new(here.join("../../scripts/packages.sh"))
            .arg(built.parent().unwrap())
            .arg(&scratch)
            .args(["libtautline1", "libtautline-dev"])
            .env("DPKG_DEB_COMPRESSOR_TYPE", "none"),
    );
    let packages: Vec<PathBuf> = made.lines().map(PathBuf::from).collect();
    let [library, development] = &packages[..] else {
        panic!("{made}")
    };

    let (of_library, of_development) = (files(library), files(development));
    let both: Vec<_> = of_library.intersection(&of_development).collect();
    assert!(both.is_empty(), "{both:?}");
    let ends_with =
        |files: &BTreeSet<String>, end: &str| files.iter().any(|one| one.ends_with(end));
    for end in [
        "/libtautline.so.1",
        concat!("/libtautline.so.", env!("CARGO_PKG_VERSION")),
        "/copyright",
        "/notices.gz",
    ] {
        assert!(ends_with(&of_library, end), "{end}: {of_library:?}");
    }
    assert!(!ends_with(&of_library, ".h"), "{of_library:?}");
    for end in [
        "/usr/include/tautline.h",
        "/usr/include/tautline.hpp",
        "/usr/include/tautline_tasks.hpp",
        "/usr/include/tautline_vbus.h",
        "/libtautline.so",
        "/libtautline.a",
        "/pkgconfig/tautline.pc",
        "/cmake/Tautline/TautlineConfig.cmake",
        "/cmake/Tautline/TautlineConfigVersion.cmake",
        "/man3/tautline.3.gz",
        "/examples/five_calls.c",
    ] {
        assert!(ends_with(&of_development, end), "{end}: {of_development:?}");
    }
    let field = |name: &str| {
        let mut command = Command::new("dpkg-deb");
        said(command.arg("--field").arg(development).arg(name))
    };
    let same = format!("libtautline1 (= {})", env!("CARGO_PKG_VERSION"));
    assert!(field("Depends").contains(&same), "{}", field("Depends"));

    let image = scratch.join("image");
    for package in &packages {
        said(
            Command::new("dpkg-deb")
                .arg("--extract")
                .arg(package)
                .arg(&image),
        );
    }
    builds_and_runs(&image);
}

/// A program in C, with pkg-config's flags.
fn builds_and_runs(image: &Path) {
    let triple = said(Command::new("dpkg-architecture").arg("-qDEB_HOST_MULTIARCH"));
    let lib = image.join("usr/lib").join(triple.trim());
    let sections = said(
        Command::new("readelf")
            .arg("-SW")
            .arg(lib.join("libtautline.so.1")),
    );
    assert!(!sections.contains(".debug_info"), "{sections}");
    let flags = said(
        Command::new("pkg-config")
            .args(["--cflags", "--libs", "tautline"])
            .env("PKG_CONFIG_LIBDIR", lib.join("pkgconfig"))
            .env("PKG_CONFIG_SYSROOT_DIR", image),
    );
    let program = image.join("version");
    let source = image.join("version.c");
    fs::write(
        &source,
        "#include <stdio.h>\n#include <tautline.h>\nint main(void) { return puts(tautline_version()) < 0; }\n",
    )
    .unwrap();
    said(
        Command::new("cc")
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .args(flags.split_whitespace()),
    );
    let version = said(Command::new(&program).env("LD_LIBRARY_PATH", &lib));
    assert_eq!(version.trim(), env!("CARGO_PKG_VERSION"));
}
