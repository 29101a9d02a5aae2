//! Attempts of another user on directories, files and journals. The other user is 65534, in child processes; the
//! tests run as root and are skipped without it.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode};
use tautline_state::journal::{Journal, JournalError};
use tautline_state::{
    Directory, EntryKind, Existing, Others, Owner, StateError, TemporaryDirectory, append,
    check_place, create, open_regular, read_text, write_whole,
};

const STRANGER: u32 = 65_534;

/// Runs a line of shell as the stranger.
fn as_stranger(line: &str, directory: &Path) {
    let status = Command::new("sh")
        .args(["-ec", line])
        .current_dir(directory)
        .uid(STRANGER)
        .gid(STRANGER)
        .status()
        .unwrap();
    assert!(status.success(), "{line}");
}

/// A directory where everybody may write, as `/tmp` is. Dropped, it goes with all that strangers made in it, which a
/// [`TemporaryDirectory`] leaves alone.
struct Public(TemporaryDirectory);

impl Deref for Public {
    type Target = TemporaryDirectory;

    fn deref(&self) -> &TemporaryDirectory {
        &self.0
    }
}

impl Drop for Public {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.path()); // the rest of a failed test does no harm
    }
}

fn public(sticky: bool) -> Option<Public> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, to be two users");
        return None;
    }
    let made = TemporaryDirectory::make("taut-strangers").unwrap();
    let mode = if sticky { 0o1777 } else { 0o777 };
    made.directory().set_access(mode, None).unwrap();
    Some(Public(made))
}

/// Has a call refused with an error of this kind.
macro_rules! assert_refused {
    ($call:expr, $kind:ident) => {
        let refused = $call.map(drop).unwrap_err();
        assert!(matches!(refused, StateError::$kind { .. }), "{refused}");
    };
}

fn below(made: &Public, name: &str) -> std::path::PathBuf {
    made.path().join(name)
}

#[test]
fn a_directory_that_a_stranger_made_first_is_refused() {
    let Some(public) = public(true) else { return };
    as_stranger("mkdir bus; mkdir -p deep/bus", public.path());
    for path in ["bus", "deep/bus", "deep/bus/more"] {
        let refused = Directory::make(&below(&public, path), 0o700).unwrap_err();
        let StateError::ForeignOwner { owner, .. } = refused else {
            panic!("{path}: {refused}");
        };
        assert_eq!(owner, STRANGER);
    }
    let mode = std::fs::metadata(below(&public, "bus")).unwrap().mode();
    assert_eq!(
        mode & 0o777,
        0o755,
        "a stranger's directory is left as it is"
    );
}

#[test]
fn no_link_is_followed_on_the_way_to_a_directory() {
    let Some(public) = public(true) else { return };
    let target = TemporaryDirectory::make("taut-target").unwrap();
    std::fs::create_dir(target.path().join("bus")).unwrap();
    let link = format!("ln -s {} link", target.path().display());
    as_stranger(&link, public.path());
    for path in ["link", "link/bus", "link/new"] {
        assert_refused!(Directory::make(&below(&public, path), 0o700), SymbolicLink);
        assert_refused!(Directory::open(&below(&public, path)), SymbolicLink);
    }
    assert!(!target.path().join("new").exists());
}

#[test]
fn a_directory_that_others_can_write_must_be_sticky() {
    let Some(public) = public(false) else { return };
    let refused = Directory::open(public.path()).unwrap_err();
    assert!(
        matches!(refused, StateError::WritableByOthers { mode: 0o777, .. }),
        "{refused}"
    );
    assert_refused!(
        Directory::make(&below(&public, "new"), 0o700),
        WritableByOthers
    );
    assert!(!below(&public, "new").exists());
}

#[test]
fn modes_do_not_depend_on_the_mask() {
    let Some(public) = public(true) else { return };
    let made = Directory::make(&below(&public, "bus"), 0o1775).unwrap();
    assert_eq!(made.mode().unwrap(), 0o1775);
    let (inner, is_new) = made.make_below("inner", 0o711, Owner::SelfOrRoot).unwrap();
    assert!(is_new);
    assert_eq!(inner.mode().unwrap(), 0o711);
    let (_, is_new) = made.make_below("inner", 0o700, Owner::SelfOrRoot).unwrap();
    assert!(!is_new);
    assert_eq!(inner.mode().unwrap(), 0o711, "made once, changed never");
    inner.set_access(0o750, Some(STRANGER)).unwrap();
    let found = std::fs::metadata(below(&public, "bus/inner")).unwrap();
    assert_eq!((found.mode() & 0o777, found.gid()), (0o750, STRANGER));
}

#[test]
fn files_of_strangers_links_and_pipes_are_not_read() {
    let Some(public) = public(true) else { return };
    let directory = Directory::open(public.path()).unwrap();
    as_stranger(
        "echo forged > file; ln -s /etc/hostname link; mkfifo pipe",
        public.path(),
    );
    directory.write("own", b"true", 0o600).unwrap();
    assert_eq!(directory.read("own", 4).unwrap(), b"true");
    let read = |name: &str| directory.read(name, 4096);
    assert_refused!(read("file"), ForeignOwner);
    assert_refused!(read("link"), SymbolicLink);
    // Opening a pipe waits for its other end, which the stranger never opens.
    assert_refused!(read("pipe"), WrongKind);
    assert_refused!(directory.read("own", 3), TooLarge);
    assert!(read("absent").unwrap_err().is_absent());
    directory.write("shared", b"", 0o666).unwrap();
    assert_refused!(read("shared"), WritableByOthers);
    for name in ["", ".", "..", "a/b", "/etc/hostname", "a/"] {
        assert_refused!(read(name), InvalidName);
    }
}

#[test]
fn writing_replaces_a_link_and_leaves_its_target() {
    let Some(public) = public(true) else { return };
    let target = TemporaryDirectory::make("taut-target").unwrap();
    let precious = target.path().join("precious");
    std::fs::write(&precious, "precious").unwrap();
    let link = format!(
        "ln -s {0} result; ln -s {0} inner; ln -s {0} status",
        precious.display()
    );
    as_stranger(&link, public.path());
    let directory = Directory::open(public.path()).unwrap();
    // root may replace a stranger's link in a sticky directory; the link goes, not the target.
    directory.write("inner", b"new", 0o600).unwrap();
    directory.show("status", b"new", 0o644).unwrap();
    assert_eq!(std::fs::read(below(&public, "status")).unwrap(), b"new");
    write_whole(&below(&public, "result"), b"new").unwrap();
    assert_eq!(std::fs::read(below(&public, "result")).unwrap(), b"new");
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
    let kinds: Vec<EntryKind> = directory
        .entries()
        .unwrap()
        .iter()
        .map(|entry| entry.kind)
        .collect();
    assert_eq!(kinds, [EntryKind::File; 3], "no temporary file is left");
}

#[test]
fn no_device_pipe_or_file_is_written_through_a_strangers_link() {
    let Some(public) = public(false) else { return };
    let target = TemporaryDirectory::make("taut-target").unwrap();
    // They take for themselves whatever is written to them.
    let (device, pipe) = (target.path().join("device"), target.path().join("pipe"));
    let mode = Mode::from_raw_mode(0o600);
    let null = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(CWD, &device, FileType::CharacterDevice, mode, null).unwrap();
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, mode, 0).unwrap();
    let precious = target.path().join("precious");
    std::fs::write(&precious, "precious").unwrap();
    let line = format!(
        "for one in device pipe precious; do ln -s {}/$one $one; done; mkfifo own",
        target.path().display()
    );
    as_stranger(&line, public.path());
    for name in ["device", "pipe", "precious"] {
        let path = below(&public, name);
        assert_refused!(create(&path, Existing::Overwritten), SymbolicLink);
        assert_refused!(append(&path), SymbolicLink);
        write_whole(&path, b"new").unwrap();
        assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
    }
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
    // A pipe of a stranger's would hold us up.
    let own = below(&public, "own");
    assert!(create(&own, Existing::Overwritten).is_err());
    assert_refused!(write_whole(&own, b"new"), WrongKind);
    // A second name of a file of root's: only where the kernel lets strangers make one, so root makes it.
    std::fs::hard_link(&precious, below(&public, "second")).unwrap();
    assert_refused!(
        create(&below(&public, "second"), Existing::Overwritten),
        WrongKind
    );
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
}

#[test]
fn devices_and_descriptors_are_written_to_and_files_emptied() {
    let made = TemporaryDirectory::make("taut-named").unwrap();
    let file = made.path().join("file");
    std::fs::write(&file, "what was there before").unwrap();
    create(&file, Existing::Overwritten)
        .unwrap()
        .write_all(b"new")
        .unwrap();
    append(&file).unwrap().write_all(b"er").unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "newer");
    // As a shell makes `> file`, and the program writes to /dev/stdout.
    let redirected = File::options().append(true).open(&file).unwrap();
    let descriptor = format!("/dev/fd/{}", redirected.as_raw_fd());
    for written in [b".", b"."] {
        write_whole(descriptor.as_ref(), written).unwrap();
        let mut opened = create(descriptor.as_ref(), Existing::Overwritten).unwrap();
        opened.write_all(b"!").unwrap();
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "newer.!.!");
    write_whole("/dev/null".as_ref(), b"nothing").unwrap();
    let full = write_whole("/dev/full".as_ref(), b"nothing").unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
}

#[test]
fn a_file_that_is_there_is_kept_and_one_that_is_written_has_one_writer() {
    let made = TemporaryDirectory::make("taut-named").unwrap();
    let file = made.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    symlink("nothing", made.path().join("link")).unwrap();
    for name in ["file", "link"] {
        assert_refused!(create(&made.path().join(name), Existing::Kept), Exists);
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    let mut writer = create(&made.path().join("new"), Existing::Kept).unwrap();
    writer.write_all(b"half").unwrap();
    // A descriptor that lingers keeps the lock.
    let lingering = writer.try_clone().unwrap();
    drop(writer);
    let again = || create(&made.path().join("new"), Existing::Overwritten);
    assert_refused!(again(), Locked);
    let kept = std::fs::read_to_string(made.path().join("new")).unwrap();
    assert_eq!(kept, "half");
    drop(lingering);
    // A process that another test has just forked may have a copy for a moment.
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Err(refused) = again() {
        assert!(matches!(refused, StateError::Locked { .. }), "{refused}");
        assert!(Instant::now() < deadline, "the lock was not given up");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_place_is_looked_at_before_there_is_anything_to_write() {
    let made = TemporaryDirectory::make("taut-place").unwrap();
    let kind = |path: &Path| check_place(path).map_err(|error| error.kind());
    assert_eq!(kind(&made.path().join("new")), Ok(()));
    assert_eq!(kind("/dev/full".as_ref()), Ok(()));
    assert_eq!(kind(made.path()), Err(ErrorKind::IsADirectory));
    let mode = Mode::from_raw_mode(0o600);
    let pipe = made.path().join("pipe");
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, mode, 0).unwrap();
    assert_eq!(kind(&pipe), Err(ErrorKind::PermissionDenied));
    std::fs::remove_file(&pipe).unwrap();
    let missing = made.path().join("missing/new");
    assert_eq!(kind(&missing), Err(ErrorKind::NotFound));
    assert!(std::fs::read_dir(made.path()).unwrap().next().is_none());
    assert_eq!(
        kind("/proc/self/new".as_ref()),
        Err(ErrorKind::PermissionDenied)
    );
}

#[test]
fn only_files_and_pipes_that_were_handed_over_are_read() {
    let made = TemporaryDirectory::make("taut-reading").unwrap();
    let at = |name: &str| made.path().join(name);
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, mode, 0).unwrap();
    std::fs::write(at("text"), "12345678").unwrap();
    std::fs::write(at("bytes"), b"\xff").unwrap();
    symlink("text", at("link")).unwrap();
    let read =
        |path: &Path| read_text(path, 8, Others::MayWrite).map_err(|error| error.to_string());
    assert_eq!(read(&at("link")).unwrap(), "12345678");
    for (path, words) in [
        (&at("pipe"), "named pipe"),
        (&"/dev/zero".into(), "device"),
        (&made.path().to_owned(), "directory"),
        (&at("bytes"), "UTF-8"),
        (&at("missing"), "No such file"),
    ] {
        let error = read(path).unwrap_err();
        assert!(error.contains(words), "{}: {error}", path.display());
    }
    let long = read_text(&at("text"), 7, Others::MayWrite).unwrap_err();
    assert!(long.to_string().contains("more than 7 bytes"), "{long}");
    // Written after it was opened, as a shell's `<(…)` is.
    let (reader, mut writer) = std::io::pipe().unwrap();
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    let writing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        writer.write_all(b"late").unwrap();
    });
    assert_eq!(read(path.as_ref()).unwrap(), "late");
    writing.join().unwrap();
    assert!(open_regular(path.as_ref()).is_err());
}

#[test]
fn a_file_that_a_stranger_owns_or_can_change_is_not_believed() {
    let Some(public) = public(true) else { return };
    as_stranger("echo theirs >theirs; chmod 600 theirs", public.path());
    let own = below(&public, "own");
    std::fs::write(&own, "own").unwrap();
    let read = |path: &Path, others| read_text(path, 64, others).map_err(|error| error.to_string());
    let theirs = below(&public, "theirs");
    for others in [Others::MayRead, Others::HaveNone] {
        let error = read(&theirs, others).unwrap_err();
        assert!(error.contains("belongs to user 65534"), "{error}");
    }
    assert!(read(&theirs, Others::MayWrite).is_ok());
    for (mode, policy, secret) in [
        (0o600, true, true),
        (0o644, true, false),
        (0o620, false, false),
        (0o602, false, false),
    ] {
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(read(&own, Others::MayRead).is_ok(), policy, "{mode:o}");
        assert_eq!(read(&own, Others::HaveNone).is_ok(), secret, "{mode:o}");
        assert!(read(&own, Others::MayWrite).is_ok());
    }
}

#[test]
fn the_mode_of_a_socket_is_not_set_through_a_link() {
    let Some(public) = public(true) else { return };
    let target = TemporaryDirectory::make("taut-target").unwrap();
    let secret = target.path().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    as_stranger(&format!("ln -s {} port", secret.display()), public.path());
    let directory = Directory::open(public.path()).unwrap();
    assert_refused!(
        directory.set_access_of("port", 0o666, Some(STRANGER)),
        SymbolicLink
    );
    let found = std::fs::metadata(&secret).unwrap();
    assert_eq!((found.mode() & 0o777, found.gid()), (0o600, 0));
    let path = directory.reachable("real").unwrap();
    let listening = std::os::unix::net::UnixListener::bind(path).unwrap();
    directory
        .set_access_of("real", 0o660, Some(STRANGER))
        .unwrap();
    let found = std::fs::metadata(below(&public, "real")).unwrap();
    assert_eq!((found.mode() & 0o777, found.gid()), (0o660, STRANGER));
    drop(listening);
}

#[test]
fn removing_a_tree_stops_at_links_and_at_what_is_not_ours() {
    let Some(public) = public(true) else { return };
    let target = TemporaryDirectory::make("taut-target").unwrap();
    std::fs::write(target.path().join("kept"), "").unwrap();
    as_stranger(
        &format!(
            "mkdir theirs; touch theirs/kept; ln -s {} link",
            target.path().display()
        ),
        public.path(),
    );
    let directory = Directory::open(public.path()).unwrap();
    assert_refused!(directory.remove_tree("theirs"), ForeignOwner);
    assert_refused!(directory.remove_tree("link"), SymbolicLink);
    let (own, _) = directory
        .make_below("own", 0o1777, Owner::SelfOrRoot)
        .unwrap();
    as_stranger(
        &format!("ln -s {} link; mkdir -p deep/er", target.path().display()),
        own.path(),
    );
    directory.remove_tree("own").unwrap();
    assert!(!below(&public, "own").exists());
    assert!(below(&public, "theirs/kept").exists());
    assert!(target.path().join("kept").exists());
}

#[test]
fn a_temporary_directory_that_was_moved_away_takes_nothing_else_along() {
    let Some(public) = public(false) else { return };
    let made = TemporaryDirectory::make_in(public.path(), "taut-load").unwrap();
    assert_eq!(made.directory().mode().unwrap(), 0o700);
    assert_eq!(made.directory().owner().unwrap(), 0);
    let name = made.path().file_name().unwrap().to_str().unwrap();
    let target = TemporaryDirectory::make("taut-target").unwrap();
    std::fs::write(target.path().join("kept"), "").unwrap();
    let swap = format!("mv {name} away; ln -s {} {name}", target.path().display());
    as_stranger(&swap, public.path());
    // Written through the descriptor, so into the directory that was made.
    made.directory().write("file", b"", 0o600).unwrap();
    assert!(below(&public, "away/file").exists());
    let mut touch = Command::new("touch");
    touch.arg("by-child");
    made.directory().enter(&mut touch);
    assert!(touch.status().unwrap().success());
    assert!(below(&public, "away/by-child").exists());
    drop(made);
    assert!(target.path().join("kept").exists());
    assert_eq!(
        std::fs::read_dir(below(&public, "away")).unwrap().count(),
        0
    );
}

#[test]
fn a_stranger_who_locks_all_that_can_be_opened_holds_up_nobody() {
    let Some(public) = public(true) else { return };
    let (directory, _) = Directory::open(public.path())
        .unwrap()
        .make_below("run", 0o755, Owner::SelfOrRoot)
        .unwrap();
    let open = || Journal::open_in(directory.try_clone().unwrap(), "journal.json", "taut lab");
    let (journal, _nothing) = open().unwrap();
    let line =
        "for name in . .lock journal.json; do flock $name sleep 20 & done; touch ../locked; wait";
    let mut holder = Command::new("sh")
        .args(["-c", line])
        .current_dir(directory.path())
        .uid(STRANGER)
        .process_group(0)
        .spawn()
        .unwrap();
    let is_locked = || {
        let mut probe = Command::new("flock");
        let probe = probe
            .args(["-n", ".", "true"])
            .current_dir(directory.path());
        !probe.status().unwrap().success()
    };
    let began = Instant::now();
    while !below(&public, "locked").exists() || !is_locked() {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "no stranger locked the directory"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let began = Instant::now();
    drop(journal);
    assert!(!directory.path().join("journal.json").exists(), "put back");
    drop(open().unwrap());
    assert!(began.elapsed() < Duration::from_secs(2));
    rustix::process::kill_process_group(
        rustix::process::Pid::from_child(&holder),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    holder.wait().unwrap();
}

#[test]
fn a_lock_is_waited_for_no_longer_than_said() {
    let Some(public) = public(true) else { return };
    let directory = Directory::open(public.path()).unwrap();
    let held = directory.lock(Duration::ZERO).unwrap();
    let refused = directory.lock(Duration::from_millis(50)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    drop(held);
    // Opened to all users, it is closed again.
    let lock = below(&public, ".lock");
    std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o666)).unwrap();
    drop(directory.lock(Duration::ZERO).unwrap());
    assert_eq!(std::fs::metadata(&lock).unwrap().mode() & 0o777, 0o600);
    directory.remove(".lock").unwrap();
    as_stranger("touch .lock", public.path());
    // The kernel refuses it first where `fs.protected_regular` is set.
    let refused = directory.lock(Duration::ZERO).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
}

#[test]
fn a_forged_journal_is_refused() {
    let Some(public) = public(true) else { return };
    let directory = Directory::open(public.path()).unwrap();
    as_stranger(
        "echo '{}' > journal.json; chmod 644 journal.json",
        public.path(),
    );
    let open = || Journal::open_in(directory.try_clone().unwrap(), "journal.json", "taut lab");
    let refused = open().unwrap_err();
    assert!(
        matches!(refused, JournalError::File(StateError::ForeignOwner { .. })),
        "{refused}"
    );
    directory.remove("journal.json").unwrap();
    symlink("/etc/hostname", below(&public, "journal.json")).unwrap();
    let refused = open().unwrap_err();
    assert!(
        matches!(refused, JournalError::File(StateError::SymbolicLink { .. })),
        "{refused}"
    );
}

#[test]
fn another_user_without_a_runtime_directory_is_told_what_to_do() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, to be another user");
        return;
    }
    let own = tautline_state::runtime_directory().unwrap();
    assert_eq!(own.path(), Path::new("/run/tautline"));
    assert_eq!(own.owner().unwrap(), 0);
    // A thread of its own: the kernel's user ids are those of a thread.
    let as_stranger = std::thread::spawn(|| {
        let user = rustix::fs::Uid::from_raw(STRANGER);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        tautline_state::runtime_directory().unwrap_err()
    });
    // Without XDG_RUNTIME_DIR there is none; with it, root's is not the stranger's.
    match as_stranger.join().unwrap() {
        StateError::ForeignOwner { .. } => assert!(std::env::var_os("XDG_RUNTIME_DIR").is_some()),
        refused => assert!(refused.to_string().contains("XDG_RUNTIME_DIR"), "{refused}"),
    }
}
