//! Kernel modules for guests: out of a kernel's packages, with those that they need, in the order of their loading.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use super::archive::{partial, run, take_name, unpack};
use super::{KernelsError, archive};

/// File with the modules' names in the order of their loading, one a line.
const ORDER: &str = "order";

/// The modules of these names in the packages of a kernel, uncompressed, each after those that it depends on. A name
/// that no package has is left out: that module may be built in.
pub fn modules(
    packages: &[PathBuf],
    names: &[&str],
    cache: &Path,
) -> Result<Vec<PathBuf>, KernelsError> {
    let Some(first) = packages.first() else {
        return Ok(Vec::new());
    };
    let stem = first.file_stem().unwrap_or_default().to_string_lossy();
    let hash = Sha256::digest(names.join(" "));
    let directory = cache
        .join("kernels")
        .join(format!("{stem}.modules-{:02x}{:02x}", hash[0], hash[1]));
    if !directory.join(ORDER).exists() {
        let partial = partial(&directory)?;
        let filled = fill(packages, names, &partial).and_then(|()| take_name(&partial, &directory));
        if let Err(error) = filled {
            let _ = fs::remove_dir_all(&partial); // the error in hand is the one that matters
            return Err(error);
        }
    }
    let order = directory.join(ORDER);
    let order = fs::read_to_string(&order).map_err(KernelsError::file(&order))?;
    Ok(order
        .lines()
        .map(|name| directory.join(format!("{name}.ko")))
        .collect())
}

/// Whether a file of [`modules`] is the module of this name.
pub fn is_of(file: &Path, name: &str) -> bool {
    let stem = file.file_stem().unwrap_or_default();
    stem.to_string_lossy() == plain(name)
}

/// A module's place in a guest.
pub fn place(module: &Path) -> PathBuf {
    Path::new("/modules").join(module.file_name().unwrap_or_default())
}

fn fill(packages: &[PathBuf], names: &[&str], into: &Path) -> Result<(), KernelsError> {
    let all = into.join("all");
    fs::create_dir(&all).map_err(KernelsError::file(&all))?;
    for package in packages {
        unpack(package, &all, &["*.ko", "*.ko.*"])?;
    }
    let mut files = BTreeMap::new();
    index(&all, &mut files)?;
    let mut order = Vec::new();
    for name in names {
        add(&plain(name), &files, into, &mut order)?;
    }
    fs::remove_dir_all(&all).map_err(KernelsError::file(&all))?;
    let path = into.join(ORDER);
    fs::write(&path, order.join("\n")).map_err(KernelsError::file(&path))
}

/// The modules below a directory, by name.
fn index(directory: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<(), KernelsError> {
    for entry in fs::read_dir(directory).map_err(KernelsError::file(directory))? {
        let entry = entry.map_err(KernelsError::file(directory))?;
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            index(&path, files)?;
        } else if let Some((name, _)) = entry.file_name().to_string_lossy().split_once(".ko") {
            files.insert(plain(name), path);
        }
    }
    Ok(())
}

/// File names have dashes where the kernel has underscores, sometimes.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

fn add(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    into: &Path,
    order: &mut Vec<String>,
) -> Result<(), KernelsError> {
    if order.iter().any(|added| added == name) {
        return Ok(());
    }
    let Some(file) = files.get(name) else {
        return Ok(());
    };
    let content = uncompressed(file)?;
    for needed in dependencies(&content) {
        add(&needed, files, into, order)?;
    }
    let path = into.join(format!("{name}.ko"));
    fs::write(&path, content).map_err(KernelsError::file(&path))?;
    order.push(name.to_owned());
    Ok(())
}

fn uncompressed(file: &Path) -> Result<Vec<u8>, KernelsError> {
    let extension = file.extension().unwrap_or_default().to_string_lossy();
    let tool = match &*extension {
        "xz" => archive::require("xz", "xz-utils")?,
        "zst" => archive::require("zstd", "zstd")?,
        _ => return fs::read(file).map_err(KernelsError::file(file)),
    };
    let mut command = Command::new(tool);
    command.arg("-dc").arg(file);
    run(command)
}

/// The names after `depends=` in a module's `.modinfo`, which is a row of NUL-terminated strings.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|bytes| bytes == KEY) else {
        return Vec::new();
    };
    let rest = &module[at + KEY.len()..];
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
    String::from_utf8_lossy(&rest[..end])
        .split(',')
        .filter(|name| !name.is_empty())
        .map(plain)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_those_that_it_needs() {
        let directory = std::env::temp_dir().join(format!("taut-modules-{}", std::process::id()));
        let all = directory.join("all/net");
        fs::create_dir_all(&all).unwrap();
        for (name, depends) in [
            ("igb", "dca,i2c-algo-bit"),
            ("i2c-algo-bit", ""),
            ("dca", ""),
        ] {
            let text = format!("ELF\0license=GPL\0depends={depends}\0name={name}\0");
            fs::write(all.join(format!("{name}.ko")), text).unwrap();
        }
        let mut files = BTreeMap::new();
        index(&directory, &mut files).unwrap();
        let mut order = Vec::new();
        for name in ["igb", "dca", "not_there"] {
            add(name, &files, &directory, &mut order).unwrap();
        }
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(order, ["dca", "i2c_algo_bit", "igb"]);
        assert_eq!(dependencies(b"\0depends="), [""; 0]);
    }
}
