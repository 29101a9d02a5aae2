//! Bundles: several small messages of one flow and priority in one frame, where the sender asks for
//! it.
//!
//! ```text
//! +--------+---------------+--------+---------------+
//! | length | message       | length | message       | …
//! | 2 bytes| length bytes  | 2 bytes| length bytes  |
//! +--------+---------------+--------+---------------+
//! ```
//!
//! This is the payload of a whole frame whose header has [`FLAG_BUNDLE`](super::FLAG_BUNDLE) set. The
//! demux delivers the frame as it is; the receiving port takes the messages out, in its own thread. The
//! messages end where the payload ends; a bundle of none, or with bytes left over, is malformed as a
//! whole.

use super::read_u16;

/// Bytes before each message of a bundle: its length, big-endian.
///
/// Lower could not tell the length of a full frame's message.
pub const LENGTH_BYTES: usize = 2;

/// A bundle that breaks the format; none of its messages counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedBundle;

/// Appends a message to what is in `used` bytes of `payload`. How many bytes are used then, or
/// `None` if there is no room, and nothing has changed.
///
/// ```
/// use tautline_proto::wire::bundle;
///
/// let mut payload = [0; 8];
/// let used = bundle::append(&mut payload, 0, b"ab").unwrap();
/// let used = bundle::append(&mut payload, used, b"").unwrap();
/// assert_eq!(payload[..used], [0, 2, b'a', b'b', 0, 0]);
/// assert_eq!(bundle::append(&mut payload, used, b"c"), None);
/// let messages: Vec<_> = bundle::messages(&payload[..used])?.collect();
/// assert_eq!(messages, [&b"ab"[..], b""]);
/// # Ok::<(), bundle::MalformedBundle>(())
/// ```
#[inline]
#[must_use]
pub fn append(payload: &mut [u8], used: usize, message: &[u8]) -> Option<usize> {
    let length = u16::try_from(message.len()).ok()?;
    let room = payload.get_mut(used..used + LENGTH_BYTES + message.len())?;
    let (before, place) = room.split_first_chunk_mut::<LENGTH_BYTES>()?;
    *before = length.to_be_bytes();
    place.copy_from_slice(message);
    Some(used + LENGTH_BYTES + message.len())
}

/// The messages of a bundle's payload, in the order in which they were sent.
///
/// # Errors
/// [`MalformedBundle`].
pub fn messages(payload: &[u8]) -> Result<impl Iterator<Item = &[u8]>, MalformedBundle> {
    let mut steps = Steps::new(payload.len());
    while steps.step(|offset| read_u16(payload, offset))?.is_some() {}
    let mut steps = Steps::new(payload.len());
    Ok(core::iter::from_fn(move || {
        let place = steps.step(|offset| read_u16(payload, offset)).ok()??;
        payload.get(place.offset..place.offset + place.length)
    }))
}

/// Where a message of a bundle lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Bytes of the payload before it.
    pub offset: usize,
    /// Its bytes.
    pub length: usize,
}

/// Goes through a bundle that lies somewhere else, message by message. Each step is within the payload,
/// whatever the lengths say, and goes forward, so there are at most half as many steps as bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    next: usize,
    payload_bytes: usize,
}

impl Steps {
    /// Before the first message of a payload of so many bytes.
    #[must_use]
    pub const fn new(payload_bytes: usize) -> Self {
        Self {
            next: 0,
            payload_bytes,
        }
    }

    /// Whether no message has been taken.
    #[inline]
    #[must_use]
    pub const fn is_at_start(&self) -> bool {
        self.next == 0
    }

    /// Whether all have been taken.
    #[inline]
    #[must_use]
    pub const fn is_at_end(&self) -> bool {
        self.next == self.payload_bytes
    }

    /// The next message; `None` after the last. `read` gives the two bytes at an offset of the payload.
    ///
    /// # Errors
    /// [`MalformedBundle`] if the length reaches beyond the payload, or there is not even one.
    #[inline]
    pub fn step(
        &mut self,
        read: impl FnOnce(usize) -> Option<u16>,
    ) -> Result<Option<Span>, MalformedBundle> {
        if self.is_at_end() && !self.is_at_start() {
            return Ok(None);
        }
        let offset = self.next + LENGTH_BYTES;
        if offset > self.payload_bytes {
            return Err(MalformedBundle);
        }
        let length = usize::from(read(self.next).ok_or(MalformedBundle)?);
        if length > self.payload_bytes - offset {
            return Err(MalformedBundle);
        }
        self.next = offset + length;
        Ok(Some(Span { offset, length }))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn lengths(payload: &[u8]) -> Result<Vec<usize>, MalformedBundle> {
        Ok(messages(payload)?.map(<[u8]>::len).collect())
    }

    #[test]
    fn fills_to_the_last_byte_and_no_further() {
        let mut payload = [0xee; 10];
        let used = append(&mut payload, 0, &[1; 3]).unwrap();
        assert_eq!(append(&mut payload, used, &[2; 4]), None);
        assert_eq!(payload[used..], [0xee; 5], "nothing has changed");
        assert_eq!(append(&mut payload, used, &[2; 3]), Some(10));
        assert_eq!(append(&mut payload, 10, &[]), None);
        assert_eq!(append(&mut payload, 11, &[]), None);
        assert_eq!(lengths(&payload), Ok([3, 3].into()));
    }
}
