//! [`Partition`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use owned_io::{Files, Runtime};

use crate::segment::Target;
use crate::shared::{Keep, Queued, Request, Shared, State};
use crate::signal::{Answered, reply};
use crate::writer::Writer;
use crate::{
    Appended, Batch, Error, Observer, Offsets, PartitionConfig, Position, ReadFrom, Recovered,
    Retention, Size, Trimmed, reader, recovery,
};

/// An append-only log of batches, in a directory of its own. A clone is another handle to it.
///
/// A task of this thread writes. It ends when the partition is [closed](Self::close), or when the last handle was
/// dropped and everything that was appended is written; it does not sync then.
pub struct Partition<R: Files> {
    handle: Rc<Handle<R>>,
}

impl<R: Runtime + Files> Partition<R> {
    /// Opens the partition in `dir`, or creates it with the directories above it.
    ///
    /// If [`close`](Self::close) has marked the end, it reads the mark and the header of the last segment, and removes the
    /// mark. Otherwise it reads the last segment, and cuts a torn tail: batches that are not whole and were not acknowledged by
    /// [`SyncPolicy::Batch`](crate::SyncPolicy::Batch).
    ///
    /// # Errors
    /// [`Locked`](crate::ErrorKind::Locked) if it is open elsewhere, [`Version`](crate::ErrorKind::Version),
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if bytes have changed that were on the disk: nothing is cut then.
    /// [`Io`](crate::ErrorKind::Io), and [`NoSpace`](crate::ErrorKind::NoSpace). Each names the file.
    ///
    /// # Cancellation
    /// Opening goes on, and the directory is locked until it has ended.
    pub async fn open(
        dir: impl Into<PathBuf>,
        config: PartitionConfig,
    ) -> Result<(Self, Recovered), Error> {
        let dir = dir.into();
        // In a task of its own, which holds the lock until the last call has returned: what a dropped call does late
        // would damage what another opener finds.
        let task = R::spawn({
            let dir = dir.clone();
            async move { recovery::open::<R>(&dir, &config).await }
        });
        let found = task.await.unwrap_or_else(|_| Err(Error::closed()))?;
        let first = found.segments.front().map_or(found.next_offset, |first| first.base_offset);
        let offsets = Offsets { first, next: found.next_offset };
        let cut_bytes = found.cut_bytes;
        let cut = found.segments.back().filter(|_| cut_bytes > 0);
        let (cut_file, was_closed) = (cut.map(|it| it.path.clone()), found.was_closed);
        let recovered = Recovered { offsets, cut_bytes, cut_file, was_closed };
        let bytes = found.segments.iter().map(|segment| segment.len.get()).sum();
        let state = State {
            segments: found.segments,
            bytes,
            recent: VecDeque::new(),
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
        let (work, room, committed, observer) = Default::default();
        let state = RefCell::new(state);
        let shared = Rc::new(Shared { dir, config, state, work, room, committed, observer });
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
    /// # Panics
    /// If `stamp`, or the iterator that it returns, appends to this partition or purges it.
    ///
    /// # Errors
    /// [`Empty`](crate::ErrorKind::Empty), [`TooLarge`](crate::ErrorKind::TooLarge) and
    /// [`NoSpace`](crate::ErrorKind::NoSpace): the batch is not appended, and its offset goes to the next one.
    /// [`Failed`](crate::ErrorKind::Failed), and [`Closed`](crate::ErrorKind::Closed) after `stamp` was called: it may be
    /// stored or not.
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
    /// Returns at most `bytes_max` bytes of payload, and [`READ_BATCHES_MAX`](crate::READ_BATCHES_MAX) batches, but at
    /// least one batch if there is one. The first batch may begin
    /// before the offset that was asked for: the caller skips messages of it. The result is empty if nothing is stored
    /// from there on. A read may return less than is stored.
    ///
    /// Only acknowledged batches are read. Recent ones come from memory. Batches that come from the disk share memory,
    /// which is at most twice as large as they are together.
    ///
    /// # Errors
    /// [`Corrupt`](crate::ErrorKind::Corrupt) with the file and the position: what is before it can be read, and the
    /// segments after it. [`Version`](crate::ErrorKind::Version): opening does not read the segments before the last one.
    /// [`Io`](crate::ErrorKind::Io).
    ///
    /// # Cancellation
    /// Safe.
    pub async fn read(&self, from: ReadFrom, bytes_max: usize) -> Result<Vec<Batch>, Error> {
        self.read_within(from, bytes_max, usize::MAX).await
    }

    /// As [`read`](Self::read), but does not read a first batch from the disk that has more than `batch_bytes_max`
    /// bytes: a caller with little memory finds out before it is allocated.
    ///
    /// # Errors
    /// [`TooLarge`](crate::ErrorKind::TooLarge) for such a batch. Those of `read`.
    ///
    /// # Cancellation
    /// Safe.
    pub async fn read_within(
        &self,
        from: ReadFrom,
        bytes_max: usize,
        batch_bytes_max: usize,
    ) -> Result<Vec<Batch>, Error> {
        let target = match from {
            ReadFrom::Offset(offset) => Target::Offset(offset),
            ReadFrom::Timestamp(timestamp) => Target::Timestamp(timestamp),
        };
        reader::read(&self.handle.shared, target, bytes_max, batch_bytes_max).await
    }

    /// Lets `observer` learn of writes and syncs from now on. Replaces the one before.
    pub fn observe(&self, observer: Rc<dyn Observer>) {
        self.handle.shared.observer.replace(Some(observer));
    }

    /// The offsets of the acknowledged messages.
    pub fn offsets(&self) -> Offsets {
        self.handle.shared.state.borrow().offsets()
    }

    /// How large it is.
    pub fn size(&self) -> Size {
        let state = self.handle.shared.state.borrow();
        let segments = state.segments.len().try_into().unwrap_or(u32::MAX);
        Size { bytes: state.bytes, segments }
    }

    /// Waits until [`offsets().next`](Self::offsets) is greater than `offset`. A [purge](Self::purge) begins again at 0
    /// and ends no wait.
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

    /// Removes all batches. The next offset is 0 again. It is durable when it returns. A full disk is no failure.
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

    /// Writes and syncs what was appended, marks the clean end, ends the writer, and releases the lock. With a mark, the
    /// next [`open`](Self::open) does not read the last segment. A short segment gets none: one of at most 1/128 of
    /// [`segment_bytes`](PartitionConfig::segment_bytes), which is read sooner than a mark is written. That the mark cannot be
    /// written is no error: the directory is full, for example. Other handles are closed too. A read
    /// that runs holds its segment, and until it ends the directory cannot be opened again.
    ///
    /// # Errors
    /// [`Failed`](crate::ErrorKind::Failed), now or earlier: some batches may not be durable. The lock is released all
    /// the same. [`Closed`](crate::ErrorKind::Closed).
    ///
    /// # Cancellation
    /// It is closed all the same.
    pub async fn close(self) -> Result<(), Error> {
        let shared = Rc::clone(&self.handle.shared);
        let closed = shared.request(Request::Close);
        shared.close();
        let closed = match closed {
            Ok(answered) => answered.wait().await,
            Err(error) => Err(error),
        };
        // The writer drops the lock when it ends, also after a failure.
        let is_over = || shared.state.borrow().lock.is_none().then_some(());
        shared.committed.wait_until(is_over).await;
        closed
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
        let is_next = state.assigned.base_offset == base_offset && !state.is_purging;
        assert!(is_next, "`stamp` has changed the partition whose offset it was given");
        state.assigned = Position { base_offset: base_offset + u64::from(count), timestamp };
        let queued = Queued { appended, parts, bytes, reply };
        state.queue_bytes += queued.cost();
        state.queue.push_back(Request::Append(queued));
        drop(state);
        shared.work.notify();
        Ok(answered)
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
