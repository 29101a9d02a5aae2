//! Reads recordings of any origin: a file is checked from end to end before any of it is used.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use mcap::records::op;
use mcap::sans_io::LinearReaderOptions;

use super::channel::{facts_of, flow_of};
use super::{RecordingError, texts};
use crate::message::{Flow, Message};
use crate::nodes::FlowFacts;

/// Longest record that is believed. Messages have 64 KiB and chunks 256 KiB; other tools write chunks of a few
/// MiB.
const RECORD_BYTES_MAX: usize = 256 << 20;

/// Memory for the messages of a file that has them in another order than that of their times: they are sorted. Lower:
/// more files of others need `mcap sort` before. Higher: such a file takes more memory.
const SORTED_BYTES_MAX: usize = 256 << 20;

/// A recording that was read through once, from its beginning to its end, without an error.
#[derive(Debug)]
pub struct Recording<R> {
    source: R,
    flows: Vec<Flow>,
    facts: Vec<FlowFacts>,
    /// Place of each channel's flow.
    places: HashMap<u16, usize>,
    messages: u64,
    /// Whether the messages are in the order of their times.
    is_sorted: bool,
    /// Bytes of its longest record.
    longest: usize,
}

/// A message that waits for its turn.
struct Kept {
    place: usize,
    sequence: u32,
    time_ns: u64,
    bytes: Vec<u8>,
}

impl Recording<BufReader<File>> {
    /// Opens a file.
    ///
    /// # Errors
    /// [`RecordingError`].
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let file = tautline_state::open_regular(path)?;
        Self::check(BufReader::with_capacity(1 << 20, file))
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        self.source.get_ref()
    }
}

impl<R: Read + Seek> Recording<R> {
    /// Reads a recording through, so that nothing of one that is truncated or damaged is ever replayed.
    ///
    /// # Errors
    /// [`RecordingError`].
    pub fn check(mut source: R) -> Result<Self, RecordingError> {
        check_magic(&mut source)?;
        let longest = check_records(&mut source)?;
        let (mut flows, mut facts) = (Vec::new(), Vec::new());
        let (mut places, mut messages) = (HashMap::new(), 0);
        let (mut last_ns, mut is_sorted, mut kept_bytes) = (0, true, 0usize);
        for message in reader(&mut source, longest) {
            let message = message?;
            if let std::collections::hash_map::Entry::Vacant(place) =
                places.entry(message.channel.id)
            {
                place.insert(flows.len());
                flows.push(flow_of(&message.channel)?);
                facts.push(facts_of(&message.channel)?);
            }
            messages += 1;
            is_sorted &= message.log_time >= last_ns;
            last_ns = message.log_time;
            kept_bytes = kept_bytes.saturating_add(size_of::<Kept>() + message.data.len());
        }
        if !is_sorted && kept_bytes > SORTED_BYTES_MAX {
            return Err(RecordingError::Unsorted);
        }
        Ok(Self {
            source,
            flows,
            facts,
            places,
            messages,
            is_sorted,
            longest,
        })
    }

    /// Names and type of each flow, where the recorder knew them. A flow is there once for each of its types and names.
    #[must_use]
    pub fn facts(&self) -> &[FlowFacts] {
        &self.facts
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

    /// Hands out the messages in the order of their times, with the places of their flows.
    ///
    /// # Errors
    /// The first of `each`; [`RecordingError`] if the file has changed.
    pub fn play<E: From<RecordingError>>(
        &mut self,
        mut each: impl FnMut(usize, Message<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut kept = Vec::new();
        let is_sorted = self.is_sorted;
        self.read(|place, message| match is_sorted {
            true => each(place, message),
            false => {
                kept.push(Kept {
                    place,
                    sequence: message.sequence,
                    time_ns: message.time_ns,
                    bytes: message.bytes.to_vec(),
                });
                Ok(())
            }
        })?;
        // Of the same time, as the file has them.
        kept.sort_by_key(|message| message.time_ns);
        kept.iter().try_for_each(|message| {
            let found = Message {
                flow: &self.flows[message.place],
                sequence: message.sequence,
                time_ns: message.time_ns,
                bytes: &message.bytes,
            };
            each(message.place, found)
        })
    }

    /// Hands out the messages as the file has them.
    fn read<E: From<RecordingError>>(
        &mut self,
        mut each: impl FnMut(usize, Message<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let rewound = self.source.seek(SeekFrom::Start(0));
        rewound.map_err(RecordingError::from)?;
        for message in reader(&mut self.source, self.longest) {
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

/// Returns the bytes of the longest record: the reader of version 0.26 of the crate takes memory for what a record
/// claims, so what it claims has to be there. Refuses also what that reader counts below zero for: records that reach
/// beyond the end of their chunk.
fn check_records(source: &mut (impl Read + Seek)) -> Result<usize, RecordingError> {
    source.seek(SeekFrom::Start(mcap::MAGIC.len() as u64))?;
    let (mut record, mut longest) = (Vec::new(), 0);
    loop {
        let mut head = Vec::with_capacity(RECORD_HEAD);
        (&mut *source)
            .take(RECORD_HEAD as u64)
            .read_to_end(&mut head)?;
        let Some((kind, length)) = record_head(&head) else {
            break;
        };
        let mut content = (&mut *source).take(length);
        let is_believed = length <= RECORD_BYTES_MAX as u64;
        record.clear();
        let there = match is_believed {
            true => content.read_to_end(&mut record)? as u64,
            false => io::copy(&mut content, &mut io::sink())?,
        };
        if there < length {
            return Err(RecordingError::Truncated);
        }
        if is_believed {
            check_texts(kind, &record)?;
            if kind == op::CHUNK {
                check_chunk(&record)?;
            }
        }
        longest = longest.max(length);
        if kind == op::FOOTER {
            break;
        }
    }
    source.seek(SeekFrom::Start(0))?;
    Ok(usize::try_from(longest).unwrap_or(usize::MAX))
}

fn check_texts(kind: u8, content: &[u8]) -> Result<(), RecordingError> {
    match texts::are_whole(kind, content) {
        true => Ok(()),
        false => Err(RecordingError::Damaged(
            "a text is longer than its record".to_owned(),
        )),
    }
}

fn check_chunk(chunk: &[u8]) -> Result<(), RecordingError> {
    /// Bytes before the name of a chunk's compression: two times, a length, a checksum, and the length of the name.
    const NAME: usize = 32;
    /// Bytes before the records of a chunk that is not compressed: an empty name, and the length of the records.
    const BEFORE: usize = 40;
    let name_bytes = chunk.get(28..NAME).map_or(0, number);
    if name_bytes != 0 {
        let end = NAME.saturating_add(usize::try_from(name_bytes).unwrap_or(usize::MAX));
        let name = chunk.get(NAME..end).unwrap_or_default();
        return match std::str::from_utf8(name) {
            Ok(name @ ("zstd" | "lz4")) => Err(RecordingError::Compressed {
                name: name.to_owned(),
            }),
            // The reader says what is wrong with it.
            _ => Ok(()),
        };
    }
    let Some(length) = chunk.get(NAME..BEFORE).map(number) else {
        return Ok(());
    };
    let records = &chunk[BEFORE..];
    let end = usize::try_from(length)
        .unwrap_or(usize::MAX)
        .min(records.len());
    let mut rest = &records[..end];
    while let Some((kind, length)) = record_head(rest) {
        let after = usize::try_from(length)
            .ok()
            .and_then(|length| rest[RECORD_HEAD..].split_at_checked(length));
        let (content, after) = after.ok_or_else(|| {
            RecordingError::Damaged("a record reaches beyond its chunk".to_owned())
        })?;
        check_texts(kind, content)?;
        rest = after;
    }
    match rest {
        [] => Ok(()),
        _ => Err(RecordingError::Damaged(
            "a chunk ends within a record".to_owned(),
        )),
    }
}

/// A number in little-endian order.
fn number(bytes: &[u8]) -> u64 {
    let bytes = bytes.iter().rev();
    bytes.fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Bytes of a record before its content: its kind and its length.
const RECORD_HEAD: usize = 9;

/// Kind and length of a record; `None` if the bytes are too few.
fn record_head(bytes: &[u8]) -> Option<(u8, u64)> {
    let (kind, rest) = bytes.split_first()?;
    Some((*kind, u64::from_le_bytes(*rest.first_chunk()?)))
}

fn reader<R: Read>(source: R, longest: usize) -> mcap::io::MessageReader<R> {
    let options = LinearReaderOptions::default()
        .with_prevalidate_chunk_crcs(true)
        .with_validate_data_section_crc(true)
        .with_check_finishes_after_end_magic(true)
        .with_record_length_limit(longest.min(RECORD_BYTES_MAX));
    mcap::io::MessageReader::new_with_options(source, options)
}
