//! Reports that datagrams of plain UDP did not arrive: the last few, from the demux to the port's thread.
//!
//! A ring that the writer never waits for. Writers on several CPUs take turns by a lock that they try
//! once: the second gives way and is counted. The count of news grows when an entry is whole. Each entry
//! carries its number; the reader takes an entry only if the number is the one that it looks for before
//! and after reading, so what is overwritten meanwhile is left out, and what is left out can be counted
//! from the numbers. The writer is `tell` in `bpf/udp.bpf.h`.

use crate::layout::{Control, NEWS_COUNT};
use crate::sample::WriterBusy;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use crate::sync::fence;

/// Fields that the demux has read from an ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UndeliveredReport {
    /// Source word of the datagram's destination.
    pub destination: u64,
    /// ICMP's code.
    pub code: u8,
    /// The next network's MTU, where the code is about that.
    pub mtu_bytes: u16,
}

/// How far the port's thread has read.
#[derive(Debug, Default)]
pub struct UndeliveredReader {
    next: u64,
}

impl UndeliveredReader {
    /// The next news that can still be read. Bounded by the length of the ring; a look when there is none
    /// is one load.
    #[inline]
    pub fn next(&mut self, control: &Control) -> Option<UndeliveredReport> {
        // Acquire: partner is the writer's Release of the count.
        let count = control.producer.news.load(Acquire);
        if count == self.next {
            return None;
        }
        let oldest = count.saturating_sub(NEWS_COUNT as u64);
        self.next = self.next.clamp(oldest, count);
        while self.next < count {
            let number = self.next;
            self.next += 1;
            let entry = &control.news.entry[number as usize % NEWS_COUNT];
            // Acquire: partner is the writer's Release of the number.
            let about = entry.about.load(Acquire);
            let destination = entry.destination.load(Relaxed);
            // Partner is the writer's fence: a reader of a newer destination sees the number gone.
            fence(Acquire);
            let unchanged = entry.about.load(Relaxed) == about;
            if unchanged && about >> 32 == (number + 1) & 0xFFFF_FFFF {
                return Some(UndeliveredReport {
                    destination,
                    code: about as u8,
                    mtu_bytes: (about >> 8) as u16,
                });
            }
        }
        None
    }
}

/// The writer, as the demux does it. Wait-free.
///
/// # Errors
/// [`WriterBusy`], already counted in `control`: another writer was at work.
pub fn tell(control: &Control, news: &UndeliveredReport) -> Result<(), WriterBusy> {
    let producer = &control.producer;
    // Acquire: partner is the Release that ends the previous writer's turn.
    let turn = producer.news_lock.compare_exchange(0, 1, Acquire, Relaxed);
    if turn.is_err() {
        producer.contended.fetch_add(1, Relaxed);
        return Err(WriterBusy);
    }
    let number = producer.news.load(Relaxed);
    let entry = &control.news.entry[number as usize % NEWS_COUNT];
    // Nothing of the new entry is written before the old one is void: partner is the reader's fence. In
    // the demux it is part of the exchange.
    entry.about.store(0, Relaxed);
    fence(Release);
    entry.destination.store(news.destination, Relaxed);
    let about = (number + 1) << 32 | u64::from(news.mtu_bytes) << 8 | u64::from(news.code);
    entry.about.store(about, Release);
    producer.news.store(number + 1, Release);
    producer.news_lock.store(0, Release);
    Ok(())
}
