//! [`Journal`]: a durable store for state that is small enough for memory.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};
use crc32c::crc32c;
use owned_io::{File, Files, IoVec, OpenMode, OwnedReadAtExt, OwnedWriteAtExt, Runtime};

use crate::signal::Signal;
use crate::{Error, Observer, Partition, PartitionConfig, ReadFrom, Recovered};

const MAGIC: [u8; 8] = *b"OIOSNAP\0";
const VERSION: u32 = 1;

/// Magic, version, CRC32C of the rest, and the offset of the first record that is not in the state.
const HEADER_BYTES: usize = 24;

/// How many bytes of records are read at once when the journal is opened. With more, a read of short records would reach
/// [`READ_BATCHES_MAX`](crate::READ_BATCHES_MAX), and the rest would be read again.
const REPLAY_BYTES: usize = 128 * 1024;

/// A durable store for state that is small enough for memory: records of what has changed, and now and then a snapshot
/// of the whole.
///
/// The records are a [`Partition`], with its guarantees. A snapshot replaces a file in one step. After a crash, the state
/// is that of the last snapshot and all acknowledged records after it.
///
/// A record may be replayed although the snapshot has it: one whose [`append`](Self::append) had not returned when the
/// snapshot was made. So a record says what is, not what is added.
pub struct Journal<R: Files> {
    records: Partition<R>,
    /// The bytes of all records that were stored since the journal was opened, and of those that were replayed. It
    /// never becomes less: snapshots are compared by it.
    bytes: Cell<u64>,
    snapshots: Rc<Snapshots>,
}

/// What a journal shares with the task that writes a snapshot.
#[derive(Default)]
struct Snapshots {
    /// What the bytes of all records were at the last snapshot.
    bytes: Cell<u64>,
    is_writing: Cell<bool>,
    written: Signal,
}

/// The state that [`Journal::open`] has found: that of the snapshot, changed by the records in order.
#[non_exhaustive]
pub struct Replay {
    /// The last snapshot.
    pub snapshot: Option<Bytes>,
    /// The records after it, in order.
    pub records: Vec<Bytes>,
    /// What was found in the files of the records, and cut.
    pub recovered: Recovered,
}

impl<R: Runtime + Files> Journal<R> {
    /// Opens the journal in `dir`, or creates it.
    ///
    /// # Errors
    /// Those of [`Partition::open`] and [`Partition::read`], and [`Io`](crate::ErrorKind::Io) if a snapshot that was not
    /// finished cannot be removed. [`Corrupt`](crate::ErrorKind::Corrupt) with the file of the snapshot, if records
    /// between it and the first stored one are missing: it is lost, or an older one.
    ///
    /// # Cancellation
    /// As for [`Partition::open`].
    pub async fn open(
        dir: impl Into<PathBuf>,
        config: PartitionConfig,
    ) -> Result<(Self, Replay), Error> {
        let (records, recovered) = Partition::<R>::open(dir, config).await?;
        // In a task of its own, which keeps the lock: what a dropped call does late would remove a file of the next opener.
        let task = R::spawn({
            let records = records.clone();
            async move { remove_unfinished::<R>(records.dir()).await }
        });
        task.await.unwrap_or_else(|_| Err(Error::closed()))?;
        let path = snapshot_path(records.dir());
        let (snapshot, mut next) = match read_snapshot::<R>(&path).await? {
            Some((state, next)) => (Some(state), next),
            None => (None, 0),
        };
        // The records were synced before the snapshot was written.
        if next > records.offsets().next {
            return Err(Error::corrupt(&path, 16));
        }
        // Records are removed after the snapshot that has them is on the disk. So there is none without those.
        if next < records.offsets().first {
            return Err(Error::corrupt(&path, 0));
        }
        let mut replay = Replay { snapshot, records: Vec::new(), recovered };
        let mut bytes = 0;
        // Each round reads at least one record.
        loop {
            let found = records.read(ReadFrom::Offset(next), REPLAY_BYTES).await?;
            let Some(last) = found.last() else { break };
            next = last.next_offset();
            bytes += found.iter().map(|batch| batch.bytes.len() as u64).sum::<u64>();
            replay.records.extend(found.into_iter().map(|batch| batch.bytes));
        }
        Ok((Self { records, bytes: Cell::new(bytes), snapshots: Rc::default() }, replay))
    }

    /// Appends a record, which is not empty. Records keep the order of the first polls, while fewer than
    /// [`queue_bytes_max`](PartitionConfig::queue_bytes_max) bytes wait to be written.
    ///
    /// # Errors
    /// Those of [`Partition::append`].
    ///
    /// # Cancellation
    /// The record may be appended all the same.
    pub async fn append(&self, record: Bytes) -> Result<(), Error> {
        let appending = Appending { journal_bytes: &self.bytes, record_bytes: Cell::new(0) };
        let stamp = |_| {
            appending.record_bytes.set(record.len() as u64);
            [record]
        };
        let appended = self.records.append(1, stamp).await;
        if appended.is_err() {
            appending.record_bytes.set(0); // it is refused, or the journal takes no more records
        }
        appended.map(drop)
    }

    /// Lets `observer` learn of writes and syncs of records from now on. Replaces the one before.
    pub fn observe(&self, observer: Rc<dyn Observer>) {
        self.records.observe(observer);
    }

    /// Waits until all records that were appended before are on the disk, whatever the policy is.
    ///
    /// # Errors
    /// Those of [`Partition::flush`].
    ///
    /// # Cancellation
    /// Safe.
    pub async fn flush(&self) -> Result<(), Error> {
        self.records.flush().await
    }

    /// Replaces the records whose append has returned by `state`, which contains all whose append has begun. Removes
    /// the segments that it makes superfluous.
    ///
    /// Records that are appended meanwhile are kept. `state` must be of the moment of the call: poll the future before
    /// the next change.
    ///
    /// # Errors
    /// Those of [`Partition::flush`] and [`Partition::trim`]. [`Io`](crate::ErrorKind::Io) and
    /// [`NoSpace`](crate::ErrorKind::NoSpace): the snapshot before is in force, or this one. What was written of this one
    /// takes no space.
    ///
    /// # Cancellation
    /// Before the first poll, and while an earlier snapshot is written, nothing happens. Afterwards the snapshot is made
    /// all the same.
    pub async fn snapshot(&self, state: Bytes) -> Result<(), Error> {
        // Acknowledged records only: those in the queue may yet be refused, and others get their offsets.
        let (next, bytes) = (self.records.offsets().next, self.bytes.get());
        self.begin_writing().await;
        let writing = Writing(Rc::clone(&self.snapshots));
        if self.snapshots.bytes.get() > bytes {
            return Ok(()); // a newer one was faster
        }
        // In a task of its own: what a dropped call does late would damage the next snapshot.
        let records = self.records.clone();
        let task = R::spawn(async move {
            records.flush().await?;
            replace_snapshot::<R>(records.dir(), state, next).await?;
            writing.0.bytes.set(bytes);
            records.trim_below(next).await.map(drop)
        });
        task.await.unwrap_or_else(|_| Err(Error::closed()))
    }

    /// The bytes of the records that are not in the snapshot. Make another when they exceed a limit, for example a
    /// mebibyte: they are read when the journal is opened.
    pub fn bytes_since_snapshot(&self) -> u64 {
        self.bytes.get() - self.snapshots.bytes.get()
    }

    /// Waits for the snapshot that is being written, and closes the journal. Later calls are refused as
    /// [`Closed`](crate::ErrorKind::Closed). See [`Partition::close`].
    ///
    /// # Errors
    /// Those of [`Partition::close`].
    ///
    /// # Cancellation
    /// It is closed all the same, unless it still waited for a snapshot.
    pub async fn close(&self) -> Result<(), Error> {
        self.begin_writing().await;
        let _writing = Writing(Rc::clone(&self.snapshots)); // until a later snapshot finds the records closed
        self.records.clone().close().await
    }

    /// Waits until no snapshot is written. One at a time: they write the same file. A later one is newer, because
    /// waiting tasks are served in order.
    async fn begin_writing(&self) {
        let Snapshots { is_writing, written, .. } = &*self.snapshots;
        written.wait_until(|| (!is_writing.replace(true)).then_some(())).await;
    }
}

impl<R: Files> fmt::Debug for Journal<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("records", &self.records).finish_non_exhaustive()
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let snapshot = self.snapshot.as_ref().map(Bytes::len);
        write!(f, "Replay({} records, snapshot of {snapshot:?} bytes)", self.records.len())
    }
}

/// Counts a record when its append has ended, also if the future was dropped: it may be appended all the same.
struct Appending<'a> {
    journal_bytes: &'a Cell<u64>,
    /// 0: it has no offset yet, or was refused.
    record_bytes: Cell<u64>,
}

impl Drop for Appending<'_> {
    fn drop(&mut self) {
        self.journal_bytes.set(self.journal_bytes.get() + self.record_bytes.get());
    }
}

/// Lets the next snapshot begin.
struct Writing(Rc<Snapshots>);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.is_writing.set(false);
        self.0.written.notify();
    }
}

/// Replaces the snapshot in one step. After an error, nothing unfinished is left.
async fn replace_snapshot<R: Files>(dir: &Path, state: Bytes, next: u64) -> Result<(), Error> {
    let (path, new_path) = (snapshot_path(dir), unfinished_path(dir));
    let replaced = async {
        let file = R::open(&new_path, OpenMode::Create).await?;
        file.set_len(0).await?;
        let mut bufs = IoVec::with_capacity(2);
        bufs.push(encode_header(&state, next));
        bufs.push(state);
        file.write_all_vectored_at(bufs, 0).await.into_result()?;
        file.sync_data().await?;
        R::rename(&new_path, &path).await?;
        R::sync_dir(dir).await
    };
    let Err(error) = replaced.await else { return Ok(()) };
    let _ = remove_unfinished::<R>(dir).await; // if that fails too, the next snapshot overwrites it
    Err(Error::io("replace", &path, error))
}

/// Removes a snapshot that was not finished, because the disk was full or the process has ended.
async fn remove_unfinished<R: Files>(dir: &Path) -> Result<(), Error> {
    let path = unfinished_path(dir);
    match R::remove_file(&path).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(|error| Error::io("remove", &path, error)),
    }
}

fn unfinished_path(dir: &Path) -> PathBuf {
    dir.join("snapshot.new")
}

fn snapshot_path(dir: &Path) -> PathBuf {
    dir.join("snapshot")
}

fn encode_header(state: &Bytes, next: u64) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEADER_BYTES);
    bytes.put_slice(&MAGIC);
    bytes.put_u32_le(VERSION);
    let crc = crc32c::crc32c_append(crc32c(&next.to_le_bytes()), state);
    bytes.put_u32_le(crc);
    bytes.put_u64_le(next);
    bytes.freeze()
}

/// The state of the snapshot, and the offset of the first record that is not in it.
async fn read_snapshot<R: Files>(path: &Path) -> Result<Option<(Bytes, u64)>, Error> {
    let read = async {
        let file = R::open(path, OpenMode::Read).await?;
        let len = file.size().await?.try_into().unwrap_or(usize::MAX);
        let mut buf = Vec::new();
        buf.try_reserve_exact(len).map_err(io::Error::other)?;
        file.read_exact_at(buf, len, 0).await.into_result()
    };
    let mut bytes = match read.await {
        Ok(((), bytes)) => Bytes::from(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", path, error)),
    };
    // It was synced before it got this name. So it is never torn.
    let header = bytes.first_chunk::<HEADER_BYTES>().ok_or_else(|| Error::corrupt(path, 0))?;
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    if header[..8] != MAGIC {
        return Err(Error::corrupt(path, 0));
    }
    if word(8) > VERSION {
        return Err(Error::version(path, word(8)));
    }
    let next = u64::from_le_bytes(header[16..].try_into().expect("eight bytes"));
    if word(8) != VERSION || crc32c(&bytes[16..]) != word(12) {
        return Err(Error::corrupt(path, 0));
    }
    Ok(Some((bytes.split_off(HEADER_BYTES), next)))
}
