//! Recordings: messages in MCAP files, which Foxglove and the MCAP libraries read.
//!
//! A channel is a [`Flow`], and the type of its messages if that is known: then their bytes are what ROS 1 serialises,
//! and its schema says so, because viewers read that. Files are not compressed: a recorder must not compete with what
//! it records for time. A record of metadata named [`METADATA`] says at the end how much was captured and missed.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use mcap::records::{MessageHeader, Metadata};
use mcap::sans_io::LinearReaderOptions;
use mcap::{McapError, WriteOptions, Writer};
use rustix::fs::FallocateFlags;
use tautline::types::{Declaration, print};

use crate::message::{Flow, Message};

/// Name of the record of metadata with the recorder's figures.
pub const METADATA: &str = "tautline";

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

/// Longest record that is believed. Messages have 64 KiB and chunks [`CHUNK_BYTES`]; other tools write chunks of a few
/// MiB.
const RECORD_BYTES_MAX: usize = 256 << 20;

/// Reason why a recording cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The disk is full.
    #[error("the disk is full; the recording is whole up to there")]
    Full,
    /// The file cannot be used.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is no MCAP file.
    #[error("it is not an MCAP file")]
    Foreign,
    /// The file ends too early.
    #[error("it ends in the middle: the recorder was killed, or a copy was cut short")]
    Truncated,
    /// The file is against the format.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// A channel is not one of a recording.
    #[error("channel `{topic}` was not recorded by Tautline: it has no `{key}`")]
    NotOurs {
        /// Name of the channel.
        topic: String,
        /// Entry that is missing or wrong.
        key: &'static str,
    },
}

impl RecordingError {
    /// Remedy.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Full => "make space, or name a file elsewhere",
            Self::Io(_) => {
                "name a file in a directory that exists, that you may use, and that has space"
            }
            Self::Foreign | Self::NotOurs { .. } => "name a file that `taut record` wrote",
            Self::Truncated | Self::Damaged(_) => "`mcap recover` saves what there is",
        }
    }
}

impl From<McapError> for RecordingError {
    fn from(error: McapError) -> Self {
        match error {
            McapError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => Self::Truncated,
            McapError::Io(error) => Self::Io(error),
            McapError::UnexpectedEof | McapError::UnexpectedEoc => Self::Truncated,
            McapError::BadMagic => Self::Foreign,
            other => Self::Damaged(other.to_string()),
        }
    }
}

/// A channel, with the type of its messages.
type TypedChannel = (Option<Arc<Declaration>>, u16);

/// Writes a recording.
pub struct Recorder {
    writer: Writer<File>,
    /// The same file, to take space.
    file: File,
    /// Channels of each flow: one for messages without a type, one for each type that it had.
    channels: HashMap<Flow, Vec<TypedChannel>>,
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
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
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

    /// Appends a message of this type. One of another size has no type in the file.
    ///
    /// # Errors
    /// [`RecordingError::Full`] while there is still space for [`finish`](Self::finish); others of the disk.
    pub fn write(
        &mut self,
        message: &Message<'_>,
        declared: Option<&Arc<Declaration>>,
    ) -> Result<(), RecordingError> {
        /// Bytes of a message's record and of its entry in the index.
        const AROUND: u64 = 64;
        self.take_space(message.bytes.len() as u64 + AROUND)?;
        let declared = declared.filter(|declared| declared.bytes() == message.bytes.len());
        let channel_id = self.channel(message.flow, declared)?;
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
    ) -> Result<u16, RecordingError> {
        let known = self.channels.get(flow).into_iter().flatten();
        if let Some((_, id)) = known.into_iter().find(|(one, _)| one.as_ref() == declared) {
            return Ok(*id);
        }
        let mut metadata = metadata_of(flow);
        let (schema, encoding) = match declared {
            Some(declared) => {
                metadata.insert(TYPE.to_owned(), declared.to_string());
                (self.schema(declared)?, TYPED_ENCODING)
            }
            None => (0, ENCODING),
        };
        let around: usize = metadata
            .iter()
            .map(|(key, value)| key.len() + value.len() + 8)
            .sum();
        // In the data and in the summary.
        self.take_space(2 * (around + flow.topic().len() + 64) as u64)?;
        let id = self
            .writer
            .add_channel(schema, &flow.topic(), encoding, &metadata)?;
        let channels = self.channels.entry(flow.clone()).or_default();
        channels.push((declared.cloned(), id));
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

impl Flow {
    /// Name of the channel. Several priorities share one.
    #[must_use]
    pub fn topic(&self) -> String {
        format!(
            "/{}/{}.{}/{}.{}",
            self.on.trim_start_matches('/'),
            self.from,
            self.source_port,
            self.to,
            self.destination_port
        )
    }
}

const ON: &str = "on";
const FROM: &str = "from";
const SOURCE_PORT: &str = "source_port";
const TO: &str = "to";
const DESTINATION_PORT: &str = "destination_port";
const PRIORITY: &str = "priority";
const WAY: &str = "way";
/// Declaration of the messages, on channels that have a type.
const TYPE: &str = "type";
const SENT: &str = "sent";
const RECEIVED: &str = "received";

fn metadata_of(flow: &Flow) -> BTreeMap<String, String> {
    let way = if flow.is_sent { SENT } else { RECEIVED };
    [
        (ON, flow.on.clone()),
        (FROM, flow.from.clone()),
        (SOURCE_PORT, flow.source_port.to_string()),
        (TO, flow.to.clone()),
        (DESTINATION_PORT, flow.destination_port.to_string()),
        (PRIORITY, flow.priority.to_string()),
        (WAY, way.to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

fn flow_of(channel: &mcap::Channel<'_>) -> Result<Flow, RecordingError> {
    let missing = |key| RecordingError::NotOurs {
        topic: channel.topic.clone(),
        key,
    };
    let text = |key| {
        channel
            .metadata
            .get(key)
            .cloned()
            .ok_or_else(|| missing(key))
    };
    let port = |key| {
        let port = text(key)?
            .parse()
            .ok()
            .filter(|port| (1..=4095).contains(port));
        port.ok_or_else(|| missing(key))
    };
    let priority = text(PRIORITY)?
        .parse()
        .ok()
        .filter(|priority| *priority <= 7);
    Ok(Flow {
        on: text(ON)?,
        from: text(FROM)?,
        source_port: port(SOURCE_PORT)?,
        to: text(TO)?,
        destination_port: port(DESTINATION_PORT)?,
        priority: priority.ok_or_else(|| missing(PRIORITY))?,
        is_sent: match text(WAY)?.as_str() {
            SENT => true,
            RECEIVED => false,
            _ => return Err(missing(WAY)),
        },
    })
}

fn type_of(channel: &mcap::Channel<'_>) -> Result<Option<Arc<Declaration>>, RecordingError> {
    let Some(text) = channel.metadata.get(TYPE) else {
        return Ok(None);
    };
    let wrong = |_| RecordingError::NotOurs {
        topic: channel.topic.clone(),
        key: TYPE,
    };
    text.parse().map(Arc::new).map(Some).map_err(wrong)
}

/// A recording that was read through once, from its beginning to its end, without an error.
#[derive(Debug)]
pub struct Recording<R> {
    source: R,
    flows: Vec<Flow>,
    types: Vec<Option<Arc<Declaration>>>,
    /// Place of each channel's flow.
    places: HashMap<u16, usize>,
    messages: u64,
}

impl Recording<BufReader<File>> {
    /// Opens a file.
    ///
    /// # Errors
    /// [`RecordingError`].
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory).into());
        }
        Self::check(BufReader::with_capacity(1 << 20, file))
    }
}

impl<R: Read + Seek> Recording<R> {
    /// Reads a recording through, so that nothing of one that is truncated or damaged is ever replayed.
    ///
    /// # Errors
    /// [`RecordingError`].
    pub fn check(mut source: R) -> Result<Self, RecordingError> {
        check_magic(&mut source)?;
        check_chunks(&mut source)?;
        let (mut flows, mut types) = (Vec::new(), Vec::new());
        let (mut places, mut messages) = (HashMap::new(), 0);
        for message in reader(&mut source) {
            let message = message?;
            if let std::collections::hash_map::Entry::Vacant(place) =
                places.entry(message.channel.id)
            {
                place.insert(flows.len());
                flows.push(flow_of(&message.channel)?);
                types.push(type_of(&message.channel)?);
            }
            messages += 1;
        }
        Ok(Self {
            source,
            flows,
            types,
            places,
            messages,
        })
    }

    /// Types of the messages of each flow, where the recorder knew them. A flow is there once for each of its types.
    #[must_use]
    pub fn types(&self) -> &[Option<Arc<Declaration>>] {
        &self.types
    }

    /// Its flows, in the order of their first messages.
    #[must_use]
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Count of its messages.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Hands out the messages in their order, with the places of their flows.
    ///
    /// # Errors
    /// The first of `each`; [`RecordingError`] if the file has changed.
    pub fn play<E: From<RecordingError>>(
        &mut self,
        mut each: impl FnMut(usize, Message<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let rewound = self.source.seek(SeekFrom::Start(0));
        rewound.map_err(RecordingError::from)?;
        for message in reader(&mut self.source) {
            let message = message.map_err(RecordingError::from)?;
            let Some(place) = self.places.get(&message.channel.id) else {
                continue;
            };
            let found = Message {
                flow: &self.flows[*place],
                sequence: message.sequence,
                time_ns: message.log_time,
                bytes: &message.data,
            };
            each(*place, found)?;
        }
        Ok(())
    }
}

/// A file that ends within its first bytes is foreign, not truncated.
fn check_magic(source: &mut (impl Read + Seek)) -> Result<(), RecordingError> {
    let mut magic = [0; mcap::MAGIC.len()];
    source.seek(SeekFrom::Start(0))?;
    let mut have = 0;
    while have < magic.len() {
        match source.read(&mut magic[have..])? {
            0 => break,
            count => have += count,
        }
    }
    source.seek(SeekFrom::Start(0))?;
    if magic != mcap::MAGIC {
        return Err(RecordingError::Foreign);
    }
    Ok(())
}

/// Refuses records that reach beyond the end of their chunk: the reader of version 0.26 of the crate counts below zero
/// there. All else is left to it, also files and chunks that end too early.
fn check_chunks(source: &mut (impl Read + Seek)) -> Result<(), RecordingError> {
    source.seek(SeekFrom::Start(mcap::MAGIC.len() as u64))?;
    let mut chunk = Vec::new();
    loop {
        let mut head = Vec::with_capacity(RECORD_HEAD);
        (&mut *source)
            .take(RECORD_HEAD as u64)
            .read_to_end(&mut head)?;
        let Some((kind, length)) = record_head(&head) else {
            break;
        };
        let mut content = (&mut *source).take(length);
        if kind == mcap::records::op::CHUNK && length <= RECORD_BYTES_MAX as u64 {
            chunk.clear();
            content.read_to_end(&mut chunk)?;
            if (chunk.len() as u64) < length {
                break;
            }
            check_chunk(&chunk)?;
        } else {
            io::copy(&mut content, &mut io::sink())?;
        }
    }
    source.seek(SeekFrom::Start(0))?;
    Ok(())
}

fn check_chunk(chunk: &[u8]) -> Result<(), RecordingError> {
    /// Bytes before the records of a chunk that is not compressed: two times, a length, a checksum, the length of an
    /// empty name, and the length of the records.
    const BEFORE: usize = 40;
    let is_compressed = chunk.get(28..32) != Some(&[0; 4]);
    let Some(length) = chunk.get(32..BEFORE).filter(|_| !is_compressed) else {
        return Ok(());
    };
    let length = length
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let records = &chunk[BEFORE..];
    let end = usize::try_from(length)
        .unwrap_or(usize::MAX)
        .min(records.len());
    let mut rest = &records[..end];
    while let Some((_, length)) = record_head(rest) {
        let after = usize::try_from(length)
            .ok()
            .and_then(|length| rest.get(length.checked_add(RECORD_HEAD)?..));
        rest = after.ok_or_else(|| {
            RecordingError::Damaged("a record reaches beyond its chunk".to_owned())
        })?;
    }
    match rest {
        [] => Ok(()),
        _ => Err(RecordingError::Damaged(
            "a chunk ends within a record".to_owned(),
        )),
    }
}

/// Bytes of a record before its content: its kind and its length.
const RECORD_HEAD: usize = 9;

/// Kind and length of a record; `None` if the bytes are too few.
fn record_head(bytes: &[u8]) -> Option<(u8, u64)> {
    let (kind, rest) = bytes.split_first()?;
    Some((*kind, u64::from_le_bytes(*rest.first_chunk()?)))
}

fn reader<R: Read>(source: R) -> mcap::io::MessageReader<R> {
    let options = LinearReaderOptions::default()
        .with_prevalidate_chunk_crcs(true)
        .with_validate_data_section_crc(true)
        .with_check_finishes_after_end_magic(true)
        .with_record_length_limit(RECORD_BYTES_MAX);
    mcap::io::MessageReader::new_with_options(source, options)
}
