//! [`Writer`]: the task that writes a partition. It is the only one that changes files.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use owned_io::{File, Files, IoVec, OwnedWriteAtExt, Runtime, select};

use crate::error::is_full;
use crate::format::{
    BATCH_HEADER_BYTES, BatchHeader, SEGMENT_HEADER_BYTES, SegmentHeader, payload_crc,
};
use crate::mark::{self, Mark};
use crate::segment::{Index, Opened, Segment};
use crate::shared::{BATCH_OVERHEAD_BYTES, Keep, Queued, Request, Shared};
use crate::{Batch, Error, ErrorKind, Group, Position, SyncPolicy, Trimmed, recovery};

/// How many bytes are written and synced together, at most, unless one batch is larger. More would only make the first
/// of them wait longer: a disk syncs as many in a few milliseconds.
const GROUP_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Smaller batches are copied into the cache: as they come, they may share a buffer that is much larger, and may have
/// several parts.
const COPIED_BYTES_MAX: usize = 16 * 1024;

/// A last segment of at most this part of [`segment_bytes`](crate::PartitionConfig::segment_bytes) gets no mark: one of
/// 1 MiB by default. It is read in less time than the two syncs of a mark take.
const UNMARKED_PART: u64 = 128;

pub(crate) struct Writer<R: Files> {
    pub(crate) shared: Rc<Shared<R>>,
    segment: Rc<Segment<R>>,
    pub(crate) opened: Rc<Opened<R>>,
    /// The length of the segment with what was written but not acknowledged.
    pub(crate) len: u64,
    /// How much of the segment is on the disk.
    synced_len: u64,
    /// When what was written is to be synced, by [`SyncPolicy::Interval`].
    sync_at: Option<Instant>,
    /// The timestamp of the last batch that was written.
    pub(crate) timestamp: u64,
    /// The file of the next segment was begun, and may exist. After a restart, it would hide batches that were written
    /// to this one from its base offset on. So this segment takes no more.
    is_ended: bool,
}

impl<R: Runtime + Files> Writer<R> {
    /// # Panics
    /// Unless recovery has opened the last segment.
    pub(crate) fn new(shared: Rc<Shared<R>>) -> Self {
        let state = shared.state.borrow();
        let segment = Rc::clone(state.segments.back().expect("a partition has a segment"));
        let timestamp = state.assigned.timestamp;
        drop(state);
        let opened = segment.opened.borrow().clone().expect("recovery has opened it");
        let len = segment.len.get();
        let synced_len = len; // by recovery
        let (sync_at, is_ended) = (None, false);
        Self { shared, segment, opened, len, synced_len, sync_at, timestamp, is_ended }
    }

    pub(crate) async fn run(mut self) {
        let _end = End(Rc::clone(&self.shared));
        while let Some(work) = self.next_work().await {
            let done = match work {
                Work::Sync => self.sync().await,
                Work::Group(group) => self.append(group).await,
                Work::Flush(reply) => {
                    let flushed = self.sync().await;
                    reply.give(flushed.clone());
                    flushed
                }
                Work::Close(reply) => {
                    let synced = self.sync().await;
                    if synced.is_ok() {
                        self.mark_end().await;
                    }
                    reply.give(synced.clone());
                    synced
                }
                Work::Purge(reply) => {
                    let purged = self.purge().await;
                    reply.give(purged.clone());
                    purged
                }
                Work::Trim(keep, reply) => {
                    let trimmed = self.trim(keep).await;
                    reply.give(trimmed.clone());
                    match trimmed {
                        Err(error) if error.kind() == ErrorKind::Failed => Err(error),
                        // What it has not removed is whole. So the log goes on after an error.
                        _ => Ok(()),
                    }
                }
            };
            if let Err(error) = done {
                self.fail(&error);
                return;
            }
        }
    }

    /// Waits for something to do. `None`: the partition is closed, and everything is done.
    async fn next_work(&self) -> Option<Work> {
        let shared = &self.shared;
        let next = || {
            let state = &mut *shared.state.borrow_mut();
            match take_work(&mut state.queue) {
                Some(work) => Some(Some(work)),
                None => state.is_closing.then_some(None),
            }
        };
        let mut waiting = pin!(shared.work.wait_until(next));
        let Some(sync_at) = self.sync_at else { return waiting.await };
        let left = sync_at.saturating_duration_since(R::now());
        if left.is_zero() {
            return Some(Work::Sync);
        }
        match select(waiting.as_mut(), R::sleep(left)).await.first {
            Some(work) => work,
            None => Some(Work::Sync),
        }
    }

    /// Writes and acknowledges the batches of a group.
    ///
    /// # Errors
    /// [`Failed`](ErrorKind::Failed). All who wait for a batch of the group have got it.
    async fn append(&mut self, mut group: VecDeque<Queued>) -> Result<(), Error> {
        let mut result = Ok(());
        // Each round writes at least one batch, to one segment.
        while !group.is_empty() {
            let count = self.fits(&group);
            if count == 0 {
                let base_offset = group[0].appended.base_offset;
                result = self.roll(base_offset).await;
            } else {
                let first: Vec<_> = group.drain(..count).collect();
                result = match self.write(&first).await {
                    Ok(()) => {
                        self.commit(first);
                        continue;
                    }
                    Err(error) => {
                        // They are refused like the rest, whose offsets come after theirs.
                        first.into_iter().rev().for_each(|queued| group.push_front(queued));
                        Err(error)
                    }
                };
            }
            if result.is_err() {
                break;
            }
        }
        let Err(error) = result else { return Ok(()) };
        let outcome = if error.kind() == ErrorKind::NoSpace { Ok(()) } else { Err(error.clone()) };
        self.refuse(group, &error);
        outcome
    }

    /// How many batches of the group the segment takes.
    fn fits(&self, group: &VecDeque<Queued>) -> usize {
        if self.is_ended {
            return 0;
        }
        let mut len = self.len;
        let is_empty = len <= SEGMENT_HEADER_BYTES as u64;
        let fits = group.iter().take_while(|queued| {
            len += (BATCH_HEADER_BYTES + queued.bytes) as u64;
            len <= self.shared.config.segment_bytes
        });
        // A batch that is larger than a segment has one of its own.
        fits.count().max(usize::from(is_empty))
    }

    /// Writes batches, and syncs them if the policy says so.
    ///
    /// # Errors
    /// [`NoSpace`](ErrorKind::NoSpace): none of them is written. [`Failed`](ErrorKind::Failed).
    async fn write(&mut self, batches: &[Queued]) -> Result<(), Error> {
        let (first, next) = (batches[0].appended.base_offset, self.shared.state.borrow().next);
        assert_eq!(first, next, "the next batch has the next offset");
        let bufs = self.encode(batches);
        let written = bufs.bytes_left() as u64;
        let write = self.opened.file.write_all_vectored_at(bufs, self.len).await;
        if let Err(error) = write.0 {
            return Err(self.cut(error).await);
        }
        self.len += written;
        let messages = batches.iter().map(|queued| u64::from(queued.appended.count)).sum();
        let group = Group { batches: batches.len(), messages, bytes: written };
        self.shared.tell(|observer| observer.wrote(group));
        match self.shared.config.sync {
            SyncPolicy::Never => {}
            SyncPolicy::Batch => self.sync().await?,
            SyncPolicy::Interval(interval) => {
                // An interval beyond what the clock can say never ends.
                self.sync_at = self.sync_at.or_else(|| R::now().checked_add(interval));
            }
        }
        Ok(())
    }

    /// The headers and the parts of batches, as they are stored.
    fn encode(&self, batches: &[Queued]) -> IoVec<Bytes> {
        let mut headers = BytesMut::with_capacity(batches.len() * BATCH_HEADER_BYTES);
        for queued in batches {
            let header = BatchHeader {
                payload_crc: payload_crc(&queued.parts),
                payload_len: queued.bytes as u32, // `batch_bytes_max` is at most a gibibyte
                count: queued.appended.count,
                base_offset: queued.appended.base_offset,
                timestamp: queued.appended.timestamp,
                synced_len: self.synced_len,
            };
            header.encode(self.opened.metadata.header.salt, &mut headers);
        }
        let mut headers = headers.freeze();
        let mut bufs = IoVec::new();
        for queued in batches {
            bufs.push(headers.split_to(BATCH_HEADER_BYTES));
            bufs.extend(queued.parts.iter().cloned());
        }
        bufs
    }

    /// After a write that failed: cuts what it has written, durably. If the disk is full, the log can go on then.
    async fn cut(&self, error: io::Error) -> Error {
        let path = &self.segment.path;
        if !is_full(&error) {
            return Error::failed("write", path, error);
        }
        let cut = async {
            self.opened.file.set_len(self.len).await?;
            self.opened.file.sync_data().await
        };
        match cut.await {
            Ok(()) => Error::io("write", path, error),
            Err(error) => Error::failed("cut", path, error),
        }
    }

    /// Acknowledges batches that are written, and synced if the policy says so.
    fn commit(&mut self, batches: Vec<Queued>) {
        let mut position = self.segment.len.get();
        let mut replies = Vec::with_capacity(batches.len());
        // Dropped at the end: the destructors are code of the caller, as its wakers are.
        let mut dropped = Vec::new();
        let mut borrowed = self.shared.state.borrow_mut();
        let state = &mut *borrowed;
        for queued in batches {
            state.queue_bytes -= queued.cost();
            let Queued { appended, parts, bytes, reply } = queued;
            let crate::Appended { base_offset, count, timestamp } = appended;
            let header = BatchHeader {
                payload_crc: 0, // the index does not need it
                payload_len: bytes as u32,
                count,
                base_offset,
                timestamp,
                synced_len: 0,
            };
            self.opened.metadata.index.borrow_mut().push(&header, position);
            position += header.stored_len();
            state.next = header.next_offset();
            self.timestamp = timestamp;
            if let Some(bytes) = cached(&parts, bytes) {
                state.cache_bytes += bytes.len() + BATCH_OVERHEAD_BYTES;
                state.cache.push_back(Batch { base_offset, count, timestamp, bytes });
            } else {
                dropped.extend(state.cache.drain(..));
                state.cache_bytes = 0;
            }
            replies.push((reply, appended, parts));
        }
        while state.cache_bytes > self.shared.config.cache_bytes_max {
            let Some(oldest) = state.cache.pop_front() else { break };
            state.cache_bytes -= oldest.bytes.len() + BATCH_OVERHEAD_BYTES;
            dropped.push(oldest);
        }
        state.bytes += position - self.segment.len.replace(position);
        drop(borrowed);
        for (reply, appended, parts) in replies {
            reply.give(Ok(appended));
            drop(parts);
        }
        self.shared.room.notify();
        self.shared.committed.notify();
    }

    /// Refuses the batches of a group and all that are queued: their offsets come after those of the group. The next
    /// batch gets the first of these offsets.
    fn refuse(&self, group: VecDeque<Queued>, error: &Error) {
        let mut refused: Vec<_> = group.into();
        {
            let state = &mut *self.shared.state.borrow_mut();
            let mut kept = VecDeque::new();
            for request in state.queue.drain(..) {
                match request {
                    Request::Append(queued) => refused.push(queued),
                    request => kept.push_back(request),
                }
            }
            state.queue = kept;
            state.assigned = Position { base_offset: state.next, timestamp: self.timestamp };
            state.queue_bytes -= refused.iter().map(Queued::cost).sum::<usize>();
        }
        // Not while the state is borrowed: wakers and destructors are code of the caller.
        for queued in refused {
            queued.reply.give(Err(error.clone()));
        }
        self.shared.room.notify();
    }

    /// Ends the partition: everyone who waits, and who comes later, gets the error.
    fn fail(&self, error: &Error) {
        let requests = {
            let state = &mut *self.shared.state.borrow_mut();
            state.failed = Some(error.clone());
            std::mem::take(&mut state.queue)
        };
        for request in requests {
            match request {
                Request::Append(queued) => queued.reply.give(Err(error.clone())),
                Request::Flush(reply) | Request::Close(reply) | Request::Purge(reply) => {
                    reply.give(Err(error.clone()));
                }
                Request::Trim(_, reply) => reply.give(Err(error.clone())),
            }
        }
        self.shared.room.notify();
        self.shared.committed.notify();
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    /// [`Failed`](ErrorKind::Failed). A second call would lie: see [`File::sync_data`].
    async fn sync(&mut self) -> Result<(), Error> {
        self.sync_at = None;
        if self.synced_len == self.len {
            return Ok(());
        }
        let started = R::now();
        let synced = self.opened.file.sync_data().await;
        let time = R::now().saturating_duration_since(started);
        self.shared.tell(|observer| observer.synced(time, synced.is_ok()));
        synced.map_err(|error| Error::failed("sync", &self.segment.path, error))?;
        self.synced_len = self.len;
        Ok(())
    }

    /// Marks the clean end, after everything was synced. Without a mark, the next opening reads the last segment.
    async fn mark_end(&self) {
        let (shared, segment) = (&self.shared, &self.segment);
        let is_worth = self.len > shared.config.segment_bytes / UNMARKED_PART;
        if self.is_ended || self.synced_len != segment.len.get() || !is_worth {
            return;
        }
        let mark = Mark {
            salt: self.opened.metadata.header.salt,
            base_offset: segment.base_offset,
            len: self.synced_len,
            next_offset: shared.state.borrow().next,
            timestamp: self.timestamp,
            entries: self.opened.metadata.index.borrow().entries().to_vec(),
        };
        if mark.write::<R>(&shared.dir).await.is_err() {
            // What is left of it takes space. It is damaged, or true.
            let _ = mark::remove::<R>(&shared.dir).await;
        }
    }

    /// Ends the segment and begins the next one. What was written is on the disk before the next one exists.
    pub(crate) async fn roll(&mut self, base_offset: u64) -> Result<(), Error> {
        self.sync().await?;
        self.is_ended = true;
        let next = self.create(base_offset, self.timestamp).await?;
        {
            let state = &mut *self.shared.state.borrow_mut();
            state.push_segment(Rc::clone(&next));
            state.note_use(&self.segment, &self.shared.config);
        }
        self.begin(next);
        Ok(())
    }

    /// Creates a segment, durably.
    ///
    /// # Errors
    /// [`NoSpace`](ErrorKind::NoSpace): its file may exist. [`Failed`](ErrorKind::Failed).
    pub(crate) async fn create(
        &self,
        base_offset: u64,
        timestamp: u64,
    ) -> Result<Rc<Segment<R>>, Error> {
        let header = SegmentHeader { salt: recovery::salt::<R>(), base_offset, timestamp };
        let index = Index::new(self.shared.config.segment_bytes);
        let dir = &self.shared.dir;
        let segment = match Segment::create(dir, header, index).await {
            Ok(segment) => segment,
            Err(error) if error.kind() == ErrorKind::NoSpace => return Err(error),
            Err(error) => return Err(error.into_failed()),
        };
        // Final, also if the disk is full: a second sync may succeed although the name is not on the disk.
        let synced = R::sync_dir(dir).await;
        synced.map_err(|error| Error::failed("sync", dir, error))?;
        Ok(Rc::new(segment))
    }

    /// Writes to `segment` from now on.
    pub(crate) fn begin(&mut self, segment: Rc<Segment<R>>) {
        let opened = segment.opened.borrow().clone();
        self.opened = opened.expect("a segment is created open");
        self.segment = segment;
        self.len = SEGMENT_HEADER_BYTES as u64;
        self.synced_len = self.len;
        self.sync_at = None;
        self.is_ended = false;
    }

    /// All segments were removed, and there was no room for another one. The next batch begins it.
    pub(crate) fn defer_segment(&mut self) {
        self.len = SEGMENT_HEADER_BYTES as u64;
        self.synced_len = self.len;
        self.sync_at = None;
        self.is_ended = true;
    }
}

enum Work {
    Group(VecDeque<Queued>),
    Sync,
    Flush(crate::signal::Reply<()>),
    Close(crate::signal::Reply<()>),
    Purge(crate::signal::Reply<()>),
    Trim(Keep, crate::signal::Reply<Trimmed>),
}

/// The bytes of a batch as the cache keeps them. `None`: it is not kept.
fn cached(parts: &[Bytes], bytes: usize) -> Option<Bytes> {
    match parts {
        _ if bytes < COPIED_BYTES_MAX => Some(parts.concat().into()),
        [part] => Some(part.clone()),
        _ => None,
    }
}

/// The first request, or the first batches.
fn take_work(queue: &mut VecDeque<Request>) -> Option<Work> {
    let mut group = VecDeque::new();
    let mut bytes = 0;
    while let Some(Request::Append(queued)) = queue.front() {
        bytes += queued.cost();
        if bytes > GROUP_BYTES_MAX && !group.is_empty() {
            break;
        }
        let Some(Request::Append(queued)) = queue.pop_front() else { break };
        group.push_back(queued);
    }
    if !group.is_empty() {
        return Some(Work::Group(group));
    }
    Some(match queue.pop_front()? {
        Request::Append(queued) => Work::Group(VecDeque::from([queued])),
        Request::Flush(reply) => Work::Flush(reply),
        Request::Close(reply) => Work::Close(reply),
        Request::Purge(reply) => Work::Purge(reply),
        Request::Trim(keep, reply) => Work::Trim(keep, reply),
    })
}

/// Releases the lock when the writer ends, or is dropped.
struct End<R: Files>(Rc<Shared<R>>);

impl<R: Files> Drop for End<R> {
    fn drop(&mut self) {
        let (lock, queue) = {
            let state = &mut *self.0.state.borrow_mut();
            state.is_closing = true;
            for segment in &state.segments {
                segment.opened.replace(None);
            }
            (state.lock.take(), std::mem::take(&mut state.queue))
        };
        drop(queue); // answers that the log is closed
        drop(lock);
        self.0.room.notify();
        self.0.committed.notify();
    }
}
