//! Network namespaces: which one a thread is in, and one that belongs to this process alone.

use std::io;
use std::os::linux::fs::MetadataExt;
use std::sync::mpsc;

use rustix::thread::UnshareFlags;

/// Stack of the thread in a namespace, which makes system calls only. Lower than the C library's least is refused;
/// higher is memory that a process with locked memory pays for.
const STACK_BYTES: usize = 128 << 10;

/// A network namespace, told by device and inode as the kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Namespace {
    device: u64,
    inode: u64,
}

/// The calling thread's; `None` where /proc is not mounted.
pub(crate) fn current() -> Option<Namespace> {
    let metadata = std::fs::metadata("/proc/thread-self/ns/net").ok()?;
    Some(Namespace {
        device: metadata.st_dev(),
        inode: metadata.st_ino(),
    })
}

impl Namespace {
    /// Its inode's number.
    pub(crate) fn inode(self) -> u64 {
        self.inode
    }
}

/// Something to do for a thread.
type Work = Box<dyn FnOnce() + Send>;

/// A network namespace that holds nothing but what is made in it, with a thread that lives there. It lives as long as
/// the thread, and as the devices' and sockets' that were made in it.
#[derive(Debug)]
pub(crate) struct PrivateNamespace(mpsc::Sender<Work>);

impl PrivateNamespace {
    /// A fresh one, with nothing in it. Needs CAP_SYS_ADMIN; what is done inside does not.
    pub(crate) fn new() -> io::Result<Self> {
        let (sender, work) = mpsc::channel::<Work>();
        let (made, is_made) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("taut-taps".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let entered = enter_fresh();
                let lives = entered.is_ok();
                let _waits = made.send(entered);
                if lives {
                    work.into_iter().for_each(|work| work());
                }
            })?;
        is_made.recv().map_err(io::Error::other)??;
        Ok(Self(sender))
    }

    /// Runs `work` on the thread that is in the namespace, and waits for its result.
    pub(crate) fn inside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (done, result) = mpsc::sync_channel(1);
        let work = move || {
            let _waits = done.send(work());
        };
        // The thread lives as long as this does, unless its work panics.
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.0.send(Box::new(work)).map_err(|_| gone())?;
        result.recv().map_err(|_| gone())?
    }
}

/// Moves this thread into a fresh network namespace. Needs CAP_SYS_ADMIN.
pub(crate) fn enter_fresh() -> io::Result<()> {
    // SAFETY: a network namespace is a thread's own, and no memory or descriptor goes with it.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}
