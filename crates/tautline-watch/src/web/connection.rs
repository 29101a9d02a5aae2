//! Connections of browsers: so many at most, and none that stays without reading or saying anything.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Connections at a time. Lower: a few browsers with several pages shut each other out. Higher: whoever only holds
/// connections takes more memory, 64 KiB or so each.
const CONNECTIONS_MAX: usize = 64;
/// Time for which a connection may do nothing, of which a browser that does not read is a case. Lower: a page on a bad
/// network is cut off. Higher: connections that nobody uses keep others out for longer.
const IDLE_MAX: Duration = Duration::from_secs(15);
/// Time after which a connection ends whatever it does; a browser opens another. Lower: more are opened. Higher: one
/// that sends a byte now and then holds its place for longer.
const LIFE_MAX: Duration = Duration::from_secs(300);
/// Pause where the process has no descriptor for a connection.
const NO_DESCRIPTOR_PAUSE: Duration = Duration::from_millis(250);

/// A socket that accepts a bounded number of connections.
pub(super) struct BoundedListener {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl BoundedListener {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self {
            listener,
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        }
    }
}

impl Listener for BoundedListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            // Those for whom there is no place wait in the kernel's queue.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                // Nobody closes the semaphore.
                std::future::pending::<()>().await;
                continue;
            };
            match self.listener.accept().await {
                Ok((stream, address)) => return (Connection::new(stream, place), address),
                Err(_) => sleep(NO_DESCRIPTOR_PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when nothing has moved for a time, in either direction.
pub(super) struct Connection {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    life: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, place: OwnedSemaphorePermit) -> Self {
        Self {
            stream,
            idle: Box::pin(sleep(IDLE_MAX)),
            life: Box::pin(sleep(LIFE_MAX)),
            _place: place,
        }
    }

    /// Result of an operation, or the end of a connection whose time is over.
    fn bounded<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.idle.as_mut().reset(Instant::now() + IDLE_MAX);
            return polled;
        }
        let is_over = self.idle.as_mut().poll(context).is_ready()
            || self.life.as_mut().poll(context).is_ready();
        match is_over {
            true => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            false => Poll::Pending,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.bounded(context, polled)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
