//! Lengths of the texts in records, checked before the reader of version 0.26 of the crate `mcap` takes memory for what
//! they claim: up to 4 GiB each.

use mcap::records::op;

use Field::{Bytes, Numbers, Text, Texts};

/// A part of a record.
enum Field {
    /// So many bytes.
    Bytes(usize),
    /// Numbers, behind the count of their bytes.
    Numbers,
    /// A text, behind the count of its bytes.
    Text,
    /// Pairs of texts, behind the count of their bytes.
    Texts,
}

/// Parts of a kind of record, up to the last text.
fn fields(kind: u8) -> &'static [Field] {
    match kind {
        op::HEADER => &[Text, Text],
        op::SCHEMA => &[Bytes(2), Text, Text],
        op::CHANNEL => &[Bytes(4), Text, Text, Texts],
        op::CHUNK => &[Bytes(28), Text],
        op::CHUNK_INDEX => &[Bytes(32), Numbers, Bytes(8), Text],
        op::ATTACHMENT => &[Bytes(16), Text, Text],
        op::ATTACHMENT_INDEX => &[Bytes(40), Text, Text],
        op::METADATA => &[Text, Texts],
        op::METADATA_INDEX => &[Bytes(16), Text],
        _ => &[],
    }
}

/// Whether a record has all texts that it claims.
pub(super) fn are_whole(kind: u8, mut record: &[u8]) -> bool {
    fields(kind).iter().all(|field| {
        let passed = match field {
            Bytes(count) => pass(&mut record, *count),
            Text | Numbers => pass_counted(&mut record),
            Texts => pass_texts(&mut record),
        };
        passed.is_some()
    })
}

fn pass(rest: &mut &[u8], count: usize) -> Option<()> {
    *rest = rest.get(count..)?;
    Some(())
}

fn count(rest: &mut &[u8]) -> Option<usize> {
    let (count, after) = rest.split_first_chunk()?;
    *rest = after;
    usize::try_from(u32::from_le_bytes(*count)).ok()
}

fn pass_counted(rest: &mut &[u8]) -> Option<()> {
    let bytes = count(rest)?;
    pass(rest, bytes)
}

/// Skips pairs like the reader: until their bytes are used up; a last pair may reach beyond them.
fn pass_texts(rest: &mut &[u8]) -> Option<()> {
    let bytes = count(rest)?;
    let before = rest.len();
    while before - rest.len() < bytes {
        pass_counted(rest)?;
        pass_counted(rest)?;
    }
    Some(())
}
