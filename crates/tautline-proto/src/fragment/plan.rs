//! How a message is cut into frames.

use core::fmt;
use core::ops::Range;

use crate::wire::{FRAGMENT_BYTES, MESSAGE_BYTES_MAX, WHOLE_BYTES_MAX_ETHERNET};

/// A message that no number of fragments can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageTooLarge {
    /// Bytes in the message.
    pub message_bytes: usize,
}

impl fmt::Display for MessageTooLarge {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "message of {} bytes is larger than {MESSAGE_BYTES_MAX}",
            self.message_bytes
        )
    }
}

impl core::error::Error for MessageTooLarge {}

/// One frame's part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// The header's fragment index.
    pub index: u8,
    /// The header's fragment count.
    pub count: u8,
    /// Where the part begins in the message, in bytes.
    pub offset: usize,
    /// The header's length: bytes in this part.
    pub length: u16,
}

impl Fragment {
    /// The part's place in the message, for slicing.
    pub const fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.length as usize
    }
}

/// The frames that carry a message of `message_bytes` over a link whose frames hold `whole_bytes_max` payload bytes:
/// one frame if it fits, otherwise fragments of [`FRAGMENT_BYTES`].
///
/// `whole_bytes_max` is a constant of the link, such as
/// [`WHOLE_BYTES_MAX_ETHERNET`](crate::wire::WHOLE_BYTES_MAX_ETHERNET).
///
/// # Errors
///
/// [`MessageTooLarge`] above [`MESSAGE_BYTES_MAX`].
///
/// # Panics
///
/// If `whole_bytes_max` is below [`FRAGMENT_BYTES`], so that a fragment would not fit, or above
/// [`WHOLE_BYTES_MAX_ETHERNET`], more than a receiver takes in one frame.
///
/// ```
/// use tautline_proto::fragment::fragments;
/// use tautline_proto::wire::WHOLE_BYTES_MAX_UDP;
///
/// assert_eq!(fragments(1456, WHOLE_BYTES_MAX_UDP)?.len(), 1);
/// let lengths: Vec<u16> = fragments(1457, WHOLE_BYTES_MAX_UDP)?.map(|part| part.length).collect();
/// assert_eq!(lengths, [1408, 49]);
/// # Ok::<(), tautline_proto::fragment::MessageTooLarge>(())
/// ```
#[inline]
pub fn fragments(
    message_bytes: usize,
    whole_bytes_max: usize,
) -> Result<impl ExactSizeIterator<Item = Fragment> + DoubleEndedIterator + Clone, MessageTooLarge>
{
    assert!(
        (FRAGMENT_BYTES..=WHOLE_BYTES_MAX_ETHERNET).contains(&whole_bytes_max),
        "frames of {whole_bytes_max} payload bytes, \
         expected {FRAGMENT_BYTES} to {WHOLE_BYTES_MAX_ETHERNET}"
    );
    if message_bytes > MESSAGE_BYTES_MAX {
        return Err(MessageTooLarge { message_bytes });
    }
    let count = if message_bytes <= whole_bytes_max {
        1
    } else {
        message_bytes.div_ceil(FRAGMENT_BYTES) as u8
    };
    Ok((0..count).map(move |index| {
        let offset = usize::from(index) * FRAGMENT_BYTES;
        let rest = message_bytes - offset;
        let length = match count {
            1 => rest,
            _ => rest.min(FRAGMENT_BYTES),
        };
        Fragment {
            index,
            count,
            offset,
            length: length as u16,
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{FRAGMENT_COUNT_MAX, WHOLE_BYTES_MAX_UDP};

    #[test]
    fn every_length_is_covered_once_and_within_the_limits() {
        for whole_bytes_max in [
            FRAGMENT_BYTES,
            WHOLE_BYTES_MAX_UDP,
            WHOLE_BYTES_MAX_ETHERNET,
        ] {
            for message_bytes in (0..=MESSAGE_BYTES_MAX)
                .step_by(7)
                .chain([MESSAGE_BYTES_MAX])
            {
                let plan = fragments(message_bytes, whole_bytes_max).unwrap();
                assert!(plan.len() <= FRAGMENT_COUNT_MAX);
                assert_eq!(plan.len() == 1, message_bytes <= whole_bytes_max);
                let mut covered = 0;
                for part in plan {
                    assert_eq!(part.offset, covered);
                    covered = part.range().end;
                }
                assert_eq!(covered, message_bytes);
            }
        }
    }

    #[test]
    #[should_panic(expected = "expected 1408 to 1484")]
    fn a_link_too_narrow_for_fragments_is_a_bug() {
        let _ = fragments(1, FRAGMENT_BYTES - 1);
    }

    #[test]
    #[should_panic(expected = "expected 1408 to 1484")]
    fn a_link_wider_than_receivers_take_is_a_bug() {
        let _ = fragments(1, WHOLE_BYTES_MAX_ETHERNET + 1);
    }
}
