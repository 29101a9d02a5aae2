//! News that a datagram of plain UDP did not arrive: the last few, from the demux to the port's thread.
//!
//! A ring that the writer never waits for. Each entry carries its number; the reader takes an entry only if
//! the number is the one that it looks for before and after reading, so what was overwritten meanwhile is
//! left out, and what is left out can be counted from the numbers. The writer is
//! `tell` in `bpf/udp.bpf.h`.

use crate::layout::{Control, NEWS_COUNT};
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::sync::fence;

/// What the demux has read from an ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// Source word of the datagram's destination.
    pub destination: u64,
    /// ICMP's code.
    pub code: u8,
    /// The next network's MTU, where the code is about that.
    pub mtu_bytes: u16,
}

/// How far the port's thread has read.
#[derive(Debug, Default)]
pub struct NewsReader {
    next: u64,
}

impl NewsReader {
    /// The next news that can still be read. Bounded by the length of the ring; a look when there is none
    /// is one load.
    #[inline]
    pub fn next(&mut self, control: &Control) -> Option<News> {
        // Acquire: partner is the writer's increment.
        let count = control.producer.news.load(Acquire);
        if count == self.next {
            return None;
        }
        let oldest = count.saturating_sub(NEWS_COUNT as u64);
        self.next = self.next.clamp(oldest, count);
        while self.next < count {
            let number = self.next;
            let entry = &control.news.entry[number as usize % NEWS_COUNT];
            // Acquire: partner is the writer's publishing exchange.
            let about = entry.about.load(Acquire);
            let destination = entry.destination.load(Relaxed);
            // The second look at the number must not happen before the read above.
            fence(Acquire);
            let unchanged = entry.about.load(Relaxed) == about;
            if about >> 32 == (number + 1) & 0xFFFF_FFFF {
                self.next += 1;
                if unchanged {
                    return Some(News {
                        destination,
                        code: about as u8,
                        mtu_bytes: (about >> 8) as u16,
                    });
                }
            } else if about == 0 || about >> 32 < (number + 1) & 0xFFFF_FFFF {
                // Claimed and not yet written.
                return None;
            } else {
                self.next += 1;
            }
        }
        None
    }
}

/// The writer, as the demux does it. Wait-free.
pub fn tell(control: &Control, news: &News) {
    let number = control.producer.news.fetch_add(1, AcqRel);
    let entry = &control.news.entry[number as usize % NEWS_COUNT];
    // AcqRel: nothing of the new entry is written before the old one is void.
    entry.about.swap(0, AcqRel);
    entry.destination.store(news.destination, Relaxed);
    let about = (number + 1) << 32 | u64::from(news.mtu_bytes) << 8 | u64::from(news.code);
    entry.about.store(about, Release);
}
