//! Counters of the network.

/// Counters of frames. Each copy towards a receiver is counted on its own.
///
/// Nothing vanishes unseen: `copies + duplicated` is the sum of `delivered`, everything below it,
/// and what is still on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimCounters {
    /// Frames sent.
    pub sent: u64,
    /// Copies made of them: one for each receiver of a group, none if no node has the address.
    pub copies: u64,
    /// Frames to a station address that no node has.
    pub no_receiver: u64,
    /// Additional copies made by duplication.
    pub duplicated: u64,
    /// Copies that were given an additional delay.
    pub reordered: u64,
    /// Copies put into a receiver's queue, damaged ones included.
    pub delivered: u64,
    /// Of the delivered, those damaged without notice.
    pub corrupted_delivered: u64,
    /// Copies lost.
    pub lost: u64,
    /// Copies damaged, noticed and dropped.
    pub corrupted_dropped: u64,
    /// Copies stopped by a partition of the network.
    pub partitioned: u64,
    /// Copies dropped because too many frames were on the way.
    pub network_full: u64,
    /// Copies dropped because too many frames waited at the receiver.
    pub queue_full: u64,
}
