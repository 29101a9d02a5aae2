//! Sequence numbers of a flow: the messages from one port to one port of one peer.

/// Number of the next frame, or on a bus of the next message, of a flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbering(u32);

impl Numbering {
    /// Takes the next number. A message that could not be sent has used its number too: the peer counts it as lost,
    /// which it is. A number used twice would pass for a duplicate.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> u32 {
        let number = self.0;
        self.0 = number.wrapping_add(1);
        number
    }

    /// Gives the last number back: the link has not taken its frame, and the caller will send it again.
    #[inline(always)]
    pub(crate) fn give_back(&mut self) {
        self.0 = self.0.wrapping_sub(1);
    }
}
