//! Whether a program can have a library loaded into it, and uses the C library's functions.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::elf::{FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind};

use super::library::Library;
use crate::cli::CommandError;

/// Bytes of a program that are read: its headers and notes lie at the beginning. Lower: a Go program's note may be
/// missed. Higher: a large program takes longer to start.
const HEAD_BYTES: u64 = 1 << 20;
/// Scripts whose interpreter is a script. The kernel follows as many.
const SCRIPTS_MAX: usize = 4;
/// Name of the note that Go's linker leaves in every program.
const GO_NOTE: &[u8] = b"Go\0\0";

/// The file of a program.
///
/// # Errors
/// There is no such program.
pub(super) fn file(name: &OsStr) -> Result<PathBuf, CommandError> {
    find(name).ok_or_else(|| not_found(name))
}

/// Reason why a program would run untouched, if there is one.
pub(super) fn check(mut path: PathBuf, library: &Library) -> Option<String> {
    for _ in 0..SCRIPTS_MAX {
        match look(&path, library) {
            Ok(Some(interpreter)) => path = interpreter,
            Ok(None) => return None,
            Err(why) => return Some(why),
        }
    }
    Some("its interpreters are scripts".to_owned())
}

/// A program that is not there, or that this user cannot reach.
fn not_found(name: &OsStr) -> CommandError {
    let path = env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = match name.as_bytes().contains(&b'/') {
        true => vec![PathBuf::from(name)],
        false => env::split_paths(&path)
            .map(|place| place.join(name))
            .collect(),
    };
    let is_hidden = |place: &&PathBuf| {
        fs::metadata(place).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    };
    match places.iter().find(is_hidden) {
        Some(place) => CommandError::failed(
            format!(
                "{} cannot be reached: permission denied",
                plain(place.as_os_str())
            ),
            "let this user enter the directories on the way to it (`namei -l` shows them), or name another program",
        ),
        None => CommandError::failed(
            format!("there is no program {}", plain(name)),
            "name a program that exists and that you may execute",
        ),
    }
}

/// A name of the user's, for a terminal.
pub(super) fn plain(name: &OsStr) -> String {
    tautline_state::text::plain(&name.to_string_lossy(), 200)
}

/// The file that exec(3) would find.
fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let is_program = |path: &PathBuf| {
        fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    env::split_paths(&env::var_os("PATH")?)
        .map(|directory| directory.join(name))
        .find(is_program)
}

/// Looks at a file: the interpreter of a script, nothing for a program that can be taken, or why it cannot.
fn look(path: &Path, library: &Library) -> Result<Option<PathBuf>, String> {
    let file =
        File::open(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    let found = file.metadata().map_err(|error| error.to_string())?;
    let mut head = Vec::new();
    file.take(HEAD_BYTES)
        .read_to_end(&mut head)
        .map_err(|error| error.to_string())?;
    if let Some(rest) = head.strip_prefix(b"#!") {
        return interpreter(rest).map(Some);
    }
    if gains_rights(path, &found) && !library.is_for_setuid() {
        return Err(format!(
            "it has rights that this user has not, and the loader takes no library from there; start it as root, or \
             `{}`",
            library.install()
        ));
    }
    judge(&head).map(|()| None)
}

/// Whether the kernel would give the program another user, group or capability than this process has: AT_SECURE of
/// getauxval(3), at which the loader takes libraries of the system's folders alone. Root gains nothing by
/// capabilities, nor by becoming root.
fn gains_rights(path: &Path, found: &fs::Metadata) -> bool {
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    let is_set = |bit| found.mode() & bit != 0;
    let changes_user = is_set(libc::S_ISUID) && found.uid() != user.as_raw();
    let changes_group = is_set(libc::S_ISGID) && found.gid() != group.as_raw();
    let mut value = [0; 64];
    let mut has_capabilities = || {
        let value = rustix::fs::getxattr(path, c"security.capability", &mut value[..]);
        !user.is_root() && value.is_ok()
    };
    changes_user || changes_group || has_capabilities()
}

/// The program that a script's first line names. `env` names another one.
fn interpreter(rest: &[u8]) -> Result<PathBuf, String> {
    let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty());
    let first = words.next().ok_or("its first line names no interpreter")?;
    let named = match Path::new(OsStr::from_bytes(first)).file_name() {
        Some(name) if name == "env" => words.next().unwrap_or(first),
        _ => first,
    };
    let named = OsStr::from_bytes(named);
    find(named).ok_or_else(|| format!("its interpreter {} is missing", plain(named)))
}

fn judge(head: &[u8]) -> Result<(), String> {
    let unreadable = |_| "its headers cannot be read".to_owned();
    if FileKind::parse(head) != Ok(FileKind::Elf64) {
        return Err("it is not a program for this machine (64-bit ELF)".to_owned());
    }
    let header = FileHeader64::<Endianness>::parse(head).map_err(unreadable)?;
    let endian = header.endian().map_err(unreadable)?;
    let own = match env::consts::ARCH {
        "aarch64" => object::elf::EM_AARCH64,
        _ => object::elf::EM_X86_64,
    };
    if header.e_machine(endian) != own {
        return Err("it is a program for another kind of machine".to_owned());
    }
    let segments = header.program_headers(endian, head).map_err(unreadable)?;
    for segment in segments {
        // Notes beyond the bytes that were read are not Go's, which come first.
        if let Ok(Some(mut notes)) = segment.notes(endian, head) {
            while let Ok(Some(note)) = notes.next() {
                if note.name_bytes() == GO_NOTE || note.name() == b"Go" {
                    return Err(
                        "it is written in Go, which calls the kernel without the C library"
                            .to_owned(),
                    );
                }
            }
        }
    }
    let loader = segments
        .iter()
        .find(|segment| segment.p_type(endian) == PT_INTERP);
    let Some(loader) = loader else {
        return Err("it is statically linked, so no library can be loaded into it".to_owned());
    };
    let loader = loader.data(endian, head).unwrap_or_default();
    if loader.windows(7).any(|part| part == b"ld-musl") {
        return Err("it uses another C library (musl) than this library".to_owned());
    }
    Ok(())
}
