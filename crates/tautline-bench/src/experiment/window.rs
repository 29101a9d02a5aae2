//! A stream of messages with window-based flow control, over paths that have none of their own: the receiver
//! returns credits, and the sender never has more messages under way than the window holds.
//!
//! A credit is the number of messages received since the stream began, eight bytes, little-endian. It is sent for each
//! quarter of a window, so that the window does not close while there is room.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a receiver waits before it looks whether it is to stop, and a sender before it takes what is under way for
/// lost. Lower: a stall of a shared machine passes for loss. Higher: a stop takes longer.
const PATIENCE: Duration = Duration::from_millis(20);

/// One end of a path that carries messages whole, or loses them.
pub(super) trait Datagrams: Send {
    /// Sends messages of `message_bytes` each that lie one after the other in `messages`; returns how many of them,
    /// from the first on. Less than all where there is no room.
    fn send(&mut self, messages: &[u8], message_bytes: usize) -> io::Result<usize>;

    /// Waits for messages, at most `limit`, and hands each one to `take`; how many came.
    fn receive(&mut self, limit: Duration, take: &mut dyn FnMut(&[u8])) -> io::Result<u64>;

    /// Messages that one call of [`Datagrams::send`] carries best.
    fn batch(&self) -> usize {
        1
    }
}

/// Work of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    /// Messages sent.
    pub(super) messages: u64,
    /// Messages for which no credit came in time.
    pub(super) lost: u64,
}

/// Sends copies of `message` as fast as credits come, at most `most` of them, until `stop` is set.
pub(super) fn send_stream(
    path: &mut dyn Datagrams,
    message: &[u8],
    window: u64,
    most: u64,
    stop: &AtomicBool,
) -> io::Result<Sent> {
    let batch = path.batch().clamp(1, (window / 4).max(1) as usize);
    let messages = message.repeat(batch);
    // Credits of an earlier stream.
    while path.receive(Duration::ZERO, &mut |_| {})? > 0 {}
    let mut credited = 0;
    let mut sent = Sent::default();
    // Relaxed: the flag carries nothing else, and is seen at one of the next looks.
    while sent.messages < most && !stop.load(Ordering::Relaxed) {
        let under_way = sent.messages.saturating_sub(sent.lost + credited);
        let room = window.saturating_sub(under_way);
        let closed = room < batch as u64;
        if closed || room <= window / 4 + batch as u64 {
            let limit = if closed { PATIENCE } else { Duration::ZERO };
            let mut newest = credited;
            let came = path.receive(limit, &mut |credit| newest = newest.max(count_of(credit)))?;
            credited = newest;
            if closed {
                if came == 0 {
                    sent.lost = sent.messages.saturating_sub(credited);
                }
                continue;
            }
        }
        let rest = usize::try_from(most - sent.messages).unwrap_or(batch);
        let now = &messages[..batch.min(rest) * message.len()];
        sent.messages += path.send(now, message.len())? as u64;
    }
    Ok(sent)
}

/// Receives a stream and returns credits, until `stop` is set and nothing comes any more. Counts in `received`;
/// returns when the last message came, if any did.
pub(super) fn receive_stream(
    path: &mut dyn Datagrams,
    window: u64,
    received: &AtomicU64,
    stop: &AtomicBool,
) -> io::Result<Option<Instant>> {
    let mut count = 0;
    let mut credited = 0;
    let mut last = None;
    loop {
        let came = path.receive(PATIENCE, &mut |_| {})?;
        if came == 0 && stop.load(Ordering::Relaxed) {
            return Ok(last);
        }
        if came > 0 {
            last = Some(Instant::now());
        }
        count += came;
        // Relaxed: a figure that is read while it grows.
        received.fetch_add(came, Ordering::Relaxed);
        if count - credited >= window.div_ceil(4) {
            path.send(&count.to_le_bytes(), size_of::<u64>())?;
            credited = count;
        }
    }
}

/// The number in a credit; 0 in anything else.
fn count_of(credit: &[u8]) -> u64 {
    credit.try_into().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};
    use std::thread;

    use super::*;

    /// Two queues, and the most messages that lay in the one to the receiver.
    #[derive(Default)]
    struct Wire {
        queues: [VecDeque<Vec<u8>>; 2],
        most: usize,
        lose_every: usize,
        carried: usize,
    }

    struct End(Arc<Mutex<Wire>>, usize);

    impl Datagrams for End {
        fn send(&mut self, messages: &[u8], message_bytes: usize) -> io::Result<usize> {
            let mut wire = self.0.lock().unwrap();
            for message in messages.chunks(message_bytes) {
                wire.carried += 1;
                let loses = self.1 == 0
                    && wire.lose_every > 0
                    && wire.carried.is_multiple_of(wire.lose_every);
                if !loses {
                    wire.queues[1 - self.1].push_back(message.to_vec());
                }
            }
            wire.most = wire.most.max(wire.queues[1].len());
            Ok(messages.len() / message_bytes)
        }

        fn receive(&mut self, limit: Duration, take: &mut dyn FnMut(&[u8])) -> io::Result<u64> {
            let start = Instant::now();
            loop {
                let taken: Vec<_> = self.0.lock().unwrap().queues[self.1].drain(..).collect();
                taken.iter().for_each(|message| take(message));
                if !taken.is_empty() || start.elapsed() >= limit {
                    return Ok(taken.len() as u64);
                }
                thread::yield_now();
            }
        }

        fn batch(&self) -> usize {
            3
        }
    }

    fn stream(lose_every: usize, window: u64) -> (Sent, u64, usize) {
        let wire = Arc::new(Mutex::new(Wire {
            lose_every,
            ..Wire::default()
        }));
        let [mut a, mut b] = [0, 1].map(|end| End(Arc::clone(&wire), end));
        let received = AtomicU64::new(0);
        let [sending, receiving] = [(); 2].map(|()| AtomicBool::new(false));
        let sent = thread::scope(|scope| {
            let sender = scope
                .spawn(|| send_stream(&mut a, b"message", window, u64::MAX, &sending).unwrap());
            scope.spawn(|| receive_stream(&mut b, window, &received, &receiving).unwrap());
            thread::sleep(Duration::from_millis(50));
            sending.store(true, Ordering::Relaxed);
            let sent = sender.join().unwrap();
            receiving.store(true, Ordering::Relaxed);
            sent
        });
        let most = wire.lock().unwrap().most;
        (sent, received.load(Ordering::Relaxed), most)
    }

    #[test]
    fn no_more_is_under_way_than_the_window_holds() {
        for window in [1, 4, 64] {
            let (sent, received, most) = stream(0, window);
            assert!(sent.messages > window, "it goes on: {sent:?}");
            assert_eq!((received, sent.lost), (sent.messages, 0));
            assert!(most as u64 <= window, "{most} of {window}");
        }
    }

    #[test]
    fn a_stream_of_a_given_length_has_it() {
        let wire = Arc::new(Mutex::new(Wire::default()));
        let mut end = End(Arc::clone(&wire), 0);
        let sent = send_stream(&mut end, b"message", 100, 8, &AtomicBool::new(false)).unwrap();
        assert_eq!(
            (sent.messages, wire.lock().unwrap().queues[1].len()),
            (8, 8),
            "no multiple of the batch"
        );
    }

    #[test]
    fn loss_does_not_end_the_stream() {
        let (sent, received, _) = stream(3, 8);
        assert!(sent.messages > 8 && received < sent.messages, "{sent:?}");
    }

    #[test]
    fn anything_but_a_credit_is_none() {
        assert_eq!(count_of(&7u64.to_le_bytes()), 7);
        assert_eq!(count_of(b""), 0);
        assert_eq!(count_of(&[255; 9]), 0);
    }
}
