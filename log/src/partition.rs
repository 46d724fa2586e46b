//! [`Partition`], and the state that its handles share with the writer task.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use owned_io::{Files, Runtime};

use crate::segment::{Segment, Target};
use crate::signal::{Answered, Reply, Signal, reply};
use crate::writer::Writer;
use crate::{Error, PartitionConfig, Retention, reader, recovery};

/// An append-only log of batches, in a directory of its own. A clone is another handle to it.
///
/// A task of this thread writes. It ends when the partition is [closed](Self::close), or when the last handle was
/// dropped and everything that was appended is written; it does not sync then.
pub struct Partition<R: Files> {
    handle: Rc<Handle<R>>,
}

/// The offset and the time that a batch gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The offset of the first message.
    pub base_offset: u64,
    /// Microseconds since 1970, by the wall clock of the runtime, but never less than that of the batch before.
    pub timestamp: u64,
}

/// An acknowledged batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The offset of the first message.
    pub base_offset: u64,
    /// The number of messages.
    pub count: u32,
    /// Microseconds since 1970.
    pub timestamp: u64,
}

/// A stored batch.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Batch {
    /// The offset of the first message.
    pub base_offset: u64,
    /// The number of messages.
    pub count: u32,
    /// Microseconds since 1970.
    pub timestamp: u64,
    /// The bytes as they were appended. They share memory with other batches of the same read.
    pub bytes: Bytes,
}

impl Batch {
    /// The offset after the last message.
    pub fn next_offset(&self) -> u64 {
        self.base_offset + u64::from(self.count)
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { base_offset, count, timestamp, bytes } = self;
        write!(f, "Batch({count} at {base_offset}, {timestamp} µs, {} bytes)", bytes.len())
    }
}

/// Where a read begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// At the batch with this offset; at the first, if the offset is lower.
    Offset(u64),
    /// At the first batch with this timestamp or a later one, in microseconds since 1970.
    Timestamp(u64),
}

/// The offsets of the acknowledged messages. They are equal if there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// The first that is stored.
    pub first: u64,
    /// The one after the last.
    pub next: u64,
}

/// How large a partition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The bytes of its segments.
    pub bytes: u64,
    /// The number of its segments: at least one.
    pub segments: u32,
}

/// What [`Partition::trim`] has removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trimmed {
    /// The number of segments.
    pub segments: u32,
    /// Their bytes.
    pub bytes: u64,
    /// The first offset that is left.
    pub first: u64,
}

/// What [`Partition::open`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovered {
    /// The offsets of the stored messages.
    pub offsets: Offsets,
    /// The bytes of the torn tail that was cut. They were not acknowledged by [`SyncPolicy::Batch`].
    ///
    /// [`SyncPolicy::Batch`]: crate::SyncPolicy::Batch
    pub cut_bytes: u64,
}

impl<R: Runtime + Files> Partition<R> {
    /// Opens the partition in `dir`, or creates it with the directories above it.
    ///
    /// Reads the last segment, and cuts a torn tail: batches that are not whole and were not acknowledged by
    /// [`SyncPolicy::Batch`](crate::SyncPolicy::Batch).
    ///
    /// # Errors
    /// [`Locked`](crate::ErrorKind::Locked) if it is open elsewhere, [`Version`](crate::ErrorKind::Version),
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if bytes have changed that were on the disk: nothing is cut then.
    /// [`Io`](crate::ErrorKind::Io), and [`NoSpace`](crate::ErrorKind::NoSpace). Each names the file.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn open(
        dir: impl Into<PathBuf>,
        config: PartitionConfig,
    ) -> Result<(Self, Recovered), Error> {
        let dir = dir.into();
        let found = recovery::open::<R>(&dir, &config).await?;
        let first = found.segments.front().map_or(found.next_offset, |first| first.base_offset);
        let offsets = Offsets { first, next: found.next_offset };
        let recovered = Recovered { offsets, cut_bytes: found.cut_bytes };
        let state = State {
            segments: found.segments,
            lock: Some(found.lock),
            queue: VecDeque::new(),
            queue_bytes: 0,
            assigned: Position { base_offset: offsets.next, timestamp: found.timestamp },
            next: offsets.next,
            cache: VecDeque::new(),
            cache_bytes: 0,
            is_purging: false,
            is_closing: false,
            failed: None,
        };
        let (work, room, committed) = Default::default();
        let state = RefCell::new(state);
        let shared = Rc::new(Shared { dir, config, state, work, room, committed });
        // Not detached: the end of the runtime drops it, and with it the lock.
        drop(R::spawn(Writer::new(Rc::clone(&shared)).run()));
        Ok((Self { handle: Rc::new(Handle { shared }) }, recovered))
    }

    /// Appends a batch of `count` messages.
    ///
    /// Waits until fewer than [`queue_bytes_max`](PartitionConfig::queue_bytes_max) bytes wait to be written. Then it
    /// calls `stamp` with the offset and the time of the batch. `stamp` writes them into the messages and returns their
    /// bytes as they are to be stored, in order and in any number of parts. Batches get offsets in the order of these
    /// calls. Then it waits as the [`SyncPolicy`](crate::SyncPolicy) says.
    ///
    /// # Errors
    /// [`Empty`](crate::ErrorKind::Empty), [`TooLarge`](crate::ErrorKind::TooLarge) and
    /// [`NoSpace`](crate::ErrorKind::NoSpace): the batch is not appended, and its offset goes to the next one.
    /// [`Failed`](crate::ErrorKind::Failed): it may be stored or not. [`Closed`](crate::ErrorKind::Closed).
    ///
    /// # Cancellation
    /// Before `stamp` is called, nothing has happened. Afterwards the batch may be appended all the same.
    pub async fn append<P>(
        &self,
        count: u32,
        stamp: impl FnOnce(Position) -> P,
    ) -> Result<Appended, Error>
    where
        P: IntoIterator<Item = Bytes>,
    {
        self.enqueue(count, stamp).await?.wait().await
    }

    /// Reads batches, from `from` on.
    ///
    /// Returns at most `bytes_max` bytes of payload, but at least one batch if there is one. The first batch may begin
    /// before the offset that was asked for: the caller skips messages of it. The result is empty if nothing is stored
    /// from there on. A read may return less than is stored.
    ///
    /// Only acknowledged batches are read. Recent ones come from memory.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) with the file and the position: the next read may continue at a later
    /// offset. [`Io`](crate::ErrorKind::Io).
    ///
    /// # Cancellation
    /// Safe.
    pub async fn read(&self, from: ReadFrom, bytes_max: usize) -> Result<Vec<Batch>, Error> {
        let target = match from {
            ReadFrom::Offset(offset) => Target::Offset(offset),
            ReadFrom::Timestamp(timestamp) => Target::Timestamp(timestamp),
        };
        reader::read(&self.handle.shared, target, bytes_max).await
    }

    /// The offsets of the acknowledged messages.
    pub fn offsets(&self) -> Offsets {
        self.handle.shared.state.borrow().offsets()
    }

    /// How large it is.
    pub fn size(&self) -> Size {
        let state = self.handle.shared.state.borrow();
        let bytes = state.segments.iter().map(|segment| segment.len.get()).sum();
        Size { bytes, segments: state.segments.len().try_into().unwrap_or(u32::MAX) }
    }

    /// Waits until [`offsets().next`](Self::offsets) is greater than `offset`.
    ///
    /// # Errors
    /// [`Closed`](crate::ErrorKind::Closed), and [`Failed`](crate::ErrorKind::Failed): no more batches will come.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn wait_past(&self, offset: u64) -> Result<(), Error> {
        let shared = &self.handle.shared;
        let check = || {
            let state = shared.state.borrow();
            if state.next > offset { Some(Ok(())) } else { state.refusal().map(Err) }
        };
        shared.committed.wait_until(check).await
    }

    /// Waits until everything that was appended before is on the disk, whatever the policy is.
    ///
    /// # Errors
    /// [`Failed`](crate::ErrorKind::Failed), [`Closed`](crate::ErrorKind::Closed).
    ///
    /// # Cancellation
    /// Safe.
    pub async fn flush(&self) -> Result<(), Error> {
        self.handle.shared.request(Request::Flush)?.wait().await
    }

    /// Removes all batches. The next offset is 0 again. It is durable when it returns.
    ///
    /// What was appended before is removed, although its append may be acknowledged after this call. Appends wait
    /// meanwhile.
    ///
    /// # Errors
    /// [`Failed`](crate::ErrorKind::Failed): some batches, from the first on, are removed.
    /// [`Closed`](crate::ErrorKind::Closed).
    ///
    /// # Cancellation
    /// The batches are removed all the same.
    pub async fn purge(&self) -> Result<(), Error> {
        let answered = self.handle.shared.request(Request::Purge)?;
        self.handle.shared.state.borrow_mut().is_purging = true;
        answered.wait().await
    }

    /// Removes whole segments, from the first on, as `retention` says. The last one stays.
    ///
    /// # Errors
    /// [`Io`](crate::ErrorKind::Io): some of them are removed. [`Closed`](crate::ErrorKind::Closed).
    ///
    /// # Cancellation
    /// They are removed all the same.
    pub async fn trim(&self, retention: Retention) -> Result<Trimmed, Error> {
        let request = |reply| Request::Trim(Keep::Retention(retention), reply);
        self.handle.shared.request(request)?.wait().await
    }

    /// Writes and syncs what was appended, ends the writer, and releases the lock. Other handles are closed too.
    ///
    /// # Errors
    /// [`Failed`](crate::ErrorKind::Failed), now or earlier: some batches may not be durable. The lock is released all
    /// the same. [`Closed`](crate::ErrorKind::Closed).
    ///
    /// # Cancellation
    /// It is closed all the same.
    pub async fn close(self) -> Result<(), Error> {
        let shared = Rc::clone(&self.handle.shared);
        let flushed = shared.request(Request::Flush);
        shared.close();
        let flushed = match flushed {
            Ok(answered) => answered.wait().await,
            Err(error) => Err(error),
        };
        // The writer drops the lock when it ends, also after a failure.
        let is_over = || shared.state.borrow().lock.is_none().then_some(());
        shared.committed.wait_until(is_over).await;
        flushed
    }

    /// [`append`](Self::append) until the batch is in the queue.
    async fn enqueue<P>(
        &self,
        count: u32,
        stamp: impl FnOnce(Position) -> P,
    ) -> Result<Answered<Appended>, Error>
    where
        P: IntoIterator<Item = Bytes>,
    {
        let shared = &*self.handle.shared;
        if count == 0 {
            return Err(Error::empty());
        }
        shared.room.wait_until(|| shared.check_room()).await?;
        let position = shared.next_position(R::wall_clock());
        let parts = stamp(position).into_iter().filter(|part| !part.is_empty());
        let parts: Vec<_> = parts.collect();
        let bytes = parts.iter().fold(0, |sum: usize, part| sum.saturating_add(part.len()));
        let limit = shared.config.batch_limit();
        if bytes == 0 {
            return Err(Error::empty());
        }
        if bytes > limit || position.base_offset.checked_add(count.into()).is_none() {
            return Err(Error::too_large(bytes, limit));
        }
        let (reply, answered) = reply();
        let Position { base_offset, timestamp } = position;
        let appended = Appended { base_offset, count, timestamp };
        let mut state = shared.state.borrow_mut();
        state.assigned = Position { base_offset: base_offset + u64::from(count), timestamp };
        state.queue_bytes += bytes;
        state.queue.push_back(Request::Append(Queued { appended, parts, bytes, reply }));
        drop(state);
        shared.work.notify();
        Ok(answered)
    }

    /// The offset that the next batch gets.
    pub(crate) fn assigned(&self) -> u64 {
        self.handle.shared.state.borrow().assigned.base_offset
    }

    /// Removes whole segments with offsets below `offset` only. Begins a new segment, if the last one has no others.
    pub(crate) async fn trim_below(&self, offset: u64) -> Result<Trimmed, Error> {
        let request = |reply| Request::Trim(Keep::From(offset), reply);
        self.handle.shared.request(request)?.wait().await
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.handle.shared.dir
    }
}

impl<R: Files> Clone for Partition<R> {
    fn clone(&self) -> Self {
        Self { handle: Rc::clone(&self.handle) }
    }
}

impl<R: Files> fmt::Debug for Partition<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition").field("dir", &self.handle.shared.dir).finish_non_exhaustive()
    }
}

/// What all handles share. The writer ends after the last of them.
struct Handle<R: Files> {
    shared: Rc<Shared<R>>,
}

impl<R: Files> Drop for Handle<R> {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// What the handles share with the writer.
pub(crate) struct Shared<R: Files> {
    pub(crate) dir: PathBuf,
    pub(crate) config: PartitionConfig,
    /// Never borrowed across an await, nor while code of the caller runs.
    pub(crate) state: RefCell<State<R>>,
    /// A request was queued, or the partition is closed.
    pub(crate) work: Signal,
    /// There may be room for another batch.
    pub(crate) room: Signal,
    /// Batches were acknowledged, or none will be any more.
    pub(crate) committed: Signal,
}

pub(crate) struct State<R: Files> {
    /// In order. The last is written to. There is at least one, except during a purge.
    pub(crate) segments: VecDeque<Rc<Segment<R>>>,
    /// `None` once the writer has ended.
    pub(crate) lock: Option<R::File>,
    /// `queue_bytes_max` and one batch bound it. Other requests than appends are few: one for each waiting task.
    pub(crate) queue: VecDeque<Request>,
    /// The bytes of the batches that are queued or being written.
    pub(crate) queue_bytes: usize,
    /// The offset of the next batch, and the time of the last one.
    pub(crate) assigned: Position,
    /// The offset after the last acknowledged message.
    pub(crate) next: u64,
    /// The last acknowledged batches without a gap, oldest first.
    pub(crate) cache: VecDeque<Batch>,
    pub(crate) cache_bytes: usize,
    pub(crate) is_purging: bool,
    pub(crate) is_closing: bool,
    pub(crate) failed: Option<Error>,
}

/// What the writer is asked to do.
pub(crate) enum Request {
    Append(Queued),
    Flush(Reply<()>),
    Purge(Reply<()>),
    Trim(Keep, Reply<Trimmed>),
}

/// A batch that waits to be written.
pub(crate) struct Queued {
    pub(crate) appended: Appended,
    pub(crate) parts: Vec<Bytes>,
    pub(crate) bytes: usize,
    pub(crate) reply: Reply<Appended>,
}

/// What a trim keeps.
#[derive(Clone, Copy)]
pub(crate) enum Keep {
    Retention(Retention),
    /// Messages from this offset on.
    From(u64),
}

impl<R: Files> Shared<R> {
    /// Queues a request.
    fn request<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<Answered<T>, Error> {
        if let Some(error) = self.state.borrow().refusal() {
            return Err(error);
        }
        let (reply, answered) = reply();
        self.state.borrow_mut().queue.push_back(request(reply));
        self.work.notify();
        Ok(answered)
    }

    fn close(&self) {
        self.state.borrow_mut().is_closing = true;
        self.work.notify();
        self.room.notify();
        self.committed.notify();
    }

    /// `Some` if an append need not wait: it may go on, or it is refused.
    fn check_room(&self) -> Option<Result<(), Error>> {
        let state = self.state.borrow();
        if let Some(error) = state.refusal() {
            return Some(Err(error));
        }
        let has_room = state.queue_bytes < self.config.queue_bytes_max && !state.is_purging;
        has_room.then_some(Ok(()))
    }

    fn next_position(&self, now: SystemTime) -> Position {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let now = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        let Position { base_offset, timestamp } = self.state.borrow().assigned;
        Position { base_offset, timestamp: now.max(timestamp) }
    }
}

impl<R: Files> State<R> {
    pub(crate) fn offsets(&self) -> Offsets {
        let first = self.segments.front().map_or(self.next, |first| first.base_offset);
        Offsets { first: first.min(self.next), next: self.next }
    }

    /// Why nothing more can be asked for.
    fn refusal(&self) -> Option<Error> {
        self.failed.clone().or_else(|| self.is_closing.then(Error::closed))
    }
}
