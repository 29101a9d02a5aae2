//! Tests of pages: a server, and several users who ask it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::Router;
use axum::routing::get;

use super::{Guard, Socket, serve};

/// Longest wait for an answer; a busy machine is slow.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(20);
/// Path of an answer of 16 MiB.
pub(super) const LARGE: &str = "/large";

/// A thread of another user: the kernel's user ids are those of a thread.
pub(super) fn on_thread_of<R: Send + 'static>(
    user: u32,
    work: impl FnOnce() -> R + Send + 'static,
) -> Option<JoinHandle<R>> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: needs root, to be several users");
        return None;
    }
    Some(thread::spawn(move || {
        let user = rustix::fs::Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        work()
    }))
}

/// Result of a closure that another user runs.
pub(super) fn as_user<R: Send + 'static>(
    user: u32,
    work: impl FnOnce() -> R + Send + 'static,
) -> Option<R> {
    Some(on_thread_of(user, work)?.join().unwrap())
}

/// A server, until it is dropped.
pub(super) struct Served {
    pub(super) address: SocketAddr,
    is_over: Arc<AtomicBool>,
    server: Option<JoinHandle<io::Result<()>>>,
}

impl Served {
    pub(super) fn start(token: Option<&str>) -> Self {
        let guard = Guard {
            names: Vec::new(),
            token: token.map(str::to_owned),
            files: &[],
            command: "test",
            takes_orders: false,
            socket: None,
        };
        let large = || async { vec![b'x'; 16 << 20] };
        let router = Router::new().route("/", get(|| async { "here\n" }));
        let router = router.route(LARGE, get(large));
        let is_over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&is_over);
        let (tell, ready) = std::sync::mpsc::channel();
        let server = thread::spawn(move || {
            let socket = Socket::bind(([127, 0, 0, 1], 0).into())?;
            let ready = |address| tell.send(address).unwrap();
            serve(socket, guard, router, ready, || ended.load(Relaxed))
        });
        Self {
            address: ready.recv().unwrap(),
            is_over,
            server: Some(server),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        let server = self.server.take().map(JoinHandle::join);
        assert!(matches!(server, Some(Ok(Ok(())))) || thread::panicking());
    }
}

/// Status of an answer on a new connection.
pub(super) fn ask(address: SocketAddr, path: &str, headers: &str) -> io::Result<u16> {
    ask_on(&mut TcpStream::connect(address)?, path, headers)
}

/// Status of an answer on a connection. The answer is short, and ends with a line.
pub(super) fn ask_on(stream: &mut TcpStream, path: &str, headers: &str) -> io::Result<u16> {
    stream.set_read_timeout(Some(WAIT_MAX))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"
    )?;
    let mut answer = Vec::new();
    loop {
        let mut some = [0; 4096];
        match stream.read(&mut some)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => answer.extend_from_slice(&some[..bytes]),
        }
        let text = String::from_utf8_lossy(&answer);
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        if body.ends_with('\n') {
            let status = text
                .split(' ')
                .nth(1)
                .and_then(|status| status.parse().ok());
            return status.ok_or_else(|| io::ErrorKind::InvalidData.into());
        }
    }
}
