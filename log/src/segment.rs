//! [`Segment`]: a file of a partition, and where its batches are.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use owned_io::{File, Files, OpenMode, OwnedReadAtExt, OwnedWriteAtExt, Random};

use crate::Error;
use crate::format::{
    BATCH_HEADER_BYTES, BatchHeader, HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader,
};

/// The most entries of an [`Index`]: 12 KiB. With segments of 128 MiB, a read scans at most 256 KiB of headers.
pub(crate) const INDEX_ENTRIES_MAX: usize = 512;

/// How much is read at once while an index is built, in bytes: the headers of some batches.
const SCAN_BYTES: u64 = 64 * 1024;

/// A segment of a partition.
pub(crate) struct Segment<R: Files> {
    pub(crate) path: PathBuf,
    pub(crate) base_offset: u64,
    /// The length that readers see, in bytes.
    pub(crate) len: Cell<u64>,
    /// The file, once something was read. The partition closes the files of segments that are not used.
    pub(crate) opened: RefCell<Option<Rc<Opened<R>>>>,
    /// What was read of the file. It outlives the open file, so that opening it again reads nothing.
    metadata: RefCell<Option<Rc<Metadata>>>,
}

/// The open file of a segment.
pub(crate) struct Opened<R: Files> {
    pub(crate) file: R::File,
    pub(crate) metadata: Rc<Metadata>,
}

/// What is in memory of a segment.
pub(crate) struct Metadata {
    pub(crate) header: SegmentHeader,
    pub(crate) index: RefCell<Index>,
    /// The stored length of the batch that the last read returned first, if it was longer than what a read takes at
    /// once; else 0. The batches of a segment are mostly alike, so the next read takes as much, and reads no batch twice.
    pub(crate) long_batch: Cell<u64>,
}

impl Metadata {
    pub(crate) fn new(header: SegmentHeader, index: Index) -> Self {
        Self { header, index: RefCell::new(index), long_batch: Cell::new(0) }
    }
}

/// The positions of some of the batches of a segment, in order. It is made from the headers of the batches.
pub(crate) struct Index {
    entries: Vec<IndexEntry>,
    /// The least distance between two entries, in bytes.
    distance: u64,
}

/// Where a batch is, and what it begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) position: u64,
    pub(crate) base_offset: u64,
    pub(crate) timestamp: u64,
}

impl IndexEntry {
    /// Whether it is about the batch with this header.
    pub(crate) const fn agrees_with(&self, header: &BatchHeader) -> bool {
        self.base_offset == header.base_offset && self.timestamp == header.timestamp
    }
}

/// What a read looks for.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// The batch with this offset.
    Offset(u64),
    /// The first batch with this timestamp or a later one.
    Timestamp(u64),
}

impl Target {
    /// Whether the batch comes before what is looked for.
    pub(crate) fn skips(self, header: &BatchHeader) -> bool {
        match self {
            Self::Offset(offset) => header.next_offset() <= offset,
            Self::Timestamp(timestamp) => header.timestamp < timestamp,
        }
    }
}

impl Index {
    pub(crate) const fn new(segment_bytes: u64) -> Self {
        Self::with_entries(segment_bytes, Vec::new())
    }

    /// An index that has `entries` already, at most [`INDEX_ENTRIES_MAX`] and in order.
    pub(crate) const fn with_entries(segment_bytes: u64, entries: Vec<IndexEntry>) -> Self {
        Self { entries, distance: segment_bytes.div_ceil(INDEX_ENTRIES_MAX as u64) }
    }

    pub(crate) fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// Notes a batch, unless it is close to the one before.
    pub(crate) fn push(&mut self, header: &BatchHeader, position: u64) {
        let is_due = match self.entries.last() {
            None => true,
            Some(last) => position >= last.position + self.distance,
        };
        if is_due && self.entries.len() < INDEX_ENTRIES_MAX {
            let BatchHeader { base_offset, timestamp, .. } = *header;
            self.entries.push(IndexEntry { position, base_offset, timestamp });
        }
    }

    /// The last batch of the index that is the target, or comes before it. `None`: the target may be before the first.
    pub(crate) fn seek(&self, target: Target) -> Option<IndexEntry> {
        let after = self.entries.partition_point(|entry| match target {
            Target::Offset(offset) => entry.base_offset <= offset,
            Target::Timestamp(timestamp) => entry.timestamp < timestamp,
        });
        after.checked_sub(1).map(|before| self.entries[before])
    }

    /// Forgets a batch.
    pub(crate) fn remove(&mut self, entry: IndexEntry) {
        self.entries.retain(|other| *other != entry);
    }
}

impl<R: Files> Segment<R> {
    pub(crate) fn new(dir: &Path, base_offset: u64, len: u64) -> Self {
        let path = dir.join(format!("{base_offset:020}.log"));
        let (opened, metadata) = (RefCell::new(None), RefCell::new(None));
        Self { path, base_offset, len: Cell::new(len), opened, metadata }
    }

    /// Creates the file of an empty segment, durably but for its name, and locks it. The caller syncs the directory.
    pub(crate) async fn create(
        dir: &Path,
        header: SegmentHeader,
        index: Index,
    ) -> Result<Self, Error>
    where
        R: Random,
    {
        let segment = Self::new(dir, header.base_offset, SEGMENT_HEADER_BYTES as u64);
        let path = &segment.path;
        let created = async {
            // One may be there, if it could not be created completely. The caller has no such segment.
            let file = R::open(path, OpenMode::Create).await?;
            file.try_lock().await?;
            file.set_len(0).await?;
            file.write_all_at(header.encode(), 0).await.into_result()?;
            file.sync_data().await?;
            Ok(file)
        };
        let file = created.await.map_err(|error| Error::io("create", path, error))?;
        segment.set_opened(file, Rc::new(Metadata::new(header, index)));
        Ok(segment)
    }

    /// Keeps the file open.
    pub(crate) fn set_opened(&self, file: R::File, metadata: Rc<Metadata>) -> Rc<Opened<R>> {
        let opened = Rc::new(Opened { file, metadata: Rc::clone(&metadata) });
        self.metadata.replace(Some(metadata));
        self.opened.replace(Some(Rc::clone(&opened)));
        opened
    }

    /// Closes the file, unless somebody reads it, and frees what is in memory of it.
    pub(crate) fn free(&self) {
        self.opened.replace(None);
        self.metadata.replace(None);
    }

    /// Its header. Reads it alone, if it is not in memory.
    pub(crate) async fn header(&self) -> Result<SegmentHeader, Error> {
        if let Some(metadata) = &*self.metadata.borrow() {
            return Ok(metadata.header);
        }
        let file = R::open(&self.path, OpenMode::Read).await;
        let file = file.map_err(|error| self.io("open", error))?;
        self.read_header(&file).await
    }

    /// The open file. Opens it if necessary, and makes the index unless it is in memory.
    pub(crate) async fn open(&self, segment_bytes: u64) -> Result<Rc<Opened<R>>, Error> {
        if let Some(opened) = &*self.opened.borrow() {
            return Ok(Rc::clone(opened));
        }
        let file = R::open(&self.path, OpenMode::Read).await;
        let file = file.map_err(|error| self.io("open", error))?;
        let known = self.metadata.borrow().clone();
        let metadata = match known {
            Some(metadata) => metadata,
            None => Rc::new(self.scan(&file, segment_bytes).await?),
        };
        Ok(self.set_opened(file, metadata))
    }

    /// Reads the headers of all batches.
    async fn scan(&self, file: &R::File, segment_bytes: u64) -> Result<Metadata, Error> {
        let header = self.read_header(file).await?;
        let len = self.len.get();
        let mut index = Index::new(segment_bytes.max(len));
        let batches = SEGMENT_HEADER_BYTES as u64..len;
        let push = |batch: &BatchHeader, position| {
            index.push(batch, position);
            true
        };
        // The index ends at damage: reads of what is before it need no more, and those that come to it find it.
        self.walk(file, &header, batches, SCAN_BYTES, push).await?;
        Ok(Metadata::new(header, index))
    }

    /// Reads the headers of the batches in `range`, in pieces of `piece_bytes`, and calls `on_batch` with each of them and
    /// its position. Returns where it has ended: before the first batch that is damaged or for which `on_batch` returns
    /// false, or after the last one.
    pub(crate) async fn walk(
        &self,
        file: &R::File,
        header: &SegmentHeader,
        range: Range<u64>,
        piece_bytes: u64,
        mut on_batch: impl FnMut(&BatchHeader, u64) -> bool,
    ) -> Result<u64, Error> {
        let mut position = range.start;
        // Each round goes on by at least one batch.
        while position < range.end {
            let wanted = piece_bytes.min(range.end - position);
            let bytes = self.read(file, position, wanted).await?;
            let mut at = 0;
            while let Some(head) = bytes.get(at as usize..).and_then(<[u8]>::first_chunk) {
                let batch = BatchHeader::decode(head, header.salt);
                let Some(batch) = batch.filter(|batch| on_batch(batch, position + at)) else {
                    return Ok(position + at);
                };
                at += batch.stored_len();
            }
            if at == 0 {
                break; // less than a header is left
            }
            position += at;
        }
        Ok(position)
    }

    pub(crate) async fn read_header(&self, file: &R::File) -> Result<SegmentHeader, Error> {
        let bytes = self.read(file, 0, SEGMENT_HEADER_BYTES as u64).await?;
        let bytes = bytes.first_chunk().expect("that many were read");
        let header = SegmentHeader::decode(bytes).map_err(|error| match error {
            HeaderError::Damaged => Error::corrupt(&self.path, 0),
            HeaderError::Version(found) => Error::version(&self.path, found),
        })?;
        if header.base_offset == self.base_offset {
            Ok(header)
        } else {
            Err(Error::corrupt(&self.path, 0)) // the file has another name than it was written under
        }
    }

    /// Reads exactly `len` bytes. A file that is shorter is damaged. If there is no memory for them, that is an error of the
    /// read alone.
    pub(crate) async fn read(
        &self,
        file: &R::File,
        position: u64,
        len: u64,
    ) -> Result<Bytes, Error> {
        let len = len as usize;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|error| self.io("read", error.into()))?;
        let read = file.read_exact_at(bytes, len, position).await;
        match read.into_result() {
            Ok(((), bytes)) => Ok(bytes.into()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(Error::corrupt(&self.path, position))
            }
            Err(error) => Err(self.io("read", error)),
        }
    }

    pub(crate) fn io(&self, action: &'static str, error: io::Error) -> Error {
        Error::io(action, &self.path, error)
    }
}

/// The base offset of the segment with this file name.
pub(crate) fn base_offset_of(name: &Path) -> Option<u64> {
    let digits = name.to_str()?.strip_suffix(".log")?;
    let is_number = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}

const _: () = assert!(SCAN_BYTES as usize > BATCH_HEADER_BYTES);
