//! A node tells its state to whoever asks: `taut status`, or [`nodes`] from code.
//!
//! Each node listens on a Unix socket in the abstract name space of its network namespace, writes
//! one JSON document to whoever connects, and closes. The thread that does so sleeps otherwise, and
//! touches nothing of the data path but its counters. The kernel drops the socket with the
//! process, so a killed node is not listed.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use rustix::net::SocketType;

use crate::node::NodeInner;
use crate::sys::unix;

/// How the sockets' names begin; process id and a serial number follow.
const NAME: &str = "tautline/node/";
/// Askers that can wait for a control process to come to them. Lower: some are refused. Higher: a stopped one keeps
/// more waiting.
const ASKERS_MAX: i32 = 16;
/// How long an asker or an asked node may take. Lower: a busy machine's nodes seem dead. Higher:
/// `taut status` hangs on a stopped process for that long.
const TIME_LIMIT: Duration = Duration::from_secs(1);
/// Most bytes of one answer: a node with all ports open and all peers known is below 8 MiB.
const ANSWER_BYTES_MAX: u64 = 8 << 20;

/// Ends the thread when dropped.
#[derive(Debug)]
pub(crate) struct StatusServer {
    address: SocketAddr,
}

impl StatusServer {
    /// Starts to answer for a node.
    pub(crate) fn start(node: Weak<NodeInner>) -> io::Result<Self> {
        let address = SocketAddr::from_abstract_name(own_name())?;
        let listener = UnixListener::bind_addr(&address)?;
        std::thread::Builder::new()
            .name("taut-status".to_owned())
            .spawn(move || serve(&listener, &node))?;
        Ok(Self { address })
    }
}

/// A socket on which whoever asks for the state of a node of this process connects, to be answered
/// without waiting.
pub(crate) fn listener() -> io::Result<OwnedFd> {
    unix::listen(&own_name(), SocketType::STREAM, ASKERS_MAX)
}

/// A name that no other node has.
fn own_name() -> String {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let serial = SERIAL.fetch_add(1, Relaxed);
    format!("{NAME}{}/{serial}", std::process::id())
}

fn serve(listener: &UnixListener, node: &Weak<NodeInner>) {
    for stream in listener.incoming() {
        // The node is gone, and whoever dropped it has connected to let us know.
        let Some(node) = node.upgrade() else {
            return;
        };
        if let Ok(stream) = stream {
            // An asker that went away is its own affair.
            let _gone = answer(stream, &node);
        }
    }
}

fn answer(mut stream: UnixStream, node: &NodeInner) -> io::Result<()> {
    stream.set_write_timeout(Some(TIME_LIMIT))?;
    let document = serde_json::to_vec(&node.status())?;
    stream.write_all(&document)
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        let _woken = UnixStream::connect_addr(&self.address);
    }
}

/// The states of all nodes in this network namespace, as they describe themselves. A node that does
/// not answer in time is left out and named in the second list.
///
/// # Errors
/// If `/proc/net/unix` cannot be read.
pub fn nodes() -> io::Result<(Vec<serde_json::Value>, Vec<String>)> {
    let sockets = std::fs::read_to_string("/proc/thread-self/net/unix")?;
    let mut states = Vec::new();
    let mut silent = Vec::new();
    for line in sockets.lines() {
        // The kernel writes the leading zero byte of an abstract name as `@`. Connected ends have
        // the name of the listener; a listener is in state 01 with the accept flag.
        let mut fields = line.split_whitespace();
        let flags = fields.nth(3);
        let Some(name) = fields.last().and_then(|path| path.strip_prefix('@')) else {
            continue;
        };
        if !name.starts_with(NAME) || flags != Some("00010000") {
            continue;
        }
        match ask(name) {
            Ok(state) => states.push(state),
            Err(_) => silent.push(name.trim_start_matches(NAME).to_owned()),
        }
    }
    Ok((states, silent))
}

fn ask(name: &str) -> io::Result<serde_json::Value> {
    let address = SocketAddr::from_abstract_name(name)?;
    let stream = UnixStream::connect_addr(&address)?;
    stream.set_read_timeout(Some(TIME_LIMIT))?;
    let mut document = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut document)?;
    Ok(serde_json::from_slice(&document)?)
}
