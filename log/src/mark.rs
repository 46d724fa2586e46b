//! [`Mark`]: the file `clean`, which says where a partition ended that was closed.
//!
//! ```text
//! mark (little endian): 56 bytes, and 24 for each entry of the index
//!  0  magic "OIOCLEAN"                          32  length of the segment, u64
//!  8  format version, u32                       40  next offset, u64
//! 12  CRC32C of bytes 16 to the end, u32        48  timestamp of the last batch, u64
//! 16  salt of the last segment, u32             56  entries: position, base offset, timestamp, u64 each
//! 20  number of entries, u32
//! 24  base offset of the last segment, u64
//! ```
//!
//! It is written after the sync of the segment, and removed durably before the partition is open again. A mark that a
//! failure leaves behind is harmless: a segment only grows, and so one with this salt and this length has these batches.
//!
//! What it says is checked where that is cheap: the end when the partition is opened, an entry of the index when a read
//! begins with it.

use std::io;
use std::path::{Path, PathBuf};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use crc32c::crc32c;
use owned_io::{File, Files, OpenMode, OwnedReadAtExt, OwnedWriteAtExt};

use crate::Error;
use crate::format::{BatchHeader, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::segment::{INDEX_ENTRIES_MAX, IndexEntry, Segment};

/// The name of the file.
pub(crate) const NAME: &str = "clean";

const MAGIC: [u8; 8] = *b"OIOCLEAN";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 56;
const ENTRY_BYTES: usize = 24;
const BYTES_MAX: usize = HEADER_BYTES + INDEX_ENTRIES_MAX * ENTRY_BYTES;

/// How much of a segment is read at once to confirm a mark, in bytes: a page, because mostly the header of one long batch
/// is looked for.
const CONFIRMED_AT_ONCE: u64 = 4096;

/// Where a partition ended, and what recovery would find in its last segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) salt: u32,
    pub(crate) base_offset: u64,
    /// The length of the last segment.
    pub(crate) len: u64,
    pub(crate) next_offset: u64,
    pub(crate) timestamp: u64,
    /// The index of the last segment.
    pub(crate) entries: Vec<IndexEntry>,
}

impl Mark {
    /// Whether it is about the segment with this header and length.
    pub(crate) fn agrees_with(&self, header: &SegmentHeader, len: u64) -> bool {
        self.salt == header.salt
            && self.base_offset == header.base_offset
            && self.timestamp >= header.timestamp
            && self.len == len
    }

    /// Whether the segment ends with the offset and the timestamp of the mark, by the headers of its batches. Reads those
    /// from the last entry of the index on: about as many bytes as there are between two entries.
    ///
    /// # Errors
    /// The segment cannot be read.
    pub(crate) async fn is_confirmed_by<R: Files>(
        &self,
        segment: &Segment<R>,
        file: &R::File,
        header: &SegmentHeader,
    ) -> Result<bool, Error> {
        let (position, mut next_offset, mut timestamp) = match self.entries.last() {
            Some(last) => (last.position, last.base_offset, last.timestamp),
            None => (SEGMENT_HEADER_BYTES as u64, header.base_offset, header.timestamp),
        };
        let on_batch = |batch: &BatchHeader, _| {
            let follows = batch.base_offset == next_offset && batch.timestamp >= timestamp;
            (next_offset, timestamp) = (batch.next_offset(), batch.timestamp);
            follows
        };
        let batches = position..self.len;
        let end = segment.walk(file, header, batches, CONFIRMED_AT_ONCE, on_batch).await?;
        Ok((end, next_offset, timestamp) == (self.len, self.next_offset, self.timestamp))
    }

    /// The mark of a directory. `None` if there is none, and if it is damaged, of another version, or cannot be read.
    pub(crate) async fn read<R: Files>(dir: &Path) -> Option<Self> {
        let file = R::open(&path(dir), OpenMode::Read).await.ok()?;
        let len = usize::try_from(file.size().await.ok()?).ok()?;
        if !(HEADER_BYTES..=BYTES_MAX).contains(&len) {
            return None;
        }
        let read = file.read_exact_at(Vec::with_capacity(len), len, 0).await;
        Self::decode(&read.into_result().ok()?.1)
    }

    /// Writes the mark of a directory, durably.
    pub(crate) async fn write<R: Files>(&self, dir: &Path) -> io::Result<()> {
        let file = R::open(&path(dir), OpenMode::Create).await?;
        file.set_len(0).await?;
        file.write_all_at(self.encode(), 0).await.into_result()?;
        file.sync_data().await?;
        R::sync_dir(dir).await
    }

    fn encode(&self) -> Bytes {
        let len = HEADER_BYTES + self.entries.len() * ENTRY_BYTES;
        let mut bytes = BytesMut::with_capacity(len);
        bytes.put_slice(&MAGIC);
        bytes.put_u32_le(VERSION);
        bytes.put_u32_le(0);
        bytes.put_u32_le(self.salt);
        bytes.put_u32_le(self.entries.len() as u32); // at most `INDEX_ENTRIES_MAX`
        for field in [self.base_offset, self.len, self.next_offset, self.timestamp] {
            bytes.put_u64_le(field);
        }
        for entry in &self.entries {
            bytes.put_u64_le(entry.position);
            bytes.put_u64_le(entry.base_offset);
            bytes.put_u64_le(entry.timestamp);
        }
        let crc = crc32c(&bytes[16..]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes.freeze()
    }

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEADER_BYTES || bytes[..8] != MAGIC {
            return None;
        }
        let body_crc = crc32c(&bytes[16..]);
        bytes.advance(8);
        if bytes.get_u32_le() != VERSION || bytes.get_u32_le() != body_crc {
            return None;
        }
        let (salt, count) = (bytes.get_u32_le(), bytes.get_u32_le() as usize);
        let (base_offset, len) = (bytes.get_u64_le(), bytes.get_u64_le());
        let (next_offset, timestamp) = (bytes.get_u64_le(), bytes.get_u64_le());
        if count > INDEX_ENTRIES_MAX || bytes.len() != count * ENTRY_BYTES {
            return None;
        }
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            let (position, base_offset) = (bytes.get_u64_le(), bytes.get_u64_le());
            entries.push(IndexEntry { position, base_offset, timestamp: bytes.get_u64_le() });
        }
        let is_within = |entry: &IndexEntry| {
            (SEGMENT_HEADER_BYTES as u64..len).contains(&entry.position)
                && (base_offset..next_offset).contains(&entry.base_offset)
        };
        let is_sane = next_offset >= base_offset
            && entries.iter().all(is_within)
            && entries.is_sorted_by(|a, b| {
                a.position < b.position
                    && a.base_offset < b.base_offset
                    && a.timestamp <= b.timestamp
            });
        is_sane.then_some(Self { salt, base_offset, len, next_offset, timestamp, entries })
    }
}

/// Removes the mark of a directory, if there is one. The caller syncs the directory.
pub(crate) async fn remove<R: Files>(dir: &Path) -> io::Result<()> {
    match R::remove_file(&path(dir)).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join(NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> Mark {
        let entry = |position, base_offset| IndexEntry { position, base_offset, timestamp: 6 };
        let entries = vec![entry(40, 100), entry(900, 105)];
        Mark { salt: 7, base_offset: 100, len: 1000, next_offset: 110, timestamp: 8, entries }
    }

    #[test]
    fn a_mark_is_read_back_and_a_changed_or_cut_one_refused() {
        let bytes = mark().encode();
        assert_eq!(Mark::decode(&bytes), Some(mark()));
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.to_vec();
                changed[at] ^= 1 << bit;
                assert_eq!(Mark::decode(&changed), None, "byte {at}, bit {bit}");
            }
            assert_eq!(Mark::decode(&bytes[..at]), None, "cut at {at}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(Mark::decode(&longer), None);
    }

    #[test]
    fn an_index_that_leaves_the_segment_is_refused() {
        for (position, base_offset) in [(39, 100), (1000, 105), (500, 110), (500, 99)] {
            let mut wrong = mark();
            wrong.entries = vec![IndexEntry { position, base_offset, timestamp: 6 }];
            assert_eq!(Mark::decode(&wrong.encode()), None, "{position}, {base_offset}");
        }
        let mut wrong = mark();
        wrong.entries.reverse();
        assert_eq!(Mark::decode(&wrong.encode()), None);
    }

    #[test]
    fn it_is_about_one_segment_of_one_length() {
        let header = SegmentHeader { salt: 7, base_offset: 100, timestamp: 5 };
        assert!(mark().agrees_with(&header, 1000));
        assert!(!mark().agrees_with(&header, 1001));
        assert!(!mark().agrees_with(&SegmentHeader { salt: 8, ..header }, 1000));
        assert!(!mark().agrees_with(&SegmentHeader { base_offset: 0, ..header }, 1000));
        assert!(!mark().agrees_with(&SegmentHeader { timestamp: 9, ..header }, 1000));
    }
}
