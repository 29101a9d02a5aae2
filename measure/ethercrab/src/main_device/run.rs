//! Runs the main device's work and what carries its frames on one thread.

use std::error::Error;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use async_io::block_on;
use futures_lite::future::or;

/// Result of the work.
pub(crate) type Outcome = Result<String, Box<dyn Error>>;

/// Runs both until the work is done; what carries frames ends only by failing. Without sleeping, all are asked again
/// and again.
pub(crate) fn beside<T>(
    work: impl Future<Output = Outcome>,
    frames: Pin<Box<dyn Future<Output = Result<T, ethercrab::error::Error>> + '_>>,
    spins: bool,
) -> Outcome {
    let frames = async {
        match frames.await {
            Ok(_) => Err("frames are not carried any more".into()),
            Err(error) => Err(format!("frames are not carried: {error}").into()),
        }
    };
    let both = or(frames, work);
    if !spins {
        return block_on(both);
    }
    let mut both = pin!(both);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(outcome) = both.as_mut().poll(&mut context) {
            return outcome;
        }
        std::hint::spin_loop();
    }
}
