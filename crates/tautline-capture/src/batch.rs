//! Copies from several taps, in the order of time.

use std::ops::Range;

/// Way of a frame or message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It arrived here.
    Received,
    /// It left from here.
    Sent,
}

/// Number of the tap that copied something, from 0 in the order in which the user of this crate opened them.
pub type Origin = u32;

/// A frame or message that was copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Tap that copied it.
    pub origin: Origin,
    /// Nanoseconds since 1970 at which it passed.
    pub time_ns: u64,
    /// Its way.
    pub way: Way,
    /// Its bytes, of which fewer may have been kept.
    pub length: u32,
    /// Copies that its tap lost just before it.
    pub lost: u64,
    bytes: Range<usize>,
}

/// Copies that have not been written yet.
#[derive(Debug, Default)]
pub struct Batch {
    items: Vec<Item>,
    bytes: Vec<u8>,
}

impl Batch {
    /// Appends a copy, whose bytes come in parts.
    pub(crate) fn push(
        &mut self,
        origin: Origin,
        time_ns: u64,
        way: Way,
        length: usize,
        parts: &[&[u8]],
        lost: u64,
    ) {
        let begin = self.bytes.len();
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.items.push(Item {
            origin,
            time_ns,
            way,
            length: u32::try_from(length).unwrap_or(u32::MAX),
            lost,
            bytes: begin..self.bytes.len(),
        });
    }

    /// Hands out everything in the order of time, with the bytes, and is empty afterwards.
    ///
    /// # Errors
    /// The first of `each`; the rest is dropped.
    pub fn drain<E>(
        &mut self,
        mut each: impl FnMut(&Item, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        // Stable: what one tap copied at one moment stays in its order.
        self.items.sort_by_key(|item| item.time_ns);
        let result = self
            .items
            .iter()
            .try_for_each(|item| each(item, &self.bytes[item.bytes.clone()]));
        self.items.clear();
        self.bytes.clear();
        result
    }

    /// Copies that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_come_out_in_the_order_of_time() {
        let mut batch = Batch::default();
        batch.push(0, 30, Way::Sent, 2, &[b"c", b"d"], 0);
        batch.push(1, 10, Way::Received, 1, &[b"a"], 4);
        batch.push(0, 10, Way::Received, 900, &[b"b"], 0);
        let mut seen = Vec::new();
        batch
            .drain(|item, bytes| {
                seen.push((item.origin, item.length, item.lost, bytes.to_vec()));
                Ok::<_, ()>(())
            })
            .unwrap();
        let expected = [
            (1, 1, 4, b"a".to_vec()),
            (0, 900, 0, b"b".to_vec()),
            (0, 2, 0, b"cd".to_vec()),
        ];
        assert_eq!(seen, expected);
        assert!(batch.is_empty());
    }
}
