//! Keys that a node shares with its neighbours, from files that no other user can read.
//!
//! A key file is the same on both nodes (docs/how-to/authentication.md). It is read when a node
//! opens, and again by [`Node::reload_keys`](crate::Node::reload_keys).

pub(crate) mod runs;

use std::fmt;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use serde::Deserialize;
use tautline_proto::authentication::Station;
pub use tautline_proto::authentication::{BadRing, Cipher, Key, KeyRing, SECRET_BYTES};
use tautline_proto::neighbour::NeighbourTable;
use tautline_proto::wire::MacAddress;
use tautline_state::{Directory, lock, parse_error};

use crate::sys::random;

/// Bytes of the largest key file. Lower would cut comments off; higher reads more of a file that is none.
const FILE_BYTES_MAX: usize = 16 * 1024;

/// Difference between the clocks of two nodes, and time of a frame on its way, that a port allows unless configured.
/// Lower: clocks that are set over a network are not good enough. Higher: a frame that was held up is taken later.
pub const CLOCK_TOLERANCE_DEFAULT: Duration = Duration::from_secs(1);

/// Where the keys of a neighbour come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A key file.
    File(PathBuf),
    /// The program.
    Ring(KeyRing),
}

/// Keys that the node shares with one neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighbourKeys {
    /// Name of the neighbour.
    pub neighbour: String,
    /// Their origin.
    pub source: KeySource,
}

/// A key file that is not used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFileError {
    /// The file; the neighbour's name if the keys are not of a file.
    pub path: PathBuf,
    /// Description of the mistake. Never a part of a secret.
    pub what: String,
}

impl fmt::Display for KeyFileError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "keys of {}: {}", self.path.display(), self.what)
    }
}

impl std::error::Error for KeyFileError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    #[serde(default)]
    key: Vec<KeyEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    epoch: u16,
    cipher: String,
    #[serde(default)]
    begins_s: u64,
    secret: String,
}

/// Reads a key file: of this user or root, in directories that no other user can change, and with no permission for
/// anybody else. All of that is asked of what was opened.
///
/// # Errors
/// [`KeyFileError`].
pub fn read_key_file(path: &Path) -> Result<KeyRing, KeyFileError> {
    let wrong = |what: String| KeyFileError {
        path: path.to_owned(),
        what,
    };
    let text = read_private(path).map_err(wrong)?;
    parse(&text).map_err(wrong)
}

fn read_private(path: &Path) -> Result<String, String> {
    let name = path.file_name().ok_or("it is not the path of a file")?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = Directory::open(parent).map_err(|error| error.to_string())?;
    let file = directory
        .open_file(name)
        .map_err(|error| error.to_string())?;
    let mode = file.metadata().map_err(|error| error.to_string())?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(format!(
            "others have permissions for it (mode {mode:04o}); chmod 600"
        ));
    }
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(
        &mut std::io::Read::take(&file, FILE_BYTES_MAX as u64 + 1),
        &mut bytes,
    )
    .map_err(|error| error.to_string())?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())
}

/// Reads the text of a key file. What it says of an error has no part of a secret: it names a line, not its content.
///
/// # Errors
/// Description of the mistake.
pub fn parse(text: &str) -> Result<KeyRing, String> {
    let file: KeyFile = toml::from_str(text).map_err(|error| {
        let (line, _) = parse_error::position(text, error.span().unwrap_or_default().start);
        format!("line {line} is not as in docs/how-to/authentication.md")
    })?;
    let keys = file.key.iter().map(key).collect::<Result<Vec<_>, _>>()?;
    KeyRing::new(keys).map_err(|error| error.to_string())
}

fn key(entry: &KeyEntry) -> Result<Key, String> {
    let epoch = entry.epoch;
    let cipher = Cipher::named(&entry.cipher).ok_or_else(|| {
        let known = Cipher::ALL.map(Cipher::name).join("\" or \"");
        format!("the cipher of epoch {epoch} is not \"{known}\"")
    })?;
    let secret = secret(&entry.secret).ok_or_else(|| {
        format!(
            "the secret of epoch {epoch} is not {} hexadecimal digits",
            2 * SECRET_BYTES
        )
    })?;
    if secret.iter().all(|byte| *byte == secret[0]) {
        return Err(format!("the secret of epoch {epoch} is not random"));
    }
    let begins_ns = entry.begins_s.saturating_mul(1_000_000_000);
    Ok(Key::new(epoch, cipher, begins_ns, secret))
}

fn secret(text: &str) -> Option<[u8; SECRET_BYTES]> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let bytes = pairs
        .iter()
        .map(|[high, low]| Some((digit(*high)? * 16 + digit(*low)?) as u8));
    bytes.collect::<Option<Vec<_>>>()?.try_into().ok()
}

/// A secret out of the kernel's random numbers.
///
/// # Errors
/// If the kernel gives none.
pub fn random_secret() -> std::io::Result<[u8; SECRET_BYTES]> {
    let mut secret = [0; SECRET_BYTES];
    for part in secret.as_chunks_mut::<8>().0 {
        *part = random::number()?.to_ne_bytes();
    }
    Ok(secret)
}

/// Text of the entry of a key.
#[must_use]
pub fn entry_of(key: &Key) -> String {
    key_entry(
        key.epoch,
        key.cipher,
        key.begins_ns / 1_000_000_000,
        key.secret(),
    )
}

/// Text of one entry of a key file.
#[must_use]
pub fn key_entry(epoch: u16, cipher: Cipher, begins_s: u64, secret: &[u8; SECRET_BYTES]) -> String {
    let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = cipher.name();
    format!(
        "[[key]]\nepoch = {epoch}\ncipher = \"{name}\"\nbegins_s = {begins_s}\nsecret = \"{digits}\"\n"
    )
}

/// The keys of a node. Its ports keep copies, and look at the generation whether these are still right.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    entries: Vec<Entry>,
    generation: AtomicU64,
    pub(crate) clock_tolerance: Duration,
}

#[derive(Debug)]
struct Entry {
    path: PathBuf,
    is_file: bool,
    stations: Vec<Station>,
    ring: Mutex<KeyRing>,
}

impl Keys {
    pub(crate) fn load(
        given: &[NeighbourKeys],
        neighbours: &NeighbourTable,
        clock_tolerance: Duration,
    ) -> Result<Self, KeyFileError> {
        let entry = |keys: &NeighbourKeys| {
            let name = &keys.neighbour;
            let found = neighbours.by_name(name);
            let neighbour = found.and_then(|index| neighbours.get(index));
            let neighbour = neighbour.ok_or_else(|| KeyFileError {
                path: name.into(),
                what: "there is no neighbour of this name".to_owned(),
            })?;
            if neighbour.is_group() {
                return Err(KeyFileError {
                    path: name.into(),
                    what: "a group has no keys: they are those of two nodes".to_owned(),
                });
            }
            let (path, is_file, ring) = match &keys.source {
                KeySource::File(path) => (path.clone(), true, read_key_file(path)?),
                KeySource::Ring(ring) => (name.into(), false, ring.clone()),
            };
            let mac = (!neighbour.mac.is_unspecified()).then_some(neighbour.mac);
            let stations = mac.map(Station::Ethernet).into_iter();
            let stations = stations.chain(neighbour.ip.map(Station::Udp)).collect();
            Ok(Entry {
                path,
                is_file,
                stations,
                ring: Mutex::new(ring),
            })
        };
        Ok(Self {
            entries: given.iter().map(entry).collect::<Result<_, _>>()?,
            generation: AtomicU64::new(0),
            clock_tolerance,
        })
    }

    /// Reads all files again. If one is wrong, all keys stay as they were.
    pub(crate) fn reload(&self) -> Result<(), KeyFileError> {
        let read = |entry: &Entry| {
            entry
                .is_file
                .then(|| read_key_file(&entry.path))
                .transpose()
        };
        let rings = self
            .entries
            .iter()
            .map(read)
            .collect::<Result<Vec<_>, _>>()?;
        for (entry, ring) in self.entries.iter().zip(rings) {
            if let Some(ring) = ring {
                *entry.ring() = ring;
            }
        }
        // Release: partner is the Acquire in `generation`; who sees the number takes the new rings.
        self.generation.fetch_add(1, Release);
        Ok(())
    }

    pub(crate) fn clock_tolerance_ns(&self) -> u64 {
        u64::try_from(self.clock_tolerance.as_nanos()).unwrap_or(u64::MAX)
    }

    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All rings, in an order that stays.
    pub(crate) fn rings(&self) -> impl Iterator<Item = KeyRing> {
        self.entries.iter().map(|entry| entry.ring().clone())
    }

    /// Addresses of the neighbours, and the places of their rings.
    pub(crate) fn stations(&self) -> impl Iterator<Item = (Station, usize)> {
        let entries = self.entries.iter().enumerate();
        entries.flat_map(|(place, entry)| {
            let stations = entry.stations.iter();
            stations.map(move |station| (*station, place))
        })
    }
}

impl Entry {
    fn ring(&self) -> MutexGuard<'_, KeyRing> {
        lock(&self.ring)
    }
}

/// Addresses of this node, by which its neighbours' keys are its own.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnStations {
    pub(crate) mac: Option<MacAddress>,
    pub(crate) ip: Option<Ipv4Addr>,
}

impl OwnStations {
    /// The one that has the form of another.
    #[inline]
    pub(crate) fn like(&self, other: Station) -> Option<Station> {
        match other {
            Station::Ethernet(_) => self.mac.map(Station::Ethernet),
            Station::Udp(_) => self.ip.map(Station::Udp),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SECRET: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn entry(epoch: &str, cipher: &str, secret: &str) -> String {
        format!("[[key]]\nepoch = {epoch}\ncipher = \"{cipher}\"\nsecret = \"{secret}\"\n")
    }

    #[test]
    fn what_is_written_is_read() {
        let secret = std::array::from_fn(|place| place as u8);
        let text = key_entry(1, Cipher::Aes128Gcm, 0, &secret)
            + &key_entry(2, Cipher::ChaCha20Poly1305, 5, &secret);
        let ring = parse(&text).unwrap();
        let keys: Vec<_> = ring.all().map(|key| (key.epoch, key.begins_ns)).collect();
        assert_eq!(keys, [(1, 0), (2, 5_000_000_000)]);
    }

    #[test]
    fn wrong_files_are_refused_without_telling_secrets() {
        let wrong = [
            (String::new(), "no key"),
            (entry("1", "aes-128-gcm", &SECRET[1..]), "hexadecimal"),
            (
                entry("1", "aes-128-gcm", &SECRET.replace('0', "g")),
                "hexadecimal",
            ),
            (entry("1", "aes-128-gcm", &"7".repeat(64)), "not random"),
            (entry("1", "none", SECRET), "cipher"),
            (entry("70000", "aes-128-gcm", SECRET), "line 2"),
            (entry("1", "aes-128-gcm", SECRET) + "mode = 3\n", "line 5"),
            (
                entry("1", "aes-128-gcm", SECRET).repeat(2),
                "two keys of epoch 1",
            ),
            ("secret = \"0001".to_owned(), "line 1"),
        ];
        for (text, expected) in wrong {
            let said = parse(&text).unwrap_err();
            assert!(said.contains(expected), "{said}");
            assert!(!said.contains("0001"), "{said}");
        }
    }

    #[test]
    fn files_that_others_can_read_or_write_are_refused() {
        let directory = tautline_state::TemporaryDirectory::make("keys").unwrap();
        let path = directory.path().join("pair.key");
        fs::write(&path, entry("1", "aes-128-gcm", SECRET)).unwrap();
        for (mode, is_taken) in [(0o600, true), (0o400, true), (0o640, false), (0o602, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let read = read_key_file(&path);
            assert_eq!(read.is_ok(), is_taken, "{mode:o}: {read:?}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let link = directory.path().join("link.key");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(read_key_file(&link).is_err(), "a link");
        assert!(read_key_file(directory.path()).is_err(), "a directory");
        fs::write(&path, "#".repeat(FILE_BYTES_MAX + 1)).unwrap();
        let said = read_key_file(&path).unwrap_err().to_string();
        assert!(said.contains("more than"), "{said}");
        // Root reads what belongs to another user, and must not believe it.
        if rustix::process::geteuid().is_root() {
            fs::write(&path, entry("1", "aes-128-gcm", SECRET)).unwrap();
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            assert!(read_key_file(&path).is_err(), "of another user");
        }
    }
}
