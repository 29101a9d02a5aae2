//! `taut key`: key files of two nodes, for protected ports.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use tautline::keys::{self, Cipher, KeyRing, SECRET_BYTES};
use tautline_state::{Directory, StateError};

use crate::cli::CommandError;
use crate::units;

/// Permissions of a key file.
const MODE: u32 = 0o600;

/// Remedy where a file of keys cannot be used.
const REMEDY: &str = "name a file of yours that `taut key` can read, for your user alone, in a directory that no other user may write to";

/// Arguments of `taut key`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Subcommand.
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a file with one key, that of epoch 1, which is used at once.
    Create(Create),
    /// Add the key of the next epoch, which is used from a time on that is to come; of the oldest ones, drop those that
    /// are over.
    Add(Add),
}

#[derive(Debug, Args)]
struct Create {
    /// The file, which must not be there yet.
    file: PathBuf,
    /// Cipher: aes-128-gcm, or chacha20-poly1305 if one of the CPUs has no instructions for AES [default: by this CPU].
    #[arg(long, value_name = "CIPHER", value_parser = cipher)]
    cipher: Option<Cipher>,
}

#[derive(Debug, Args)]
struct Add {
    /// The file.
    file: PathBuf,
    /// Time until senders use the key, long enough to bring the file to the other node, such as 10min.
    #[arg(long, value_name = "TIME", value_parser = units::time, default_value = "10min")]
    after: Duration,
}

/// Makes or changes a key file. Nothing of a secret is printed.
pub fn run(arguments: Arguments) -> Result<(), CommandError> {
    match arguments.command {
        Action::Create(new) => make(&new),
        Action::Add(add) => renew(&add),
    }
}

fn cipher(name: &str) -> Result<Cipher, String> {
    let known = || Cipher::ALL.map(Cipher::name).join(" or ");
    Cipher::named(name).ok_or_else(|| format!("expected {}", known()))
}

/// The faster cipher of this CPU.
fn own_cipher() -> Cipher {
    #[cfg(target_arch = "x86_64")]
    let has_aes = is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    let has_aes = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has_aes = false;
    match has_aes {
        true => Cipher::Aes128Gcm,
        false => Cipher::ChaCha20Poly1305,
    }
}

fn failed(file: &Path, error: impl std::fmt::Display) -> CommandError {
    CommandError::failed(format!("{}: {error}", file.display()), REMEDY)
}

/// A file that is not there, or is no file of keys.
fn wrong(file: &Path, error: impl std::fmt::Display) -> CommandError {
    CommandError::usage(format!("{}: {error}", file.display()), REMEDY)
}

/// The same with the remedy that goes with the kind of the error.
fn not_placed(error: &StateError) -> CommandError {
    let remedy = match error.kind() {
        io::ErrorKind::AlreadyExists => "name another file, or renew its key: taut key add FILE",
        io::ErrorKind::NotFound => "make the directory, or name a file in one that is there",
        _ => "name a file in a directory of yours that no other user may write to",
    };
    // It names the file itself.
    CommandError::failed(error.to_string(), remedy).of_place(error.kind())
}

fn secret(file: &Path) -> Result<[u8; SECRET_BYTES], CommandError> {
    keys::random_secret().map_err(|error| failed(file, error))
}

/// Directory and name of a file.
fn place(file: &Path) -> Result<(Directory, PathBuf), CommandError> {
    let name = file.file_name().map(PathBuf::from);
    let name = name.ok_or_else(|| wrong(file, "it is not the path of a file"))?;
    let parent = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = Directory::open(parent).map_err(|error| not_placed(&error))?;
    Ok((directory, name))
}

fn make(new: &Create) -> Result<(), CommandError> {
    use std::io::Write as _;
    let cipher = new.cipher.unwrap_or_else(own_cipher);
    let text = keys::key_entry(1, cipher, 0, &secret(&new.file)?);
    let (directory, name) = place(&new.file)?;
    let made = directory.create_file(&name, MODE);
    let mut file = made.map_err(|error| not_placed(&error))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(|error| failed(&new.file, error))?;
    say!(
        "{} has a key for {}; bring it to the other node by a way that no other person sees",
        new.file.display(),
        cipher.name()
    );
    Ok(())
}

fn renew(add: &Add) -> Result<(), CommandError> {
    let file = &add.file;
    let ring = keys::read_key_file(file).map_err(|error| wrong(file, error.what))?;
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_err(|error| failed(file, error))?;
    let epoch = next_epoch(&ring).ok_or_else(|| failed(file, "there are no more epochs"))?;
    let begins_s = (now + add.after).as_secs();
    let cipher = ring.all().last().map_or_else(own_cipher, |key| key.cipher);
    let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let kept = ring
        .all()
        .filter(|key| ring.accepted(key.epoch, now_ns).is_some());
    let mut text: String = kept.map(keys::entry_of).collect();
    text += &keys::key_entry(epoch, cipher, begins_s, &secret(file)?);
    keys::parse(&text).map_err(|what| failed(file, what))?;
    let (directory, name) = place(file)?;
    directory
        .write(&name, text.as_bytes(), MODE)
        .map_err(|error| not_placed(&error))?;
    say!(
        "{} has epoch {epoch}, which begins in {} s; bring it to the other node before that, and have both nodes read it",
        file.display(),
        add.after.as_secs()
    );
    Ok(())
}

fn next_epoch(ring: &KeyRing) -> Option<u16> {
    ring.all().last()?.epoch.checked_add(1)
}
