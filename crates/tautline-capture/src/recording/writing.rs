//! Writes recordings. Whatever happens to the disk, the file is whole up to there.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::Path;
use std::sync::Arc;

use mcap::records::{MessageHeader, Metadata};
use mcap::{WriteOptions, Writer};
use rustix::fs::FallocateFlags;
use rustix::process::{Resource, getrlimit};
use tautline::types::Declaration;
use tautline_state::Existing;

use super::channel::{Channel, Schema};
use super::{METADATA, RecordingError};
use crate::message::{FLOWS_MAX, Flow, Message};
use crate::nodes::{FlowFacts, FlowNames};

/// Bytes of a chunk. Lower: more of the file is index. Higher: more is lost if the recorder is killed.
const CHUNK_BYTES: u64 = 256 << 10;

/// Bytes of the disk that are kept free for the file's end while it is written: a chunk, the figures, and the index.
/// The index grows with the file, by less than one byte in 64.
const END_BYTES: u64 = 4 << 20;
const INDEX_SHARE: u64 = 64;

/// Bytes that are kept of what a process may write to a file (`ulimit -f`), for the figures and the file's last
/// records, beside the index. Lower: the file cannot be ended. Higher: less of the limit is used.
const LIMIT_BYTES: u64 = 16 << 10;

/// Step in which space of the disk is taken. Lower: more system calls. Higher: more is taken than is needed.
const SPACE_STEP: u64 = 8 << 20;

/// Channels of a flow, one for each type and each name that it had. Lower: more messages have a channel of an earlier
/// name, or none for their type. Higher: fewer flows have room, because MCAP numbers channels with 16 bits.
const CHANNELS_OF_FLOW_MAX: usize = 7;

// A channel has at most one schema, so schemas have room as well. Neither has the number 65,535.
const _: () = assert!(FLOWS_MAX * CHANNELS_OF_FLOW_MAX < u16::MAX as usize);

/// Writes a recording: of [`FLOWS_MAX`] flows, those that come first.
pub struct Recorder {
    writer: Writer<File>,
    /// The file of `writer`, to allocate space.
    file: File,
    /// Channels of each flow: one for messages without a type, one for each type that it had; others for other names.
    channels: HashMap<Flow, Vec<(FlowFacts, u16)>>,
    schemas: HashMap<Arc<Declaration>, u16>,
    messages: u64,
    left_out: u64,
    /// Bytes that may have been written, and bytes that are taken on the disk.
    written: u64,
    taken: u64,
    /// Bytes that the file may have.
    bytes_max: u64,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Recorder")
    }
}

impl Recorder {
    /// Makes a file, which is locked until the recording ends.
    ///
    /// # Errors
    /// [`RecordingError`].
    pub fn create(path: &Path, existing: Existing) -> Result<Self, RecordingError> {
        let file = tautline_state::create(path, existing)?;
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
            messages: 0,
            left_out: 0,
            written: 0,
            taken: 0,
            bytes_max: getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX),
        };
        recorder.take_space(0)?;
        Ok(recorder)
    }

    /// Messages in the file.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Messages that are not in the file, because it has as many flows as it may have.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Appends a message of a flow of which this is known. One of another size than its type has none in the file; one
    /// of a flow too many is [left out](Self::left_out).
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
        let declared = facts.declared.as_ref();
        let declared = declared.filter(|declared| declared.bytes() == message.bytes.len());
        let Some(channel_id) = self.channel(message.flow, declared, &facts.names)? else {
            self.left_out += 1;
            return Ok(());
        };
        self.take_space(message.bytes.len() as u64 + AROUND)?;
        let header = MessageHeader {
            channel_id,
            sequence: message.sequence,
            log_time: message.time_ns,
            publish_time: message.time_ns,
        };
        self.writer.write_to_known_channel(&header, message.bytes)?;
        self.messages += 1;
        Ok(())
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

    /// Channel of a message; `None` if there is no room for it.
    fn channel(
        &mut self,
        flow: &Flow,
        declared: Option<&Arc<Declaration>>,
        names: &Arc<FlowNames>,
    ) -> Result<Option<u16>, RecordingError> {
        let known = self.channels.get(flow).map_or(&[][..], Vec::as_slice);
        let with = |wanted| move |one: &&(FlowFacts, u16)| one.0.declared.as_ref() == wanted;
        let mut typed = known.iter().filter(with(declared));
        if let Some((_, id)) = typed.find(|(one, _)| one.names == *names) {
            return Ok(Some(*id));
        }
        if known.len() >= CHANNELS_OF_FLOW_MAX {
            // Under an earlier name, or as bytes.
            let newest = known.iter().rev();
            let instead = newest.clone().find(with(declared));
            return Ok(instead
                .or_else(|| newest.clone().find(with(None)))
                .map(|(_, id)| *id));
        }
        if known.is_empty() && self.channels.len() >= FLOWS_MAX {
            return Ok(None);
        }
        let facts = FlowFacts {
            declared: declared.cloned(),
            names: Arc::clone(names),
        };
        let Channel {
            topic,
            encoding,
            schema,
            metadata,
        } = Channel::of(flow, &facts);
        let schema = match declared.zip(schema) {
            Some((declared, schema)) => self.schema(declared, &schema)?,
            None => 0,
        };
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
        Ok(Some(id))
    }

    fn schema(
        &mut self,
        declared: &Arc<Declaration>,
        schema: &Schema,
    ) -> Result<u16, RecordingError> {
        if let Some(id) = self.schemas.get(declared) {
            return Ok(*id);
        }
        let Schema {
            name,
            encoding,
            text,
        } = schema;
        // In the data and in the summary.
        self.take_space(2 * (text.len() + name.len() + 64) as u64)?;
        let id = self.writer.add_schema(name, encoding, text.as_bytes())?;
        self.schemas.insert(Arc::clone(declared), id);
        Ok(id)
    }

    /// Takes space on the disk for some bytes more, and for the end of the file.
    fn take_space(&mut self, more: u64) -> Result<(), RecordingError> {
        self.written += more;
        let with_index = self.written + self.written / INDEX_SHARE;
        if with_index + LIMIT_BYTES > self.bytes_max {
            self.written -= more;
            return Err(RecordingError::FileLimit);
        }
        let needed = with_index + END_BYTES;
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

#[cfg(test)]
mod tests {
    use tautline_state::TemporaryDirectory;

    use super::super::Recording;
    use super::*;

    fn flow(number: usize) -> Flow {
        Flow {
            on: "eth0".to_owned(),
            from: format!("02:00:00:00:{:02x}:{:02x}", number >> 8, number & 0xff),
            source_port: 1,
            to: "02:00:00:01:00:00".to_owned(),
            destination_port: 7,
            priority: (number >> 16) as u8,
            is_sent: false,
        }
    }

    fn write(recorder: &mut Recorder, flow: &Flow, facts: &FlowFacts) {
        let message = Message {
            flow,
            sequence: 0,
            time_ns: 0,
            bytes: b"x",
        };
        recorder.write(&message, facts).unwrap();
    }

    fn of_type(name: &str) -> FlowFacts {
        FlowFacts {
            declared: Some(Arc::new(format!("{name} {{ a: u8 }}").parse().unwrap())),
            names: Arc::default(),
        }
    }

    #[test]
    fn of_more_flows_than_there_may_be_the_first_are_recorded_and_the_others_counted() {
        // More than MCAP has numbers for.
        const MANY: usize = u16::MAX as usize + 10;
        let directory = TemporaryDirectory::make("recording-").unwrap();
        let path = directory.path().join("many.mcap");
        let mut recorder = Recorder::create(&path, Existing::Overwritten).unwrap();
        for number in 0..MANY {
            write(&mut recorder, &flow(number), &FlowFacts::default());
        }
        let left_out = (MANY - FLOWS_MAX) as u64;
        assert_eq!(recorder.left_out(), left_out);
        // Flows that were there before go on, and may still learn their types.
        write(&mut recorder, &flow(3), &FlowFacts::default());
        write(&mut recorder, &flow(3), &of_type("T"));
        let messages = FLOWS_MAX as u64 + 2;
        assert_eq!(
            (recorder.messages(), recorder.left_out()),
            (messages, left_out)
        );
        recorder.finish(&[]).unwrap();
        let recording = Recording::open(&path).unwrap();
        assert_eq!(recording.messages(), messages);
        assert_eq!(recording.flows().len(), FLOWS_MAX + 1);
    }

    #[test]
    fn a_flow_whose_names_and_types_change_without_end_has_a_few_channels() {
        let directory = TemporaryDirectory::make("recording-").unwrap();
        let path = directory.path().join("changing.mcap");
        let mut recorder = Recorder::create(&path, Existing::Overwritten).unwrap();
        let count = u32::from(u16::MAX) + 10;
        for number in 0..count {
            let names = FlowNames {
                from: Some(format!("node-{number}")),
                ..FlowNames::default()
            };
            let facts = FlowFacts {
                declared: None,
                names: Arc::new(names),
            };
            write(&mut recorder, &flow(0), &facts);
        }
        // There is no room for a type any more: its messages are bytes.
        write(&mut recorder, &flow(0), &of_type("T"));
        assert_eq!(
            (recorder.messages(), recorder.left_out()),
            (u64::from(count) + 1, 0)
        );
        recorder.finish(&[]).unwrap();
        let recording = Recording::open(&path).unwrap();
        assert_eq!(recording.flows().len(), CHANNELS_OF_FLOW_MAX);
        assert!(recording.facts().iter().all(|one| one.declared.is_none()));
        // Where all channels have other types, a message has none.
        let mut recorder = Recorder::create(&path, Existing::Overwritten).unwrap();
        for number in 0..=CHANNELS_OF_FLOW_MAX {
            write(&mut recorder, &flow(0), &of_type(&format!("T{number}")));
        }
        assert_eq!(recorder.left_out(), 1);
    }
}
