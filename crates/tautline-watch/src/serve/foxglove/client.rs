//! A client: its subscriptions, and the messages that wait for it. Nothing waits for the client: what finds no room is
//! left out and counted.

use std::collections::{HashMap, VecDeque};
use std::mem::take;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::json;
use tokio::sync::Notify;
use tokio_tungstenite::tungstenite::Message;

/// Bytes that wait for a client. Lower: a short pause of the network costs messages. Higher: clients that do not read
/// take more memory, as much for each connection.
pub(super) const QUEUE_BYTES_MAX: usize = 1 << 20;
/// Bytes beyond that for answers and announcements, without which a client would not know which channels there are; it
/// is given up then. Lower: the announcement of all channels finds no room. Higher: as above.
const TEXT_BYTES_MAX: usize = 2 << 20;
/// Bytes of a message beside its own, in the queue.
const AROUND_BYTES: usize = size_of::<Message>();
/// Operation that a binary message begins with: data of a subscription.
const MESSAGE_DATA: u8 = 1;

/// Importance of a sentence.
#[derive(Clone, Copy, Debug)]
pub(super) enum Level {
    Warning = 1,
    Error = 2,
}

/// A sentence for the user.
pub(super) fn status(level: Level, sentence: &str) -> Message {
    let level = level as u8;
    text(&json!({ "op": "status", "level": level, "message": sentence }))
}

/// A message in JSON.
pub(super) fn text(json: &serde_json::Value) -> Message {
    Message::text(json.to_string())
}

/// A connected client.
#[derive(Debug, Default)]
pub(super) struct Client {
    state: Mutex<State>,
    woken: Notify,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Message>,
    queue_bytes: usize,
    /// Numbers of the subscriptions by channels.
    subscriptions: HashMap<u32, u32>,
    /// Messages left out since they were last reported.
    left_out: u64,
    /// Whether an announcement found no room.
    is_incomplete: bool,
}

impl Client {
    /// Queues a message of a channel if the client has subscribed to it.
    pub(super) fn publish(&self, channel: u32, time_ns: u64, bytes: &[u8]) {
        let mut state = self.state();
        let Some(subscription) = state.subscriptions.get(&channel) else {
            return;
        };
        if state.queue_bytes + bytes.len() > QUEUE_BYTES_MAX {
            state.left_out += 1;
            return;
        }
        let mut data = Vec::with_capacity(13 + bytes.len());
        data.push(MESSAGE_DATA);
        data.extend(subscription.to_le_bytes());
        data.extend(time_ns.to_le_bytes());
        data.extend_from_slice(bytes);
        state.push(Message::Binary(data.into()));
        self.woken.notify_one();
    }

    /// Queues an answer or announcement. A client without room for it is given up.
    pub(super) fn tell(&self, message: Message) {
        let mut state = self.state();
        match state.queue_bytes + message.len() > QUEUE_BYTES_MAX + TEXT_BYTES_MAX {
            true => state.is_incomplete = true,
            false => state.push(message),
        }
        self.woken.notify_one();
    }

    /// Reports the messages that were left out.
    pub(super) fn report(&self) {
        let left_out = take(&mut self.state().left_out);
        if left_out > 0 {
            let sentence = format!(
                "{left_out} messages are left out: more than 1 MiB would have waited for this connection"
            );
            self.tell(status(Level::Warning, &sentence));
        }
    }

    /// Takes the next message from the queue, if there is one; `None` if the client is to be given up.
    #[allow(clippy::option_option)] // The outer one ends the connection.
    pub(super) fn next(&self) -> Option<Option<Message>> {
        let mut state = self.state();
        if state.is_incomplete {
            return None;
        }
        let next = state.queue.pop_front();
        state.queue_bytes -= next.as_ref().map_or(0, |next| AROUND_BYTES + next.len());
        Some(next)
    }

    /// Waits until there may be messages in the queue.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }

    /// Lets the next wait end at once.
    pub(super) fn wake(&self) {
        self.woken.notify_one();
    }

    /// Subscribes to a channel that there is.
    pub(super) fn subscribe(&self, subscription: u32, channel: u32) -> Result<(), &'static str> {
        let mut state = self.state();
        let mut others = state.subscriptions.iter();
        if others.any(|(of, id)| *of == channel || *id == subscription) {
            return Err(
                "this channel is subscribed already, or this number of a subscription used",
            );
        }
        state.subscriptions.insert(channel, subscription);
        Ok(())
    }

    pub(super) fn unsubscribe(&self, subscription: u32) {
        let mut state = self.state();
        state.subscriptions.retain(|_, id| *id != subscription);
    }

    /// Ends the subscription to a channel that is no more.
    pub(super) fn forget(&self, channel: u32) {
        self.state().subscriptions.remove(&channel);
    }

    #[cfg(test)]
    pub(super) fn subscriptions(&self) -> usize {
        self.state().subscriptions.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push(&mut self, message: Message) {
        self.queue_bytes += AROUND_BYTES + message.len();
        self.queue.push_back(message);
    }
}
