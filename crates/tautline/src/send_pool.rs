//! The pool of send buffers: memory of a node, taken, touched and locked when the node opens. It lends buffers,
//! which the application fills in place and a port sends. It does not send itself.
//!
//! Buffers have 1, 4, 8 or 16 pages, each with room in front for a frame's headers, so that a message
//! leaves from where it was filled in. (The sizes are those of SS-RTUDP.) A request is answered from the
//! smallest size that holds it and from no other: a crowd of small messages takes nothing from the large
//! ones, and whether a buffer is there depends on who asks for that size alone.
#![allow(unsafe_code)] // Slices of a mapping, each of which has one holder.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use tautline_proto::ip::send::{HEADERS_BYTES, OutDatagram};
use tautline_shm::index_pool::{INDICES_MAX, IndexPool};

use crate::error::SendError;
use crate::link::PlacedPayload;
use crate::link::frame::HEAD_BYTES_MAX;
use crate::sys::memory::Mapping;

/// Bytes of a page, as buffers are counted. Fixed, so that a configuration means the same on machines
/// whose kernel has larger ones.
pub const PAGE_BYTES: usize = 4096;
/// Pages of the sizes of buffers.
pub const SIZES_PAGES: [usize; 4] = [1, 4, 8, 16];
/// Most buffers of one size. Lower: a gateway runs out. Higher: one word can no longer show which are free.
pub const BUFFERS_MAX: u32 = INDICES_MAX;

/// Bytes before a buffer's first byte, for headers. Lower: the longest headers do not fit. Higher: memory.
const HEADROOM_BYTES: usize = 64;
const _: () = assert!(HEADERS_BYTES <= HEADROOM_BYTES && HEAD_BYTES_MAX <= HEADROOM_BYTES);

/// How many buffers of each size a node's pool has, 0 to [`BUFFERS_MAX`].
///
/// ```
/// use tautline::send_pool::SendPoolConfig;
/// use tautline::NodeConfig;
///
/// let mut config = NodeConfig::on("eth0");
/// config.send_pool = SendPoolConfig { pages_16: 32, ..SendPoolConfig::default() };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SendPoolConfig {
    /// Buffers of one page: 4,096 bytes.
    #[serde(deserialize_with = "count")]
    pub pages_1: u32,
    /// Of four: 16,384 bytes.
    #[serde(deserialize_with = "count")]
    pub pages_4: u32,
    /// Of eight: 32,768 bytes.
    #[serde(deserialize_with = "count")]
    pub pages_8: u32,
    /// Of sixteen: 65,536 bytes, more than any datagram.
    #[serde(deserialize_with = "count")]
    pub pages_16: u32,
}

fn count<'de, D: Deserializer<'de>>(given: D) -> Result<u32, D::Error> {
    match u32::deserialize(given)? {
        count @ 0..=BUFFERS_MAX => Ok(count),
        many => Err(D::Error::custom(format!(
            "{many} buffers of a size are too many, expected 0 to {BUFFERS_MAX}"
        ))),
    }
}

impl Default for SendPoolConfig {
    /// 16, 8, 4 and 4 buffers: 578 KiB, less than a queuing port of default depth. Lower: a program that
    /// fills several messages at a time runs out. Higher: what a user may lock (`RLIMIT_MEMLOCK`, 8 MiB on
    /// many systems) is spent on nodes that lend nothing.
    fn default() -> Self {
        Self {
            pages_1: 16,
            pages_4: 8,
            pages_8: 4,
            pages_16: 4,
        }
    }
}

impl SendPoolConfig {
    /// A pool without buffers.
    pub const NONE: Self = Self {
        pages_1: 0,
        pages_4: 0,
        pages_8: 0,
        pages_16: 0,
    };

    /// Buffers of each size, in the order of [`SIZES_PAGES`].
    const fn counts(self) -> [u32; SIZES_PAGES.len()] {
        [self.pages_1, self.pages_4, self.pages_8, self.pages_16]
    }
}

#[derive(Debug)]
pub(crate) struct SendPool {
    /// `None` if the pool has no buffers.
    mapping: Option<Mapping>,
    locked: bool,
    sizes: [Size; SIZES_PAGES.len()],
}

#[derive(Debug)]
struct Size {
    pages: usize,
    /// Where the first begins, with its headroom.
    offset: usize,
    places: IndexPool,
    /// Requests that found none free.
    exhausted: AtomicU64,
}

impl Size {
    /// The sizes one after the other, and how many bytes that is.
    fn all(config: SendPoolConfig) -> ([Self; SIZES_PAGES.len()], usize) {
        let mut end = 0;
        let counts = config.counts();
        let sizes = std::array::from_fn(|index| {
            let size = Self {
                pages: SIZES_PAGES[index],
                offset: end,
                places: IndexPool::new(counts[index]),
                exhausted: AtomicU64::new(0),
            };
            end += size.places.count() as usize * size.stride();
            size
        });
        (sizes, end)
    }

    const fn stride(&self) -> usize {
        HEADROOM_BYTES + self.bytes()
    }

    const fn bytes(&self) -> usize {
        self.pages * PAGE_BYTES
    }
}

impl SendPool {
    /// Takes all memory, and locks it where that is allowed.
    ///
    /// # Errors
    /// If the kernel has not that much.
    pub(crate) fn new(config: SendPoolConfig) -> std::io::Result<Self> {
        let (sizes, bytes) = Size::all(config);
        // Touched by being mapped.
        let mapping = (bytes > 0).then(|| Mapping::anonymous(bytes)).transpose()?;
        let locked = mapping.as_ref().is_none_or(|memory| memory.lock().is_ok());
        Ok(Self {
            mapping,
            locked,
            sizes,
        })
    }

    pub(crate) fn without_buffers() -> Self {
        Self {
            mapping: None,
            locked: true,
            sizes: Size::all(SendPoolConfig::NONE).0,
        }
    }

    /// Lends a buffer for `length` bytes. Lock-free; allocates nothing.
    ///
    /// # Errors
    /// [`SendError::PoolExhausted`], [`SendError::MessageTooLarge`].
    #[inline]
    pub(crate) fn lend(self: &Arc<Self>, length: usize) -> Result<LentBuffer, SendError> {
        let (index, size) = self
            .sizes
            .iter()
            .enumerate()
            .find(|(_, size)| length <= size.bytes())
            .ok_or(SendError::MessageTooLarge { bytes: length })?;
        let free = self.mapping.as_ref().zip(size.places.take());
        let Some((mapping, place)) = free else {
            size.exhausted.fetch_add(1, Relaxed);
            return Err(SendError::PoolExhausted {
                buffer_bytes: size.bytes(),
            });
        };
        let offset = size.offset + place as usize * size.stride();
        debug_assert!(offset + size.stride() <= mapping.bytes());
        Ok(LentBuffer {
            // SAFETY: the places of a size lie one after the other from its offset on, and `new` has mapped
            // memory for all places of all sizes.
            room: unsafe { mapping.base().add(offset) },
            length,
            size: index,
            place,
            pool: Arc::clone(self),
        })
    }

    pub(crate) fn status(&self) -> SendPoolStatus {
        SendPoolStatus {
            memory_bytes: self.mapping.as_ref().map_or(0, Mapping::bytes),
            locked: self.locked,
            sizes: self.sizes.each_ref().map(|size| SendBuffersStatus {
                pages: size.pages,
                buffer_bytes: size.bytes(),
                count: size.places.count(),
                lent: size.places.taken(),
                exhausted: size.exhausted.load(Relaxed),
            }),
        }
    }
}

/// A node's pool of send buffers, as `taut status` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SendPoolStatus {
    /// Bytes of all buffers, with the room for headers.
    pub memory_bytes: usize,
    /// Whether they are locked: never paged out.
    pub locked: bool,
    /// The buffers of each size.
    pub sizes: [SendBuffersStatus; SIZES_PAGES.len()],
}

impl SendPoolStatus {
    /// Buffers of all sizes together.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sizes.iter().map(|size| size.count as usize).sum()
    }
}

/// Send buffers of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SendBuffersStatus {
    /// Pages of each.
    pub pages: usize,
    /// Bytes that each holds.
    pub buffer_bytes: usize,
    /// How many there are.
    pub count: u32,
    /// How many are lent at the moment.
    pub lent: u32,
    /// Requests that found none free.
    pub exhausted: u64,
}

/// A buffer of the node's pool. It goes back to the pool when it is dropped, sent or not. At first it holds the bytes
/// of its last borrower. It may be filled in another thread than it is sent from, and outlive its node.
pub struct LentBuffer {
    /// The headroom, which the buffer's bytes follow.
    room: NonNull<u8>,
    length: usize,
    size: usize,
    place: u32,
    pool: Arc<SendPool>,
}

// SAFETY: the memory is the mapping's that `pool` keeps, which is plain memory, and this value's alone while
// it has the place; the pool is `Sync`.
unsafe impl Send for LentBuffer {}
// SAFETY: as above; with a shared reference the bytes can only be read.
unsafe impl Sync for LentBuffer {}

impl LentBuffer {
    /// Bytes that the buffer can hold: 4,096, 16,384, 32,768 or 65,536.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.pool.sizes[self.size].bytes()
    }

    /// Makes the message longer or shorter. What it gains holds what was there.
    ///
    /// # Errors
    /// [`SendError::MessageTooLarge`] beyond the [capacity](Self::capacity).
    #[inline]
    pub fn set_length(&mut self, length: usize) -> Result<(), SendError> {
        if length > self.capacity() {
            return Err(SendError::MessageTooLarge { bytes: length });
        }
        self.length = length;
        Ok(())
    }

    /// The message with the room for the headers of plain UDP before it; `None` if it is longer than a datagram can be.
    #[inline]
    pub(crate) fn datagram(&mut self) -> Option<OutDatagram<'_>> {
        OutDatagram::new(self.with_room(HEADERS_BYTES))
    }

    /// The message with room for a frame's headers before it.
    #[inline]
    pub(crate) fn payload(&mut self) -> PlacedPayload<'_> {
        PlacedPayload::new(self.with_room(HEAD_BYTES_MAX))
    }

    /// The message with as much of the headroom as that.
    #[inline]
    fn with_room(&mut self, room_bytes: usize) -> &mut [u8] {
        assert!(room_bytes <= HEADROOM_BYTES);
        // SAFETY: `room` begins the headroom of a place with `capacity` bytes behind it, and the length is
        // not beyond that (`SendPool::lend`, `set_length`). The memory is mapped, since `pool` keeps it,
        // initialised (the kernel's zeroes), and belongs to this value, which is borrowed.
        unsafe {
            let start = self.room.add(HEADROOM_BYTES - room_bytes);
            std::slice::from_raw_parts_mut(start.as_ptr(), room_bytes + self.length)
        }
    }
}

impl Deref for LentBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: as in `with_room`.
        unsafe {
            let start = self.room.add(HEADROOM_BYTES);
            std::slice::from_raw_parts(start.as_ptr(), self.length)
        }
    }
}

impl DerefMut for LentBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.with_room(0)
    }
}

impl Drop for LentBuffer {
    #[inline]
    fn drop(&mut self) {
        self.pool.sizes[self.size].places.give_back(self.place);
    }
}

impl std::fmt::Debug for LentBuffer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("LentBuffer")
            .field("length", &self.length)
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(config: SendPoolConfig) -> Arc<SendPool> {
        Arc::new(SendPool::new(config).unwrap())
    }

    #[test]
    fn a_request_gets_the_smallest_size_that_holds_it() {
        let pool = pool(SendPoolConfig::default());
        for (length, capacity) in [
            (0, 4096),
            (4096, 4096),
            (4097, 16_384),
            (16_385, 32_768),
            (32_769, 65_536),
            (65_536, 65_536),
        ] {
            let lent = pool.lend(length).unwrap();
            assert_eq!((lent.len(), lent.capacity()), (length, capacity));
        }
        assert_eq!(
            pool.lend(65_537).unwrap_err(),
            SendError::MessageTooLarge { bytes: 65_537 }
        );
        assert!(pool.status().sizes.iter().all(|size| size.lent == 0));
    }

    /// Every buffer, headroom and all, written to its ends: none overlaps another.
    #[test]
    fn buffers_are_apart() {
        let pool = pool(SendPoolConfig {
            pages_1: 64,
            pages_4: 3,
            pages_8: 2,
            pages_16: 1,
        });
        let lengths = [(4096, 64), (16_384, 3), (32_768, 2), (65_536, 1)];
        let mut all = Vec::new();
        for (length, count) in lengths {
            for _ in 0..count {
                all.push(pool.lend(length).unwrap());
            }
            assert_eq!(
                pool.lend(length).unwrap_err(),
                SendError::PoolExhausted {
                    buffer_bytes: length
                }
            );
        }
        for (number, lent) in all.iter_mut().enumerate() {
            lent.with_room(HEADROOM_BYTES).fill(number as u8);
        }
        for (number, lent) in all.iter_mut().enumerate() {
            let bytes = lent.with_room(HEADROOM_BYTES);
            assert!(bytes.iter().all(|byte| *byte == number as u8), "{number}");
        }
        let status = pool.status();
        assert_eq!(status.sizes.map(|size| size.lent), [64, 3, 2, 1]);
        assert_eq!(status.sizes.map(|size| size.exhausted), [1; 4]);
        let bytes: usize = all.iter().map(|lent| lent.len() + HEADROOM_BYTES).sum();
        assert_eq!(status.memory_bytes, bytes);
        drop(all);
        assert_eq!(pool.status().sizes.map(|size| size.lent), [0; 4]);
    }

    #[test]
    fn a_length_stays_within_the_buffer() {
        let pool = pool(SendPoolConfig::default());
        let mut lent = pool.lend(3).unwrap();
        lent.copy_from_slice(b"abc");
        lent.set_length(4096).unwrap();
        assert_eq!(&lent[..3], b"abc");
        assert_eq!(
            lent.set_length(4097),
            Err(SendError::MessageTooLarge { bytes: 4097 })
        );
        assert_eq!(lent.len(), 4096);
    }

    #[test]
    fn a_pool_may_have_no_buffers() {
        let pool = pool(SendPoolConfig::NONE);
        let error = pool.lend(1).unwrap_err();
        assert_eq!(error, SendError::PoolExhausted { buffer_bytes: 4096 });
        assert_eq!(pool.status().memory_bytes, 0);
    }
}
