//! Secrets of a pair of nodes, and the keys that one run of a sender derives from them.

use core::fmt;

use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes128Gcm, Nonce};
use chacha20poly1305::ChaCha20Poly1305;
use hkdf::Hkdf;
use sha2::Sha256;

use super::frame::{Station, TAG_BYTES};
use crate::wire::PortNumber;

/// Bytes of a secret.
pub const SECRET_BYTES: usize = 32;

/// Most epochs in one ring: the one in use, the one before, and two that are to come. Lower: no rekeying without
/// loss. Higher: every node keeps secrets that it does not need yet.
pub const EPOCHS_MAX: usize = 4;

/// First bytes of what a key is derived from. They keep keys of another protocol, or of another version of this one,
/// apart from ours.
const LABEL: &[u8; 16] = b"tautline frame 1";

/// How frames are protected: an AEAD of RFC 5116 or RFC 8439.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cipher {
    /// AES-128-GCM, for CPUs with instructions for AES.
    Aes128Gcm,
    /// ChaCha20-Poly1305, for CPUs without.
    ChaCha20Poly1305,
}

impl Cipher {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Aes128Gcm, Self::ChaCha20Poly1305];

    /// Name in key files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes-128-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    /// The cipher of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cipher| cipher.name() == name)
    }

    /// Number in the derivation of keys.
    const fn number(self) -> u8 {
        match self {
            Self::Aes128Gcm => 1,
            Self::ChaCha20Poly1305 => 2,
        }
    }
}

/// One epoch's secret of a pair of nodes.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// Number of the epoch, the same on both nodes.
    pub epoch: u16,
    /// Cipher of the epoch's frames.
    pub cipher: Cipher,
    /// Time from which on senders use it, in nanoseconds since 1970. Receivers take it before, because a sender's
    /// clock may be ahead.
    pub begins_ns: u64,
    secret: [u8; SECRET_BYTES],
}

impl fmt::Debug for Key {
    /// All but the secret.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Key")
            .field("epoch", &self.epoch)
            .field("cipher", &self.cipher)
            .field("begins_ns", &self.begins_ns)
            .finish_non_exhaustive()
    }
}

impl Key {
    /// A key of its parts. The secret must be random.
    pub const fn new(
        epoch: u16,
        cipher: Cipher,
        begins_ns: u64,
        secret: [u8; SECRET_BYTES],
    ) -> Self {
        Self {
            epoch,
            cipher,
            begins_ns,
            secret,
        }
    }

    /// The secret, to write it into a file.
    pub const fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
    }

    /// The key of one run of one port of a sender.
    pub(super) fn derive(&self, run: u64, sender: Station, port: PortNumber) -> RunKey {
        let hkdf = Hkdf::<Sha256>::from_prk(&self.secret);
        let mut material = [0; 32];
        let parts: [&[u8]; 6] = [
            LABEL,
            &[self.cipher.number()],
            &self.epoch.to_be_bytes(),
            &run.to_be_bytes(),
            &sender.bytes(),
            &port.get().to_be_bytes(),
        ];
        // Both lengths are right: a secret and a result of one block of SHA-256 each.
        if let Ok(hkdf) = hkdf {
            let _ = hkdf.expand_multi_info(&parts, &mut material);
        }
        let aead = match self.cipher {
            Cipher::Aes128Gcm => {
                let mut key = [0; 16];
                key.copy_from_slice(&material[..16]);
                Aead::Aes(Aes128Gcm::new(&key.into()))
            }
            Cipher::ChaCha20Poly1305 => Aead::ChaCha(ChaCha20Poly1305::new(&material.into())),
        };
        RunKey {
            epoch: self.epoch,
            run,
            sender,
            port,
            aead,
        }
    }
}

/// Why keys are no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BadRing {
    /// None at all.
    Empty,
    /// More than [`EPOCHS_MAX`].
    TooMany,
    /// Two of one epoch.
    SameEpoch {
        /// The epoch.
        epoch: u16,
    },
    /// An epoch that begins before one with a lower number.
    OutOfOrder {
        /// The epoch.
        epoch: u16,
    },
}

impl fmt::Display for BadRing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => formatter.write_str("no key"),
            Self::TooMany => write!(formatter, "more than {EPOCHS_MAX} keys"),
            Self::SameEpoch { epoch } => write!(formatter, "two keys of epoch {epoch}"),
            Self::OutOfOrder { epoch } => {
                write!(formatter, "epoch {epoch} begins before an earlier one")
            }
        }
    }
}

impl core::error::Error for BadRing {}

/// The keys that a pair of nodes shares, one for each epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRing {
    keys: [Option<Key>; EPOCHS_MAX],
}

impl KeyRing {
    /// A ring of these keys, in any order.
    ///
    /// # Errors
    /// [`BadRing`].
    pub fn new(given: impl IntoIterator<Item = Key>) -> Result<Self, BadRing> {
        let mut keys: [Option<Key>; EPOCHS_MAX] = Default::default();
        for (index, key) in given.into_iter().enumerate() {
            *keys.get_mut(index).ok_or(BadRing::TooMany)? = Some(key);
        }
        keys.sort_by_key(|key| key.as_ref().map_or(u32::MAX, |key| u32::from(key.epoch)));
        let ring = Self { keys };
        if ring.keys[0].is_none() {
            return Err(BadRing::Empty);
        }
        for (before, after) in ring.all().zip(ring.all().skip(1)) {
            if before.epoch == after.epoch {
                return Err(BadRing::SameEpoch { epoch: after.epoch });
            }
            if before.begins_ns > after.begins_ns {
                return Err(BadRing::OutOfOrder { epoch: after.epoch });
            }
        }
        Ok(ring)
    }

    /// All keys, the oldest first.
    pub fn all(&self) -> impl Iterator<Item = &Key> {
        self.keys.iter().flatten()
    }

    /// Place of the key in use: the newest that has begun, the first if none has.
    fn place_in_use(&self, now_ns: u64) -> usize {
        let begun = self.all().take_while(|key| key.begins_ns <= now_ns);
        begun.count().saturating_sub(1)
    }

    /// The key that a sender uses.
    pub fn in_use(&self, now_ns: u64) -> Option<&Key> {
        self.keys[self.place_in_use(now_ns)].as_ref()
    }

    /// The key of an epoch, if a receiver takes it: the one in use, the one before, and those to come.
    pub fn accepted(&self, epoch: u16, now_ns: u64) -> Option<&Key> {
        let from = self.place_in_use(now_ns).saturating_sub(1);
        self.keys[from..]
            .iter()
            .flatten()
            .find(|key| key.epoch == epoch)
    }
}

/// The key of one run of one port of a sender.
pub(super) struct RunKey {
    pub(super) epoch: u16,
    pub(super) run: u64,
    pub(super) sender: Station,
    pub(super) port: PortNumber,
    aead: Aead,
}

/// Round keys of a cipher. Not boxed: a key is derived on the way of a message, where nothing is allocated.
#[allow(clippy::large_enum_variant)]
enum Aead {
    Aes(Aes128Gcm),
    ChaCha(ChaCha20Poly1305),
}

impl fmt::Debug for RunKey {
    /// All but the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RunKey")
            .field("epoch", &self.epoch)
            .field("run", &self.run)
            .finish_non_exhaustive()
    }
}

/// Nonce of a frame: its time is its own in the run.
fn nonce(time: u64) -> Nonce<aes_gcm::aead::consts::U12> {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&time.to_be_bytes());
    nonce.into()
}

impl RunKey {
    /// Encrypts `message` where it lies; the tag over it and `associated`.
    pub(super) fn seal(
        &self,
        time: u64,
        associated: &[u8],
        message: &mut [u8],
    ) -> Option<[u8; TAG_BYTES]> {
        let nonce = nonce(time);
        let tag = match &self.aead {
            Aead::Aes(aead) => aead.encrypt_inout_detached(&nonce, associated, message.into()),
            Aead::ChaCha(aead) => aead.encrypt_inout_detached(&nonce, associated, message.into()),
        };
        Some(tag.ok()?.into())
    }

    /// Checks the tag, and decrypts `message` where it lies; whether the tag is right.
    pub(super) fn open(
        &self,
        time: u64,
        associated: &[u8],
        message: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> bool {
        let (nonce, tag) = (nonce(time), (*tag).into());
        let opened = match &self.aead {
            Aead::Aes(aead) => {
                aead.decrypt_inout_detached(&nonce, associated, message.into(), &tag)
            }
            Aead::ChaCha(aead) => {
                aead.decrypt_inout_detached(&nonce, associated, message.into(), &tag)
            }
        };
        opened.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(epoch: u16, begins_ns: u64) -> Key {
        Key::new(
            epoch,
            Cipher::Aes128Gcm,
            begins_ns,
            [epoch as u8; SECRET_BYTES],
        )
    }

    #[test]
    fn wrong_rings_are_refused() {
        assert_eq!(KeyRing::new([]), Err(BadRing::Empty));
        let five = (1..=5).map(|epoch| key(epoch, 0));
        assert_eq!(KeyRing::new(five), Err(BadRing::TooMany));
        let same = [key(1, 0), key(2, 0), key(1, 5)];
        assert_eq!(KeyRing::new(same), Err(BadRing::SameEpoch { epoch: 1 }));
        let unordered = [key(2, 5), key(1, 9)];
        let refused = Err(BadRing::OutOfOrder { epoch: 2 });
        assert_eq!(KeyRing::new(unordered), refused);
    }

    #[test]
    fn senders_use_the_newest_that_has_begun_and_receivers_take_its_neighbours() {
        let ring = KeyRing::new([key(9, 300), key(5, 100), key(7, 200)]).unwrap();
        let in_use = |now| ring.in_use(now).unwrap().epoch;
        assert_eq!(
            [0, 100, 199, 200, 299, 300, u64::MAX].map(in_use),
            [5, 5, 5, 7, 7, 9, 9]
        );
        let taken = |now| [5, 7, 9, 6].map(|epoch| ring.accepted(epoch, now).is_some());
        assert_eq!(taken(0), [true, true, true, false]);
        assert_eq!(taken(200), [true, true, true, false]);
        assert_eq!(
            taken(300),
            [false, true, true, false],
            "two epochs back is over"
        );
    }

    #[test]
    fn nothing_prints_a_secret() {
        extern crate std;
        let secret = Key::new(1, Cipher::Aes128Gcm, 0, [0xA5; SECRET_BYTES]);
        let ring = KeyRing::new([secret.clone()]).unwrap();
        let printed = std::format!("{secret:?} {ring:?}").to_lowercase();
        assert!(
            !printed.contains("a5") && !printed.contains("165"),
            "{printed}"
        );
    }
}
