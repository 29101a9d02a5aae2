//! How a consumer sleeps without missing a message, and a producer wakes it no more than needed.
//!
//! The consumer announces that it is about to sleep, then looks once more; the producer publishes, then looks whether
//! anybody sleeps. Each side puts a full barrier between its store and its look, so at least one of them sees the
//! other. What rings is the link's business: a BPF ring buffer that epoll understands, a futex, a socket.

use crate::layout::Control;
use crate::sync::Ordering::{Relaxed, SeqCst};
use crate::sync::fence;

/// Consumer: announces that it will sleep. Look for messages once more after this; sleep only if there are none.
pub fn arm(control: &Control) {
    control.consumer.waiting.store(1, Relaxed);
    // Partner: the fence in `wanted`.
    fence(SeqCst);
}

/// Consumer: it is awake, no doorbell is wanted. A ring that is already on its way is harmless.
pub fn disarm(control: &Control) {
    control.consumer.waiting.store(0, Relaxed);
}

/// Whether the announcement still stands, that is: the doorbell has not rung since [`arm`].
#[must_use]
pub fn armed(control: &Control) -> bool {
    control.consumer.waiting.load(Relaxed) != 0
}

/// Producer: after publishing, whether the doorbell must be rung. Answers yes once for each
/// [`arm`], so a sleeper is rung for once however many messages come.
#[must_use]
pub fn wanted(control: &Control) -> bool {
    // Partner: the fence in `arm`.
    fence(SeqCst);
    let wanted = control.consumer.waiting.load(Relaxed) != 0
        && control.consumer.waiting.swap(0, Relaxed) != 0;
    if wanted {
        control.producer.doorbells.fetch_add(1, Relaxed);
    }
    wanted
}
