//! Writes recordings. Whatever happens to the disk, the file is whole up to there.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;
use std::sync::Arc;

use mcap::records::{MessageHeader, Metadata};
use mcap::{WriteOptions, Writer};
use rustix::fs::FallocateFlags;
use tautline::types::{Declaration, print};

use super::channel::{metadata_of, topic_of};
use super::{METADATA, RecordingError};
use crate::message::{Flow, Message};
use crate::nodes::{FlowFacts, FlowNames};

/// Name of the encoding: bytes that only their sender and receiver understand.
const ENCODING: &str = "application/octet-stream";

/// Names of the encodings of typed messages and of their schemas, from MCAP's registry.
const TYPED_ENCODING: &str = "ros1";
const SCHEMA_ENCODING: &str = "ros1msg";
/// Package of the types, which names of ROS have.
const PACKAGE: &str = "tautline";

/// Bytes of a chunk. Lower: more of the file is index. Higher: more is lost if the recorder is killed.
const CHUNK_BYTES: u64 = 256 << 10;

/// Bytes of the disk that are kept free for the file's end while it is written: a chunk, the figures, and the index.
/// The index grows with the file, by less than one byte in 64.
const END_BYTES: u64 = 4 << 20;
const INDEX_SHARE: u64 = 64;

/// Step in which space of the disk is taken. Lower: more system calls. Higher: more is taken than is needed.
const SPACE_STEP: u64 = 8 << 20;

/// Writes a recording.
pub struct Recorder {
    writer: Writer<File>,
    /// The same file, to take space.
    file: File,
    /// Channels of each flow: one for messages without a type, one for each type that it had; others for other names.
    channels: HashMap<Flow, Vec<(FlowFacts, u16)>>,
    schemas: HashMap<Arc<Declaration>, u16>,
    /// Bytes that may have been written, and bytes that are taken on the disk.
    written: u64,
    taken: u64,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Recorder")
    }
}

impl Recorder {
    /// Makes a file.
    ///
    /// # Errors
    /// [`RecordingError`].
    pub fn create(path: &Path) -> Result<Self, RecordingError> {
        let file = tautline_state::create(path).map_err(io::Error::from)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a recording must be a file: its index is written at the end",
            )
            .into());
        }
        let copy = file.try_clone()?;
        let mut recorder = Self {
            writer: WriteOptions::new()
                .compression(None)
                .profile("tautline")
                .library(concat!("tautline/", env!("CARGO_PKG_VERSION")))
                .chunk_size(Some(CHUNK_BYTES))
                .create(file)?,
            file: copy,
            channels: HashMap::new(),
            schemas: HashMap::new(),
            written: 0,
            taken: 0,
        };
        recorder.take_space(0)?;
        Ok(recorder)
    }

    /// Appends a message of a flow of which this is known. One of another size than its type has none in the file.
    ///
    /// # Errors
    /// [`RecordingError::Full`] while there is still space for [`finish`](Self::finish); others of the disk.
    pub fn write(
        &mut self,
        message: &Message<'_>,
        facts: &FlowFacts,
    ) -> Result<(), RecordingError> {
        /// Bytes of a message's record and of its entry in the index.
        const AROUND: u64 = 64;
        self.take_space(message.bytes.len() as u64 + AROUND)?;
        let declared = facts.declared.as_ref();
        let declared = declared.filter(|declared| declared.bytes() == message.bytes.len());
        let channel_id = self.channel(message.flow, declared, &facts.names)?;
        let header = MessageHeader {
            channel_id,
            sequence: message.sequence,
            log_time: message.time_ns,
            publish_time: message.time_ns,
        };
        Ok(self.writer.write_to_known_channel(&header, message.bytes)?)
    }

    /// Writes what there is to the file.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn flush(&mut self) -> Result<(), RecordingError> {
        Ok(self.writer.flush()?)
    }

    /// Ends the file with the recorder's figures and the index.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn finish(mut self, figures: &[(&str, u64)]) -> Result<(), RecordingError> {
        let values = figures.iter();
        let metadata = Metadata {
            name: METADATA.to_owned(),
            metadata: values
                .map(|(key, value)| ((*key).to_owned(), value.to_string()))
                .collect(),
        };
        self.writer.write_metadata(&metadata)?;
        self.writer.finish()?;
        let mut file = self.writer.into_inner();
        file.flush()?;
        // Gives back the space that was kept for the end.
        let length = file.stream_position()?;
        file.set_len(length)?;
        Ok(())
    }

    fn channel(
        &mut self,
        flow: &Flow,
        declared: Option<&Arc<Declaration>>,
        names: &Arc<FlowNames>,
    ) -> Result<u16, RecordingError> {
        let mut known = self.channels.get(flow).into_iter().flatten();
        let found = known.find(|(one, _)| one.declared.as_ref() == declared && one.names == *names);
        if let Some((_, id)) = found {
            return Ok(*id);
        }
        let facts = FlowFacts {
            declared: declared.cloned(),
            names: Arc::clone(names),
        };
        let (schema, encoding) = match declared {
            Some(declared) => (self.schema(declared)?, TYPED_ENCODING),
            None => (0, ENCODING),
        };
        let (topic, metadata) = (topic_of(flow, names), metadata_of(flow, &facts));
        let around: usize = metadata
            .iter()
            .map(|(key, value)| key.len() + value.len() + 8)
            .sum();
        // In the data and in the summary.
        self.take_space(2 * (around + topic.len() + 64) as u64)?;
        let id = self
            .writer
            .add_channel(schema, &topic, encoding, &metadata)?;
        let channels = self.channels.entry(flow.clone()).or_default();
        channels.push((facts, id));
        Ok(id)
    }

    fn schema(&mut self, declared: &Arc<Declaration>) -> Result<u16, RecordingError> {
        if let Some(id) = self.schemas.get(declared) {
            return Ok(*id);
        }
        let text = print::ros(declared);
        let name = format!("{PACKAGE}/{}", declared.name());
        // In the data and in the summary.
        self.take_space(2 * (text.len() + name.len() + 64) as u64)?;
        let id = self
            .writer
            .add_schema(&name, SCHEMA_ENCODING, text.as_bytes())?;
        self.schemas.insert(Arc::clone(declared), id);
        Ok(id)
    }

    /// Takes space on the disk for some bytes more, and for the end of the file.
    fn take_space(&mut self, more: u64) -> Result<(), RecordingError> {
        self.written += more;
        let needed = self.written + self.written / INDEX_SHARE + END_BYTES;
        if needed <= self.taken {
            return Ok(());
        }
        let taken = rustix::fs::fallocate(
            &self.file,
            FallocateFlags::KEEP_SIZE,
            0,
            needed + SPACE_STEP,
        )
        .map(|()| needed + SPACE_STEP)
        // Perhaps there is space for less than a step.
        .or_else(|_| {
            rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, needed).map(|()| needed)
        });
        match taken {
            Ok(taken) => self.taken = taken,
            // A file system that cannot do this: its errors come when they come.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => self.taken = u64::MAX,
            Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT | rustix::io::Errno::FBIG) => {
                self.written -= more;
                return Err(RecordingError::Full);
            }
            Err(error) => return Err(RecordingError::Io(error.into())),
        }
        Ok(())
    }
}
