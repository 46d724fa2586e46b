//! Opening a partition: its files are found, and the last segment is checked and cut, unless a mark says where it ended.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::rc::Rc;

use owned_io::{File, Files, OpenMode, OwnedWriteAtExt, Random};

use crate::format::{
    BATCH_HEADER_BYTES, SEGMENT_HEADER_BYTES, Scanned, Scanner, SegmentHeader, proves_damage,
};
use crate::mark::{self, Mark};
use crate::segment::{Index, Metadata, Segment, base_offset_of};
use crate::{Error, ErrorKind, PartitionConfig};

/// How much is read at once, in bytes: long enough for a disk to read in one go, and little memory beside a segment.
const CHUNK_BYTES: u64 = 1024 * 1024;

/// What was found in a directory.
pub(crate) struct Found<R: Files> {
    /// The file whose lock keeps others away.
    pub(crate) lock: R::File,
    /// In order. The last is open for writing.
    pub(crate) segments: VecDeque<Rc<Segment<R>>>,
    pub(crate) next_offset: u64,
    pub(crate) timestamp: u64,
    pub(crate) cut_bytes: u64,
    /// A mark said where the last segment ended.
    pub(crate) was_closed: bool,
}

/// Opens the directory of a partition, or creates it.
pub(crate) async fn open<R: Files + Random>(
    dir: &Path,
    config: &PartitionConfig,
) -> Result<Found<R>, Error> {
    let failed = |error| Error::io("open", dir, error);
    R::create_dir_all(dir).await.map_err(failed)?;
    let lock_path = dir.join("lock");
    let lock = R::open(&lock_path, OpenMode::Create).await;
    let lock = lock.map_err(|error| Error::io("open", &lock_path, error))?;
    try_lock::<R>(&lock, dir).await?;

    let mut bases = list::<R>(dir).await?;
    let mut mark = Mark::read::<R>(dir).await;
    let had_mark = mark.is_some();
    let (mut incomplete, mut last) = (None::<Segment<R>>, None);
    // At most two rounds: only the last segment can be incomplete, because a segment is on the disk before the next one
    // is created.
    while last.is_none()
        && let Some(base) = bases.pop()
    {
        let segment = Segment::new(dir, base, 0);
        match recover(&segment, config, &mut mark).await? {
            Some(recovered) => last = Some((segment, recovered)),
            None if incomplete.is_some() => return Err(Error::corrupt(&segment.path, 0)),
            None => incomplete = Some(segment),
        }
    }
    if let Some(segment) = &incomplete {
        // No batch was ever in it.
        R::remove_file(&segment.path).await.map_err(failed)?;
    }
    // Durably, before anything is appended.
    mark::remove::<R>(dir).await.map_err(failed)?;
    R::sync_dir(dir).await.map_err(failed)?;
    if let Some((segment, (scanned, size))) = last {
        let mut segments = older::<R>(dir, &bases).await?;
        segments.push_back(Rc::new(segment));
        let Scanned { valid_len, next_offset, timestamp, .. } = scanned;
        let cut_bytes = size - valid_len;
        let was_closed = had_mark && mark.is_none();
        return Ok(Found { lock, segments, next_offset, timestamp, cut_bytes, was_closed });
    }
    let fresh_base = incomplete.map_or(0, |segment| segment.base_offset);
    sync_above::<R>(dir).await?;
    let header = SegmentHeader { salt: salt::<R>(), base_offset: fresh_base, timestamp: 0 };
    let segment = Segment::create(dir, header, Index::new(config.segment_bytes)).await?;
    R::sync_dir(dir).await.map_err(|error| Error::io("sync", dir, error))?;
    let segments = VecDeque::from([Rc::new(segment)]);
    let (next_offset, timestamp, cut_bytes, was_closed) = (fresh_base, 0, 0, false);
    Ok(Found { lock, segments, next_offset, timestamp, cut_bytes, was_closed })
}

/// A new salt.
pub(crate) fn salt<R: Random>() -> u32 {
    let mut salt = [0; 4];
    R::fill_random(&mut salt);
    u32::from_le_bytes(salt)
}

/// The base offsets of the segments in a directory, in order. Files with other names are ignored.
///
/// # Errors
/// It cannot be listed, or a directory has the name of a segment.
pub(crate) async fn list<R: Files>(dir: &Path) -> Result<Vec<u64>, Error> {
    let entries = R::list_dir(dir).await.map_err(|error| Error::io("list", dir, error))?;
    let mut bases = Vec::with_capacity(entries.len());
    for entry in entries {
        let Some(base_offset) = base_offset_of(entry.name.as_ref()) else { continue };
        if entry.is_dir {
            let error = io::ErrorKind::IsADirectory.into();
            return Err(Error::io("open", &dir.join(entry.name), error));
        }
        bases.push(base_offset);
    }
    bases.sort_unstable();
    Ok(bases)
}

pub(crate) async fn try_lock<R: Files>(file: &R::File, path: &Path) -> Result<(), Error> {
    match file.try_lock().await {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Error::locked(path)),
        result => result.map_err(|error| Error::io("lock", path, error)),
    }
}

/// The segments before the last one, which are complete. Only their lengths are read.
async fn older<R: Files>(dir: &Path, bases: &[u64]) -> Result<VecDeque<Rc<Segment<R>>>, Error> {
    let mut segments = VecDeque::with_capacity(bases.len() + 1);
    for &base in bases {
        let segment = Segment::<R>::new(dir, base, 0);
        let size = async { R::open(&segment.path, OpenMode::Read).await?.size().await };
        segment.len.set(size.await.map_err(|error| segment.io("open", error))?);
        segments.push_back(Rc::new(segment));
    }
    Ok(segments)
}

/// Checks the batches of the last segment, and cuts it after the last whole one. Returns what it found, and the length
/// before the cut. `None`: the segment was not created completely.
///
/// Takes the mark instead, if it agrees with the segment. Then everything is on the disk, and only the headers of the last
/// batches are read.
async fn recover<R: Files>(
    segment: &Segment<R>,
    config: &PartitionConfig,
    mark: &mut Option<Mark>,
) -> Result<Option<(Scanned, u64)>, Error> {
    let file = R::open(&segment.path, OpenMode::Write).await;
    let file = file.map_err(|error| segment.io("open", error))?;
    // A write that was dropped, when an earlier runtime of this process ended, holds the lock until it has ended.
    try_lock::<R>(&file, &segment.path).await?;
    let size = file.size().await.map_err(|error| segment.io("open", error))?;
    let header = match segment.read_header(&file).await {
        Ok(header) => header,
        // Batches are written after the header is on the disk.
        Err(error) if error.kind() == ErrorKind::Corrupt && size <= SEGMENT_HEADER_BYTES as u64 => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let is_marked = mark.as_ref().is_some_and(|mark| mark.agrees_with(&header, size));
    if is_marked
        && let Some(found) = &*mark
        && found.is_confirmed_by(segment, &file, &header).await?
        && let Some(mark) = mark.take()
    {
        let Mark { next_offset, timestamp, entries, .. } = mark;
        let index = Index::with_entries(config.segment_bytes, entries);
        segment.len.set(size);
        segment.set_opened(file, Rc::new(Metadata::new(header, index)));
        let scanned = Scanned { valid_len: size, next_offset, timestamp, synced_len: size };
        return Ok(Some((scanned, size)));
    }
    let mut index = Index::new(config.segment_bytes);
    let scanned = scan(segment, &file, &header, size, &mut index).await?;
    if scanned.valid_len < size {
        if is_marked {
            // The mark was written when all of it was on the disk.
            return Err(Error::corrupt(&segment.path, scanned.valid_len));
        }
        check_tail(segment, &file, &header, &scanned, size).await?;
        let cut = file.set_len(scanned.valid_len).await;
        cut.map_err(|error| segment.io("cut", error))?;
    }
    make_durable(segment, &file, &header, &scanned).await?;
    segment.len.set(scanned.valid_len);
    segment.set_opened(file, Rc::new(Metadata::new(header, index)));
    Ok(Some((scanned, size)))
}

async fn scan<R: Files>(
    segment: &Segment<R>,
    file: &R::File,
    header: &SegmentHeader,
    size: u64,
    index: &mut Index,
) -> Result<Scanned, Error> {
    let mut scanner = Scanner::new(header);
    let mut position = SEGMENT_HEADER_BYTES as u64;
    while position < size {
        let len = CHUNK_BYTES.min(size - position);
        let bytes = segment.read(file, position, len).await?;
        if !scanner.feed(&bytes, |batch, position| index.push(batch, position)) {
            break;
        }
        position += len;
    }
    Ok(scanner.scanned())
}

/// Checks that what comes after the valid batches is a torn tail.
async fn check_tail<R: Files>(
    segment: &Segment<R>,
    file: &R::File,
    header: &SegmentHeader,
    scanned: &Scanned,
    size: u64,
) -> Result<(), Error> {
    let mut position = scanned.valid_len;
    while position < size {
        // Some more, so that a header is whole in one of two chunks.
        let len = (CHUNK_BYTES + BATCH_HEADER_BYTES as u64).min(size - position);
        let bytes = segment.read(file, position, len).await?;
        if proves_damage(&bytes, header.salt, scanned.valid_len) {
            return Err(Error::corrupt(&segment.path, scanned.valid_len));
        }
        position += CHUNK_BYTES;
    }
    Ok(())
}

/// Makes durable what was found, and the cut.
///
/// A sync may have failed before. Then the cache has batches that the kernel never writes, and a sync says nothing about
/// them. So what no batch says to be synced is written again: after a clean end, the last group of batches.
///
/// The kernel may have dropped such batches from the cache since they were scanned. So the bytes that are written are
/// checked again.
async fn make_durable<R: Files>(
    segment: &Segment<R>,
    file: &R::File,
    header: &SegmentHeader,
    scanned: &Scanned,
) -> Result<(), Error> {
    // The first batch is written after the header is on the disk: without one, nothing says that it is.
    if scanned.valid_len == SEGMENT_HEADER_BYTES as u64 {
        let written = file.write_all_at(header.encode(), 0).await.into_result();
        written.map_err(|error| segment.io("write", error))?;
    }
    let mut position = scanned.synced_len;
    let mut scanner = None;
    while position < scanned.valid_len {
        let len = CHUNK_BYTES.min(scanned.valid_len - position);
        let bytes = segment.read(file, position, len).await?;
        let scanner = match &mut scanner {
            Some(scanner) => scanner,
            None => {
                let resumed = Scanner::resume(header, position, &bytes);
                scanner.insert(resumed.ok_or_else(|| Error::corrupt(&segment.path, position))?)
            }
        };
        scanner.feed(&bytes, |_, _| {});
        let written = file.write_all_at(bytes, position).await.into_result();
        written.map_err(|error| segment.io("write", error))?;
        position += len;
    }
    let found = scanner.map_or(scanned.valid_len, |scanner| scanner.scanned().valid_len);
    if found != scanned.valid_len {
        let error = io::Error::other("its bytes have changed while it was opened");
        return Err(segment.io("read", error));
    }
    file.sync_data().await.map_err(|error| segment.io("sync", error))
}

/// Makes the names of a new directory and of those above it durable.
pub(crate) async fn sync_above<R: Files>(dir: &Path) -> Result<(), Error> {
    for above in dir.ancestors().skip(1) {
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        match R::sync_dir(above).await {
            // A directory that may not be read was there before, and so was what is above it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
            result => result.map_err(|error| Error::io("sync", above, error))?,
        }
    }
    Ok(())
}
