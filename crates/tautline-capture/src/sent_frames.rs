//! Frames that link `packet` sends: past the queueing discipline, and so past every packet socket that listens, unless
//! the node is asked otherwise. The nodes are asked here, during a capture.

use std::io;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use tautline::status::show_frames;

/// Time between two questions. Lower: nodes work more. Higher: more frames of a node that opens are not seen; beyond
/// five seconds a node stops to show them.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for the first answers. A node that is stopped says nothing for a second.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(2);

/// All captures of this process ask together.
static ASKING: Mutex<Weak<ShownFrames>> = Mutex::new(Weak::new());

/// Frames of link `packet` are shown as long as this lives, and up to five seconds longer.
#[derive(Debug)]
pub(crate) struct ShownFrames;

impl ShownFrames {
    /// Asks all nodes that this user may ask, and asks on beside the capture.
    pub(crate) fn ask() -> io::Result<Arc<Self>> {
        let mut asking = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shown) = asking.upgrade() {
            return Ok(shown);
        }
        let shown = Arc::new(Self);
        *asking = Arc::downgrade(&shown);
        let (tell, first) = mpsc::channel();
        let asked_for = Arc::downgrade(&shown);
        let work = move || {
            while asked_for.strong_count() > 0 {
                // Nodes that cannot be asked are seen as far as they are without that.
                let _asked = show_frames();
                let _nobody_waits = tell.send(());
                thread::sleep(PAUSE);
            }
        };
        thread::Builder::new()
            .name("taut-shown".to_owned())
            .spawn(work)?;
        let _late = first.recv_timeout(FIRST_WAIT_MAX);
        Ok(shown)
    }
}
