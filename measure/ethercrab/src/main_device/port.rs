//! Frames of ethercrab through a raw port.

use std::error::Error;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_io::Async;
use ethercrab::{PduRx, PduTx, error};
use tautline::RawPort;
use tautline::port::RAW_FRAME_BYTES_MAX;

/// Carries frames for as long as it is polled.
pub(crate) struct Frames<'sto> {
    port: RawPort,
    tx: PduTx<'sto>,
    rx: PduRx<'sto>,
    /// Becomes readable when a frame arrives; `None` where nobody sleeps.
    doorbell: Option<Async<OwnedFd>>,
    buffer: [u8; RAW_FRAME_BYTES_MAX],
}

impl<'sto> Frames<'sto> {
    pub(crate) fn new(
        mut port: RawPort,
        tx: PduTx<'sto>,
        rx: PduRx<'sto>,
        sleeps: bool,
    ) -> Result<Self, Box<dyn Error>> {
        let doorbell = match sleeps {
            false => None,
            true => {
                let descriptor = port.descriptor().ok_or("the port has no descriptor")?;
                Some(Async::new_nonblocking(descriptor.try_clone_to_owned()?)?)
            }
        };
        Ok(Self {
            port,
            tx,
            rx,
            doorbell,
            buffer: [0; RAW_FRAME_BYTES_MAX],
        })
    }

    fn send(&mut self) -> Result<(), error::Error> {
        while let Some(frame) = self.tx.next_sendable_frame() {
            frame.send_blocking(|bytes| match self.port.send(bytes) {
                Ok(()) => Ok(bytes.len()),
                Err(_) => Err(error::Error::SendFrame),
            })?;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), error::Error> {
        loop {
            let received = self
                .port
                .receive_into(&mut self.buffer, tautline::Wait::Poll);
            match received.map_err(|_| error::Error::ReceiveFrame)? {
                Some(frame) => self.rx.receive_frame(&self.buffer[..frame.length])?,
                None => return Ok(()),
            };
        }
    }
}

impl Future for Frames<'_> {
    type Output = Result<(), error::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let frames = self.get_mut();
        frames.tx.replace_waker(context.waker());
        if let Err(error) = frames.send() {
            return Poll::Ready(Err(error));
        }
        loop {
            if let Err(error) = frames.receive() {
                return Poll::Ready(Err(error));
            }
            let Some(doorbell) = &frames.doorbell else {
                return Poll::Pending;
            };
            match doorbell.poll_readable(context) {
                Poll::Pending => return Poll::Pending,
                // It rang: a frame may be there.
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Err(error::Error::ReceiveFrame)),
            }
        }
    }
}
