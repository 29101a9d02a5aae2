//! The serial line: bytes of the guest, by a pipe to a thread that writes them out. The guest never waits for the
//! reader of its console; when the pipe is full, bytes are lost and counted.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;

/// Bytes that are written out at once.
const WRITE_BYTES_MAX: usize = 4096;

/// The guest's end. Dropped, the line is closed.
#[derive(Debug)]
pub(super) struct Console {
    pipe: PipeWriter,
    lost: Arc<AtomicU64>,
}

impl Console {
    /// Starts the thread that writes to standard output, once all threads have started.
    pub(super) fn start(started: &Arc<Barrier>) -> io::Result<(Console, JoinHandle<()>)> {
        let (output, console) = Console::new()?;
        let lost = Arc::clone(&console.lost);
        let started = Arc::clone(started);
        let body = move || {
            started.wait();
            write_out(output, &lost);
        };
        let thread = std::thread::Builder::new()
            .name("taut-console".to_owned())
            .spawn(body)?;
        Ok((console, thread))
    }

    fn new() -> io::Result<(PipeReader, Console)> {
        let (output, pipe) = io::pipe()?;
        // The other end alone waits.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let lost = Arc::default();
        Ok((output, Console { pipe, lost }))
    }

    /// Takes bytes. Never waits.
    pub(super) fn put(&self, bytes: &[u8]) {
        let taken = (&self.pipe).write(bytes).unwrap_or(0);
        let left = (bytes.len() - taken) as u64;
        if left > 0 {
            // One thread writes; `write_out` reads.
            self.lost.store(self.lost.load(Relaxed) + left, Relaxed);
        }
    }
}

fn write_out(mut pipe: PipeReader, lost: &AtomicU64) {
    let mut stdout = io::stdout().lock();
    let mut buffer = [0; WRITE_BYTES_MAX];
    let mut said = 0;
    loop {
        let bytes = match pipe.read(&mut buffer) {
            Ok(0) => break,
            Ok(bytes) => &buffer[..bytes],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        // The console has no reader any more: the guest goes on all the same.
        let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
        let gone = lost.load(Relaxed);
        if gone > said {
            let _ = writeln!(stdout, "\n[{} bytes of the console are lost]", gone - said);
            said = gone;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_line_loses_bytes_and_holds_nobody_up() {
        let (mut output, console) = Console::new().unwrap();
        let put = 1 << 20;
        for _ in 0..put / 64 {
            console.put(&[b'x'; 64]);
        }
        let lost = console.lost.load(Relaxed);
        drop(console);
        let taken = io::copy(&mut output, &mut io::sink()).unwrap();
        assert!(taken > 0 && lost > 0);
        assert_eq!(taken + lost, put);
    }
}
