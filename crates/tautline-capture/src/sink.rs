//! A file that grows by whole blocks: when the disk is full, it ends with the last block that found room.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use tautline_state::Existing;

use crate::error::CaptureError;

/// A file, or standard output.
#[derive(Debug)]
pub struct Sink {
    file: File,
    /// Bytes of the file, if it can be cut.
    written: Option<u64>,
    buffer: Vec<u8>,
    /// Where in the buffer blocks end.
    ends: Vec<usize>,
}

impl Sink {
    /// Makes a file; `-` is standard output.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(path: &Path, existing: Existing) -> io::Result<Self> {
        let (file, written) = match path == Path::new("-") {
            true => (
                File::from(rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?),
                None,
            ),
            false => {
                let file = tautline_state::create(path, existing)?;
                // A device or a pipe cannot be cut.
                let is_file = file.metadata()?.is_file();
                (file, is_file.then_some(0))
            }
        };
        Ok(Self {
            file,
            written,
            buffer: Vec::new(),
            ends: Vec::new(),
        })
    }

    /// Appends blocks. They are in the file after [`flush`](Self::flush).
    pub fn block(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.buffer);
        self.ends.push(self.buffer.len());
    }

    /// Writes what was appended.
    ///
    /// # Errors
    /// [`CaptureError::Write`]: the file ends with the last block that found room.
    pub fn flush(&mut self) -> Result<(), CaptureError> {
        let mut done = 0;
        let result = loop {
            match self.file.write(&self.buffer[done..]) {
                Ok(_) if done == self.buffer.len() => break Ok(()),
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        let whole = self
            .ends
            .iter()
            .rev()
            .find(|end| **end <= done)
            .copied()
            .unwrap_or(0);
        if let Some(written) = &mut self.written {
            *written += whole as u64;
            if result.is_err() {
                // Fails no more than it helps: the reason is told in any case.
                let _ = self.file.set_len(*written);
            }
        }
        self.buffer.clear();
        self.ends.clear();
        result.map_err(|source| CaptureError::Write { source })
    }

    /// Whether the error says that the reader of a pipe has gone.
    #[must_use]
    pub fn is_reader_gone(error: &CaptureError) -> bool {
        matches!(error, CaptureError::Write { source } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}
