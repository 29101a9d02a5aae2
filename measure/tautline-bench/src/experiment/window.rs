//! A stream of messages with window-based flow control, over paths that have none of their own: the receiver
//! returns credits, and the sender never has more messages under way than the window holds.
//!
//! A credit is the number of messages received since the stream began, eight bytes, little-endian. It is sent for each
//! quarter of a window, so that the window does not close while there is room.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::path::End;

/// How long a receiver waits before it looks whether it is to stop, and a sender before it takes what is under way for
/// lost. Lower: a stall of a shared machine passes for loss. Higher: a stop takes longer.
const PATIENCE: Duration = Duration::from_millis(20);
const CREDIT_BYTES: usize = size_of::<u64>();

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
    path: &mut dyn End,
    message: &[u8],
    window: u64,
    most: u64,
    stop: &AtomicBool,
) -> io::Result<Sent> {
    let batch = path.batch().clamp(1, (window / 4).max(1) as usize);
    let messages = message.repeat(batch);
    // Credits of an earlier stream.
    path.update(CREDIT_BYTES)?;
    let mut credited = 0;
    let mut sent = Sent::default();
    // Relaxed: the flag carries nothing else, and is seen at one of the next looks.
    while sent.messages < most && !stop.load(Ordering::Relaxed) {
        let under_way = sent.messages.saturating_sub(sent.lost + credited);
        let room = window.saturating_sub(under_way);
        let closed = room < batch as u64;
        if closed || room <= window / 4 + batch as u64 {
            let came = match closed {
                true => path.wait(CREDIT_BYTES, PATIENCE)?,
                false => path.take(CREDIT_BYTES)?,
            };
            if came.is_some() {
                credited = credited.max(count_of(path.message()));
            }
            if closed {
                if came.is_none() {
                    sent.lost = sent.messages.saturating_sub(credited);
                }
                continue;
            }
        }
        let rest = usize::try_from(most - sent.messages).unwrap_or(batch);
        let now = &messages[..batch.min(rest) * message.len()];
        sent.messages += path.send_many(now, message.len())? as u64;
    }
    Ok(sent)
}

/// Receives a stream and returns credits, until `stop` is set and nothing comes any more. Counts in `received`;
/// returns when the last message came, if any did.
pub(super) fn receive_stream(
    path: &mut dyn End,
    message_bytes: usize,
    window: u64,
    received: &AtomicU64,
    stop: &AtomicBool,
) -> io::Result<Option<Instant>> {
    let mut count = 0;
    let mut credited = 0;
    let mut last = None;
    loop {
        let came = path.wait_many(message_bytes, PATIENCE)?;
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
            // A credit without room is made up for by the next one.
            let _lost = path.send(&count.to_le_bytes())?;
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
    use crate::path::Arrival;

    /// Two queues, and the most messages that lay in the one to the receiver.
    #[derive(Default)]
    struct Wire {
        queues: [VecDeque<Vec<u8>>; 2],
        most: usize,
        lose_every: usize,
        carried: usize,
    }

    struct Local {
        wire: Arc<Mutex<Wire>>,
        side: usize,
        message: Vec<u8>,
    }

    impl End for Local {
        fn send(&mut self, message: &[u8]) -> io::Result<bool> {
            let mut wire = self.wire.lock().unwrap();
            wire.carried += 1;
            let loses = self.side == 0
                && wire.lose_every > 0
                && wire.carried.is_multiple_of(wire.lose_every);
            if !loses {
                wire.queues[1 - self.side].push_back(message.to_vec());
            }
            wire.most = wire.most.max(wire.queues[1].len());
            Ok(true)
        }

        fn send_back(&mut self) -> io::Result<bool> {
            self.send(&self.message.clone())
        }

        fn take(&mut self, _bytes: usize) -> io::Result<Option<Arrival>> {
            let Some(message) = self.wire.lock().unwrap().queues[self.side].pop_front() else {
                thread::yield_now();
                return Ok(None);
            };
            self.message = message;
            Ok(Some(Arrival { stamp: None }))
        }

        fn message(&self) -> &[u8] {
            &self.message
        }

        fn batch(&self) -> usize {
            3
        }
    }

    fn end(wire: &Arc<Mutex<Wire>>, side: usize) -> Local {
        Local {
            wire: Arc::clone(wire),
            side,
            message: Vec::new(),
        }
    }

    fn stream(lose_every: usize, window: u64) -> (Sent, u64, usize) {
        let wire = Arc::new(Mutex::new(Wire {
            lose_every,
            ..Wire::default()
        }));
        let [mut a, mut b] = [0, 1].map(|side| end(&wire, side));
        let received = AtomicU64::new(0);
        let [sending, receiving] = [(); 2].map(|()| AtomicBool::new(false));
        let sent = thread::scope(|scope| {
            let sender = scope
                .spawn(|| send_stream(&mut a, b"message", window, u64::MAX, &sending).unwrap());
            scope.spawn(|| {
                receive_stream(&mut b, b"message".len(), window, &received, &receiving).unwrap()
            });
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
        let mut end = end(&wire, 0);
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
